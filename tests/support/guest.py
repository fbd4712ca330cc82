# SPDX-License-Identifier: BSD-3-Clause
"""What the tests in the lab's guest share: its names and disks, commands, and what must not stay behind."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from userblk.harness.machine.blockdev import identify
from userblk.harness.machine.subprocesses import Recorder
from userblk.harness.machine.teardown import Teardown
from userblk.harness.model.config import SystemConfig
from userblk.harness.systems import Running, bring_up, load_modules, modules
from waiting import wait_until

RELEASE = os.environ["LAB_RELEASE"]
BUILD = f"build/{RELEASE}"
NVME, SATA = os.environ["LAB_NVME"], os.environ.get("LAB_SATA", "")
MIB = 1 << 20
AREA = 256 * MIB  # of the null devices, and what campaigns on a block device use
LIMIT = 600.0  # s for every command; the machine may be busy
SERVERS = (
    "nbdkit", "tcmu-runner", "nbd-client", "dbus-daemon", "userblk-ublk", "userblk-buse", "buse-guard", "buse-holder",
    "userblk-fuse-di", "fio", "qemu-nbd", "s3backer",
)  # fmt: skip

Up = Callable[..., AbstractContextManager[Running]]


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


def read(disk: str, offset: int, length: int) -> bytes:
    """Past the page cache of the disk."""
    run(["blockdev", "--flushbufs", disk])
    fd = os.open(disk, os.O_RDONLY)
    try:
        data = b""
        while len(data) < length:
            part = os.pread(fd, length - len(data), offset + len(data))
            assert part
            data += part
        return data
    finally:
        os.close(fd)


def config(
    kind: str, device: str = "passthrough", *, timeout_s: int = 30, mode: str = "", **parameters: str
) -> SystemConfig:
    return SystemConfig(
        name=kind,
        kind=kind,
        device=device,
        connections=2,
        threads=16,
        timeout_s=timeout_s,
        mode=mode or ("workers" if kind == "ublk" else ""),
        parameters=parameters,
    )


@contextmanager
def mapped(name: str, table: str) -> Iterator[str]:
    """A disk of the device mapper until the block's end: /dev/dm-N, since no udev names it."""
    run(["dmsetup", "create", name, "--table", table])
    try:
        found = (path for path in Path("/sys/block").glob("dm-*/dm/name") if path.read_text() == f"{name}\n")
        yield f"/dev/{next(found).parents[1].name}"
    finally:
        run(["dmsetup", "remove", "--retry", name])


@contextmanager
def through_mapper(name: str) -> Iterator[str]:
    """The NVMe disk as one of the device mapper, which suspended() and change() act on, until the block's end."""
    run(["modprobe", "dm-mod"])
    with mapped(name, f"0 {run(['blockdev', '--getsz', NVME]).strip()} linear {NVME} 0") as disk:
        yield disk


@contextmanager
def suspended(name: str) -> Iterator[None]:
    """What is sent to that disk of the device mapper waits until the block's end."""
    run(["dmsetup", "suspend", "--noflush", "--nolockfs", name])
    try:
        yield
    finally:
        run(["dmsetup", "resume", name])


def change(name: str, table: str) -> None:
    """A disk of the device mapper is something else from now on."""
    run(["dmsetup", "load", name], stdin=table)
    with suspended(name):
        pass


@contextmanager
def served(system: SystemConfig, device: str, place: Path, *, outlives: bool = False) -> Iterator[Running]:
    """A system of the harness over a device until the block's end. place: for what its commands print."""
    recorder, teardown = Recorder(place), Teardown()
    try:
        load_modules(modules(system), teardown)
        with bring_up(system, identify(device), AREA, BUILD, recorder, teardown, outlives=outlives) as running:
            yield running
    finally:
        teardown.unwind()


def requests(disk: str) -> int:
    return sum(map(int, Path("/sys/block", Path(disk).name, "stat").read_text().split()[0:5:4]))


def more_requests(disk: str, before: int) -> bool:
    return requests(disk) > before


def start_verify(disk: str, *options: str) -> subprocess.Popen[str]:
    """fio that writes and then verifies, once it has begun."""
    before = requests(disk)
    load = subprocess.Popen(
        ["fio", "--name=verify", f"--filename={disk}", "--rw=randwrite", "--bsrange=512-64k", "--direct=1",
         "--ioengine=libaio", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1", *options],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    wait_until("fio begins", lambda: requests(disk) > before + 20, LIMIT)
    return load


def finish(load: subprocess.Popen[str]) -> None:
    output, _ = load.communicate(timeout=LIMIT)
    assert load.returncode == 0, output


def address(name: str) -> str:
    """host:port of what tests/lab/with_store.py has started on the host."""
    found = os.environ.get(name)
    assert found, f"{name} is not set: run this by tests/lab/with_store.py, as make test-lab does"
    return found


@contextmanager
def store_gone(what: str, seconds: int) -> Iterator[None]:
    """The store is of no use through the proxy: an "outage", "silence" or "refusal". It is back when the block ends."""
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
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if name in SERVERS and state != "Z":
                stack = " < ".join(line.split()[-1] for line in (entry / "stack").read_text().splitlines())
                found.append(f"process {name} ({entry.name}), a child of {parent}, state {state} in {stack}")
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
