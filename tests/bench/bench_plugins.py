#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares our nbdkit plugins with nbdkit's own, in pairs of runs, by hand on a quiet machine.

A cell is COMPARISON/WORKLOAD/BLOCK/JOBS. In every round each cell is run once with each of its
two sides, in random order, each run with a server of its own; a run's figure is the IOPS of
fio's nbd engine, one connection per job, one request at a time, while all jobs ran: they begin up to 0.3 s apart,
depending on the server, and those alone meet less competition, which the sum of fio's rates counts
in favour of the server whose jobs overlap least. The result of a cell is the Hodges-Lehmann estimate of
first/second with its 95 % interval.

--callgrind counts instructions instead, once for each side, in cells of one job: those of a run with more requests less
those of one with fewer, so that the start and the end do not count. They are the server's own and its libraries', not
the kernel's, and the same on a busy machine, to a part in a thousand.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import checkout  # noqa: F401 (it knows where the others are)
import paired
from nbdkit_server import Nbdkit, plugin_path

SCHEMA = 1
LIMIT = 0.97  # "not slower": the lower end of the interval is at least this
MIB = 1 << 20
LOG_MS = 20  # a point of fio's log of IOPS
BEGIN_MS = 400  # in which all jobs begin
TRIES = 3
COUNTED = (2000, 6000)  # requests of the two runs whose difference is counted


@dataclass(frozen=True)
class Side:
    """One server: its name in the output, the plugin, and parameters ({file} is filled in)."""

    name: str
    plugin: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    first: Side
    second: Side
    on_disk: bool = False


def passthrough(direct: str) -> Side:
    return Side(
        f"passthrough direct={direct}",
        plugin_path("passthrough"),
        ("file={file}", f"direct={direct}"),
    )


NBDKIT_NULL = Side("nbdkit null", "null", ("size={size}",))
NBDKIT_FILE = Side("nbdkit file", "file", ("file={file}",))
COMPARISONS = {
    "file": Comparison(passthrough("off"), NBDKIT_FILE),
    "null": Comparison(Side("null", plugin_path("null"), ("size={size}",)), NBDKIT_NULL),
    # In memory, where O_DIRECT costs nothing, the difference is the bounce alone.
    "bounce": Comparison(passthrough("on"), passthrough("off")),
    "direct": Comparison(passthrough("on"), passthrough("off"), on_disk=True),
    # The same server twice: what the method itself calls a difference.
    "control-null": Comparison(NBDKIT_NULL, NBDKIT_NULL),
    "control-file": Comparison(NBDKIT_FILE, NBDKIT_FILE),
}
WORKLOADS = ("randread", "randwrite")
BYTES = {"4k": 4096, "128k": 131072}
JOBS = (1, 16)


@dataclass
class Cell:
    comparison: str
    workload: str
    block: str
    jobs: int
    pairs: list[tuple[float, float]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.comparison}/{self.workload}/{self.block}/{self.jobs}"


class Disturbed(RuntimeError):
    """Jobs did not run at the same time: the machine did something else."""


def run_fio(uri: str, cell: Cell, runtime: float, size: int, seed: int, directory: Path) -> float:
    """IOPS of one run, while all jobs run; directory takes fio's logs."""
    argv = ["fio", f"--name={cell.workload}", "--ioengine=nbd", f"--uri={uri}"]
    argv += [f"--rw={cell.workload}", f"--bs={cell.block}", f"--numjobs={cell.jobs}"]
    argv += [f"--size={size}", "--time_based", f"--runtime={round(runtime * 1000) + BEGIN_MS}ms"]
    argv += ["--group_reporting", "--randrepeat=0", f"--randseed={seed}", "--norandommap"]
    argv += [f"--write_iops_log={directory / 'fio'}", f"--log_avg_msec={LOG_MS}", "--log_unix_epoch=1"]
    paired.run_fio(argv, cell.name)
    logs = [
        [(int(time), int(iops)) for time, iops, *_ in (line.split(",") for line in path.read_text().splitlines())]
        for path in directory.glob("fio_iops.*.log")
    ]
    # From when the late ones have begun to when the first one ends.
    begin = min(log[0][0] for log in logs) + BEGIN_MS
    end = min(log[-1][0] for log in logs)
    if len(logs) != cell.jobs or end - begin < 500 * runtime:
        raise Disturbed(f"{cell.name}: {len(logs)} jobs, the first of which ended {end - begin} ms after the beginning")
    return sum(iops for log in logs for time, iops in log if begin < time <= end) * LOG_MS / (end - begin)


