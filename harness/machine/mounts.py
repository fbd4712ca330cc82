# SPDX-License-Identifier: BSD-3-Clause
"""What is mounted, as the kernel tells it of a process's mount namespace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mount:
    """number: of the device; btrfs and others have one of their own there. options: of the whole file system."""

    point: str
    kind: str
    source: str
    number: int
    options: tuple[str, ...]


def unescape(text: str) -> str:
    """The kernel writes space, tab, newline and backslash in such files as octal."""
    for code, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, plain)
    return text


def lines_of(file: Path) -> list[str]:
    """The lines of a file of the kernel's with paths in it, which need not be text. Raises OSError."""
    return os.fsdecode(file.read_bytes()).rstrip("\n").split("\n")


def mounts_of(process: str = "self") -> Iterator[Mount]:
    """The mounts of a process (pid), in order. Raises OSError if it is gone."""
    for line in filter(None, lines_of(Path("/proc", process, "mountinfo"))):
        left, _, right = line.partition(" - ")
        fields, (kind, source, options) = left.split(), right.split(" ", 2)
        major, minor = fields[2].split(":")
        number = os.makedev(int(major), int(minor))
        yield Mount(unescape(fields[4]), kind, unescape(source), number, tuple(options.split(",")))
