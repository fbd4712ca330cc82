# SPDX-License-Identifier: BSD-3-Clause
"""The write-back log: a flush does not wait for the store, and nothing flushed is lost or comes back too late."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from device import ServeS3
from fault_proxy import FaultProxy, Rule, passed_on, throttled
from nbdkit_server import Handle, NbdError, nbd
from stamps import BLOCK, numbers, stamped
from tool import Tool, ask
from waiting import stop

MIB = 1 << 20
RUN = 21
BLOCKS = 256


def write(handle: Handle, number: int, blocks: range = range(BLOCKS)) -> None:
    for block in blocks:
        handle.pwrite(stamped(RUN, block, number), block * BLOCK)


def found(handle: Handle) -> list[int]:
    return numbers(handle.pread(BLOCKS * BLOCK, 0), RUN, 0)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "write-back"


@pytest.mark.parametrize("features", ["", "zstd aes"])
def test_what_was_flushed_while_the_store_is_away_survives(
    serve_s3: ServeS3, proxy: FaultProxy, log: Path, features: str
) -> None:
    more = {"features": features, "write_back": str(log)}
    server = serve_s3("v", through=proxy, write_back_size="16M", **more)
    handle = server.connect()
    write(handle, 1)
    handle.flush()
    with proxy.outage(silent=True):
        for number in range(2, 6):
            write(handle, number, range(0, BLOCKS, number))
            handle.flush()
        handle.pwrite(stamped(RUN, 1, 6), BLOCK, nbd.CMD_FLAG_FUA)
        handle.trim(BLOCK, 7 * BLOCK, nbd.CMD_FLAG_FUA)
        expected = found(handle)
        handle.pwrite(stamped(RUN, 2, 7), 2 * BLOCK)  # not flushed
        server.kill()
    # A reader does not see it.
    assert found(serve_s3("v", features=features, readonly="on").connect())[1] in (0, 1)
    server = serve_s3("v", **more)
    assert found(server.connect()) == expected
    server.stop()
    assert server.counters()["write_back_replayed"] > 0
    # It was closed: no log is needed, and there is nothing in it.
    server = serve_s3("v", features=features)
    assert found(server.connect()) == expected
    server.stop()
    server = serve_s3("v", **more)
    assert found(server.connect()) == expected
    server.stop()
    assert server.counters()["write_back_replayed"] == 0


def test_a_replay_over_a_slow_line(serve_s3: ServeS3, proxy: FaultProxy, log: Path) -> None:
    """Its objects share a line that needs longer for them than the store may take to answer."""
    more = {"write_back": str(log), "batch_size": "16M", "uploads": "2", "retry_deadline": "2"}
    server = serve_s3("v", through=proxy, write_back_size="80M", **more)
    handle = server.connect()
    with proxy.outage(silent=True):
        for mib in range(48):
            handle.pwrite(bytes([mib + 1]) * MIB, mib * MIB)
            if mib % 8 == 7:
                handle.flush()
        server.kill()
    line = proxy.add(Rule(throttled(8 * MIB), "PUT", key="/log/"))
    handle = serve_s3("v", through=proxy, **more).connect()
    assert line.taken >= 4  # the fence, too
    for mib in range(48):
        assert handle.pread(MIB, mib * MIB) == bytes([mib + 1]) * MIB


def test_small_flushes_are_not_an_object_each(serve_s3: ServeS3, log: Path) -> None:
    server = serve_s3("v", write_back=str(log), write_back_size="16M")
    handle = server.connect()
    for number in range(1, 201):
        handle.pwrite(stamped(RUN, number % BLOCKS, number), number % BLOCKS * BLOCK, nbd.CMD_FLAG_FUA)
    server.stop()
    assert server.counters()["write_back_syncs"] == 200
    assert len(serve_s3.objects("v", "log/")) < 50


def test_writes_wait_for_a_store_that_is_away_for_long(serve_s3: ServeS3, proxy: FaultProxy, log: Path) -> None:
    """The log is full, or memory is: the writes wait, and go on."""
    small = {"batch_size": "1M", "uploads": "1", "memory": "8M", "write_back_size": "8M"}
    server = serve_s3("v", through=proxy, write_back=str(log), **small)
    handle = server.connect()
    with proxy.outage(silent=True):
        for number in range(1, 9):
            data = b"".join(stamped(RUN, block, number) for block in range(BLOCKS))
            handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), 0)
        flush = handle.aio_flush()
        for _ in range(20):
            handle.poll(100)
        assert handle.aio_in_flight() > 0
    while handle.aio_in_flight():
        assert handle.poll(300_000) > 0
    assert handle.aio_command_completed(flush)
    handle.flush()
    server.kill()
    assert set(found(serve_s3("v", write_back=str(log)).connect())) <= set(range(1, 9))


def test_a_second_writer_needs_the_log_or_gives_it_up(serve_s3: ServeS3, log: Path) -> None:
    first = serve_s3("v", write_back=str(log), write_back_size="16M")
    a = first.connect()
    write(a, 1)
    a.flush()
    stop(first.pid)
    try:
        before = serve_s3.objects("v")
        with pytest.raises(AssertionError, match="had a write-back log, which is not given"):
            serve_s3("v")
        with pytest.raises(AssertionError, match="in use by another server"):
            serve_s3("v", write_back=str(log))
        assert serve_s3.objects("v").keys() == before.keys()
        second = serve_s3("v", write_back_discard="on")
        b = second.connect()
        assert "held are lost" in second.output()
        write(b, 2)
        b.flush()
    finally:
        os.kill(first.pid, signal.SIGCONT)
    with pytest.raises(NbdError):
        for number in range(3, 10_000):  # into its own log, until an upload shows it what has happened
            write(a, number, range(8))
            a.flush()
    first.kill()
    second.kill()
    with pytest.raises(AssertionError, match="is older than what volume=v holds"):
        serve_s3("v", write_back=str(log))
    assert found(serve_s3("v").connect()) == [2] * BLOCKS


def test_snapshots_and_garbage_with_a_log(serve_s3: ServeS3, log: Path) -> None:
    more = {"write_back": str(log), "write_back_size": "16M", "batch_size": "1M", "gc_delay": "0", "checkpoint": "4"}
    driver = serve_s3.drive("v", **more)
    for number in range(1, 30):
        for block in range(number % 3, BLOCKS, 3):
            driver.pwrite(stamped(RUN, block, number), block * BLOCK)
        driver("flush")
        if number == 15:
            driver("create", "s")
            middle = driver.pread(BLOCKS * BLOCK, 0)
    driver("gc")
    expected = driver.pread(BLOCKS * BLOCK, 0)
    driver("trim", 0, BLOCK)
    driver("flush")
    driver.kill()
    driver = serve_s3.drive("v", **more)
    assert driver.pread(BLOCKS * BLOCK, 0) == bytes(BLOCK) + expected[BLOCK:]
    driver("rollback", "s")
    driver.kill()
    driver = serve_s3.drive("v", **more)
    assert driver.pread(BLOCKS * BLOCK, 0) == middle
    driver.stop()


def test_what_is_told(serve_s3: ServeS3, proxy: FaultProxy, log: Path, tmp_path: Path) -> None:
    control, tool = tmp_path / "control", Tool(serve_s3)
    server = serve_s3("v", write_back=str(log), write_back_size="16M", control=str(control))
    handle = server.connect()
    write(handle, 1, range(4))
    handle.flush()
    reported = dict(line.split(" ", 1) for line in ask(control, b"userblk-s3 1 stats\n") if " " in line)
    assert int(reported["write_back_syncs"]) == 1 and int(reported["write_back_used_bytes"]) > 0
    assert reported["write_back_failed"] == "0"
    assert tool("info")["write_back"] is True
    server.kill()
    # The tool replays it as a server does; without it, it changes nothing.
    assert "write-back log" in tool.refused("gc", "--take-over")
    tool("gc", "--take-over", write_back=str(log), gc_delay="0")
    info = tool("info")
    assert info["write_back"] is False and info["was_closed"] is True
    assert found(serve_s3("v").connect())[:4] == [1] * 4


def test_without_a_log_the_open_alone_rewrites(serve_s3: ServeS3, proxy: FaultProxy) -> None:
    serve_s3("v").stop()
    seen = proxy.add(Rule(passed_on, method="PUT", key="/super$"))
    server = serve_s3("v", through=proxy)
    assert seen.taken == 1
    write(server.connect(), 1)
    server.stop()
    assert seen.taken == 1
