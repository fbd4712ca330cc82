# SPDX-License-Identifier: BSD-3-Clause
"""Makes a server look farther away.

    python3 -m userblk.harness.stores.latency_proxy --to HOST:PORT --ms N --port-file FILE

What clients send passes that many milliseconds later, in order and without a limit on what is on its way but MEMORY;
what comes back passes at once. So a request takes that much longer, and its bytes do not take longer than they did.

With --sigma each request has a delay of its own, from a log-normal distribution with --ms as its median; with --tail
a part of them takes --tail-ms instead. --seed makes the sequence of delays the same each time. A request begins with
the first bytes after those of a reply.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

CHUNK = 256 << 10
MEMORY = 64 << 20  # bytes on their way of one connection


class Delays:
    """How many seconds each request of one connection is held back. draw: the next delay."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw
        self._answered = True
        self._delay = 0.0

    def answered(self) -> None:
        """Bytes of a reply have come: the next of the client's are another request."""
        self._answered = True

    def due(self) -> float:
        """When the bytes that have just come from the client may pass."""
        if self._answered:
            self._delay = self._draw()
            self._answered = False
        return time.monotonic() + self._delay


def distribution(ms: float, sigma: float, tail: float, tail_ms: float, seed: int | None) -> Callable[[], float]:
    """Draws delays in seconds: log-normal around the median ms, a part of tail of them tail_ms."""
    if not sigma and not tail:
        return lambda: ms / 1e3
    rng = random.Random(seed)

    def draw() -> float:
        late, usual = rng.random() < tail, ms * rng.lognormvariate(0.0, sigma)
        return (tail_ms if late else usual) / 1e3

    return draw


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delays: Delays) -> None:
    while data := await reader.read(CHUNK):
        delays.answered()
        writer.write(data)
        await writer.drain()


async def _delayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delays: Delays) -> None:
    """Passes on what a client sends, each byte when it is due."""
    way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MEMORY // CHUNK)

    async def receive() -> None:
        while data := await reader.read(CHUNK):
            await way.put((delays.due(), data))
        await way.put((0.0, b""))

    async def send() -> None:
        while True:
            due, data = await way.get()
            if not data:
                return
            if (rest := due - time.monotonic()) > 0:
                await asyncio.sleep(rest)
            writer.write(data)
            await writer.drain()

    await asyncio.gather(receive(), send())


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int, draw: Callable[[], float]
) -> None:
    """One connection, until either end is closed."""
    writers = [writer]
    tasks = []
    with suppress(OSError):
        back, forth = await asyncio.open_connection(host, port, limit=CHUNK)
        writers.append(forth)
        for one in writers:
            one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        delays = Delays(draw)
        ways = (_delayed(reader, forth, delays), _pass_on(back, writer, delays))
        tasks = [asyncio.ensure_future(way) for way in ways]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for one in writers:
        one.close()


async def _run(host: str, port: int, draw: Callable[[], float], port_file: Path) -> None:
    server = await asyncio.start_server(
        lambda reader, writer: _serve(reader, writer, host, port, draw), "127.0.0.1", 0, limit=CHUNK, backlog=1024
    )
    temporary = port_file.with_name(port_file.name + ".new")
    temporary.write_text(f"{server.sockets[0].getsockname()[1]}\n")
    temporary.rename(port_file)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="userblk.harness.stores.latency_proxy", description="Delay the requests to a server."
    )
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    parser.add_argument("--ms", required=True, type=float)
    sigma = "standard deviation of the delays' logarithms (default 0)"
    parser.add_argument("--sigma", type=float, default=0.0, help=sigma)
    tail = "share of the requests that take --tail-ms (default 0)"
    parser.add_argument("--tail", type=float, default=0.0, metavar="PART", help=tail)
    parser.add_argument("--tail-ms", type=float, default=1000.0, metavar="MS", help="default 1000")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--port-file", required=True, type=Path, metavar="FILE", help="to get the proxy's port")
    args = parser.parse_args()
    host, _, port = args.to.rpartition(":")
    with suppress(KeyboardInterrupt):
        draw = distribution(args.ms, args.sigma, args.tail, args.tail_ms, args.seed)
        asyncio.run(_run(host, int(port), draw, args.port_file))


if __name__ == "__main__":
    main()
