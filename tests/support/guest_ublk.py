# SPDX-License-Identifier: BSD-3-Clause
"""userblk-ublk in the lab's guest."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from guest import BUILD, LIMIT, NVME, run
from userblk.harness.systems.base import module_there
from waiting import wait_until

UBLK = Path(BUILD, "ublk/userblk-ublk")
Add = Callable[..., str]
MODES = ("workers", "uring", "zero-copy")
NEEDS_UBLK = pytest.mark.skipif(not module_there("ublk_drv"), reason="kernel: it has no ublk_drv")


def ublk(*words: str | Path, expect: int | None = 0) -> str:
    return run([UBLK, *words], expect=expect)


def disks() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ublk("list", "--json"))
    return found


def info(disk: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ublk("info", disk, "--json"))
    return found


def mode_options(mode: str) -> list[str]:
    if mode == "workers":
        return ["--mode=workers"]
    has = json.loads(ublk("features", "--json"))["AUTO_BUF_REG"]
    if mode == "zero-copy" and not has:
        pytest.skip("kernel: its ublk registers no buffers by itself")
    return ["--mode=uring", f"--zero-copy={'on' if mode == 'zero-copy' else 'off'}"]


def kill(disk: str) -> None:
    """As a crash would; until the kernel has noticed."""
    os.kill(info(disk)["pid"], signal.SIGKILL)
    wait_until("the kernel notices the death", lambda: info(disk)["state"] != "live", LIMIT)


def assert_kept(data: bytes, mountpoint: Path) -> None:
    """The file of the file system is whole on the device itself."""
    run(["mount", NVME, mountpoint])
    try:
        assert (mountpoint / "file").read_bytes() == data
    finally:
        run(["umount", mountpoint])
