# SPDX-License-Identifier: BSD-3-Clause
"""userblk-passthrough: room for a file, and what does not fit or cannot be read is reported."""

from __future__ import annotations

import errno
import mmap
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from fuse_mount import MODES, Mount, lacking_for_mode, pattern, start, unmount
from fuse_sources import on_image, over, overlay
from loops import mounted
from nbdkit_server import checked

FuseStart = Callable[..., Mount]
MIB = 1 << 20


def test_space(fuse: Mount) -> None:
    path = fuse.point / "file"
    path.write_bytes(b"x" * MIB)
    xfs_io = ["xfs_io", "-c"]
    if shutil.which("xfs_io") is None:
        pytest.skip("xfs_io is not installed")
    checked([*xfs_io, f"fpunch 4096 {MIB // 2}", str(path)])
    assert path.read_bytes()[4000:5000] == b"x" * 96 + bytes(904)
    checked([*xfs_io, f"fzero {MIB - 100} 100", str(path)])
    assert path.read_bytes()[-101:] == b"x" + bytes(100)
    checked([*xfs_io, f"falloc -k 0 {4 * MIB}", str(path)])
    assert path.stat().st_size == MIB
    checked([*xfs_io, f"falloc 0 {3 * MIB}", str(path)])
    assert path.stat().st_size == (fuse.source / "file").stat().st_size == 3 * MIB
    assert (fuse.source / "file").stat().st_blocks * 512 >= 3 * MIB


def test_a_full_disk_is_reported(fuse: Mount) -> None:
    """At the latest by fsync: never in silence."""
    free = os.statvfs(fuse.source).f_bfree * os.statvfs(fuse.source).f_bsize
    blocker = fuse.source / "blocker"
    with blocker.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free - 96 * MIB)
    with (fuse.point / "file").open("wb", buffering=0) as file, pytest.raises(OSError) as caught:
        for _ in range(160):
            file.write(b"x" * MIB)
        os.fsync(file.fileno())
    assert caught.value.errno == errno.ENOSPC


def test_an_allocation_for_which_there_is_no_room(fuse: Mount) -> None:
    """ext4 extends the file by what it could allocate, and the kernel would go on with the old size."""
    free = os.statvfs(fuse.source).f_bfree * os.statvfs(fuse.source).f_bsize
    with (fuse.source / "blocker").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free - 600 * MIB)
    with (fuse.point / "file").open("ab", buffering=0) as file:
        file.write(b"first ")
        os.fsync(file.fileno())
        with pytest.raises(OSError) as caught:
            os.posix_fallocate(file.fileno(), 0, 800 * MIB)
        assert caught.value.errno == errno.ENOSPC
        found, below = os.stat(file.fileno()), (fuse.source / "file").stat()
        assert (found.st_size, found.st_blocks) == (below.st_size, below.st_blocks)
        (fuse.source / "blocker").unlink()
        file.write(b"second")
    assert (fuse.point / "file").read_bytes() == (fuse.source / "file").read_bytes() == b"first second"


def free_in(directory: Path) -> int:
    return os.statvfs(directory).f_bavail * os.statvfs(directory).f_bsize


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_an_allocation_of_most_of_the_room(kind: str, stacked: bool, tmp_path: Path, fuse_source: Path) -> None:
    """XFS wants room for all of a call, also where it has allocated that already."""
    with (
        on_image(kind, tmp_path) as disk,
        overlay(fuse_source, disk) if stacked else nullcontext(disk) as below,
        over(below, fuse_source) as mount,
    ):
        free = free_in(disk)
        size = free * 3 // 4 // MIB * MIB
        with (mount.point / "file").open("wb") as file, (mount.point / "other").open("wb") as other:
            os.posix_fallocate(file.fileno(), 0, size)
            assert os.stat(file.fileno()).st_size == (below / "file").stat().st_size == size
            with pytest.raises(OSError) as caught:
                os.posix_fallocate(other.fileno(), 0, size)
            assert caught.value.errno == errno.ENOSPC
            assert os.stat(other.fileno()).st_size == (below / "other").stat().st_size == 0
            assert free - free_in(disk) < size + 16 * MIB


def fits(path: Path, blocks: int) -> bool:
    """Whether a new file may have so many blocks."""
    with path.open("wb") as file:
        path.unlink()
        try:
            os.posix_fallocate(file.fileno(), 0, blocks * 4096)
        except OSError as error:
            assert error.errno == errno.ENOSPC
            return False
    return True


