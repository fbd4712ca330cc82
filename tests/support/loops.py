# SPDX-License-Identifier: BSD-3-Clause
"""Loop devices for the tests that need a real block device."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from userblk.harness.machine.paths import HOST_BUILD
from waiting import wait_until

MIB = 1 << 20
TURN = Path("/run/userblk-tests")
LIMIT = 300.0  # s for what takes a second: the machine may be slow, or busy


def run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=LIMIT).stdout.strip()


def load_module(name: str) -> None:
    """Where the kernel has it as a module; no udev does it in the lab."""
    subprocess.run(["modprobe", "--quiet", name], check=False, timeout=LIMIT)


class _Turn:
    """Depth of the turn that this process has."""

    depth = 0


@contextmanager
def turn() -> Iterator[None]:
    """
    Campaigns set the machine's dirty limits, and a run during which another changes them is not valid: one test at a
    time has a disk for a campaign, also of other pytests on the machine.
    """
    with TURN.open("w") as file:
        if not _Turn.depth:
            fcntl.flock(file, fcntl.LOCK_EX)
        _Turn.depth += 1
        try:
            yield
        finally:
            _Turn.depth -= 1


@contextmanager
def attached(file: Path, *options: str) -> Iterator[str]:
    """A loop device on a file."""
    device = run("losetup", "--find", "--show", *options, str(file))
    try:
        yield device
    finally:
        run("losetup", "--detach", device)


@contextmanager
def loop(directory: Path, size: int, *options: str) -> Iterator[str]:
    """A loop device on a new sparse file; skips the test, saying why, where there are none."""
    if os.geteuid() == 0 and not Path("/dev/loop-control").exists():
        load_module("loop")
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        pytest.skip("needs root and loop devices")
    path = directory / f"disk{len(list(directory.iterdir()))}"
    with path.open("wb") as file:
        file.truncate(size)
    with turn(), attached(path, *options) as device:
        yield device


@contextmanager
def loop_for_fuse(directory: Path, size: int) -> Iterator[str]:
    """loop() in a new directory, for what the FUSE file system is measured with; skips where that is not built."""
    if not (HOST_BUILD / "fuse-passthrough/userblk-passthrough").exists():
        pytest.skip("userblk-passthrough is not built; run: make fuse-passthrough")
    directory.mkdir()
    with loop(directory, size) as path:
        yield path


def small_tmpfs(directory: Path, size: str) -> AbstractContextManager[Path]:
    """A file system that is soon full."""
    return mounted(directory / "small", "tmpfs", "-o", f"size={size}")


def loop_of_large_sectors(directory: Path, size: int) -> AbstractContextManager[str]:
    """A loop device whose logical blocks have 4 KiB."""
    return loop(directory, size, "--sector-size", "4096")


@contextmanager
def loop_without_zeroes(directory: Path, size: int) -> Iterator[str]:
    """A loop device that has neither discard nor a command for zeroes, since files on a ramfs have no holes."""
    with mounted(directory / "no-holes", "ramfs") as point, loop(point, size) as device:
        yield device


@contextmanager
def mounted(point: Path, kind: str, *options: str) -> Iterator[Path]:
    """A file system of the kernel's memory; skips the test, saying why, where there is none."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    point.mkdir()
    run("mount", "-t", kind, *options, "none", str(point))
    try:
        yield point
    finally:
        # A loop device on a file there stays for as long as udev or the like looks at it.
        argv = ["umount", str(point)]
        wait_until(f"umount {point}", lambda: not subprocess.run(argv, capture_output=True).returncode, LIMIT)
