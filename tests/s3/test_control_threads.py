# SPDX-License-Identifier: BSD-3-Clause
"""Many clients of the control socket at once, beside I/O, up to the volume's end: for the thread sanitizer."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from errno import EBUSY, EEXIST, EIO, ENOENT, ENOTEMPTY, ESHUTDOWN
from pathlib import Path

import pytest
from device import ServeS3
from stamps import numbers
from tool import ask
from volume_driver import Refused, VolumeDriver
from volume_writer import RUN, Writer, read

CLIENTS = 4
REQUESTS = 30  # of each
QUICK = ("info", "stats")
NAMES = ("a", "b", "c")
# Two commands that take long, names that are taken, gone, or have clones.
MAY_BE = {EBUSY, EEXIST, ENOENT, ENOTEMPTY}

MIB = 1 << 20


@pytest.fixture
def control(tmp_path: Path) -> Path:
    return tmp_path / "control"


@pytest.fixture
def driver(serve_s3: ServeS3, control: Path) -> VolumeDriver:
    return serve_s3.drive("v", control=str(control), batch_size="1M", checkpoint="4", gc_delay="0")


def answer(control: Path, request: str) -> int:
    """0 or the errno of a whole answer."""
    lines = ask(control, f"userblk-s3 1 {request}\n".encode())
    assert lines and lines[0] == "userblk-s3 1", lines
    if lines[-1] == "ok":
        return 0
    word, number, _ = lines[-1].split(" ", 2)
    assert word == "error", lines
    return int(number)


@contextmanager
def clients(body: Callable[[int], None]) -> Iterator[Callable[[], bool]]:
    """CLIENTS threads of body(number); yields: do any of them still go on, and none has failed."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        futures = [pool.submit(body, number) for number in range(CLIENTS)]

        def go_on() -> bool:
            for future in futures:
                if future.done():
                    future.result()
            return not all(future.done() for future in futures)

        yield go_on
        for future in futures:
            future.result()


def test_everything_at_once(serve_s3: ServeS3, driver: VolumeDriver, control: Path) -> None:
    writer = Writer(driver, 1)
    clones, sizes = itertools.count(), itertools.count(65)
    outcomes: Counter[tuple[str, int]] = Counter()

    def body(number: int) -> None:
        rng = random.Random(number)
        for _ in range(REQUESTS):
            name = rng.choice(NAMES)
            request = rng.choice(
                (
                    *QUICK,
                    "snapshot-list",
                    f"snapshot-create {name}",
                    f"snapshot-create {name}",
                    f"snapshot-delete {name}",
                    f"clone {name} {serve_s3.prefix} clone{next(clones)}",
                    f"resize {next(sizes) * MIB}",
                    "gc",
                    "check",
                )
            )
            outcome = answer(control, request)
            assert outcome in MAY_BE or not outcome, request
            outcomes[request.partition(" ")[0], outcome] += 1

    with clients(body) as go_on:
        steps = 0
        while go_on():
            writer.step()
            steps += 1
            if steps % 64 == 0:
                sent = writer.history.submit_flush()
                driver("flush")
                writer.history.acknowledge_flush(sent)
    writer.finish()
    commands = {command for command, outcome in outcomes if outcome == 0}
    wanted = {*QUICK, "snapshot-list", "snapshot-create", "snapshot-delete", "clone", "resize", "gc", "check"}
    # What finds another command at work, or no such name, need not ever have been done, but nothing is stuck.
    assert set(QUICK) <= commands <= wanted, outcomes
    for request in ("snapshot-create last", "gc"):
        assert answer(control, request) == 0
    driver.stop()
    assert not control.exists()
    writer.history.check(numbers(read(serve_s3, "v"), RUN, 0))


def test_the_end_beside_clients(serve_s3: ServeS3, driver: VolumeDriver, control: Path) -> None:
    """Each receives a full answer, a message that the server is shutting down, or no answer at all."""
    writer = Writer(driver, 2)
    for _ in range(100):
        writer.step()
    writer.finish()
    answered: Counter[int] = Counter()
    ending = threading.Event()

    def body(number: int) -> None:
        for _ in range(10000):
            try:
                outcome = answer(control, ("stats", "gc", "info", "check")[number])
            except (FileNotFoundError, ConnectionError):
                return
            except AssertionError:
                # Accepted by the kernel and never by the server, or given up in the middle.
                if not ending.is_set():
                    raise
                return
            assert outcome in (0, EBUSY, ESHUTDOWN), outcome
            answered[number] += 1

    with clients(body) as go_on:
        while len(answered) < CLIENTS and go_on():
            time.sleep(0.01)
        ending.set()
        driver.stop()
    writer.history.check(numbers(read(serve_s3, "v"), RUN, 0))


def test_abort_beside_writes(serve_s3: ServeS3, driver: VolumeDriver, control: Path) -> None:
    """Those that are in flight end with EIO or were done; what was flushed is there."""
    writer = Writer(driver, 3)
    for _ in range(200):
        writer.step()
    sent = writer.history.submit_flush()
    driver("flush")
    writer.history.acknowledge_flush(sent)

    def body(number: int) -> None:
        for _ in range(REQUESTS):
            assert answer(control, "abort" if number == 0 else "stats") == 0

    with clients(body), pytest.raises(Refused) as caught:
        while True:
            writer.step()
    assert caught.value.errno == EIO
    assert driver.stop(None) in (0, 1)  # 1: not everything had been stored
    writer.history.check(numbers(read(serve_s3, "v"), RUN, 0))
