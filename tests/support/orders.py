# SPDX-License-Identifier: BSD-3-Clause
"""Snapshots, clones, changes of size and key, cut short at named points: are they wholly there, or not at all?"""

from __future__ import annotations

import copy
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from history import History, Write
from stamps import BLOCK, numbers, stamped
from volume_driver import TIMEOUT_S, Ended, Refused, VolumeDriver

# Which order passes each point.
ORDER_POINTS = {
    "snap-root-before": "create",
    "snap-root-after": "create",
    "snap-live-after": "create",
    "snap-mark-after": "delete",
    "snap-delete-before": "delete",
    "snap-delete-after": "delete",
    "rollback-log-after": "rollback",
    "clone-child-after": "clone",
    "clone-super-after": "clone",
    "resize-super-before": "resize",
    "resize-super-after": "resize",
    "rekey-super-before": "rekey",
    "rekey-super-after": "rekey",
}
# Only an encrypted volume passes these.
REKEY_POINTS = ("rekey-super-before", "rekey-super-after")
# Those from which on the order has happened.
DONE_AFTER = {
    "snap-root-after",
    "snap-live-after",
    "snap-delete-before",
    "snap-delete-after",
    "rollback-log-after",
    "clone-super-after",
    "resize-super-after",
    "rekey-super-after",
}
MOST = 3  # snapshots of a volume
STEP = 8  # blocks of the largest write
MARKER_STALE_S = 600  # MARKER_STALE of snapshot.c


T = TypeVar("T")


def opened(attempt: Callable[[], T]) -> T:
    """What attempt() opens; again if the store was so slow that it gave up, which says nothing of the device."""
    for _ in range(9):
        try:
            return attempt()
        except AssertionError as error:
            if "given up after" not in str(error):
                raise
    return attempt()


class Failure(Exception):
    """The device did what it must not."""


