#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares the S3 device with s3backer and nbdkit's S3 plugin, in pairs of runs, by hand on a quiet machine.

A cell is COMPARISON/WORKLOAD/BLOCK. In every round each cell is run once with each of its two sides, in
random order, each run with a versitygw in memory and a volume of its own. Volumes are filled before reads,
and served anew, so that nothing is cached. Eight fio jobs of one request each, through fio's nbd engine (s3backer,
which serves a FUSE file: psync with O_DIRECT). A run's figure is bytes per second from fio's start until
all is flushed. The result of a cell is the Hodges-Lehmann estimate of first/second with its 95 % interval.
The peers are Debian's packages s3backer and nbdkit-plugin-python.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import paired

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "component"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "s3"))
from device import parameters
from nbdkit_server import Nbdkit, plugin_path
from servers import BUCKET, Store, Versitygw, started

SCHEMA = 1
MIB = 1 << 20
JOBS = 8
WORKLOADS = ("randwrite", "write", "randread", "read")
BLOCKS = ("4k", "128k")
# What fio is told to find the device.
Target = tuple[str, ...]
Server = Callable[[Store, int, str], AbstractContextManager[Target]]


def size_of(block: str) -> int:
    return int(block.removesuffix("k")) << 10


@contextmanager
def userblk(store: Store, size: int, block: str) -> Iterator[Target]:
    chosen = parameters(store.url, store.credentials, "bench", create="on", size=str(size))
    with nbdkit(plugin_path("s3"), *chosen) as target:
        yield target


@contextmanager
def nbdkit_s3(store: Store, size: int, block: str) -> Iterator[Target]:
    """One object per block of the workload, which is what it is best at, but larger ones than 64k it does not serve."""
    chosen = [f"access-key={store.access_key}", f"secret-key={store.secret_key}", f"endpoint-url={store.url}"]
    chosen += [f"bucket={BUCKET}", "key=bench", f"size={size}", f"object-size={min(block, '64k', key=size_of)}"]
    with nbdkit("S3", *chosen) as target:
        yield target


@contextmanager
def nbdkit(plugin: str, *chosen: str) -> Iterator[Target]:
    with tempfile.TemporaryDirectory(prefix="userblk-bench-") as directory:
        server = Nbdkit(Path(directory), plugin, *chosen)
        try:
            yield ("--ioengine=nbd", f"--uri={server.uri}")
            if server.stop() != 0:
                raise RuntimeError(f"{plugin} failed: {server.output()}")
        finally:
            server.kill()


@contextmanager
def s3backer(store: Store, size: int, block: str) -> Iterator[Target]:
    """One object per block of the workload, as of its package's defaults; blocks that exist are listed first."""
    with tempfile.TemporaryDirectory(prefix="userblk-bench-") as directory:
        access = Path(directory) / "access"
        access.write_text(f"{store.access_key}:{store.secret_key}\n", encoding="utf-8")
        point = Path(directory) / "mount"
        point.mkdir()
        argv = ["s3backer", "-f", f"--accessFile={access}", f"--baseURL={store.url}/"]
        # With --region it would put the bucket into the host name.
        argv += [f"--size={size}", f"--blockSize={block}", "--listBlocks", "--force", "-o", "allow_other"]
        log = Path(directory) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen([*argv, BUCKET, str(point)], stdout=out, stderr=out)
        try:
            deadline = time.monotonic() + 60
            while not (point / "file").exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"s3backer does not serve: {log.read_text(encoding='utf-8')}")
                time.sleep(0.02)
            yield ("--ioengine=psync", "--direct=1", f"--filename={point / 'file'}")
        finally:
            subprocess.run(["umount", str(point)], check=False)
            process.wait(300)


@dataclass(frozen=True)
class Comparison:
    first: Server
    second: Server


COMPARISONS = {
    "s3backer": Comparison(userblk, s3backer),
    "nbdkit-s3": Comparison(userblk, nbdkit_s3),
    # The same device twice: what the method itself calls a difference.
    "control": Comparison(userblk, userblk),
}


@dataclass
class Cell:
    comparison: str
    workload: str
    block: str
    pairs: list[tuple[float, float]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.comparison}/{self.workload}/{self.block}"


