# SPDX-License-Identifier: BSD-3-Clause
"""Heads and bodies of HTTP/1.1 on a connection, passed on as they are framed."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

CHUNK = 256 << 10
HEAD_LIMIT = 64 << 10
TIMEOUT_S = 120.0


class Broken(Exception):
    """A connection broke, or must break: both end with RST."""


class Ended(Exception):
    """The client's connection ends as HTTP lets it."""


class Wire:
    """A socket with what was read ahead of it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(TIMEOUT_S)
        self.socket = connection
        self._ahead = bytearray()
        self._buffer = bytearray(CHUNK)

    def read_head(self) -> bytes:
        """Up to and with the empty line. Broken: the peer is gone."""
        while (end := self._ahead.find(b"\r\n\r\n")) < 0:
            if len(self._ahead) > HEAD_LIMIT:
                raise Broken("a head without end")
            self._fill()
        return self._take(end + 4)

    def read_line(self) -> bytes:
        while (end := self._ahead.find(b"\r\n")) < 0:
            self._fill()
        return self._take(end + 2)

    def read_some(self, limit: int) -> bytes | memoryview:
        """At least one byte and at most limit, valid until the next call."""
        if self._ahead:
            return self._take(min(limit, len(self._ahead)))
        got = self.socket.recv_into(self._buffer, min(limit, CHUNK))
        if got == 0:
            raise Broken("the peer ended the connection")
        return memoryview(self._buffer)[:got]

    def send(self, data: bytes | memoryview) -> None:
        self.socket.sendall(data)

    def readable(self) -> bool:
        return bool(self._ahead) or bool(select.select([self.socket], [], [], 0)[0])

    def reset(self) -> None:
        """Ends the connection with RST, as a crashed peer or a middle box does."""
        with suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def end(self) -> None:
        """Ends the connection so that the peer gets all that was sent to it."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            self.socket.settimeout(1.0)
            while self.socket.recv(CHUNK):
                pass
        self.close()

    def close(self) -> None:
        # Wakes a thread that waits in it, which close() alone does not.
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _take(self, size: int) -> bytes:
        data = bytes(self._ahead[:size])
        del self._ahead[:size]
        return data

    def _fill(self) -> None:
        data = self.socket.recv(CHUNK)
        if not data:
            raise Broken("the peer ended the connection")
        self._ahead += data


@dataclass
class Head:
    """A request's or reply's first line and header lines."""

    first: str
    lines: list[tuple[str, str]]

    @classmethod
    def parse(cls, data: bytes) -> Head:
        first, *rest = data.decode("latin-1").rstrip("\r\n").split("\r\n")
        lines = [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in rest)]
        return cls(first, lines)

    def get(self, name: str) -> str | None:
        return next((value for key, value in self.lines if key.lower() == name), None)

    def remove(self, name: str) -> None:
        self.lines = [(key, value) for key, value in self.lines if key.lower() != name]

    def set(self, name: str, value: str) -> None:
        self.remove(name.lower())
        self.lines.append((name, value))

    def encode(self) -> bytes:
        text = "".join(f"{name}: {value}\r\n" for name, value in self.lines)
        return f"{self.first}\r\n{text}\r\n".encode("latin-1")

    @property
    def status(self) -> int:
        return int(self.first.split(" ", 2)[1])

    @property
    def length(self) -> int | None:
        """Bytes of the body; None: it is chunked, or there is no word of it."""
        text = self.get("content-length")
        return None if text is None else int(text)

    @property
    def chunked(self) -> bool:
        return (self.get("transfer-encoding") or "").lower() == "chunked"


Sink = Callable[[bytes | memoryview], None]


def copy_body(source: Wire, head: Head, sink: Sink, until: Callable[[], bool] = lambda: False) -> bool:
    """Passes a body on as it is framed. False: until() said to leave off."""
    if not head.chunked:
        left = head.length or 0
        while left:
            if until():
                return False
            data = source.read_some(left)
            left -= len(data)
            sink(data)
        return True
    while True:
        if until():
            return False
        line = source.read_line()
        sink(line)
        size = int(line.split(b";")[0], 16)
        if size == 0:
            break
        size += 2  # with the end of its line
        while size:
            data = source.read_some(size)
            size -= len(data)
            sink(data)
    while line != b"\r\n":
        line = source.read_line()
        sink(line)
    return True


def has_body(method: str, reply: Head) -> bool:
    return method != "HEAD" and reply.status >= 200 and reply.status not in (204, 304)
