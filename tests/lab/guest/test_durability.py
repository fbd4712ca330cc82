# SPDX-License-Identifier: BSD-3-Clause
"""
A file system on every adapter's disk outlives a loss of power: dm-log-writes below the adapter shows what was durable
when. At states of that log, what fsync(2) had acknowledged is there, and fsck finds nothing.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest import MIB, Up, config, run
from log_writes import entries, logged, mark

SIZE = 320 * MIB  # XFS takes no less than 300
FILES = 24
STATES = 4  # of those at which a file was acknowledged
LARGEST = 64 * 1024  # bytes of a file
MAKE = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
CHECK = {"ext4": ["e2fsck", "-fn"], "xfs": ["xfs_repair", "-n"]}

NVME, SATA = os.environ["LAB_NVME"], os.environ["LAB_SATA"]


def content(number: int) -> bytes:
    rng = random.Random(number)
    return rng.randbytes(rng.randrange(1, LARGEST))


def write_durably(directory: Path, number: int) -> None:
    """Every other time by a rename over the file before."""
    path = directory / str(number)
    made = directory / "new" if number % 2 else path
    with made.open("wb") as file:
        file.write(content(number))
        file.flush()
        os.fsync(file.fileno())
    made.rename(path)
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def replay(log: str, image: Path) -> Iterator[str]:
    """Names of marks, when image has what was durable by then."""
    with image.open("r+b", buffering=0) as file:
        for entry in entries(log):
            if entry.mark is not None:
                yield entry.mark
            elif entry.data:
                os.pwrite(file.fileno(), entry.data, entry.offset)
            elif entry.length:  # mkfs discards all: there is no room for as many zeroes
                where = ["--offset", str(entry.offset), "--length", str(entry.length)]
                run(["fallocate", "--punch-hole", *where, str(image)])


@pytest.mark.long
@pytest.mark.parametrize("kind_of_fs", ["ext4", "xfs"])
@pytest.mark.parametrize("direct", ["on", "off"])
@pytest.mark.parametrize(
    ("kind", "mode"), [("nbdkit", ""), ("buse", ""), ("tcmu", ""), ("ublk", "workers"), ("ublk", "uring")]
)  # noqa: E501
def test_what_fsync_acknowledged(up: Up, tmp_path: Path, kind: str, mode: str, direct: str, kind_of_fs: str) -> None:
    point, image, state = (tmp_path / name for name in ("mount", "image", "state"))
    point.mkdir()
    run(["modprobe", "loop"])
    run(["blkdiscard", "-z", "-l", str(SIZE), NVME])
    with logged(NVME, SATA, SIZE) as below, up(config(kind, mode=mode, direct=direct), below) as running:
        run([*MAKE[kind_of_fs], running.used.path])
        run(["mount", running.used.path, str(point)])
        try:
            for number in range(FILES):
                write_durably(point, number)
                mark(str(number))
        finally:
            run(["umount", str(point)])
        assert not running.server_died()
    with image.open("wb") as file:
        file.truncate(SIZE)
    chosen = {str(number) for number in random.Random(kind + mode).sample(range(FILES), STATES)}
    seen = 0
    for name in replay(SATA, image):
        if name not in chosen:
            continue
        run(["cp", "--sparse=always", str(image), str(state)])
        run(["mount", "-o", "loop", str(state), str(point)])  # replays the journal
        try:
            wrong = [one for one in range(int(name) + 1) if (point / str(one)).read_bytes() != content(one)]
        finally:
            run(["umount", str(point)])
        assert not wrong, f"after file {name}"
        run([*CHECK[kind_of_fs], str(state)])
        seen += 1
    image.unlink()  # pytest keeps the directory
    state.unlink()
    assert seen == STATES
