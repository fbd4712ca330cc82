# SPDX-License-Identifier: BSD-3-Clause
"""The S3 device under tcmu-runner, as a SCSI disk with blocks of 4096 bytes; its store is on the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import BUILD, MIB, run
from test_systems import read
from test_ublk import finish, start_verify
from userblk.harness.systems.lio import Backstore, Lun, TcmuRunner, write_attribute

SIZE = 64 * MIB


@pytest.fixture
def config(tmp_path: Path, s3_volume: list[str]) -> Path:
    file = tmp_path / "s3.conf"
    file.write_text("".join(f"{line}\n" for line in (*s3_volume, "create=on", f"size={SIZE}")))
    return file


@contextmanager
def served(config: Path, size: int = SIZE, timeout_s: int = 30) -> Iterator[tuple[TcmuRunner, str]]:
    """The daemon, and the disk. timeout_s: of a command, both LIO's and the SCSI disk's."""
    backstore = Backstore.user("userblk_s3", f"config={config}", size, block_size=4096, timeout_s=timeout_s)
    with TcmuRunner(Path(BUILD, "tcmu-handlers").absolute(), threads=2) as runner:
        with Lun(backstore, "s3") as lun:
            write_attribute(Path("/sys/block", lun.disk.name, "device/timeout"), str(timeout_s))
            yield runner, str(lun.disk)


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


def test_verify_and_discard(config: Path) -> None:
    with served(config) as (_, disk):
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
