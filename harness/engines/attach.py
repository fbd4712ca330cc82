# SPDX-License-Identifier: BSD-3-Clause
"""Disks that come and go: the program that has them do so, and what it leaves."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from ..model.config import Profile, Suite, SystemConfig, Workload
from ..model.parts import ENGINES, Kind
from ..model.tables import Table, counts
from ..observing.warmup import WarmUp
from . import Result, WorkloadError
from .base import DeviceEngine, Job, Run

SAMPLES = "attach.json"
MEASURES = ("there", "read", "gone")
EACH = "disk_s"
CYCLE_LIMIT_S = 120.0  # s that a cycle may take


def argv(workload: Workload, kind: str, build: str, directory: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "userblk.harness.systems.attach",
        f"--kind={kind}",
        f"--build={build}",
        f"--disks={workload.threads}",
        f"--samples={workload.depth}",
        f"--output={directory / SAMPLES}",
    ]


def cycles(workload: Workload) -> int:
    """How many give as many samples as are wanted."""
    return math.ceil(workload.depth / workload.threads)


def all_disks(workload: Workload) -> int:
    """How many all cycles have together."""
    return cycles(workload) * workload.threads


def limit(workload: Workload) -> float:
    """Seconds that the program may take."""
    return cycles(workload) * CYCLE_LIMIT_S


def parse(directory: Path, workload: Workload) -> Result:
    """An operation is a disk that came and went. Raises WorkloadError."""
    try:
        samples = json.loads((directory / SAMPLES).read_text())
        values = {name: [float(value) for value in samples[name]] for name in MEASURES}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WorkloadError(f"{SAMPLES} cannot be read: {error}") from None
    few = [name for name, found in values.items() if len(found) < workload.depth]
    if few:
        raise WorkloadError(f"{SAMPLES}: fewer than {workload.depth} samples of {', '.join(few)}")
    disks, together = len(values["gone"]), workload.threads
    # A cycle lasts until the last of its disks has been read from, and until the last is gone.
    busy = sum(max(values[name][at : at + together]) for name in ("read", "gone") for at in range(0, disks, together))
    return Result(
        throughput_kops=disks / busy / 1e3,
        throughput_mbps=0.0,
        latency_us=fmean(values["there"]) * 1e6,
        duration_s=busy,
        measured_from=0.0,
        version="",
        problems=(),
        warnings=(),
        operations=float(disks),
        warm_up=WarmUp("none", 0.0, None, "disks that come and go have none"),
        ramp_s=0.0,
        settings={"disks": workload.threads, "samples": disks},
    )


def _workloads(suite: str, table: Table, profile: str) -> Iterator[Workload]:
    """Workloads from the rest of a suite's table: one for each number of disks."""
    disks, samples = counts(table, "disks"), table.table("samples").integer(profile, 1)
    timing = {profile: {EACH: table.table(EACH).number(profile)}}
    table.end(("name", "engine", "systems", "disks", "samples", EACH))
    for count in disks:
        yield Workload(f"{count}-disks", threads=count, suite=suite, engine="attach", depth=samples, timing=timing)


class Attach(DeviceEngine):
    """Disks that come and go. It has modules loaded, and touches no device."""

    name = "attach"
    own_report = True
    table_files = (SAMPLES,)
    uses_device = False
    has_ramp = False

    def suite(self, name: str, table: Table, profile: str, systems: tuple[str, ...]) -> Suite:
        return Suite(name, tuple(_workloads(name, table, profile)), systems)

    def fits(self, workload: Workload, system: SystemConfig, kind: Kind) -> bool:
        return kind.attaches(system)

    def duration_s(self, workload: Workload, profile: Profile) -> float:
        """A machine has few CPUs, so that disks that come at once hardly take less than one after the other."""
        each = workload.timing.get(profile.name, {}).get(EACH, 0.0)  # which a plan of an older version does not say
        return all_disks(workload) * each

    def run_text(self, workload: Workload, profile: Profile) -> str:
        return f"{workload.id}: {all_disks(workload)} disks come and go per run"

    def programs(self, build: str) -> list[str]:
        return []

    def system(self, system: SystemConfig) -> SystemConfig:
        return SystemConfig("native", "native")  # the program brings its disks up itself, on no device

    def prepare(self, run: Run) -> tuple[Job, dict[str, object]]:
        kind = run.plan.systems[run.entry.system].kind
        job = Job(
            argv=argv(run.workload, kind, run.plan.build, run.directory),
            seconds=limit(run.workload),
            parse=lambda: parse(run.directory, run.workload),
            synced=(),
            sync=os.fsync,
            area=0,
        )
        return job, {}


ENGINES.add(Attach())
