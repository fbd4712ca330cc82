# SPDX-License-Identifier: BSD-3-Clause
"""
Random requests through every adapter hold what a model in memory holds, and what a flush or FUA has acknowledged is
durable below: the disk is one of dm-log-writes, whose log has nothing else.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from block_targets import FileTarget, SgTarget
from blocks import SECTOR, Batch, Limits, Model, Request, replay, search
from durability import Durable, Image, NotDurable
from guest import BUILD, LIMIT, MIB, Up, config, run
from log_writes import entries, logged, mark
from userblk.harness.model.config import SystemConfig
from waiting import wait_until

SECONDS = float(os.environ.get("DIFFERENTIAL_SECONDS", "2"))  # of each way
SIZE = MIB
PAGE = 4096
ZEROES = 60
LARGEST = 256 * 1024  # emulated CPUs are slow
LONG_SIZE = 4 * MIB

NVME, SATA = os.environ["LAB_NVME"], os.environ["LAB_SATA"]


class Journal:
    """What search() did, for a look at the log afterwards."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.events: list[tuple[Batch, dict[int, bytes]]] = []
        self.logged = 0

    def __call__(self, batch: Batch, model: Model) -> None:
        changed = [request for request in batch if request.op in ("write", "trim", "zero")]
        sectors = {at for request in changed for at in range(request.offset, request.end, SECTOR)}
        self.events.append((batch, {at: bytes(model.bytes[at : at + SECTOR]) for at in sectors}))
        if any(request.op == "flush" or (request.op == "write" and request.fua) for request in batch):
            mark(str(len(self.events)))

    def check(self, log: str) -> int:
        """The number of marks at which the log had all that was acknowledged."""
        image, durable, content = Image(bytearray(self.size), logged={}), Durable(self.size), bytearray(self.size)
        done = marks = 0
        for entry in entries(log):
            if entry.mark is None:
                image.apply(entry)
            elif entry.mark.isdigit():
                for batch, after in self.events[done : int(entry.mark)]:
                    durable.apply(batch, bytes(content), after)
                    for at, data in after.items():
                        content[at : at + SECTOR] = data
                done = int(entry.mark)
                try:
                    durable.check(image, entry.mark)
                except NotDurable as lost:
                    raise AssertionError(self.story(lost, image, done)) from None
                marks += 1
        return marks

    def story(self, lost: NotDurable, image: Image, done: int) -> str:
        """What the disk holds in place of the sector, and the batches that touched its page."""
        page = range(lost.at // PAGE * PAGE, lost.at // PAGE * PAGE + PAGE)
        lines = [str(lost), f"the log has {image.data[lost.at : lost.at + 16].hex()}..."]
        for number, (batch, after) in enumerate(self.events[:done], 1):
            touched = [r for r in batch if r.op == "flush" or (r.offset < page.stop and r.end > page.start)]
            if touched:
                now = f", then {after[lost.at][:16].hex()}..." if lost.at in after else ""
                lines.append(f"    {number}: {' | '.join(map(str, touched))}{now}")
        return "\n".join(lines)


@contextmanager
def below(size: int = SIZE) -> Iterator[str]:
    """A disk with a log, on the first bytes of the NVMe disk; the log is on the other."""
    run(["blkdiscard", "-z", "-l", str(size), NVME])
    with logged(NVME, SATA, size) as path:
        yield path


# torn: the emulated disks are files in the page cache of the machine below, and direct=off has one of its own.
def limits_of(disk: str, size: int = SIZE, largest: int = LARGEST, **more: Any) -> Limits:
    queue = Path("/sys/block", Path(disk).name, "queue")
    largest = min(largest, int((queue / "max_sectors_kb").read_text()) * 1024)
    trims = int((queue / "discard_max_bytes").read_text()) > 0
    return Limits(size, largest=largest, trim=trims, trim_unit=4096 if trims else 0, torn=True, **more)


def compare(
    up: Up,
    system: SystemConfig,
    open_target: Callable[[str, Limits], Any],
    size: int = SIZE,
    largest: int = LARGEST,
) -> None:
    journal = Journal(size)
    with below(size) as disk, up(system, disk) as running:
        limits = limits_of(running.used.path, size, largest)
        with closing(open_target(running.used.path, limits)) as target:
            sequences = search(limits, target, SECONDS, journal)
        assert not running.server_died()
    reported(f"{system.kind} {system.mode}", sequences, journal, limits)


def reported(what: str, sequences: int, journal: Journal, limits: Limits) -> None:
    marks = journal.check(SATA)
    print(f"{what}: {sequences} sequences, {marks} durable states, {limits}")
    assert marks > sequences > 0


def block_target(path: str, limits: Limits) -> FileTarget:
    return FileTarget(path, limits.at_once, direct=True, disk=True)


def scsi_target(path: str, limits: Limits) -> SgTarget:
    return SgTarget(path, limits.at_once)


DISKS = [("nbdkit", ""), ("buse", ""), ("tcmu", ""), ("tcmu", "handler"), ("ublk", "workers"), ("ublk", "uring")]


def null_device(up: Up, kind: str, mode: str, open_target: Callable[[str, Limits], Any]) -> None:
    with up(config(kind, "null", mode=mode)) as running:
        limits = limits_of(running.used.path, keeps=False)
        with closing(open_target(running.used.path, limits)) as target:
            assert search(limits, target, SECONDS) > 0
        assert not running.server_died()


@pytest.mark.parametrize(("kind", "mode"), DISKS)
def test_null_device(up: Up, kind: str, mode: str) -> None:
    """Whatever is written, it reads as zeroes."""
    null_device(up, kind, mode, block_target)


@pytest.mark.parametrize("mode", ["", "handler"])
def test_null_device_by_scsi(up: Up, mode: str) -> None:
    null_device(up, "tcmu", mode, scsi_target)


@pytest.mark.parametrize("direct", ["on", "off"])
@pytest.mark.parametrize(("kind", "mode"), DISKS)
def test_block_layer(up: Up, kind: str, mode: str, direct: str) -> None:
    compare(up, config(kind, mode=mode, direct=direct), block_target)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "mode"), DISKS)
