# SPDX-License-Identifier: BSD-3-Clause
"""What was written to a device, and whether a state found after a crash agrees with it.

A device is prefix-consistent if what it holds after a crash is what some prefix of an order of all
writes left, an order in which a write that was acknowledged before another one was submitted comes
first. Writes that were in flight together may have happened in either order. If a state shows a write
that was submitted at time t, the prefix thus holds every write that was acknowledged before t; a
durable flush that was acknowledged demands the same for the time of its own submission. Let t be the
latest of these times: the state is right if and only if each block's write is no older than the newest
one on that block that was acknowledged before t. (The set of these writes and of those that the state
shows is closed downwards in that order, and leaves exactly the state.) This holds for each block by
itself: a request of many blocks may be torn when it was in flight at the end, as with any disk.

Zeroes do not tell which write left them. Then the oldest one that is new enough demands the least of
the other blocks.

Times are ticks of one clock that the submissions and acknowledgements share. Requests that were in
flight together must not overlap: the caller sees to that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

ZERO = 0  # the write before all others: a new device reads as zeroes


class Inconsistent(Exception):
    """The state cannot have come from any prefix, or lacks what was durable."""


@dataclass
class Write:
    number: int
    first: int
    count: int
    zero: bool
    submitted: int
    acknowledged: float = math.inf
    durable: bool = False


@dataclass(frozen=True)
class Cut:
    """Where the prefix ends: everything acknowledged before time is in it."""

    time: int
    reason: str
    lost: int  # acknowledged writes that are gone, each of which may be


@dataclass
class History:
    blocks: int
    clock: int = 0
    writes: list[Write] = field(default_factory=list)
    # For each block its writes in their order; those that a crash took are removed by settle().
    of_block: list[list[Write]] = field(default_factory=list)
    durable_before: int = 0
    durable_reason: str = "nothing"

    def __post_init__(self) -> None:
        initial = Write(ZERO, 0, self.blocks, zero=True, submitted=-1, acknowledged=-1)
        self.writes.append(initial)
        self.of_block = [[initial] for _ in range(self.blocks)]

    def _tick(self) -> int:
        self.clock += 1
        return self.clock

    def submit(self, first: int, count: int, zero: bool = False) -> Write:
        """A write, or zeroes, of count blocks is about to be sent."""
        write = Write(len(self.writes), first, count, zero, self._tick())
        self.writes.append(write)
        for block in range(first, first + count):
            self.of_block[block].append(write)
        return write

    def acknowledge(self, write: Write, durable: bool = False) -> None:
        """It was answered with success; durable: it carried FUA, on a device whose FUA is durable."""
        write.acknowledged = self._tick()
        if durable:
            write.durable = True
            self._require(write.submitted, f"write {write.number} with FUA, submitted at {write.submitted}")

    def submit_flush(self) -> int:
        """A flush is about to be sent; pass the result to acknowledge_flush()."""
        return self._tick()

    def acknowledge_flush(self, submitted: int) -> None:
        """A durable flush was answered with success."""
        self._tick()
        self._require(submitted, f"the flush submitted at {submitted}")

    def _require(self, time: int, reason: str) -> None:
        if time > self.durable_before:
            self.durable_before = time
            self.durable_reason = reason

    def newest(self, block: int) -> Write:
        """What a read of a block without a write in flight must return."""
        return self.of_block[block][-1]

    def check(self, found: Sequence[int | None], durable: bool = True) -> Cut:
        """
        found: for each block the number of the write that it holds, 0 for zeroes, None for one that
        could not be read and may hold anything. durable: False if objects were taken from the store,
        which takes durable writes with them. Inconsistent.
        """
        time, reason = (self.durable_before, self.durable_reason) if durable else (0, "nothing")

        def later(write: Write, block: int) -> None:
            nonlocal time, reason
            if write.submitted > time:
                time = write.submitted
                reason = f"block {block} shows write {write.number}, submitted at {time}"

        position = {block: self._position(block, number) for block, number in enumerate(found) if number is not None}
        for block, at in position.items():
            if found[block] != ZERO:
                later(self.of_block[block][at], block)
        settled = -1
        while settled != time:
            settled = time
            for block, at in position.items():
                writes = self.of_block[block]
                need = self._required(writes, time, durable)
                if need > at and found[block] == ZERO:
                    zeroes = [i for i in range(need, len(writes)) if writes[i].zero]
                    if zeroes:
                        at = position[block] = zeroes[0]
                        later(writes[at], block)
                if need > at:
                    lost = writes[need]
                    why = "it carried FUA" if durable and lost.durable else f"required by {reason}"
                    raise Inconsistent(
                        f"block {block} holds write {found[block]}, older than write {lost.number}, "
                        f"acknowledged at {lost.acknowledged}: {why}"
                    )
        lost_writes = {
            write.number
            for block, number in enumerate(found)
            if number is not None
            for write in self.of_block[block][self._last(block, number) + 1 :]
            if write.acknowledged < math.inf
        }
        return Cut(time, reason, len(lost_writes))

    def _position(self, block: int, number: int) -> int:
        """The place of a block's write among its writes; that of the oldest one for zeroes."""
        if number == ZERO:
            return 0
        writes = self.of_block[block]
        for i in range(len(writes) - 1, -1, -1):
            if writes[i].number == number and not writes[i].zero:
                return i
        raise Inconsistent(f"block {block} holds write {number}, which was never sent there or was lost in a crash")

    def _last(self, block: int, number: int) -> int:
        """As _position(), but of the newest write that left zeroes."""
        if number != ZERO:
            return self._position(block, number)
        return max(i for i, write in enumerate(self.of_block[block]) if write.zero)

    @staticmethod
    def _required(writes: Sequence[Write], time: int, durable: bool) -> int:
        """The place of the newest write of a block that the prefix must hold; 0 if there is none."""
        for i in range(len(writes) - 1, 0, -1):
            if writes[i].acknowledged < time or (durable and writes[i].durable):
                return i
        return 0

    def settle(self, found: Sequence[int | None], durable: bool = True) -> Cut:
        """Checks, then goes on from that state: what it lacks may never come back. Inconsistent."""
        cut = self.check(found, durable)
        now = self._tick()
        for block, number in enumerate(found):
            if number is None:
                continue
            writes = self.of_block[block]
            del writes[self._last(block, number) + 1 :]  # any of the zeroes may have left them
            for write in writes:
                write.acknowledged = min(write.acknowledged, now)
        self.durable_before = self._tick()
        self.durable_reason = "what was found after an earlier crash"
        return cut

    def rewind(self, found: Sequence[int]) -> None:
        """The device went back to a state that it had: later writes may never come back. Inconsistent."""
        for block, number in enumerate(found):
            del self.of_block[block][self._last(block, number) + 1 :]
        self.durable_before = self._tick()
        self.durable_reason = "what it went back to"
