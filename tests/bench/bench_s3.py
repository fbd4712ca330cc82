#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""What the S3 device promises, measured in pairs of runs, by hand on a quiet machine (make plugins s3-client-bench).

A cell compares two sides, each run with a versitygw in memory and a volume of its own, in random order, once in
every round: the device under nbdkit with the bare client (raw), with nbdkit's null plugin, with itself under
another load, with Debian's s3backer and with nbdkit's S3 plugin. fio's nbd engine puts the load on (s3backer, which
serves a FUSE file: libaio with O_DIRECT). Volumes are written in full beforehand and served again, so that nothing is
cached. A run's figure is bytes per second until all is flushed; s3backer 1.5 flushes nothing before it ends, so
there it is until its end. A cell's result is the Hodges-Lehmann estimate of the ratio with its 95 % interval, which
takes six pairs, and ok if all of the interval is on the right side of the limit. The CPU time of our server for
each GB comes with the cells; --map adds the memory of the map (make bench-s3-map).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import checkout  # noqa: F401 (it knows where the others are)
import paired
from device import parameters
from nbdkit_server import Nbdkit, plugin_path
from servers import BUCKET, REGION, ROOT, Store, Versitygw, started
from waiting import wait_until

SCHEMA = 2
MIB = 1 << 20
CLIENT = ROOT / "build/host/tests/bench/s3_client_bench"
MAP = ROOT / "build/host/tests/bench/s3_map_bench"
TICKS = os.sysconf("SC_CLK_TCK")
NO_LIMIT = 0.0
DEPTH = 32
MEMORY = "128M"  # of the device, less than the volume: what is read comes from the store


@dataclass(frozen=True)
class Load:
    """A fio job. block: such as 4k."""

    rw: str
    block: str
    jobs: int = 1
    depth: int = DEPTH

    @property
    def reads(self) -> bool:
        return "read" in self.rw


@dataclass(frozen=True)
class Figure:
    """Figure of one run. cpu_s_per_gb: the server's, where it is ours."""

    bytes_per_s: float
    cpu_s_per_gb: float | None = None


@dataclass
class Target:
    """A server. fio: the options with which fio finds it; flushes: does a flush store everything?"""

    fio: tuple[str, ...]
    pid: int
    flushes: bool = True


Server = Callable[[Store, int, str], AbstractContextManager[Target]]


def size_of(block: str) -> int:
    return int(block.removesuffix("k")) << 10


@contextmanager
def nbdkit(plugin: str, *chosen: str) -> Iterator[Target]:
    with tempfile.TemporaryDirectory(prefix="userblk-bench-") as directory:
        server = Nbdkit(Path(directory), plugin, f"--threads={DEPTH}", *chosen)  # it has 16 else
        try:
            yield Target(("--ioengine=nbd", f"--uri={server.uri}"), server.pid)
            if server.stop(None) != 0:
                raise RuntimeError(f"{plugin} failed: {server.output()}")
        finally:
            server.kill()


def userblk(store: Store, size: int, block: str) -> AbstractContextManager[Target]:
    chosen = parameters(store.url, store.credentials, "bench", create="on", size=str(size), memory=MEMORY)
    return nbdkit(plugin_path("s3"), *chosen)


def direct(store: Store, size: int, block: str) -> AbstractContextManager[Target]:
    """The same with an object for each 4 MiB."""
    settings = {"create": "on", "size": str(size), "memory": MEMORY, "layout": "direct"}
    chosen = parameters(store.url, store.credentials, "bench", **settings)
    return nbdkit(plugin_path("s3"), *chosen)


def null(store: Store, size: int, block: str) -> AbstractContextManager[Target]:
    return nbdkit("null", f"size={size}")


def nbdkit_s3(store: Store, size: int, block: str) -> AbstractContextManager[Target]:
    """One object per block of the load, which is what it is best at, but larger ones than 64k it does not serve."""
    chosen = [f"access-key={store.access_key}", f"secret-key={store.secret_key}", f"endpoint-url={store.url}"]
    chosen += [f"bucket={BUCKET}", "key=bench", f"size={size}", f"object-size={min(block, '64k', key=size_of)}"]
    return nbdkit("S3", *chosen)


