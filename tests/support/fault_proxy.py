# SPDX-License-Identifier: BSD-3-Clause
"""An HTTP/1.1 proxy between an S3 client and a store that misbehaves as a test says.

A Rule picks requests (method, key, how many to let pass, how many to take) and gives them to an
action, which has the Exchange in its hands: it may answer by itself, forward and answer something
else, cut, delay, or change what passes. Requests that no rule takes are forwarded unchanged, with the
client's Host header, which its signature covers. Bodies are streamed; each client connection has one
thread and one connection of its own to the store, both kept alive.
"""

from __future__ import annotations

import math
import random
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from http_wire import TIMEOUT_S, Broken, Ended, Head, Wire, copy_body, has_body
from servers import reserve_port

Address = tuple[str, int]
Action = Callable[["Exchange"], None]


def error_body(code: str) -> bytes:
    message = "made by the fault proxy"
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'
    ).encode()


class Exchange:
    """One request and its reply, on their way. An action calls what it needs, once each, in order."""

    def __init__(self, proxy: FaultProxy, client: Wire, request: Head, number: int) -> None:
        self.proxy = proxy
        self.client = client
        self.request = request
        self.number = number  # of the request, from 1
        self.method, self.target, _ = request.first.split(" ", 2)
        # Without the bucket: the clients here address by path.
        self.key = unquote(self.target.partition("?")[0]).removeprefix(f"/{proxy.bucket}").lstrip("/")
        self.close_after = (request.get("connection") or "").lower() == "close"
        self.reply: Head | None = None  # of the store
        self.answered: int | None = None  # the status that the client received

    @property
    def upstream(self) -> Wire:
        return self.proxy.upstream_of(self.client)

    def forward(self, body_limit: int | None = None, change: Callable[[int, bytes], bytes] | None = None) -> Head:
        """
        Sends the request to the store and returns the head of its reply. body_limit: leave off after
        about so many bytes of the body, which is the end of the exchange. change: as of relay().
        """
        sent = 0

        def send(data: bytes | memoryview) -> None:
            nonlocal sent
            if body_limit is not None and sent + len(data) >= body_limit:
                upstream.send(data[: body_limit - sent])
                raise Broken("cut in the request")
            upstream.send(data if change is None else change(sent, bytes(data)))
            sent += len(data)

        self._expect()
        upstream = self.upstream
        if upstream.readable():  # the store has closed a connection that was idle
            upstream = self.proxy.reconnect(self.client)
        upstream.send(self.request.encode())
        # A store that refuses answers before it has read the body.
        if not copy_body(self.client, self.request, send, until=upstream.readable):
            self.close_after = True
        self.reply = Head.parse(upstream.read_head())
        while 100 <= self.reply.status < 200:
            self.reply = Head.parse(upstream.read_head())
        return self.reply

    def relay(
        self,
        change: Callable[[int, bytes], bytes] | None = None,
        limit: int | None = None,
        end: type[Exception] = Broken,
    ) -> None:
        """
        Passes the store's reply on. change(offset, data): what the client gets instead of a part of the
        body. limit: leave off after so many bytes of it, by raising end.
        """
        assert self.reply is not None
        passed = 0

        def send(data: bytes | memoryview) -> None:
            nonlocal passed
            if limit is not None and passed + len(data) >= limit:
                self.client.send(data[: limit - passed])
                raise end("cut in the reply")
            self.client.send(data if change is None else change(passed, bytes(data)))
            passed += len(data)

        self.answered = self.reply.status
        self.client.send(self.reply.encode())
        if has_body(self.method, self.reply):
            copy_body(self.upstream, self.reply, send)
        self._finish()

    def discard(self) -> None:
        """Reads the store's reply to its end."""
        assert self.reply is not None
        if has_body(self.method, self.reply):
            copy_body(self.upstream, self.reply, lambda data: None)

    def answer(self, status: int, code: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        """Answers as an S3 server would that refuses; call without forward() or after discard()."""
        if self.reply is None:
            if self.request.get("expect") is not None:
                self.close_after = True  # the client keeps its body
            else:
                copy_body(self.client, self.request, lambda data: None)
        body = b"" if self.method == "HEAD" else error_body(code)
        head = Head(f"HTTP/1.1 {status} {code}", [("Content-Type", "application/xml"), *headers])
        head.set("Content-Length", str(len(body)))
        if self.close_after:
            head.set("Connection", "close")
        self.answered = status
        self.client.send(head.encode() + body)
        self._finish()

    def _expect(self) -> None:
        """The proxy itself says to go on: it is what reads the body."""
        if (self.request.get("expect") or "").lower() == "100-continue":
            self.request.remove("expect")
            self.client.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _finish(self) -> None:
        closing = self.reply is not None and (self.reply.get("connection") or "").lower() == "close"
        if self.close_after or closing:
            raise Ended("as announced")


# ---- actions ----------------------------------------------------------------


def passed_on(exchange: Exchange) -> None:
    exchange.forward()
    exchange.relay()


def refused(status: int, code: str, retry_after: int | str | None = None) -> Action:
    """The store never hears of it: 503 SlowDown, 403 AccessDenied, RequestTimeTooSkewed, ..."""
    headers = () if retry_after is None else (("Retry-After", str(retry_after)),)
    return lambda exchange: exchange.answer(status, code, headers)


def done_but_refused(status: int, code: str) -> Action:
    """The store does it, but the client receives an error."""

    def action(exchange: Exchange) -> None:
        exchange.forward()
        exchange.discard()
        exchange.answer(status, code)

    return action


def done_but_reset(exchange: Exchange) -> None:
    """The store does it, the client's connection breaks before the reply."""
    exchange.forward()
    exchange.discard()
    raise Broken("before the reply")


def reset_in_request(after: int) -> Action:
    """Both connections break after so many bytes of the request's body."""

    def action(exchange: Exchange) -> None:
        exchange.forward(body_limit=after)
        raise Broken("the body was shorter")

    return action


def reset_in_reply(after: int) -> Action:
    """The connection breaks after so many bytes of the reply's body."""

    def action(exchange: Exchange) -> None:
        exchange.forward()
        exchange.relay(limit=after)

    return action


def ended_in_reply(after: int) -> Action:
    """The connection is closed in order after so many bytes of a reply that announced more."""

    def action(exchange: Exchange) -> None:
        exchange.forward()
        exchange.relay(limit=after, end=Ended)

    return action


def shortened_reply(length: int) -> Action:
    """A well-formed reply whose body, and Content-Length, ends early."""

    def action(exchange: Exchange) -> None:
        reply = exchange.forward()
        whole = reply.length or 0
        if reply.status not in (200, 206) or not has_body(exchange.method, reply) or whole <= length:
            exchange.relay()
            return
        reply.set("Content-Length", str(length))
        exchange.client.send(reply.encode())
        exchange.answered = reply.status
        left = length
        while left:
            data = exchange.upstream.read_some(left)
            exchange.client.send(data)
            left -= len(data)
        exchange.proxy.reconnect(exchange.client)  # away with the rest of the body

    return action


def _flip(at: int, length: int | None) -> Callable[[int, bytes], bytes]:
    """A change to a body of that length."""
    place = at if at >= 0 else (length or 0) + at

    def change(offset: int, data: bytes) -> bytes:
        if not offset <= place < offset + len(data):
            return data
        changed = bytearray(data)
        changed[place - offset] ^= 0xFF
        return bytes(changed)

    return change


def flipped_byte(at: int) -> Action:
    """One byte of the reply's body, counted from its end if negative, has another value."""

    def action(exchange: Exchange) -> None:
        reply = exchange.forward()
        exchange.relay(_flip(at, reply.length))

    return action


def flipped_byte_sent(at: int) -> Action:
    """The same of the request's body."""

    def action(exchange: Exchange) -> None:
        exchange.forward(change=_flip(at, exchange.request.length))
        exchange.relay()

    return action


def whole_for_range(directory: Path) -> Action:
    """A range is answered with 200 and the whole object, which lies under directory by its key."""

    def action(exchange: Exchange) -> None:
        reply = exchange.forward()
        if reply.status != 206:
            exchange.relay()
            return
        exchange.discard()
        body = (directory / exchange.key).read_bytes()
        reply.first = "HTTP/1.1 200 OK"
        reply.remove("content-range")
        reply.set("Content-Length", str(len(body)))
        exchange.answered = 200
        exchange.client.send(reply.encode() + body)

    return action


def overwritten(directory: Path) -> Action:
    """If-None-Match is ignored: the object that is there, under directory by its key, goes first."""

    def action(exchange: Exchange) -> None:
        if exchange.request.get("if-none-match") is not None:
            (directory / exchange.key).unlink(missing_ok=True)
        passed_on(exchange)

    return action


def delayed(before: Callable[[], float] = lambda: 0.0, after: Callable[[], float] = lambda: 0.0) -> Action:
    """Waits so many seconds before the request reaches the store and before the reply comes back."""

    def action(exchange: Exchange) -> None:
        exchange.proxy.sleep(before())
        exchange.forward()
        exchange.proxy.sleep(after())
        exchange.relay()

    return action


def throttled(bytes_per_s: int) -> Action:
    """A line of so many bytes a second, in each direction, which the bodies that are on their way share."""

    def line() -> Callable[[int, bytes], bytes]:
        lock = threading.Lock()

        def change(offset: int, data: bytes) -> bytes:
            with lock:
                time.sleep(len(data) / bytes_per_s)
            return data

        return change

    up, down = line(), line()

    def action(exchange: Exchange) -> None:
        exchange.forward(change=up)
        exchange.relay(change=down)

    return action


def scattered(seed: int, most: float) -> Callable[[], float]:
    """Seconds for delayed(), evenly scattered up to a limit, so that replies overtake each other."""
    rng = random.Random(seed)
    lock = threading.Lock()

    def seconds() -> float:
        with lock:
            return rng.uniform(0, most)

    return seconds


def overtaken(by: int, limit: float = 5.0) -> Action:
    """Holds the reply back until so many later requests were answered, or a time in seconds is over."""

    def action(exchange: Exchange) -> None:
        exchange.forward()
        exchange.proxy.wait_for_later(exchange.number, by, limit)
        exchange.relay()

    return action


# ---- the proxy --------------------------------------------------------------


@dataclass
class Rule:
    """Which requests an action applies to; taken counts them."""

    action: Action
    method: str | None = None
    key: str = ""  # regular expression, searched in the key
    skip: int = 0  # requests of this kind that pass first
    times: float = math.inf
    seen: int = 0
    taken: int = 0

    def takes(self, exchange: Exchange) -> bool:
        if self.method not in (None, exchange.method) or not re.search(self.key, exchange.key):
            return False
        self.seen += 1
        if self.seen <= self.skip or self.taken >= self.times:
            return False
        self.taken += 1
        return True


@dataclass(frozen=True)
class Passed:
    """What is kept of a finished exchange; status: None if the client received no reply."""

    number: int
    method: str
    key: str
    status: int | None


@dataclass
class _Connections:
    client: Wire
    upstream: Wire | None = None


class FaultProxy:
    """Listens on a port of its own of the loopback interface. Ends with stop()."""

    def __init__(self, store: Address, bucket: str) -> None:
        self.store = store
        self.bucket = bucket
        self._passed: list[Passed] = []
        self._open: set[Exchange] = set()
        self._rules: list[Rule] = []
        self._connections: dict[Wire, _Connections] = {}
        self._started = 0
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._silent = False
        self._reserved = reserve_port()  # through outages, too
        self.address: Address = self._reserved.getsockname()[:2]
        self._listener = self._listen()
        self._thread = self._accept_in_thread()

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    @property
    def passed(self) -> list[Passed]:
        """The finished exchanges in the order of their ends, with every one of which a client has the reply."""
        with self._changed:
            ending = [exchange for exchange in self._open if exchange.answered is not None]
            self._changed.wait_for(lambda: self._open.isdisjoint(ending), TIMEOUT_S)
            return list(self._passed)

    def wait_for_clients_to_go(self) -> None:
        """Until no connection is left, and what their clients had sent has reached the store."""

        def gone() -> bool:
            return not self._connections and not select.select([self._listener], [], [], 0)[0]

        with self._changed:
            assert self._changed.wait_for(gone, TIMEOUT_S)

    def add(self, rule: Rule) -> Rule:
        """Rules are asked in their order; the first that takes a request has it."""
        with self._changed:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        with self._changed:
            self._rules.clear()

    def stop(self) -> None:
        self._stopping.set()
        self._cut()
        self._reserved.close()

    @contextmanager
    def outage(self, silent: bool = False) -> Iterator[None]:
        """
        The store cannot be reached: connections break and new ones are refused; silent: they stay, and
        new ones are taken, but nothing is ever answered.
        """
        if silent:
            self._silent = True
            try:
                yield
            finally:
                self._silent = False
                self._reset_all()
            return
        self._cut()
        try:
            yield
        finally:
            self._listener = self._listen()
            self._thread = self._accept_in_thread()

    # ---- what actions use

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self._stopping.wait(seconds)

    def wait_for_later(self, number: int, count: int, limit: float) -> None:
        deadline = time.monotonic() + limit
        with self._changed:
            while sum(done.number > number for done in self._passed) < count and not self._stopping.is_set():
                if (left := deadline - time.monotonic()) <= 0:
                    return
                self._changed.wait(left)

    def upstream_of(self, client: Wire) -> Wire:
        entry = self._connections.get(client)
        if entry is None:
            raise Broken("the proxy has let go of it")
        if entry.upstream is None:
            entry.upstream = Wire(socket.create_connection(self.store, TIMEOUT_S))
        return entry.upstream

    def reconnect(self, client: Wire) -> Wire:
        entry = self._connections.get(client)
        if entry is not None and entry.upstream is not None:
            entry.upstream.close()
            entry.upstream = None
        return self.upstream_of(client)

    # ---- connections

    def _listen(self) -> socket.socket:
        return socket.create_server(self.address, backlog=512)

    def _accept_in_thread(self) -> threading.Thread:
        thread = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        thread.start()
        return thread

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                # Again and again: its number may have become another file's meanwhile.
                if not select.select([listener], [], [], 0.2)[0]:
                    continue
                with self._changed:  # so that none is neither waiting nor known
                    client = Wire(listener.accept()[0])
                    self._connections[client] = _Connections(client)
            except (OSError, ValueError):
                return  # closed by _cut()
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: Wire) -> None:
        try:
            while True:
                request = Head.parse(client.read_head())
                self._exchange(client, request)
        except Ended:
            client.end()
        except (Broken, OSError, ValueError):
            pass
        finally:
            with self._changed:
                entry = self._connections.pop(client, None)
                self._changed.notify_all()
            if entry is not None and entry.upstream is not None:
                entry.upstream.reset()
            client.reset()

    def _exchange(self, client: Wire, request: Head) -> None:
        with self._changed:
            self._started += 1
            exchange = Exchange(self, client, request, self._started)
            self._open.add(exchange)
            rule = next((rule for rule in self._rules if rule.takes(exchange)), None)
        while self._silent and not self._stopping.wait(0.05):
            pass
        try:
            (rule.action if rule else passed_on)(exchange)
        finally:
            with self._changed:
                self._open.remove(exchange)
                self._passed.append(Passed(exchange.number, exchange.method, exchange.key, exchange.answered))
                self._changed.notify_all()

    def _cut(self) -> None:
        """Stops listening and breaks all connections."""
        # Wakes the thread in accept().
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self._reset_all()

    def _reset_all(self) -> None:
        with self._changed:
            entries = list(self._connections.values())
        for entry in entries:
            entry.client.reset()
            if entry.upstream is not None:
                entry.upstream.reset()
