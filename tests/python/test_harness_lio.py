# SPDX-License-Identifier: BSD-3-Clause
"""Names of LIO's objects, which stand in a part of the kernel that all programs on a machine share."""

from __future__ import annotations

import os
from pathlib import Path

from userblk.harness.systems.lio import TARGET, Backstore, Lun


def test_two_processes_have_two_disks_and_what_one_left_is_found_by_its_hba() -> None:
    backstore = Backstore.iblock(Path("/dev/null"))
    own = Lun(backstore)
    assert own.hba == TARGET / "core" / f"iblock_{os.getpid()}" and own.name == f"userblk{os.getpid()}"
    other = Lun(backstore, hba=TARGET / "core/iblock_1")
    assert other.name == "userblk1" and other.port != own.port
    left = Lun(Backstore("", ""), hba=own.hba)
    assert (left.core, left.port, left.name) == (own.core, own.port, own.name)
    assert Lun(backstore, "bench").name == "bench"
