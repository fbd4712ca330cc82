# SPDX-License-Identifier: BSD-3-Clause
"""A stock Debian kernel and root file system in QEMU, with an emulated SATA and NVMe SSD."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
CACHE = CHECKOUT / "build" / "lab"

# bullseye has nbdkit and tcmu-runner of the BDUS paper's time, and a kernel that BDUS itself builds for.
RELEASES = ("trixie", "bullseye")
RELEASE = RELEASES[0]
KERNELS = ("stable", "backports")


class LabError(Exception):
    """What went wrong and what to do about it, in one line."""


@dataclass(frozen=True)
class Variant:
    """Which guest: a Debian release, and its kernel or that of its backports. Raises LabError if there is none such."""

    release: str = RELEASE
    kernel: str = KERNELS[0]

    def __post_init__(self) -> None:
        for name, value, known in (("release", self.release, RELEASES), ("kernel", self.kernel, KERNELS)):
            if value not in known:
                raise LabError(f"{name}={value}: must be one of {', '.join(known)}")
        if self.kernel != KERNELS[0] and self.release != RELEASE:
            raise LabError(f"kernel={self.kernel}: only {RELEASE} has it; leave it out, or release={self.release}")

    def __str__(self) -> str:
        return f"{self.release}-{self.kernel}"
