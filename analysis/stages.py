# SPDX-License-Identifier: BSD-3-Clause
"""The life of a request: from trace points, when it passed which border between application, kernel and server."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from userblk.harness.observing.instructions import Sides, application_pids
from userblk.harness.observing.perf_script import Record

# The borders, in the order in which a request comes by.
SUBMITTED, ISSUED, SEEN, ASKED, DONE, ANSWERED, RUNS = range(7)
STAGES = {
    (SUBMITTED, ISSUED): "system call to the framework's request",
    (SUBMITTED, ASKED): "system call to the device's request",
    (ISSUED, SEEN): "request to its server",
    (ISSUED, ASKED): "request to the device's request",
    (ISSUED, ANSWERED): "request to its answer",
    (SEEN, ASKED): "server to the device's request",
    (ASKED, DONE): "device",
    (DONE, ANSWERED): "device's answer to the framework's",
    (SEEN, ANSWERED): "server to its answer",
    (DONE, RUNS): "device's answer to the application",
    (ANSWERED, RUNS): "answer to the application",
}

ISSUE = re.compile(r"(\d+,\d+) (\w+) \d+ \([^)]*\) (\d+) \+ (\d+)")
COMPLETE = re.compile(r"(\d+,\d+) (\w+) \([^)]*\) (\d+) \+ (\d+)")
SEND = re.compile(r"connection (\d+) req (\d+) opcode (\d+)")
END = re.compile(r"connection (\d+) req (\d+)")
FUSE_DATA = {15, 16}  # READ, WRITE: the opcodes of requests that move data
FUSE_NAMES = {8, 9, 10, 11, 12, 13, 35, 45}  # MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK, CREATE, RENAME2
FUSE_UNANSWERED = {2, 36, 41, 42}  # FORGET, INTERRUPT, NOTIFY_REPLY, BATCH_FORGET
UNNUMBERED = "0"  # requests as Linux 6.12 sends them: it numbers them after its trace point


@dataclass
class Request:
    """times: of the borders that were seen, by border. tid: of the thread that issued it. names: changes them only."""

    tid: int
    sector: int
    sectors: int
    times: dict[int, float] = field(default_factory=dict)
    answered: bool = False
    names: bool = False


@dataclass(frozen=True)
class Life:
    """The life of one system's requests. stages: mean time of each in us, in order; total: their sum.

    requests: that were followed from end to end; left_out: of which a border was not seen. switches, calls: thread
    switches, and system calls of the server, for each of them.
    """

    system: str
    requests: int
    left_out: int
    stages: tuple[tuple[str, float], ...]
    total: float
    switches: float
    calls: float


class Follower:
    """Takes trace points in the order of time, and keeps each request's borders."""

    def __init__(self, sides: Sides, applications: frozenset[int], begin: float, end: float) -> None:
        self._sides = sides
        self._applications = applications
        self._begin, self._end = begin, end
        self._called: dict[int, float] = {}  # when a thread of the application made the system call that it is in
        self._open: list[Request] = []
        self._below: dict[int, Request] = {}  # by the first sector of the device's request
        self._sent: dict[tuple[str, str], Request] = {}  # to a FUSE server
        self._unnumbered: dict[str, deque[Request | None]] = {}  # by connection, oldest first; None: not followed
        self._at = 0.0
        self._then: set[tuple[int, str, str]] = set()
        self.whole: list[Request] = []
        self.switches = self.calls = 0

    def _twice(self, record: Record) -> bool:
        """Is it there already? perf writes some of what it recorded twice."""
        if record.time != self._at:
            self._at = record.time
            self._then.clear()
        event = (record.tid, record.event, record.text)
        if event in self._then:
            return True
        self._then.add(event)
        return False

    def take(self, record: Record) -> None:
        if self._twice(record):
            return
        if record.event == "raw_syscalls:sys_enter":
            if record.pid in self._applications:
                self._called[record.tid] = record.time
            elif record.pid == self._sides.server and self._counts(record):
                self.calls += 1
        elif record.event == "raw_syscalls:sys_exit":
            if record.pid in self._applications:
                self._returned(record)
            elif record.pid == self._sides.server:
                self._seen(record)
        elif record.event == "block:block_rq_issue":
            self._issue(record)
        elif record.event == "block:block_rq_complete":
            self._complete(record)
        elif record.event == "fuse:fuse_request_send":
            self._send(record)
        elif record.event == "fuse:fuse_request_end":
            if (match := END.search(record.text)) and (request := self._sent_before(match[1], match[2])):
                self._answer(request, record.time)
        elif record.event == "sched:sched_switch" and self._counts(record):
            self.switches += 1

    def _send(self, record: Record) -> None:
        match = SEND.search(record.text)
        if not match or int(match[3]) in FUSE_UNANSWERED:
            return
        request = self._start(record, ISSUED, 0, 0) if int(match[3]) in FUSE_DATA | FUSE_NAMES else None
        if request:
            request.names = int(match[3]) in FUSE_NAMES
        if match[2] == UNNUMBERED:
            self._unnumbered.setdefault(match[1], deque()).append(request)
        elif request:
            self._sent[match[1], match[2]] = request

    def _sent_before(self, connection: str, number: str) -> Request | None:
        """The request that is answered; of those without a number the oldest, which one thread waits for."""
        if waiting := self._unnumbered.get(connection):
            return waiting.popleft()
        return self._sent.pop((connection, number), None)

    def _counts(self, record: Record) -> bool:
        return self._begin <= record.time < self._end

    def _start(self, record: Record, border: int, sector: int, sectors: int) -> Request:
        request = Request(record.tid, sector, sectors, {border: record.time})
        if record.tid in self._called:
            request.times[SUBMITTED] = self._called[record.tid]
        self._open.append(request)
        return request

    def _seen(self, record: Record) -> None:
        """The server comes back from a system call: it has what was issued before."""
        for request in self._open:
            if ISSUED in request.times:
                request.times.setdefault(SEEN, record.time)

    def _issue(self, record: Record) -> None:
        match = ISSUE.search(record.text)
        if not match:
            return
        device, sector, sectors = match[1], int(match[3]), int(match[4])
        if device == self._sides.device:
            self._start(record, ISSUED, sector, sectors)
        elif device == self._sides.backing:
            if not self._sides.server and not self._sides.device:
                self._below[sector] = self._start(record, ASKED, sector, sectors)
                return
            for request in self._open:
                inside = not request.sectors or request.sector <= sector < request.sector + request.sectors
                there = SEEN in request.times or not self._sides.server
                if there and inside and ISSUED in request.times and ASKED not in request.times:
                    request.times[ASKED] = record.time
                    self._below[sector] = request
                    return

    def _complete(self, record: Record) -> None:
        match = COMPLETE.search(record.text)
        if not match:
            return
        device, sector = match[1], int(match[3])
        if device == self._sides.backing and (below := self._below.pop(sector, None)):
            below.times[DONE] = record.time
            if ISSUED not in below.times:
                self._ended(below)
        elif device == self._sides.device:
            for request in self._open:
                if request.sector == sector and not request.answered:
                    self._answer(request, record.time)
                    return

    def _answer(self, request: Request, time: float) -> None:
        request.times[ANSWERED] = time
        self._ended(request)

    def _ended(self, request: Request) -> None:
        request.answered = True
        if SUBMITTED not in request.times:  # no system call waits for it
            self._open.remove(request)

    def _returned(self, record: Record) -> None:
        """The application's system call is over: with it the requests that it waited for."""
        self._called.pop(record.tid, None)
        for request in [one for one in self._open if one.tid == record.tid and one.answered]:
            self._open.remove(request)
            if self._counts(record):
                request.times[RUNS] = record.time
                self.whole.append(request)


def life(system: str, records: Sequence[Record], sides: Sides, window: tuple[float, float]) -> Life:
    """
    The requests are those that ended in the window of time; of a workload that moves no data through FUSE, those that
    change names. Those that pass the most common borders are shown; the others are counted.
    """
    follower = Follower(sides, application_pids(records, sides), *window)
    for record in records:
        follower.take(record)
    whole = [request for request in follower.whole if not request.names] or follower.whole
    kinds: dict[tuple[int, ...], list[Request]] = {}
    for request in whole:
        if SUBMITTED in request.times:
            kinds.setdefault(tuple(sorted(request.times)), []).append(request)
    requests: list[Request] = max(kinds.values(), key=len, default=[])
    borders = tuple(sorted(requests[0].times)) if requests else ()
    stages = tuple(
        (STAGES[a, b], 1e6 * fmean(one.times[b] - one.times[a] for one in requests))
        for a, b in zip(borders, borders[1:], strict=False)
    )
    count = len(whole)
    return Life(
        system,
        len(requests),
        count - len(requests),
        stages,
        sum(time for _, time in stages),
        follower.switches / count if count else 0.0,
        follower.calls / count if count else 0.0,
    )
