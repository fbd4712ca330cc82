# SPDX-License-Identifier: BSD-3-Clause
"""What was written before a signal is in the source when userblk-passthrough has ended, even if it is still open."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import resource
import select
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from fuse_mount import MODES, Mount, lacking_for_fuse, lacking_for_mode, pattern, start, traced
from nbdkit_server import STOP_TIMEOUT_S, checked, run
from waiting import wait_until

FuseStart = Callable[..., Mount]

pytestmark = pytest.mark.skipif(lacking_for_fuse() is not None, reason=str(lacking_for_fuse()))
MODES_HERE = [mode for mode in MODES if lacking_for_mode(mode) is None]
DATA = pattern(1 << 20)


@contextmanager
def held(path: Path, data: bytes = DATA, flags: int = 0, mode: int = 0o644) -> Iterator[int]:
    """Until its end, the file is open, and its last page was written through a mapping that nobody syncs."""
    descriptor = os.open(path, os.O_RDWR | (flags or os.O_CREAT), mode)
    try:
        os.pwrite(descriptor, data, 0)
        if data:
            with mmap.mmap(descriptor, len(data)) as memory:
                memory[-1] = 255
                yield descriptor
        else:
            yield descriptor
    finally:
        with suppress(OSError):  # close(2) asks the daemon
            os.close(descriptor)


def written(data: bytes = DATA) -> bytes:
    return data[:-1] + b"\xff"


def end(mount: Mount, number: signal.Signals = signal.SIGTERM) -> None:
    mount.process.send_signal(number)
    assert mount.process.wait(STOP_TIMEOUT_S) == 0
    assert mount.errors.read_text() == ""
    assert not os.path.ismount(mount.point)


def asker(mount: Mount) -> int:
    """The process of the daemon that uses the mount."""
    pid = mount.process.pid
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert Path(f"/proc/{child}/comm").read_text() == "userblk-asker\n"
    return int(child)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("mode", MODES_HERE)
def test_signal(mode: str, number: signal.Signals, fuse_start: FuseStart) -> None:
    mount = fuse_start(*MODES[mode])
    with held(mount.point / "file"):
        end(mount, number)
    assert (mount.source / "file").read_bytes() == written()


@pytest.mark.parametrize("mode", MODES_HERE)
def test_all_that_write_back_holds(mode: str, fuse_start: FuseStart) -> None:
    mount, data = fuse_start(*MODES[mode]), pattern(64 << 20)
    with held(mount.point / "file", data):
        end(mount)
    assert (mount.source / "file").read_bytes() == written(data)


def test_many_files_whose_names_change(fuse_start: FuseStart) -> None:
    mount, rng = fuse_start(), random.Random(1)
    (mount.point / "a/b").mkdir(parents=True)
    with ExitStack() as files:
        for number in range(300):
            files.enter_context(held(mount.point / "a/b" / str(number), DATA[:4096]))
        for number in rng.sample(range(300), 100):
            (mount.point / "a/b" / str(number)).rename(mount.point / "a" / str(number))
        (mount.point / "a").rename(mount.point / "a \\012\t\n\xe4")
        end(mount)
    found = [path for path in mount.source.rglob("*") if path.is_file()]
    assert len(found) == 300
    assert all(path.read_bytes() == written(DATA[:4096]) for path in found)


def test_files_that_no_name_finds(fuse_start: FuseStart) -> None:
    """Without any permission, by root; removed; without a name at first; and others in their places."""
    mount = fuse_start()
    with ExitStack() as files:
        files.enter_context(held(mount.point / "closed", mode=0))
        files.enter_context(held(mount.point / "removed"))
        files.enter_context(held(mount.point / "first"))
        files.enter_context(held(mount.point / "moved"))
        if has_tmpfile(mount):
            unnamed = files.enter_context(held(mount.point, flags=os.O_TMPFILE))
            checked(["ln", "--logical", f"/proc/{os.getpid()}/fd/{unnamed}", str(mount.point / "named")])
        (mount.point / "removed").unlink()
        (mount.point / "second").hardlink_to(mount.point / "first")
        (mount.point / "first").unlink()
        (mount.source / "moved").rename(mount.source.with_name("outside"))
        os.mkfifo(mount.source / "moved")
        end(mount)
    found = [mount.source / "closed", mount.source / "second", mount.source.with_name("outside")]
    if (mount.source / "named").exists():
        found.append(mount.source / "named")
    assert all(path.read_bytes() == written() for path in found)


def has_tmpfile(mount: Mount) -> bool:
    try:
        os.close(os.open(mount.point, os.O_TMPFILE | os.O_RDWR))
    except OSError:
        return False
    return True


@contextmanager
def told_of_opens(directory: Path, act: Callable[[Path], object]) -> Iterator[set[str]]:
    """Until its end, acts at once upon each name below the directory that anybody opens, once."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch, (ended, end) = libc.inotify_init1(os.O_CLOEXEC), os.pipe()
    assert libc.inotify_add_watch(watch, os.fsencode(directory), 0x20) == 1  # IN_OPEN
    seen = set[str]()

    def follow() -> None:
        while watch in select.select([watch, ended], [], [])[0]:
            events = os.read(watch, 1 << 16)
            while events:
                (length,) = struct.unpack_from("12xI", events)
                name = events[16 : 16 + length].rstrip(b"\0").decode()
                events = events[16 + length :]
                if name and name not in seen:
                    seen.add(name)
                    with suppress(OSError):
                        act(directory / name)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield seen
    finally:
        os.close(end)
        thread.join()
        for descriptor in (watch, ended):
            os.close(descriptor)


