#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compares userblk-passthrough with libfuse's passthrough_hp, in pairs of runs, by hand on a quiet machine.

A cell is COMPARISON/WORKLOAD/JOBS. The first six comparisons are modes, in which our program runs against
passthrough_hp of the same libfuse (3.18, `make libfuse-3.18`); `native` is our kernel passthrough against
the ext4 below, `choice` against our default, `rings` our io_uring against our /dev/fuse, `copies` against
the same without splice, which copies data as often. In every round both sides of a comparison are mounted
again and every cell is run on each of them, in random order. The result of a cell is the Hodges-Lehmann
estimate of first/second with its 95 % interval; it is ok when the lower end is at least the cell's limit,
slower when the upper end is below it.

Data is on an ext4 of its own, a file for each job, as fio has it by default (several writers of one file wait
for each other in the kernel, with any server of the file), and cold: before each run the caches of the mount
and of the file below are emptied, except where a reader is `cached`: it has read all once.
With --count cpu a figure is operations for each second of CPU time that fio and the side's server take (not the
kernel's own threads): how much work an operation is, not how long one waits for it. Other load disturbs that
less than time.
A run takes --runtime; a sequential read is one pass. fio does neither
advise nor invalidate, which would reach the file below on one side only. Files of the metadata workloads
(create, stat, open-read-close, unlink) are on tmpfs. What each side negotiated is checked at every mount.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from checkout import CHECKOUT

os.environ.setdefault("USERBLK_FUSE", "build/libfuse-3.18/fuse-passthrough/userblk-passthrough")

from fuse_mount import LIBFUSE, MODES, PROGRAM, ext4, rings_enabled, start  # noqa: E402
from nbdkit_server import START_TIMEOUT_S, checked  # noqa: E402
from paired import add_options, check_positive, choose, print_cells, run_comparison, run_fio, tell  # noqa: E402
from waiting import stop, wait_until

SCHEMA = 1
MIB = 1 << 20
PASSTHROUGH_HP = CHECKOUT / "build/libfuse-3.18/3.18.3-1/bin/passthrough_hp"
METADATA = CHECKOUT / "build/host/tests/bench/metadata"
NOT_SLOWER = 0.95
COLD_TIMEOUT_S = 20.0
JOBS = (1, 8)
READERS = (1, 4)  # of cold and cached passes
RING_JOBS = (1, 2, 4, 8)
BLOCKS = ("4k", "128k")

WRITTEN = 4  # that part of what is read: what is dirty afterwards must be written before the next run

# mode -> passthrough_hp's options; ours are those of the tests.
MODE_OPTIONS = {
    "nocache": ("--nopassthrough", "--nocache"),
    "default": ("--nopassthrough",),
    "nosplice": ("--nopassthrough", "--nosplice", "--clone-fd"),
    "passthrough": (),
    "io-uring": ("--nopassthrough", "-o", "io_uring"),
    "io-uring+passthrough": ("-o", "io_uring"),
}
MOUNT_OPTIONS = ("-o", "allow_other,dev,suid")

DATA_WORKLOADS = tuple(f"{kind}-{mode}" for kind in ("direct", "buffered") for mode in
                       ("randread", "randwrite", "read", "write"))  # fmt: skip
READER_WORKLOADS = tuple(f"{kind}-read-{block}" for kind in ("cold", "cached") for block in ("4k", "128k", "1m"))
RING_WORKLOADS = tuple(
    f"{kind}-{mode}-{block}" for kind in ("direct", "buffered") for mode in
    ("randread", "randwrite", "read", "write") for block in BLOCKS
)  # fmt: skip
METADATA_WORKLOADS = ("create", "stat", "open", "unlink")

CPUCLOCK_SCHED = 2  # of a clock of a whole process, as clock_getcpuclockid(3) makes them

libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Side:
    program: str  # ours, passthrough_hp or native
    mode: str = ""

    @property
    def name(self) -> str:
        return f"{self.program} {self.mode}".strip()


@dataclass(frozen=True)
class Comparison:
    first: Side
    second: Side
    workloads: Sequence[str] = DATA_WORKLOADS + READER_WORKLOADS + METADATA_WORKLOADS

    def jobs(self, workload: str) -> Sequence[int]:
        if workload in READER_WORKLOADS:
            return READERS
        return RING_JOBS if workload in RING_WORKLOADS else JOBS


