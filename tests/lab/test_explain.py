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


def explained(results: Path, systems: str, *words: str) -> tuple[dict[tuple[str, str], float], ...]:
    """
    Instructions a request by system and place, and the us of its stages, of one small campaign's only cell; the flame
    graphs are looked at, too.
    """
    cell = ["--systems", systems, "--devices", "nvme", "--workloads", "rand-read-1th-4k", "--reps", "1", "--seed", "1"]
    userblk("run", "--where", "lab", "--clock", "virtual", *cell, *words, "--results", str(results))
    (campaign,) = results.iterdir()
    text = userblk("explain", str(campaign), "--device", "nvme", "--workload", "rand-read-1th-4k", "--json")
    found = json.loads(text.splitlines()[-1])
    directory = campaign / "explain/nvme-rand-read-1th-4k"
    for name in systems.split(","):
        graphs = [name] if name == "native" else [name, f"{name}-against-native"]
        for graph in graphs:
            root = ET.parse(directory / f"{graph}.svg")
            titles = [one.text or "" for one in root.iter("{http://www.w3.org/2000/svg}title")]
            assert len(titles) > 50 and any(one.startswith("blk_mq_") for one in titles), graph
    return (
        {(row["system"], row["place"]): float(row["instructions_per_request"]) for row in found["explain-places"]},
        {(row["system"], row["stage"]): float(row["us"]) for row in found["explain-stages"]},
    )


@pytest.mark.parametrize(
    ("systems", "words"),
    [
        ("native,nbdkit,tcmu,tcmu-threads,buse,ublk-uring", ("--suite", "frameworks")),
        ("native,fuse", ("--suite", "bdus-fs")),
    ],
    ids=["block devices", "files"],
)
def test_a_cell_is_explained(systems: str, words: tuple[str, ...], tmp_path: Path) -> None:
    places, stages = explained(tmp_path, systems, *words)
    native = places["native", "application"]
    for system in systems.split(",")[1:]:
        # The model's own time for 4 KiB, and the same program: the same for each system, as far as a few samples of
        # each timer tell (docs/lab.md).
        assert stages[system, "device"] == pytest.approx(stages["native", "device"], rel=0.05), system
        assert places[system, "application"] == pytest.approx(native, rel=0.5, abs=600), system
        assert stages[system, "request to its server"] > 1, system
        assert places[system, "kernel, for the application"] > 100 < places[system, "kernel, for the server"], system
        # The rings of ublk's queues need no code of the server's own for a request but the library's.
        assert places[system, "server"] > 100 or system == "ublk-uring", system
    assert places["native", "server"] == places["native", "kernel, for the server"] == 0
    assert 80 < stages["native", "device"] < 110
