# SPDX-License-Identifier: BSD-3-Clause
"""How often a perfect replication of the paper satisfies each claim, and agrees cell by cell (docs/statistics.md).

Simulated: what is true of a cell is the paper's number but for the paper's own error, and runs of ours scatter around
it like the paper's. Their scatter is a share of the most that the paper allows: a half width of 5 % of a mean (writes
to NVMe in Table 1: 10 %), 5 points of CPU, with five runs. Latency is the reciprocal of throughput, as in a closed
loop. Run it with: PYTHONPATH=python python3 tests/bench/bench_claims.py
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from userblk.analysis.paper_cells import Verdict, judge_cell
from userblk.analysis.paper_claims import ClaimVerdict, check_claim
from userblk.analysis.papers import load_paper
from userblk.analysis.statistics import t_quantile
from userblk.analysis.table import METRICS, NATIVE, CellKey, Table, half_width_limit, make_cell
from userblk.harness.machine.paths import CONFIGS

PAPER = "bdus"
RUNS = 5  # of a cell in the paper
THROUGHPUT, LATENCY, CPU = METRICS


@dataclass(frozen=True)
class Result:
    """Share of replications in which each claim holds and does not; and of cells with each verdict."""

    holds: Mapping[str, float]
    fails: Mapping[str, float]
    cells: Mapping[Verdict, float]


def _printed(table: Table, device: str, workload: str, system: str, metric: int) -> float | None:
    """A mean in the unit of the metric, as the paper's table has it."""
    native = table.cell(device, workload, NATIVE, METRICS[metric]).mean
    if system == NATIVE or native is None:
        return None if native is None else native.value
    change = table.cell(device, workload, system, METRICS[metric]).difference
    if change is None:
        return None
    return native.value + change.value if METRICS[metric].points else native.value * (1 + change.value / 100)


def replicate(table: Table, share: float, rng: random.Random, runs: int) -> Table:
    """A table of ours, whose truth is the paper's."""
    samples: dict[CellKey, list[float]] = {}
    quantile = t_quantile(RUNS - 1)
    for device, workload in table.rows:
        limit = share * half_width_limit(THROUGHPUT, device, workload, 1.0, files=table.number == 2)
        points = share * half_width_limit(CPU, device, workload, 1.0)
        for system in table.systems:
            place = (device, workload, system)
            spread = limit * RUNS**0.5 / quantile  # of a run
            once = 1 + rng.gauss(0, limit / quantile)  # the paper's own error
            runs_of = [once * (1 + rng.gauss(0, spread)) for _ in range(runs)]
            mean = _printed(table, *place, 0)
            if mean is not None:
                samples[*place, THROUGHPUT.id] = [mean * one for one in runs_of]
            mean = _printed(table, *place, 1)
            if mean is not None:
                samples[*place, LATENCY.id] = [mean / one for one in runs_of]
            mean = _printed(table, *place, 2)
            if mean is not None:
                truth = mean + rng.gauss(0, points / quantile)
                samples[*place, CPU.id] = [truth + rng.gauss(0, points * RUNS**0.5 / quantile) for _ in range(runs)]
    cells = {}
    for (device, workload, system, name), sample in samples.items():
        metric = next(metric for metric in METRICS if metric.id == name)
        native = None if system == NATIVE else samples.get((device, workload, NATIVE, name))
        files = table.number == 2
        cells[device, workload, system, name] = make_cell(metric, device, workload, sample, native, 0, files)
    return Table(table.number, "simulated", (), table.rows, table.systems, cells)


def simulate(share: float, replications: int, runs: int = RUNS, seed: int = 1) -> Result:
    """share: of the scatter that the paper allows; runs: of each of our cells."""
    rng = random.Random(seed)
    known = load_paper(PAPER, CONFIGS)
    paper, claims = known.tables, known.claims
    rows = {number: table.rows for number, table in paper.items()}
    verdicts: dict[str, Counter[ClaimVerdict]] = {claim.id: Counter() for claim in claims}
    cells: Counter[Verdict] = Counter()
    for _ in range(replications):
        ours = {number: replicate(table, share, rng, runs) for number, table in paper.items()}
        for claim in claims:
            verdicts[claim.id][check_claim(claim, ours, rows).verdict] += 1
        for number, table in ours.items():
            for device, workload, system, name in table.cells:
                metric = next(metric for metric in METRICS if metric.id == name)
                verdict = judge_cell(table, paper[number], device, workload, system, metric)
                cells.update([verdict] if verdict else [])
    holds = {name: counts[ClaimVerdict.HOLDS] / replications for name, counts in verdicts.items()}
    fails = {name: counts[ClaimVerdict.FAILS] / replications for name, counts in verdicts.items()}
    return Result(holds, fails, {verdict: count / cells.total() for verdict, count in cells.items()})


def markdown(shares: Sequence[float], results: Sequence[Result]) -> str:
    """Rows of cells and claims; a column for each scatter."""
    lines = ["| | " + " | ".join(f"{share:g}" for share in shares) + " |", "|---" * (len(shares) + 1) + "|"]
    for verdict in (Verdict.AGREES, Verdict.UNDECIDED, Verdict.SAME, Verdict.DIFFERS):
        percents = [f"{100 * one.cells.get(verdict, 0):.1f} %" for one in results]
        lines.append(f"| cells: {verdict.value} | " + " | ".join(percents) + " |")
    for name in results[0].holds:
        percents = [f"{100 * one.holds[name]:.0f} / {100 * one.fails[name]:.0f}" for one in results]
        lines.append(f"| {name} | " + " | ".join(percents) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--replications", type=int, default=500)
    parser.add_argument("--runs", type=int, default=RUNS, help="of each cell (default: %(default)s, the paper's)")
    parser.add_argument("--share", type=float, nargs="+", default=[1.0, 0.5, 0.25])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = [simulate(share, args.replications, args.runs) for share in args.share]
    if args.json:
        print(json.dumps([{"holds": one.holds, "fails": one.fails} for one in results], indent=1))
    else:
        print(markdown(args.share, results))


if __name__ == "__main__":
    main()
