# SPDX-License-Identifier: BSD-3-Clause
"""userblk-fuse-disk: a device as a file, through real mounts: data, space, errors, life and death."""

from __future__ import annotations

import errno
import os
import random
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest
from fuse_mount import (
    DISK_PROGRAM,
    LIBFUSE,
    Mount,
    aligned,
    direct,
    frozen,
    lacking_for_fuse,
    pattern,
    sought,
    stat_errno,
    threads_that_wait,
    unmount,
)
from nbdkit_server import ROOT, RUN_TIMEOUT_S, STOP_TIMEOUT_S, checked, run
from waiting import stop, wait_until

FuseStart = Callable[..., Mount]
MIB = 1 << 20
SIZE = 8 * MIB

pytestmark = pytest.mark.skipif(lacking_for_fuse() is not None, reason=str(lacking_for_fuse()))


@pytest.fixture
def disk(fuse_source: Path) -> Path:
    """What is served: a file of SIZE bytes."""
    path = fuse_source / "disk"
    path.write_bytes(pattern(SIZE))
    return path


@pytest.fixture(params=["on", "off"])
def served(request: pytest.FixtureRequest, disk: Path, fuse_file: FuseStart) -> Mount:
    """It, past the page cache below and through it."""
    return fuse_file("passthrough", str(disk), f"direct={request.param}")


