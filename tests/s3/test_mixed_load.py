# SPDX-License-Identifier: BSD-3-Clause
"""Everything at the same time for some seconds, also under sanitizers: `make test-s3-load-asan test-s3-load-tsan`."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest
from device import ServeS3
from fault_proxy import FaultProxy, Rule, done_but_reset, refused, reset_in_reply
from volume_driver import VolumeDriver

SECONDS = float(os.environ.get("USERBLK_S3_LOAD", "3"))
pytestmark = pytest.mark.timeout(SECONDS + 900)
AREA = 1 << 20
THREADS = 8


class Client(threading.Thread):
    """Writes, trims, reads and flushes at any place of an area of its own, of which it knows what is there."""

    def __init__(self, driver: VolumeDriver, number: int, end: float) -> None:
        super().__init__(daemon=True)
        self.driver = driver
        self.base = number * AREA
        self.end = end
        self.rng = random.Random(number)
        self.model = bytearray(AREA)
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            while time.monotonic() < self.end:
                self.step()
            self.driver("flush")
        except BaseException as error:  # noqa: BLE001 - handed to the test
            self.failed = error

    def step(self) -> None:
        length = self.rng.choice((512, 4096, 4096, 10_000, 65_536, 300_000))
        first = self.rng.randrange(0, AREA - length)
        what = self.rng.random()
        if what < 0.5:
            data = self.rng.randbytes(length // 2) * 2
            length = len(data)
            self.driver.pwrite(data, self.base + first)
            self.model[first : first + length] = data
        elif what < 0.6:
            first, length = first // 4096 * 4096, max(length // 4096, 1) * 4096
            self.driver("trim", self.base + first, length)
            self.model[first : first + length] = bytes(length)
        elif what < 0.65:
            self.driver("flush")
        else:
            assert self.driver.pread(length, self.base + first) == self.model[first : first + length]

    def check(self, driver: VolumeDriver) -> None:
        assert driver.pread(AREA, self.base) == self.model


@pytest.mark.parametrize("features", ["", "zstd aes"])
@pytest.mark.parametrize("files", [False, True], ids=["", "with-files"])
def test_mixed_load(serve_s3: ServeS3, proxy: FaultProxy, tmp_path: Path, features: str, files: bool) -> None:
    more = {"features": features, "batch_size": "1M", "uploads": "4", "memory": "24M", "gc_delay": "0"}
    more["checkpoint"] = "4"
    if files:
        more["write_back"] = str(tmp_path / "write-back")
    if files and not features:  # it would hold plain text
        more["cache_file"] = str(tmp_path / "cache")
    sizes = {"write_back_size": "64M"} if files else {}
    sizes |= {"cache_size": "16M"} if "cache_file" in more else {}
    for action in refused(503, "SlowDown"), done_but_reset, reset_in_reply(1000):
        proxy.add(Rule(action, skip=100, times=5))
    driver = serve_s3.drive("v", through=proxy, **more, **sizes)
    end = time.monotonic() + SECONDS
    clients = [Client(driver, number, end) for number in range(THREADS)]
    for client in clients:
        client.start()
    while time.monotonic() < end:
        driver("create", "a")
        time.sleep(0.2)
        driver("delete", "a")
        driver("counters")
    for client in clients:
        client.join(300)
        assert not client.is_alive() and not client.failed, client.failed
    driver("gc")
    for client in clients:
        client.check(driver)
    driver.kill()
    driver = serve_s3.drive("v", **more, **sizes)
    for client in clients:
        client.check(driver)
    driver.stop()
