# SPDX-License-Identifier: BSD-3-Clause
"""4 KiB blocks that tell which write of which run put them where, so that any damage shows."""

from __future__ import annotations

import random
import struct

BLOCK = 4096
ZEROES = bytes(BLOCK)
_HEADER = struct.Struct("<8sQQQ")  # magic, run, block, number of the write
_MAGIC = b"userblk\n"
_REPEATS = 64  # 2 KiB that compress, then 2 KiB that do not
_FILLER = random.Random(0).randbytes(1 << 16)
_FILLER_BYTES = BLOCK - _REPEATS * _HEADER.size


class DamagedBlock(Exception):
    """A block that no single write can have left."""


def stamped(run: int, block: int, number: int) -> bytes:
    """The content of a block as write number (1 or more) of a run leaves it."""
    start = (number * 4099 + block * 257) % (len(_FILLER) - _FILLER_BYTES)
    filler = _FILLER[start : start + _FILLER_BYTES]
    return _HEADER.pack(_MAGIC, run, block, number) * _REPEATS + filler


def number_of(content: bytes, run: int, block: int) -> int:
    """The number of the write that left this content in a block; 0 for zeroes. DamagedBlock."""
    if content == ZEROES:
        return 0
    magic, its_run, its_block, number = _HEADER.unpack_from(content)
    if magic != _MAGIC or content != stamped(its_run, its_block, number):
        raise DamagedBlock(f"block {block} is torn or foreign: it begins with {content[:32].hex()}")
    if its_run != run:
        raise DamagedBlock(f"block {block} holds write {number} of another run, {its_run:#x}")
    if its_block != block:
        raise DamagedBlock(f"block {block} holds write {number} of block {its_block}")
    return int(number)


def numbers(data: bytes | bytearray, run: int, first: int) -> list[int]:
    """The numbers of the writes in consecutive blocks from the first one on. DamagedBlock."""
    return [number_of(bytes(data[i * BLOCK : (i + 1) * BLOCK]), run, first + i) for i in range(len(data) // BLOCK)]
