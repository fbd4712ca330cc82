# SPDX-License-Identifier: BSD-3-Clause
"""How much a workload in a control group may have dirty, of version 2 as the guest has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from guest import SATA
from userblk.harness.machine.filesystem import limit_memory, with_own_dirty_limit
from userblk.harness.machine.prepare import limit_dirty
from userblk.harness.machine.teardown import Teardown

MIB = 1 << 20
MEMORY, DIRTY = 512 * MIB, 102 * MIB
WRITER = f"""
import os, sys
disk, most = os.open(sys.argv[1], os.O_WRONLY), 0
for offset in range(0, {DIRTY + DIRTY // 2}, {MIB}):
    os.pwrite(disk, bytes({MIB}), offset)
    with open(sys.argv[2]) as file:
        figures = dict(line.split() for line in file)
    most = max(most, int(figures["file_dirty"]) + int(figures["file_writeback"]))
print(most)
"""


@pytest.mark.skipif(not Path("/sys/fs/cgroup/cgroup.controllers").exists(), reason="kernel: no control groups v2")
def test_a_group_gets_the_whole_limit() -> None:
    """A limit in bytes would be cut to the part that it has of the guest's memory, a sixth."""
    teardown = Teardown()
    assert with_own_dirty_limit(MEMORY, False) == MEMORY and with_own_dirty_limit(MEMORY, True) == 0
    try:
        limit_dirty(DIRTY, DIRTY // 2, MEMORY, teardown)
        memory = limit_memory(MEMORY, False, teardown)
        assert memory.cgroup
        argv = [*memory.joined, sys.executable, "-c", WRITER, SATA, str(memory.cgroup / "memory.stat")]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        # A writer is slowed down from the middle between the two limits on.
        assert DIRTY / 2 < int(done.stdout) <= DIRTY * 1.1
        disk = os.open(SATA, os.O_RDONLY)
        try:
            os.fsync(disk)
            os.posix_fadvise(disk, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(disk)
    finally:
        teardown.unwind()