def run_once(side: Side, cell: Cell, file: Path, options: argparse.Namespace, seed: int) -> float:
    size = options.size * MIB
    parameters = [text.format(file=file, size=size) for text in side.parameters]
    with tempfile.TemporaryDirectory(prefix="userblk-bench-") as directory:
        server = Nbdkit(Path(directory), side.plugin, *parameters, options=("-t", str(options.threads)))
        try:
            iops = run_fio(server.uri, cell, options.runtime, size, seed, Path(directory))
            if server.stop(None) != 0:
                raise RuntimeError(f"{cell.name}: the server failed: {server.output()}")
        finally:
            server.kill()
    return iops


def run_side(side: Side, cell: Cell, file: Path, options: argparse.Namespace, seed: int) -> float:
    """IOPS of one run; of another one after a disturbed run, which is reported."""
    for _ in range(TRIES - 1):
        try:
            return run_once(side, cell, file, options, seed)
        except Disturbed as error:
            print(f"again: {error}", file=sys.stderr, flush=True)
    return run_once(side, cell, file, options, seed)


def instructions(side: Side, cell: Cell, file: Path, options: argparse.Namespace, requests: int) -> int:
    """What the server executes for a number of requests."""
    size = options.size * MIB
    parameters = [text.format(file=file, size=size) for text in side.parameters]
    with tempfile.TemporaryDirectory(prefix="userblk-bench-") as directory:
        out = Path(directory, "callgrind")
        server = Nbdkit(Path(directory), side.plugin, *parameters, options=("-t", "1"), wrapper=paired.callgrind(out))
        try:
            argv = ["fio", f"--name={cell.workload}", "--ioengine=nbd", f"--uri={server.uri}", f"--rw={cell.workload}"]
            argv += [
                f"--bs={cell.block}",
                f"--size={size}",
                f"--io_size={requests * BYTES[cell.block]}",
                "--norandommap",
            ]
            paired.run_fio([*argv, "--randrepeat=0", f"--randseed={options.seed}"], cell.name, timeout=600)
            if server.stop(None) != 0:
                raise RuntimeError(f"{cell.name}: the server failed: {server.output()}")
        finally:
            server.kill()
        found = re.search(r"^(?:totals|summary): (\d+)", out.read_text(), re.M)
    if not found:
        raise RuntimeError(f"{cell.name}: callgrind wrote no total")
    return int(found[1])


def each(side: Side, cell: Cell, file: Path, options: argparse.Namespace) -> float:
    fewer, more = (instructions(side, cell, file, options, requests) for requests in COUNTED)
    return (more - fewer) / (COUNTED[1] - COUNTED[0])


def count(cells: list[Cell], options: argparse.Namespace) -> None:
    """Prints the instructions of a request of both sides."""
    print(f"{'cell':<26}{'1st':>12}{'2nd':>12}{'1st/2nd':>9}  instructions of a request")
    with backing_file(options.memory_dir, options.size * MIB) as file:
        for cell in cells:
            comparison = COMPARISONS[cell.comparison]
            first, second = [each(side, cell, file, options) for side in (comparison.first, comparison.second)]
            print(f"{cell.name:<26}{first:>12.0f}{second:>12.0f}{first / second:>9.3f}", flush=True)


