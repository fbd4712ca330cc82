# SPDX-License-Identifier: BSD-3-Clause
"""What was written before a signal is in the source when userblk-passthrough has ended, even if it is still open."""

from __future__ import annotations

import mmap
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from fuse_mount import MODES, Mount, lacking_for_fuse, lacking_for_mode, pattern, start
from nbdkit_server import STOP_TIMEOUT_S, checked, run
from waiting import wait_until

FuseStart = Callable[..., Mount]

pytestmark = pytest.mark.skipif(lacking_for_fuse() is not None, reason=str(lacking_for_fuse()))
MODES_HERE = [mode for mode in MODES if lacking_for_mode(mode) is None]
DATA = pattern(1 << 20)


@contextmanager
def held(path: Path, data: bytes = DATA, flags: int = 0, mode: int = 0o644) -> Iterator[None]:
    """Until its end, the file is open, and its last page was written through a mapping that nobody syncs."""
    descriptor = os.open(path, os.O_RDWR | (flags or os.O_CREAT), mode)
    try:
        os.pwrite(descriptor, data, 0)
        if data:
            with mmap.mmap(descriptor, len(data)) as memory:
                memory[-1] = 255
                yield
        else:
            yield
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


def test_files_that_cannot_be_opened_again(fuse_start: FuseStart) -> None:
    """Without any permission, by root; removed; without a name; and others in their places."""
    mount = fuse_start()
    with ExitStack() as files:
        files.enter_context(held(mount.point / "closed", mode=0))
        files.enter_context(held(mount.point / "removed"))
        files.enter_context(held(mount.point / "pipe"))
        if has_tmpfile(mount):
            files.enter_context(held(mount.point, flags=os.O_TMPFILE))
        (mount.point / "removed").unlink()
        (mount.source / "pipe").rename(mount.source / "moved")
        os.mkfifo(mount.source / "pipe")
        end(mount)
    assert (mount.source / "closed").read_bytes() == written()


def has_tmpfile(mount: Mount) -> bool:
    try:
        os.close(os.open(mount.point, os.O_TMPFILE | os.O_RDWR))
    except OSError:
        return False
    return True


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
    mount = fuse_start()
    os.kill(asker(mount), signal.SIGSTOP)
    with held(mount.point / "file"):
        mount.process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            mount.process.wait(0.5)
        assert os.path.ismount(mount.point)
        end(mount)


def test_what_cannot_be_written_is_an_error(fuse_start: FuseStart) -> None:
    mount = fuse_start()
    with held(mount.point / "file"):
        os.kill(asker(mount), signal.SIGKILL)
        mount.process.terminate()
        assert mount.process.wait(STOP_TIMEOUT_S) == 1
    said = f"userblk-passthrough: {mount.point}: what was written last is not all in the source: "
    assert mount.errors.read_text().startswith(said)


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
