# SPDX-License-Identifier: BSD-3-Clause
"""The S3 device over a store that misbehaves: no wrong data, no lost flush, and it goes on afterwards."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from device import ServeS3
from fault_proxy import (
    Action,
    FaultProxy,
    Rule,
    delayed,
    done_but_refused,
    done_but_reset,
    ended_in_reply,
    flipped_byte,
    overtaken,
    overwritten,
    refused,
    reset_in_reply,
    reset_in_request,
    scattered,
    shortened_reply,
    whole_for_range,
)
from nbdkit_server import Handle, NbdError, Nbdkit
from servers import Versitygw
from stamps import BLOCK, number_of, stamped

MIB = 1 << 20
BLOCKS = 1024  # that the tests write: 4 MiB
RUN = 7
OUTAGE_S = float(os.environ.get("USERBLK_S3_OUTAGE", "20"))


def write_all(handle: Handle, number: int, flushes: int = 8) -> None:
    """Every block in a random order, 64 KiB a request, and a flush now and then."""
    order = list(range(0, BLOCKS, 16))
    random.Random(number).shuffle(order)
    for i, first in enumerate(order):
        handle.pwrite(b"".join(stamped(RUN, b, number) for b in range(first, first + 16)), first * BLOCK)
        if i % (len(order) // flushes) == 0:
            handle.flush()
    handle.flush()


def check_all(handle: Handle, number: int) -> None:
    step = 16
    for first in range(0, BLOCKS, step):
        data = handle.pread(step * BLOCK, first * BLOCK)
        for i in range(step):
            assert number_of(bytes(data[i * BLOCK : (i + 1) * BLOCK]), RUN, first + i) == number


def resident_bytes(server: Nbdkit) -> int:
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_background(work: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    failed: list[BaseException] = []

    def body() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failed.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    return thread, failed


PUT_FAULTS: dict[str, tuple[Action, int]] = {  # and how many requests in a row
    "503 burst": (refused(503, "SlowDown"), 6),
    "500 once": (refused(500, "InternalError"), 1),
    "429": (refused(429, "TooManyRequests"), 2),
    "500 after it was done": (done_but_refused(500, "InternalError"), 2),
    "reset after it was done": (done_but_reset, 2),
    "reset in the body": (reset_in_request(100_000), 2),
    "overtaken replies": (overtaken(by=3), 5),
}


@pytest.mark.parametrize("name", PUT_FAULTS)
def test_writes(serve_s3: ServeS3, proxy: FaultProxy, name: str) -> None:
    action, times = PUT_FAULTS[name]
    server = serve_s3("v", through=proxy, batch_size="1M")
    handle = server.connect()
    write_all(handle, 1)
    rule = proxy.add(Rule(action, method="PUT", key="/log/", skip=2, times=times))
    write_all(handle, 2)
    assert rule.taken == times
    check_all(handle, 2)
    server.kill()
    check_all(serve_s3("v").connect(), 2)


READ_FAULTS: dict[str, tuple[Action, int]] = {
    "503": (refused(503, "SlowDown"), 3),
    "500": (refused(500, "InternalError"), 3),
    "reset in the body": (reset_in_reply(10_000), 3),
    "ended in the body": (ended_in_reply(10_000), 3),
    "short but well formed": (shortened_reply(10_000), 3),
    # Read once more; what is then still wrong is wrong in the store.
    "first byte flipped": (flipped_byte(0), 1),
    "last byte flipped": (flipped_byte(-1), 1),
    "late": (delayed(after=lambda: 0.3), 3),
}


@pytest.mark.parametrize("name", [*READ_FAULTS, "whole object for a range"])
def test_reads(serve_s3: ServeS3, proxy: FaultProxy, store: Versitygw, name: str) -> None:
    action, times = READ_FAULTS.get(name) or (whole_for_range(store.objects), 3)
    server = serve_s3("v", batch_size="1M")
    write_all(server.connect(), 1)
    server.stop()
    server = serve_s3("v", through=proxy)
    handle = server.connect()
    rule = proxy.add(Rule(action, method="GET", key="/(log|gc)/", skip=1, times=times))
    check_all(handle, 1)
    assert rule.taken == times
    proxy.clear()
    check_all(handle, 1)


def test_lasting_corruption_is_an_error_and_never_data(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    server = serve_s3("v", batch_size="1M")
    write_all(server.connect(), 1)
    server.stop()
    handle = serve_s3("v", through=proxy).connect()
    proxy.add(Rule(flipped_byte(-1), method="GET", key="/(log|gc)/"))
    wrong = 0
    for first in range(0, BLOCKS, 256):
        try:
            data = handle.pread(BLOCK, first * BLOCK)
        except NbdError as error:
            assert "Input/output" in str(error)
            wrong += 1
        else:
            assert number_of(bytes(data), RUN, first) == 1
    assert wrong
    proxy.clear()
    check_all(handle, 1)


def test_replies_out_of_order(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    rule = proxy.add(Rule(delayed(after=scattered(1, 0.2)), method="PUT", key="/log/"))
    server = serve_s3("v", through=proxy, batch_size="1M")
    handle = server.connect()
    for number in (1, 2):
        write_all(handle, number)
        check_all(handle, number)
    assert rule.taken > 8
    server.kill()
    check_all(serve_s3("v").connect(), 2)


def test_everything_at_once(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    """Every few requests something else goes wrong, in writes, then in reads of what is only in the store."""
    rules = [
        proxy.add(Rule(action, method="PUT", key="/log/", skip=3 * i, times=2))
        for i, (name, (action, _)) in enumerate(PUT_FAULTS.items())
        if name != "overtaken replies"
    ]
    server = serve_s3("v", through=proxy, batch_size="1M")
    handle = server.connect()
    for number in range(1, 5):
        write_all(handle, number)
        check_all(handle, number)
    server.kill()
    proxy.clear()
    handle = serve_s3("v", through=proxy).connect()
    rules += [
        proxy.add(Rule(action, method="GET", key="/log/", skip=i, times=times))
        for i, (action, times) in enumerate(READ_FAULTS.values())
    ]
    check_all(handle, 4)
    assert [rule.taken for rule in rules] == [rule.times for rule in rules]
    proxy.clear()
    check_all(serve_s3("v").connect(), 4)


def write_twice(handle: Handle) -> None:
    write_all(handle, 2)
    write_all(handle, 3)


def flood(server: Nbdkit, writers: int = 4) -> tuple[list[int], list[tuple[threading.Thread, list[BaseException]]]]:
    """Writes 56 MiB behind what other tests look at, without a flush. Returns bytes written, and threads."""
    taken = [0] * writers
    data = random.Random(0).randbytes(64 << 10)

    def write(writer: int, handle: Handle) -> None:
        for offset in range(8 * MIB + writer * len(data), 64 * MIB, writers * len(data)):
            handle.pwrite(data, offset)
            taken[writer] += len(data)

    return taken, [in_background(partial(write, writer, server.connect())) for writer in range(writers)]


@pytest.mark.timeout(OUTAGE_S + 900)
@pytest.mark.parametrize("silent", [False, True], ids=["refused", "silent"])
def test_outage(serve_s3: ServeS3, proxy: FaultProxy, silent: bool) -> None:
    """Writes wait, in bounded memory, reads of what is in memory go on; then all goes on."""
    server = serve_s3("v", through=proxy, batch_size="1M", uploads="2", memory="16M", timeout="3")
    handle = server.connect()
    write_all(handle, 1)
    before = resident_bytes(server)
    with proxy.outage(silent):
        began = time.monotonic()
        thread, failed = in_background(lambda: write_twice(handle))
        taken, floods = flood(server)
        highest = 0
        while time.monotonic() - began < OUTAGE_S:
            highest = max(highest, resident_bytes(server))
            time.sleep(0.2)
        assert thread.is_alive(), f"a flush was answered in an outage: {failed}"
        # As much as there are batches: two under way, one that is sealed and one that is filled.
        assert 2 * MIB < sum(taken) <= 4 * MIB
    # The attempts before have had their share of it.
    assert highest - before < 12 * MIB
    for writer, errors in (thread, failed), *floods:
        writer.join(300)
        assert not writer.is_alive() and not errors, errors
    assert sum(taken) == 56 * MIB
    check_all(handle, 3)
    server.kill()
    check_all(serve_s3("v").connect(), 3)


def test_deadline_makes_an_outage_an_error(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    server = serve_s3("v", batch_size="1M")
    write_all(server.connect(), 1)
    server.stop()
    server = serve_s3("v", through=proxy, retry_deadline="5")
    handle = server.connect()
    with proxy.outage():
        handle.pwrite(stamped(RUN, 0, 2), 0)
        with pytest.raises(NbdError, match="Input/output"):
            handle.flush()
    # A failed flush never succeeds later: what it was for may be lost.
    with pytest.raises(NbdError):
        handle.flush()
    server.kill()
    handle = serve_s3("v").connect()
    assert number_of(bytes(handle.pread(BLOCK, 0)), RUN, 0) in (1, 2)
    assert number_of(bytes(handle.pread(BLOCK, BLOCK)), RUN, 1) == 1


def test_store_that_ignores_conditions_is_refused(serve_s3: ServeS3, proxy: FaultProxy, store: Versitygw) -> None:
    proxy.add(Rule(overwritten(store.objects), method="PUT"))
    with pytest.raises(AssertionError, match="fencing=none"):
        serve_s3("v", through=proxy)
    assert not serve_s3.objects("v"), "it left something behind"
    server = serve_s3("v", through=proxy, fencing="none")
    handle = server.connect()
    write_all(handle, 1)
    check_all(handle, 1)
    server.stop()


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (403, "AccessDenied", "(?i)access|denied|permission"),
        (403, "SignatureDoesNotMatch", "(?i)secret|signature|credentials"),
        (403, "InvalidAccessKeyId", "(?i)access-key|access key|credentials"),
        (403, "RequestTimeTooSkewed", "(?i)clock|time"),
        (400, "ExpiredToken", "(?i)expired"),
        (404, "NoSuchBucket", "(?i)bucket"),
    ],
)
def test_refusal_at_open_is_one_clear_line(
    serve_s3: ServeS3, proxy: FaultProxy, status: int, code: str, says: str
) -> None:
    proxy.add(Rule(refused(status, code)))
    with pytest.raises(AssertionError, match=says) as error:
        serve_s3("v", through=proxy)
    lines = [line for line in str(error.value).splitlines() if "nbdkit" in line]
    assert len(lines) == 1, lines
    assert not serve_s3.objects("v")


def test_403_while_it_runs(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    """Credentials that expire: an error, no corruption, no false promise."""
    server = serve_s3("v", through=proxy, batch_size="1M")
    handle = server.connect()
    write_all(handle, 1)
    proxy.add(Rule(refused(403, "AccessDenied")))
    handle.pwrite(stamped(RUN, 0, 2), 0)
    with pytest.raises(NbdError):
        handle.flush()
    server.kill()
    handle = serve_s3("v").connect()
    assert number_of(bytes(handle.pread(BLOCK, 0)), RUN, 0) in (1, 2)
    assert number_of(bytes(handle.pread(BLOCK, 9 * BLOCK)), RUN, 9) == 1


def test_errors_at_open_are_never_taken_for_a_gap(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    """The log ends at a 404 only: opened through errors it holds all of it."""
    server = serve_s3("v", batch_size="1M")
    write_all(server.connect(), 1, flushes=16)
    server.kill()
    rules = [
        proxy.add(Rule(action, method="GET", key="/log/", skip=2 * i + 1, times=3))
        for i, action in enumerate((refused(503, "SlowDown"), refused(500, "InternalError"), reset_in_reply(100)))
    ]
    server = serve_s3("v", through=proxy)
    assert [rule.taken for rule in rules] == [3, 3, 3]
    proxy.clear()
    check_all(server.connect(), 1)
    server.kill()
    check_all(serve_s3("v").connect(), 1)
