#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares userblk-ublk --mode=uring with rublk, in pairs of runs, by hand on a quiet machine.

    make bench-ublk                                       # builds both, and runs this in the lab's guest
    make bench-ublk BENCH="--pairs 12 --cells null"

A cell is COMPARISON/MODE/BLOCK/JOBS. Comparison `null` is our null device against rublk's null target, `loop` our
passthrough device against rublk's loop target on the same device, both with O_DIRECT and buffers of their own;
`zero-copy` is the latter on the client's own pages, where the kernel can (Linux 6.16). Both sides have a queue per
CPU, the same depth and the same largest request: what the kernel tells of both disks is compared at every bring-up.

In every round both sides of a comparison are brought up again, one beside the other, and every cell is run on each
of them, in random order: fio's psync engine, direct. The result of a cell is the Hodges-Lehmann estimate of
first/second with its 95 % interval; it is ok when the lower end is at least the cell's limit, slower when the
upper end is below it. Needs nothing but Python's standard library.

With --count instructions, in virtual time (lab/run --clock virtual), a figure is operations for a billion instructions
that the guest's CPU executes in all processes and the kernel, which no other load of the machine disturbs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkout import CHECKOUT
from paired import add_options, check_positive, choose, print_cells, run_comparison, run_fio, tell
from userblk.harness.machine.blockdev import zero_fill
from waiting import wait_until

SCHEMA = 1
MIB = 1 << 20
RUBLK = CHECKOUT / "build/deps/bin/rublk"
BUILD = CHECKOUT / ("build/trixie" if os.environ.get("LAB") else "build/host")
PATIENCE_S = 60.0
DEPTH = 128
MAX_REQUEST = MIB  # userblk-ublk's
NULL_SIZE = 250 << 30  # rublk's
NUMBERS = (40, 41)  # of the disks of both sides
SAME = ("state", "queues", "depth", "max_request", "zero_copy", "recovery")
QUEUE = {"scheduler": "none", "rotational": "0", "max_sectors_kb": "512"}

MODES = ("randread", "randwrite")
BLOCKS = ("4k", "128k")
JOBS = (1, 16)
UNITS = {"time": "second", "instructions": "billion instructions"}
COUNTED = {"4k": (480, 8480), "128k": (160, 1360)}  # operations of the two runs whose difference is counted


class Refused(RuntimeError):
    """A side is not what it should be."""


@dataclass(frozen=True)
class Comparison:
    """Which of our devices is compared with which of rublk's targets. limit: what the lower end must reach."""

    device: str
    target: str
    limit: float
    zero_copy: bool = False


COMPARISONS = {
    "null": Comparison("null", "null", 1.0),
    "loop": Comparison("passthrough", "loop", 0.95),
    "zero-copy": Comparison("passthrough", "loop", 0.95, zero_copy=True),
}


@dataclass
class Cell:
    comparison: str
    mode: str
    block: str
    jobs: int
    pairs: list[tuple[float, float]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.comparison}/{self.mode}/{self.block}/{self.jobs}"

    @property
    def limit(self) -> float:
        return COMPARISONS[self.comparison].limit


# ---- disks ----------------------------------------------------------------------------


