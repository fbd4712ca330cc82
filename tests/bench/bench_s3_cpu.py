#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""What a 4 KiB write costs the server of the S3 device, against that of our null plugin, by hand (make plugins).

A pair is two runs of as many random writes at depth 32 with a flush at their end, in random order, each on an nbdkit
of its own; the S3 device has a versitygw in memory, whose time does not count. A figure is the CPU time of the server
for a write: user and system time from /proc from before the first write until all is flushed, divided by the writes.
The ratio is the Hodges-Lehmann estimate with its 95 % interval, which takes six pairs. Other load on the machine costs
both sides alike, so that it need not be quiet. Before, as much is written as the device has memory for. With --tls the
store is one of https, where no body is hashed for a signature, but all is encrypted; with --crc32c bodies carry a
signed checksum instead of a digest.

--callgrind counts instructions instead, once for each side: those of twice as many writes less those of as many, so
that open and close do not count. They are the program's own and its libraries', not the kernel's. Valgrind's processor
has no SHA extensions: what the signatures of http take there tells nothing, and is left out.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import checkout  # noqa: F401 (it knows where the others are)
import paired
from device import parameters
from nbdkit_server import Nbdkit, plugin_path
from servers import Store, Versitygw, started

SCHEMA = 1
MIB = 1 << 20
TICKS = os.sysconf("SC_CLK_TCK")
DEPTH = 32
LIMIT = 1.5
MEMORY_MIB = 256  # of the device


