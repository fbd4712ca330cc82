# SPDX-License-Identifier: BSD-3-Clause
"""dm-log-writes: a disk whose log has what was durable, and when. Written below an adapter, read when it is gone."""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from blocks import SECTOR
from durability import Entry
from guest import mapped, run

NAME = "ub-log"
MAGIC = 0x6A736677736872
FLAG_DISCARD, FLAG_MARK = 4, 8
DM_IOCTL_SIZE = 312  # bytes of struct dm_ioctl
DM_TARGET_MSG = 0xC138FD0E


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
