# SPDX-License-Identifier: BSD-3-Clause
"""What the model of durability calls lost, and what it does not."""

from __future__ import annotations

import pytest
from blocks import FLUSH, SECTOR, Batch, Request
from durability import Durable, Entry, Image

WRITE = Request("write", 0, SECTOR, tag=1)
OTHER = Request("write", 0, SECTOR, tag=2)
FUA = Request("write", 0, SECTOR, tag=3, fua=True)
TRIM = Request("trim", 0, SECTOR)
ZEROES = bytes(SECTOR)


def judged(batches: list[tuple[Batch, bytes]], log: list[bytes]) -> None:
    """batches: with what the disk held after each; log: what was written, b"" of a discard, in the log's order."""
    durable, image, content = Durable(SECTOR), Image(bytearray(SECTOR), logged={}), ZEROES
    for batch, after in batches:
        durable.apply(batch, content, {} if batch == FLUSH else {0: after})
        content = after
    for data in log:
        image.apply(Entry(0, SECTOR, data, None))
    durable.check(image, "last")


def lost(batches: list[tuple[Batch, bytes]], log: list[bytes]) -> None:
    with pytest.raises(AssertionError, match="after batch last: what was acknowledged at 0 is not durable"):
        judged(batches, log)


def test_what_a_flush_acknowledged() -> None:
    judged([((WRITE,), WRITE.data()), (FLUSH, WRITE.data())], [WRITE.data()])
    lost([((WRITE,), WRITE.data()), (FLUSH, WRITE.data())], [])


def test_what_fua_acknowledged() -> None:
    judged([((FUA,), FUA.data())], [FUA.data()])
    lost([((FUA,), FUA.data())], [])


def test_what_came_after_the_flush_may_be_there() -> None:
    batches = [((WRITE,), WRITE.data()), (FLUSH, WRITE.data()), ((OTHER,), OTHER.data())]
    judged(batches, [WRITE.data()])
    judged(batches, [WRITE.data(), OTHER.data()])
    lost(batches, [])


def test_overlapping_requests_in_another_order_in_the_log() -> None:
    at_once = [((WRITE, TRIM), ZEROES), (FLUSH, ZEROES)]
    judged(at_once, [b"", WRITE.data()])
    judged(at_once, [WRITE.data(), b""])


def test_what_changes_overlapped_sectors_later_is_sure_again() -> None:
    later = [((WRITE, TRIM), ZEROES), ((OTHER,), OTHER.data()), (FLUSH, OTHER.data())]
    judged(later, [b"", WRITE.data(), OTHER.data()])
    lost(later, [b"", WRITE.data()])
    by_fua = [((WRITE, TRIM), ZEROES), ((FUA,), FUA.data())]
    judged(by_fua, [b"", WRITE.data(), FUA.data()])
    lost(by_fua, [b"", WRITE.data()])
