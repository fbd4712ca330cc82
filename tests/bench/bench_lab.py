# SPDX-License-Identifier: BSD-3-Clause
"""Does the lab's table repeat? Judges campaigns in virtual time by the criteria of docs/lab.md.

Runs Table 1's campaign twice with one seed, once as the machine is and once beside another program, or judges
campaigns that were run before. For each campaign it prints how wide the intervals are and, with --control, what the
control shows; of two, by how much they differ. Exit code 1: a criterion is not met. Run it with:
    PYTHONPATH=python python3 tests/bench/bench_lab.py [CAMPAIGN [CAMPAIGN]]
With --markdown EXPORTED it prints what docs/lab.md says of a campaign with a control that was exported.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from userblk.analysis.summaries import read_campaign
from userblk.analysis.table import CONTROL, METRICS, Table, control
from userblk.analysis.tabulate import make_tables
from userblk.harness.running import archive

SHOWN = METRICS[:2]  # throughput and latency
BESIDE = "stress-ng --quiet --cpu 2 --vm 1"


@dataclass(frozen=True)
class Bar:
    """What was measured, as text, and whether it is as it should be."""

    name: str
    found: str
    met: bool


def means(table: Table) -> dict[tuple[str, ...], float]:
    """Throughput and latency of each cell, the control's left out, which one of two campaigns may lack."""
    found: dict[tuple[str, ...], float] = {}
    for device, workload in table.rows:
        for system in [one for one in table.systems if one != CONTROL]:
            for metric in SHOWN:
                if (mean := table.cell(device, workload, system, metric).mean) is not None:
                    found[device, workload, system, metric.id] = mean.value
    return found


def differing(a: Table, b: Table) -> Iterator[Bar]:
    """95 % of the cells by at most 1 %, all by at most 3 %."""
    first, second = means(a), means(b)
    apart = {cell: abs(100 * (second[cell] / first[cell] - 1)) for cell in first if cell in second}
    if not apart or first.keys() != second.keys():
        yield Bar("same cells in both", f"{len(first)} and {len(second)}, {len(apart)} in both", False)
    if apart:
        near = 100 * sum(one <= 1 for one in apart.values()) / len(apart)
        worst = max(apart, key=lambda cell: apart[cell])
        yield Bar("differ by at most 1 %: 95 % of the cells", f"{near:.1f} % of {len(apart)}", near >= 95)
        yield Bar("differ by at most 3 %: all", f"most {apart[worst]:.2f} %, {' '.join(worst)}", apart[worst] <= 3)


def half_widths(table: Table) -> dict[tuple[str, str, str, str], float]:
    """Half width of the interval of each mean of throughput and latency, in % of the mean."""
    found = {}
    for device, workload in table.rows:
        for system in table.systems:
            for metric in SHOWN:
                mean = table.cell(device, workload, system, metric).mean
                if mean is not None and mean.half is not None:
                    found[device, workload, system, metric.id] = 100 * mean.half / mean.value
    return found


def widths(table: Table) -> Iterator[Bar]:
    """Half widths of the means' intervals: in the middle 1 %, above 3 % in no more than 5 % of the cells."""
    if found := [*half_widths(table).values()]:
        wide = 100 * sum(one > 3 for one in found) / len(found)
        middle = median(found)
        yield Bar("median half width at most 1 %", f"{middle:.2f} % of {len(found)} intervals", middle <= 1)
        yield Bar("wider than 3 %: at most 5 % of them", f"{wide:.1f} %, widest {max(found):.1f} %", wide <= 5)


def control_apart(table: Table) -> dict[tuple[str, str, str], float]:
    """By how much the control's throughput and latency differ from native's, in %."""
    apart = {}
    for device, workload in table.rows:
        for metric in SHOWN:
            if (difference := table.cell(device, workload, CONTROL, metric).difference) is not None:
                apart[device, workload, metric.id] = abs(difference.value)
    return apart


def alarms(table: Table) -> Iterator[Bar]:
    """Native against native: nothing by more than 1 %, alarms in no more than 5 % of the tests."""
    if apart := control_apart(table):
        worst = max(apart, key=lambda cell: apart[cell])
        yield Bar("control differs by at most 1 %", f"most {apart[worst]:.2f} %, {' '.join(worst)}", apart[worst] <= 1)
    if (found := control([table])) is not None:
        yield Bar("alarms of the control: 5 % or fewer", found.text, found.alarms <= 0.05 * found.tests)


