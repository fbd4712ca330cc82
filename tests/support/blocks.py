# SPDX-License-Identifier: BSD-3-Clause
"""Requests to a block device: drawn at random, made many at once, compared with a model in memory, shrunk."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from shrinking import shrink

SECTOR = 512
POOL = random.Random(1).randbytes(65521)  # prime, so that no shift by whole blocks gives the same data
SHRINK_SECONDS = 60.0
SHRINK_TRIES = 3  # what is made at once need not fail each time


@dataclass(frozen=True)
class Request:
    """
    op: read, write, flush, trim or zero. tag: of what is written. may_trim, fast: of a zero; a fast one may be refused
    and then changes nothing.
    """

    op: str
    offset: int = 0
    length: int = 0
    tag: int = 0
    fua: bool = False
    may_trim: bool = False
    fast: bool = False

    @property
    def end(self) -> int:
        return self.offset + self.length

    def data(self) -> bytes:
        """The data of a write."""
        return pattern(self.tag, self.offset, self.length)


Batch = tuple[Request, ...]  # made at once, and all answered before the next


def pattern(tag: int, offset: int, length: int) -> bytes:
    """Bytes that no other tag has there, nor this one elsewhere."""
    start = (offset + tag * 7919) % len(POOL)
    return (POOL * (length // len(POOL) + 2))[start : start + length]


@dataclass(frozen=True)
class Limits:
    """What may be asked for. unit: bytes that offsets and lengths are multiples of; trim_unit: those of a trim."""

    size: int
    unit: int = SECTOR
    largest: int = 1 << 20
    fua: bool = True
    trim: bool = True
    zero: bool = True
    fast_zero: bool = False
    trim_unit: int = 0
    keeps: bool = True  # False: the null device, which reads as zeroes
    at_once: int = 16
    torn: bool = False  # a page cache is below: a read beside a write may see a part of its sector


class Target(Protocol):
    """A device as its user reaches it."""

    def begin(self) -> None:
        """Called before each sequence."""

    def perform(self, batch: Batch) -> list[bytes]:
        """Makes all of them at once: what was read, by request; b"" for others. Raises OSError."""


def _range(rng: random.Random, limits: Limits, unit: int, near: Sequence[Request]) -> tuple[int, int]:
    """Short and long, at and beside boundaries, at the end, and over what others of the batch touch."""
    largest = min(limits.largest, limits.size) // unit
    length = rng.choice([1, 1, 2, 7, 8, 9, 64, 65, rng.randrange(1, largest + 1), largest])
    length = min(length if unit >= SECTOR else rng.choice([length, length * SECTOR]), largest) * unit
    if near and rng.random() < 0.4:
        other = rng.choice(near)
        offset = other.offset // unit * unit + rng.choice([0, unit, -unit, other.length // unit * unit])
    else:
        last = limits.size - length
        offset = rng.choice([0, last, rng.randrange(limits.size), rng.randrange(limits.size // 4096) * 4096])
    offset = max(0, min(offset // unit * unit, (limits.size - length) // unit * unit))
    return offset, length


def draw(rng: random.Random, limits: Limits, batches: int) -> list[Batch]:
    ops = ["read"] * 3 + ["write"] * 6 + ["flush"] + ["trim"] * 2 * limits.trim + ["zero"] * 2 * limits.zero
    drawn: list[Batch] = []
    tag = 0
    for _ in range(batches):
        batch: list[Request] = []
        for _ in range(rng.choice([1, 1, 2, 4, limits.at_once])):
            op = rng.choice(ops)
            if op == "flush":
                batch.append(Request(op))
                continue
            unit = limits.trim_unit or limits.unit if op == "trim" else limits.unit
            offset, length = _range(rng, limits, unit, batch and [r for r in batch if r.length])
            tag += 1
            fua = limits.fua and op != "read" and rng.random() < 0.2
            may_trim = op == "zero" and rng.random() < 0.5
            fast = op == "zero" and limits.fast_zero and rng.random() < 0.5
            batch.append(Request(op, offset, length, tag, fua, may_trim, fast))
        drawn.append(tuple(batch))
    return drawn


class Differs(Exception):
    """One line: where the device is not as the model."""


class Model:
    """What the device holds. Where requests of one batch overlap, any of their orders is right."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.bytes = bytearray(limits.size)

    def _outcomes(self, changes: Iterable[Request], start: int, end: int) -> list[bytes]:
        """What the range, which each change covers or leaves alone, may hold after them in any order."""
        before = bytes(self.bytes[start:end])
        found: list[bytes] = []
        sure = False
        for change in changes:
            if change.op == "write" and self.limits.keeps:
                found.append(pattern(change.tag, start, end - start))
                sure = True
            elif change.op in ("trim", "zero"):
                found.append(bytes(end - start))
                sure = sure or (change.op == "zero" and not change.fast)
        return found if sure else [before, *found]

    def _pieces(self, requests: Sequence[Request], start: int, end: int) -> Iterator[tuple[int, int, list[Request]]]:
        """The range in pieces, each of which a request covers wholly or not at all."""
        edges = {start, end}
        for request in requests:
            edges |= {edge for edge in (request.offset, request.end) if start < edge < end}
        ordered = sorted(edges)
        for at, until in zip(ordered, ordered[1:], strict=False):
            yield at, until, [r for r in requests if r.offset <= at and until <= r.end and r.length]

    def check(self, what: str, at: int, found: bytes, allowed: list[bytes], torn: bool = False) -> None:
        if found in allowed:
            return
        for start in range(0, len(found), SECTOR):
            part = slice(start, start + SECTOR)
            if found[part] in [one[part] for one in allowed]:
                continue
            # From one write, from another, or from what was there: never a mixture, unless a byte is the unit.
            if (torn or self.limits.unit < SECTOR) and all(
                any(one[i] == found[i] for one in allowed) for i in range(start, min(start + SECTOR, len(found)))
            ):
                continue
            first = next((i for i in range(start, len(found)) if found[i] != allowed[0][i]), start)
            raise Differs(
                f"{what}: at {at + first} there is {found[first : first + 16].hex()}, expected"
                f" {' or '.join(one[first : first + 16].hex() for one in allowed)}"
            )

    def check_read(self, request: Request, found: bytes, batch: Batch) -> None:
        """A read of a batch: of what was before, or of what another of the batch makes of it."""
        if len(found) != request.length:
            raise Differs(f"{request}: {len(found)} bytes")
        changes = [r for r in batch if r.op in ("write", "trim", "zero")]
        for at, until, over in self._pieces(changes, request.offset, request.end):
            allowed = [bytes(self.bytes[at:until]), *self._outcomes(over, at, until)]
            piece = found[at - request.offset : until - request.offset]
            self.check(str(request), at, piece, allowed, torn=self.limits.torn)

    def after(self, batch: Batch, read: Callable[[int, int], bytes]) -> None:
        """Takes over what the batch has changed; read(offset, length) says what is not certain."""
        changes = [r for r in batch if r.op in ("write", "trim", "zero")]
        new: list[tuple[int, bytes]] = []
        for at, until, over in self._pieces(changes, 0, self.limits.size):
            if not over:
                continue
            allowed = self._outcomes(over, at, until)
            if len(allowed) > 1:
                found = b"".join(
                    read(start, min(self.limits.largest, until - start))
                    for start in range(at, until, self.limits.largest)
                )
                self.check(f"after {batch}", at, found, allowed)
                new.append((at, found))
            else:
                new.append((at, allowed[0]))
        for at, data in new:
            self.bytes[at : at + len(data)] = data


