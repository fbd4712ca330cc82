# SPDX-License-Identifier: BSD-3-Clause
"""Run in the lab's guest: what the tests of real kernel paths share."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from guest import RELEASE, Up, address, leftovers, run, served
from guest_ublk import Add, disks, ublk
from servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY
from userblk.harness.model.config import SystemConfig
from userblk.harness.systems import Running, modules
from userblk.harness.systems.base import module_there
from waiting import wait_until

_volumes = itertools.count()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: left to make test-lab-long")


@pytest.fixture
def up(tmp_path: Path) -> Up:
    """up(config, device="/dev/...", outlives=False): a system of the harness, torn down at the with block's end."""
    count = 0

    @contextmanager
    def enter(system: SystemConfig, device: str = os.environ["LAB_NVME"], outlives: bool = False) -> Iterator[Running]:
        nonlocal count
        if lacking := [name for name in modules(system) if not module_there(name)]:
            pytest.skip(f"kernel: it has no {', '.join(lacking)}")
        count += 1
        with served(system, device, tmp_path / str(count), outlives=outlives) as running:
            yield running

    return enter


@pytest.fixture
def mountpoint(tmp_path: Path) -> Iterator[Path]:
    """A directory to mount on; it is unmounted at the end, whatever happens."""
    directory = tmp_path / "mnt"
    directory.mkdir()
    yield directory
    if directory.is_mount():
        run(["umount", "--lazy", directory])


@pytest.fixture
def add() -> Iterator[Add]:
    """add(words...): the path of a new disk; all are removed at the end."""
    run(["modprobe", "ublk_drv"])

    def enter(*words: str | Path) -> str:
        return ublk("add", *words).strip()

    yield enter
    for disk in disks():
        ublk("delete", "--force", str(disk["number"]))
    # A server that a test has ended removes it after its disk.
    wait_until("no record is left", lambda: not any(Path("/run/userblk-ublk").glob("*")), 60)


@pytest.fixture
def s3_volume(tmp_path: Path) -> list[str]:
    """key=value of a volume that will be created, in the store on the host."""
    if RELEASE == "bullseye":
        pytest.skip("release: its libcurl is too old for the S3 device")
    credentials = tmp_path / "credentials"
    credentials.write_text(f"access-key-id={ACCESS_KEY}\nsecret-access-key={SECRET_KEY}\n")
    credentials.chmod(0o600)
    values = {
        "endpoint": f"http://{address('LAB_STORE')}",
        "region": REGION,
        "bucket": BUCKET,
        "credentials": str(credentials),
        "volume": f"v{next(_volumes)}",
    }
    return [f"{key}={value}" for key, value in values.items()]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert leftovers() == []


@pytest.fixture
def small_run() -> Iterator[None]:
    """The records have room for one."""
    directory = Path("/run/userblk-ublk")
    directory.mkdir(exist_ok=True)
    run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", directory])
    try:
        yield
    finally:
        run(["umount", directory])
