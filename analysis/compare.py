# SPDX-License-Identifier: BSD-3-Clause
"""Two campaigns beside each other: what differs between them, and whether by more than chance."""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from .render import Grid, ends, new_grid, signed
from .statistics import ALPHA, Interval, difference_interval, holm, mean_interval, ratio_interval, welch_p
from .summaries import REAL, Campaign, Run, SummaryError, asked_otherwise, first_environments, lab_banner
from .table import DEVICES, METRICS, SYSTEMS, Metric, row_order

NOT_COMPARED = ("load", "memory")  # of environment.json: what is different in every run


class Verdict(Enum):
    """How the second campaign stands against the first."""

    BETTER = "better"
    WORSE = "worse"
    NONE = "no difference shown"
    FEW = "too few runs"
    ONLY_A = "only in the first"
    ONLY_B = "only in the second"


@dataclass(frozen=True)
class Line:
    """One metric of one cell. difference: second to first, % or points of CPU; p_holm: corrected over all lines."""

    host: str
    suite: str
    device: str
    workload: str
    system: str
    metric: Metric
    n_a: int
    n_b: int
    a: Interval | None
    b: Interval | None
    difference: Interval | None
    p: float | None
    p_holm: float | None
    verdict: Verdict


Place = tuple[str, str, str, str, str]  # host ("" where each campaign has one), suite, device, workload, system


@dataclass(frozen=True)
class Comparison:
    """facts: what is not the same in both campaigns, by name."""

    a: str
    b: str
    facts: Mapping[str, tuple[str, str]]
    lines: tuple[Line, ...]
    emulated: str  # as Run.emulated

    @property
    def summary(self) -> str:
        counts = Counter(line.verdict for line in self.lines)
        listed = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])
        return (
            f"{self.b} against {self.a}: {len(self.lines)} comparisons: {listed}"
            f" (Welch's test at {100 * ALPHA:.0f} %, Holm's correction over all of them)."
        )


