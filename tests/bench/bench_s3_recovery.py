#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""How long the S3 device takes to open a large volume, by hand on a quiet machine.

A volume of 1 TiB is written at random, with zeroes that compression shrinks to nearly nothing, until it has
100,000 objects of 1 MiB, in a versitygw in memory (about 1 GiB of it). Then it is opened several times: after
an orderly end, and after kill -9 of a server that had just flushed 500 more objects. A figure is the time from the
start of nbdkit until it is ready to serve, with what it read of the log and the memory that it has then.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import checkout  # noqa: F401 (it knows where the others are)
import paired
from device import parameters
from nbdkit_server import Nbdkit, plugin_path
from servers import Store, Versitygw, started

SCHEMA = 1
MIB = 1 << 20
GIB = 1 << 30
# After a crash at most twice the interval of checkpoints, 512, is read of the log.
PENDING = 500


@dataclass(frozen=True)
class Opening:
    seconds: float
    replayed: int  # headers of the log
    resident_mib: float
    objects: int
    map_mib: float


class Bench:
    def __init__(self, store: Store, work: Path, options: argparse.Namespace) -> None:
        self.store = store
        self.work = work
        self.options = options
        self.size = options.size * GIB
        self.starts = 0

    def serve(self) -> Nbdkit:
        self.starts += 1
        directory = self.work / f"s{self.starts}"
        directory.mkdir()
        more = {"create": "on", "size": str(self.size), "compress": "zstd", "batch-size": "1M"}
        chosen = parameters(self.store.url, self.store.credentials, "recovery", **more)
        return Nbdkit(directory, plugin_path("s3"), *chosen)

    def write(self, server: Nbdkit, objects: int) -> None:
        """So many objects of data, flushed."""
        argv = ["fio", "--name=fill", "--ioengine=nbd", f"--uri={server.uri}", "--rw=randwrite"]
        argv += [f"--bs={self.options.extent}", f"--size={self.size}", f"--io_size={objects * MIB}"]
        argv += ["--zero_buffers", "--iodepth=64", "--norandommap", "--random_generator=tausworthe64"]
        argv += ["--randrepeat=0", f"--randseed={self.starts}", "--end_fsync=1"]
        paired.run_fio(argv, "fill")

    def open(self) -> Opening:
        began = time.monotonic()
        server = self.serve()
        seconds = time.monotonic() - began
        try:
            status = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
            resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
            if server.stop(None) != 0:
                raise RuntimeError(f"the server failed: {server.output()}")
        finally:
            server.kill()
        counters = server.counters()
        return Opening(seconds, counters["replayed"], resident / 1024, counters["objects"], counters["map_bytes"] / MIB)

    def after_orderly_end(self) -> Opening:
        return self.open()

    def after_kill(self) -> Opening:
        server = self.serve()
        try:
            self.write(server, PENDING)
        finally:
            server.kill()
        return self.open()


def measure(bench: Bench) -> dict[str, list[Opening]]:
    began = time.monotonic()
    server = bench.serve()
    try:
        bench.write(server, bench.options.objects)
        if server.stop(None) != 0:
            raise RuntimeError(f"the server failed: {server.output()}")
    finally:
        server.kill()
    print(f"written in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    kinds: dict[str, Callable[[], Opening]] = {
        "orderly end": bench.after_orderly_end,
        "kill -9": bench.after_kill,
    }
    openings: dict[str, list[Opening]] = {kind: [] for kind in kinds}
    for kind, measured in kinds.items():
        for _ in range(bench.options.opens):
            openings[kind].append(measured())
            print(f"{kind}: {openings[kind][-1]}", file=sys.stderr, flush=True)
    return openings


def parse_options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, help="of the volume in GiB (default 1024)", metavar="GIB")
    parser.add_argument("--objects", type=int, default=100_000, help="default 100000", metavar="N")
    parser.add_argument("--extent", default="4k", help="of a write (default 4k)", metavar="BYTES")
    parser.add_argument("--opens", type=int, default=5, help="of each kind (default 5)", metavar="N")
    parser.add_argument("--json", type=paired.json_file, metavar="FILE", help="keep every figure here")
    options = parser.parse_args(argv)
    paired.check_positive(parser, options, ("size", "objects", "opens"))
    return options


def main(argv: list[str]) -> int:
    options = parse_options(argv)
    try:
        with started(Versitygw) as store, tempfile.TemporaryDirectory(prefix="userblk-bench-") as work:
            openings = measure(Bench(store, Path(work), options))
    except (RuntimeError, AssertionError, OSError, subprocess.SubprocessError) as error:
        print(f"bench_s3_recovery: {error}", file=sys.stderr)
        return 1
    heads = "".join(f"{head:>9}" for head in ("longest", "headers", "objects", "map MiB", "RSS MiB"))
    print(f"{'after':<14}{'n':>3}{'median s':>10}{heads}")
    for kind, all_of in openings.items():
        seconds = [opening.seconds for opening in all_of]
        headers = max(opening.replayed for opening in all_of)
        last = all_of[-1]
        print(
            f"{kind:<14}{len(all_of):>3}{statistics.median(seconds):>10.2f}{max(seconds):>9.2f}{headers:>9}"
            f"{last.objects:>9}{last.map_mib:>9.0f}{last.resident_mib:>9.0f}"
        )
    if options.json:
        settings = {"size_gib": options.size, "objects": options.objects, "extent": options.extent}
        figures = {kind: [asdict(opening) for opening in all_of] for kind, all_of in openings.items()}
        paired.write_json(options.json, {"schema": SCHEMA, **settings, "openings": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
