# SPDX-License-Identifier: BSD-3-Clause
"""Names of LIO's objects, which stand in a part of the kernel that all programs on a machine share."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from userblk.harness.machine.teardown import start_time
from userblk.harness.systems import lio, tcmu
from userblk.harness.systems.lio import TARGET, Backstore, Lun
from waiting import wait_until


def test_two_processes_have_two_disks_and_what_one_left_is_found_by_its_hba() -> None:
    backstore = Backstore.iblock(Path("/dev/null"))
    own = Lun(backstore)
    assert own.hba == TARGET / "core" / f"iblock_{os.getpid()}" and own.name == f"userblk{os.getpid()}"
    other = Lun(backstore, hba=TARGET / "core/iblock_1")
    assert other.name == "userblk1" and other.port != own.port
    left = Lun(Backstore("", ""), hba=own.hba)
    assert (left.core, left.port, left.name) == (own.core, own.port, own.name)
    assert Lun(backstore, "bench").name == "bench"


def test_a_process_whose_name_is_cut_within_a_letter(tmp_path: Path) -> None:
    """The kernel keeps 15 bytes of a name, which need not be text."""
    program = tmp_path / ("\N{CYRILLIC SMALL LETTER YA}" * 8)
    shutil.copy2("/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as process:
        try:
            wait_until("it runs", lambda: b"\xd1" in Path(f"/proc/{process.pid}/comm").read_bytes())
            assert start_time(process.pid)
            assert lio.daemon_runs() in (False, True)
            assert tcmu._running_daemon(tmp_path / "handler.so") == 0 or lio.daemon_runs()
        finally:
            process.kill()
