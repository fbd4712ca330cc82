# SPDX-License-Identifier: BSD-3-Clause
"""The S3 device under tcmu-runner, as a SCSI disk with blocks of 4096 bytes; its store is on the host."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from guest import LIMIT, MIB, address, finish, read, run, start_verify, store_gone
from guest_tcmu import SIZE, daemon, exported, served
from userblk.harness.systems.lio import await_condition, write_attribute


@pytest.fixture
def config(tmp_path: Path, s3_volume: list[str]) -> Path:
    file = tmp_path / "s3.conf"
    file.write_text("".join(f"{line}\n" for line in (*s3_volume, "create=on", f"size={SIZE}")))
    return file


def write(disk: Path, first: int, *options: str) -> None:
    """A MiB of random bytes at a MiB, past the page cache."""
    run(["dd", "if=/dev/urandom", f"of={disk}", "bs=1M", "count=1", f"seek={first}", "oflag=direct", *options])


def test_file_system_and_its_return(config: Path, mountpoint: Path) -> None:
    content = bytes(range(256)) * 40000
    with served(config) as (_, disk):
        assert run(["blockdev", "--getss", disk]).strip() == "4096"
        run(["mkfs.ext4", "-qF", disk])
        run(["mount", disk, mountpoint])
        (mountpoint / "file").write_bytes(content)
        run(["umount", mountpoint])
    with served(config) as (_, disk):
        run(["e2fsck", "-fn", disk])
        run(["mount", "-o", "ro", disk, mountpoint])
        assert (mountpoint / "file").read_bytes() == content
        run(["umount", mountpoint])


@pytest.mark.parametrize(
    ("subtype", "threads"), [("userblk_s3", None), ("userblk_s3", 2), ("userblk_threads_s3", None)]
)
def test_verify_and_discard(config: Path, subtype: str, threads: int | None) -> None:
    with served(config, threads=threads, subtype=subtype) as (_, disk):
        assert Path("/sys/block", Path(disk).name, "queue/write_cache").read_text().strip() == "write back"
        # More requests at once than the daemon has threads.
        finish(start_verify(disk, "--bsrange=4k-64k", "--size=16M", "--fdatasync=64", "--iodepth=64"))
        run(["blkdiscard", "-f", "-o", str(MIB), "-l", str(MIB), disk])
        assert not any(read(disk, MIB, MIB)) and any(read(disk, 0, MIB))


def test_what_was_flushed_survives_a_kill(config: Path) -> None:
    with served(config) as (runner, disk):
        run(["dd", "if=/dev/urandom", f"of={disk}", "bs=1M", "count=4", "oflag=direct", "conv=fsync"])
        flushed = read(disk, 0, 4 * MIB)
        runner.kill()
    with served(config) as (_, disk):
        assert read(disk, 0, 4 * MIB) == flushed


def test_a_disk_does_not_go_on_without_what_a_killed_daemon_held(config: Path) -> None:
    """It fails until it has been taken away from its initiators; then it is what was flushed, or newer."""
    with ExitStack() as stack:
        first = stack.enter_context(daemon())
        lun = stack.enter_context(exported(config, timeout_s=10))
        write(lun.disk, 0, "conv=fsync")
        flushed = read(str(lun.disk), 0, MIB)
        write(lun.disk, 1)  # acknowledged, and nobody asked for more
        first.kill()
        second = stack.enter_context(daemon())
        refusal = "its last server did not close it, and its clients are still connected"
        await_condition("the disk is not refused", LIMIT, lambda: refusal in second.log)
        run(["dd", f"if={lun.disk}", "of=/dev/null", "bs=4k", "count=1", "iflag=direct"], expect=1)
        lun.__exit__(None, None, None)
        with exported(config) as again:
            assert read(str(again.disk), 0, MIB) == flushed


def test_a_disk_goes_on_when_its_daemon_was_stopped(config: Path) -> None:
    """Nothing was lost, flushed or not."""
    with ExitStack() as stack:
        first = stack.enter_context(daemon())
        lun = stack.enter_context(exported(config))
        write(lun.disk, 0)
        written = read(str(lun.disk), 0, MIB)
        first.__exit__(None, None, None)
        second = stack.enter_context(daemon())
        assert read(str(lun.disk), 0, MIB) == written
        write(lun.disk, 1, "conv=fsync")
        assert "did not close" not in second.log


# ---- a store that goes away ------------------------------------------------------------

CLOSE_TIMEOUT = 5
SLACK = 15  # s that the rest of an end may take on a busy machine


@pytest.fixture
def cut_off(tmp_path: Path, s3_volume: list[str]) -> Path:
    """The configuration of another volume, whose store is behind the proxy."""
    lines = [line for line in s3_volume if not line.startswith(("endpoint=", "volume="))]
    lines += [f"endpoint=http://{address('LAB_PROXY')}", "volume=cut-off", f"prefix={s3_volume[-1].partition('=')[2]}"]
    lines += [f"close-timeout={CLOSE_TIMEOUT}", "create=on", f"size={SIZE}"]
    file = tmp_path / "cut-off.conf"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def start_flush(disk: Path) -> subprocess.Popen[str]:
    """A write that waits until the store has it."""
    words = ["dd", "if=/dev/urandom", f"of={disk}", "bs=4k", "count=1", "oflag=direct", "conv=fsync"]
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.long
def test_the_daemon_ends_while_a_store_is_out_of_reach(config: Path, cut_off: Path) -> None:
    """It closes the last disk first. The others, whose store is there, lose nothing."""
    with ExitStack() as stack:
        first = stack.enter_context(daemon())
        good = stack.enter_context(exported(config))
        bad = stack.enter_context(exported(cut_off, name="bad"))
        write(good.disk, 0)
        written = read(str(good.disk), 0, MIB)
        with store_gone("outage", 3 + CLOSE_TIMEOUT + SLACK):
            flush = start_flush(bad.disk)
            time.sleep(3)
            assert flush.poll() is None, "it waits for no flush"
            first.process.send_signal(signal.SIGTERM)
            first.process.wait(CLOSE_TIMEOUT + SLACK)
            assert "Input/output error" in flush.communicate(timeout=LIMIT)[0]
        second = stack.enter_context(daemon())
        assert read(str(good.disk), 0, MIB) == written
        assert len(re.findall("did not close", second.log)) == 1, "that of the other disk"


@pytest.mark.long
def test_a_disk_is_removed_while_its_store_is_out_of_reach(config: Path, cut_off: Path) -> None:
    """The kernel has given its command up, and the daemon has not. Other disks can be made afterwards."""
    with ExitStack() as stack:
        runner = stack.enter_context(daemon())
        bad = stack.enter_context(exported(cut_off, timeout_s=2, name="bad"))
        write_attribute(Path("/sys/block", bad.disk.name, "device/timeout"), "2")
        with store_gone("outage", 60):
            assert "Input/output error" in start_flush(bad.disk).communicate(timeout=LIMIT)[0]
            begun = time.monotonic()
            bad.__exit__(None, None, None)
            assert time.monotonic() - begun < 2 * CLOSE_TIMEOUT + SLACK
            with exported(config) as good:
                write(good.disk, 0, "conv=fsync")
        assert runner.process.poll() is None