def fill(limits: Limits) -> list[Batch]:
    """Batches that give all of the device a known content, and make it durable."""
    writes = [
        Request("write", at, min(limits.largest, limits.size - at)) for at in range(0, limits.size, limits.largest)
    ]
    return [*(tuple(writes[at : at + limits.at_once]) for at in range(0, len(writes), limits.at_once)), FLUSH]


FLUSH: Batch = (Request("flush"),)

Marks = Callable[[Batch, Model], None]


def replay(batches: Sequence[Batch], limits: Limits, target: Target, marks: Marks) -> None:
    """The batches, after all has been filled. marks: called after each. Raises Differs."""
    try:
        target.begin()
        _replay([*fill(limits), *batches], limits, target, marks)
    except OSError as error:
        raise Differs(f"an error: {error}") from error


def _replay(batches: Sequence[Batch], limits: Limits, target: Target, marks: Marks) -> None:
    def read(offset: int, length: int) -> bytes:
        return target.perform((Request("read", offset, length),))[0]

    model = Model(limits)
    for batch in batches:
        found = target.perform(batch)
        for request, data in zip(batch, found, strict=True):
            if request.op == "read":
                model.check_read(request, data, batch)
        model.after(batch, read)
        marks(batch, model)
    steps = range(0, limits.size, limits.largest)
    content = b"".join(read(at, min(limits.largest, limits.size - at)) for at in steps)
    model.check("at the end", 0, content, [bytes(model.bytes)])


def search(limits: Limits, target: Target, seconds: float, marks: Marks = lambda batch, model: None) -> int:
    """
    Sequences for so many seconds, on one device; how many there were. DIFFERENTIAL_SEED repeats a run. Raises
    AssertionError with the fewest requests that fail.
    """
    seed = first = int(os.environ.get("DIFFERENTIAL_SEED", str(time.time_ns())))
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        batches = draw(random.Random(seed), limits, 30)
        try:
            replay(batches, limits, target, marks)
        except Differs as differs:
            raise AssertionError(_report(batches, limits, target, marks, seed, str(differs))) from None
        seed += 1
    return seed - first


def _report(
    batches: Sequence[Batch],
    limits: Limits,
    target: Target,
    marks: Marks,
    seed: int,
    first: str,
) -> str:
    deadline = time.monotonic() + SHRINK_SECONDS
    reported = [first]

    def fails(rest: Sequence[tuple[int, Request]]) -> bool:
        for _ in range(SHRINK_TRIES):
            if time.monotonic() > deadline:
                return False
            try:
                replay(regroup(rest), limits, target, marks)
            except Differs as differs:
                reported.append(str(differs))
                return True
        return False

    flat = [(number, request) for number, batch in enumerate(batches) for request in batch]
    # Each request alone, where it still fails so; else those that were made at once stay so.
    fewest = shrink(flat, fails)
    alone = [(number, request) for number, (_, request) in enumerate(fewest)]
    if fails(alone):
        fewest = alone
    lines = "\n".join(f"    {' | '.join(map(str, batch))}" for batch in regroup(fewest))
    return f"DIFFERENTIAL_SEED={seed}, {len(fewest)} requests, a line for those made at once:\n{lines}\n{reported[-1]}"


def regroup(rest: Sequence[tuple[int, Request]]) -> list[Batch]:
    groups: dict[int, list[Request]] = {}
    for number, request in rest:
        groups.setdefault(number, []).append(request)
    return [tuple(group) for _, group in sorted(groups.items())]
