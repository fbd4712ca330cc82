# SPDX-License-Identifier: BSD-3-Clause
"""
Files that a system call has acknowledged, and what a disk has of them after a loss of power: by the log of the disk
below (log_writes), from which it is made again as it was at each mark.
"""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from guest import run
from log_writes import entries, mark

BLOCK = 4096
LARGEST = 16 * BLOCK  # bytes of a file
CHECK = {"ext4": ["e2fsck", "-fn"], "xfs": ["xfs_repair", "-n"]}


def content(number: int) -> bytes:
    rng = random.Random(number)
    size = rng.randrange(1, LARGEST)
    if "direct" in way_of(number):
        size += -size % BLOCK
    return rng.randbytes(size)


# ---- ways to write durably --------------------------------------------------------


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _fsync(path: Path, data: bytes) -> None:
    with _opened(path, os.O_WRONLY | os.O_CREAT) as file:
        os.write(file, data)
        os.fsync(file)


def _rename(path: Path, data: bytes) -> None:
    new = path.with_name("new")
    _fsync(new, data)
    new.rename(path)


def _over(flags: int, write: Callable[[int, bytes], object]) -> Callable[[Path, bytes], None]:
    """A way that overwrites a durable file of other bytes: only what is durable itself stays."""

    def way(path: Path, data: bytes) -> None:
        _fsync(path, bytes(len(data)))
        _sync_directory(path.parent)
        with _opened(path, os.O_RDWR | flags) as file:
            write(file, data)

    return way


def _plain(file: int, data: bytes) -> None:
    assert os.pwrite(file, data, 0) == len(data)


def _then_fdatasync(file: int, data: bytes) -> None:
    _plain(file, data)
    os.fdatasync(file)


def _aligned(data: bytes) -> mmap.mmap:
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory


def _direct(flags: int) -> Callable[[int, bytes], object]:
    return lambda file, data: os.pwritev(file, [_aligned(data)], 0, flags)


def _direct_then_fdatasync(file: int, data: bytes) -> None:
    os.pwritev(file, [_aligned(data)], 0)
    os.fdatasync(file)


def _msync(file: int, data: bytes) -> None:
    with mmap.mmap(file, len(data)) as mapping:
        mapping[:] = data
        mapping.flush()


def _append(path: Path, data: bytes) -> None:
    """The size is durable as well."""
    half = len(data) // 2
    _fsync(path, data[:half])
    _sync_directory(path.parent)
    with _opened(path, os.O_WRONLY | os.O_APPEND) as file:
        os.pwritev(file, [data[half:]], 0, os.RWF_DSYNC)


WAYS: dict[str, Callable[[Path, bytes], None]] = {
    "fsync": _fsync,
    "rename": _rename,
    "fdatasync": _over(0, _then_fdatasync),
    "O_DSYNC": _over(os.O_DSYNC, _plain),
    "O_SYNC": _over(os.O_SYNC, _plain),
    "RWF_DSYNC": _over(0, lambda file, data: os.pwritev(file, [data], 0, os.RWF_DSYNC)),
    "RWF_SYNC": _over(0, lambda file, data: os.pwritev(file, [data], 0, os.RWF_SYNC)),
    "append RWF_DSYNC": _append,
    "msync": _over(0, _msync),
    "direct fdatasync": _over(os.O_DIRECT, _direct_then_fdatasync),
    "direct O_DSYNC": _over(os.O_DIRECT | os.O_DSYNC, _direct(0)),
    "direct RWF_DSYNC": _over(os.O_DIRECT, _direct(os.RWF_DSYNC)),
}


def way_of(number: int) -> str:
    return list(WAYS)[number % len(WAYS)]


def write_durably(directory: Path, count: int) -> None:
    """So many files, each in its own way; the log has a mark at which each is acknowledged."""
    for number in range(count):
        WAYS[way_of(number)](directory / str(number), content(number))
        if way_of(number) in ("fsync", "rename"):  # the name is the directory's
            _sync_directory(directory)
        mark(str(number))


# ---- what is left of them ---------------------------------------------------------


def replayed(log: str, image: Path) -> Iterator[str]:
    """Names of marks, when image, a file of zeroes, has what was durable by then."""
    with image.open("r+b", buffering=0) as file:
        for entry in entries(log):
            if entry.mark is not None:
                yield entry.mark
            elif entry.data:
                os.pwrite(file.fileno(), entry.data, entry.offset)
            elif entry.length:  # mkfs discards all: there is no room for as many zeroes
                where = ["--offset", str(entry.offset), "--length", str(entry.length)]
                run(["fallocate", "--punch-hole", *where, str(image)])


def check_durable(log: str, size: int, work: Path, file_system: str, count: int, directory: str = ".") -> None:
    """
    At the marks of so many files, all files up to each are in directory of the file system on the disk of that size,
    and fsck finds nothing. work: a directory for the disk.
    """
    image, state, point = work / "image", work / "state", work / "point"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    marks = 0
    for name in replayed(log, image):
        if not name.isdigit():
            continue
        run(["cp", "--sparse=always", image, state])
        run(["mount", "-o", "loop", state, point])  # replays the journal
        try:
            numbers = range(int(name) + 1)
            wrong = [one for one in numbers if _read(point / directory / str(one)) != content(one)]
        finally:
            run(["umount", point])
        assert not wrong, f"after file {name}: not durable: {[f'{one} ({way_of(one)})' for one in wrong]}"
        run([*CHECK[file_system], state])
        marks += 1
    image.unlink()  # pytest keeps the directory
    state.unlink()
    assert marks == count


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
