# SPDX-License-Identifier: BSD-3-Clause
"""The S3 device as a ublk disk, with its store on the host."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from guest import LIMIT, MIB, finish, read, run, start_verify
from guest_ublk import NEEDS_UBLK, Add, disks, info, ublk
from waiting import wait_until

pytestmark = NEEDS_UBLK

MODES = ("workers", "uring")


@pytest.mark.parametrize("mode", MODES)
def test_data_and_its_return(add: Add, s3_volume: list[str], mode: str) -> None:
    disk = add(f"--mode={mode}", "s3", *s3_volume, "create=on", "size=64M")
    queue = Path("/sys/block", Path(disk).name, "queue")
    assert (queue / "write_cache").read_text().strip() == "write back", "flushes would never be sent"
    finish(start_verify(disk, "--bsrange=4k-64k", "--size=8M", "--fdatasync=64"))
    text = read(disk, 0, 8 * MIB)
    assert any(text)
    run(["blkdiscard", "-f", "-o", str(MIB), "-l", str(MIB), disk])
    assert not any(read(disk, MIB, MIB))
    ublk("delete", disk)
    again = add(f"--mode={mode}", "s3", *s3_volume)
    found = read(again, 0, 8 * MIB)
    assert found[:MIB] == text[:MIB] and found[2 * MIB :] == text[2 * MIB :]
    assert not any(found[MIB : 2 * MIB])


def test_a_killed_server_takes_its_disk_along(add: Add, s3_volume: list[str]) -> None:
    """What was acknowledged without a flush was in its memory: it must not go on without."""
    disk = add("s3", *s3_volume, "create=on", "size=64M")
    assert info(disk)["recovery"] == "none"
    run(["dd", "if=/dev/urandom", f"of={disk}", "bs=1M", "count=1", "oflag=direct", "conv=fsync"])
    flushed = read(disk, 0, MIB)
    load = start_verify(disk, "--bsrange=4k-64k", "--offset=1M", "--size=32M")
    os.kill(info(disk)["pid"], signal.SIGKILL)
    assert load.wait(LIMIT) != 0
    wait_until("the disk is gone", lambda: not Path(disk).exists(), LIMIT)
    for one in disks():
        ublk("delete", str(one["number"]))
    assert read(add("s3", *s3_volume), 0, MIB) == flushed


def test_recovery_is_refused(add: Add, s3_volume: list[str]) -> None:
    output = ublk("add", "--recovery=reissue", "s3", *s3_volume, "create=on", "size=64M", expect=2)
    assert "use none" in output
    disk = add("null", "size=64M")
    assert "delete the disk" in ublk("replace", disk, "s3", *s3_volume, expect=2)
