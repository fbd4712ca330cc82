# SPDX-License-Identifier: BSD-3-Clause
"""Makes up campaigns, raw files and all: python3 tests/support/synthetic.py DIRECTORY REPETITIONS

The numbers are inputs of tests, not results. Same seed, same files.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.plan import Device, Entry, Plan, make_plan, write_plan

DEVICES = (Device("sata", "$LAB_SATA", "MADEUP1"), Device("nvme", "$LAB_NVME", "MADEUP2"))
SYSTEMS = ("native", "nbdkit", "tcmu", "fuse")
SPEED = {"native": 1.0, "nbdkit": 0.6, "tcmu": 0.75, "fuse": 0.9}  # of native's throughput
CPU = {"native": 20.0, "nbdkit": 35.0, "tcmu": 30.0, "fuse": 28.0, "buse": 40.0}
NOISE = 0.03  # standard deviation between runs, of the mean
ENVIRONMENT = {
    "kernel": "0.0.0-made-up",
    "cpu_model": "Made-up CPU",
    "cpus": 2,
    "packages": {"fio": "3.33-1", "nbdkit": "1.42.3-1", "tcmu-runner": "1.5.4-9"},
    "devices": {"sata": {"model": "Made-up SATA"}, "nvme": {"model": "Made-up NVMe"}},
    "load": [0.1, 0.1, 0.1],
    "command_line": "root=PARTUUID=01234567-89ab-cdef-0123-456789abcdef",
}


def histogram(rng: random.Random, median_us: float, operations: int) -> dict[str, int]:
    """A lognormal one with bins as fio names them."""
    bins: dict[str, int] = {}
    for step in range(-20, 41):
        latency = median_us * 1e3 * 1.12**step
        count = round(operations * 0.045 * math.exp(-((step / 12) ** 2) / 2) * rng.uniform(0.9, 1.1))
        if count:
            group = max(0, int(latency).bit_length() - 7)
            name = (int(latency) >> group << group) + ((1 << group) >> 1)
            bins[str(name)] = bins.get(str(name), 0) + count
    return bins


def write_fio(
    directory: Path, rng: random.Random, kops: float, us: float, threads: int, steps: int, step_s: float
) -> None:
    bins = histogram(rng, us * 0.9, int(kops * 1e3 * steps * step_s))
    side: dict[str, Any] = {"clat_ns": {"bins": bins}, "lat_ns": {"mean": us * 1e3}, "total_ios": sum(bins.values())}
    none: dict[str, Any] = {"clat_ns": {}, "lat_ns": {"mean": 0.0}, "total_ios": 0, "runtime": 0}
    report = {"fio version": "fio-3.33", "jobs": [{"read": {**side, "runtime": 1e3 * steps * step_s}, "write": none}]}
    (directory / "fio.json").write_text(json.dumps(report))
    iops = []
    for _ in range(threads):
        for step in range(1, steps + 1):
            time = round(1e3 * step * step_s) + rng.randrange(4)
            iops.append(f"{time}, {kops * 1e3 / threads * rng.uniform(0.95, 1.05):.0f}, 0, 0, 0\n")
    (directory / "fio_iops.log").write_text("".join(iops))


def write_flow(directory: Path, rng: random.Random, kops: float, us: float, steps: int, step_s: float) -> None:
    intervals = []
    for step in range(steps):
        operations = int(kops * 1e3 * step_s * rng.uniform(0.95, 1.05))
        bins = histogram(rng, us * 0.9, operations)
        one: dict[str, Any] = {"start_s": step * step_s, "end_s": (step + 1) * step_s, "ops": operations}
        one["latency_ns"] = {"sum": int(operations * us * 1e3), "bins": bins}
        intervals.append(one)
    (directory / "flow.json").write_text(json.dumps({"schema": 1, "intervals": intervals}))


def write_run(
    campaign: Path, plan: Plan, entry: Entry, rng: random.Random, changes: Mapping[str, Any], speed: Mapping[str, float]
) -> None:
    workload = plan.workload(entry)
    profile = plan.profile
    threads = workload.threads or 16
    kops = (40.0 if entry.device == "nvme" else 10.0) * threads**0.5 * speed[entry.system] * rng.gauss(1.0, NOISE)
    us = threads * 1e3 / kops
    step_s = profile.workload_interval_ms / 1e3
    directory = campaign / plan.directory(entry)
    directory.mkdir(parents=True)
    on_files = workload.engine == "flow"
    seconds = float(profile.files.seconds(workload)) if on_files else profile.runtime_s
    if on_files:
        write_flow(directory, rng, kops, us, round(seconds / step_s), step_s)
    else:
        write_fio(directory, rng, kops, us, threads, round(seconds / step_s), step_s)
    cpu = CPU.get(entry.system, CPU["fuse"]) + rng.gauss(0.0, 1.0)
    metrics = {"throughput_kops": kops, "latency_us": us, "cpu_percent": cpu}
    value = {
        "schema": 1,
        "campaign": plan.campaign,
        "host": plan.host,
        "device": entry.device,
        "suite": entry.suite,
        "engine": workload.engine,
        "system": entry.system,
        "workload": entry.workload,
        "repetition": entry.repetition,
        "profile": profile.name,
        "order": entry.index,
        "emulated": plan.emulated,
        "kernel": ENVIRONMENT["kernel"],
        "duration_s": seconds,
        "valid": True,
        "invalid": [],
        "warnings": [],
        "metrics": metrics,
    }
    (directory / "summary.json").write_text(json.dumps(value | dict(changes)))
    (directory / "environment.json").write_text(json.dumps(ENVIRONMENT))
    (directory / "DONE").touch()


def make_campaign(
    results: Path,
    name: str = "made-up",
    *,
    repetitions: int = 3,
    systems: Sequence[str] = SYSTEMS,
    workloads: Sequence[str] | None = None,
    suite: str = "bdus",
    seed: int = 1,
    changes: Mapping[int, Mapping[str, Any]] | None = None,
    speed: Mapping[str, float] = SPEED,
    emulated: bool = True,
) -> Path:
    """changes: of the summary, by the index of its entry."""
    plan = make_plan(
        suite=load_suite(suite),
        profile=load_profile("quick"),
        systems=[load_system(system) for system in systems],
        devices=DEVICES,
        campaign=name,
        build="build/host",
        host="nowhere",
        emulated=emulated,
        seed=seed,
        repetitions=repetitions,
        workloads=workloads,
    )
    directory = results / name
    directory.mkdir(parents=True)
    write_plan(plan, directory)
    asked = {
        "schema": 1,
        "campaign": name,
        "created": "2026-01-01T00:00:00Z",
        "suite": suite,
        "systems": list(systems),
        "repetitions": repetitions,
        "seed": seed,
        "choices": ["number of files is 5 (because)"],
    }
    (directory / "campaign.json").write_text(json.dumps(asked))
    rng = random.Random(seed)
    for entry in plan.entries:
        write_run(directory, plan, entry, rng, (changes or {}).get(entry.index, {}), speed)
    return directory


if __name__ == "__main__":
    print(make_campaign(Path(sys.argv[1]), repetitions=int(sys.argv[2])))
