# SPDX-License-Identifier: BSD-3-Clause
"""Disks of every framework come and go, and leave nothing behind: suite attach, and its program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import BUILD, MIB, RELEASE
from userblk.harness.attach import main
from userblk.harness.config import load_suite, load_system
from userblk.harness.systems import absent, load_modules, modules
from userblk.harness.systems.command import module_there
from userblk.harness.teardown import Teardown

SYSTEMS = load_suite("attach").systems
CYCLES = 1000  # of all frameworks together
LEAK = 48 * MIB  # that the kernel may keep for itself


@pytest.fixture(params=SYSTEMS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a system that this kernel has, with its modules."""
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


def test_two_come_and_go_at_once(kind: str, tmp_path: Path) -> None:
    found = attach(kind, 2, 2, tmp_path / "samples")
    assert {name: len(values) for name, values in found.items()} == {"there": 2, "read": 2, "gone": 2}
    assert all(0 < there < read for there, read in zip(found["there"], found["read"], strict=True))


@pytest.mark.long
def test_many_cycles_leave_nothing(kind: str, tmp_path: Path) -> None:
    attach(kind, 1, 10, tmp_path / "samples")  # what is allocated once
    before = available()
    attach(kind, 1, CYCLES // len(SYSTEMS), tmp_path / "samples")
    assert before - available() < LEAK