# ---- command line -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "MOUNTPOINT: missing"),
        (["FILE"], "DEVICE: missing; name one of null, passthrough"),
        (["FILE", "s3"], "s3: no such device; name one of null, passthrough"),
        (["FILE", "null"], "size: missing"),
        (["FILE", "null", "size=1x"], "size=1x: "),
        (["FILE", "null", "size=1M", "direct=on"], "direct: unknown parameter of null"),
        (["FILE", "passthrough", "/does/not/exist"], "file=/does/not/exist: No such file or directory"),
        (["/etc", "null", "size=1M"], "/etc: not a regular file; name one to mount on"),
        (["/does/not/exist", "null", "size=1M"], "/does/not/exist: No such file or directory; MOUNTPOINT"),
        (["--max-threads=0", "FILE", "null", "size=1M"], "--max-threads=0: must be a number from 1 to 1024"),
        (["--max-threads=1x", "FILE", "null", "size=1M"], "--max-threads=1x: must be a number"),
        (["--direct", "FILE", "null", "size=1M"], "--direct: no such option; see userblk-fuse-disk --help"),
        (["-o"], "-o: needs a value"),
        (["-o", "ro,nosuch=3", "FILE", "null", "size=1M"], "nosuch=3: no such option; leave it out"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run([str(DISK_PROGRAM), *(str(tmp_path / "file") if word == "FILE" else word for word in arguments)])
    assert result.returncode == 2
    assert result.stderr.startswith(f"userblk-fuse-disk: {message}")
    assert (result.stderr.count("\n"), result.stdout) == (1, "")


def test_a_mistake_makes_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    argv = [str(DISK_PROGRAM), "-o", "nonsense", str(tmp_path / "file"), "passthrough", f"file={tmp_path}/d", "size=1M"]
    result = run(argv)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "nonsense" in result.stderr and not (tmp_path / "d").exists()


def test_the_manual_has_what_help_has() -> None:
    usage = checked([str(DISK_PROGRAM), "--help"])
    manual = (ROOT / "fuse-disk/userblk-fuse-disk.1").read_text()
    said = re.findall(r"^    -+([a-z-]+)", usage.split("Options:")[1].split("Device ")[0], re.MULTILINE)
    assert said == re.findall(r"^\.It Fl -?([a-z-]+)", manual, re.MULTILINE) != []
    assert checked([str(DISK_PROGRAM), "--version"]).endswith(f"libfuse {'.'.join(map(str, LIBFUSE))}\n")


def test_status_says_what_was_granted(fuse_file: FuseStart) -> None:
    status = fuse_file("null", "size=1M").status
    kernel = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    assert status["libfuse"] == ".".join(map(str, LIBFUSE))
    assert (status["size"], status["readonly"]) == (str(MIB), "off")
    assert (status["max-threads"], status["clone-fd"], status["async-dio"]) == ("16", "off", "on")
    assert status["parallel-writes"] == ("on" if kernel >= (6, 2) else "refused")


def test_options_are_taken(disk: Path, fuse_file: FuseStart) -> None:
    options = ("--max-threads=3", "--clone-fd", "-o", "allow_other,noatime")
    mount = fuse_file("passthrough", str(disk), options=options)
    assert (mount.status["max-threads"], mount.status["clone-fd"]) == ("3", "on")
    found = checked(["findmnt", "--noheadings", "--output", "OPTIONS", str(mount.point)])
    assert {"noatime", "allow_other", "default_permissions"} <= set(found.strip().split(","))
    assert mount.point.read_bytes() == disk.read_bytes()


# ---- the file ---------------------------------------------------------------------


def test_it_is_a_file_of_the_devices_size(served: Mount) -> None:
    found = served.point.stat()
    assert (oct(found.st_mode), found.st_size, found.st_nlink) == ("0o100600", SIZE, 1)
    assert (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid())


def test_its_size_and_owner_stay(disk: Path, served: Mount) -> None:
    before = disk.read_bytes()
    for change in (
        lambda: os.truncate(served.point, 0),
        lambda: os.truncate(served.point, SIZE + 1),
        lambda: os.close(os.open(served.point, os.O_RDWR | os.O_TRUNC)),
        lambda: served.point.chmod(0o644),
        lambda: os.chown(served.point, 1, 1),
    ):
        with pytest.raises(PermissionError):
            change()
    os.truncate(served.point, SIZE)
    os.utime(served.point)
    assert served.point.stat().st_size == SIZE
    assert disk.read_bytes() == before


@pytest.mark.parametrize("device", ["null", "passthrough"])
def test_beyond_its_end(device: str, disk: Path, fuse_file: FuseStart) -> None:
    mount = fuse_file(device, *([str(disk)] if device == "passthrough" else [f"size={SIZE}"]))
    descriptor = os.open(mount.point, os.O_RDWR)
    try:
        assert len(os.pread(descriptor, 4096, SIZE - 512)) == 512
        assert os.pread(descriptor, 4096, SIZE) == os.pread(descriptor, 4096, SIZE + 1) == b""
        assert os.pwrite(descriptor, bytes(4096), SIZE - 512) == 512
        for offset in (SIZE, SIZE + 1):
            with pytest.raises(OSError) as caught:
                os.pwrite(descriptor, bytes(512), offset)
            assert caught.value.errno == errno.ENOSPC
    finally:
        os.close(descriptor)
    assert mount.point.stat().st_size == SIZE


def test_readonly(disk: Path, fuse_file: FuseStart) -> None:
    mount = fuse_file("passthrough", str(disk), "readonly=on")
    assert mount.status["readonly"] == "on"
    assert oct(mount.point.stat().st_mode) == "0o100400"
    assert mount.point.read_bytes() == disk.read_bytes()
    for flags in (os.O_WRONLY, os.O_RDWR):
        with pytest.raises(OSError) as caught:
            os.close(os.open(mount.point, flags))
        assert caught.value.errno == errno.EROFS


# ---- data -------------------------------------------------------------------------


def test_what_is_read_and_written_anywhere_is_the_devices(disk: Path, served: Mount) -> None:
    """Any length at any offset, the largest requests and more among them."""
    rng = random.Random(1)
    expected = bytearray(disk.read_bytes())
    descriptor = os.open(served.point, os.O_RDWR)
    try:
        for turn in range(300):
            length = rng.choice((1, 511, 512, 4096, 65536, 3 * MIB)) + rng.choice((0, 0, 1, 100))
            offset = rng.randrange(SIZE - length) // rng.choice((1, 512, 4096))
            if rng.random() < 0.5:
                data = pattern(length, turn)
                assert os.pwrite(descriptor, data, offset) == length
                expected[offset : offset + length] = data
            else:
                assert os.pread(descriptor, length, offset) == expected[offset : offset + length]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    assert disk.read_bytes() == served.point.read_bytes() == expected


def test_it_is_not_cached(disk: Path, served: Mount) -> None:
    """Neither for those who ask for direct I/O nor for others: what is there is read."""
    plain, other = os.open(served.point, os.O_RDWR), direct(served.point)
    try:
        assert os.pread(plain, 4096, 0) == pattern(4096)
        with aligned(b"d" * 4096) as memory:
            assert os.pwritev(other, [memory], 0) == 4096
        assert os.pread(plain, 4096, 0) == disk.read_bytes()[:4096] == b"d" * 4096
        os.pwrite(plain, b"plain", 4096)
        with aligned(bytes(4096)) as memory:
            assert os.preadv(other, [memory], 4096) == 4096
            assert memory[:5] == b"plain"
        assert disk.read_bytes()[4096:4101] == b"plain"
    finally:
        os.close(plain)
        os.close(other)


FIO = ("fio", "--name=load", "--direct=1", "--allow_file_create=0", "--thread")


def begin_fio(point: Path, *options: str) -> subprocess.Popen[bytes]:
    """Where the file is: fio would make the directories of a path, which waits where the file system is frozen."""
    argv = [*FIO, f"--filename={point.name}", *options]
    return subprocess.Popen(argv, cwd=point.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_verified_data_of_many_writers(disk: Path, fuse_file: FuseStart) -> None:
    mount = fuse_file("passthrough", str(disk), options=("--clone-fd",))
    checked(
        [*FIO, f"--filename={mount.point}", "--rw=randwrite", "--bsrange=512-64k", "--ioengine=io_uring",
         "--iodepth=16", "--numjobs=8", f"--size={SIZE // 8}", f"--offset_increment={SIZE // 8}",
         "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--end_fsync=1"]
    )  # fmt: skip
    assert mount.point.read_bytes() == disk.read_bytes() != pattern(SIZE)


@pytest.mark.parametrize(
    "load",
    [
        # More than the 12 requests that the kernel sends at once by default.
        ("--ioengine=io_uring", "--iodepth=16"),
        ("--ioengine=psync", "--numjobs=16", f"--offset_increment={SIZE // 16}", f"--size={SIZE // 16}"),
    ],
)
def test_direct_writes_come_side_by_side(load: tuple[str, ...], disk: Path, fuse_file: FuseStart) -> None:
    mount = fuse_file("passthrough", str(disk))
    if mount.status["parallel-writes"] != "on":
        pytest.skip("kernel: it does not let direct writes run side by side")
    with frozen(disk.parent):
        writer = begin_fio(mount.point, "--rw=write", "--bs=4k", "--number_ios=32", *load)
        wait_until("16 threads write", lambda: threads_that_wait(mount.process.pid) == 16)
    output = writer.communicate(timeout=RUN_TIMEOUT_S)[0]
    assert writer.returncode == 0, output.decode()


def test_a_sync_reaches_the_device(disk: Path, fuse_file: FuseStart, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    # LeakSanitizer, where that is in the program, does not work below it.
    strace = ("env", "ASAN_OPTIONS=detect_leaks=0", "strace", "-f", "-o", str(trace), "-e", "trace=fdatasync,pwritev2")
    mount = fuse_file("passthrough", str(disk), wrapper=strace)

    def calls() -> list[str]:
        return re.findall(r"(?:fdatasync|RWF_DSYNC)", trace.read_text())

    descriptor = os.open(mount.point, os.O_RDWR)
    synchronous = os.open(mount.point, os.O_RDWR | os.O_DSYNC)
    try:
        os.pwrite(descriptor, b"x", 0)
        assert calls() == []
        os.fsync(descriptor)
        assert calls() == ["fdatasync"]
        os.fdatasync(descriptor)
        assert calls() == ["fdatasync"] * 2
        os.pwrite(synchronous, b"x", 0)
        assert calls()[2:] == ["RWF_DSYNC"]
        os.pwritev(descriptor, [b"x"], 0, os.RWF_DSYNC)
        assert calls()[2:] == ["RWF_DSYNC"] * 2
    finally:
        os.close(descriptor)
        os.close(synchronous)


def test_errors_of_the_device_are_the_files(disk: Path, served: Mount) -> None:
    os.truncate(disk, SIZE // 2)
    descriptor = os.open(served.point, os.O_RDWR)
    try:
        assert os.pread(descriptor, 4096, 0) == pattern(4096)
        for call in (lambda: os.pread(descriptor, 4096, SIZE - 4096), lambda: os.fsync(descriptor)):
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.errno == errno.EIO
    finally:
        os.close(descriptor)
    assert "became smaller while it was served" in served.errors.read_text()
    served.process.terminate()
    assert served.process.wait(STOP_TIMEOUT_S) == 0


def test_null_keeps_nothing(fuse_file: FuseStart) -> None:
    mount = fuse_file("null", "size=1T", options=("--clone-fd",))
    assert mount.point.stat().st_size == 1 << 40
    descriptor = os.open(mount.point, os.O_RDWR)
    try:
        assert os.pwrite(descriptor, b"x" * 3 * MIB, (1 << 40) - 3 * MIB) == 3 * MIB
        assert os.pread(descriptor, 3 * MIB, (1 << 40) - 3 * MIB) == bytes(3 * MIB)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- space ------------------------------------------------------------------------


def test_space(disk: Path, served: Mount) -> None:
    expected = bytearray(disk.read_bytes())
    blocks = disk.stat().st_blocks
    point = str(served.point)
    for option, offset, length in (
        ("--punch-hole", MIB, MIB),
        ("--punch-hole", 3 * MIB + 7, 1000),
        ("--zero-range", 4 * MIB + 9, 100_000),
        ("--punch-hole", SIZE - 4096, 8192),
        ("--punch-hole", SIZE, 4096),
    ):
        checked(["fallocate", option, "--offset", str(offset), "--length", str(length), point])
        expected[offset : offset + length] = bytes(min(length, max(0, SIZE - offset)))
    assert served.point.read_bytes() == disk.read_bytes() == expected
    assert disk.stat().st_blocks <= blocks - MIB // 512
    refused: list[list[str]] = [["--zero-range", "--offset", str(SIZE)], ["--keep-size"], []]
    for options in refused:
        assert run(["fallocate", *options, "--length", "4096", point]).returncode == 1
    assert len(expected) == served.point.stat().st_size == SIZE


def test_holes_are_found(fuse_source: Path, fuse_file: FuseStart) -> None:
    disk = fuse_source / "disk"
    with disk.open("wb") as file:
        file.truncate(SIZE)
        for offset in (MIB, 5 * MIB):
            os.pwrite(file.fileno(), pattern(65536), offset)
        os.fsync(file.fileno())
    mount = fuse_file("passthrough", str(disk))
    above, below = os.open(mount.point, os.O_RDONLY), os.open(disk, os.O_RDONLY)
    try:
        for offset in (0, 100, MIB, MIB + 65535, MIB + 65536, 5 * MIB, 6 * MIB, SIZE - 1, SIZE, SIZE + 1):
            for whence in (os.SEEK_DATA, os.SEEK_HOLE):
                assert sought(above, offset, whence) == sought(below, offset, whence), (offset, whence)
    finally:
        os.close(above)
        os.close(below)


def test_null_is_one_hole(fuse_file: FuseStart) -> None:
    mount = fuse_file("null", f"size={SIZE}")
    with mount.point.open("rb") as file:
        assert sought(file.fileno(), 4096, os.SEEK_HOLE) == 4096
        assert sought(file.fileno(), 4096, os.SEEK_DATA) == -errno.ENXIO


# ---- life and death -----------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_unmounts(number: signal.Signals, disk: Path, fuse_file: FuseStart) -> None:
    mount = fuse_file("passthrough", str(disk))
    with mount.point.open("r+b", buffering=0) as file:
        file.write(b"text")
    mount.process.send_signal(number)
    assert mount.process.wait(STOP_TIMEOUT_S) == 0
    assert mount.point.stat().st_size == 0  # the file below
    assert disk.read_bytes()[:4] == b"text"


SIGNAL_BEFORE_A_WAIT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>
int sem_wait(sem_t *semaphore)
{
	int (*next)(sem_t *) = (int (*)(sem_t *))dlsym(RTLD_NEXT, "sem_wait");
	static int told;
	if (getpid() == gettid() && !told) {
		told = 1;
		usleep(100000); /* it is mounted */
		raise(SIGTERM);
	}
	return next(semaphore);
}
"""


def test_a_signal_right_before_it_waits(disk: Path, tmp_path: Path) -> None:
    """libfuse 3.12 to 3.16 waits for its end by a semaphore that no signal posts."""
    point, library = tmp_path / "file", tmp_path / "signal.so"
    point.touch()
    library.with_suffix(".c").write_text(SIGNAL_BEFORE_A_WAIT)
    checked(["cc", "-shared", "-fPIC", "-o", str(library), str(library.with_suffix(".c"))])
    environment = os.environ | {"LD_PRELOAD": str(library), "ASAN_OPTIONS": "verify_asan_link_order=0"}
    argv = [str(DISK_PROGRAM), str(point), "passthrough", f"file={disk}"]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE) as server:
        try:
            assert server.wait(20) == 0
        finally:
            server.kill()
            run(["umount", "--lazy", str(point)])


def test_a_signal_leaves_the_mounts_of_others_alone(disk: Path, tmp_path: Path, fuse_file: FuseStart) -> None:
    mount = fuse_file("passthrough", str(disk))
    other = tmp_path / "other"
    other.write_text("other")
    with mount.point.open("rb", buffering=0) as file:
        checked(["umount", "--lazy", str(mount.point)])
        checked(["mount", "--bind", str(other), str(mount.point)])
        try:
            assert len(file.read(4)) == 4
            mount.process.terminate()
            assert mount.process.wait(STOP_TIMEOUT_S) == 0
            assert mount.point.read_text() == "other"
        finally:
            unmount(mount.point)


def test_no_message_is_written_into_the_device(disk: Path, tmp_path: Path) -> None:
    """Without a standard error the next file that is opened gets its number."""
    point = tmp_path / "file"
    point.touch()
    argv = [str(DISK_PROGRAM), str(point), "passthrough", f"file={disk}"]
    with subprocess.Popen(["sh", "-c", 'exec "$@" 2>&-', "sh", *argv]) as process:
        try:
            wait_until("it is mounted", lambda: point.stat().st_size == SIZE, process=process)
            assert os.readlink(f"/proc/{process.pid}/fd/2") == "/dev/null"
        finally:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)


def test_requests_in_flight_end_before_it_does(disk: Path, fuse_file: FuseStart) -> None:
    """A write that was begun is done, or fails: its client is not left waiting."""
    mount = fuse_file("passthrough", str(disk))
    with frozen(disk.parent):
        writer = begin_fio(mount.point, "--rw=write", "--bs=4k", "--number_ios=4", "--ioengine=psync")
        wait_until("it writes", lambda: threads_that_wait(mount.process.pid))
        mount.process.terminate()
    assert mount.process.wait(STOP_TIMEOUT_S) == 0
    writer.communicate(timeout=RUN_TIMEOUT_S)
    assert not os.path.ismount(mount.point)


def test_a_close_does_not_wait(disk: Path, fuse_file: FuseStart) -> None:
    """A process with the file open can start another one while requests stall: that closes its copies."""
    mount = fuse_file("passthrough", str(disk))
    descriptors = [os.open(mount.point, os.O_RDWR) for _ in range(2)]
    writer = Thread(target=os.pwrite, args=(descriptors[0], b"text", 0), daemon=True)
    closer = Thread(target=os.close, args=(descriptors[1],), daemon=True)
    stop(mount.process.pid)
    try:
        writer.start()
        closer.start()
        closer.join(10)
        assert writer.is_alive() and not closer.is_alive()
    finally:
        mount.process.send_signal(signal.SIGCONT)
        writer.join(RUN_TIMEOUT_S)
        os.close(descriptors[0])
    assert disk.read_bytes()[:4] == b"text"


def test_a_killed_server_leaves_errors_and_a_clean_unmount(disk: Path, fuse_file: FuseStart) -> None:
    mount = fuse_file("passthrough", str(disk))
    descriptor = os.open(mount.point, os.O_RDWR)
    try:
        mount.process.kill()
        mount.process.wait(STOP_TIMEOUT_S)
        wait_until("ENOTCONN", lambda: stat_errno(mount.point) == errno.ENOTCONN)  # once the last thread is gone
        for call in (lambda: os.pread(descriptor, 1, 0), lambda: os.pwrite(descriptor, b"x", 0)):
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.errno == errno.ENOTCONN
        again = run([str(DISK_PROGRAM), str(mount.point), "null", "size=1M"])
        assert again.returncode == 2 and "unmount the leftover mount of a killed server" in again.stderr
    finally:
        with suppress(OSError):  # close(2) asks the daemon
            os.close(descriptor)
    unmount(mount.point)
    assert mount.point.stat().st_size == 0
    assert disk.read_bytes() == pattern(SIZE)
