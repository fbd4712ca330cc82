# SPDX-License-Identifier: BSD-3-Clause
"""The S3 device under tcmu-runner, in the lab's guest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from guest import BUILD, MIB
from userblk.harness.systems.lio import Backstore, Lun, TcmuRunner, write_attribute

SIZE = 64 * MIB


def daemon(threads: int | None = None) -> TcmuRunner:
    return TcmuRunner(Path(BUILD, "tcmu-handlers").absolute(), threads=threads)


def exported(config: Path, size: int = SIZE, timeout_s: int = 30, subtype: str = "userblk_s3", name: str = "s3") -> Lun:
    return Lun(Backstore.user(subtype, f"config={config}", size, block_size=4096, timeout_s=timeout_s), name)


@contextmanager
def served(
    config: Path, size: int = SIZE, timeout_s: int = 30, threads: int | None = None, subtype: str = "userblk_s3"
) -> Iterator[tuple[TcmuRunner, str]]:
    """
    The daemon, and the disk. timeout_s: of a command, both LIO's and the SCSI disk's. Unless it has threads, the daemon
    waits for no request.
    """
    with daemon(threads) as runner, exported(config, size, timeout_s, subtype) as lun:
        write_attribute(Path("/sys/block", lun.disk.name, "device/timeout"), str(timeout_s))
        yield runner, str(lun.disk)
