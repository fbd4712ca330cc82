# SPDX-License-Identifier: BSD-3-Clause
"""userblk-nullfs: names without data through a real mount, in each mode of its session."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fuse_mount import MODES, NULLFS_PROGRAM, Mount, aligned, direct, lacking_for_fuse, lacking_for_mode
from nbdkit_server import STOP_TIMEOUT_S, run
from waiting import wait_until

NullfsStart = Callable[..., Mount]

pytestmark = pytest.mark.skipif(lacking_for_fuse() is not None, reason=str(lacking_for_fuse()))

MIB = 1 << 20
# What has no file below cannot be passed through.
OWN_MODES = MODES | {"one-thread": ("--max-threads=1", "--nosplice", "--no-writeback")}
HERE = [mode for mode in OWN_MODES if "passthrough" not in mode and lacking_for_mode(mode) is None]


@pytest.fixture(params=HERE)
def null(request: pytest.FixtureRequest, nullfs_start: NullfsStart) -> Mount:
    """The file system in each mode that this machine has, with two files of 3 MiB and a byte."""
    mount = nullfs_start("--files=2", f"--size={3 * MIB + 1}", *OWN_MODES[request.param])
    assert "refused" not in mount.status.values()
    assert mount.status["io-uring"] == ("on" if request.param == "io-uring" else "off")
    return mount


def error_of(call: Callable[..., object], *arguments: object) -> int:
    try:
        call(*arguments)
    except OSError as error:
        return error.errno or 0
    return 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--files=-1", "/mnt"], "files=-1: give a number from 0 to 10000000"),
        (["--files=10000001", "/mnt"], "files=10000001: give a number"),
        (["--files=1k", "/mnt"], "files=1k: give a number"),
        (["--size=", "/mnt"], "size=: give bytes up to 2^60"),
        (["--size=1x", "/mnt"], "size=1x: give bytes"),
        (["--size=-1", "/mnt"], "size=-1: give bytes"),
        (["--size=1048577T", "/mnt"], "size=1048577T: give bytes"),
        (["--max-threads=0", "/mnt"], "max-threads=0: give a number from 1 to 100000"),
        (["--passthrough", "/mnt"], "--passthrough: no such option"),
        (["-o", "nosuch=3", "/mnt"], "nosuch=3: no such option; leave it out, or see userblk-nullfs --help"),
        (["-o", "ro,size=1K,nosuch", "/mnt"], "nosuch: no such option; leave it out"),
        (["-o", "max_read=abc", "/mnt"], "max_read=abc: give bytes from 4096 to 1048576, a multiple of 4096"),
        (["/mnt", "/more"], "/more: one argument too many"),
        ([], "MOUNTPOINT is missing"),
        (["/etc/passwd"], "/etc/passwd: Not a directory; MOUNTPOINT"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(arguments: list[str], message: str) -> None:
    result = run([str(NULLFS_PROGRAM), *arguments])
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"userblk-nullfs: {message}")
    assert result.stderr.count("\n") == 1


def test_files_of_a_size_read_as_zeroes(null: Mount) -> None:
    assert sorted(os.listdir(null.point)) == ["file-0", "file-1"]
    for name in ("file-0", "file-1"):
        assert (null.point / name).read_bytes() == bytes(3 * MIB + 1)
    descriptor = direct(null.point / "file-0")
    memory = aligned(b"x" * (4 * MIB))
    assert os.preadv(descriptor, [memory], 0) == 3 * MIB + 1
    assert bytes(memory) == bytes(3 * MIB + 1) + b"x" * (MIB - 1)
    os.close(descriptor)


def test_writes_leave_a_size_and_zeroes(null: Mount) -> None:
    path = null.point / "new"
    path.write_bytes(b"x" * (2 * MIB + 5))
    with path.open("ab") as file:
        file.write(b"tail")
        file.flush()
        os.fsync(file.fileno())
    assert path.stat().st_size == 2 * MIB + 9
    descriptor = direct(path)
    assert os.pwrite(descriptor, aligned(b"y" * MIB), 4 * MIB) == MIB
    assert os.fstat(descriptor).st_size == 5 * MIB
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    memory = aligned(b"x" * (6 * MIB))
    assert os.preadv(descriptor, [memory], 0) == 5 * MIB
    assert bytes(memory[: 5 * MIB]) == bytes(5 * MIB)
    os.close(descriptor)
    os.truncate(path, 3)
    assert path.stat().st_size == 3


def test_names_come_and_go(null: Mount) -> None:
    top = null.point
    (top / "a/b").mkdir(parents=True, mode=0o750)
    (top / "a/b/c").touch(mode=0o640)
    assert stat.filemode((top / "a/b/c").stat().st_mode) == "-rw-r-----"
    assert (top / "a").stat().st_nlink == 3
    assert error_of(os.rmdir, top / "a") == errno.ENOTEMPTY
    assert error_of(os.rmdir, top / "a/b/c") == errno.ENOTDIR
    assert error_of(os.unlink, top / "a/b") == errno.EISDIR
    assert error_of(os.mkdir, top / "a/b") == errno.EEXIST
    assert error_of(os.open, top / "a/b/c", os.O_CREAT | os.O_EXCL) == errno.EEXIST
    assert error_of(os.stat, top / "none") == errno.ENOENT
    assert error_of(os.mkdir, top / ("n" * 256)) == errno.ENAMETOOLONG
    assert error_of(os.rename, top / "a/b/c", top / ("n" * 256)) == errno.ENAMETOOLONG
    os.rename(top / "a/b/c", top / "d")
    os.rename(top / "file-0", top / "d")
    assert sorted(os.listdir(top)) == ["a", "d", "file-1"]
    assert (top / "d").stat().st_size == 3 * MIB + 1
    (top / "a/b").rmdir()
    (top / "a").rmdir()
    assert error_of(os.symlink, "d", top / "link") != 0
    assert error_of(os.link, top / "d", top / "hard") != 0
    assert error_of(os.mkfifo, top / "pipe") == errno.EPERM


def test_what_has_no_name_any_more_goes_on(null: Mount) -> None:
    descriptor = os.open(null.point / "file-0", os.O_RDWR)
    os.unlink(null.point / "file-0")
    assert os.fstat(descriptor).st_nlink == 0
    assert os.pread(descriptor, 4, MIB) == bytes(4)
    assert os.pwrite(descriptor, b"more", 4 * MIB) == 4
    os.fsync(descriptor)
    assert os.fstat(descriptor).st_size == 4 * MIB + 4
    os.close(descriptor)
    (null.point / "file-0").touch()
    assert (null.point / "file-0").stat().st_size == 0


def test_a_directory_of_many_names_is_listed_whole_while_others_go(null: Mount) -> None:
    top = null.point / "many"
    top.mkdir()
    for index in range(600):
        (top / str(index)).touch()
    seen = []
    with os.scandir(top) as entries:
        for entry in entries:
            seen.append(entry.name)
            if int(entry.name) % 2:
                os.unlink(entry.path)
    assert sorted(seen, key=int) == [str(index) for index in range(600)]
    for index in range(1, 600, 2):
        (top / str(index)).touch()
    assert len(os.listdir(top)) == 600
    for index in range(600):
        (top / str(index)).unlink()
    assert os.listdir(top) == []


def test_attributes_are_kept(nullfs_start: NullfsStart) -> None:
    mount = nullfs_start("--files=1", "--nocache", "-o", "allow_other")
    path = mount.point / "file-0"
    os.chown(path, 1, 2)
    os.chmod(path, 0o4711)
    os.utime(path, ns=(1_000_000_007, 2_000_000_009))
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1, 2, 0o4711)
    assert (found.st_atime_ns, found.st_mtime_ns) == (1_000_000_007, 2_000_000_009)
    (mount.point / "shared").mkdir()
    os.chown(mount.point / "shared", 0, 5)
    os.chmod(mount.point / "shared", 0o2777)
    (mount.point / "shared/below").mkdir()
    assert (mount.point / "shared/below").stat().st_gid == 5
    assert (mount.point / "shared/below").stat().st_mode & stat.S_ISGID


@pytest.mark.parametrize("option", ["--nosplice", "--io-uring"])
def test_it_goes_to_the_background_and_ends_with_its_mount(tmp_path: Path, option: str) -> None:
    if option == "--io-uring" and (reason := lacking_for_mode("io-uring")):
        pytest.skip(reason)
    result = run([str(NULLFS_PROGRAM), option, "--files=1", str(tmp_path)])
    try:
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.startswith("userblk-nullfs: ready ")
        assert os.path.ismount(tmp_path)
    finally:
        assert run(["umount", str(tmp_path)]).returncode == 0


def test_no_file_of_its_own_becomes_a_standard_one(tmp_path: Path) -> None:
    """Otherwise what it prints is what all files hold."""
    argv = ["sh", "-c", 'exec "$@" >&-', "sh", str(NULLFS_PROGRAM), "--foreground", "--files=1", str(tmp_path)]
    with subprocess.Popen(argv) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        try:
            wait_until("it is mounted", lambda: os.path.ismount(tmp_path), process=process)
            wait_until("nobody asks whether it is ready", lambda: not children.read_text())
            assert (tmp_path / "file-0").open("rb").read(4096) == bytes(4096)
        finally:
            process.terminate()
    assert process.returncode == 0


def test_a_signal_unmounts(nullfs_start: NullfsStart) -> None:
    mount = nullfs_start("--files=1")
    mount.process.terminate()
    assert mount.process.wait(STOP_TIMEOUT_S) == 0
    assert not os.path.ismount(mount.point)
