# SPDX-License-Identifier: BSD-3-Clause
"""The host's end of lab/ssd/userblk_channel.c: what a guest says through memory that both see."""

from __future__ import annotations

import io
import mmap
import os
import struct
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from . import LabError

SIZE = 1 << 30  # bytes of addresses, of which memory is what was written and not read yet
MESSAGES = 4096
HEAD = struct.Struct("<QQ")  # port, length
CONTROL, OUTPUT, ERRORS, FILES = 1, 2, 3, 4  # the ports


class Channel:
    """Memory for one guest: a file without a name, for QEMU to map. Use as a context manager."""

    def __init__(self) -> None:
        self.number = os.memfd_create("channel")
        os.ftruncate(self.number, SIZE)
        self._memory = mmap.mmap(self.number, SIZE)
        self._at = 0
        self._freed = 0

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.close()
        os.close(self.number)

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """What came since the last call: port and bytes of each message."""
        (end,) = struct.unpack_from("<Q", self._memory, 0)
        while self._at < end:
            port, length = HEAD.unpack_from(self._memory, MESSAGES + self._at)
            begin = MESSAGES + self._at + HEAD.size
            data = self._memory[begin : begin + length]
            self._at += HEAD.size + -(-length // 8) * 8
            yield port, data
        free = self._at // mmap.PAGESIZE * mmap.PAGESIZE
        if free > self._freed:  # the guest never comes back to these
            self._memory.madvise(mmap.MADV_REMOVE, MESSAGES + self._freed, free - self._freed)
            self._freed = free


def unpack(archive: bytes, directory: Path, given: Collection[str]) -> None:
    """Files and directories of a tar archive into directory, without those given to the guest. Raises LabError."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            for member in files:
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts:
                    raise LabError(f"the guest names a file {path}: outside of its results")
                target = directory / path
                if member.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                elif member.isfile() and str(path) not in given:
                    content = files.extractfile(member)
                    assert content is not None
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(content.read())
    except (OSError, tarfile.TarError) as error:
        raise LabError(f"{directory}: what the guest left cannot be kept: {error}") from None
