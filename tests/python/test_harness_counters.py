# SPDX-License-Identifier: BSD-3-Clause
"""Counters of real processes, against what they are known to have done."""

from __future__ import annotations

import math
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from userblk.harness.observing.counters import Counters, Events, Taskstats
from userblk.harness.observing.netlink import Family, attribute
from waiting import stop, wait_until

# Two threads; each line of input makes the main one call getppid() that often, and answer.
SERVER = """
import os, sys, threading, time
threading.Thread(target=lambda: [time.sleep(0.002) for _ in iter(int, 1)], daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        os.getppid()
    print("done", flush=True)
"""


@contextmanager
def server() -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def call(process: subprocess.Popen[str], times: int) -> None:
    assert process.stdin and process.stdout
    process.stdin.write(f"{times}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def switches_of_threads(pid: int) -> int:
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            if "ctxt_switches" in line:
                total += int(line.split()[1])
    return total


@pytest.fixture
def taskstats() -> Iterator[Taskstats]:
    try:
        stats = Taskstats()
    except OSError as error:
        pytest.skip(f"kernel: no taskstats for us: {error}")
    yield stats
    stats.close()


def test_switches_of_all_threads(taskstats: Taskstats) -> None:
    with server() as process:
        wait_until("the threads switch", lambda: switches_of_threads(process.pid) > 20)
        stop(process.pid)  # it stands still while it is compared
        wait_until("both agree", lambda: taskstats.switches(process.pid) == switches_of_threads(process.pid))


def test_a_process_that_is_gone(taskstats: Taskstats) -> None:
    with server() as process:
        pass
    with pytest.raises(OSError):
        taskstats.switches(process.pid)
    counters = Counters(process.pid, events=True)
    assert all(math.isnan(value) or value == 0 for value in counters.read())
    counters.close()


def test_syscalls_are_counted() -> None:
    with server() as process:
        events = Events(process.pid)
        try:
            if math.isnan(events.read("syscalls")):
                pytest.skip("kernel: syscalls cannot be counted (no tracefs mounted, or no tracepoint)")
            before = events.read("syscalls")
            call(process, 1000)
            few = events.read("syscalls") - before
            call(process, 11000)
            many = events.read("syscalls") - before - few
        finally:
            events.close()
    assert 1000 <= few < 5000 and many - few == pytest.approx(10000, rel=0.3)


def test_without_events_only_what_costs_nothing_is_read() -> None:
    counters = Counters(os.getpid(), events=False)
    values = counters.read()
    counters.close()
    assert len(values) == 3 and all(math.isnan(value) for value in values[1:])


def test_an_answer_that_comes_late_is_not_that_of_the_next_question() -> None:
    ours, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    family = Family.__new__(Family)
    family._socket, family._number, family._asked = ours, 30, 0
    ours.settimeout(0.1)

    def answer(question: bytes, value: bytes) -> None:
        (number,) = struct.unpack_from("=I", question, 8)
        body = bytes(4) + attribute(1, value)
        kernel.send(struct.pack("=IHHII", 16 + len(body), 30, 0, number, 0) + body)
        kernel.send(struct.pack("=IHHIIi", 20, 2, 0, number, 0, 0))  # the end

    with ours, kernel:
        with pytest.raises(TimeoutError):
            family.ask(1, b"")
        late = kernel.recv(100)
        answer(late, b"late")
        thread = threading.Thread(target=lambda: answer(kernel.recv(100), b"new!"))
        thread.start()
        assert family.ask(1, b"") == {1: b"new!"}
        thread.join()