def table_of(directory: Path) -> Table:
    campaign = read_campaign(directory)
    return next(table for table in make_tables(campaign.runs, campaign.seed) if table.number == 1)


def run(arguments: Sequence[str], results: Path, beside: str) -> Path:
    """A campaign, and how long it took; beside: another program that runs all the while."""
    before = set(results.iterdir())
    other = subprocess.Popen(shlex.split(beside)) if beside else None
    try:
        argv = [sys.executable, "bin/userblk", "run", "--clock", "virtual", "--results", str(results), *arguments]
        subprocess.run(argv, check=True, stdout=sys.stderr)
    finally:
        if other is not None:
            other.terminate()
            other.wait()
    (new,) = set(results.iterdir()) - before
    return new


def minutes(directory: Path) -> str:
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    times = [event["time"] for event in events if event["event"] in ("start", "end")]  # of this machine, not a guest
    return f"{(max(times) - min(times)) / 60:.1f} minutes"


def judged(table: Table) -> list[Bar]:
    """By the bars of one campaign."""
    return [*widths(table), *(alarms(table) if CONTROL in table.systems else ())]


def markdown(bars: Sequence[Bar]) -> str:
    rows = [f"| {bar.name} | {bar.found} | {'met' if bar.met else 'missed'} |" for bar in bars]
    return "\n".join(["| criterion | result | |", "|---|---|---|", *rows])


def by_parts(table: Table) -> str:
    """Reads, and the writes to each device: half widths, and how far a control is from native."""
    halves, apart = half_widths(table), control_apart(table) if CONTROL in table.systems else {}
    lines = ["| workloads | intervals | above 3 % | median half width (%) |", "|---|---:|---:|---:|"]
    if apart:
        lines = [lines[0] + " control differs by at most (%) |", lines[1] + "---:|"]
    for name, devices, kind in (
        ("reads", ("sata", "nvme"), "read"),
        ("writes, SATA", ("sata",), "write"),
        ("writes, NVMe", ("nvme",), "write"),
    ):
        found = [half for (device, workload, *_), half in halves.items() if device in devices and kind in workload]
        differ = [one for (device, workload, _), one in apart.items() if device in devices and kind in workload]
        wide = sum(half > 3 for half in found)
        control = f" {max(differ):.1f} |" if apart else ""
        lines.append(f"| {name} | {len(found)} | {wide} | {median(found):.2f} |{control}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("campaign", type=Path, nargs="*", help="at most two, which are judged; none: two are run")
    parser.add_argument("--reps", type=int, default=3, help="of campaigns that are run (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of both (default: %(default)s)")
    parser.add_argument("--control", action="store_true", help="run the first with native once more as a system")
    parser.add_argument("--beside", default=BESIDE, help="runs beside the second campaign (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", type=Path, metavar="EXPORTED", help="print tables of this one; exit code 0")
    args = parser.parse_args()
    if args.markdown:
        with tempfile.TemporaryDirectory() as place:
            table = table_of(archive.unpack(args.markdown, Path(place)))
        print(markdown(judged(table)), by_parts(table), sep="\n\n")
        return 0
    campaigns = args.campaign
    if not campaigns:
        asked = ["--systems", "native,nbdkit,tcmu", "--reps", str(args.reps), "--seed", str(args.seed)]
        args.results.mkdir(exist_ok=True)
        campaigns = [run([*asked, *["--control"] * args.control], args.results, "")]
        campaigns.append(run(asked, args.results, args.beside))
    bars: list[Bar] = []
    tables = [table_of(directory) for directory in campaigns[:2]]
    for directory, table in zip(campaigns, tables, strict=True):
        own = judged(table)
        bars += [Bar(f"{directory.name} ({minutes(directory)}): {bar.name}", bar.found, bar.met) for bar in own]
    if len(tables) == 2:
        bars += differing(*tables)
    if args.json:
        print(json.dumps([asdict(bar) for bar in bars], indent=1))
    else:
        for bar in bars:
            print(f"{'met   ' if bar.met else 'MISSED'}  {bar.name}: {bar.found}")
    return int(not all(bar.met for bar in bars))


if __name__ == "__main__":
    sys.exit(main())
