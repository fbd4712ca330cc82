#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""What TCMU costs on LIO's loopback fabric, by hand on a quiet machine.

Compares, on the same device and the same fabric: LIO's in-kernel iblock backstore (the ceiling of the
path), our passthrough handler, and our null handler with several numbers of worker threads. Every round
brings each of them up once, in random order, and runs every cell on it; figures of a round are pairs.
Measuring needs nothing but Python's standard library:

    lab/run --share DIR -- python3 tests/bench/bench_tcmu.py measure /results/tcmu.json
    tests/bench/bench_tcmu.py print DIR/tcmu.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from checkout import CHECKOUT
from paired import paired_ratio

SCHEMA = 1
MIB = 1 << 20
CEILING = "iblock"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Side:
    """One way to make a disk. subtype: of our handlers, "" for iblock."""

    name: str
    subtype: str = ""
    threads: int = 16


@dataclass(frozen=True)
class Cell:
    mode: str
    block_kib: int
    jobs: int

    @property
    def name(self) -> str:
        return f"{self.mode}-{self.block_kib}k-{self.jobs}"


SIDES = (
    Side(CEILING),
    Side("passthrough", "userblk_passthrough"),
    Side("null", "userblk_null"),
    Side("null-0-threads", "userblk_null", 0),
    Side("null-1-thread", "userblk_null", 1),
    Side("null-4-threads", "userblk_null", 4),
)
CELLS = tuple(Cell(mode, kib, jobs) for mode in ("randread", "randwrite") for kib in (4, 128) for jobs in (1, 16))


@contextmanager
def disk_of(side: Side, device: Path, build: Path, size: int) -> Iterator[tuple[Path, int]]:
    """The disk and the daemon's pid, 0 where there is none."""
    from userblk.harness.systems.lio import Backstore, Lun, TcmuRunner

    with ExitStack() as stack:
        pid = 0
        backstore = Backstore.iblock(device)
        if side.subtype:
            runner = stack.enter_context(TcmuRunner(build / "tcmu-handlers", threads=side.threads))
            pid = runner.process.pid
            config = f"{device};direct=on" if side.subtype == "userblk_passthrough" else "fill=zero"
            backstore = Backstore.user(side.subtype, config, size)
        disk = stack.enter_context(Lun(backstore, "bench")).disk
        queue = Path("/sys/block", disk.name, "queue")
        (queue / "scheduler").write_text("none")
        (queue / "max_sectors_kb").write_text("512")  # what both can do
        yield disk, pid


def server_cost(pid: int) -> tuple[float, int]:
    """CPU seconds that the daemon has used, and how often one of its threads has slept."""
    if not pid:
        return 0.0, 0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    switches = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        switches += int(lines["voluntary_ctxt_switches"])
    return (int(fields[11]) + int(fields[12])) / TICKS, switches


def measure_cell(cell: Cell, disk: Path, pid: int, seconds: int, size: int, seed: int) -> dict[str, float]:
    cpu, switches = server_cost(pid)
    done = subprocess.run(
        ["fio", "--name=bench", f"--filename={disk}", f"--size={size}", f"--rw={cell.mode}", f"--bs={cell.block_kib}k",
         "--direct=1", "--ioengine=psync", f"--numjobs={cell.jobs}", "--thread", "--norandommap", "--randrepeat=0",
         f"--randseed={seed}", "--time_based", f"--runtime={seconds}", "--group_reporting", "--output-format=json"],
        stdout=subprocess.PIPE, timeout=seconds + 60, check=True,
    )  # fmt: skip
    job = json.loads(done.stdout)["jobs"][0]
    side = job["read" if cell.mode == "randread" else "write"]
    if job["error"] or not side["total_ios"]:
        raise RuntimeError(f"{cell.name} on {disk}: fio error {job['error']}, {side['total_ios']} operations")
    cpu_after, switches_after = server_cost(pid)
    count = side["total_ios"]
    return {
        "iops": side["iops"],
        "latency_us": side["lat_ns"]["mean"] / 1000,
        "server_cpu_us_per_op": (cpu_after - cpu) * 1e6 / count,
        "server_sleeps_per_op": (switches_after - switches) / count,
    }