@contextmanager
def s3backer(store: Store, size: int, block: str) -> Iterator[Target]:
    """One object per block of the load; else its package's defaults; blocks that exist are listed first."""
    with tempfile.TemporaryDirectory(prefix="userblk-bench-") as directory:
        access = Path(directory) / "access"
        access.write_text(f"{store.access_key}:{store.secret_key}\n", encoding="utf-8")
        point = Path(directory) / "mount"
        point.mkdir()
        argv = ["s3backer", "-f", f"--accessFile={access}", f"--baseURL={store.url}/"]
        # With --region it would put the bucket into the host name.
        argv += [f"--size={size}", f"--blockSize={block}", "--listBlocks", "--force"]
        log = Path(directory) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen([*argv, BUCKET, str(point)], stdout=out, stderr=out)
        try:
            wait_until("s3backer serves", (point / "file").exists, process=process, log=log.read_text)
            fio_options = ("--ioengine=libaio", "--direct=1", f"--filename={point / 'file'}")
            yield Target(fio_options, process.pid, flushes=False)
        finally:
            subprocess.run(["umount", str(point)], check=False)
            process.wait(300)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def raw(row: str, load: Load, options: argparse.Namespace, seed: int) -> Figure:
    """The bare client: put, get (4 MiB each) or get-range (of the load's block)."""
    with started(Versitygw) as store:
        chosen = [f"endpoint={store.url}", f"region={REGION}", f"bucket={BUCKET}", f"credentials={store.credentials}"]
        chosen += [f"row={row}", f"seconds={options.runtime}", f"depth={DEPTH}", f"block={size_of(load.block)}"]
        result = subprocess.run([str(CLIENT), *chosen], capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"s3_client_bench: {result.stderr.strip()}")
    values = json.loads(result.stdout.splitlines()[-1])
    return Figure(1e6 * float(values["mb_per_second"]), float(values["cpu_seconds_per_gb"]))


def fio(target: Target, load: Load, size: int, *options: str) -> tuple[int, float]:
    """Runs it until all is flushed, and answers its bytes and the seconds that its jobs took, with the last flush."""
    argv = ["fio", "--name=bench", *target.fio, f"--bs={load.block}", f"--iodepth={load.depth}", f"--size={size}"]
    job = paired.run_fio([*argv, *options, "--group_reporting", "--end_fsync=1"], "fio", timeout=3600)
    one = job["read" if load.reads else "write"]
    return int(one["io_bytes"]), one["runtime"] / 1e3


def served(serve: Server, load: Load, options: argparse.Namespace, seed: int) -> Figure:
    """One run of a load on a server."""
    size = options.size * MIB
    with started(Versitygw) as store:
        if serve is not null:
            with serve(store, size, load.block) as target:
                fio(target, Load("write", load.block if serve is s3backer else "1024k", depth=16), size, "--rw=write")
        with serve(store, size, load.block) as target:
            argv = [f"--rw={load.rw}", f"--numjobs={load.jobs}", "--time_based", f"--runtime={options.runtime}"]
            argv += ["--norandommap", "--randrepeat=0", f"--randseed={seed}"]
            part = size
            if not load.rw.startswith("rand"):  # a part of the volume each
                part = size // load.jobs
                argv.append(f"--offset_increment={part}")
            cpu = cpu_seconds(target.pid)
            done, seconds = fio(target, load, part, *argv)
            cpu, ended = cpu_seconds(target.pid) - cpu, time.monotonic()
        if not target.flushes and not load.reads:
            seconds += time.monotonic() - ended
    return Figure(done / seconds, cpu / (done / 1e9))


Run = Callable[[argparse.Namespace, int], Figure]


def on(serve: Server, load: Load) -> Run:
    return lambda options, seed: served(serve, load, options, seed)


