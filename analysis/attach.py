# SPDX-License-Identifier: BSD-3-Clause
"""How long disks took to come and go: suite attach, as a table and as distributions."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from . import drawing
from .palette import look
from .report import ALL_HOSTS, NO_VALUE, Report, of_suite, place, summaries_of
from .statistics import Interval, quantile_interval
from .summaries import SUMMARY, SummaryError, lab_words
from .table import SYSTEMS, ordered

SUITE = "attach"
MEASURES = {"there": "Disk there", "read": "First 4 KiB read", "gone": "Gone"}
QUANTILES = {"p50": 0.5, "p99": 0.99}
NOTES = (
    "Milliseconds. All disks are requested at the same moment, each from a server of its own with the null device"
    " (TCMU: one daemon for all, which starts with them and ends with the last; loop: a file in memory), and taken away"
    " at the same moment.",
    "In brackets: 95 % confidence interval of the quantile, whose unit is the cycle: disks that come and go together"
    " count as so many samples as their cycles are worth; - where there are too few for that end.",
)

Samples = dict[str, list[Sequence[float]]]  # ms, by measure, of each cycle


def _samples(path: Path, disks: int) -> Samples:
    """By cycle: so many samples that follow one another are of one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        samples = {name: [float(value) * 1e3 for value in found[name]] for name in MEASURES}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SummaryError(f"{path}: cannot be read: {error}") from None
    for values in samples.values():
        if disks < 1 or len(values) % disks:
            raise SummaryError(f"{path}: {len(values)} samples are no whole number of cycles of {disks} disks")
    return {name: [values[at : at + disks] for at in range(0, len(values), disks)] for name, values in samples.items()}


def _text(interval: Interval) -> str:
    low, high = (NO_VALUE if end is None else f"{end:.1f}" for end in (interval.low, interval.high))
    return f"{interval.value:.1f} [{low}, {high}]"


def reports(directory: Path, host: str = ALL_HOSTS) -> list[Report]:
    """The reports on a campaign; none without a finished run. Raises SummaryError."""
    found = list(summaries_of(directory, SUITE, host))
    if not found:
        return []
    cells: dict[tuple[str, int], Samples] = defaultdict(lambda: {name: [] for name in MEASURES})
    for path, summary in found:
        if summary["valid"]:
            with of_suite(SUITE, path / SUMMARY):
                disks = int(summary["settings"][SUITE]["disks"])
            for name, cycles in _samples(path / "attach.json", disks).items():
                cells[summary["system"], disks][name] += cycles
    where, facts = place([summary for _, summary in found])
    systems = ordered({system for system, _ in cells}, SYSTEMS)
    rows, records = [], []
    for system in systems:
        for disks in sorted(count for name, count in cells if name == system):
            cell = cells[system, disks]
            texts = []
            for name in MEASURES:
                for label, share in QUANTILES.items():
                    interval = quantile_interval(cell[name], share)
                    texts.append(_text(interval))
                    ends = ("" if end is None else repr(end) for end in (interval.low, interval.high))
                    sizes = (str(len(cell[name]) * disks), str(len(cell[name])))
                    records.append((system, str(disks), name, label, *sizes, repr(interval.value), *ends))
            count = len(cell["gone"])
            rows.append((SYSTEMS.get(system, system), str(disks), str(count), str(count * disks), *texts))
    return [
        Report(
            name=SUITE,
            title=f"Disks that come and go, {where}",
            notes=(*facts, *NOTES),
            columns=(
                "System",
                "Disks",
                "Cycles",
                "Samples",
                *(f"{title}, {q}" for title in MEASURES.values() for q in QUANTILES),
            ),
            rows=tuple(rows),
            heads=("system", "disks", "measure", "quantile", "n", "cycles", "ms", "ci_low", "ci_high"),
            records=tuple(records),
            emulated=max(lab_words(summary) for _, summary in found),
            figures={SUITE: partial(_draw, where, dict(cells), systems)} if cells else {},
        )
    ]


def _draw(where: str, cells: Mapping[tuple[str, int], Samples], systems: Sequence[str]) -> Any:
    """The share of disks by time, a row a measure and a column a number of disks."""
    counts = sorted({disks for _, disks in cells})
    figure = drawing.new_figure(3.2 * len(counts) + 1.5, 2.2 * len(MEASURES) + 0.8)
    axes = figure.subplots(len(MEASURES), len(counts), squeeze=False)
    for row, (name, title) in enumerate(MEASURES.items()):
        axes[row][0].set_ylabel("share of the disks")
        for axis, disks in zip(axes[row], counts, strict=True):
            for system in systems:
                if (system, disks) in cells:
                    values = sorted(value for cycle in cells[system, disks][name] for value in cycle)
                    shares = [rank / len(values) for rank in range(1, len(values) + 1)]
                    style = {"color": look(system, systems).colour, "linestyle": look(system, systems).line}
                    axis.step(values, shares, where="post", label=SYSTEMS.get(system, system), **style)
            axis.set_xscale("log")
            axis.set_title(f"{title}, " + ("1 disk" if disks == 1 else f"{disks} disks"), loc="left", fontsize=9)
            axis.set_xlabel("ms")
    drawing.legend(axes.flat, axes[0][-1])
    figure.suptitle(f"Disks that come and go, {where}", fontsize=10)
    return figure
