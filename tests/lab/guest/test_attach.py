# SPDX-License-Identifier: BSD-3-Clause
"""Disks of every framework come and go, and leave nothing behind: suite attach, and its program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from guest import BUILD, MIB, RELEASE
from userblk.harness.machine.teardown import Teardown
from userblk.harness.model.config import load_suite, load_system
from userblk.harness.systems import absent, load_modules, modules
from userblk.harness.systems.attach import main
from userblk.harness.systems.base import module_there
from waiting import wait_until

SYSTEMS = load_suite("attach").systems
ON_NBD = [name for name in SYSTEMS if load_system(name).kind in ("buse", "nbdkit")]
SOON = ("nbdkit-null", "tcmu-null", "ublk-null")  # make test-lab waits for these
SOME_SOON = [pytest.param(name, marks=() if name in SOON else pytest.mark.long) for name in SYSTEMS]
CYCLES = int(os.environ.get("ATTACH_CYCLES", "140"))  # of each framework
MANY = 64  # disks at once
LEAK = 48 * MIB  # that the kernel may keep for itself


@pytest.fixture(params=SYSTEMS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kind of a system that this kernel has, with its modules."""
    system, teardown = load_system(request.param), Teardown()
    if reasons := absent(system):
        pytest.skip(f"kernel: {'; '.join(reasons)}")
    if RELEASE == "bullseye" and system.kind == "fuse-disk":
        pytest.skip("release: its libfuse is older than 3.12")
    for module in modules(system):
        if not module_there(module):
            pytest.skip(f"kernel: it has no {module}")
    load_modules(modules(system), teardown)
    yield system.kind
    teardown.unwind()


def attach(kind: str, disks: int, samples: int, output: Path) -> dict[str, list[float]]:
    words = [f"--kind={kind}", f"--build={BUILD}", f"--disks={disks}", f"--samples={samples}", f"--output={output}"]
    assert main(words) == 0
    found: dict[str, list[float]] = json.loads(output.read_text())
    return found


def available() -> int:
    """Bytes of memory."""
    Path("/proc/sys/vm/drop_caches").write_text("3")
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def left() -> dict[str, object]:
    """What a cycle must put back: disks with a size, devices, processes of programs, files, mounts, our descriptors."""
    sizes = {path.parent.name: path.read_text() for path in Path("/sys/block").glob("*/size")}
    folders = ["/dev", "/dev/shm", "/dev/vduse", "/run/userblk-ublk", "/sys/class/uio"]
    folders += ["/sys/kernel/config/target/core", "/sys/fs/fuse/connections", "/sys/bus/vdpa/devices"]
    processes = (path for path in Path("/proc").glob("[0-9]*") if has_program(path))
    return {
        "disks": {name: size for name, size in sizes.items() if int(size)},
        "processes": Counter((path / "comm").read_text() for path in processes),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mounts": sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "targets": sorted(path.name for path in Path("/sys/kernel/config/target/loopback").glob("*.*")),
    } | {folder: sorted(os.listdir(folder)) for folder in folders if Path(folder).is_dir()}


def has_program(process: Path) -> bool:
    """Or is it a thread of the kernel?"""
    try:
        return bool(os.readlink(process / "exe"))
    except OSError:
        return False


def test_two_come_and_go_at_once(kind: str, tmp_path: Path) -> None:
    found = attach(kind, 2, 2, tmp_path / "samples")
    assert {name: len(values) for name, values in found.items()} == {"there": 2, "read": 2, "gone": 2}
    assert all(0 < there < read for there, read in zip(found["there"], found["read"], strict=True))


def test_no_module_is_loaded_meanwhile(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be a part of the time of the framework whose module it is."""
    (tmp_path / "modprobe").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n')
    (tmp_path / "modprobe").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    attach(kind, 8, 8, tmp_path / "samples")
    assert not (tmp_path / "calls").exists()


@pytest.mark.parametrize("kind", SOME_SOON, indirect=True)
@pytest.mark.parametrize("seconds", [0.3, *(pytest.param(other, marks=pytest.mark.long) for other in (0.05, 0.1, 1.0))])
def test_an_end_while_disks_come_leaves_nothing(kind: str, tmp_path: Path, seconds: float) -> None:
    there = left()
    argv = [sys.executable, "-m", "userblk.harness.systems.attach", f"--kind={kind}", f"--build={BUILD}"]
    argv += ["--disks=32", "--samples=100000", f"--output={tmp_path / 'samples'}"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, start_new_session=True) as program:
        wait_until("it has begun", lambda: bool(list(Path("/dev/shm").glob("attach-*"))))
        time.sleep(seconds)
        program.terminate()
        _, errors = program.communicate(timeout=300)
    assert program.returncode == 128 + signal.SIGTERM and "Traceback" not in errors, errors
    assert left() == there


@pytest.mark.parametrize("kind", ON_NBD, indirect=True)
def test_disks_of_others_stay(kind: str, tmp_path: Path) -> None:
    argv = [str(Path(BUILD, "buse/userblk-buse")), "--disk=/dev/nbd0", "null", f"size={MIB}"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout and other.stdout.readline().strip() == "/dev/nbd0"
        try:
            found = attach(kind, 2, 2, tmp_path / "samples")
            assert len(found["gone"]) == 2
            assert other.poll() is None
        finally:
            other.terminate()
    assert other.returncode == 0


@contextmanager
def nothing_more(kind: str, cycles: int, disks: int) -> Iterator[None]:
    """Prints what the cycles of the block took."""
    before, there, began = available(), left(), time.monotonic()
    yield
    seconds = time.monotonic() - began
    assert left() == there
    lost = before - available()
    print(f"{kind}: {cycles} cycles of {disks} disks in {seconds:.1f} s; {lost / MIB:.1f} MiB less available")
    assert lost < LEAK


@pytest.mark.long
def test_many_cycles_leave_nothing(kind: str, tmp_path: Path) -> None:
    attach(kind, 1, 10, tmp_path / "samples")  # what is allocated once
    with nothing_more(kind, CYCLES, 1):
        attach(kind, 1, CYCLES, tmp_path / "samples")


@pytest.mark.long
def test_many_at_once_leave_nothing(kind: str, tmp_path: Path) -> None:
    attach(kind, MANY, MANY, tmp_path / "samples")
    with nothing_more(kind, 1, MANY):
        found = attach(kind, MANY, MANY, tmp_path / "samples")
    assert {name: len(values) for name, values in found.items()} == {"there": MANY, "read": MANY, "gone": MANY}
