# SPDX-License-Identifier: BSD-3-Clause
"""Reads the summary.json of every finished run of a campaign (docs/results.md)."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = 1
METRICS = ("throughput_kops", "throughput_mbps", "latency_us", "cpu_percent", "files_kops")
COUNTING = "0"  # the repetition in which costs were counted, and no timing is used
DEPTH = 6  # HOST/DEVICE/SUITE/SYSTEM/WORKLOAD/N below the campaign


class SummaryError(Exception):
    """A result that cannot be read; one line that names the file."""


@dataclass(frozen=True)
class Run:
    """What the tables need of one run."""

    campaign: str
    host: str
    device: str
    suite: str
    system: str
    workload: str
    repetition: int
    profile: str
    emulated: bool
    valid: bool
    invalid: tuple[str, ...]
    warnings: tuple[str, ...]
    metrics: Mapping[str, float]  # only those that are finite numbers
    kernel: str
    engine: str  # what put the load on: fio on the device, flow on a file system
    steady: bool | None = None  # was the workload's throughput, once warm; None: it cannot be told

    @property
    def cell(self) -> tuple[str, str, str]:
        return self.device, self.workload, self.system


def run_from_summary(summary: Mapping[str, Any], source: str) -> Run:
    """The run that a summary describes. source names it in errors. Raises SummaryError."""
    if summary.get("schema") != SCHEMA:
        raise SummaryError(f"{source}: schema={summary.get('schema')}: this version reads schema {SCHEMA}")
    try:
        values = {name: summary["metrics"].get(name) for name in METRICS}
        return Run(
            campaign=summary["campaign"],
            host=summary["host"],
            device=summary["device"],
            suite=summary["suite"],
            system=summary["system"],
            workload=summary["workload"],
            repetition=int(summary["repetition"]),
            profile=summary["profile"],
            emulated=bool(summary["emulated"]),
            valid=bool(summary["valid"]),
            invalid=tuple(summary["invalid"]),
            warnings=tuple(summary["warnings"]),
            metrics={k: float(v) for k, v in values.items() if v is not None and math.isfinite(v)},
            kernel=str(summary.get("kernel", "")),
            engine=str(summary.get("engine", "fio")),
            steady=(summary.get("warm_up") or {}).get("steady"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SummaryError(f"{source}: not a summary: {type(error).__name__} {error}") from None


def _run_directories(directory: str, depth: int) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        raise SummaryError(f"{directory}: {error.strerror}") from None
    for entry in entries:
        if entry.is_dir():
            if depth > 1:
                yield from _run_directories(entry.path, depth - 1)
            elif entry.name != COUNTING and os.path.exists(os.path.join(entry.path, "DONE")):
                yield entry.path


def load_campaign(directory: Path) -> list[Run]:
    """The finished runs of a campaign directory. Raises SummaryError."""
    runs = []
    for path in _run_directories(str(directory), DEPTH):
        file = os.path.join(path, "summary.json")
        try:
            with open(file, encoding="utf-8") as stream:
                summary = json.load(stream)
        except OSError as error:
            raise SummaryError(f"{file}: {error.strerror}") from None
        except ValueError as error:
            raise SummaryError(f"{file}: not JSON: {error}") from None
        runs.append(run_from_summary(summary, file))
    return runs