def client(row: str, load: Load) -> Run:
    return lambda options, seed: raw(row, load, options, seed)


@dataclass
class Cell:
    """first/second must be at least low and, where it is given, at most high."""

    name: str
    first: Run
    second: Run
    low: float
    high: float = NO_LIMIT
    pairs: list[tuple[float, float]] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def verdict(self) -> str:
        """By the whole interval; empty without one, or without a limit."""
        ratio = paired.paired_ratio(self.pairs)
        if self.low == NO_LIMIT:
            return ""
        text = ratio.verdict(self.low, slower=self.low)
        if text == "ok" and self.high and ratio.high > self.high:
            text = "unclear" if ratio.low <= self.high else "above"
        return text


def make_cells() -> list[Cell]:
    w128, w4 = Load("write", "128k"), Load("write", "4k")
    rw128, rw4 = Load("randwrite", "128k"), Load("randwrite", "4k")
    rr128, rr4 = Load("randread", "128k"), Load("randread", "4k")
    one = Load("read", "128k", depth=1)
    cells = [
        Cell("raw/write/128k", on(userblk, w128), client("put", w128), 0.8),
        Cell("raw/randread/4k", on(userblk, rr4), client("get-range", rr4), 0.8),
        Cell("raw/randread/128k", on(userblk, rr128), client("get-range", rr128), 0.8),
        Cell("raw/read-1job/128k", on(userblk, one), client("get", one), 0.8),
        Cell("null/write/4k", on(userblk, w4), on(null, w4), 0.5),
        Cell("null/randwrite/4k", on(userblk, rw4), on(null, rw4), 0.5),
        Cell("null/write/4k/4-jobs", on(userblk, replace(w4, jobs=4)), on(null, replace(w4, jobs=4)), 0.5),
        Cell("null/randwrite/4k/4-jobs", on(userblk, replace(rw4, jobs=4)), on(null, replace(rw4, jobs=4)), 0.5),
        Cell("random/write/4k", on(userblk, rw4), on(userblk, w4), 1 / 1.2, 1.2),
        Cell("random/write/128k", on(userblk, rw128), on(userblk, w128), 1 / 1.2, 1.2),
    ]
    others: dict[str, Server] = {"s3backer": s3backer, "nbdkit-s3": nbdkit_s3, "direct": direct}
    for name, server in others.items():
        for rw in ("randwrite", "write", "randread", "read"):
            for block in ("4k", "128k"):
                load = Load(rw, block, jobs=8, depth=1)
                limit = NO_LIMIT if name == "direct" else 10.0 if (rw, block) == ("randwrite", "4k") else 2.0
                cells.append(Cell(f"{name}/{rw}/{block}", on(userblk, load), on(server, load), limit))
    return cells


def missing(cells: list[Cell]) -> dict[str, str]:
    """Comparisons that this machine cannot make, and why."""
    reasons = {}
    if not shutil.which("s3backer") or not Path("/dev/fuse").exists():
        reasons["s3backer"] = "s3backer or /dev/fuse is not there; run: apt-get install s3backer"
    if subprocess.run(["nbdkit", "S3", "--dump-plugin"], capture_output=True, check=False).returncode:
        reasons["nbdkit-s3"] = "no S3 plugin; run: apt-get install nbdkit-plugin-python python3-boto3"
    if not CLIENT.exists():
        reasons["raw"] = "the client's benchmark is not built; run: make s3-client-bench"
    return {name: reason for name, reason in reasons.items() if any(c.name.startswith(f"{name}/") for c in cells)}


def line_of(cell: Cell) -> str:
    first, second = (sum(pair[side] for pair in cell.pairs) / len(cell.pairs) / 1e6 for side in (0, 1))
    limit = "" if cell.low == NO_LIMIT else f"{cell.low:.2f}" + (f"-{cell.high:.2f}" if cell.high else "")
    cpu = f"{sum(cell.cpu) / len(cell.cpu):.2f}" if cell.cpu else ""
    ratio = paired.paired_ratio(cell.pairs)
    figures = f"{len(cell.pairs):>3}{first:>10.1f}{second:>10.1f}{ratio}{limit:>10}"
    return f"{cell.name:<24}{figures}  {cell.verdict():<8}{cpu:>8}"


