# SPDX-License-Identifier: BSD-3-Clause
"""A campaign for other programs: OpenMetrics for what collects metrics, and one JSON object with a published schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from userblk.harness.observing.histogram import TAIL, tail_metric

from .statistics import Interval
from .summaries import Campaign, Run, changes_of, lost_of, missing_of
from .table import METRICS_BY_ID, Table

SCHEMA = 1  # of the JSON, configs/export.schema.json
# Family, unit (the end of its name), help, our metric, what a value is multiplied with.
FAMILIES = (
    ("userblk_run_operations_per_second", "", "operations completed in a second", "throughput_kops", 1e3),
    ("userblk_run_latency_seconds", "seconds", "mean latency", "latency_us", 1e-6),
    ("userblk_run_cpu_ratio", "ratio", "share of all CPUs that were busy", "cpu_percent", 1e-2),
)
QUANTILES = "userblk_run_latency_quantile_seconds"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _labels(run: Run, **more: str) -> str:
    names = ("campaign", "host", "device", "suite", "system", "workload", "repetition", "profile")
    values = {name: str(getattr(run, name)) for name in names} | {"emulated": str(bool(run.emulated)).lower()} | more
    values["host"] = run.machine or run.host
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items()) + "}"


def _family(name: str, unit: str, text: str, samples: Sequence[str]) -> Iterator[str]:
    if samples:
        yield f"# TYPE {name} gauge"
        if unit:
            yield f"# UNIT {name} {unit}"
        yield f"# HELP {name} {text}"
        yield from samples


def openmetrics(campaign: Campaign) -> str:
    """A sample for each metric of each run in OpenMetrics 1.0; of runs that are not valid only that they are not."""
    runs = sorted(campaign.runs, key=lambda run: run.order)
    lines = list(
        _family(
            "userblk_run_valid",
            "",
            "1 if the run may be used",
            [f"userblk_run_valid{_labels(run)} {int(run.valid)}" for run in runs],
        )
    )
    valid = [run for run in runs if run.valid]
    for name, unit, text, metric, factor in FAMILIES:
        found = [run for run in valid if metric in run.metrics]
        lines += _family(name, unit, text, [f"{name}{_labels(run)} {run.metrics[metric] * factor!r}" for run in found])
    tails = [
        f"{QUANTILES}{_labels(run, quantile=f'{percent / 100:.6g}')} {run.metrics[tail_metric(percent)] * 1e-6!r}"
        for run in valid
        for percent in TAIL
        if tail_metric(percent) in run.metrics
    ]
    lines += _family(QUANTILES, "seconds", "percentiles of the run's latencies", tails)
    return "\n".join([*lines, "# EOF"]) + "\n"


def _interval(interval: Interval | None) -> dict[str, float | None] | None:
    if interval is None:
        return None
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def as_json(campaign: Campaign, tables: Sequence[Table]) -> dict[str, Any]:
    """Every run and every cell of the tables; configs/export.schema.json describes them."""
    cells = []
    for table in tables:
        for (device, workload, system, name), cell in table.cells.items():
            metric = METRICS_BY_ID[name]
            cells.append(
                {
                    "host": table.host,
                    "suite": table.suite,
                    "device": device,
                    "workload": workload,
                    "system": system,
                    "metric": name,
                    "unit": metric.unit,
                    "runs": cell.n,
                    "invalid": cell.invalid,
                    "mean": _interval(cell.mean),
                    "difference": _interval(cell.difference),
                    "difference_unit": "points" if metric.points else "%",
                    "p": cell.p,
                    "p_holm": cell.p_holm,
                    "marks": sorted(mark.name.lower() for mark in cell.marks),
                }
            )
    runs = [
        {
            "host": run.machine or run.host,
            "suite": run.suite,
            "device": run.device,
            "workload": run.workload,
            "system": run.system,
            "repetition": run.repetition,
            "order": run.order,
            "engine": run.engine,
            "profile": run.profile,
            "kernel": run.kernel,
            "emulated": run.emulated,
            "valid": run.valid,
            "invalid": list(run.invalid),
            "warnings": list(run.warnings),
            "duration_s": run.duration_s,
            "steady": run.steady,
            "metrics": dict(run.metrics),
        }
        for run in sorted(campaign.runs, key=lambda run: (run.machine or run.host, run.order))
    ]
    return {
        "schema": SCHEMA,
        "campaign": campaign.name,
        "created": campaign.created,
        "seed": campaign.seed,
        "changes": list(changes_of(campaign.directory)),
        "missing": [*missing_of(campaign.directory), *lost_of(campaign.directory)],
        "choices": [*campaign.block_choices, *campaign.choices],
        "runs": runs,
        "cells": cells,
    }


def json_text(campaign: Campaign, tables: Sequence[Table]) -> str:
    return json.dumps(as_json(campaign, tables), indent=1) + "\n"