class Orders:
    """
    The orders to one volume. parameters(volume, more) are its driver's; objects: where they are; key: the file
    of its encryption-key, which a rekey writes again.
    """

    def __init__(
        self,
        work: Path,
        rng: random.Random,
        run: int,
        blocks: int,
        volume: str,
        parameters: Callable[[str, dict[str, str]], list[str]],
        objects: Path,
        key: Path | None = None,
    ) -> None:
        self.work = work
        self.rng = rng
        self.run = run
        self.blocks = blocks
        self.volume = volume
        self.parameters = parameters
        self.objects = objects
        self.key = key
        self.snapshots: dict[str, list[int]] = {}  # what each holds, the oldest first
        self.size = blocks * BLOCK
        self.opened = 0

    def open(self, failpoint: str | None = None, volume: str | None = None, **more: str) -> VolumeDriver:
        def attempt() -> VolumeDriver:
            self.opened += 1
            directory = self.work / f"d{self.opened}"
            directory.mkdir()
            return VolumeDriver(directory, self.parameters(volume or self.volume, more), failpoint)

        return opened(attempt)

    def state(self, volume: str | None = None, **more: str) -> list[int]:
        driver = self.open(volume=volume, **more)
        try:
            return numbers(driver.pread(self.blocks * BLOCK, 0), self.run, 0)
        finally:
            driver.kill()

    def verify(self) -> None:
        """Is one of the snapshots what it was?"""
        if self.snapshots:
            name = self.rng.choice(list(self.snapshots))
            if self.state(snapshot=name) != self.snapshots[name]:
                raise Failure(f"snapshot {name} has changed")

    def crash(self, point: str, history: History) -> None:
        """
        Gives an order in the midst of writes, which kills the server at a point, and judges what is left
        of the order. The volume's content is then for the caller to judge.
        """
        order = ORDER_POINTS[point]
        self._prepare(order, history)
        if order == "create":
            name = f"s{self.opened}"
        elif order == "rollback":
            name = list(self.snapshots)[-1]
        else:
            name = self.rng.choice(list(self.snapshots) or [""])
        clone = f"{self.volume}-c{self.opened}"
        size = self.blocks * BLOCK
        if self.size == size:
            size += self.rng.randint(1, 8) << 20
        key = self.rng.randbytes(32)
        words: list[object] = [order, {"resize": size, "rekey": key.hex()}.get(order, name)]
        if order == "clone":
            words += [self.objects.parent.name, clone]
        driver = self.open(point)
        pending = self._write(driver, history, wait=True)
        submitted = history.submit_flush()
        if order != "rollback":  # a volume that is rolled back must not be in use
            pending += self._write(driver, history, wait=False)
        self._end(driver, driver.submit(*words), point)
        for write, future in pending:
            if future.exception() is None and write.acknowledged > history.clock:
                history.acknowledge(write)
        done = point in DONE_AFTER
        if order == "clone":
            self._judge_clone(name, clone, done)
        elif order == "resize":
            self.size = size if done else self.size
            self._expect(self.size, self._size(), "the size")
        elif order == "rekey":
            self._judge_key(key, done)
        elif order == "rollback":
            self._expect(self.snapshots[name], self.state(), f"after the rollback to {name} the volume")
            history.rewind(self.snapshots[name])
        else:
            there = done == (order == "create")
            self._expect(there, name in self._names(), f"whether snapshot {name} is there")
            if order == "create" and there:
                self._judge_snapshot(name, submitted, history)
            elif not there:
                self.snapshots.pop(name, None)

    def _prepare(self, order: str, history: History) -> None:
        """Sees to a snapshot for orders that need one, and to room for another one."""
        driver = None
        if order == "create" and len(self.snapshots) >= MOST:
            driver = self.open()
            gone = self.rng.choice(list(self.snapshots))
            driver("delete", gone)
            del self.snapshots[gone]
        elif order not in ("create", "resize", "rekey") and not self.snapshots:
            driver = self.open()
            name = f"p{self.opened}"
            self._write(driver, history, wait=True)
            submitted = history.submit_flush()
            driver("create", name)
            driver.kill()
            self._judge_snapshot(name, submitted, history)
        if driver:
            driver.kill()

    def _write(self, driver: VolumeDriver, history: History, wait: bool) -> list[tuple[Write, Future[bytes]]]:
        pending = []
        places = self.rng.sample(range(self.blocks // STEP // 2), self.rng.randint(0, 30))
        for place in places:
            # Those that are waited for and those that are not have halves of the volume of their own.
            first = (2 * place + wait) * STEP
            write = history.submit(first, self.rng.randint(1, STEP), zero=self.rng.random() < 0.2)
            if write.zero:
                words, data = ("trim", first * BLOCK, write.count * BLOCK), b""
            else:
                data = b"".join(stamped(self.run, first + i, write.number) for i in range(write.count))
                words = ("write", first * BLOCK, len(data))
            future = driver.submit(*words, data=data)
            pending.append((write, future))
            if wait:
                future.result(TIMEOUT_S)
                history.acknowledge(write)
        return pending

    def _end(self, driver: VolumeDriver, order: Future[bytes], point: str) -> None:
        try:
            order.result(TIMEOUT_S)
        except Ended:
            pass
        except Refused as error:
            raise Failure(f"the order on the way to {point} failed: {error}; {driver.output()}") from error
        finally:
            status = driver.stop(None)
        if status != -signal.SIGKILL:
            raise Failure(f"the order passed {point} unharmed, exit status {status}")

    def _judge_snapshot(self, name: str, submitted: int, history: History) -> None:
        """It holds a prefix, and so much of it as had been acknowledged; so does the volume."""
        found = self.state(snapshot=name)
        history.acknowledge_flush(submitted)
        copy.deepcopy(history).check(found)
        self.snapshots[name] = found

    def _judge_key(self, new: bytes, done: bool) -> None:
        """One of the two keys opens the volume, the other one does not."""
        assert self.key is not None
        old = self.key.read_bytes()
        for key, opens in ((old, not done), (new, done)):
            self.key.write_bytes(key)
            try:
                self.open(readonly="on").kill()
            except AssertionError as error:
                if opens or "is not the key" not in str(error):
                    raise
            else:
                self._expect(opens, True, "whether a key opens the volume")
        self.key.write_bytes(new if done else old)

    def _judge_clone(self, snapshot: str, clone: str, done: bool) -> None:
        driver = self.open()
        try:
            driver("delete", snapshot)
            raise Failure(f"snapshot {snapshot} was deleted although it has a clone")
        except Refused:
            pass
        finally:
            driver.kill()
        if done:
            self._expect(self.snapshots[snapshot], self.state(volume=clone), f"clone {clone}")
            # As it is deleted: first the clone, then its marker.
            shutil.rmtree(self.objects.parent / clone)
            for marker in self._markers(snapshot):
                marker.unlink()
            return
        try:
            self.open(volume=clone).kill()
        except AssertionError as error:
            if "not found" not in str(error):
                raise
        else:
            raise Failure(f"clone {clone} is there")
        # What is left of it is harmless when it is old enough.
        past = time.time() - 2 * MARKER_STALE_S
        for marker in self._markers(snapshot):
            os.utime(marker, (past, past))

    def _markers(self, snapshot: str) -> list[Path]:
        return list((self.objects / "snap" / snapshot / "child").iterdir())

    def _names(self) -> list[str]:
        driver = self.open()
        try:
            return [snapshot.name for snapshot in driver.snapshots()]
        finally:
            driver.kill()

    def _size(self) -> int:
        driver = self.open(readonly="on")
        try:
            return driver.size()
        finally:
            driver.kill()

    @staticmethod
    def _expect(wanted: object, found: object, what: str) -> None:
        if found != wanted:
            raise Failure(f"{what}: {str(found)[:200]}, not {str(wanted)[:200]}")
