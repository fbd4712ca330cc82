# SPDX-License-Identifier: BSD-3-Clause
"""Other file systems than ext4 for userblk-passthrough to be mounted over."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fuse_mount import Mount, start, unmount
from nbdkit_server import checked, run

IMAGE_BYTES = 512 << 20


@contextmanager
def overlay(lower: Path, space: Path, *more: str) -> Iterator[Path]:
    """An overlayfs upon lower, with more options; skips where there is none."""
    for name in ("upper", "work", "overlay"):
        (space / name).mkdir(parents=True)
    options = ",".join((f"lowerdir={lower},upperdir={space}/upper,workdir={space}/work", *more))
    mounted = run(["mount", "-t", "overlay", "-o", options, "userblk-test", str(space / "overlay")])
    if "unknown filesystem type" in mounted.stderr:
        pytest.skip("kernel: no overlayfs")
    assert mounted.returncode == 0, mounted.stderr
    try:
        yield space / "overlay"
    finally:
        unmount(space / "overlay")


@contextmanager
def on_image(kind: str, directory: Path) -> Iterator[Path]:
    """A file system of that kind, in an image in directory; skips where there is none."""
    if shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"mkfs.{kind} is not installed")
    image, below = directory / "image", directory / "below"
    below.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    checked([f"mkfs.{kind}", "-q", str(image)])
    mounted = run(["mount", "-o", "loop", str(image), str(below)])
    if mounted.returncode != 0:
        pytest.skip(f"kernel: no {kind}: {mounted.stderr}")
    try:
        yield below
    finally:
        unmount(below)


@contextmanager
def over(below: Path, fuse_source: Path, *options: str, wrapper: tuple[str, ...] = ()) -> Iterator[Mount]:
    """The program, mounted over below, beside fuse_source; it unmounts cleanly."""
    mount = start(below, fuse_source.with_name("mount"), *options, wrapper=wrapper)
    try:
        yield mount
        mount.unmount()
    finally:
        mount.kill()
