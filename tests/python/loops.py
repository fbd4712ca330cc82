# SPDX-License-Identifier: BSD-3-Clause
"""Loop devices for the tests that need a real block device."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MIB = 1 << 20


def run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def load_module(name: str) -> None:
    """Where the kernel has it as a module; no udev does it in the lab."""
    subprocess.run(["modprobe", "--quiet", name], check=False, timeout=60)


@contextmanager
def loop(directory: Path, size: int, *options: str) -> Iterator[str]:
    """A loop device on a new sparse file; skips the test, saying why, where there are none."""
    if os.geteuid() == 0 and not Path("/dev/loop-control").exists():
        load_module("loop")
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        pytest.skip("needs root and loop devices")
    with (directory / f"disk{len(list(directory.iterdir()))}").open("wb") as file:
        file.truncate(size)
    device = run("losetup", "--find", "--show", *options, file.name)
    try:
        yield device
    finally:
        run("losetup", "--detach", device)
