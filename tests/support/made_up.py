# SPDX-License-Identifier: BSD-3-Clause
"""Summaries and plans of campaigns that never were: the numbers are inputs of tests, not results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from userblk.analysis.summaries import Run, run_from_summary
from userblk.analysis.table import WORKLOADS
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.plan import Plan, make_plan
from userblk.harness.running.campaign import create, lab_devices


def summary(**changes: Any) -> dict[str, Any]:
    """A made-up summary of the schema in docs/results.md."""
    value: dict[str, Any] = {
        "schema": 1,
        "campaign": "made-up",
        "host": "nowhere",
        "device": "sata",
        "suite": "bdus-block",
        "system": "native",
        "workload": "seq-read-1th-4k",
        "repetition": 1,
        "profile": "quick",
        "seed": 5,
        "order": 0,
        "emulated": True,
        "kernel": "0.0.0-test",
        "valid": True,
        "invalid": [],
        "warnings": [],
        "metrics": {"throughput_kops": 10.0, "latency_us": 100.0, "cpu_percent": 20.0, "throughput_mbps": 40.0},
    }
    return value | changes


def run(kops: float = 10.0, us: float = 100.0, cpu: float = 20.0, **changes: Any) -> Run:
    metrics = {"throughput_kops": kops, "latency_us": us, "cpu_percent": cpu}
    return run_from_summary(summary(metrics=metrics, **changes), "test")


def runs(system: str, kops: list[float], **changes: Any) -> list[Run]:
    return [run(value, 1000.0 / value, system=system, repetition=i, **changes) for i, value in enumerate(kops, 1)]


def made_up(reps: int = 3) -> list[Run]:
    return [
        one
        for device in ("nvme", "sata")
        for workload in reversed(WORKLOADS)
        for system, factor in (("tcmu", 0.6), ("native", 1.0), ("nbdkit", 1.2))
        for one in runs(
            system, [1234.5 * factor * (1 + i / 100) for i in range(reps)], device=device, workload=workload
        )
    ]


def small_plan(**changes: object) -> Plan:
    options: dict[str, object] = {
        "suite": load_suite("bdus-block"),
        "profile": load_profile("quick"),
        "systems": [load_system("native"), load_system("nbdkit")],
        "devices": lab_devices("real"),
        "campaign": "made-up",
        "build": "build/trixie",
        "host": "lab",
        "emulated": True,
        "seed": 1,
        "repetitions": 1,
        "workloads": ["seq-read-1th-4k"],
    }
    return make_plan(**(options | changes))  # type: ignore[arg-type]


def small_campaign(results: Path) -> Path:
    """A campaign whose runs are all done."""
    plan = small_plan()
    directory = create(plan, results, ["userblk", "run"])
    for entry in plan.entries:
        target = directory / plan.directory(entry)
        target.mkdir(parents=True)
        ids = {"device": entry.device, "system": entry.system, "workload": entry.workload, "host": "lab"}
        (target / "summary.json").write_text(json.dumps(summary(**ids)))
        (target / "DONE").touch()
    return directory