def _samples(runs: Sequence[Run], by_host: bool) -> dict[Place, dict[str, list[float]]]:
    """By place and metric."""
    found: dict[Place, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run.valid:
            place = (run.host if by_host else "", run.suite, run.device, run.workload, run.system)
            for metric in METRICS:
                if metric.id in run.metrics:
                    found[place][metric.id].append(run.metrics[metric.id])
    return found


def environments(campaign: Campaign) -> dict[str, dict[str, Any]]:
    """environment.json of the first run on each machine; {} where it cannot be read."""
    return first_environments(campaign.directory, campaign.runs)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested tables as one, "packages.fio" = "3.39-1"."""
    out: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            out[prefix + name] = ", ".join(str(flat(one) if isinstance(one, Mapping) else one) for one in value)
        else:
            out[prefix + name] = str(value)
    return out


def environment_rows(environment: Mapping[str, Any]) -> dict[str, str]:
    """What an environment.json says of a whole campaign."""
    return flat({name: value for name, value in environment.items() if name not in NOT_COMPARED})


def _facts(campaign: Campaign) -> dict[str, str]:
    runs = campaign.runs
    facts = {
        name: ", ".join(sorted({str(getattr(run, name)) for run in runs}))
        for name in ("host", "profile", "emulated", "kernel")
    }
    facts["repetitions"] = str(campaign.asked.get("repetitions", ""))
    for part in ("guest", "machine"):  # of the lab: the guest's images, and what ran it
        if isinstance(found := campaign.asked.get(part), Mapping):
            facts |= flat({part: environment_rows(found)})
    for host, environment in environments(campaign).items():
        prefix = "" if len({run.machine or run.host for run in runs}) == 1 else f"{host}: "
        facts |= {prefix + name: value for name, value in environment_rows(environment).items()}
    return facts


def _verdict(metric: Metric, a: Sequence[float], b: Sequence[float], p_holm: float | None) -> Verdict:
    if not a:
        return Verdict.ONLY_B
    if not b:
        return Verdict.ONLY_A
    if p_holm is None:
        return Verdict.FEW
    if p_holm > ALPHA:
        return Verdict.NONE
    return Verdict.BETTER if metric.sign * (sum(b) / len(b) - sum(a) / len(a)) > 0 else Verdict.WORSE


def _difference(metric: Metric, a: Sequence[float], b: Sequence[float]) -> Interval | None:
    if not a or not b:
        return None
    if metric.points:
        return difference_interval(b, a)
    ratio = ratio_interval(b, a)
    return ratio.scaled(100.0, -100.0) if ratio else None


def compare(first: Campaign, second: Campaign) -> Comparison:
    """Every metric of every cell that either has. Hosts are named only where a campaign has several."""
    by_host = any(len({run.host for run in campaign.runs}) > 1 for campaign in (first, second))
    samples = _samples(first.runs, by_host), _samples(second.runs, by_host)
    places = sorted(set(samples[0]) | set(samples[1]), key=lambda p: (p[0], p[1], *row_order(p[2], p[3], p[4])))
    rows: list[tuple[Place, Metric, list[float], list[float]]] = []
    for place in places:
        for metric in METRICS:
            a, b = (one.get(place, {}).get(metric.id, []) for one in samples)
            if a or b:
                rows.append((place, metric, a, b))
    p_values = [welch_p(b, a) if a and b else None for _, _, a, b in rows]
    tested = [p for p in p_values if p is not None]
    adjusted = iter(holm(tested))
    lines = []
    for (place, metric, a, b), p in zip(rows, p_values, strict=True):
        p_holm = None if p is None else next(adjusted)
        means = [mean_interval(sample) if sample else None for sample in (a, b)]
        difference, verdict = _difference(metric, a, b), _verdict(metric, a, b, p_holm)
        lines.append(Line(*place, metric, len(a), len(b), means[0], means[1], difference, p, p_holm, verdict))
    facts = _facts(first), _facts(second)
    names = [name for name in dict.fromkeys([*facts[0], *facts[1]]) if facts[0].get(name) != facts[1].get(name)]
    differing = {name: (facts[0].get(name, ""), facts[1].get(name, "")) for name in names}
    differing |= {name: (a, b) for name, (a, b) in asked_otherwise([first, second]).items()}
    emulated = max(run.emulated for run in (*first.runs, *second.runs))
    return Comparison(first.name, second.name, differing, tuple(lines), emulated)


# ---- a gate ---------------------------------------------------------------------------


def regressions(comparison: Comparison, percent: float) -> list[Line]:
    """
    Cells that the second campaign lacks, or of which one of both has too few valid runs to be tested, or where the
    second is worse by more than percent (CPU: points), significantly.

    Raises SummaryError where not one cell could be tested: a gate that cannot close says nothing.
    """
    if all(line.p_holm is None for line in comparison.lines):
        raise SummaryError(
            f"fail-over={percent:g}: no cell has two valid runs in both campaigns, so nothing can be tested;"
            " run them with --reps 2 or more"
        )
    worse = []
    for line in comparison.lines:
        lost = line.difference is not None and -line.metric.sign * line.difference.value > percent
        gone = line.verdict is Verdict.ONLY_A or (line.verdict is Verdict.FEW and min(line.n_a, line.n_b) < 2)
        if gone or (line.verdict is Verdict.WORSE and lost):
            worse.append(line)
    return worse


# ---- shown --------------------------------------------------------------------------


def _text(interval: Interval | None, decimals: int, relative: bool = False) -> str:
    if interval is None:
        return "-"
    value = signed(interval.value, decimals) if relative else f"{interval.value:.{decimals}f}"
    return value if interval.half is None else f"{value} ±{interval.half:.{decimals}f}"


def _grid(lines: Sequence[Line]) -> Grid:
    grid = new_grid("Device", "Workload", "System", "Metric", "First", "Second", "Difference", "p (Holm)", "Verdict")
    for line in lines:
        unit = "points" if line.metric.points else "%"
        values = [_text(line.a, 2), _text(line.b, 2), f"{_text(line.difference, 1, True)} {unit}"]
        p = "-" if line.p_holm is None else f"{line.p_holm:.3f}"
        place = [DEVICES.get(line.device, line.device), line.workload, SYSTEMS.get(line.system, line.system)]
        metric = f"{line.metric.title} ({line.metric.unit})"
        grid.add_row(*place, metric, *values, p, line.verdict.value)
    return grid


def terminal(comparison: Comparison, everything: bool) -> RenderableType:
    """What differs, and the comparisons that are significant, or all."""
    parts: list[RenderableType] = [Text(comparison.summary, style="bold")]
    if comparison.emulated:
        parts.append(Text(lab_banner(comparison.emulated), style="bold reverse"))
    parts += [Text(f"{name}: {a or '-'} -> {b or '-'}") for name, (a, b) in comparison.facts.items()]
    shown = [line for line in comparison.lines if everything or line.verdict in (Verdict.BETTER, Verdict.WORSE)]
    if shown:
        parts += ["", _grid(shown)]
        parts.append(Text("±: half width of the 95 % confidence interval; of a difference the wider half."))
    left_out = len(comparison.lines) - len(shown)
    if left_out:
        parts.append(Text(f"{left_out} comparisons without a significant difference are not shown (--all shows them)."))
    return Group(*parts)


def gate_text(worse: Sequence[Line], percent: float, comparison: Comparison) -> RenderableType:
    """What a gate says, with the cells that close it, and what else than the code may have closed or opened it."""
    limit = f"{percent:g} % (CPU: points)"
    parts: list[RenderableType] = []
    if worse:
        few = "are missing, have too few valid runs or are significantly worse"
        head = f"Gate: closed. {len(worse)} comparisons {few} by more than {limit}:"
        parts += [Text(head, style="bold"), _grid(worse)]
    else:
        head = f"Gate: open. No cell is missing, has too few runs or is significantly worse by more than {limit}."
        parts.append(Text(head, style="bold"))
    if measured := comparison.facts.get("emulated"):
        kinds = " -> ".join(words or REAL for words in measured)
        parts.append(Text(f"NOT measured alike: {kinds}.", style="bold reverse"))
    if comparison.facts:
        parts.append(Text(f"Differs in more than the results: {', '.join(comparison.facts)}."))
    return Group(*parts)


def _line_json(line: Line) -> dict[str, Any]:
    value = asdict(line)
    value["metric"], value["unit"], value["verdict"] = line.metric.id, line.metric.unit, line.verdict.value
    return value


def gate_json(worse: Sequence[Line], percent: float, comparison: Comparison) -> dict[str, Any]:
    """For programs."""
    lines = [_line_json(line) for line in worse]
    return {"fail_over": percent, "open": not worse, "differing": list(comparison.facts), "worse": lines}


def as_json(comparison: Comparison) -> dict[str, Any]:
    """For programs; numbers in full precision."""
    lines = [_line_json(line) for line in comparison.lines]
    return {
        "schema": 1,
        "first": comparison.a,
        "second": comparison.b,
        "emulated": comparison.emulated,
        "summary": comparison.summary,
        "differing": {name: list(pair) for name, pair in comparison.facts.items()},
        "comparisons": lines,
    }


def as_csv(comparison: Comparison) -> str:
    """A line for each comparison, in full precision, both ends of every interval."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = "host suite device workload system metric unit n_a n_b a a_low a_high b b_low b_high"
    writer.writerow((heads + " diff diff_low diff_high diff_unit p p_holm verdict").split())
    for line in comparison.lines:
        row: list[object] = [line.host, line.suite, line.device, line.workload, line.system]
        row += [line.metric.id, line.metric.unit, line.n_a, line.n_b]
        row += [*ends(line.a), *ends(line.b), *ends(line.difference), "points" if line.metric.points else "%"]
        row += ["" if p is None else repr(p) for p in (line.p, line.p_holm)]
        writer.writerow([*row, line.verdict.value])
    return out.getvalue()
