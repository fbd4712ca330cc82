# SPDX-License-Identifier: BSD-3-Clause
"""The end of userblk-passthrough while programs use it: nobody hangs, and the exit status is right."""

from __future__ import annotations

import fcntl
import mmap
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from fuse_mount import MODES, PROGRAM, Mount, lacking_for_fuse, lacking_for_mode, start, threads, traced
from nbdkit_server import STOP_TIMEOUT_S, run
from waiting import wait_until

FuseStart = Callable[..., Mount]

SECONDS = float(os.environ.get("FUSE_END_SECONDS", "3"))  # of each search in each mode
SEED = int(os.environ.get("FUSE_END_SEED", str(time.time_ns() % (1 << 40))))
pytestmark = [
    pytest.mark.skipif(lacking_for_fuse() is not None, reason=str(lacking_for_fuse())),
    pytest.mark.timeout(SECONDS + 900),
]
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_NODUMP_FL = 0x80086601, 0x40086602, 0x40
WORKERS = 4
NAMES = 4
SIZE = 1 << 17
# What libfuse says of requests under way when the connection ends.
SAID = "fuse: reading device: Software caused connection abort\n|fuse: splice from pipe: No such file or directory\n"
# A signal has it unmount, and another is faster.
LATE = r"|umount: \S+: not mounted\.\n|fuse: failed to unmount \S+: Invalid argument\n"


def change_flags(descriptor: int) -> None:
    flags = struct.unpack("l", fcntl.ioctl(descriptor, FS_IOC_GETFLAGS, bytes(8)))[0]
    fcntl.ioctl(descriptor, FS_IOC_SETFLAGS, struct.pack("l", flags ^ FS_NODUMP_FL))


