# SPDX-License-Identifier: BSD-3-Clause
"""Suite depth-jobs: its workloads, and its heat maps."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from userblk.analysis import depth_jobs, report
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.parts import ENGINES
from userblk.harness.model.plan import Device, estimate, make_plan


def test_its_workloads() -> None:
    suite = load_suite("depth-jobs", "paper")
    assert len(suite.workloads) == 2 * 5 * 7
    one = next(w for w in suite.workloads if w.id == "rand-write-4j-16d-4k")
    assert (one.threads, one.depth, one.block_size, one.cpus) == (4, 16, 4096, 0)


def test_what_it_takes() -> None:
    """Times are the suite's. Reads want an area with data in it: a discarded one answers without the flash."""
    suite = load_suite("depth-jobs", "paper")
    profile = load_profile("paper")
    plan = make_plan(
        suite=suite, profile=profile, systems=[load_system("native")], devices=[Device("nvme", "/dev/null", "1")],
        campaign="t", build="build", workloads=["rand-read-1j-1d-4k", "rand-write-1j-1d-4k"], repetitions=1,
    )  # fmt: skip
    found = estimate(plan)
    assert found.bytes_written["nvme"] == profile.area["nvme"] + 65 * 500_000_000
    assert found.seconds == pytest.approx(2 * (65 + profile.overhead_s + profile.bring_up_s) + (256 << 30) / 5e8)
    assert [ENGINES["sweep"].fills(workload) for workload in plan.suite.workloads] == [True, False]


def write_run(campaign: Path, system: str, depth: int, jobs: int, kops: float) -> None:
    directory = campaign / "here/nvme/depth-jobs" / system / f"rand-read-{jobs}j-{depth}d-4k" / "1"
    directory.mkdir(parents=True)
    summary = {
        "schema": 1, "campaign": "c", "host": "here", "device": "nvme", "system": system, "profile": "quick",
        "workload": f"rand-read-{jobs}j-{depth}d-4k", "emulated": False, "kernel": "6", "valid": True, "warnings": [],
        "metrics": {"throughput_kops": kops, "latency_p99_us": 1e3 * depth * jobs / kops, "cpu_percent": 50.0},
        "suite": "depth-jobs", "repetition": 1, "invalid": [],
    }  # fmt: skip
    (directory / "summary.json").write_text(json.dumps(summary))
    (directory / "environment.json").write_text('{"cpus": 4}')
    (directory / "DONE").touch()


def test_heat_maps(tmp_path: Path) -> None:
    assert depth_jobs.reports(tmp_path) == []
    for system, best in (("native", 400.0), ("ublk-uring", 200.0)):
        for depth in (1, 8, 32):
            for jobs in (1, 4):
                if (system, depth, jobs) != ("ublk-uring", 32, 4):  # which is missing
                    write_run(tmp_path, system, depth, jobs, best * (1 - math.exp(-depth * jobs / 16)))
    (one,) = depth_jobs.reports(tmp_path)
    assert len(one.rows) == 11
    assert one.rows[0] == ("NVMe", "rand-read", "4k", "Native", "1", "1", "24.2", "41.3", "82.53")  # 2 CPUs of 4 busy
    assert report.as_csv(one).count("cpu_us_per_request") == 11
    (draw,) = one.figures.values()
    panels = [axis for axis in draw().axes if axis.images]
    assert [len(axis.texts) for axis in panels] == [6, 5] * 3
    assert panels[0].get_title() == "Native" and panels[0].texts[0].get_text() == "24.2"
    limits = [axis.images[0].get_clim() for axis in panels]
    assert limits[0] == limits[1] != limits[2]
