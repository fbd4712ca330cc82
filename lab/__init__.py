# SPDX-License-Identifier: BSD-3-Clause
"""A stock Debian kernel and root file system in QEMU, with an emulated SATA and NVMe SSD."""

from __future__ import annotations

import hashlib
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
    """
    Which guest: a Debian release, and its kernel, that of its backports, or the user's own in a directory. Raises
    LabError if there is none such.
    """

    release: str = RELEASE
    kernel: str = KERNELS[0]

    def __post_init__(self) -> None:
        if self.release not in RELEASES:
            raise LabError(f"release={self.release}: must be one of {', '.join(RELEASES)}")
        if self.kernel not in KERNELS and not self.own:
            raise LabError(f"kernel={self.kernel}: must be {', '.join(KERNELS)} or a directory with one of your own")
        if self.kernel == KERNELS[1] and self.release != RELEASE:
            raise LabError(f"kernel={self.kernel}: only {RELEASE} has it; leave it out, or release={self.release}")

    @property
    def own(self) -> Path | None:
        """The directory with the user's own kernel."""
        named = self.kernel not in KERNELS and Path(self.kernel).is_dir()
        return Path(self.kernel).resolve() if named else None

    def __str__(self) -> str:
        name = f"own-{hashlib.sha256(str(self.own).encode()).hexdigest()[:8]}" if self.own else self.kernel
        return f"{self.release}-{name}"