def userblk(*words: str) -> str:
    """What userblk-ublk prints, which knows all disks of the kernel's driver. Raises Refused."""
    argv = [str(BUILD / "ublk/userblk-ublk"), *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode:
        raise Refused(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def info(number: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(userblk("info", str(number), "--json"))
    return found


def ours(comparison: Comparison, number: int, device: Path) -> list[str]:
    """The command line of a server in the foreground; so are theirs()."""
    argv = [str(BUILD / "ublk/userblk-ublk"), "add", "--foreground", "--mode=uring", f"--number={number}"]
    argv += [f"--depth={DEPTH}", "--recovery=none", f"--zero-copy={'on' if comparison.zero_copy else 'off'}"]
    if comparison.device == "null":
        return [*argv, "null", f"size={NULL_SIZE}"]
    return [*argv, comparison.device, f"file={device}", "direct=on"]


def delete_ours(number: int) -> None:
    userblk("delete", str(number))


def delete_theirs(number: int) -> None:
    """userblk-ublk would say that it does not know what the server of another program has lost. Raises Refused."""
    argv = [str(RUBLK), "del", "--number", str(number)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode:
        raise Refused(f"{' '.join(argv)}: {done.stderr.strip()}")


def theirs(comparison: Comparison, number: int, device: Path) -> list[str]:
    argv = [str(RUBLK), "add", comparison.target, "--foreground", "--number", str(number)]
    argv += ["--queue", str(os.cpu_count() or 1), "--depth", str(DEPTH), "--io-buf-size", str(MAX_REQUEST)]
    argv += ["--zero-copy"] * comparison.zero_copy
    return argv if comparison.target == "null" else [*argv, "--file", str(device)]


def description(number: int) -> dict[str, Any]:
    """What must be the same on both sides."""
    found = {key: info(number)[key] for key in SAME}
    queue = Path(f"/sys/block/ublkb{number}/queue")
    return found | {"block_size": int((queue / "logical_block_size").read_text())}


def is_live(number: int) -> bool:
    if not Path(f"/dev/ublkb{number}").exists():
        return False
    return bool(info(number)["state"] == "live")


@contextmanager
def served(argv: Sequence[str], number: int, delete: Callable[[int], None]) -> Iterator[Path]:
    """The disk, as long as its server lives."""
    disk = Path(f"/dev/ublkb{number}")
    with tempfile.TemporaryFile("w+") as output:
        server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:

            def log() -> str:
                output.seek(0)
                return output.read().strip()

            wait_until(f"{' '.join(argv)} serves a disk", lambda: is_live(number), PATIENCE_S, process=server, log=log)
            for name, value in QUEUE.items():
                Path("/sys/block", disk.name, "queue", name).write_text(value)
            yield disk
            delete(number)
            server.wait(PATIENCE_S)
        finally:
            if server.poll() is None:
                server.kill()
                server.wait()
            if Path(f"/dev/ublkc{number}").exists():
                with suppress(Refused, subprocess.SubprocessError):  # what went wrong before is reported
                    userblk("delete", "--force", str(number))


@contextmanager
def both(comparison: Comparison, device: Path) -> Iterator[tuple[Path, Path]]:
    """The disks of both sides, which the kernel describes alike. Raises Refused."""
    with ExitStack() as stack:
        first = stack.enter_context(served(ours(comparison, NUMBERS[0], device), NUMBERS[0], delete_ours))
        second = stack.enter_context(served(theirs(comparison, NUMBERS[1], device), NUMBERS[1], delete_theirs))
        mine, other = (description(number) for number in NUMBERS)
        if mine != other or mine["zero_copy"] != comparison.zero_copy:
            raise Refused(f"the disks differ: {mine}, rublk's {other}")
        yield first, second


# ---- runs -----------------------------------------------------------------------------


def fio_argv(cell: Cell, disk: Path, seed: int, options: argparse.Namespace) -> list[str]:
    argv = ["fio", f"--name={cell.mode}", f"--filename={disk}", f"--size={options.size * MIB}", "--ioengine=psync"]
    argv += [f"--rw={cell.mode}", f"--bs={cell.block}", "--direct=1", "--thread", f"--numjobs={cell.jobs}"]
    argv += ["--allow_file_create=0", "--norandommap", "--randrepeat=0", f"--randseed={seed}", "--group_reporting"]
    return argv


def cpu_ns() -> int:
    """How long tasks have run on the CPU; in virtual time, 1 us is LAB_INSTRUCTIONS_PER_US instructions."""
    lines = Path("/proc/schedstat").read_text().splitlines()
    return sum(int(line.split()[7]) for line in lines if line.startswith("cpu"))


def count_once(cell: Cell, disk: Path, seed: int, options: argparse.Namespace) -> float:
    """
    Operations for a billion instructions: of two runs, so that fio's start and end cancel out. One before them
    brings the pages of the server's buffers into memory, which takes 4 million instructions where they are huge.
    """
    taken = []
    for operations in (COUNTED[cell.block][0], *COUNTED[cell.block]):
        argv = [*fio_argv(cell, disk, seed, options), f"--number_ios={operations // cell.jobs}"]
        before = cpu_ns()
        job = run_fio(argv, cell.name, timeout=10 * PATIENCE_S)
        taken.append((cpu_ns() - before, job["read"]["total_ios"] + job["write"]["total_ios"]))
    _, (ns, operations), (more_ns, more_operations) = taken
    instructions = (more_ns - ns) / 1000 * float(os.environ["LAB_INSTRUCTIONS_PER_US"])
    return float((more_operations - operations) / instructions * 1e9)


def run_once(cell: Cell, disk: Path, seed: int, options: argparse.Namespace) -> float:
    """Operations a second, or as many as take a billion instructions."""
    if options.count == "instructions":
        return count_once(cell, disk, seed, options)
    argv = [*fio_argv(cell, disk, seed, options), "--time_based", f"--runtime={options.runtime}"]
    job = run_fio(argv, cell.name, timeout=options.runtime + PATIENCE_S)
    return float(job["read" if cell.mode == "randread" else "write"]["iops"])


def measure(cells: list[Cell], options: argparse.Namespace) -> None:
    rng = random.Random(options.seed)
    names = list(dict.fromkeys(cell.comparison for cell in cells))
    if any(COMPARISONS[name].target == "loop" for name in names):
        zero_fill(str(options.device), options.size * MIB)  # reads find blocks that were written
    for number in range(options.pairs):
        for name in rng.sample(names, len(names)):
            chosen = [cell for cell in cells if cell.comparison == name]
            with both(COMPARISONS[name], options.device) as disks:
                for cell in rng.sample(chosen, len(chosen)):
                    seed = rng.randrange(1 << 31)  # the same offsets for both sides
                    figures = {i: run_once(cell, disks[i], seed, options) for i in rng.sample((0, 1), 2)}
                    cell.pairs.append((figures[0], figures[1]))
                    tell(number, [cell])


def results(cells: Sequence[Cell], options: argparse.Namespace) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "seed": options.seed,
        "runtime_s": options.runtime,
        "size_mib": options.size,
        "count": options.count,
        "device": str(options.device),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "accelerator": os.environ.get("LAB_ACCEL", ""),
        "load": os.getloadavg(),
        "cells": [{"cell": cell.name, "limit": cell.limit, "pairs": cell.pairs} for cell in cells],
    }


# ---- the command line -------------------------------------------------------------------


def make_cells() -> list[Cell]:
    return [
        Cell(name, mode, block, jobs) for name in COMPARISONS for mode in MODES for block in BLOCKS for jobs in JOBS
    ]


def parse_options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(
        parser,
        pairs=6,
        cells="regular expressions for the beginning of COMPARISON/MODE/BLOCK/JOBS, such as null or loop/randread/4k "
        "(default all)",
    )
    parser.add_argument("--runtime", type=int, default=2, metavar="S", help="of a run (default 2)")
    parser.add_argument("--size", type=int, default=256, metavar="MIB", help="of the area that is used (default 256)")
    parser.add_argument(
        "--device",
        type=Path,
        default=os.environ.get("LAB_NVME"),
        metavar="DEV",
        help="below loop and zero-copy; its contents are LOST (default: in the lab, its NVMe disk)",
    )
    parser.add_argument(
        "--count",
        choices=tuple(UNITS),
        default="time",
        help="operations for a second, or for a billion instructions (virtual time only) (default time)",
    )
    options = parser.parse_args(argv)
    check_positive(parser, options, ("pairs", "runtime", "size"))
    if options.count == "instructions" and os.environ.get("LAB_CLOCK") != "virtual":
        parser.error("--count=instructions: only virtual time counts them; run it by lab/run --clock virtual")
    if not options.device:
        parser.error("--device: name the block device to use; its contents are lost")
    return options


def lacking() -> str | None:
    if os.geteuid() != 0:
        return "needs root"
    subprocess.run(["modprobe", "--quiet", "ublk_drv"], check=False)
    if not Path("/dev/ublk-control").exists():
        return "the kernel has no ublk (module ublk_drv); run make bench-ublk, which uses the lab"
    for path in (BUILD / "ublk/userblk-ublk", RUBLK):
        if not path.exists():
            return f"{path} is not built; run make bench-ublk"
    return None


def main(argv: list[str]) -> int:
    options = parse_options(argv)
    cells = choose(make_cells(), options.cells, "null, loop")
    reason = lacking()
    if reason:
        print(f"bench_ublk: {reason}", file=sys.stderr)
        return 2
    if not json.loads(userblk("features", "--json"))["AUTO_BUF_REG"]:
        print("zero-copy is left out: this kernel's ublk has no AUTO_BUF_REG (Linux 6.16)", file=sys.stderr)
        cells = [cell for cell in cells if not COMPARISONS[cell.comparison].zero_copy]
    for number in (signal.SIGINT, signal.SIGTERM):  # from a script's background both are ignored
        signal.signal(number, signal.default_int_handler)
    version = subprocess.run([str(RUBLK), "--version"], capture_output=True, text=True, check=False).stdout.strip()
    head = f", {version}, Linux {platform.release()}, operations for a {UNITS[options.count]}"
    return run_comparison("bench_ublk", cells, options, measure, head, print_cells, results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
