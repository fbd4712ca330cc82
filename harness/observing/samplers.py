# SPDX-License-Identifier: BSD-3-Clause
"""What the machine does while a workload runs: CPU, the server process, block devices, per interval.

Counters are sampled as they stand, with the time; differences are taken afterwards, for intervals and for
the measured window alike.
"""

from __future__ import annotations

import csv
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from .counters import NAMES, Counters, Counts
from .energy import Meter
from .periodic import Periodic

TICKS = os.sysconf("SC_CLK_TCK")
CPUS = os.cpu_count() or 1

# /proc/stat: user nice system idle iowait irq softirq steal; guest time is within user.
IDLE, IOWAIT, STEAL = 3, 4, 7
# What a guest in virtual time knows of its one CPU to the microsecond (lab/ssd/userblk_clock.c).
IDLE_US = Path("/sys/module/userblk_clock/parameters/idle_us")

PROCESS_CPU_TIME = 2  # CPUCLOCK_SCHED in the kernel's linux/posix-timers.h

# /sys/block/X/stat
READS, READ_SECTORS, WRITES, WRITE_SECTORS, BUSY_MS, QUEUE_MS = 0, 2, 4, 6, 9, 10
WRAP_MS = float(1 << 32)


@dataclass(frozen=True)
class Sample:
    """
    time: s, monotonic; server: s of CPU; the rest as the kernel counts. counts: of the server, see counters.NAMES;
    energy: J, of a Meter's zones.
    """

    time: float
    cpu: tuple[float, ...]
    server: float | None
    disks: tuple[tuple[float, ...], ...]
    counts: Counts = ()
    energy: tuple[float, ...] = ()


def read_server(pid: int) -> float | None:
    """CPU time of all threads of a process in s, None if it is gone.

    From its clock (clock_getcpuclockid(3)): /proc/PID/stat has ticks of 10 ms, of which a short run may have none.
    """
    try:
        return time.clock_gettime((~pid << 3) | PROCESS_CPU_TIME)
    except OSError:
        return None


def read_sample(
    stats: Sequence[Path], server: int | None, counters: Counters | None = None, meter: Meter | None = None
) -> Sample:
    with Path("/proc/stat").open() as file:
        cpu = [*map(float, file.readline().split()[1:9])]
    if IDLE_US.exists():
        cpu[IDLE], cpu[IOWAIT] = float(IDLE_US.read_text()) * TICKS / 1e6, 0.0
    disks = tuple(tuple(map(float, path.read_text().split())) for path in stats)
    counts = counters.read() if counters else ()
    energy = meter.read() if meter else ()
    return Sample(time.monotonic(), tuple(cpu), read_server(server) if server else None, disks, counts, energy)


@dataclass(frozen=True)
class DiskUse:
    """Means over a span; a size is None if there was no such request."""

    read_kops: float
    read_mbps: float
    read_request_kib: float | None
    write_kops: float
    write_mbps: float
    write_request_kib: float | None
    queue_depth: float
    utilisation_percent: float


@dataclass(frozen=True)
class Use:
    """
    Means over a span of duration_s seconds. idle_s: of all CPUs. server_cpu_percent: 100 = one CPU. counts: what could
    be counted. energy_j: of each zone of the machine that counts it.
    """

    duration_s: float
    idle_s: float
    cpu_percent: float
    steal_percent: float
    server_cpu_percent: float | None
    disks: tuple[DiskUse, ...]
    counts: Mapping[str, float] = field(default_factory=dict)
    energy_j: Mapping[str, float] = field(default_factory=dict)


def _disk_use(a: Sequence[float], b: Sequence[float], seconds: float) -> DiskUse:
    d = [y - x for x, y in zip(a, b, strict=True)]
    return DiskUse(
        read_kops=d[READS] / seconds / 1e3,
        read_mbps=d[READ_SECTORS] * 512 / seconds / 1e6,
        read_request_kib=d[READ_SECTORS] / 2 / d[READS] if d[READS] else None,
        write_kops=d[WRITES] / seconds / 1e3,
        write_mbps=d[WRITE_SECTORS] * 512 / seconds / 1e6,
        write_request_kib=d[WRITE_SECTORS] / 2 / d[WRITES] if d[WRITES] else None,
        queue_depth=d[QUEUE_MS] / seconds / 1e3,
        utilisation_percent=min(100.0, d[BUSY_MS] / seconds / 10),
    )


