# SPDX-License-Identifier: BSD-3-Clause
"""How often is a cell measured? Until its intervals are narrow, between the profile's least and most.

Judged after every round, from the valid runs: the half width of the 95 % interval of the mean of throughput and of
latency as a share of the mean, that of CPU in points. Stopping when intervals have become narrow makes them a little
too narrow; the least number of runs keeps that small, and --reps N, which is honoured exactly, avoids it.

Standard library only.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ..machine.durable import write_json
from ..model.config import Profile
from ..model.plan import EXTRA, CellId, Entry, Plan, extend, write_plan
from ..observing.student import half_width

FILE = "repetitions.json"
SCHEMA = 1
SHARES = {"throughput_kops": "throughput", "latency_us": "latency"}  # judged relative to the mean
CPU = "cpu_percent"
NATIVE = "native"


@dataclass(frozen=True)
class Verdict:
    """runs: planned so far, valid: of them. width: the widest half width in the unit of the profile's limit."""

    runs: int
    valid: int
    width: float | None
    again: bool
    reason: str


def widest(samples: Mapping[str, Sequence[float]]) -> tuple[float, str] | None:
    """The widest half width and what it is of, as "7.1 % of the mean throughput"; None with fewer than two runs."""
    found = []
    for name, title in SHARES.items():
        sample = samples.get(name, ())
        if len(sample) > 1 and fmean(sample):
            share = 100 * half_width(sample) / abs(fmean(sample))
            found.append((share, f"{share:.1f} % of the mean {title}"))
    if len(sample := samples.get(CPU, ())) > 1:
        points = half_width(sample)
        found.append((points, f"{points:.1f} points of CPU"))
    return max(found, default=None)


def judge(profile: Profile, samples: Mapping[str, Sequence[float]], runs: int) -> Verdict:
    """The verdict on one cell with so many runs planned; samples: the metrics of the valid ones."""
    valid = max((len(sample) for sample in samples.values()), default=0)
    found = widest(samples)
    least, most = profile.repetitions, profile.max_repetitions
    if runs < least:
        return Verdict(runs, valid, None, True, f"fewer than {least} runs")
    if found is None:
        reason = f"{valid} valid of {runs}: no interval" + ("" if least > 1 else ", as asked for")
        return Verdict(runs, valid, None, False, reason)
    width, text = found
    if valid < least and runs < most:
        return Verdict(runs, valid, width, True, f"{valid} valid of {runs}, fewer than {least}: {text}")
    if width <= profile.half_width:
        return Verdict(runs, valid, width, False, f"narrow enough: {text}")
    if runs < most:
        return Verdict(runs, valid, width, True, f"too wide: {text}")
    asked = f"{runs} runs were asked for" if most == least else f"the maximum of {most} runs was made"
    return Verdict(runs, valid, width, False, f"{asked}: {text}")


def judge_all(plan: Plan, directory: Path) -> dict[CellId, Verdict]:
    """The verdict on every cell of the plan, from its runs below the campaign's directory."""
    runs: dict[CellId, int] = defaultdict(int)
    samples: dict[CellId, dict[str, list[float]]] = {}
    for entry in plan.entries:
        if entry.repetition in EXTRA:
            continue
        runs[entry.cell] += 1
        sample = samples.setdefault(entry.cell, {})
        place = directory / plan.directory(entry)
        try:
            summary = json.loads((place / "summary.json").read_text()) if (place / "DONE").exists() else {}
        except (OSError, ValueError):
            continue  # it will be run again when the campaign resumes
        if not summary.get("valid"):
            continue
        for name in (*SHARES, CPU):
            if (value := summary["metrics"].get(name)) is not None:
                sample.setdefault(name, []).append(float(value))
    return {cell: judge(plan.profile, sample, runs[cell]) for cell, sample in samples.items()}


def write(verdicts: Mapping[CellId, Verdict], profile: Profile, directory: Path) -> None:
    """Replace directory/repetitions.json."""
    value = {
        "schema": SCHEMA,
        "least": profile.repetitions,
        "most": profile.max_repetitions,
        "half_width": profile.half_width,
        "cells": [
            dict(zip(("device", "suite", "system", "workload"), cell, strict=True)) | vars(verdict)
            for cell, verdict in sorted(verdicts.items())
        ],
    }
    write_json(directory / FILE, value)


def another_round(
    plan: Plan, directory: Path, possible: Callable[[CellId], bool]
) -> tuple[Plan, list[Entry], dict[str, object]]:
    """
    The plan with another round of the cells whose intervals are too wide, what that adds, and the event that tells of
    it; what was decided for each is kept. possible: can the cell be measured here?
    """
    verdicts = judge_all(plan, directory)
    write(verdicts, plan.profile, directory)
    wanted = {cell for cell, verdict in verdicts.items() if verdict.again and possible(cell)}
    # What a system is compared with is measured beside it again: a drift of the machine is in both, then.
    wanted |= {native for cell in wanted if (native := (*cell[:2], NATIVE, cell[3])) in verdicts and possible(native)}
    if not wanted:
        return plan, [], {}
    longer = extend(plan, wanted)
    write_plan(longer, directory)
    added = list(longer.entries[len(plan.entries) :])
    shown = [dataclasses.asdict(entry) for entry in added]
    event: dict[str, object] = {"entries": shown, "reason": summary_line(verdicts)}
    return longer, added, event


def summary_line(verdicts: Mapping[CellId, Verdict]) -> str:
    """Which cells go on and why, for people; "" if none does."""
    again = {cell: verdict for cell, verdict in verdicts.items() if verdict.again}
    if not again:
        return ""
    cell = max(again, key=lambda one: again[one].width or 0.0)
    device, _, system, workload = cell
    return (
        f"{len(again)} of {len(verdicts)} cells are measured once more;"
        f" the widest: {device} {system} {workload}, {again[cell].reason}"
    )