@pytest.mark.parametrize("act", [Path.stat, Path.touch])
def test_names_that_others_have_used(act: Callable[[Path], object], fuse_start: FuseStart) -> None:
    """The kernel remembers a name in the root, or that it is free: no user can know one that will be asked for."""
    mount = fuse_start()
    (mount.point / "d").mkdir()
    with ExitStack() as files:
        for number in range(200):
            files.enter_context(held(mount.point / "d" / str(number), DATA[: 4096 * 8]))
        with told_of_opens(mount.point, act) as seen:
            end(mount)
    assert all(path.read_bytes() == written(DATA[: 4096 * 8]) for path in (mount.source / "d").iterdir())
    assert len(seen) == 200


@pytest.mark.parametrize("how", ["--move", "--bind"])
def test_mount_that_was_moved(how: str, fuse_source: Path, tmp_path: Path) -> None:
    """It is written and unmounted where it is; what others have mounted at its place stays."""
    with private(tmp_path):
        point, place = tmp_path / "point", tmp_path / "to a\nplace"
        point.mkdir()
        place.mkdir()
        mount = start(fuse_source, point)
        try:
            checked(["mount", how, str(point), str(place)])
            if how == "--bind":
                checked(["umount", str(point)])
            checked(["mount", "-t", "tmpfs", "others", str(point)])
            with held(place / "file"):
                mount.process.terminate()
                assert mount.process.wait(STOP_TIMEOUT_S) == 0
                assert os.path.ismount(point) and not os.path.ismount(place)
            assert mount.errors.read_text() == ""
        finally:
            mount.kill()
            run(["umount", "--lazy", str(place)])
    assert (fuse_source / "file").read_bytes() == written()


@contextmanager
def private(path: Path) -> Iterator[None]:
    checked(["mount", "--bind", str(path), str(path)])
    try:
        checked(["mount", "--make-private", str(path)])
        yield
    finally:
        checked(["umount", "--recursive", str(path)])


def test_second_signal_does_not_wait(fuse_start: FuseStart) -> None:
    """But for those that come with the first, as SIGTERM and SIGHUP do at the end of a login."""
    mount = fuse_start()
    os.kill(asker(mount), signal.SIGSTOP)
    with held(mount.point / "file"):
        mount.process.terminate()
        mount.process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            mount.process.wait(1.5)
        assert os.path.ismount(mount.point)
        end(mount)


def test_signals_of_one_cause(fuse_start: FuseStart) -> None:
    mount = fuse_start()
    with held(mount.point / "file"):
        mount.process.terminate()
        end(mount, signal.SIGHUP)
    assert (mount.source / "file").read_bytes() == written()


@pytest.mark.parametrize("error", ["ENOSYS", "EPERM"])
def test_without_close_range(error: str, fuse_start: FuseStart) -> None:
    """Before Linux 5.9, and in sandboxes that do not know it."""
    mount = fuse_start(wrapper=traced("close_range", f"error={error}"))
    (descriptor,) = Path(f"/proc/{asker(mount)}/fd").iterdir()
    assert descriptor.name == "0"
    with held(mount.point / "file"):
        end(mount)
    assert (mount.source / "file").read_bytes() == written()


def test_what_cannot_be_written_is_an_error(fuse_start: FuseStart) -> None:
    mount = fuse_start()
    with held(mount.point / "file"):
        os.kill(asker(mount), signal.SIGKILL)
        mount.process.terminate()
        assert mount.process.wait(STOP_TIMEOUT_S) == 1
    said = f"userblk-passthrough: {mount.source}/file: what was written last is not all in the source: "
    assert mount.errors.read_text().startswith(said)


def test_nothing_that_was_written_is_no_error(fuse_start: FuseStart) -> None:
    mount = fuse_start()
    os.kill(asker(mount), signal.SIGKILL)
    end(mount)


def test_old_error_is_of_no_file(fuse_start: FuseStart) -> None:
    """The first syncfs(2) of the mount reports it."""
    mount = fuse_start()
    descriptor = os.open(mount.point / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(descriptor, 4096)
    os.truncate(mount.source / "file", 0)
    size, hard = resource.prlimit(mount.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    with mmap.mmap(descriptor, 4096) as memory:
        memory[0] = 1
        with pytest.raises(OSError, match="No space left|File too large"):
            os.fsync(descriptor)
    os.close(descriptor)
    resource.prlimit(mount.process.pid, resource.RLIMIT_FSIZE, (size, hard))
    with held(mount.point / "other"):
        end(mount)
    assert (mount.source / "other").read_bytes() == written()


def test_file_that_is_open_after_a_lazy_unmount(fuse_start: FuseStart) -> None:
    """Nothing finds it any more, so it is reported."""
    mount = fuse_start()
    with held(mount.point / "file"):
        checked(["umount", "--lazy", str(mount.point)])
        mount.process.terminate()
        assert mount.process.wait(STOP_TIMEOUT_S) == 1
    assert f"{mount.source}/file: what was written last is not all in the source" in mount.errors.read_text()


def test_writer_that_goes_on(fuse_start: FuseStart) -> None:
    """The end does not wait for it."""
    mount = fuse_start()
    argv = ["dd", "if=/dev/zero", f"of={mount.point}/file", "bs=64k", "conv=notrunc", "oflag=append"]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as writer:
        time.sleep(0.2)
        mount.process.terminate()
        status = mount.process.wait(STOP_TIMEOUT_S)
        writer.kill()
    assert status == 0


def test_killed_daemon_leaves_no_process(fuse_start: FuseStart) -> None:
    mount = fuse_start()
    helper = Path(f"/proc/{asker(mount)}")
    mount.kill()
    wait_until("its process has ended", lambda: not helper.exists())