class Https(Versitygw):
    """With a certificate of its own."""

    def __init__(self, directory: Path) -> None:
        cert, key = directory / "cert.pem", directory / "key.pem"
        subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject]
        subprocess.run([*argv, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
        super().__init__(directory, (cert, key))

    def url_of(self, node: int) -> str:
        return super().url_of(node).replace("http://", "https://")

    def _make_bucket(self) -> None:
        self.objects.mkdir()

    def _wait_for_bucket(self, node: int = 0) -> None:
        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(self.address) == 0

        self.nodes[node].wait_until(listens, "it listens")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def served(device: str, more: Sequence[str], wrapper: tuple[str, ...] = ()) -> Iterator[Nbdkit]:
    """device: null or s3."""
    options = (f"--threads={DEPTH}",)
    with tempfile.TemporaryDirectory(prefix="userblk-bench-") as directory:
        server = Nbdkit(Path(directory), plugin_path(device), *more, options=options, wrapper=wrapper)
        try:
            yield server
            if server.stop(None) != 0:
                raise RuntimeError(f"{device} failed: {server.output()}")
        finally:
            server.kill()


def settings(device: str, store: Store, size: int, crc32c: bool = False) -> list[str]:
    if device == "null":
        return [f"size={size}"]
    more = {"create": "on", "size": str(size), "memory": f"{MEMORY_MIB}M"}
    if crc32c:
        more["payload-signing"] = "crc32c"
    if isinstance(store, Https):
        more["ca-file"] = str(store.directory / "cert.pem")
    return parameters(store.url, store.credentials, "bench", **more)


def write(server: Nbdkit, size: int, writes: int, seed: int) -> None:
    argv = ["fio", "--name=write", "--ioengine=nbd", f"--uri={server.uri}", "--rw=randwrite", "--bs=4k"]
    argv += [f"--iodepth={DEPTH}", f"--size={size}", f"--io_size={writes * 4096}", "--norandommap", "--end_fsync=1"]
    paired.run_fio([*argv, "--randrepeat=0", f"--randseed={seed}"], "fio", timeout=3600)


def microseconds(device: str, options: argparse.Namespace, seed: int) -> float:
    size = options.size * MIB
    kind = Https if options.tls else Versitygw
    with started(kind) as store, served(device, settings(device, store, size, options.crc32c)) as server:
        write(server, size, MEMORY_MIB * MIB // 4096, seed)  # all memory has been touched
        before = cpu_seconds(server.pid)
        write(server, size, options.writes, seed)
        return (cpu_seconds(server.pid) - before) / options.writes * 1e6


def instructions(device: str, options: argparse.Namespace, writes: int) -> dict[str, int]:
    """By function, of a server that took so many writes."""
    size = options.size * MIB
    with started(Versitygw) as store, tempfile.TemporaryDirectory(prefix="userblk-bench-") as directory:
        out = Path(directory) / "callgrind"
        with served(device, settings(device, store, size, options.crc32c), paired.callgrind(out)) as server:
            write(server, size, writes, 1)
        result = subprocess.run(
            ["callgrind_annotate", "--threshold=100", str(out)], capture_output=True, text=True, check=True
        )
    counts: dict[str, int] = {}
    for line in result.stdout.splitlines():
        if found := re.match(r"\s*([\d,]+) \([^)]*\)\s+(\S.*)", line):
            name = "libcrypto" if "libcrypto" in found[2] else re.sub(r" \[.*", "", found[2]).rpartition(":")[2]
            counts[name] = counts.get(name, 0) + int(found[1].replace(",", ""))
    return counts


def count(options: argparse.Namespace) -> None:
    totals = {}
    for device in ("null", "s3"):
        few, many = (instructions(device, options, options.writes * times) for times in (1, 2))
        each = {name: (many[name] - few.get(name, 0)) / options.writes for name in many if name != "PROGRAM TOTALS"}
        hashing = each.pop("libcrypto", 0.0)
        totals[device] = sum(each.values())
        print(f"{device}: {totals[device]:.0f} instructions a write, and {hashing:.0f} of libcrypto")
        for name, number in sorted(each.items(), key=lambda item: -item[1])[: options.functions]:
            print(f"  {number:10.1f}  {name}")
    print(f"ratio without libcrypto: {totals['s3'] / totals['null']:.2f}")


def compare(options: argparse.Namespace) -> bool:
    """Is the ratio not surely above the limit?"""
    rng = random.Random(options.seed)
    pairs: list[tuple[float, float]] = []
    for _ in range(options.pairs):
        seed = rng.randrange(1 << 31)
        figures = {device: microseconds(device, options, seed) for device in rng.sample(("s3", "null"), 2)}
        pairs.append((figures["s3"], figures["null"]))
        print(f"s3 {figures['s3']:.2f} us, null {figures['null']:.2f} us, load {os.getloadavg()[0]:.1f}", flush=True)
    ratio = paired.paired_ratio(pairs)
    first, second = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
    print(f"CPU time of a write: s3 {first:.2f} us, null {second:.2f} us; ratio {ratio} (wanted: at most {LIMIT})")
    if options.json:
        paired.write_json(options.json, {"schema": SCHEMA, "seed": options.seed, "us_per_write": pairs})
    return not ratio.low > LIMIT


def parse_options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6, help="default 6")
    parser.add_argument("--writes", type=int, help="of a run (default 200000, with --callgrind 20000)")
    parser.add_argument("--size", type=int, default=512, help="of the volume in MiB (default 512)")
    parser.add_argument("--tls", action="store_true", help="a store of https")
    parser.add_argument("--crc32c", action="store_true", help="payload-signing=crc32c")
    parser.add_argument("--callgrind", action="store_true", help="count instructions")
    parser.add_argument("--functions", type=int, default=30, help="that --callgrind shows (default 30)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--json", type=paired.json_file, metavar="FILE", help="keep every pair here")
    options = parser.parse_args(argv)
    if options.writes is None:
        options.writes = 20000 if options.callgrind else 200000
    paired.check_positive(parser, options, ("pairs", "writes", "size", "functions"))
    return options


def main(argv: list[str]) -> int:
    options = parse_options(argv)
    try:
        if options.callgrind:
            count(options)
            return 0
        return 0 if compare(options) else 3
    except (RuntimeError, AssertionError, OSError, subprocess.SubprocessError) as error:
        print(f"bench_s3_cpu: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