def use_between(a: Sample, b: Sample) -> Use:
    seconds = b.time - a.time
    cpu = [y - x for x, y in zip(a.cpu, b.cpu, strict=True)]
    total = sum(cpu) or 1.0
    if CPUS == 1:
        # Idle time is measured, but what a CPU does is looked at once a tick, with which the requests of a guest in
        # virtual time may keep step: then it is hit always or never.
        total = max(cpu[IDLE] + cpu[IOWAIT] + cpu[STEAL], seconds * TICKS) or 1.0
    server = None
    if a.server is not None and b.server is not None:
        server = 100 * (b.server - a.server) / seconds
    return Use(
        duration_s=seconds,
        idle_s=(cpu[IDLE] + cpu[IOWAIT]) / TICKS,
        cpu_percent=min(100.0, 100 * (total - cpu[IDLE] - cpu[IOWAIT] - cpu[STEAL]) / total),
        steal_percent=100 * cpu[STEAL] / total,
        server_cpu_percent=server,
        disks=tuple(_disk_use(x, y, seconds) for x, y in zip(a.disks, b.disks, strict=True)),
        counts={name: y - x for name, x, y in zip(NAMES, a.counts, b.counts, strict=False) if not math.isnan(y - x)},
    )


def _between(a: Sequence[float], b: Sequence[float], share: float) -> tuple[float, ...]:
    return tuple(x + (y - x) * share for x, y in zip(a, b, strict=True))


def at(samples: Sequence[Sample], when: float) -> Sample:
    """The counters at a time, on the line between the samples around it."""
    if when <= samples[0].time:
        return samples[0]
    for a, b in pairwise(samples):
        if when <= b.time:
            share = (when - a.time) / (b.time - a.time)
            server = None
            if a.server is not None and b.server is not None:
                server = a.server + (b.server - a.server) * share
            disks = tuple(_between(x, y, share) for x, y in zip(a.disks, b.disks, strict=True))
            counts = _between(a.counts, b.counts, share)
            energy = _between(a.energy, b.energy, share)
            return Sample(when, _between(a.cpu, b.cpu, share), server, disks, counts, energy)
    return samples[-1]


def unwrapped(before: Sequence[float], now: Sequence[float]) -> tuple[float, ...]:
    """The counters of a disk that follow others, as if those in milliseconds did not begin again at 32 bits."""
    values = list(now)
    for name in (BUSY_MS, QUEUE_MS):
        values[name] += before[name] // WRAP_MS * WRAP_MS
        values[name] += WRAP_MS if values[name] < before[name] else 0.0
    return tuple(values)


class Sampler(Periodic):
    """Samples from entry to exit of the with block, every interval seconds, in a thread of its own.

    disks: kernel names (also of partitions) of the device used and, if there is one, of the device below.
    counters: of the server; meter: of the machine's energy.
    """

    def __init__(
        self,
        disks: Sequence[str],
        server: int | None,
        interval: float,
        counters: Counters | None = None,
        meter: Meter | None = None,
    ) -> None:
        super().__init__(interval)
        self.stats = [Path("/sys/class/block", name, "stat") for name in disks]
        self.server = server
        self.counters = counters
        self.meter = meter
        self.server_end: float | None = None
        self.samples: list[Sample] = []
        self.errors: list[str] = []

    def look(self) -> None:
        try:
            sample = read_sample(self.stats, self.server, self.counters, self.meter)
            if self.samples:
                sample = replace(sample, disks=tuple(map(unwrapped, self.samples[-1].disks, sample.disks)))
            if sample.server is None:
                sample = replace(sample, server=self.server_end)
            self.samples.append(sample)
        except OSError as error:
            if (text := f"sampling failed: {error}") not in self.errors:  # once, and not at every look
                self.errors.append(text)

    def keep_server_end(self) -> None:
        """The server has ended, but was not waited for: what it has taken counts in all samples that follow."""
        self.server_end = read_server(self.server) if self.server else None

    def use(self, begin: float, end: float) -> Use | None:
        """Means between two times (monotonic); None without two samples or any time between."""
        if len(self.samples) < 2:
            return None
        a, b = at(self.samples, begin), at(self.samples, end)
        if b.time <= a.time:
            return None
        use = use_between(a, b)
        return replace(use, energy_j=self.meter.between(a.energy, b.energy)) if self.meter else use

    def write_csv(self, path: Path, origin: float) -> None:
        """One row per interval; time_s counts from origin."""
        fields = list(DiskUse.__dataclass_fields__)
        with path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            header = ["time_s", "cpu_percent", "steal_percent", "server_cpu_percent"]
            prefixes = ["", "backing_"][: len(self.stats)]
            writer.writerow(header + [prefix + field for prefix in prefixes for field in fields])
            for a, b in pairwise(self.samples):
                if b.time - a.time < self.interval / 10:
                    continue  # the last sample may follow another at once
                use = use_between(a, b)
                values: list[float | None] = [b.time - origin, use.cpu_percent, use.steal_percent]
                values.append(use.server_cpu_percent)
                values += [getattr(disk, field) for disk in use.disks for field in fields]
                writer.writerow(["" if value is None else f"{value:.3f}" for value in values])
