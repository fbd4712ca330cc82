# SPDX-License-Identifier: BSD-3-Clause
"""
Two writers of one volume: the second takes over, the first acknowledges nothing more. And one after the other: the
second does not go on with the clients of one that lost what it had acknowledged to them.
"""

from __future__ import annotations

import os
import signal
import threading
from functools import partial

import pytest
from device import ServeS3
from fault_proxy import FaultProxy, Rule, delayed, refused
from nbdkit_server import NbdError, nbd
from stamps import BLOCK, number_of, stamped
from waiting import stop, wait_until

RUN = 9
pytestmark = pytest.mark.fencing


def holds(data: bytes | bytearray, block: int) -> int:
    return number_of(bytes(data), RUN, block)


def test_paused_writer_is_fenced(serve_s3: ServeS3) -> None:
    first = serve_s3("v", batch_size="1M")
    a = first.connect()
    for block in range(64):
        a.pwrite(stamped(RUN, block, 1), block * BLOCK)
    a.flush()
    a.pwrite(stamped(RUN, 0, 2), 0)  # acknowledged, not flushed: may be lost
    stop(first.pid)
    try:
        second = serve_s3("v", batch_size="1M")
        b = second.connect()
        assert holds(b.pread(BLOCK, 0), 0) in (1, 2)
        for block in range(64):
            b.pwrite(stamped(RUN, block, 3), block * BLOCK)
        b.flush()
    finally:
        os.kill(first.pid, signal.SIGCONT)
    with pytest.raises(NbdError):
        a.flush()
    with pytest.raises(NbdError):
        a.pwrite(stamped(RUN, 1, 4), BLOCK, nbd.CMD_FLAG_FUA)
    with pytest.raises(NbdError):
        a.pread(BLOCK, BLOCK)
    for block in range(64):
        assert holds(b.pread(BLOCK, block * BLOCK), block) == 3
    b.pwrite(stamped(RUN, 5, 6), 5 * BLOCK)
    b.flush()
    first.stop(1)
    assert "took over" in first.output() or "writer" in first.output()
    second.kill()
    third = serve_s3("v").connect()
    for block in range(64):
        assert holds(third.pread(BLOCK, block * BLOCK), block) == (6 if block == 5 else 3)


def test_first_writer_with_writes_in_flight(serve_s3: ServeS3) -> None:
    """Whichever of A's writes are in the log when B opens it: B's state stays what B saw."""
    first = serve_s3("v", batch_size="1M")
    a = first.connect()
    handles = []
    for number in range(1, 400):
        block = number % 256
        data = bytearray(stamped(RUN, block, number))
        handles.append(a.aio_pwrite(nbd.Buffer.from_bytearray(data), block * BLOCK))
    second = serve_s3("v", batch_size="1M")
    b = second.connect()
    seen = bytes(b.pread(256 * BLOCK, 0))
    with pytest.raises(NbdError):
        a.flush()
    assert b.pread(256 * BLOCK, 0) == seen
    b.flush()
    second.kill()
    assert serve_s3("v").connect().pread(256 * BLOCK, 0) == seen


def test_many_writers_in_turn(serve_s3: ServeS3) -> None:
    """Each opens while the one before it runs, and finds what that one flushed."""
    before = None
    for number in range(1, 9):
        server = serve_s3("v")
        handle = server.connect()
        if number > 1:
            assert holds(handle.pread(BLOCK, 0), 0) == number - 1
        handle.pwrite(stamped(RUN, 0, number), 0)
        handle.flush()
        if before is not None:
            with pytest.raises(NbdError):
                before.pwrite(stamped(RUN, 0, 99), 0, nbd.CMD_FLAG_FUA)
        before = handle