@contextmanager
def backing_file(directory: Path, size: int) -> Iterator[Path]:
    """A file of size bytes, all of them written, so that both sides meet the same allocation."""
    descriptor, name = tempfile.mkstemp(prefix="userblk-bench-", dir=directory)
    path = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for _ in range(size // MIB):
                file.write(os.urandom(MIB))
            file.flush()
            os.fsync(file.fileno())
        yield path
    finally:
        path.unlink()


def make_cells() -> list[Cell]:
    return [
        Cell(comparison, workload, block, jobs)
        for comparison in COMPARISONS
        for workload in WORKLOADS
        for block in BYTES
        for jobs in JOBS
    ]


def line_of(cell: Cell) -> str:
    ratio = paired.paired_ratio(cell.pairs)
    first = sum(pair[0] for pair in cell.pairs) / len(cell.pairs)
    second = sum(pair[1] for pair in cell.pairs) / len(cell.pairs)
    figures = f"{len(cell.pairs):>4}{first:>12.0f}{second:>12.0f}"
    return f"{cell.name:<26}{figures}{ratio}{ratio.verdict(LIMIT, slower=1)}"


def print_table(cells: list[Cell]) -> None:
    for name in dict.fromkeys(cell.comparison for cell in cells):
        comparison = COMPARISONS[name]
        where = "on disk" if comparison.on_disk else "in memory"
        print(f"{name}: {comparison.first.name} / {comparison.second.name}, {where}")
    print(f"{'cell':<26}{'n':>4}{'IOPS 1st':>12}{'IOPS 2nd':>12}{'ratio':>8}  95 % interval")
    for cell in cells:
        print(line_of(cell))


def results(cells: list[Cell], options: argparse.Namespace) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "seed": options.seed,
        "runtime_s": options.runtime,
        "size_mib": options.size,
        "threads": options.threads,
        "cells": [
            {
                "cell": cell.name,
                "first": COMPARISONS[cell.comparison].first.name,
                "second": COMPARISONS[cell.comparison].second.name,
                "pairs": cell.pairs,
            }
            for cell in cells
        ],
    }


def measure(cells: list[Cell], options: argparse.Namespace) -> None:
    rng = random.Random(options.seed)
    size = options.size * MIB
    with (
        backing_file(options.memory_dir, size) as in_memory,
        backing_file(options.disk_dir, size) as on_disk,
    ):
        for number in range(options.pairs):
            for cell in rng.sample(cells, len(cells)):
                comparison = COMPARISONS[cell.comparison]
                file = on_disk if comparison.on_disk else in_memory
                seed = rng.randrange(1 << 31)  # the same offsets for both sides
                figures: dict[int, float] = {}
                for which in rng.sample((0, 1), 2):
                    side = (comparison.first, comparison.second)[which]
                    figures[which] = run_side(side, cell, file, options, seed)
                cell.pairs.append((figures[0], figures[1]))
                print(f"round {number + 1}: {line_of(cell)}", file=sys.stderr, flush=True)


def parse_options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    paired.add_options(
        parser,
        pairs=20,
        cells="regular expressions for the beginning of COMPARISON/WORKLOAD/BLOCK/JOBS, "
        f"such as file/randread/4k or null; comparisons: {', '.join(COMPARISONS)} (default all)",
    )
    parser.add_argument("--runtime", type=float, default=2.0, help="seconds per run (default 2)", metavar="S")
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="nbdkit's threads per connection (default 1: a connection has one request at a time)",
    )
    parser.add_argument("--size", type=int, default=256, help="of the file in MiB (default 256)")
    parser.add_argument("--callgrind", action="store_true", help="count instructions (needs valgrind)")
    parser.add_argument("--memory-dir", type=Path, default=Path("/dev/shm"), metavar="DIR")
    parser.add_argument("--disk-dir", type=Path, default=Path("/var/tmp"), metavar="DIR")
    options = parser.parse_args(argv)
    paired.check_positive(parser, options, ("pairs", "runtime", "size", "threads"))
    return options


def main(argv: list[str]) -> int:
    options = parse_options(argv)
    cells = paired.choose(make_cells(), options.cells, "file, null")
    if options.callgrind:
        count([cell for cell in cells if cell.jobs == 1 and not COMPARISONS[cell.comparison].on_disk], options)
        return 0
    return paired.run_comparison("bench_plugins", cells, options, measure, "", print_table, results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
