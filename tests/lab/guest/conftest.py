# SPDX-License-Identifier: BSD-3-Clause
"""Run in the lab's guest: what the tests of real kernel paths share."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY
from userblk.harness.machine.blockdev import identify
from userblk.harness.machine.subprocesses import Recorder
from userblk.harness.machine.teardown import Teardown
from userblk.harness.model.config import SystemConfig
from userblk.harness.systems import Running, bring_up, load_modules, modules
from userblk.harness.systems.base import module_there

RELEASE = os.environ["LAB_RELEASE"]
BUILD = f"build/{RELEASE}"
MIB = 1 << 20
AREA = 256 * MIB  # of the null devices, and what campaigns on a block device use
LIMIT = 600.0  # s for every command; the machine may be busy
SERVERS = (
    "nbdkit", "tcmu-runner", "nbd-client", "dbus-daemon", "userblk-ublk", "userblk-buse", "userblk-fuse-di", "fio",
    "qemu-nbd", "s3backer",
)  # fmt: skip

Up = Callable[..., AbstractContextManager[Running]]
_volumes = itertools.count()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: left to make test-lab-long")


def run(argv: Sequence[str | Path], *, expect: int | None = 0, stdin: str | None = None) -> str:
    """Run a command; its standard output and error. expect: exit code, None: any."""
    done = subprocess.run(
        [str(word) for word in argv],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert expect is None or done.returncode == expect, f"{argv}: exit code {done.returncode}: {done.stdout}"
    return done.stdout


def config(
    kind: str, device: str = "passthrough", *, timeout_s: int = 30, mode: str = "workers", **parameters: str
) -> SystemConfig:
    return SystemConfig(
        name=kind,
        kind=kind,
        device=device,
        connections=2,
        threads=16,
        timeout_s=timeout_s,
        mode=mode if kind == "ublk" else "",
        parameters=parameters,
    )


@pytest.fixture
def up(tmp_path: Path) -> Up:
    """up(config, device="/dev/...", outlives=False): a system of the harness, torn down at the with block's end."""
    count = 0

    @contextmanager
    def enter(
        system: SystemConfig, device: str = os.environ["LAB_NVME"], outlives: bool = False
    ) -> Iterator[Running]:
        nonlocal count
        if lacking := [name for name in modules(system) if not module_there(name)]:
            pytest.skip(f"kernel: it has no {', '.join(lacking)}")
        count += 1
        recorder, teardown = Recorder(tmp_path / str(count)), Teardown()
        try:
            load_modules(modules(system), teardown)
            disk = identify(device)
            with bring_up(system, disk, AREA, BUILD, recorder, teardown, outlives=outlives) as running:
                yield running
        finally:
            teardown.unwind()

    return enter


@contextmanager
def mapped(name: str, table: str) -> Iterator[str]:
    """A disk of the device mapper until the block's end: /dev/dm-N, since no udev names it."""
    run(["dmsetup", "create", name, "--table", table])
    try:
        found = (path for path in Path("/sys/block").glob("dm-*/dm/name") if path.read_text() == f"{name}\n")
        yield f"/dev/{next(found).parents[1].name}"
    finally:
        run(["dmsetup", "remove", "--retry", name])


@pytest.fixture
def mountpoint(tmp_path: Path) -> Iterator[Path]:
    """A directory that is not mounted on any more at the end, whatever happens."""
    directory = tmp_path / "mnt"
    directory.mkdir()
    yield directory
    if directory.is_mount():
        run(["umount", "--lazy", directory])


def address(name: str) -> str:
    """host:port of what tests/lab/with_store.py has started on the host."""
    found = os.environ.get(name)
    assert found, f"{name} is not set: run this by tests/lab/with_store.py, as make test-lab does"
    return found


@pytest.fixture
def s3_volume(tmp_path: Path) -> list[str]:
    """key=value of a volume that is to be created, in the store on the host."""
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


@contextmanager
def store_gone(what: str, seconds: int) -> Iterator[None]:
    """The store cannot be reached through the proxy. what: "outage" or "silence". It is back when the block ends."""
    host, _, port = address("LAB_ORDERS").partition(":")
    with socket.create_connection((host, int(port)), LIMIT) as connection, connection.makefile() as answers:
        connection.sendall(f"{what} {seconds}\n".encode())
        assert answers.readline() == "begun\n"
        yield
        assert answers.readline() == "over\n"


def leftovers() -> list[str]:
    """What a torn-down system must not leave: processes, connected devices, LIO objects, modules in use."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            name = (entry / "comm").read_text().strip()
            if name in SERVERS and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(f"process {name} ({entry.name})")
        except OSError:
            continue  # ended
    found += [str(path) for path in Path("/sys/block").glob("nbd*") if (path / "size").read_text().strip() != "0"]
    found += [str(path) for path in Path("/dev").glob("ublk[bc][0-9]*")]
    found += [str(path) for path in Path("/sys/block").glob("loop*/loop")]
    target = Path("/sys/kernel/config/target")
    found += [str(path) for path in target.glob("*/*") if path.is_dir() and path.name != "alua"]
    for module in ("nbd", "tcm_loop", "target_core_user"):
        count = Path("/sys/module", module, "refcnt")
        if count.exists() and count.read_text().strip() != "0":
            found.append(f"module {module} is in use")
    for disk in Path("/sys/block").glob("sd*"):
        if (disk / "device/vendor").read_text().strip() == "LIO-ORG":
            found.append(f"disk {disk.name}")
    return found


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert leftovers() == []
