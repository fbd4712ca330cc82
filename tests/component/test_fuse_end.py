# SPDX-License-Identifier: BSD-3-Clause
"""The end of userblk-passthrough while programs use it: nobody hangs, and the exit status is right."""

from __future__ import annotations

import fcntl
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from fuse_mount import MODES, Mount, lacking_for_fuse, lacking_for_mode
from nbdkit_server import STOP_TIMEOUT_S, run
from waiting import wait_until

FuseStart = Callable[..., Mount]

pytestmark = pytest.mark.skipif(lacking_for_fuse() is not None, reason=str(lacking_for_fuse()))

FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_NODUMP_FL = 0x80086601, 0x40086602, 0x40
WORKERS = 4
NAMES = 4
SIZE = 1 << 17
# What libfuse says of requests under way when the connection ends.
SAID = (
    "fuse: reading device: Software caused connection abort\n",
    "fuse: splice from pipe: No such file or directory\n",
)


def change_flags(descriptor: int) -> None:
    flags = struct.unpack("l", fcntl.ioctl(descriptor, FS_IOC_GETFLAGS, bytes(8)))[0]
    fcntl.ioctl(descriptor, FS_IOC_SETFLAGS, struct.pack("l", flags ^ FS_NODUMP_FL))


def use(seed: int, stop: Path) -> None:
    """Calls in the working directory after which the daemon tells the kernel to forget attributes, and others."""
    rng, maps = random.Random(seed), list[mmap.mmap]()
    memory = mmap.mmap(-1, 8192)
    while not stop.exists():
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


def by_both(mount: Mount) -> None:
    by_umount("--lazy")(mount)
    by_signal(signal.SIGTERM)(mount)


def void(_: object) -> None:
    pass


ENDS = {
    "lazy": by_umount("--lazy"),
    "force": by_umount("--force"),
    "term": by_signal(signal.SIGTERM),
    "kill": by_signal(signal.SIGKILL),
    "lazy, term": by_both,
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("mode", [mode for mode in MODES if lacking_for_mode(mode) is None])
def test_end_beside_programs(mode: str, end: str, tmp_path: Path, fuse_start: FuseStart) -> None:
    mount, stop, seed = fuse_start(*MODES[mode]), tmp_path / "stop", random.randrange(1 << 30)
    argv, paths = [sys.executable, __file__, str(stop)], ":".join(map(os.path.abspath, sys.path))
    environment = os.environ | {"PYTHONPATH": paths}
    workers = [
        subprocess.Popen([*argv, str(seed + number)], cwd=mount.point, env=environment) for number in range(WORKERS)
    ]
    try:
        wait_until("they work", lambda: os.listdir(mount.source))
        time.sleep(0.1)
        ENDS[end](mount)
        time.sleep(0.1)
        stop.touch()
        for worker in workers:  # a store to a mapping without a file is a signal
            assert worker.wait(STOP_TIMEOUT_S) in (0, -signal.SIGBUS), f"seed {seed}"
        assert mount.process.wait(STOP_TIMEOUT_S) == (-signal.SIGKILL if end == "kill" else 0), mount.errors.read_text()
        said = mount.errors.read_text()
        for line in SAID:
            said = said.replace(line, "")
        assert said == ""
    finally:
        stop.touch()
        for worker in workers:
            worker.kill()
            worker.wait(STOP_TIMEOUT_S)


@pytest.mark.parametrize("mode", [mode for mode in MODES if lacking_for_mode(mode) is None])
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
            wait_until("the daemon waits for the lease", lambda: "__break_lease" in wchans(mount.process.pid))
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


def wchans(pid: int) -> set[str]:
    """The functions of the kernel that threads of the process wait in."""
    found = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            found.add((thread / "wchan").read_text())
    return found


if __name__ == "__main__":
    with suppress(FileNotFoundError):  # the working directory is gone
        use(int(sys.argv[2]), Path(sys.argv[1]))