def measure(arguments: argparse.Namespace) -> None:
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    wanted = [side for side in SIDES if not arguments.sides or side.name in arguments.sides]
    size = arguments.size * MIB
    runs: list[dict[str, object]] = []
    for round_number in range(arguments.rounds):
        for side in rng.sample(wanted, len(wanted)):
            with disk_of(side, arguments.device, arguments.build, size) as (disk, pid):
                for cell in rng.sample(CELLS, len(CELLS)):
                    load = os.getloadavg()[0]
                    figures = measure_cell(cell, disk, pid, arguments.seconds, size, rng.randrange(1 << 32))
                    runs.append({"round": round_number, "side": side.name, "cell": cell.name, "load": load, **figures})
        print(f"round {round_number + 1} of {arguments.rounds}", flush=True)
        arguments.file.write_text(
            json.dumps(
                {
                    "schema": SCHEMA,
                    "seed": seed,
                    "seconds": arguments.seconds,
                    "kernel": platform.release(),
                    "cpus": os.cpu_count(),
                    "accelerator": os.environ.get("LAB_ACCEL", ""),
                    "device": str(arguments.device),
                    "runs": runs,
                },
                indent=1,
            )
        )


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def show(arguments: argparse.Namespace) -> None:
    data = json.loads(arguments.file.read_text())
    table: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    for run in data["runs"]:
        table.setdefault((run["cell"], run["side"]), {})[run["round"]] = run
    print(f"{data['device']}, kernel {data['kernel']}, {data['cpus']} CPUs {data['accelerator']}")
    print(f"{data['seconds']} s a run; cpu us and sleeps: of the daemon, per operation")
    for reference in (CEILING, "null"):
        for side in (side.name for side in SIDES):
            if side == reference or (reference == "null" and not side.startswith("null")):
                continue
            if (CELLS[0].name, side) not in table or (CELLS[0].name, reference) not in table:
                continue  # was not asked for
            print(f"\n{side} / {reference}")
            print(f"{'cell':18} {'IOPS':>9} {'ratio':>7} {'95 % interval':>17} {'us':>8} {'cpu us':>7} {'sleeps':>7}")
            for cell in (cell.name for cell in CELLS):
                ours, theirs = table.get((cell, side), {}), table.get((cell, reference), {})
                pairs = sorted(ours.keys() & theirs.keys())
                if not pairs:
                    continue
                ratio = paired_ratio([(ours[i]["iops"], theirs[i]["iops"]) for i in pairs])
                iops, latency, cpu, sleeps = (
                    median([ours[i][key] for i in pairs])
                    for key in ("iops", "latency_us", "server_cpu_us_per_op", "server_sleeps_per_op")
                )
                print(
                    f"{cell:18} {iops:9.0f} {ratio.middle:7.3f} {ratio.low:8.3f}-{ratio.high:<8.3f}"
                    f" {latency:8.0f} {cpu:7.0f} {sleeps:7.2f}"
                )
    loads = [run["load"] for run in data["runs"]]
    print(f"\nload before the runs: median {median(loads):.1f}, highest {max(loads):.1f}; seed {data['seed']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    taking = commands.add_parser("measure", help="run it: in the lab's guest, or as root on a machine with TCMU")
    taking.add_argument("file", type=Path, help="JSON to write")
    taking.add_argument("--device", type=Path, default=os.environ.get("LAB_NVME"), help="is overwritten")
    taking.add_argument("--build", type=Path, default=CHECKOUT / "build/trixie")
    taking.add_argument("--rounds", type=int, default=6)
    taking.add_argument("--seconds", type=int, default=2, help="of each run")
    taking.add_argument("--size", type=int, default=256, metavar="MIB", help="of the area that is used")
    taking.add_argument("--sides", nargs="+", choices=[side.name for side in SIDES])
    taking.add_argument("--seed", type=int)
    taking.set_defaults(run=measure)
    printing = commands.add_parser("print", help="show the ratios with their intervals")
    printing.add_argument("file", type=Path)
    printing.set_defaults(run=show)
    arguments = parser.parse_args()
    if arguments.run is measure and not arguments.device:
        parser.error("--device: name the block device to use; its content is lost")
    arguments.run(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
