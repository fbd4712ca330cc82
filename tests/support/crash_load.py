# SPDX-License-Identifier: BSD-3-Clause
"""Requests in flight to a server that will be killed, recorded in a history; and the whole volume, read afterwards."""

from __future__ import annotations

import os
import random
import select
from collections.abc import Sequence
from dataclasses import dataclass

from history import History, Write
from nbdkit_server import Handle, NbdError, Nbdkit, nbd
from orders import Failure
from stamps import BLOCK, DamagedBlock, numbers, stamped

READ_BYTES = 64 << 10
REPLY_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Mix:
    """What the load of one generation is made of."""

    depth: int
    largest: int  # blocks of a request
    reads: float
    zeroes: float
    flushes: float
    fua: float
    hot: float  # share of requests on a small part of the volume

    @classmethod
    def choose(cls, rng: random.Random) -> Mix:
        return cls(
            depth=rng.choice((1, 4, 16, 64)),
            largest=rng.choice((1, 8, 64, 400)),
            reads=rng.choice((0.0, 0.2)),
            zeroes=rng.choice((0.0, 0.05, 0.2)),
            flushes=rng.choice((0.0, 0.01, 0.1)),
            fua=rng.choice((0.0, 0.02, 0.3)),
            hot=rng.choice((0.0, 0.5, 0.9)),
        )


class NoReply(Failure):
    """In all the time that one is waited for."""


