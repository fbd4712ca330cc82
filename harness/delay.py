# SPDX-License-Identifier: BSD-3-Clause
"""Makes a server look farther away: python3 -m userblk.harness.delay --to HOST:PORT --ms N --port-file FILE

What clients send passes that many milliseconds later, in order and without a limit on what is on its way but MEMORY;
what comes back passes at once. So a request takes that much longer, and its bytes do not take longer than they did.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import time
from contextlib import suppress
from pathlib import Path

CHUNK = 256 << 10
MEMORY = 64 << 20  # bytes on their way of one connection


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()


async def _delayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """As _pass_on(), each byte delay seconds after it came."""
    way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MEMORY // CHUNK)

    async def receive() -> None:
        while data := await reader.read(CHUNK):
            await way.put((time.monotonic() + delay, data))
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


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int, ms: float) -> None:
    """One connection, until either end is closed."""
    writers = [writer]
    tasks = []
    with suppress(OSError):
        back, forth = await asyncio.open_connection(host, port, limit=CHUNK)
        writers.append(forth)
        for one in writers:
            one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ways = (_delayed(reader, forth, ms / 1e3), _pass_on(back, writer))
        tasks = [asyncio.ensure_future(way) for way in ways]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for one in writers:
        one.close()


async def _run(host: str, port: int, ms: float, port_file: Path) -> None:
    server = await asyncio.start_server(
        lambda reader, writer: _serve(reader, writer, host, port, ms), "127.0.0.1", 0, limit=CHUNK, backlog=1024
    )
    temporary = port_file.with_name(port_file.name + ".new")
    temporary.write_text(f"{server.sockets[0].getsockname()[1]}\n")
    temporary.rename(port_file)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="userblk.harness.delay", description="Delay what is sent to a server.")
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    parser.add_argument("--ms", required=True, type=float)
    parser.add_argument("--port-file", required=True, type=Path, metavar="FILE", help="gets its own port")
    args = parser.parse_args()
    host, _, port = args.to.rpartition(":")
    with suppress(KeyboardInterrupt):
        asyncio.run(_run(host, int(port), args.ms, args.port_file))


if __name__ == "__main__":
    main()
