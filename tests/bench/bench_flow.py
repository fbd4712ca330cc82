#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""CPU time of userblk-flow per operation in the three application workloads, by hand on a quiet machine.

The sizes are those of Filebench's own fileserver.f (10,000 files of 128 KiB, 50 threads), varmail.f
(3,000 of 16 KiB, 16) and webserver.f (3,000 of 16 KiB, 100), so that the figures can be put beside
Filebench's, measured by the same clocks. Order of the runs is random, the tree is made again for
each, and making it is not in the figures.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "build/host/flow/userblk-flow"
WORKLOADS = {
    "file-server": {"nfiles": "10000"},
    "mail-server": {"nfiles": "3000", "dirwidth": "1000000"},
    "web-server": {"nfiles": "3000"},
}
COLUMNS = ("ops/s", "user us/op", "system us/op", "total us/op")


def run(workload: str, directory: Path, options: argparse.Namespace, seed: int) -> list[float]:
    """The figures of one run, in the order of COLUMNS."""
    with tempfile.TemporaryDirectory(prefix="userblk-flow-", dir=directory) as place:
        report = Path(place) / "report.json"
        argv = [str(ENGINE), "--quiet", "--seed", str(seed), "--json", str(report)]
        settings = {**WORKLOADS[workload], "dir": f"{place}/tree", "runtime": str(options.runtime)}
        (Path(place) / "tree").mkdir()
        for name, value in settings.items():
            argv += ["--set", f"{name}={value}"]
        argv.append(str(ROOT / "configs/workloads" / f"{workload}.f"))
        result = subprocess.run(argv, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)}: exit {result.returncode}: {result.stderr.strip()}")
        data = json.loads(report.read_text(encoding="utf-8"))
    if data["end"] != "time":
        raise RuntimeError(f"{workload}: the run ended {data['end']}; give more files or less --runtime")
    summary = data["summary"]
    user, system = (1e6 * summary[key] / summary["ops"] for key in ("user_s", "system_s"))
    return [summary["ops_per_s"], user, system, user + system]


def parse_options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each workload (default 3)")
    parser.add_argument("--runtime", type=int, default=20, help="seconds per run (default 20)", metavar="S")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where the trees are made")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    options = parser.parse_args(argv)
    for name in ("rounds", "runtime"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name}={getattr(options, name)}: too small; give at least 1")
    if not options.dir.is_dir():
        parser.error(f"--dir={options.dir}: no directory; give one on the file system to measure")
    return options


def main(argv: list[str]) -> int:
    options = parse_options(argv)
    if not ENGINE.exists() or not shutil.which(str(ENGINE)):
        print(f"bench_flow: {ENGINE} is missing; run make", file=sys.stderr)
        return 2
    rng = random.Random(options.seed)
    figures: dict[str, list[list[float]]] = {workload: [] for workload in WORKLOADS}
    try:
        for number in range(options.rounds):
            for workload in rng.sample(list(WORKLOADS), len(WORKLOADS)):
                values = run(workload, options.dir, options, rng.randrange(1 << 31))
                figures[workload].append(values)
                text = ", ".join(f"{value:.2f} {name}" for name, value in zip(COLUMNS, values, strict=True))
                print(f"round {number + 1}: {workload}: {text}", file=sys.stderr, flush=True)
    except (RuntimeError, OSError) as error:
        print(f"bench_flow: {error}", file=sys.stderr)
        return 1
    print(f"seed {options.seed}, {options.runtime} s a run; median (smallest to largest) of {options.rounds}")
    print(f"{'':<14}" + "".join(f"{name:>28}" for name in COLUMNS))
    for workload, runs in figures.items():
        cells = ""
        for column in zip(*runs, strict=True):
            cells += f"{f'{median(column):.2f} ({min(column):.2f} to {max(column):.2f})':>28}"
        print(f"{workload:<14}{cells}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