def test_largest_requests(up: Up, kind: str, mode: str) -> None:
    """Up to the most that the kernel gives the driver at once."""
    compare(up, config(kind, mode=mode, direct="on"), block_target, LONG_SIZE, LONG_SIZE)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["", "handler"])
def test_largest_commands(up: Up, mode: str) -> None:
    compare(up, config("tcmu", mode=mode, direct="on"), scsi_target, LONG_SIZE, LONG_SIZE)


@pytest.mark.long
def test_flushes_beside_zeroes(up: Up) -> None:
    """What a flush has to make durable is there or zeroed, never as it was before: the page cache drops it first."""
    journal, rng = Journal(SIZE), random.Random(1)
    with below() as disk, up(config("nbdkit", direct="off"), disk) as running:
        limits = limits_of(running.used.path)
        batches: list[Batch] = []
        for tag in range(1, ZEROES + 1):
            at = rng.randrange((SIZE - LARGEST) // PAGE) * PAGE
            batches.append((Request("write", at, LARGEST, tag),))
            batches.append((Request("zero", at, LARGEST, may_trim=rng.random() < 0.5), Request("flush")))
        with closing(block_target(running.used.path, limits)) as target:
            replay(batches, limits, target, journal)
    assert journal.check(SATA) > ZEROES


@pytest.mark.parametrize("direct", ["on", "off"])
@pytest.mark.parametrize("mode", ["", "handler"])
def test_tcmu_by_scsi(up: Up, mode: str, direct: str) -> None:
    compare(up, config("tcmu", mode=mode, direct=direct), scsi_target)


@pytest.mark.parametrize("direct", ["on", "off"])
def test_fuse_disk(tmp_path: Path, direct: str) -> None:
    program, point = Path(BUILD, "fuse-disk/userblk-fuse-disk").resolve(), tmp_path / "disk"
    if not program.exists():
        pytest.skip("release: its libfuse is too old")
    point.touch()
    journal, limits = Journal(SIZE), Limits(SIZE, largest=LARGEST, torn=True)
    with below() as disk:
        server = subprocess.Popen([program, point, "passthrough", disk, f"direct={direct}"])
        try:
            wait_until("the disk is served", lambda: point.stat().st_size == SIZE, LIMIT, process=server)
            with closing(FileTarget(point, limits.at_once, direct=False, disk=False)) as target:
                sequences = search(limits, target, SECONDS, journal)
        finally:
            run(["umount", "--lazy", point], expect=None)
            server.terminate()
            server.wait(LIMIT)
    reported(f"fuse-disk direct={direct}", sequences, journal, limits)
