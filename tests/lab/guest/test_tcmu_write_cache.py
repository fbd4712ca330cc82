# SPDX-License-Identifier: BSD-3-Clause
"""What initiators of a TCMU disk rely on, whichever daemon serves the disk: its write cache, and its data."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from guest import LIMIT, MIB, read, run
from guest_tcmu import daemon
from userblk.harness.systems.lio import TARGET, Backstore, Lun, write_attribute
from waiting import wait_until

SIZE = 64 * MIB
ATTRIBUTE = "attrib/emulate_write_cache"


@pytest.fixture
def backstore(tmp_path: Path) -> Backstore:
    return Backstore.user("userblk_passthrough", f"{tmp_path}/disk;size={SIZE};direct=off", SIZE)


def assert_cache(lun: Lun, there: bool) -> None:
    assert (lun.core / ATTRIBUTE).read_text().strip() == str(int(there))
    # Byte 2 has the WCE bit.
    assert ("08 12 04 00" if there else "08 12 00 00") in run(["sg_modes", "--page=8", lun.disk])


def test_it_stays_off_with_the_next_daemon(backstore: Backstore) -> None:
    with ExitStack() as daemons:
        runner = daemons.enter_context(daemon())
        with Lun(backstore, "cache") as lun:
            for there in (True, False, True):
                write_attribute(lun.core / ATTRIBUTE, str(int(there)))
                assert_cache(lun, there)
                runner.kill()
                runner = daemons.enter_context(daemon())
                assert_cache(lun, there)
    with daemon(), Lun(backstore, "cache") as lun:
        assert_cache(lun, True)


def test_the_next_daemon_creates_no_file(backstore: Backstore, tmp_path: Path) -> None:
    """The backstore has size=, but its initiators would find zeroes in the place of what they wrote."""
    file, lost = tmp_path / "disk", tmp_path / "lost"
    data = os.urandom(MIB)
    with ExitStack() as daemons:
        runner = daemons.enter_context(daemon())
        with Lun(backstore, "lost") as lun:
            with open(lun.disk, "wb", buffering=0) as stream:
                stream.write(data)
                os.fsync(stream.fileno())
            runner.kill()
            file.rename(lost)
            runner = daemons.enter_context(daemon())
            wait_until("it opens the disk", lambda: file.exists() or "bring back the file" in runner.log, LIMIT)
            assert not file.exists()
            runner.kill()
            lost.rename(file)
            daemons.enter_context(daemon())
            kept = read(str(lun.disk), 0, MIB) == data  # pytest would look for the differences for minutes
            assert kept


def test_it_is_turned_off_beside_a_removal(backstore: Backstore) -> None:
    """The kernel waits for the handler's answer, and rmdir for the kernel: the handler must not wait for rmdir."""
    hba = TARGET / "core" / f"user_{os.getpid()}"
    core = hba / "gone"

    def turn_off() -> None:
        (core / ATTRIBUTE).write_text("0")

    with daemon() as runner, ThreadPoolExecutor() as pool:
        core.mkdir(parents=True)
        write_attribute(core / "control", backstore.control)
        write_attribute(core / "enable", "1")
        runner.process.send_signal(signal.SIGSTOP)
        writer = pool.submit(turn_off)
        time.sleep(1)  # the kernel waits for the handler
        removal = subprocess.Popen(["rmdir", core])
        time.sleep(1)  # it waits for the writer
        runner.process.send_signal(signal.SIGCONT)
        try:
            assert removal.wait(60) == 0
            writer.result(LIMIT)
        finally:
            removal.kill()  # then nobody waits any more
            removal.wait(LIMIT)
        hba.rmdir()
        assert runner.process.poll() is None