COMPARISONS = {mode: Comparison(Side("ours", mode), Side("passthrough_hp", mode)) for mode in MODE_OPTIONS} | {
    "native": Comparison(Side("ours", "passthrough"), Side("native"), DATA_WORKLOADS),
    "choice": Comparison(Side("ours", "passthrough"), Side("ours", "default"), READER_WORKLOADS),
    "rings": Comparison(Side("ours", "io-uring"), Side("ours", "default"), RING_WORKLOADS + METADATA_WORKLOADS),
    "copies": Comparison(Side("ours", "io-uring"), Side("ours", "nosplice"), RING_WORKLOADS),
}


@dataclass
class Cell:
    comparison: str
    workload: str
    jobs: int
    pairs: list[tuple[float, float]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.comparison}/{self.workload}/{self.jobs}"

    @property
    def limit(self) -> float:
        """What the lower end of the interval must reach."""
        if self.comparison == "native":
            return 0.85
        if self.comparison == "rings":
            return 1.5 if self.workload in METADATA_WORKLOADS else NOT_SLOWER
        if self.comparison == "nosplice" and self.workload in READER_WORKLOADS:
            return 1.0
        if self.workload == "buffered-randwrite":
            # passthrough_hp is asked for an attribute before every write: all there is to it in
            # kernel passthrough, a part of it elsewhere.
            return 5.0 if "passthrough" in self.comparison else 1.0
        return NOT_SLOWER


class Refused(RuntimeError):
    """A side is not what it should be."""


# ---- what a side negotiated -----------------------------------------------------


def expected_status(mode: str) -> dict[str, str]:
    writeback = mode in ("default", "nosplice", "io-uring")
    return {
        "writeback": "on" if writeback else "off",
        "timeout": "0" if mode == "nocache" else "86400",
        "splice": "off" if "io-uring" in mode or mode == "nosplice" else "on",
        "passthrough": "on" if "passthrough" in mode else "off",
        "io-uring": "on" if "io-uring" in mode else "off",
        "killpriv-v2": "on",
    }


