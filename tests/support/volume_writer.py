# SPDX-License-Identifier: BSD-3-Clause
"""A volume of the S3 device that is written to while other things are done to it, and what it holds then."""

from __future__ import annotations

import random
from concurrent.futures import Future

from device import ServeS3
from history import History, Write
from stamps import BLOCK, stamped
from volume_driver import TIMEOUT_S, VolumeDriver

BLOCKS = 2048
RUN = 7


def content(number: int, blocks: int = BLOCKS, first: int = 0) -> bytes:
    return b"".join(stamped(RUN, first + i, number) for i in range(blocks))


def read(serve: ServeS3, volume: str, blocks: int = BLOCKS, **more: str) -> bytes:
    """What a server of another framework tells of it."""
    server = serve(volume, None, (), **more)
    data = bytes(server.connect().pread(blocks * BLOCK, 0))
    server.stop()
    return data


class Writer:
    """Keeps writes in flight, each of which a history knows."""

    def __init__(self, driver: VolumeDriver, seed: int) -> None:
        self.driver = driver
        self.rng = random.Random(seed)
        self.history = History(BLOCKS)
        self.flying: list[tuple[Write, Future[bytes]]] = []

    def step(self) -> None:
        """Another write, and those that have been answered."""
        first = self.rng.randrange(BLOCKS // 8) * 8
        if not any(write.first == first for write, _ in self.flying):
            write = self.history.submit(first, self.rng.randint(1, 8))
            data = content(write.number, write.count, first)
            self.flying.append((write, self.driver.submit("write", first * BLOCK, len(data), data=data)))
        if len(self.flying) == 32:
            self.flying[0][1].result(TIMEOUT_S)
        for write, future in [entry for entry in self.flying if entry[1].done()]:
            future.result()
            self.history.acknowledge(write)
            self.flying.remove((write, future))

    def finish(self) -> None:
        for write, future in self.flying:
            future.result(TIMEOUT_S)
            self.history.acknowledge(write)
        self.flying = []
