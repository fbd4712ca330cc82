# SPDX-License-Identifier: BSD-3-Clause
"""
A file system on every adapter's disk, what fio writes to it, and the FUSE file system outlive a loss of power:
dm-log-writes below shows what was durable when. At the states of that log at which a system call had acknowledged
something, it is there, and fsck finds nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from durable_files import WAYS, check_durable, replayed, write_durably
from fuse_mount import MODES, Mount, launch, rings_enabled
from guest import BUILD, LIMIT, MIB, RELEASE, Up, config, run
from log_writes import logged, mark
from waiting import wait_until

SMALL = 48 * MIB
SIZES = {"ext4": SMALL, "xfs": 320 * MIB}  # XFS takes no less than 300
FILES = 2 * len(WAYS)
MAKE = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
FUSE = Path(BUILD, "fuse-passthrough/userblk-passthrough").resolve()
FUSE_DISK = Path(BUILD, "fuse-disk/userblk-fuse-disk").resolve()
SOON = {"default"}  # modes of it that make test-lab waits for
ADAPTERS = [
    ("nbdkit", ""),
    ("buse", ""),
    ("tcmu", ""),
    ("tcmu", "handler"),
    ("ublk", "workers"),
    ("ublk", "uring"),
    ("fuse-disk", ""),
]
SOON_ON_DISKS = {("fuse-disk", "", "off", "ext4")}
ON_DISKS = [
    pytest.param(*adapter, direct, kind_of_fs, marks=() if soon else pytest.mark.long)
    for adapter in ADAPTERS
    for direct in ("on", "off")
    for kind_of_fs in MAKE
    for soon in [(*adapter, direct, kind_of_fs) in SOON_ON_DISKS]
]

# What fio waits for in its own way; each in a part of the disk, which it writes that often.
PATTERNS = [
    "--direct=1 --ioengine=libaio --iodepth=8 --bs=4k --fsync=8 --end_fsync=1",
    "--direct=1 --ioengine=psync --bs=16k --fdatasync=1 --end_fsync=1",
    "--direct=1 --ioengine=libaio --iodepth=4 --bs=512 --sync=dsync",
    "--direct=0 --ioengine=psync --bs=8k --fsync=3 --end_fsync=1",
    "--direct=0 --ioengine=psync --bs=4k --sync=sync",
]
PART = MIB // 4
TIMES = 2

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


@contextmanager
def fuse_disk(file: Path, disk: str, direct: str) -> Iterator[str]:
    """A file that is the device."""
    if RELEASE == "bullseye":
        pytest.skip("libfuse: userblk-fuse-disk needs 3.12")
    run(["modprobe", "fuse"])
    file.touch()
    mount = launch(FUSE_DISK, file, file, [str(file), "passthrough", disk, f"direct={direct}"])
    try:
        wait_until("the device's size", lambda: file.stat().st_size > 0, LIMIT)
        yield str(file)
        mount.unmount()
    finally:
        mount.kill()


@contextmanager
def adapter(up: Up, place: Path, disk: str, kind: str, mode: str, direct: str) -> Iterator[str]:
    """What it shows of that disk."""
    if kind == "fuse-disk":
        with fuse_disk(place / "disk", disk, direct) as path:
            yield path
        return
    with up(config(kind, mode=mode, direct=direct), disk) as running:
        yield running.used.path
        assert not running.server_died()


@pytest.mark.parametrize(("kind", "mode", "direct", "kind_of_fs"), ON_DISKS)
def test_what_fsync_acknowledged(up: Up, tmp_path: Path, kind: str, mode: str, direct: str, kind_of_fs: str) -> None:
    point, size = tmp_path / "mount", SIZES[kind_of_fs]
    point.mkdir()
    options = ["-o", "loop"] if kind == "fuse-disk" else []
    with below(size) as disk, adapter(up, tmp_path, disk, kind, mode, direct) as path:
        with mounted(kind_of_fs, path, point, *options):
            write_durably(point, FILES)
    check_durable(SATA, size, tmp_path, kind_of_fs, FILES)


def fio(path: str | Path, jobs: Sequence[int], *more: str) -> None:
    """Some of the jobs, each with other data. more: to write, or to check what they have written."""
    words = ["fio", f"--filename={path}", "--rw=randwrite", "--verify=crc32c", "--verify_fatal=1"]
    words += ["--verify_state_save=0", f"--size={PART}"]
    for job in jobs:
        part = job % len(PATTERNS)
        words += [f"--name=job{job}", f"--offset={part * PART}", f"--randseed={job + 1}", *PATTERNS[part].split()]
        words += more
    run(words)


@pytest.mark.long
@pytest.mark.parametrize("direct", ["on", "off"])
@pytest.mark.parametrize(("kind", "mode"), ADAPTERS)
def test_what_fio_was_told_is_durable(up: Up, tmp_path: Path, kind: str, mode: str, direct: str) -> None:
    """All that a job wrote, when it has ended."""
    jobs, image = range(TIMES * len(PATTERNS)), tmp_path / "image"
    with below(SMALL) as disk, adapter(up, tmp_path, disk, kind, mode, direct) as path:
        for job in jobs:
            fio(path, [job], "--do_verify=0")
            mark(str(job))
    with image.open("wb") as file:
        file.truncate(SMALL)
    marks = 0
    for name in replayed(SATA, image):
        if name.isdigit():
            last = int(name) + 1  # and those before it in the other parts
            fio(image, range(max(0, last - len(PATTERNS)), last), "--verify_only", "--direct=0")
            marks += 1
    assert marks == len(jobs)
    image.unlink()  # pytest keeps the directory


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
    check_durable(SATA, SMALL, tmp_path, "ext4", len(WAYS), "source")
