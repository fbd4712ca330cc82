# SPDX-License-Identifier: BSD-3-Clause
"""A stock Debian kernel and root file system in QEMU, with an emulated SATA and NVMe SSD."""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
CACHE = CHECKOUT / "build" / "lab"

RELEASE = "trixie"
KERNELS = ("stable", "backports")


class LabError(Exception):
    """What went wrong and what to do about it, in one line."""
