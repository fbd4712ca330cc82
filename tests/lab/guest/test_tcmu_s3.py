# SPDX-License-Identifier: BSD-3-Clause
"""The S3 device under tcmu-runner, as a SCSI disk with blocks of 4096 bytes; its store is on the host."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from guest import LIMIT, MIB, finish, read, run, start_verify
from guest_tcmu import SIZE, daemon, exported, served
from userblk.harness.systems.lio import await_condition


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