@pytest.mark.parametrize("stacked", [False, True])
def test_an_allocation_of_all_of_the_room(stacked: bool, tmp_path: Path, fuse_source: Path) -> None:
    with (
        on_image("xfs", tmp_path) as disk,
        overlay(fuse_source, disk) if stacked else nullcontext(disk) as below,
        over(below, fuse_source) as mount,
    ):
        least, most = 1, free_in(disk) // 4096
        while least < most:
            middle = (least + most + 1) // 2
            least, most = (middle, most) if fits(below / "file", middle) else (least, middle - 1)
        assert fits(mount.point / "file", most)
        assert not fits(mount.point / "file", most + 1)


@pytest.mark.parametrize("kind", ["xfs", "btrfs", "tmpfs"])
def test_which_sources_may_extend_a_file_that_does_not_fit(kind: str, tmp_path: Path, fuse_source: Path) -> None:
    """All but those known not to: f2fs does. They must not be asked for the whole file at once."""
    log = tmp_path / "calls"
    wrapper = ("env", "ASAN_OPTIONS=detect_leaks=0", "strace", "-D", "-f", "-e", "trace=fallocate", "-o", str(log))
    source = mounted(tmp_path / "below", kind) if kind == "tmpfs" else on_image(kind, tmp_path)
    with source as below, over(below, fuse_source, wrapper=wrapper) as mount:
        with (mount.point / "file").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, MIB)
        status = (below / "file").stat()
        assert status.st_size == MIB
    last = MIB - status.st_blksize
    calls = re.findall(r"fallocate\(\d+, (\w+), (\d+), (\d+)\)", log.read_text())
    in_parts = [("FALLOC_FL_KEEP_SIZE", "0", str(last)), ("0", str(last), str(status.st_blksize))]
    assert calls == (in_parts if kind == "btrfs" else [("0", "0", str(MIB))])


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("mode", [mode for mode in MODES if "passthrough" not in mode])
def test_cached_data_that_do_not_fit_are_reported(mode: str, mapped: bool, fuse_start: FuseStart) -> None:
    """Also those of a request of which a part fits: the kernel, which waits for all of it, looks for an error only."""
    if reason := lacking_for_mode(mode):
        pytest.skip(reason)
    mount = fuse_start(*MODES[mode], wrapper=("prlimit", "--fsize=102400"))
    with (mount.source / "file").open("wb") as below:
        below.truncate(MIB)
    with (mount.point / "file").open("r+b", buffering=0) as file, pytest.raises(OSError) as caught:
        if mapped:
            with mmap.mmap(file.fileno(), MIB) as memory:
                memory[:] = b"x" * MIB
                memory.flush()
        else:
            written = 0
            while written < MIB:
                written += file.write(b"x" * (MIB - written))
        os.fsync(file.fileno())
    assert caught.value.errno in (errno.EFBIG, errno.EIO)
    (mount.point / "other").write_text("text")
    assert (mount.source / "file").read_bytes().rstrip(b"\0") == b"x" * 102400


@contextmanager
def on_a_bad_disk(directory: Path, data: bytes) -> Iterator[Path]:
    """
    A directory with a file of these data, of which the first half can be read from the page cache, and the rest not at
    all.
    """
    image, point = directory / "image", directory / "disk"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(16 * MIB)
    checked(["mkfs.ext4", "-q", "-b", "4096", "-O", "^has_journal", str(image)])
    # Past the page cache: it would give zeroes for what the image lacks.
    disk = checked(["losetup", "--find", "--show", "--direct-io=on", str(image)]).strip()
    try:
        checked(["mount", disk, str(point)])
        try:
            (point / "file").write_bytes(data)
        finally:
            unmount(point)
        checked(["mount", "-o", "ro", disk, str(point)])
        try:
            descriptor = os.open(point / "file", os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no more is read than asked for
            assert os.pread(descriptor, len(data) // 2, 0) == data[: len(data) // 2]
            os.close(descriptor)
            os.truncate(image, MIB)
            yield point
        finally:
            unmount(point)
    finally:
        checked(["losetup", "--detach", disk])


@pytest.mark.parametrize("mode", MODES)
def test_an_error_of_the_disk_is_no_end_and_no_zeroes(mode: str, tmp_path: Path, fuse_disk: Path) -> None:
    if reason := lacking_for_mode(mode):
        pytest.skip(reason)
    data, mounted = pattern(128 << 10), tmp_path / "mount"
    mounted.mkdir()
    with on_a_bad_disk(tmp_path, data) as source:
        mount = start(source, mounted, *MODES[mode])
        try:
            found = b""
            with (mounted / "file").open("rb", buffering=0) as file, pytest.raises(OSError) as caught:
                while piece := file.read(len(data)):
                    found += piece
            assert caught.value.errno == errno.EIO
            assert found == data[: len(found)]
            mount.unmount()
        finally:
            mount.kill()
