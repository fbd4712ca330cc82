# SPDX-License-Identifier: BSD-3-Clause
"""Rounds until steady state: suite pts, as a table and as SNIA's steady-state plots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from userblk.harness.observing.warmup import DRIFT_LIMIT, EXCURSION_LIMIT

from . import drawing
from .report import (
    ALL_HOSTS,
    INTERVALS,
    Report,
    interval_fields,
    interval_of,
    interval_text,
    of_suite,
    place,
    summaries_of,
)
from .summaries import SUMMARY, lab_words
from .table import DEVICES, SYSTEMS, ordered

SUITE = "pts"
NOTES = (
    "As SNIA's Performance Test Specification 2.0.2: the area is purged and written sequentially, then a workload is"
    f" repeated until the line through five rounds changes by at most {DRIFT_LIMIT:g} % and they differ by at most"
    f" {EXCURSION_LIMIT:g} % of their mean. Results are of these five rounds. *: not steady after the most rounds.",
    INTERVALS,
)

Key = tuple[str, str, str]  # device, workload, system


@dataclass(frozen=True)
class Run:
    """One run. window: how many of the last rounds its result is of."""

    kops: float
    latency_us: float
    rounds_kops: tuple[float, ...]
    window: int
    slope_percent: float
    excursion_percent: float
    steady: bool


def _run(summary: Mapping[str, Any]) -> Run:
    settings, metrics = summary["settings"]["sweep"], summary["metrics"]
    return Run(
        kops=float(metrics["throughput_kops"]),
        latency_us=float(metrics["latency_us"]),
        rounds_kops=tuple(map(float, settings["rounds_kops"])),
        window=int(settings["window"]),
        slope_percent=float(settings["slope_percent"]),
        excursion_percent=float(settings["excursion_percent"]),
        steady=bool(summary["warm_up"]["steady"]),
    )


def reports(directory: Path, host: str = ALL_HOSTS) -> list[Report]:
    """The reports on a campaign; none without a finished run in rounds. Raises SummaryError."""
    found = []
    runs: dict[Key, list[Run]] = defaultdict(list)
    for path, summary in summaries_of(directory, SUITE, host):
        with of_suite(SUITE, path / SUMMARY):
            if "rounds_kops" not in summary["settings"].get("sweep", {}):
                continue
            found.append(summary)
            if summary["valid"]:
                runs[summary["device"], summary["workload"], summary["system"]].append(_run(summary))
    if not found:
        return []
    systems = ordered({system for _, _, system in runs}, SYSTEMS)
    order = sorted(runs, key=lambda key: (*key[:2], systems.index(key[2])))
    where, facts = place(found)
    rows, records = [], []
    for key in order:
        device, workload, system = key
        kops, latency, count = (
            interval_of(values)
            for values in zip(*((one.kops, one.latency_us, len(one.rounds_kops)) for one in runs[key]), strict=True)
        )
        steady = all(one.steady for one in runs[key])
        slope = max(abs(one.slope_percent) for one in runs[key])
        between = max(abs(one.excursion_percent) for one in runs[key])
        rows.append(
            (
                DEVICES.get(device, device),
                workload,
                SYSTEMS.get(system, system),
                interval_text(count, 0) + "*" * (not steady),
                interval_text(kops, 2),
                interval_text(latency, 1),
                f"{slope:.1f}",
                f"{between:.1f}",
            )
        )
        for name, interval in (("throughput_kops", kops), ("latency_us", latency), ("rounds", count)):
            records.append((*key, name, str(len(runs[key])), *interval_fields(interval)))
    panels = dict.fromkeys(key[:2] for key in order)
    return [
        Report(
            name=SUITE,
            title=f"Steady state, {where}",
            notes=(*facts, *NOTES),
            columns=("Device", "Workload", "System", "Rounds", "kop/s", "Latency, us", "Slope, %", "Excursion, %"),
            rows=tuple(rows),
            heads=("device", "workload", "system", "metric", "n", "mean", "ci_low", "ci_high"),
            records=tuple(records),
            emulated=max(map(lab_words, found)),
            figures={
                f"{SUITE}-{device}-{workload}": partial(_draw, (device, workload), where, dict(runs), systems)
                for device, workload in panels
            },
        )
    ]


def _draw(
    what: tuple[str, str],
    where: str,
    runs: Mapping[Key, Sequence[Run]],
    systems: Sequence[str],
) -> Any:
    """A panel a system: every round, the window with its mean, the limits of the excursion and the line through it."""
    here = [system for system in systems if (*what, system) in runs]
    figure = drawing.new_figure(max(3.0 * len(here) + 0.8, 4.5), 3.2)
    axes = figure.subplots(1, len(here), squeeze=False)[0]
    for axis, system in zip(axes, here, strict=True):
        for number, run in enumerate(runs[*what, system]):
            kops, size = run.rounds_kops, run.window
            axis.plot(range(1, len(kops) + 1), kops, marker="o", markersize=3, color=f"C{number}")
            window = range(len(kops) - size + 1, len(kops) + 1)
            mean = fmean(kops[-size:])
            half = run.slope_percent / 200 * mean
            if number == 0:
                axis.axvspan(window[0] - 0.5, window[-1] + 0.5, color="#eeeeee", zorder=0)
                for share, label in ((1 + EXCURSION_LIMIT / 200, "mean ± 10 %"), (1 - EXCURSION_LIMIT / 200, None)):
                    axis.hlines(share * mean, window[0], window[-1], color="#777777", ls=":", lw=1, label=label)
                ends = [mean - half, mean + half]
                axis.plot([window[0], window[-1]], ends, color="black", lw=1, label="least-squares line")
        axis.set_ylim(bottom=0)
        axis.set_title(SYSTEMS.get(system, system), fontsize=9)
        axis.set_xlabel("round")
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0].set_ylabel("kop/s")
    drawing.legend(axes, axes[-1])
    device, workload = what
    figure.suptitle(f"{workload} on {DEVICES.get(device, device)}, rounds until steady, {where}", fontsize=10)
    return figure
