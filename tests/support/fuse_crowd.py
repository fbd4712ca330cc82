# SPDX-License-Identifier: BSD-3-Clause
"""More files than userblk-passthrough may have descriptors."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from fuse_mount import Mount

FILES = 3000
FEW_FILES = ("prlimit", "--nofile=256")


def descriptors(mount: Mount) -> int:
    return len(os.listdir(f"/proc/{mount.process.pid}/fd"))


def descriptors_of(mount: Mount, path: str) -> int:
    """How many the daemon has of that file; one is its inode's."""
    found = 0
    for descriptor in Path(f"/proc/{mount.process.pid}/fd").iterdir():
        with suppress(OSError):  # it has been closed
            found += os.readlink(descriptor) == path
    return found


def fill(directory: Path) -> list[str]:
    names = [f"{number:05}" for number in range(FILES)]
    for name in names:
        (directory / name).write_text(name)
    return names
