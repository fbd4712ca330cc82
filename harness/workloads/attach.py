# SPDX-License-Identifier: BSD-3-Clause
"""Disks that come and go: the program that has them do so, and what it leaves."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from statistics import fmean

from ..config import Workload
from ..steady import WarmUp
from . import Result, WorkloadError

SAMPLES = "attach.json"
MEASURES = ("there", "read", "gone")
CYCLE_LIMIT_S = 120.0  # s that a cycle may take


def argv(workload: Workload, kind: str, build: str, directory: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "userblk.harness.attach",
        f"--kind={kind}",
        f"--build={build}",
        f"--disks={workload.threads}",
        f"--samples={workload.depth}",
        f"--output={directory / SAMPLES}",
    ]


def limit(workload: Workload) -> float:
    """Seconds that the program may take."""
    return math.ceil(workload.depth / workload.threads) * CYCLE_LIMIT_S


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
    disks = len(values["gone"])
    busy = sum(fmean(values[name]) for name in ("read", "gone")) * disks / workload.threads
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