def use(seed: int, end: Path) -> None:
    """Calls in the working directory after which the daemon tells the kernel to forget attributes, and others."""
    rng, maps = random.Random(seed), list[mmap.mmap]()
    memory = mmap.mmap(-1, 8192)
    while not end.exists():
        name, kind = str(rng.randrange(NAMES)), rng.randrange(8)
        try:
            if kind == 0:
                os.chmod(name, rng.choice([0o644, 0o4755, 0o2755]))
            elif kind == 1:
                os.utime(name)
            elif kind == 2 and maps:
                rng.choice(maps)[rng.randrange(SIZE)] = rng.randrange(256)
            elif kind == 3:
                os.listdir(".")
                os.rename(name, str(rng.randrange(NAMES)))
            else:
                descriptor = os.open(name, os.O_RDWR | os.O_CREAT | rng.choice([0, 0, os.O_DIRECT, os.O_APPEND]))
                try:
                    if kind == 4:
                        change_flags(descriptor)
                    elif kind == 5:
                        os.pwritev(descriptor, [memory], rng.randrange(SIZE // 4096) * 4096)
                    elif kind == 6:
                        os.preadv(descriptor, [memory], rng.randrange(SIZE // 4096) * 4096)
                    else:
                        os.ftruncate(descriptor, SIZE)
                        maps = [*maps[-3:], mmap.mmap(descriptor, SIZE)]
                finally:
                    os.close(descriptor)
        except OSError:  # a file that another has renamed, or the end
            time.sleep(0.001)


def by_umount(*options: str) -> Callable[[Mount], None]:
    return lambda mount: void(run(["umount", *options, str(mount.point)]))


def by_signal(number: signal.Signals) -> Callable[[Mount], None]:
    return lambda mount: mount.process.send_signal(number)


def by_abort(mount: Mount) -> None:
    with suppress(OSError):  # it is gone
        Path("/sys/fs/fuse/connections", mount.device.rpartition(":")[2], "abort").write_text("1")


def void(_: object) -> None:
    pass


ENDS = {
    "umount": by_umount(),
    "lazy": by_umount("--lazy"),
    "force": by_umount("--force"),
    "term": by_signal(signal.SIGTERM),
    "int": by_signal(signal.SIGINT),
    "kill": by_signal(signal.SIGKILL),
    "abort": by_abort,
}


@dataclass(frozen=True)
class Plan:
    """How a mount ends."""

    ends: tuple[tuple[str, float], ...]  # what is done to it, and how long after the one before
    options: tuple[str, ...] = ()
    workers: int = WORKERS
    work: float = 0.1  # seconds of it, before and after
    kept: bool = False  # a file stays open meanwhile
    copied: bool = False  # another mount namespace has it meanwhile


def draw(rng: random.Random) -> Plan:
    def pause() -> float:
        return rng.choice([0, rng.random() * 0.002, rng.random() * 0.05])

    return Plan(
        ends=tuple((rng.choice(list(ENDS)), pause()) for _ in range(rng.choice([1, 1, 2, 3]))),
        options=rng.choice([(), (), ("--max-threads=1",), ("--max-threads=2",), ("--clone-fd",)]),
        workers=rng.choice([0, 1, WORKERS]),
        work=pause(),
        kept=rng.random() < 0.3,
        copied=rng.random() < 0.3,
    )


@contextmanager
def working(directory: Path, end: Path, seed: int, workers: int) -> Iterator[None]:
    """Until the end, processes that use() the directory."""
    argv, paths = [sys.executable, __file__, str(end)], ":".join(map(os.path.abspath, sys.path))
    environment = os.environ | {"PYTHONPATH": paths}
    running = [
        subprocess.Popen([*argv, str(seed + number)], cwd=directory, env=environment, stdout=subprocess.PIPE)
        for number in range(workers)
    ]
    try:
        for worker in running:
            assert worker.stdout and worker.stdout.readline()
        yield
        end.touch()
        for worker in running:  # a store to a mapping without a file is a signal
            assert worker.wait(STOP_TIMEOUT_S) in (0, -signal.SIGBUS)
    finally:
        end.touch()
        for worker in running:
            worker.kill()
            worker.communicate()


@contextmanager
def copied(mount: Mount) -> Iterator[None]:
    """Until the end, another namespace has it, as those of containers and chroots do that are made meanwhile."""
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo && read _"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdout.readline()
        yield
        holder.communicate(b"\n")


@contextmanager
def kept_open(mount: Mount, data: bytes) -> Iterator[None]:
    """A file stays open, to whose mapping data was written."""
    descriptor = os.open(mount.point / "kept", os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(descriptor, len(data))
        with mmap.mmap(descriptor, len(data)) as memory:
            memory[:] = data
        yield
    finally:
        with suppress(OSError):  # close(2) asks the daemon
            os.close(descriptor)


def play(mount: Mount, plan: Plan, marker: Path, seed: int) -> None:
    """Whatever is under way, a mount ends with its last user, nobody hangs, and an orderly end loses nothing."""
    data = random.Random(seed).randbytes(SIZE)
    with ExitStack() as users:
        if plan.copied:
            users.enter_context(copied(mount))
        if plan.kept:
            users.enter_context(kept_open(mount, data))
        users.enter_context(working(mount.point, marker, seed, plan.workers))
        time.sleep(plan.work)
        for end, pause in plan.ends:
            time.sleep(pause)
            ENDS[end](mount)
        time.sleep(plan.work)
    ends, umount = [end for end, _ in plan.ends], ["umount", str(mount.point)]
    if not {"term", "int", "kill"} & {
        *ends
    }:  # all that was done may have found it busy; after an abort, it ends itself
        wait_until("unmounted", lambda: not os.path.ismount(mount.point) or run(umount).returncode == 0)
    status = mount.end()
    said = mount.errors.read_text()
    # Without its mount, which may go while it writes, it cannot have files that are open written, and says so.
    lost = f"userblk-passthrough: {mount.source}/.*: what was written last is not all in the source: .*\n"
    unmounted = any(end in ends for end in ("umount", "lazy", "force", "abort"))
    expected = 0
    if unmounted and re.search(lost, said):
        expected, said = 1, re.sub(lost, "", said)
    assert status == expected or ("kill" in ends and status == -signal.SIGKILL), said
    if plan.kept and ends in (["term"], ["int"]):
        assert (mount.source / "kept").read_bytes() == data
    late = re.search("(term|int) .*(umount|lazy|force)", " ".join(ends))
    assert re.sub(SAID + (LATE if late else ""), "", said) == ""


MODES_HERE = [mode for mode in MODES if lacking_for_mode(mode) is None]


@pytest.mark.parametrize("end", [("lazy",), ("force",), ("term",), ("kill",), ("lazy", "term")], ids=", ".join)
@pytest.mark.parametrize("mode", MODES_HERE)
def test_end_beside_programs(mode: str, end: tuple[str, ...], tmp_path: Path, fuse_start: FuseStart) -> None:
    play(fuse_start(*MODES[mode]), Plan(tuple((each, 0) for each in end)), tmp_path / "stop", SEED)


@pytest.mark.parametrize("mode", MODES_HERE)
def test_ends_by_seed(mode: str, tmp_path: Path, fuse_source: Path) -> None:
    """Any ways to end, at any times, beside other users and copies of the mount."""
    deadline, seed = time.monotonic() + SECONDS, SEED
    while time.monotonic() < deadline:
        plan = draw(random.Random(f"{mode} {seed}"))
        print(f"{mode}: FUSE_END_SEED={seed}: {plan}")
        mount = start(fuse_source, fuse_source.with_name("mount"), *MODES[mode], *plan.options)
        try:
            play(mount, plan, tmp_path / f"stop-{seed}", seed)
        finally:
            mount.kill()
        seed += 1


@pytest.mark.parametrize("mode", MODES_HERE)
def test_ends_before_it_is_ready_by_seed(mode: str, fuse_source: Path) -> None:
    """At any time of the beginning."""
    deadline, seed, point = time.monotonic() + SECONDS, SEED, fuse_source.with_name("mount")
    argv = ["env", "--default-signal=INT", str(PROGRAM), "--foreground", *MODES[mode], str(fuse_source), str(point)]
    errors = point.with_name("mount.errors")
    while time.monotonic() < deadline:
        rng = random.Random(f"{mode} {seed}")
        ends = rng.choices(["umount", "lazy", "force", "term", "int", "kill"], k=rng.choice([1, 1, 2]))
        pause = rng.random() * 0.05
        print(f"{mode}: FUSE_END_SEED={seed}: {ends} after {pause} s")
        with errors.open("wb") as stderr:
            process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=stderr)
        mount = Mount(PROGRAM, fuse_source, point, {}, process, errors)
        try:
            time.sleep(pause)
            for end in ends:
                ENDS[end](mount)
            process.terminate()  # there may have been nothing to unmount
            process.communicate(timeout=STOP_TIMEOUT_S)  # no process of it is left that has its output
            # Before it has taken over its signals, they kill it; nothing is mounted then.
            assert process.returncode in (0, 1, -signal.SIGTERM, -signal.SIGINT) or "kill" in ends, errors.read_text()
            assert "kill" in ends or not os.path.ismount(point)
        finally:
            mount.kill()
        seed += 1


def test_a_copy_of_the_mount_is_named(
    fuse_start: FuseStart, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the tests themselves, when a daemon does not end because another namespace has its mount."""
    monkeypatch.setattr("fuse_mount.GRACE_S", 0.1)
    mount = fuse_start()
    with copied(mount):
        mount.unmount()
    assert "is still mounted in other namespaces: " in (said := capsys.readouterr().out) and "read _" in said


def test_a_daemon_that_does_not_end_is_a_failure(fuse_start: FuseStart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuse_mount.GRACE_S", 0.1)
    mount = fuse_start(wrapper=traced("exit_group", "delay_enter=2000000"))
    with pytest.raises(AssertionError, match="userblk-passthrough ends: mounted in .*; threads .*userblk"):
        mount.unmount()
    assert mount.process.wait(STOP_TIMEOUT_S) == 0


@pytest.mark.parametrize("mode", MODES_HERE)
def test_an_open_that_ends_after_the_connection(mode: str, fuse_start: FuseStart) -> None:
    """The daemon takes back what it did for it, with nothing of the request, which libfuse has freed by then."""
    mount = fuse_start(*MODES[mode], wrapper=("MALLOC_PERTURB_=165",))
    (mount.source / "file").touch()
    argv = [sys.executable, "-c", "import sys; open(sys.argv[1], 'r+')", str(mount.point / "file")]
    descriptor = os.open(mount.source / "file", os.O_RDWR)
    handler = signal.signal(signal.SIGIO, signal.SIG_IGN)  # says that somebody wants the lease
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        opener = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
        try:
            wait_until("the daemon waits for the lease", lambda: waits_in("__break_lease", mount.process.pid))
            by_umount("--force")(mount)
            assert opener.wait(STOP_TIMEOUT_S) == 1
        finally:
            opener.kill()
            opener.wait(STOP_TIMEOUT_S)
    finally:
        os.close(descriptor)
        signal.signal(signal.SIGIO, handler)
    assert mount.process.wait(STOP_TIMEOUT_S) == 0
    assert mount.errors.read_text() == ""


def waits_in(function: str, pid: int) -> bool:
    return any(place == function for _, place in threads(pid))


if __name__ == "__main__":
    print(flush=True)
    with suppress(FileNotFoundError):  # the working directory is gone
        use(int(sys.argv[2]), Path(sys.argv[1]))