def measure(cells: list[Cell], options: argparse.Namespace) -> None:
    rng = random.Random(options.seed)
    deadline = time.monotonic() + 60 * options.minutes
    for number in range(options.pairs):
        for cell in rng.sample(cells, len(cells)):
            if time.monotonic() > deadline:
                print(f"--minutes={options.minutes}: over; what there is follows", file=sys.stderr)
                return
            seed = rng.randrange(1 << 31)  # the same offsets for both sides
            figures: dict[int, Figure] = {}
            for which in rng.sample((0, 1), 2):
                figures[which] = (cell.first, cell.second)[which](options, seed)
            cell.pairs.append((figures[0].bytes_per_s, figures[1].bytes_per_s))
            if figures[0].cpu_s_per_gb is not None:
                cell.cpu.append(figures[0].cpu_s_per_gb)
            print(f"round {number + 1}: {line_of(cell)}", file=sys.stderr, flush=True)


def parse_options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    paired.add_options(
        parser,
        pairs=6,
        cells="beginnings of names, such as raw, null/write or s3backer/randwrite/4k (default: all but direct)",
    )
    parser.add_argument("--runtime", type=int, default=2, help="seconds per run (default 2)", metavar="S")
    parser.add_argument("--size", type=int, default=512, help="of the volume in MiB (default 512)")
    parser.add_argument("--minutes", type=int, default=15, help="no pair is begun after that (default 15)")
    parser.add_argument("--map", action="store_true", help="also the memory of the map, at 1 TiB")
    options = parser.parse_args(argv)
    paired.check_positive(parser, options, ("pairs", "runtime", "size", "minutes"))
    return options


def show(cells: list[Cell], options: argparse.Namespace) -> bool:
    """Prints the table. Did no cell fail?"""
    print(f"seed {options.seed}, {options.runtime} s a run, {options.size} MiB, MB/s, CPU s/GB of the first side")
    heads = f"{'n':>3}{'1st':>10}{'2nd':>10}{'ratio':>8}  {'95 % interval':<22}{'limit':>10}"
    print(f"{'cell':<24}{heads}  {'':<8}{'CPU':>8}")
    for cell in cells:
        print(line_of(cell))
    failed = [cell.name for cell in cells if cell.verdict() in ("slower", "above")]
    judged = [cell for cell in cells if cell.verdict()]
    good = sum(cell.verdict() == "ok" for cell in judged)
    print(f"{good} of {len(judged)} criteria are met for sure" + (f"; missed: {', '.join(failed)}" if failed else ""))
    return not failed


def main(argv: list[str]) -> int:
    options = parse_options(argv)
    patterns = options.cells or ["raw", "null", "random", "s3backer", "nbdkit-s3"]
    cells = paired.choose(make_cells(), patterns, "raw, null, random or s3backer")
    for name, reason in missing(cells).items():
        print(f"skipped {name}: {reason}", file=sys.stderr)
        cells = [cell for cell in cells if not cell.name.startswith(f"{name}/")]
    try:
        measure(cells, options)
    except (RuntimeError, AssertionError, OSError, subprocess.SubprocessError) as error:
        print(f"bench_s3: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass  # what there is is shown
    cells = [cell for cell in cells if cell.pairs]
    if not cells:
        return 1
    good = show(cells, options)
    if options.map:
        subprocess.run([str(MAP)], check=True)
    if options.json:
        figures = [{"cell": cell.name, "pairs": cell.pairs, "cpu_s_per_gb": cell.cpu} for cell in cells]
        settings = {"runtime_s": options.runtime, "size_mib": options.size}
        paired.write_json(options.json, {"schema": SCHEMA, "seed": options.seed, **settings, "bytes_per_s": figures})
    return 0 if good else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
