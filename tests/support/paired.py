# SPDX-License-Identifier: BSD-3-Clause
"""What the comparisons in pairs of runs share: ratios with their interval, verdicts, fio's report, results on disk."""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar


@dataclass(frozen=True)
class Ratio:
    """first/second, with its interval; the ends are NaN for too few pairs."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.middle:8.3f}  {'no interval: few pairs':<22}"
        interval = f"[{self.low:.3f}, {self.high:.3f}]"
        return f"{self.middle:8.3f}  {interval:<22}"

    def verdict(self, limit: float, slower: float) -> str:
        """ok: surely at least limit; slower: surely below slower; empty without an interval."""
        if math.isnan(self.low):
            return ""
        return "ok" if self.low >= limit else "slower" if self.high < slower else "unclear"


def signed_rank_quantile(n: int, probability: float) -> int:
    """
    The largest k such that Wilcoxon's signed-rank statistic of n differences without a trend is below k
    with at most this probability; 0: there is none.
    """
    counts = [1]  # of the subsets of the ranks so far, by their sum
    for rank in range(1, n + 1):
        longer = counts + [0] * rank
        for total, count in enumerate(counts):
            longer[total + rank] += count
        counts = longer
    below = 0
    for k, count in enumerate(counts):
        below += count
        if below > probability * 2**n:
            return k
    raise ValueError(f"probability={probability}: not below 1")


def paired_ratio(pairs: Sequence[tuple[float, float]], confidence: float = 0.95) -> Ratio:
    """
    The Hodges-Lehmann estimate of first/second (the median of the geometric means of any two of the pairs'
    ratios, and of each with itself) and its exact interval from Wilcoxon's signed-rank test (Hollander,
    Wolfe and Chicken, Nonparametric Statistical Methods, 3.2 and 3.3). Not Student's: a burst of other
    load on a shared host makes single pairs differ by 2, and a few of them would decide a mean.
    95 % take six pairs.
    """
    logs = [math.log(first / second) for first, second in pairs]
    averages = sorted((a + b) / 2 for i, a in enumerate(logs) for b in logs[i:])
    middle = math.exp(statistics.median(averages))
    outside = signed_rank_quantile(len(logs), (1 - confidence) / 2)
    if not outside:
        return Ratio(middle, math.nan, math.nan)
    return Ratio(middle, math.exp(averages[outside - 1]), math.exp(averages[-outside]))


def callgrind(out: Path) -> tuple[str, ...]:
    """The words before a command whose instructions it counts, in a file."""
    return "valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={out}"


def is_chosen(name: str, patterns: Sequence[str]) -> bool:
    """
    Whether a cell, PART/PART/..., begins with one of the patterns, by whole parts, taken as text or as
    a regular expression; without patterns all do.
    """
    return not patterns or any(f"{name}/".startswith(f"{p}/") or re.match(p + r"(/|$)", name) for p in patterns)


def run_fio(argv: Sequence[str], name: str, timeout: float | None = None) -> dict[str, Any]:
    """The first job of fio's JSON report. Raises RuntimeError, beginning with name, unless all went well."""
    result = subprocess.run(
        [*argv, "--output-format=json"], capture_output=True, text=True, timeout=timeout, check=False
    )
    if result.returncode != 0:
        raise RuntimeError(f"{name}: {' '.join(argv)}: exit {result.returncode}: {result.stderr.strip()}")
    # fio may print a line before the JSON.
    job: dict[str, Any] = json.loads(result.stdout[result.stdout.index("{") :])["jobs"][0]
    if job["error"] or job["read"]["total_ios"] + job["write"]["total_ios"] <= 0:
        raise RuntimeError(f"{name}: fio reports error {job['error']} or no operation")
    return job


class Paired(Protocol):
    """pairs: operations a second of both sides, one a round."""

    pairs: list[tuple[float, float]]


class Cell(Paired, Protocol):
    """What is compared."""

    @property
    def name(self) -> str: ...

    @property
    def limit(self) -> float:
        """What the lower end of the interval must reach."""


