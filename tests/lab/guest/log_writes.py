# SPDX-License-Identifier: BSD-3-Clause
"""dm-log-writes: a disk whose log has what was durable, and when. Written below an adapter, read when it is gone."""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from conftest import mapped, run

SECTOR = 512
NAME = "ub-log"
MAGIC = 0x6A736677736872
FLAG_DISCARD, FLAG_MARK = 4, 8
DM_IOCTL_SIZE = 312  # bytes of struct dm_ioctl
DM_TARGET_MSG = 0xC138FD0E


@dataclass
class Entry:
    """Something that was durable before the next entry; mark: the name of one, else None. data: b"" of a discard."""

    offset: int
    length: int
    data: bytes
    mark: str | None


@contextmanager
def logged(data: str, log: str, size: int) -> Iterator[str]:
    """A disk over the first size bytes of data, which must be zeroes; its log starts again on log."""
    run(["modprobe", "dm-log-writes"])
    with mapped(NAME, f"0 {size // SECTOR} log-writes {data} {log}") as path:
        yield path


def mark(name: str) -> None:
    """All that is durable by now stands before it in the log."""
    # As `dmsetup message` does, without a process for each.
    text = f"mark {name}".encode() + b"\0"
    size = DM_IOCTL_SIZE + 8 + len(text)
    head = struct.pack("<3I2I2iI2IQ128s", 4, 0, 0, size, DM_IOCTL_SIZE, 0, 0, 0, 0, 0, 0, NAME.encode())
    request = bytearray(head.ljust(DM_IOCTL_SIZE, b"\0") + bytes(8) + text)
    with open("/dev/mapper/control", "rb") as control:
        fcntl.ioctl(control, DM_TARGET_MSG, request)


def entries(log: str) -> Iterator[Entry]:
    """In the order in which they became durable."""
    run(["blockdev", "--flushbufs", log])  # the kernel wrote it past the page cache
    with open(log, "rb") as file:
        magic, _, count, sector = struct.unpack("<QQQI", file.read(28))
        assert magic == MAGIC, "no log"
        file.seek(sector)
        for _ in range(count):
            head = file.read(sector)
            at, sectors, flags, length = struct.unpack_from("<QQQQ", head)
            if flags & FLAG_MARK:
                yield Entry(0, 0, b"", head[32 : 32 + length].split(b"\0")[0].decode())
                continue
            data = b"" if flags & FLAG_DISCARD else file.read(sectors * sector)
            yield Entry(at * sector, sectors * sector, data, None)


@dataclass
class Image:
    """
    What the disk holds after a loss of power. either: sectors that were discarded, as they were before. logged: hashes
    of all that ever was durable, by sector: a write with FUA stands in the log before older ones that a later flush
    made durable.
    """

    bytes: bytearray
    either: dict[int, bytes] = field(default_factory=dict)
    logged: dict[int, set[int]] | None = None

    def apply(self, entry: Entry) -> None:
        sectors = range(entry.offset, entry.offset + entry.length, SECTOR)
        if entry.data:
            self.bytes[entry.offset : entry.offset + entry.length] = entry.data
            for at in sectors if self.either else ():
                self.either.pop(at, None)
            if self.logged is not None:
                for at in sectors:
                    data = entry.data[at - entry.offset :][:SECTOR]
                    self.logged.setdefault(at, set()).add(hash(data))
            return
        for at in sectors:
            self.either.setdefault(at, bytes(self.bytes[at : at + SECTOR]))
        self.bytes[entry.offset : entry.offset + entry.length] = bytes(entry.length)

    def may_hold(self, at: int, data: bytes) -> bool:
        held = (bytes(self.bytes[at : at + SECTOR]), self.either.get(at))
        return data in held or (self.logged is not None and hash(data) in self.logged.get(at, ()))

