# SPDX-License-Identifier: BSD-3-Clause
"""
A file system on every adapter's disk, and the FUSE file system, outlive a loss of power: dm-log-writes below shows
what was durable when. At states of that log, what a system call had acknowledged is there, and fsck finds nothing.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from durable_files import WAYS, check_durable, write_durably
from fuse_mount import MODES, Mount, launch, rings_enabled
from guest import BUILD, MIB, RELEASE, Up, config, run
from log_writes import logged
from waiting import wait_until

SIZE = 320 * MIB  # XFS takes no less than 300
SMALL = 48 * MIB
FILES = 24
STATES = 4  # of those at which a file was acknowledged
MAKE = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
FUSE = Path(BUILD, "fuse-passthrough/userblk-passthrough").resolve()
FUSE_DISK = Path(BUILD, "fuse-disk/userblk-fuse-disk").resolve()
SOON = {"default"}  # modes that make test-lab waits for

NVME, SATA = os.environ["LAB_NVME"], os.environ["LAB_SATA"]


@contextmanager
def below(size: int) -> Iterator[str]:
    """A disk with a log, on the first bytes of the NVMe disk; the log is on the other."""
    run(["modprobe", "loop"])
    run(["blkdiscard", "-z", "-l", str(size), NVME])
    with logged(NVME, SATA, size) as path:
        yield path


@contextmanager
def mounted(file_system: str, disk: str | Path, point: Path, *options: str) -> Iterator[None]:
    """A new file system."""
    run([*MAKE[file_system], disk])
    run(["mount", *options, disk, point])
    try:
        yield
    finally:
        run(["umount", point])


@pytest.mark.long
@pytest.mark.parametrize("kind_of_fs", ["ext4", "xfs"])
@pytest.mark.parametrize("direct", ["on", "off"])
@pytest.mark.parametrize(
    ("kind", "mode"),
    [("nbdkit", ""), ("buse", ""), ("tcmu", ""), ("tcmu", "handler"), ("ublk", "workers"), ("ublk", "uring")],
)  # noqa: E501
def test_what_fsync_acknowledged(up: Up, tmp_path: Path, kind: str, mode: str, direct: str, kind_of_fs: str) -> None:
    point = tmp_path / "mount"
    point.mkdir()
    with below(SIZE) as disk, up(config(kind, mode=mode, direct=direct), disk) as running:
        with mounted(kind_of_fs, running.used.path, point):
            write_durably(point, FILES)
        assert not running.server_died()
    chosen = random.Random(kind + mode).sample(range(FILES), STATES)
    check_durable(SATA, SIZE, tmp_path, kind_of_fs, chosen)


@contextmanager
def passthrough(source: Path, point: Path, mode: str) -> Iterator[Mount]:
    """The FUSE file system in one of its modes, which it and the kernel have."""
    run(["modprobe", "fuse"])
    with rings_enabled():
        mount = launch(FUSE, source, point, ["--foreground", *MODES[mode], str(source), str(point)])
        try:
            for feature in ("io-uring", "passthrough"):
                if mount.status[feature] != ("on" if feature in mode else "off"):
                    pytest.skip(f"kernel: {feature}: {mount.status[feature]}")
            yield mount
            mount.unmount()
        finally:
            mount.kill()


@pytest.mark.parametrize("mode", [pytest.param(mode, marks=() if mode in SOON else pytest.mark.long) for mode in MODES])
def test_what_fuse_acknowledged(tmp_path: Path, mode: str) -> None:
    """Nothing is in the source's file system that is not in its log, in whatever way it was written."""
    ext4, point = tmp_path / "ext4", tmp_path / "mount"
    ext4.mkdir()
    point.mkdir()
    with below(SMALL) as disk, mounted("ext4", disk, ext4):
        (ext4 / "source").mkdir()
        with passthrough(ext4 / "source", point, mode):
            write_durably(point, len(WAYS))
    check_durable(SATA, SMALL, tmp_path, "ext4", range(len(WAYS)), "source")


@pytest.mark.parametrize("direct", [pytest.param("on", marks=pytest.mark.long), "off"])
def test_what_a_file_system_on_fuse_disk_acknowledged(tmp_path: Path, direct: str) -> None:
    """An ext4 on a loop device over the file that is a device."""
    if RELEASE == "bullseye":
        pytest.skip("libfuse: userblk-fuse-disk needs 3.12")
    file, point = tmp_path / "disk", tmp_path / "mount"
    file.touch()
    point.mkdir()
    run(["modprobe", "fuse"])
    with below(SMALL) as disk:
        mount = launch(FUSE_DISK, file, file, [str(file), "passthrough", disk, f"direct={direct}"])
        try:
            wait_until("the device's size", lambda: file.stat().st_size == SMALL)
            with mounted("ext4", file, point, "-o", "loop"):
                write_durably(point, len(WAYS))
            mount.unmount()
        finally:
            mount.kill()
    check_durable(SATA, SMALL, tmp_path, "ext4", range(len(WAYS)))