SomeCell = TypeVar("SomeCell", bound=Paired)


class Named(Protocol):
    @property
    def name(self) -> str: ...


NamedCell = TypeVar("NamedCell", bound=Named)


def line_of(cell: Cell) -> str:
    """A row of the table; needs a pair."""
    ratio = paired_ratio(cell.pairs)
    first, second = (sum(pair[i] for pair in cell.pairs) / len(cell.pairs) for i in (0, 1))
    verdict = ratio.verdict(cell.limit, slower=cell.limit)
    return f"{cell.name:<42}{len(cell.pairs):>4}{first:>12.0f}{second:>12.0f}{ratio}{cell.limit:>6.2f}  {verdict}"


def print_cells(cells: Sequence[Cell]) -> None:
    heads = f"{'cell':<42}{'n':>4}{'op/s 1st':>12}{'op/s 2nd':>12}{'ratio':>8}"
    print(f"{heads}  {'95 % interval':<22}{'limit':>6}")
    for cell in cells:
        print(line_of(cell))


def tell(number: int, cells: Sequence[Cell]) -> None:
    """What a round has come to."""
    for cell in cells:
        print(f"round {number + 1}: {line_of(cell)}", file=sys.stderr, flush=True)


def run_cells(
    program: str, cells: list[SomeCell], measure: Callable[[list[SomeCell]], None]
) -> tuple[int, list[SomeCell]]:
    """Measure; an exit code, and the cells to show: after Ctrl-C those that have a pair."""
    try:
        measure(cells)
    except (RuntimeError, AssertionError, OSError, subprocess.SubprocessError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1, []
    except KeyboardInterrupt:
        cells = [cell for cell in cells if cell.pairs]
        return (0 if cells else 130), cells
    return 0, cells


def add_options(parser: argparse.ArgumentParser, pairs: int, cells: str) -> None:
    """The options that comparisons share. pairs: the default; cells: the help text of --cells."""
    parser.add_argument("--pairs", type=int, default=pairs, metavar="N", help=f"rounds, 6 or more (default {pairs})")
    parser.add_argument("--cells", nargs="+", default=[], metavar="PATTERN", help=cells)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--json", type=json_file, metavar="FILE", help="save the result of every run in FILE")


def choose(cells: Sequence[NamedCell], patterns: Sequence[str], examples: str) -> list[NamedCell]:
    """The cells that --cells names; examples: what to suggest if there are none. Exits with 2 in this case."""
    chosen = [cell for cell in cells if is_chosen(cell.name, patterns)]
    if not chosen:
        print(f"--cells={' '.join(patterns)}: no such cell; try {examples}", file=sys.stderr)
        raise SystemExit(2)
    return chosen


def json_file(text: str) -> Path:
    """An option's value, looked at before anything is measured for it. Raises argparse.ArgumentTypeError."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no directory {path.parent}; make it")
    return path


def write_json(path: Path, data: dict[str, Any]) -> None:
    """All of it or nothing."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    partial.rename(path)


def check_positive(parser: argparse.ArgumentParser, options: argparse.Namespace, names: Sequence[str]) -> None:
    """Options that have to be above 0. Exits with 2."""
    for name in names:
        if getattr(options, name) <= 0:
            parser.error(f"--{name}={getattr(options, name)}: too small; give more than 0")


def run_comparison(
    program: str,
    cells: list[SomeCell],
    options: argparse.Namespace,
    measure: Callable[[list[SomeCell], argparse.Namespace], None],
    head: str,
    show: Callable[[list[SomeCell]], None],
    results: Callable[[list[SomeCell], argparse.Namespace], dict[str, Any]],
) -> int:
    """Measures, prints the seed, head and the table, keeps the results in the file of --json. An exit code."""
    code, cells = run_cells(program, cells, lambda chosen: measure(chosen, options))
    if not cells:
        return code
    print(f"seed {options.seed}, {options.runtime} s a run{head}")
    show(cells)
    if options.json:
        write_json(options.json, results(cells, options))
    return 0
