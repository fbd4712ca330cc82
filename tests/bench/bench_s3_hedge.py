#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""What hedged reads (hedge=) do to the longest reads of the S3 device, by hand on a quiet machine.

Random reads of 4 KiB of a volume in a versitygw in memory, behind a proxy that delays each request: around a
median, log-normal, and a part of them by a second ("tail"); or all by the same time ("uniform"). With and without
hedge=, in turns with the same seed. A figure is what fio says of its reads in milliseconds, and how many more GETs
the hedges are.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import checkout  # noqa: F401 (it knows where the others are)
import paired
from device import parameters
from nbdkit_server import Nbdkit, plugin_path
from servers import ROOT, Store, Versitygw, started
from tool import ask
from waiting import wait_until

SCHEMA = 1
MIB = 1 << 20
PERCENTILES = ("50.000000", "99.000000", "99.900000")


@dataclass(frozen=True)
class Figure:
    p50_ms: float
    p99_ms: float
    p999_ms: float
    reads: int
    gets: int
    hedges: int
    won: int


@contextmanager
def delayed(store: Store, work: Path, *how: str) -> Iterator[str]:
    """The URL of a proxy before the store."""
    port_file = work / "delay-port"
    port_file.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "userblk.harness.stores.latency_proxy", "--to", store.url.removeprefix("http://")]
    with subprocess.Popen(
        [*argv, "--port-file", str(port_file), *how], env={"PYTHONPATH": str(ROOT / "python")}
    ) as proxy:
        try:
            wait_until("the delay proxy listens", port_file.exists, process=proxy)
            yield f"http://127.0.0.1:{port_file.read_text().strip()}"
        finally:
            proxy.terminate()
            proxy.wait(30)


class Bench:
    def __init__(self, store: Store, work: Path, options: argparse.Namespace) -> None:
        self.store = store
        self.work = work
        self.options = options
        self.starts = 0

    def serve(self, url: str, **more: str) -> Nbdkit:
        self.starts += 1
        directory = self.work / f"s{self.starts}"
        directory.mkdir()
        chosen = {"uploads": "1", "batch-size": "1M", "memory": "8M", "control": str(self.work / "control"), **more}
        return Nbdkit(directory, plugin_path("s3"), *parameters(url, self.store.credentials, "hedge", **chosen))

    def fio(self, server: Nbdkit, *more: str) -> dict[str, object]:
        argv = ["fio", "--name=hedge", "--ioengine=nbd", f"--uri={server.uri}", f"--size={self.options.size}M"]
        job: dict[str, object] = paired.run_fio([*argv, *more], "fio", timeout=3600)
        return job

    def fill(self) -> None:
        server = self.serve(self.store.url, create="on", size=f"{self.options.size}M")
        self.fio(server, "--rw=write", "--bs=1M", "--iodepth=4", "--end_fsync=1")
        if server.stop(None) != 0:
            raise RuntimeError(f"the server failed: {server.output()}")

    def measure(self, hedge: int, seed: int, *how: str) -> Figure:
        with delayed(self.store, self.work, "--seed", str(seed), *how) as url:
            server = self.serve(url, readonly="on", hedge=str(hedge))
            try:
                job = self.fio(
                    server,
                    *("--rw=randread", "--bs=4k", f"--iodepth={self.options.depth}", "--norandommap"),
                    *("--randrepeat=0", f"--randseed={seed}", "--time_based", f"--runtime={self.options.runtime}"),
                    "--percentile_list=50:99:99.9",
                )
                reported = ask(self.work / "control", b"userblk-s3 1 stats\n")
                server.stop()
            finally:
                server.kill()
        counters = dict(line.split(" ", 1) for line in reported if " " in line)
        read = job["read"]
        assert isinstance(read, dict)
        p50, p99, p999 = (read["clat_ns"]["percentile"][name] / 1e6 for name in PERCENTILES)
        gets, hedges, won = (int(counters[f"store_get_{name}"]) for name in ("requests", "hedges", "hedges_won"))
        return Figure(p50, p99, p999, read["total_ios"], gets, hedges, won)


def parse_options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256, help="of the volume in MiB (default 256)", metavar="MIB")
    parser.add_argument("--runtime", type=int, default=30, help="of a run in seconds (default 30)", metavar="S")
    parser.add_argument("--depth", type=int, default=8, help="default 8", metavar="N")
    parser.add_argument("--pairs", type=int, default=3, help="default 3", metavar="N")
    parser.add_argument("--hedge", type=int, default=95, help="default 95", metavar="PERCENTILE")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=paired.json_file, metavar="FILE", help="keep every figure here")
    options = parser.parse_args(argv)
    paired.check_positive(parser, options, ("size", "runtime", "depth", "pairs"))
    return options


STORES = {
    "tail": ("--ms", "20", "--sigma", "0.3", "--tail", "0.01", "--tail-ms", "1000"),
    "uniform": ("--ms", "50"),
}


def main(argv: list[str]) -> int:
    options = parse_options(argv)
    figures: dict[str, dict[str, list[Figure]]] = {}
    try:
        with started(Versitygw) as store, tempfile.TemporaryDirectory(prefix="userblk-bench-") as work:
            bench = Bench(store, Path(work), options)
            bench.fill()
            for name, how in STORES.items():
                figures[name] = {"off": [], "on": []}
                for pair in range(options.pairs):
                    for way, hedge in (("off", 0), ("on", options.hedge)):
                        figure = bench.measure(hedge, options.seed + pair, *how)
                        figures[name][way].append(figure)
                        print(f"{name}, hedge {way}: {figure}", file=sys.stderr, flush=True)
    except (RuntimeError, AssertionError, OSError, subprocess.SubprocessError) as error:
        print(f"bench_s3_hedge: {error}", file=sys.stderr)
        return 1
    heads = ("p50 ms", "p99 ms", "p99.9 ms", "reads", "more GETs", "won")
    print(f"{'store':<9}{'hedge':<7}{'n':>3}" + "".join(f"{head:>11}" for head in heads))
    for name, ways in figures.items():
        for way, all_of in ways.items():
            latencies = [
                statistics.median(getattr(one, field) for one in all_of) for field in ("p50_ms", "p99_ms", "p999_ms")
            ]
            reads, gets, hedges, won = (
                sum(getattr(one, field) for one in all_of) for field in ("reads", "gets", "hedges", "won")
            )
            shown = "".join(f"{latency:>11.1f}" for latency in latencies)
            print(f"{name:<9}{way:<7}{len(all_of):>3}{shown}{reads:>11}{100 * hedges / gets:>10.2f}%{won:>11}")
    if options.json:
        kept = {
            name: {way: [asdict(one) for one in all_of] for way, all_of in ways.items()}
            for name, ways in figures.items()
        }
        paired.write_json(options.json, {"schema": SCHEMA, "hedge": options.hedge, "figures": kept})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
