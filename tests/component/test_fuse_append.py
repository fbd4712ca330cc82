# SPDX-License-Identifier: BSD-3-Clause
"""userblk-passthrough: O_APPEND and files that can only grow (chattr +a)."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from fuse_crowd import descriptors_of
from fuse_mount import LIBFUSE, Mount, aligned, asynchronous_write, direct, traced
from nbdkit_server import RUN_TIMEOUT_S, checked, run
from waiting import wait_until

FuseStart = Callable[..., Mount]
RWF_NOAPPEND = 0x20
PAGE = 4096


def test_appends_of_several_processes_all_arrive(fuse: Mount) -> None:
    script = (
        "import os, sys\n"
        "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)\n"
        "for turn in range(200): os.write(fd, sys.argv[2].encode() * 50 + b'\\n')\n"
    )
    path = fuse.point / "log"
    running = [subprocess.Popen([sys.executable, "-c", script, str(path), letter]) for letter in "abcd"]
    assert [process.wait(RUN_TIMEOUT_S) for process in running] == [0] * 4
    lines = path.read_text().splitlines()
    assert sorted(lines) == sorted(letter * 50 for letter in "abcd" for _ in range(200))


def replayed(top: Path, name: str, calls: Callable[[Path], None]) -> bytes:
    """What the file holds at the end, which began as a page and a bit of the letter A."""
    path = top / name
    path.write_bytes(b"A" * 5000)
    calls(path)
    return path.read_bytes()


def write_without_append(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_RDWR)
        os.pwrite(descriptor, b"X", 7)
        os.pwrite(descriptor, b"Y" * 5000, 6000)
    finally:
        os.close(descriptor)


def write_with_append(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.pwrite(descriptor, b"X", 7)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_RDWR | os.O_APPEND)
        os.pwrite(descriptor, b"Y", 0)
        os.write(descriptor, b"Z" * 5000)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_RDWR)
        os.pwrite(descriptor, b"X", 9)
    finally:
        os.close(descriptor)


def write_between_appends(path: Path) -> None:
    """The first descriptor decides nothing for the second."""
    appends, writes = os.open(path, os.O_RDWR | os.O_APPEND), os.open(path, os.O_RDWR)
    try:
        os.write(appends, b"Y" * 10)
        os.pwrite(writes, b"X", 7)
        os.pwrite(appends, b"Z", 3)
    finally:
        os.close(writes)
        os.close(appends)


def write_to_mapping(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
    try:
        with mmap.mmap(descriptor, 5000) as mapped:
            mapped[4090:4100] = b"X" * 10
            os.write(descriptor, b"Y" * 3)
            mapped[0:1] = b"Z"
            mapped.flush()
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("calls", [write_without_append, write_with_append, write_between_appends, write_to_mapping])
def test_append_is_a_flag_of_the_moment(calls: Callable[[Path], None], fuse: Mount) -> None:
    """fcntl(2) turns it on and off, and a mapping has none."""
    below = replayed(fuse.source, "native", calls)
    assert replayed(fuse.point, "file", calls) == below
    run(["sync", "-f", str(fuse.point)])
    assert (fuse.source / "file").read_bytes() == below


def test_append_to_what_grows_below(fuse_source: Path, fuse_start: FuseStart) -> None:
    """The end is that of the source, of which the kernel may know an old one."""
    mount = fuse_start("--nocache")
    (mount.source / "log").write_bytes(b"first ")
    with (mount.point / "log").open("ab", buffering=0) as file, (mount.source / "log").open("ab") as below:
        file.write(b"second ")
        below.write(b"third ")
        below.flush()
        file.write(b"fourth")
    assert (fuse_source / "log").read_bytes() == b"first second third fourth"


def test_append_of_direct_io(fuse: Mount) -> None:
    descriptor = direct(fuse.point / "file", os.O_CREAT | os.O_APPEND)
    try:
        for letter in (b"a", b"b"):
            with aligned(letter * 8192) as memory:
                assert os.pwritev(descriptor, [memory], 0) == 8192
    finally:
        os.close(descriptor)
    assert (fuse.source / "file").read_bytes() == b"a" * 8192 + b"b" * 8192


def synchronous_write(descriptor: int, memory: mmap.mmap) -> int:
    return os.writev(descriptor, [memory])


WRITES = {"write": synchronous_write, "io_submit": asynchronous_write}


def append_pages(mount: Mount, write: Callable[[int, mmap.mmap], int], pages: int) -> None:
    """Appends so many at once, each with its number, again and again: a part must not overtake another one."""
    path, total = mount.point / "log", 10 * pages
    descriptor = direct(path, os.O_APPEND | os.O_CREAT)
    try:
        for first in range(0, total, pages):
            numbers = range(first, first + pages)
            with aligned(b"".join(number.to_bytes(PAGE, "little") for number in numbers)) as memory:
                assert write(descriptor, memory) == len(memory)
    finally:
        os.close(descriptor)
    data = (mount.source / "log").read_bytes()
    assert len(data) == total * PAGE
    misplaced = [
        page for page in range(total) if int.from_bytes(data[page * PAGE : (page + 1) * PAGE], "little") != page
    ]
    assert not misplaced, f"{len(misplaced)} pages from {misplaced[0]} on"


@pytest.mark.parametrize("write", WRITES)
def test_the_parts_of_a_long_append_stay_in_order(write: str, fuse: Mount) -> None:
    """The kernel cuts at max-write."""
    append_pages(fuse, WRITES[write], 1024)


@pytest.mark.parametrize("write", WRITES)
def test_small_parts_of_an_append_stay_in_order(write: str, fuse_start: FuseStart) -> None:
    append_pages(fuse_start("--no-writeback", "--nosplice", "--max-write=4096"), WRITES[write], 256)


@pytest.mark.parametrize("write", WRITES)
def test_the_parts_of_a_long_append_to_a_file_that_can_only_grow(write: str, fuse: Mount) -> None:
    path = fuse.source / "log"
    path.touch()
    checked(["chattr", "+a", str(path)])
    try:
        append_pages(fuse, WRITES[write], 1024)
    finally:
        checked(["chattr", "-a", str(path)])


def test_parts_wait_for_slow_ones(fuse_start: FuseStart) -> None:
    mount = fuse_start("--nosplice", wrapper=traced("pwrite64,pwritev2", "delay_enter=60000"))
    path = mount.source / "log"
    path.touch()
    checked(["chattr", "+a", str(path)])
    try:
        append_pages(mount, asynchronous_write, 1024)
    finally:
        checked(["chattr", "-a", str(path)])


def test_file_that_can_only_grow(fuse: Mount) -> None:
    """chattr(1) +a: it opens for nothing but appending."""
    path = fuse.point / "log"
    (fuse.source / "log").write_bytes(b"first ")
    checked(["chattr", "+a", str(fuse.source / "log")])
    try:
        with pytest.raises(PermissionError):
            path.open("r+b")
        with path.open("ab") as file:
            file.write(b"second")
        assert path.read_bytes() == b"first second"
        os.utime(path)  # as touch(1): all who may write may set the time of the moment
        with pytest.raises(PermissionError):
            os.utime(path, (1, 1))
    finally:
        checked(["chattr", "-a", str(fuse.source / "log")])


def test_written_data_of_a_file_that_can_only_grow_by_now(fuse: Mount) -> None:
    """What the cache holds of it goes where it belongs, through whatever descriptor the kernel takes."""
    path, flags = fuse.point / "log", os.O_WRONLY | os.O_APPEND
    first = os.open(path, flags | os.O_CREAT)
    again = os.open(path, flags)
    written = b""

    def write(descriptor: int, data: bytes) -> None:
        nonlocal written
        assert os.write(descriptor, data) == len(data)
        written += data

    try:
        write(first, b"one\n")
        os.fsync(first)
        checked(["chattr", "+a", str(path)])
        late = os.open(path, flags)
        try:
            write(first, b"two\n")
            os.fsync(first)
            assert (fuse.source / "log").read_bytes() == written
            write(first, b"A" * (2 * 4096 - len(written)))  # no page of it is written again
            write(late, b"three\n")
            assert path.read_bytes() == written
            os.close(first)
            first = -1
            write(again, b"four\n")
            os.close(again)
            again = -1
            write(late, b"five\n")
        finally:
            os.close(late)
        assert (fuse.source / "log").read_bytes() == path.read_bytes() == written
    finally:
        for descriptor in {first, again} - {-1}:
            os.close(descriptor)
        checked(["chattr", "-a", str(fuse.source / "log")])


def test_what_is_appended_beside_an_earlier_writer_is_kept(fuse: Mount) -> None:
    """Before Linux 6.6, a write past the cache leaves a page there, which is stored over it later."""
    path = fuse.point / "log"
    with path.open("ab", buffering=0) as first:
        checked(["chattr", "+a", str(path)])
        try:
            first.write(b"one\n")
            with path.open("ab", buffering=0) as late:
                late.write(b"two\n")
                assert path.read_bytes() == b"one\ntwo\n"
        finally:
            checked(["chattr", "-a", str(fuse.source / "log")])
    assert (fuse.source / "log").read_bytes() == b"one\ntwo\n"


def test_a_file_opened_for_neither_reading_nor_writing(fuse: Mount) -> None:
    """open(2) has such a mode; data go nowhere through it."""
    path = fuse.point / "log"
    path.touch()
    neither = os.open(path, os.O_ACCMODE)
    try:
        checked(["chattr", "+a", str(path)])
        with path.open("ab", buffering=0) as file:
            assert file.write(b"text") == 4
            os.fsync(file.fileno())
        assert (fuse.source / "log").read_bytes() == b"text"
    finally:
        os.close(neither)
        checked(["chattr", "-a", str(fuse.source / "log")])


def test_files_created_for_neither_reading_nor_writing_cost_nothing(fuse: Mount) -> None:
    """The kernel has them created to be read and written, and closed as what they were opened for."""
    path = fuse.point / "file"
    for _ in range(50):
        os.close(os.open(path, os.O_ACCMODE | os.O_CREAT | os.O_EXCL, 0o600))
        with path.open("ab", buffering=0) as file:
            file.write(b"text")
        assert (fuse.source / "file").read_bytes() == b"text"
        path.unlink()
    wait_until("the daemon has closed all", lambda: descriptors_of(fuse, f"{fuse.source}/file (deleted)") == 0)


def test_what_is_appended_after_a_file_was_created_for_neither_reading_nor_writing(fuse: Mount) -> None:
    """It does not go to a file that has got the descriptor since."""
    path, others = fuse.point / "log", [fuse.point / f"other-{number}" for number in range(30)]
    os.close(os.open(path, os.O_ACCMODE | os.O_CREAT, 0o600))
    wait_until("that is released", lambda: descriptors_of(fuse, f"{fuse.source}/log") == 1)
    files = [other.open("wb") for other in others]
    checked(["chattr", "+a", str(path)])
    try:
        with path.open("ab", buffering=0) as file:
            file.write(b"text")
            os.fsync(file.fileno())
        assert [other.read_bytes() for other in others] == [b""] * len(others)
        assert (fuse.source / "log").read_bytes() == b"text"
    finally:
        for other in files:
            other.close()
        checked(["chattr", "-a", str(fuse.source / "log")])


def store(path: Path) -> None:
    """Writes X to the beginning of a file, through a mapping."""
    with path.open("a+b", buffering=0) as file, mmap.mmap(file.fileno(), 6) as mapped:
        mapped[0:1] = b"X"
        mapped.flush()


def test_mapping_of_a_file_that_can_only_grow(fuse: Mount) -> None:
    """What is stored there is nowhere in the source, and an error tells."""
    (fuse.source / "log").write_bytes(b"first ")
    checked(["chattr", "+a", str(fuse.source / "log")])
    try:
        with pytest.raises(OSError) as caught:
            store(fuse.point / "log")
        # ENODEV: libfuse before 3.17
        assert caught.value.errno in (errno.EACCES, errno.EPERM, errno.EIO, errno.ENODEV)
        assert (fuse.source / "log").read_bytes() == b"first "
    finally:
        checked(["chattr", "-a", str(fuse.source / "log")])


@pytest.mark.parametrize("before", [os.O_RDWR, os.O_WRONLY, os.O_RDONLY])
def test_a_file_that_can_only_grow_by_now_keeps_its_beginning(before: int, fuse: Mount) -> None:
    """Others cannot write there through what a program has opened before chattr(1) +a."""
    (fuse.source / "log").write_bytes(b"first ")
    path, descriptors = fuse.point / "log", list[int]()
    try:
        descriptors.append(os.open(path, before))
        checked(["chattr", "+a", str(path)])
        with pytest.raises(OSError):
            store(path)
        descriptors.append(os.open(path, os.O_WRONLY | os.O_APPEND))
        with suppress(OSError):  # EOPNOTSUPP: Linux before 6.9
            os.pwritev(descriptors[-1], [b"second "], 0, RWF_NOAPPEND)
        fcntl.fcntl(descriptors[-1], fcntl.F_SETFL, os.O_WRONLY)
        with pytest.raises(PermissionError):
            os.pwrite(descriptors[-1], b"third ", 0)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        found = (fuse.source / "log").read_bytes()
        checked(["chattr", "-a", str(fuse.source / "log")])
    assert found in (b"first second ", b"first ")


@pytest.mark.parametrize("flags", [0, os.O_DIRECT])
def test_a_file_that_can_change_again(flags: int, fuse: Mount) -> None:
    """What has been opened to append meanwhile writes to the offset that is given, as soon as fcntl(2) allows it."""
    for top in (fuse.source, fuse.point):
        path = top / top.name
        path.write_bytes(b"A" * 8192)
        checked(["chattr", "+a", str(path)])
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | flags)
        try:
            with aligned(b"B" * 4096) as memory:
                os.pwritev(descriptor, [memory], 0)
            checked(["chattr", "-a", str(path)])
            fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_WRONLY | flags)
            with aligned(b"C" * 4096) as memory:
                os.pwritev(descriptor, [memory], 0)
            fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_WRONLY | os.O_APPEND | flags)
            with aligned(b"D" * 4096) as memory:
                os.pwritev(descriptor, [memory], 0)
        finally:
            os.close(descriptor)
            run(["chattr", "-a", str(path)])
        assert path.read_bytes() == b"".join(letter * 4096 for letter in (b"C", b"A", b"B", b"D"))
        assert (fuse.source / top.name).read_bytes() == path.read_bytes()


@contextmanager
def opened_while_it_could_only_grow(path: Path) -> Iterator[int]:
    """A descriptor to read and append, of a file of two pages of A that can change again."""
    path.write_bytes(b"A" * 2 * PAGE)
    checked(["chattr", "+a", str(path)])
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        try:
            checked(["chattr", "-a", str(path)])
            yield descriptor
        finally:
            os.close(descriptor)
    finally:
        run(["chattr", "-a", str(path)])


def test_a_mapping_of_a_file_that_can_change_again(fuse: Mount) -> None:
    """What is stored arrives also if nobody syncs it, and appends go to the end after that."""
    with opened_while_it_could_only_grow(fuse.point / "log") as descriptor:
        if LIBFUSE < (3, 17):
            with pytest.raises(OSError, match="No such device"):
                mmap.mmap(descriptor, 2 * PAGE)
            return
        with mmap.mmap(descriptor, 2 * PAGE) as mapped:
            mapped[PAGE : PAGE + 1] = b"B"
        os.fsync(descriptor)
        os.write(descriptor, b"C")
    assert (fuse.source / "log").read_bytes() == b"A" * PAGE + b"B" + b"A" * (PAGE - 1) + b"C"


def test_a_copy_to_a_file_that_can_change_again(fuse: Mount) -> None:
    """As soon as fcntl(2) has allowed it."""
    (fuse.point / "other").write_bytes(b"B" * PAGE)
    with opened_while_it_could_only_grow(fuse.point / "log") as descriptor, (fuse.point / "other").open("rb") as other:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.copy_file_range(other.fileno(), descriptor, PAGE, 0, 0)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_RDWR)
        assert os.copy_file_range(other.fileno(), descriptor, PAGE, 0, 0) == PAGE
    assert (fuse.source / "log").read_bytes() == b"B" * PAGE + b"A" * PAGE
