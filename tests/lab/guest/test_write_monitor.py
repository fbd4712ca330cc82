# SPDX-License-Identifier: BSD-3-Clause
"""
A whole campaign writes and discards nothing outside the range that its plan announces: the kernel tells of each request
that the disk below was given, and as many sectors as the disk counts itself.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from guest import MIB, NVME, run
from guest_campaign import make_campaign, runner, summaries
from holders import write_table
from userblk.harness.machine.blockdev import identify
from userblk.harness.model import plan
from userblk.harness.model.config import load_profile

pytestmark = pytest.mark.long

TRACING = Path("/sys/kernel/tracing")
BUFFER_KIB = 96 << 10  # for each CPU: the kernel drops what does not fit, and counts it
START, LENGTH = 1 << 21, 1 << 22  # of the partition, in sectors
AREA, FILES = 128 * MIB, 1024 * MIB  # that a campaign uses of it
SYSTEMS = ("native", "nbdkit", "tcmu", "fuse")
WORKLOADS = ["rand-read-16th-4k", "rand-write-16th-4k", "mail-server"]
RUNS = 3 * 2 + 4 * 3  # on the device, and on files
END_LIMIT = 1800.0
REQUEST = re.compile(r" block_rq_complete: \d+,\d+ ([A-Z]+) \(.*?\) (\d+) \+ (\d+) ")


@dataclass
class Seen:
    """Ranges of sectors that were changed: (first, number), by the kernel's letters for what was done."""

    changed: list[tuple[str, int, int]] = field(default_factory=list)

    def sectors(self, discards: bool) -> int:
        return sum(number for what, _, number in self.changed if what.startswith("D") == discards)

    def outside(self, first: int, number: int) -> list[tuple[str, int, int]]:
        """What is not wholly within a range."""
        return [one for one in self.changed if one[1] < first or one[1] + one[2] > first + number]


def counted(disk: str) -> tuple[int, int]:
    """Sectors written and discarded so far, as the disk's own counters say."""
    words = Path("/sys/block", Path(disk).name, "stat").read_text().split()
    return int(words[6]), int(words[13])


@contextmanager
def monitored(disk: str) -> Iterator[Seen]:
    """What changes the disk until the block's end. Fails if the kernel's buffer was too small for it."""
    if not (TRACING / "instances").exists():
        run(["mount", "-t", "tracefs", "tracefs", TRACING])
    instance = TRACING / "instances/userblk-writes"
    event = instance / "events/block/block_rq_complete"
    number = identify(disk).number
    instance.mkdir()
    try:
        (instance / "buffer_size_kb").write_text(str(BUFFER_KIB))
        (event / "filter").write_text(f'dev == {os.major(number) << 20 | os.minor(number)} && !(rwbs ~ "R*")')
        seen = Seen()
        os.sync()
        before = counted(disk)
        (event / "enable").write_text("1")
        yield seen
        os.sync()
        (event / "enable").write_text("0")
        after = counted(disk)
        for cpu in instance.glob("per_cpu/cpu*/stats"):
            assert "overrun: 0\n" in cpu.read_text(), "the buffer is too small"
        with (instance / "trace").open() as lines:
            for line in lines:
                if (found := REQUEST.search(line)) and int(found[3]):
                    seen.changed.append((found[1], int(found[2]), int(found[3])))
        # Nothing passed by unseen.
        assert (seen.sectors(False), seen.sectors(True)) == (after[0] - before[0], after[1] - before[1])
    finally:
        (event / "enable").write_text("0")
        instance.rmdir()


@pytest.fixture
def partition() -> Iterator[str]:
    """In the middle of the NVMe disk."""
    write_table(NVME, (START, LENGTH))
    run(["blockdev", "--rereadpt", NVME])
    yield f"{NVME}p1"
    run(["wipefs", "--all", "--quiet", NVME])
    run(["blockdev", "--rereadpt", NVME])


def test_a_campaign_changes_nothing_outside_what_it_announces(partition: str, tmp_path: Path) -> None:
    directory = tmp_path / "campaign"
    quick = load_profile("quick")
    files = dataclasses.replace(quick.files, ramp_s=0, runtime_s=1, macro_runtime_s=1, size={"nvme": FILES})
    profile = dataclasses.replace(quick, ramp_s=0.2, runtime_s=1, area={"nvme": AREA}, files=files)
    made = make_campaign(
        directory, "bdus", profile, SYSTEMS, WORKLOADS, devices=[plan.Device("nvme", partition, "LABNVME")]
    )
    with monitored(NVME) as seen, runner(directory) as process:
        process.wait(END_LIMIT)
    assert process.returncode in (0, 3), (directory / "runner.log").read_text()  # few operations may make a run invalid
    assert len(summaries(directory)) == RUNS, (directory / "runner.log").read_text()
    announced = made.used_bytes("nvme")
    assert announced == FILES and seen.outside(START, announced >> 9) == []
    # All of it was discarded, and it was written by each system.
    assert seen.sectors(True) >= announced >> 9 and seen.sectors(False) > RUNS


@pytest.mark.parametrize(
    ("argv", "letter"),
    [
        (["dd", "if=/dev/urandom", "bs=4096", "count=1", "oflag=direct", "seek={block}"], "W"),
        (["blkdiscard", "--force", "--offset={offset}", "--length=4096"], "D"),
        (["blkdiscard", "--force", "--zeroout", "--offset={offset}", "--length=4096"], ""),
    ],
)
def test_what_is_changed_outside_is_seen(partition: str, argv: list[str], letter: str) -> None:
    offset = FILES  # the first byte that is not the campaign's
    words = [word.format(offset=offset, block=offset // 4096) for word in argv]
    words.append(f"of={partition}" if words[0] == "dd" else partition)
    with monitored(NVME) as seen:
        run(["dd", "if=/dev/urandom", f"of={partition}", "bs=4096", "count=1", "oflag=direct", "seek=7"])
        run(words)
    ((what, first, number),) = seen.outside(START, FILES >> 9)
    assert what.startswith(letter) and (first, number) == (START + (offset >> 9), 8), what