def fio(target: Target, cell: Cell, size: int, *options: str) -> tuple[float, int]:
    """Seconds until all was flushed, and bytes."""
    argv = ["fio", f"--name={cell.workload}", *target, f"--bs={cell.block}", f"--size={size}", *options]
    began = time.monotonic()
    job = paired.run_fio([*argv, "--group_reporting", "--end_fsync=1"], cell.name, timeout=3600)
    return time.monotonic() - began, int(job["read"]["io_bytes"] + job["write"]["io_bytes"])


def run_side(serve: Server, cell: Cell, options: argparse.Namespace, seed: int) -> float:
    """Bytes per second of one run."""
    size = options.size * MIB
    with started(Versitygw) as store:
        if cell.workload.endswith("read"):
            with serve(store, size, cell.block) as target:
                fio(target, cell, size, "--rw=write")
        with serve(store, size, cell.block) as target:
            load = (f"--rw={cell.workload}", f"--numjobs={JOBS}", "--time_based", f"--runtime={options.runtime}")
            # Sequential jobs have a part of the device each.
            part = () if cell.workload.startswith("rand") else (f"--offset_increment={size // JOBS}",)
            rest = ("--norandommap", "--randrepeat=0", f"--randseed={seed}")
            seconds, done = fio(target, cell, size if not part else size // JOBS, *load, *part, *rest)
    return done / seconds


def line_of(cell: Cell) -> str:
    first, second = (sum(pair[side] for pair in cell.pairs) / len(cell.pairs) / 1e6 for side in (0, 1))
    ratio = paired.paired_ratio(cell.pairs)
    return f"{cell.name:<26}{len(cell.pairs):>4}{first:>12.1f}{second:>12.1f}{ratio}"


def measure(cells: list[Cell], options: argparse.Namespace) -> None:
    rng = random.Random(options.seed)
    for number in range(options.pairs):
        for cell in rng.sample(cells, len(cells)):
            comparison = COMPARISONS[cell.comparison]
            seed = rng.randrange(1 << 31)  # the same offsets for both sides
            figures: dict[int, float] = {}
            for which in rng.sample((0, 1), 2):
                side = (comparison.first, comparison.second)[which]
                figures[which] = run_side(side, cell, options, seed)
            cell.pairs.append((figures[0], figures[1]))
            print(f"round {number + 1}: {line_of(cell)}", file=sys.stderr, flush=True)


def parse_options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--runtime", type=int, default=10, help="seconds per run (default 10)", metavar="S")
    parser.add_argument("--size", type=int, default=1024, help="of the volume in MiB (default 1024)")
    parser.add_argument(
        "--cells",
        nargs="+",
        default=[],
        metavar="PATTERN",
        help="beginnings of COMPARISON/WORKLOAD/BLOCK, such as s3backer/randwrite; "
        f"comparisons: {', '.join(COMPARISONS)} (default all)",
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep every run's figure here")
    options = parser.parse_args(argv)
    for name in ("pairs", "runtime", "size"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name}={getattr(options, name)}: too small; give more than 0")
    return options


def main(argv: list[str]) -> int:
    options = parse_options(argv)
    cells = [
        cell
        for cell in (Cell(c, w, b) for c in COMPARISONS for w in WORKLOADS for b in BLOCKS)
        if paired.is_chosen(cell.name, options.cells)
    ]
    if not cells:
        print(f"--cells={' '.join(options.cells)}: no such cell; try s3backer or nbdkit-s3", file=sys.stderr)
        return 2
    try:
        measure(cells, options)
    except (RuntimeError, AssertionError, OSError, subprocess.SubprocessError) as error:
        print(f"bench_s3: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        cells = [cell for cell in cells if cell.pairs]
        if not cells:
            return 130
    print(f"seed {options.seed}, {options.runtime} s a run, {JOBS} jobs, MB/s")
    print(f"{'cell':<26}{'n':>4}{'1st':>12}{'2nd':>12}{'ratio':>8}  95 % interval")
    for cell in cells:
        print(line_of(cell))
    if options.json:
        figures = [{"cell": cell.name, "pairs": cell.pairs} for cell in cells]
        settings = {"runtime_s": options.runtime, "size_mib": options.size, "jobs": JOBS}
        paired.write_json(
            options.json, {"schema": SCHEMA, "seed": options.seed, **settings, "bytes_per_s": figures}
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