def check_rings(side: Side, pid: int) -> None:
    """The threads for io_uring are there if and only if the mode has it."""
    names = [path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
    rings = [name for name in names if name.startswith("fuse-ring")]
    if bool(rings) != ("io-uring" in side.mode):
        raise Refused(f"{side.name}: {len(rings)} io_uring threads; see /sys/module/fuse/parameters/enable_uring")


def check_passthrough(side: Side, pid: int, above: Path, below: Path) -> None:
    """A cold read is served while the daemon is stopped if and only if the mode is kernel passthrough."""
    empty_cache(above, below)
    descriptor = os.open(above, os.O_RDONLY)
    reader = threading.Thread(target=os.pread, args=(descriptor, 4096, 0))
    stop(pid)
    try:
        reader.start()
        reader.join(2.0 if "passthrough" in side.mode else 0.1)
        served = not reader.is_alive()
    finally:
        os.kill(pid, signal.SIGCONT)
        reader.join()
        os.close(descriptor)
    if served != ("passthrough" in side.mode):
        raise Refused(f"{side.name}: the kernel {'reads' if served else 'does not read'} the file by itself")


def check_requests(mode: str) -> None:
    """passthrough_hp has no status line: one mount that prints its requests shows how they come."""
    side = Side("passthrough_hp", mode)
    with tempfile.TemporaryDirectory(prefix="userblk-bench-") as name:
        source, point = Path(name, "source"), Path(name, "mount")
        source.mkdir()
        point.mkdir()
        with passthrough_hp(side, source, point, "--debug-fuse") as (_, errors):
            with (point / "file").open("wb") as file:
                file.write(bytes(4096))
                file.flush()
                # write(2) has returned: a request of its own is printed by now, the cache is not written yet.
                through = "opcode: WRITE" in errors.read_text(errors="replace")
                os.fsync(file.fileno())
        printed = errors.read_text(errors="replace")
    transports = re.findall(r"^(dev|cqe) unique: \d+, opcode: CREATE\b", printed, re.M)
    late = "opcode: WRITE" in printed
    seen = (transports, "write-through" if through else "write-back" if late else "kernel passthrough")
    data = {"nocache": "write-through"} | dict.fromkeys(("default", "nosplice", "io-uring"), "write-back")
    expected = (["cqe" if "io-uring" in mode else "dev"], data.get(mode, "kernel passthrough"))
    if seen != expected:
        raise Refused(f"{side.name}: requests come as {seen}, not {expected}")


# ---- mounts -----------------------------------------------------------------------


@contextmanager
def passthrough_hp(side: Side, source: Path, point: Path, *more: str) -> Iterator[tuple[int, Path]]:
    """Its pid, and the file with what it prints."""
    errors = point.with_name(point.name + ".errors")
    argv = [str(PASSTHROUGH_HP), "--foreground", *MODE_OPTIONS[side.mode], *MOUNT_OPTIONS, *more]
    with errors.open("wb") as output:
        process = subprocess.Popen([*argv, str(source), str(point)], stdout=output, stderr=output)
    try:
        what = f"{side.name} is mounted"
        wait_until(what, lambda: os.path.ismount(point), START_TIMEOUT_S, process=process, log=errors.read_text)
        os.statvfs(point)
        yield process.pid, errors
        checked(["umount", str(point)])
        if process.wait(START_TIMEOUT_S) != 0 or (not more and errors.read_text().strip()):
            raise Refused(f"{side.name}: exit {process.returncode}: {errors.read_text().strip()}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if os.path.ismount(point):
            subprocess.run(["umount", "--lazy", str(point)], check=False)


@contextmanager
def ours(side: Side, source: Path, point: Path) -> Iterator[int]:
    mount = start(source, point, *MODES[side.mode])
    try:
        expected = expected_status(side.mode)
        wrong = {key: mount.status[key] for key in expected if mount.status[key] != expected[key]}
        if wrong:
            raise Refused(f"{side.name}: negotiated {wrong}, not { ({key: expected[key] for key in wrong}) }")
        yield mount.process.pid
        mount.unmount()
    finally:
        mount.kill()


@dataclass(frozen=True)
class Top:
    """The directory to work in, and who serves it: nobody where it is native."""

    directory: Path
    server: int | None


@contextmanager
def mounted(side: Side, source: Path, point: Path) -> Iterator[Top]:
    if side.program == "native":
        yield Top(source, None)
        return
    point.mkdir()
    with ExitStack() as stack:
        if side.program == "ours":
            pid = stack.enter_context(ours(side, source, point))
        else:
            pid, _ = stack.enter_context(passthrough_hp(side, source, point))
        check_rings(side, pid)
        file = data_files(source, 1)[0].name
        check_passthrough(side, pid, point / file, source / file)
        yield Top(point, pid)
    point.with_name(point.name + ".errors").unlink()
    point.rmdir()


# ---- runs -------------------------------------------------------------------------


def sync_file_system(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if libc.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "syncfs", str(path))
    finally:
        os.close(descriptor)


def data_files(directory: Path, jobs: int) -> list[Path]:
    """The files of that many jobs: one has the whole size, each of several as much as if they were the most."""
    return [directory / f"data{jobs if jobs == 1 else max(JOBS)}.{job}" for job in range(jobs)]


def file_bytes(jobs: int, options: argparse.Namespace) -> int:
    return options.size * MIB // (jobs if jobs == 1 else max(JOBS))


def empty_cache(*paths: Path) -> None:
    """Empty the cache of files, whose data is on disk after this; from the top down."""
    for directory in dict.fromkeys(path.parent for path in paths):
        sync_file_system(directory)
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def resident_pages(path: Path) -> int:
    """How many pages of a file are in the page cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as view:
        pages = (ctypes.c_ubyte * -(-len(view) // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(view)  # which writes nothing
        failed = libc.mincore(ctypes.byref(start), ctypes.c_size_t(len(view)), pages)
        del start
        if failed:
            raise OSError(ctypes.get_errno(), "mincore", str(path))
    return sum(page & 1 for page in pages)


def make_cold(above: Sequence[Path], below: Sequence[Path]) -> None:
    """What is still being read ahead cannot be dropped: tried until nothing of the files below is cached."""
    deadline = time.monotonic() + COLD_TIMEOUT_S
    while True:
        empty_cache(*above, *below)
        resident = sum(map(resident_pages, below))
        if not resident:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{below[0].parent}: {resident} pages stay cached")
        time.sleep(0.01)


def cpu_seconds(pid: int | None) -> float:
    """CPU time of a server, whose threads in the kernel are its own; 0 without one."""
    return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED) if pid else 0.0


def read_all(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(MIB):
            pass


def warm_memory(size: int) -> None:
    """Free memory of a virtual machine may be with its host, which gives it back slowly: touched, it is here."""
    mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


def run_data(cell: Cell, top: Top, source: Path, seed: int, options: argparse.Namespace) -> float:
    """Operations a second, of the clock or of the CPU."""
    directory = top.directory
    files = data_files(directory, cell.jobs)
    make_cold(files, data_files(source, cell.jobs))
    kind, mode, *block = cell.workload.split("-")
    if kind != "direct":
        warm_memory(2 * options.size * MIB)  # for the caches of the mount and of the file below
    if kind == "cached":
        for file in files:
            read_all(file)
    argv = ["fio", f"--name={cell.workload}", "--ioengine=psync", "--thread", f"--directory={directory}"]
    argv += [f"--filename_format={files[0].name.removesuffix('0')}$jobnum", f"--rw={mode}"]
    argv += [f"--direct={int(kind == 'direct')}", f"--numjobs={cell.jobs}", "--group_reporting"]
    argv += ["--invalidate=0", "--fadvise_hint=0", "--allow_file_create=0"]
    size = file_bytes(cell.jobs, options) if mode.endswith("read") else options.size * MIB // WRITTEN // cell.jobs
    random_mode = mode.startswith("rand")
    argv += [f"--size={size}", f"--bs={block[0] if block else '4k' if random_mode else '128k'}"]
    if random_mode:
        argv += ["--norandommap", "--randrepeat=0", f"--randseed={seed}"]
    if mode != "read":
        argv += ["--time_based", f"--runtime={round(options.runtime * 1000)}ms"]
    before = cpu_seconds(top.server)
    job = run_fio(argv, cell.name, timeout=options.runtime + 120)
    served = cpu_seconds(top.server) - before
    side = job["read"] if mode.endswith("read") else job["write"]
    if options.count == "time":
        return float(side["iops"])
    fio = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
    return float(side["total_ios"] / (served + fio))


def run_metadata(threads: int, directory: Path, options: argparse.Namespace) -> dict[str, float]:
    """Operations a second of each workload."""
    milliseconds = max(1, round(options.runtime * 500))
    argv = [str(METADATA), str(directory), str(threads), str(options.files), str(milliseconds)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip()}")
    return {name: float(value) for name, value in (line.split() for line in done.stdout.splitlines())}


@dataclass
class Sources:
    """Directories, on ext4 with the data files, on tmpfs with one small file; and where mount points can be made."""

    disk: Path
    memory: Path
    points: Path


def measure_round(
    number: int, cells: list[Cell], sources: Sources, rng: random.Random, options: argparse.Namespace
) -> None:
    """One pair for each of the cells, which are all of one comparison."""
    comparison = COMPARISONS[cells[0].comparison]
    sides = (comparison.first, comparison.second)
    data = [cell for cell in cells if cell.workload not in METADATA_WORKLOADS]
    if data:
        with ExitStack() as stack:
            tops = [
                stack.enter_context(mounted(side, sources.disk, sources.points / str(i)))
                for i, side in enumerate(sides)
            ]
            for cell in rng.sample(data, len(data)):
                seed = rng.randrange(1 << 31)  # the same offsets for both sides
                figures = {i: run_data(cell, tops[i], sources.disk, seed, options)
                           for i in rng.sample((0, 1), 2)}  # fmt: skip
                cell.pairs.append((figures[0], figures[1]))
                tell(number, [cell])
    threads = sorted({cell.jobs for cell in cells if cell.workload in METADATA_WORKLOADS})
    if threads:
        with ExitStack() as stack:
            tops = [
                stack.enter_context(mounted(side, sources.memory, sources.points / str(i)))
                for i, side in enumerate(sides)
            ]
            for count in rng.sample(threads, len(threads)):
                results = {i: run_metadata(count, tops[i].directory, options) for i in rng.sample((0, 1), 2)}
                done = [cell for cell in cells if cell.workload in METADATA_WORKLOADS and cell.jobs == count]
                for cell in done:
                    cell.pairs.append((results[0][cell.workload], results[1][cell.workload]))
                tell(number, done)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Sources]:
    with ExitStack() as stack:
        disk = stack.enter_context(ext4(options.disk_dir))
        memory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="userblk-bench-", dir="/dev/shm")))
        points = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="userblk-bench-")))
        block = os.urandom(MIB)
        for jobs in JOBS:
            for path in data_files(disk, jobs):
                with path.open("wb") as file:
                    for _ in range(file_bytes(jobs, options) // MIB):
                        file.write(block)
        data_files(memory, 1)[0].write_bytes(block)
        stack.enter_context(rings_enabled())
        yield Sources(disk, memory, points)


def measure(cells: list[Cell], options: argparse.Namespace) -> None:
    rng = random.Random(options.seed)
    names = list(dict.fromkeys(cell.comparison for cell in cells))
    with prepared(options) as sources:
        for name in names:
            if name in MODE_OPTIONS:
                check_requests(name)
        for number in range(options.pairs):
            for name in rng.sample(names, len(names)):
                of_it = [cell for cell in cells if cell.comparison == name]
                measure_round(number, of_it, sources, rng, options)


# ---- results ----------------------------------------------------------------------


def make_cells() -> list[Cell]:
    return [
        Cell(name, workload, jobs)
        for name, comparison in COMPARISONS.items()
        for workload in comparison.workloads
        for jobs in comparison.jobs(workload)
    ]


def print_table(cells: list[Cell]) -> None:
    for name in dict.fromkeys(cell.comparison for cell in cells):
        comparison = COMPARISONS[name]
        print(f"{name}: {comparison.first.name} / {comparison.second.name}")
    print_cells(cells)


def results(cells: list[Cell], options: argparse.Namespace) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "seed": options.seed,
        "runtime_s": options.runtime,
        "size_mib": options.size,
        "files": options.files,
        "count": options.count,
        "libfuse": ".".join(map(str, LIBFUSE)),
        "cells": [
            {
                "cell": cell.name,
                "first": COMPARISONS[cell.comparison].first.name,
                "second": COMPARISONS[cell.comparison].second.name,
                "limit": cell.limit,
                "pairs": cell.pairs,
            }
            for cell in cells
        ],
    }


def parse_options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(
        parser,
        pairs=6,
        cells="regular expressions for the beginning of COMPARISON/WORKLOAD/JOBS, such as io-uring/stat; "
        f"comparisons: {', '.join(COMPARISONS)}; "
        f"workloads: {', '.join(DATA_WORKLOADS + READER_WORKLOADS + METADATA_WORKLOADS)}, "
        "and with a size as in rings/direct-read-4k/2 "
        "(default all)",
    )
    parser.add_argument("--runtime", type=float, default=0.6, metavar="S", help="of a run (default 0.6)")
    parser.add_argument(
        "--size", type=int, default=1024, metavar="MIB", help="of what the jobs of a cell read (default 1024)"
    )
    parser.add_argument("--files", type=int, default=4000, help="of the metadata workloads (default 4000)")
    parser.add_argument(
        "--count", choices=("time", "cpu"), default="time", help="operations for a second of what (default time)"
    )
    parser.add_argument(
        "--disk-dir",
        type=Path,
        default=Path("/dev/shm"),
        metavar="DIR",
        help="where the image of the ext4 lies (default /dev/shm: in memory, which no other disk I/O disturbs)",
    )
    options = parser.parse_args(argv)
    check_positive(parser, options, ("pairs", "runtime", "size", "files"))
    return options


def lacking(cells: Sequence[Cell]) -> str | None:
    if os.geteuid() != 0:
        return "needs root"
    if LIBFUSE < (3, 18, 3):
        return f"{PROGRAM}: does not run or has a libfuse before 3.18.3; run make bench-fuse-programs"
    needed = [PASSTHROUGH_HP] if any(cell.comparison in MODE_OPTIONS for cell in cells) else []
    if any(cell.workload in METADATA_WORKLOADS for cell in cells):
        needed.append(METADATA)
    for path in needed:
        if not path.exists():
            return f"{path} is not built; run make bench-fuse-programs"
    dirty = Path("/proc/sys/vm/dirty_bytes").read_text().strip()
    if dirty != "0" and any("write" in cell.workload for cell in cells):
        return f"vm.dirty_bytes={dirty}: buffered writes would wait for it; set vm.dirty_ratio=20"
    return None


def main(argv: list[str]) -> int:
    options = parse_options(argv)
    cells = choose(make_cells(), options.cells, "io-uring, native")
    if options.count == "cpu" and any(cell.workload in METADATA_WORKLOADS for cell in cells):
        print("--count=cpu: counts cells of data only; choose them by --cells", file=sys.stderr)
        return 2
    reason = lacking(cells)
    if reason:
        print(f"bench_fuse: {reason}", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):  # from a script's background both are ignored
        signal.signal(number, signal.default_int_handler)
    head = f", operations for a second of {options.count}\nlibfuse {'.'.join(map(str, LIBFUSE))}"
    return run_comparison("bench_fuse", cells, options, measure, head, print_table, results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