class Load:
    """Requests to one server, in flight over several connections, recorded in a history."""

    def __init__(self, history: History, run: int, handles: Sequence[Handle], durable: bool) -> None:
        self.history = history
        self.run_id = run
        self.handles = handles
        self.durable = durable
        self.busy = bytearray(history.blocks)
        self.in_flight = 0
        self.replies = 0
        self.blocks = 0  # that replies were about
        self.failed: list[str] = []
        self.wrong: str | None = None
        self.patience_s = REPLY_TIMEOUT_S

    def run(self, rng: random.Random, mix: Mix, replies: int, blocks: int) -> None:
        """Until so many replies came, or about so many blocks, or the server is gone; requests stay in flight."""
        while self.replies < replies and self.blocks < blocks and not self.failed:
            while self.in_flight < mix.depth and not self.failed and self._submit(rng, mix):
                pass
            self._wait()

    def finish(self) -> None:
        """Waits until no request is in flight, or the server is gone."""
        while self.in_flight and not self.failed:
            self._wait()

    def _wait(self) -> None:
        """For something to go on with on any connection."""
        if any(handle.aio_is_dead() or handle.aio_is_closed() for handle in self.handles):
            self.failed.append("a connection ended")
        if self.failed:
            return
        poller = select.poll()
        by_fd = {}
        for handle in self.handles:
            direction = handle.aio_get_direction()
            events = (select.POLLIN if direction & nbd.AIO_DIRECTION_READ else 0) | (
                select.POLLOUT if direction & nbd.AIO_DIRECTION_WRITE else 0
            )
            by_fd[handle.aio_get_fd()] = handle
            poller.register(handle.aio_get_fd(), events)
        ready = poller.poll(self.patience_s * 1000)
        if not ready:
            raise NoReply(f"no reply for {self.patience_s:.0f} s; in flight: {self.in_flight}")
        for fd, events in ready:
            try:
                if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                    by_fd[fd].aio_notify_read()
                elif events & select.POLLOUT:
                    by_fd[fd].aio_notify_write()
            except NbdError as error:
                self.failed.append(str(error))
        if self.wrong:
            raise Failure(self.wrong)

    def _submit(self, rng: random.Random, mix: Mix) -> bool:
        """Sends one request. False: the part of the volume it chose is busy."""
        handle = rng.choice(self.handles)
        what = rng.random()
        try:
            if what < mix.flushes:
                self._flush(handle)
                return True
            count = min(1 + int(rng.expovariate(1.0) * mix.largest / 3), mix.largest)
            end = 64 if rng.random() < mix.hot else self.history.blocks
            first = rng.randrange(max(1, end - count))
            count = min(count, self.history.blocks - first)
            if any(self.busy[first : first + count]):
                return False
            what = rng.random()
            if what < mix.reads:
                self._read(handle, first, count)
            elif what < mix.reads + mix.zeroes:
                self._zero(handle, first, count, trim=rng.random() < 0.5, fua=rng.random() < mix.fua)
            else:
                self._write(handle, first, count, fua=rng.random() < mix.fua)
        except NbdError as error:
            self.failed.append(str(error))
        return True

    def _claim(self, first: int, count: int) -> None:
        self.in_flight += 1
        self.busy[first : first + count] = b"\1" * count

    def _answered(self, what: str, error: int, first: int, count: int) -> bool:
        self.in_flight -= 1
        self.replies += 1
        self.blocks += count
        self.busy[first : first + count] = bytes(count)
        if error:
            self.failed.append(f"{what} of {count} blocks at {first}: {os.strerror(error)}")
        return not error

    def _write(self, handle: Handle, first: int, count: int, fua: bool) -> None:
        write = self.history.submit(first, count)
        self._claim(first, count)
        data = bytearray().join(stamped(self.run_id, block, write.number) for block in range(first, first + count))
        handle.aio_pwrite(
            nbd.Buffer.from_bytearray(data),
            first * BLOCK,
            completion=lambda error: self._written("write", error.value, write, fua),
            flags=nbd.CMD_FLAG_FUA if fua else 0,
        )

    def _zero(self, handle: Handle, first: int, count: int, trim: bool, fua: bool) -> None:
        write = self.history.submit(first, count, zero=True)
        self._claim(first, count)
        send = handle.aio_trim if trim else handle.aio_zero
        send(
            count * BLOCK,
            first * BLOCK,
            completion=lambda error: self._written("trim" if trim else "zero", error.value, write, fua),
            flags=nbd.CMD_FLAG_FUA if fua else 0,
        )

    def _written(self, what: str, error: int, write: Write, fua: bool) -> int:
        if self._answered(what, error, write.first, write.count):
            self.history.acknowledge(write, durable=fua and self.durable)
        return 1

    def _flush(self, handle: Handle) -> None:
        sent = self.history.submit_flush()
        self.in_flight += 1

        def done(error: int) -> int:
            if self._answered("flush", error, 0, 0) and self.durable:
                self.history.acknowledge_flush(sent)
            return 1

        handle.aio_flush(completion=lambda error: done(error.value))

    def _read(self, handle: Handle, first: int, count: int) -> None:
        expected = [self.history.newest(block) for block in range(first, first + count)]
        buffer = nbd.Buffer(count * BLOCK)
        self._claim(first, count)

        def done(error: int) -> int:
            if self._answered("read", error, first, count):
                try:
                    found = numbers(buffer.to_bytearray(), self.run_id, first)
                except DamagedBlock as damage:
                    self.wrong = f"a read while it runs: {damage}"
                    return 1
                for i, (number, write) in enumerate(zip(found, expected, strict=True)):
                    if number != (0 if write.zero else write.number):
                        self.wrong = f"a read while it runs: block {first + i} holds {number}, not {write}"
            return 1

        handle.aio_pread(buffer, first * BLOCK, completion=lambda error: done(error.value))


def read_volume(server: Nbdkit, run: int, blocks: int, tolerant: bool) -> list[int | None]:
    """For each block its write; None for one that cannot be read, if that is tolerated."""
    handle = server.connect()
    found: list[int | None] = [None] * blocks
    step = READ_BYTES // BLOCK
    # In parallel: what was written at random is many small objects' parts.
    parts = []
    for first in range(0, blocks, step):
        buffer = nbd.Buffer(min(step, blocks - first) * BLOCK)
        parts.append((first, buffer, handle.aio_pread(buffer, first * BLOCK)))
    while handle.aio_in_flight():
        if handle.poll(int(REPLY_TIMEOUT_S * 1000)) == 0:
            raise Failure(f"no reply to a read for {REPLY_TIMEOUT_S:.0f} s")
    for first, buffer, cookie in parts:
        try:
            handle.aio_command_completed(cookie)
            data = buffer.to_bytearray()
            found[first : first + len(data) // BLOCK] = numbers(data, run, first)
        except NbdError as error:
            if not tolerant:
                raise Failure(f"blocks from {first} cannot be read: {error}") from error
            for block in range(first, min(first + step, blocks)):
                try:
                    found[block] = numbers(handle.pread(BLOCK, block * BLOCK), run, block)[0]
                except NbdError:
                    pass
    handle.shutdown()
    return found
