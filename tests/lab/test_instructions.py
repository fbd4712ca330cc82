# SPDX-License-Identifier: BSD-3-Clause
"""userblk run --instructions: an emulated CPU counts, and counts the same again beside other load."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from userblk.analysis.costs import load_costs

CHECKOUT = Path(__file__).resolve().parents[2]
LIMIT = 900.0  # s for a campaign of four runs

pytestmark = pytest.mark.skipif(
    not shutil.which("qemu-system-x86_64"), reason="no QEMU; run: apt-get install qemu-system-x86"
)


def counted(results: Path) -> dict[tuple[str, str], float]:
    """Instructions an operation by system and workload."""
    argv = [sys.executable, str(CHECKOUT / "bin/userblk"), "run", "--instructions", "--results", str(results)]
    argv += ["--systems", "native,nbdkit", "--workloads", "rand-read-1th-4k,seq-read-1th-128k"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT, cwd=CHECKOUT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Instructions of the whole machine, per operation" in done.stdout
    (campaign,) = results.iterdir()
    assert (campaign / "costs.csv").exists()
    found = {(one.system, one.workload): one for one in load_costs(campaign)}
    assert {one.cost for one in found.values()} == {"machine_instructions_per_op"} and len(found) == 4
    return {cell: one.mean for cell, one in found.items()}


def test_counts_repeat_beside_other_load(tmp_path: Path) -> None:
    alone = counted(tmp_path / "alone")
    assert alone["nbdkit", "rand-read-1th-4k"] > 2 * alone["native", "rand-read-1th-4k"]
    loads = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        loaded = counted(tmp_path / "loaded")
    finally:
        for load in loads:
            load.kill()
            load.wait()
    for cell, value in alone.items():
        assert loaded[cell] == pytest.approx(value, rel=0.06), cell
