# SPDX-License-Identifier: BSD-3-Clause
"""userblk-ublk in the lab's guest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from guest import BUILD, run
from userblk.harness.systems.base import module_there

UBLK = Path(BUILD, "ublk/userblk-ublk")
Add = Callable[..., str]
NEEDS_UBLK = pytest.mark.skipif(not module_there("ublk_drv"), reason="kernel: it has no ublk_drv")


def ublk(*words: str | Path, expect: int | None = 0) -> str:
    return run([UBLK, *words], expect=expect)


def disks() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ublk("list", "--json"))
    return found


def info(disk: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ublk("info", disk, "--json"))
    return found