def test_room_in_place_of_a_stale_object_is_not_taken_from_the_next_writer(
    serve_s3: ServeS3, proxy: FaultProxy
) -> None:
    """
    What a fenced writer left behind stands where B's next object and C's fence belong. B makes
    room for itself so slowly that C takes over meanwhile: B must acknowledge nothing.
    """
    first = serve_s3("v", through=proxy)
    a = first.connect()
    a.pwrite(stamped(RUN, 0, 1), 0)
    a.flush()
    # The third object of the log never gets there, the fourth does.
    stale = f"log/04/{4:016x}"
    never = proxy.add(Rule(refused(503, "SlowDown"), method="PUT", key=f"/{3:016x}$"))

    def sent(number: int) -> bool:
        a.poll(0)
        return bool(never.taken) if number == 2 else stale in serve_s3.objects("v", "log/")

    for number in (2, 3):
        a.pwrite(stamped(RUN, 0, number), 0)
        a.aio_flush()
        wait_until(f"write {number} is uploaded", partial(sent, number))
    first.kill()
    proxy.clear()

    second = serve_s3("v", through=proxy, timeout="300")
    b = second.connect()
    assert holds(b.pread(BLOCK, 0), 0) == 1
    released = threading.Event()
    slow = delayed(before=lambda: float(not released.wait(100)))
    # B's first PUT shows it that something is there.
    held = [
        proxy.add(Rule(slow, method=method, key=f"/{stale}$", skip=skip, times=1))
        for method, skip in (("DELETE", 0), ("PUT", 1))
    ]
    b.pwrite(stamped(RUN, 0, 20), 0)
    flush = b.aio_flush()
    while not any(rule.taken for rule in held):
        b.poll(100)
        assert not b.aio_command_completed(flush)
    c = serve_s3("v").connect()
    c.pwrite(stamped(RUN, 0, 30), 0)
    c.flush()
    released.set()
    with pytest.raises(NbdError):
        while not b.aio_command_completed(flush):
            b.poll(-1)
    c.flush()
    assert holds(c.pread(BLOCK, 0), 0) == 30


REMAIN = "its clients are still connected .*remove the disk"
UNCLOSED = f"volume=v: its last server did not close it, and {REMAIN}"


def test_clients_of_a_killed_server_are_refused(serve_s3: ServeS3) -> None:
    """Clients that rely on lost writes are not served, and nothing is changed; all others are served."""
    first = serve_s3.drive("v")
    session = first.session()
    first.pwrite(stamped(RUN, 0, 1), 0)
    first("flush")
    first.pwrite(stamped(RUN, 0, 2), 0)
    first.kill()
    before = serve_s3.objects("v")
    for _ in range(2):
        with pytest.raises(AssertionError, match=UNCLOSED):
            serve_s3.drive("v", clients_of=session)
    assert serve_s3.objects("v") == before
    reader = serve_s3.drive("v", clients_of=session, readonly="on")
    assert holds(reader.pread(BLOCK, 0), 0) in (1, 2)
    reader.stop()
    # Nor does it help that somebody else opens and closes it.
    second = serve_s3.drive("v")
    assert holds(second.pread(BLOCK, 0), 0) in (1, 2)
    assert second.session() != session
    second.stop()
    with pytest.raises(AssertionError, match=f"volume=v: another server has served it since then, and {REMAIN}"):
        serve_s3.drive("v", clients_of=session)


def test_clients_of_a_closed_server_are_served(serve_s3: ServeS3) -> None:
    """What was acknowledged to them is there, flushed or not; also after checkpoints, and again and again."""
    driver = serve_s3.drive("v", checkpoint="4")
    for number in range(1, 6):
        session = driver.session()
        for block in range(number * 8):
            driver.pwrite(stamped(RUN, block, number), block * BLOCK)
            driver("flush")
        driver.pwrite(stamped(RUN, 0, number + 100), 0)
        driver.stop()
        with pytest.raises(AssertionError, match=REMAIN):
            serve_s3.drive("v", clients_of=0)  # whose they are is not known
        driver = serve_s3.drive("v", clients_of=session, checkpoint="4")
        assert holds(driver.pread(BLOCK, 0), 0) == number + 100
    session = driver.session()
    driver.kill()
    with pytest.raises(AssertionError, match=UNCLOSED):
        serve_s3.drive("v", clients_of=session)


def test_clients_of_a_fenced_server_are_refused(serve_s3: ServeS3) -> None:
    """Its end was orderly, but another one is at work."""
    first = serve_s3.drive("v")
    session = first.session()
    second = serve_s3.drive("v")
    first.stop()
    with pytest.raises(AssertionError, match=UNCLOSED):
        serve_s3.drive("v", clients_of=session)
    second.pwrite(stamped(RUN, 0, 1), 0)
    second("flush")
    second.stop()


def test_clients_of_a_volume_that_is_gone_get_no_new_one(serve_s3: ServeS3) -> None:
    with pytest.raises(AssertionError, match=f"volume=v: is gone, and {REMAIN}"):
        serve_s3.drive("v", clients_of=1)
    assert not serve_s3.objects("v")


def test_layout_direct_serves_no_clients_of_an_earlier_server(serve_s3: ServeS3) -> None:
    driver = serve_s3.drive("v", layout="direct")
    driver.pwrite(bytes(BLOCK), 0)
    session = driver.session()
    driver.stop()
    before = serve_s3.objects("v")
    with pytest.raises(AssertionError, match=f"volume=v: has layout=direct, .*, and {REMAIN}"):
        serve_s3.drive("v", clients_of=session)
    assert serve_s3.objects("v") == before
