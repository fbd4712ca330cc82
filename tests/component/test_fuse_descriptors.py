# SPDX-License-Identifier: BSD-3-Clause
"""userblk-passthrough: more files than descriptors."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import repeat
from pathlib import Path
from time import sleep

import pytest
from fuse_crowd import FEW_FILES, FILES, descriptors, fill
from fuse_mount import LIBFUSE, Mount
from nbdkit_server import checked
from waiting import wait_until

FuseStart = Callable[..., Mount]


def test_more_inodes_than_descriptors(fuse_source: Path, fuse_start: FuseStart) -> None:
    names = fill(fuse_source)
    mount = fuse_start(wrapper=FEW_FILES)
    known = {entry.name: entry.stat().st_ino for entry in os.scandir(mount.point)}
    assert len(known) == FILES
    assert descriptors(mount) < 256
    for turn in (names, reversed(names)):  # the kernel names inodes whose descriptor went
        for name in turn:
            assert (mount.point / name).read_text() == name
            assert (mount.point / name).stat().st_ino == known[name]
    assert descriptors(mount) < 256


def test_more_inodes_than_descriptors_from_many_threads(fuse_source: Path, fuse_start: FuseStart) -> None:
    names = fill(fuse_source)
    mount = fuse_start("--timeout=0", wrapper=FEW_FILES)

    def work(part: int) -> int:
        right = 0
        for name in names[part:] + names[:part]:
            right += (mount.point / name).read_text() == name
            os.utime(mount.point / name)
        return right

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(0, FILES, FILES // 8))) == [FILES] * 8


def test_every_kind_comes_back_by_handle(fuse_source: Path, fuse_start: FuseStart) -> None:
    mount = fuse_start(wrapper=FEW_FILES)
    (mount.point / "directory").mkdir()
    (mount.point / "directory/file").write_text("inside")
    (mount.point / "link").symlink_to("directory/file")
    os.mkfifo(mount.point / "fifo")
    (mount.point / "crowd").mkdir()
    fill(fuse_source / "crowd")
    for entry in os.scandir(mount.point / "crowd"):
        entry.stat()
    os.chmod(mount.point / "fifo", 0o640)
    os.utime(mount.point / "link", (1, 2), follow_symlinks=False)
    os.link(mount.point / "link", mount.point / "again", follow_symlinks=False)
    (mount.point / "directory").rename(mount.point / "renamed")
    (mount.point / "renamed/new").write_text("new")
    (mount.point / "link").unlink()
    (mount.point / "link").symlink_to("renamed/file")
    assert (mount.point / "link").read_text() == "inside"
    assert sorted(os.listdir(fuse_source / "renamed")) == ["file", "new"]
    assert (fuse_source / "again").lstat().st_mtime == 2


def test_removed_files_in_use_outlive_the_crowd(fuse_source: Path, fuse_start: FuseStart) -> None:
    """No handle opens a removed file again, so its descriptor must stay."""
    (fuse_source / "crowd").mkdir()
    fill(fuse_source / "crowd")
    mount = fuse_start(wrapper=FEW_FILES)
    crowd = mount.point / "crowd"
    (mount.point / "directory").mkdir()
    (mount.point / "replaced").write_text("old")
    (mount.point / "file").write_text("text")
    opened = [
        os.open(mount.point / "file", os.O_PATH),
        os.open(mount.point / "replaced", os.O_PATH),
        os.open(mount.point / "directory", os.O_PATH),
    ]
    try:
        for entry in os.scandir(crowd):  # their descriptors go
            entry.stat()
        (mount.point / "file").unlink()
        (mount.point / "directory").rmdir()
        (mount.point / "new").write_text("new")
        (mount.point / "new").rename(mount.point / "replaced")
        for entry in os.scandir(crowd):
            (crowd / entry.name).read_text()
        checked(["sh", "-c", "echo 2 >/proc/sys/vm/drop_caches"])
        for descriptor in opened:
            assert os.fstat(descriptor).st_nlink == 0
            os.utime(f"/proc/self/fd/{descriptor}", (1, 1))
        assert Path(f"/proc/self/fd/{opened[0]}").read_text() == "text"
        assert Path(f"/proc/self/fd/{opened[1]}").read_text() == "old"
    finally:
        for descriptor in opened:
            os.close(descriptor)


def test_removals_while_the_first_descriptors_are_closed(fuse_source: Path, fuse_start: FuseStart) -> None:
    """Until then a name is removed without looking at what it names."""
    (fuse_source / "crowd").mkdir()
    fill(fuse_source / "crowd")
    victims = [f"victim{number}" for number in range(60)]
    for name in victims:
        (fuse_source / name).write_text(name)
    mount = fuse_start("--nocache", wrapper=FEW_FILES)
    opened = [os.open(mount.point / name, os.O_PATH) for name in victims]
    try:
        with ThreadPoolExecutor(2) as pool:
            seen = pool.submit(lambda: sum(1 for entry in os.scandir(mount.point / "crowd") if entry.stat()))
            for name in victims:
                (mount.point / name).unlink()
            assert seen.result() == FILES
        assert [os.fstat(descriptor).st_nlink for descriptor in opened] == [0] * len(opened)
        assert [Path(f"/proc/self/fd/{descriptor}").read_text() for descriptor in opened] == victims
    finally:
        for descriptor in opened:
            os.close(descriptor)


def test_a_file_removed_while_its_descriptor_is_to_be_closed_is_kept(fuse_source: Path, fuse_start: FuseStart) -> None:
    """The removal ends between the look at the links of the file and the close."""
    strace = ("strace", "-D", "-f", "--seccomp-bpf", "-o", "/dev/null")
    slow = (*strace, "-e", "trace=name_to_handle_at", "-e", "inject=name_to_handle_at:delay_exit=5000")
    (fuse_source / "crowd").mkdir()
    fill(fuse_source / "crowd")
    victims = [f"victim{number}" for number in range(100)]
    for name in victims:
        (fuse_source / name).write_text(name)
    mount = fuse_start("--nocache", wrapper=(*slow, *FEW_FILES))
    opened = [os.open(mount.point / name, os.O_PATH) for name in victims]
    try:
        with ThreadPoolExecutor(1) as pool:
            crowd = sorted(os.listdir(fuse_source / "crowd"))[:400]
            seen = pool.submit(lambda: [os.stat(mount.point / "crowd" / name) for name in crowd])
            for name in victims:
                (mount.point / name).unlink()
                sleep(0.005)
            assert len(seen.result()) == len(crowd)
        assert [os.fstat(descriptor).st_nlink for descriptor in opened] == [0] * len(opened)
    finally:
        for descriptor in opened:
            os.close(descriptor)


def test_open_files_take_the_descriptors_of_inodes(fuse_source: Path, fuse_start: FuseStart) -> None:
    names = fill(fuse_source)
    mount = fuse_start(wrapper=FEW_FILES)
    for name in names:
        (mount.point / name).stat()
    files = [(mount.point / name).open() for name in names[:200]]
    try:
        assert [file.read() for file in files] == names[:200]
    finally:
        for file in files:
            file.close()


# Whether a file takes the last descriptor, or its inode, is seen by how many there are.
@pytest.mark.parametrize("few", [256, 257])
def test_too_many_open_files_are_an_error_and_pass(fuse_source: Path, fuse_start: FuseStart, few: int) -> None:
    names = fill(fuse_source)
    mount = fuse_start(wrapper=("prlimit", f"--nofile={few}"))
    with ExitStack() as files:
        opened = []
        with pytest.raises(OSError) as caught:
            for name in names:
                opened.append(os.open(mount.point / name, os.O_RDWR))
                files.callback(os.close, opened[-1])  # none of which may fail
        assert caught.value.errno == errno.EMFILE
        assert len(opened) > 200
        for descriptor in opened:
            os.pwrite(descriptor, b"written", 0)
    assert (mount.point / names[-1]).read_text() == names[-1]


def open_all(paths: Iterable[Path], files: ExitStack, flags: int = os.O_RDONLY) -> int:
    """Opens one after the other until the daemon has no descriptor left, and returns how many there were."""
    for count, path in enumerate(paths):
        try:
            files.callback(os.close, os.open(path, flags))
        except OSError as error:
            assert error.errno == errno.EMFILE
            return count
    raise AssertionError("there are more descriptors than files")


@pytest.mark.parametrize("removal", ["unlink", "rename"])
def test_without_a_descriptor_for_it_nothing_in_use_is_removed(
    removal: str, fuse_source: Path, fuse_start: FuseStart
) -> None:
    """No handle opens it again, so that all its users would get ESTALE."""
    names = fill(fuse_source)
    mount = fuse_start("--nosplice", wrapper=("prlimit", "--nofile=64"))
    victim, other = mount.point / names[0], mount.point / names[1]
    other.stat()  # so that the kernel does not look for it later

    def remove() -> int:
        try:
            victim.unlink() if removal == "unlink" else other.rename(victim)
        except OSError as error:
            return error.errno or 0
        return 0

    used = os.open(victim, os.O_PATH)
    try:
        with ExitStack() as files:
            assert open_all((mount.point / name for name in names[2:]), files) > 30
            # A file took a descriptor and one for its inode; the root has that always.
            open_all(repeat(mount.point), files, os.O_DIRECTORY)
            assert remove() == errno.EMFILE
            assert (fuse_source / names[0]).read_text() == names[0]
        wait_until("descriptors are free", lambda: remove() == 0)
        assert os.fstat(used).st_nlink == 0
        assert Path(f"/proc/self/fd/{used}").read_text() == names[0]
    finally:
        os.close(used)


@pytest.mark.skipif(LIBFUSE < (3, 12), reason="libfuse: before 3.12, it has no limit of threads")
def test_descriptors_of_a_pipe_are_there_for_files(fuse_source: Path, fuse_start: FuseStart) -> None:
    names = fill(fuse_source)
    counts = []
    mount = fuse_start("--max-threads=1", wrapper=("prlimit", "--nofile=64"))
    for _ in range(2):
        with ExitStack() as files:
            counts.append(open_all((mount.point / name for name in names[1:]), files))
        wait_until("they are closed", lambda: descriptors(mount) < 40)
        assert (mount.point / names[0]).read_text() == names[0]  # by the pipe of the one thread
    assert counts[0] == counts[1]
