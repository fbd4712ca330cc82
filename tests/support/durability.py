# SPDX-License-Identifier: BSD-3-Clause
"""What a disk holds after a loss of power, by the log of its writes; what it must hold, by what was acknowledged."""

from __future__ import annotations

from dataclasses import dataclass, field

from blocks import SECTOR, Batch, Request


@dataclass
class Entry:
    """Something that was durable before the next entry; mark: the name of one, else None. data: b"" of a discard."""

    offset: int
    length: int
    data: bytes
    mark: str | None


@dataclass
class Image:
    """
    What the disk holds after a loss of power. either: sectors that were discarded, as they were before. logged: hashes
    of all that ever was durable, by sector: a write with FUA stands in the log before older ones that a later flush
    made durable.
    """

    data: bytearray
    either: dict[int, bytes] = field(default_factory=dict)
    logged: dict[int, set[int]] | None = None

    def apply(self, entry: Entry) -> None:
        sectors = range(entry.offset, entry.offset + entry.length, SECTOR)
        if entry.data:
            self.data[entry.offset : entry.offset + entry.length] = entry.data
            for at in sectors if self.either else ():
                self.either.pop(at, None)
            if self.logged is not None:
                for at in sectors:
                    data = entry.data[at - entry.offset :][:SECTOR]
                    self.logged.setdefault(at, set()).add(hash(data))
            return
        for at in sectors:
            self.either.setdefault(at, bytes(self.data[at : at + SECTOR]))
        self.data[entry.offset : entry.offset + entry.length] = bytes(entry.length)

    def may_hold(self, at: int, data: bytes) -> bool:
        held = (bytes(self.data[at : at + SECTOR]), self.either.get(at))
        return data in held or (self.logged is not None and hash(data) in self.logged.get(at, ()))


class NotDurable(AssertionError):
    """at: the first sector that lacks what was acknowledged."""

    def __init__(self, at: int, text: str) -> None:
        super().__init__(text)
        self.at = at


class Durable:
    """
    What may be on the disk after a loss of power: what the last flush acknowledged, and anything later. Requests that
    overlap and were made at once stand in the log in the order of their ends, which need not be the disk's: of their
    sectors, as long as no later batch changes them, any of the contents will do.
    """

    def __init__(self, size: int) -> None:
        self.sure = bytearray(size)
        self.later: dict[int, list[bytes]] = {}
        self.unordered: dict[int, list[bytes]] = {}

    def apply(self, batch: Batch, before: bytes, after: dict[int, bytes]) -> None:
        """before: the whole disk; after: what the batch has made of the sectors that it changed."""
        if any(request.op == "flush" for request in batch):
            self.sure[:] = before
            self.later = {at: list(contents) for at, contents in self.unordered.items()}
        over: dict[int, list[Request]] = {}
        for request in batch:
            if request.op in ("write", "trim", "zero"):
                for at in range(request.offset, request.end, SECTOR):
                    over.setdefault(at, []).append(request)
        for at, requests in over.items():
            if len(requests) == 1 and requests[0].op == "write" and requests[0].fua:
                self.sure[at : at + SECTOR] = after[at]
                self.later.pop(at, None)
                self.unordered.pop(at, None)
                continue
            made = [
                request.data()[at - request.offset :][:SECTOR] if request.op == "write" else bytes(SECTOR)
                for request in requests
            ]
            self.later.setdefault(at, []).extend([before[at : at + SECTOR], *made])
            if len(requests) > 1:
                self.unordered[at] = made
            else:
                self.unordered.pop(at, None)

    def check(self, image: Image, name: str) -> None:
        """Raises NotDurable if image lacks what was acknowledged by the batch of that name."""
        for at in range(0, len(self.sure), SECTOR):
            sure = self.sure[at : at + SECTOR]
            if image.data[at : at + SECTOR] == sure:
                continue
            if not any(image.may_hold(at, one) for one in (bytes(sure), *self.later.get(at, []))):
                text = f"after batch {name}: what was acknowledged at {at} is not durable: {sure[:16].hex()}..."
                raise NotDurable(at, text)
