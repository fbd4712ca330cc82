# SPDX-License-Identifier: BSD-3-Clause
"""userblk explain on a campaign of one cell."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU; run: apt-get install qemu-system-x86"),
    pytest.mark.timeout(3600),
]


def userblk(*arguments: str) -> str:
    argv = [sys.executable, str(CHECKOUT / "bin/userblk"), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=CHECKOUT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_cell_is_explained(tmp_path: Path) -> None:
    cell = ["--systems", "native,nbdkit,tcmu", "--workloads", "rand-read-1th-4k", "--reps", "1", "--seed", "1"]
    userblk("run", "--where", "lab", "--clock", "virtual", *cell, "--results", str(tmp_path))
    (campaign,) = tmp_path.iterdir()
    text = userblk("explain", str(campaign), "--device", "nvme", "--workload", "rand-read-1th-4k", "--json")
    found = json.loads(text.splitlines()[-1])
    places = {(row["system"], row["place"]): float(row["instructions_per_request"]) for row in found["explain-places"]}
    stages = {(row["system"], row["stage"]): float(row["us"]) for row in found["explain-stages"]}
    for system in ("nbdkit", "tcmu"):
        # The model's own time for 4 KiB, the same for each system.
        assert stages[system, "device"] == pytest.approx(stages["native", "device"], rel=0.05)
        assert stages[system, "request to its server"] > 1 and places[system, "server"] > 100
        for place in ("application", "kernel, for the application", "kernel, for the server"):
            assert places[system, place] > 100, place
    assert places["native", "server"] == places["native", "kernel, for the server"] == 0
    assert 80 < stages["native", "device"] < 110
    directory = campaign / "explain/nvme-rand-read-1th-4k"
    for name in ("native.svg", "nbdkit.svg", "tcmu.svg", "nbdkit-against-native.svg", "tcmu-against-native.svg"):
        titles = [one.text or "" for one in ET.parse(directory / name).iter("{http://www.w3.org/2000/svg}title")]
        assert len(titles) > 50 and any(one.startswith("blk_mq_") for one in titles), name
