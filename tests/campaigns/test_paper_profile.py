# SPDX-License-Identifier: BSD-3-Clause
"""PROFILE=paper from plan to report, on devices as fast as the paper's: every cell valid, in tables, and in time."""

from __future__ import annotations

import csv
import json
import resource
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from simulated import Simulated, simulation
from userblk.analysis.summaries import load_campaign
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.plan import Device, make_plan
from userblk.harness.running import campaign

SYSTEMS = (
    "native", "native-control", "nbdkit", "nbdkit-serial", "tcmu", "ublk-workers", "ublk-uring", "buse",
    "dm-linear", "loop", "iblock", "fuse", "fuse-uring",
)  # fmt: skip
DEVICES = (Device("sata", "/dev/sata", "S"), Device("nvme", "/dev/nvme", "N"))
TABLES_S, REPORT_S = 10.0, 60.0  # of CPU time
LEAST_RUNS = 4000


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign of all 41 workloads of the paper."""
    plan = make_plan(
        suite=load_suite("bdus"),
        profile=load_profile("paper"),
        systems=[load_system(name) for name in SYSTEMS],
        devices=DEVICES,
        campaign="paper",
        build="build/host",
        host="server",
        emulated=False,
        seed=1,
    )
    made = campaign.create(plan, tmp_path_factory.mktemp("results"), ["userblk"])
    with simulation(1):
        assert Simulated(plan, made).run() == 0
    return made


def cpu_seconds(*argv: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "bin/userblk", *argv], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.mark.timeout(3600)
def test_every_cell_is_valid_and_measured_often_enough(directory: Path) -> None:
    profile = load_profile("paper")
    runs = load_campaign(directory)
    invalid = Counter((one.device, one.workload, one.system, *one.invalid) for one in runs if not one.valid)
    assert not invalid
    cells = defaultdict(list)
    for one in runs:
        cells[one.suite, *one.cell].append(one)  # some workloads of the two tables have one id
    assert len({(suite, workload) for suite, _, workload, _ in cells}) == 41 and len({key[1] for key in cells}) == 2
    counts = [len(found) for found in cells.values()]
    assert min(counts) == profile.repetitions and max(counts) == profile.max_repetitions
    verdicts = json.loads((directory / "repetitions.json").read_text())["cells"]
    assert len(verdicts) == len(cells)
    for cell in verdicts:
        done = cell["width"] <= profile.half_width or cell["runs"] == profile.max_repetitions
        assert done and not cell["again"], cell


def test_tables_are_whole(directory: Path) -> None:
    """Nothing is missing in any cell, and what it is compared with is known as well."""
    argv = [sys.executable, "bin/userblk", "table", str(directory), "--format", "csv-long"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert len({(row["device"], row["measured"], row["workload"]) for row in rows}) == 2 * 41
    for row in rows:
        assert int(row["n"]) >= 5 and int(row["invalid"]) == 0 and row["mean"] and row["ci_low"], row
        assert row["system"] == "native" or row["diff_ci_low"], row


@pytest.mark.timeout(1800)
def test_analysis_and_report_are_quick(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = sum(1 for _ in directory.rglob("DONE"))
    assert runs > LEAST_RUNS
    table = cpu_seconds("table", str(directory))
    compared = cpu_seconds("compare", str(directory), "bdus")
    report = cpu_seconds("report", str(directory))
    with capsys.disabled():
        print(f"{runs} runs: table {table:.1f} s, compare {compared:.1f} s, report {report:.1f} s of CPU time")
    assert max(table, compared) <= TABLES_S and report <= REPORT_S
