# SPDX-License-Identifier: BSD-3-Clause
"""The S3 device as a ublk disk, with its store on the host."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from guest import LIMIT, MIB, address, finish, read, run, start_verify, store_gone
from guest_ublk import NEEDS_UBLK, Add, disks, info, ublk
from waiting import wait_until

pytestmark = NEEDS_UBLK

MODES = ("workers", "uring")

CLOSE_TIMEOUT = 5
WRITE_BACK = 30  # s without progress after which a server stops writing back
SLACK = 30  # s that the rest of an end may take on a busy machine


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


def test_a_number_that_is_taken_leaves_the_disk_its_volume(add: Add, s3_volume: list[str]) -> None:
    """Opening the volume once more would take it from the server that has it."""
    disk = add("--number=5", "s3", *s3_volume, "create=on", "size=64M")
    assert "ublk5: exists" in ublk("add", "--number=5", "s3", *s3_volume, expect=2)
    assert "--zero-copy=on" in ublk("add", "--mode=uring", "--zero-copy=on", "s3", *s3_volume, expect=2)
    finish(start_verify(disk, "--bsrange=4k-64k", "--size=8M", "--fdatasync=64"))


@pytest.mark.long
def test_a_store_that_refuses_all_holds_up_no_end(add: Add, s3_volume: list[str]) -> None:
    """More is in the kernel's page cache than the server has memory for, so that the write-back waits for the store."""
    prefix = s3_volume[-1].partition("=")[2]
    volume = [line for line in s3_volume if not line.startswith(("endpoint=", "volume="))]
    volume += [f"endpoint=http://{address('LAB_PROXY')}", "volume=refused", f"prefix={prefix}"]
    limits = ["memory=24M", "batch-size=1M", f"close-timeout={CLOSE_TIMEOUT}"]
    disk = add("s3", *volume, *limits, "create=on", "size=64M")
    server = Path("/proc", str(info(disk)["pid"]))
    with store_gone("refusal", WRITE_BACK + CLOSE_TIMEOUT + SLACK):
        writer = subprocess.Popen(["dd", "if=/dev/urandom", f"of={disk}", "bs=1M", "count=60"])
        time.sleep(5)
        assert writer.poll() is None, "it waits for nothing"
        os.kill(int(server.name), signal.SIGTERM)
        wait_until("the server has ended", lambda: not server.exists(), WRITE_BACK + CLOSE_TIMEOUT + SLACK)
        writer.wait(LIMIT)
    wait_until("the disk is gone", lambda: not Path(disk).exists(), LIMIT)
