# SPDX-License-Identifier: BSD-3-Clause
"""Load on a disk whose server ends meanwhile: the fio jobs, and what they saw of it.

Two jobs at once. `load` writes at random as fast as it can, in the upper half of the area. `verify` writes
blocks of its own at a steady pace for as long, and reads all of them back at the end: every write that was
acknowledged before, during and after the event must be there. A request that fails is counted and does not end
the load, if its error is EIO; after others fio ends the job, and the run is not valid.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..machine.prepare import drop_caches
from ..machine.tuning import on_cpus
from ..model.config import VIRTUAL, Parameter, Profile, Suite, SystemConfig, Workload
from ..model.parts import ENGINES, KINDS, Kind
from ..model.tables import Table
from ..observing.warmup import WarmUp
from . import LEAST_RUNTIME, Result, WorkloadError
from .base import DeviceEngine, Job, Run
from .fio import fio_time, make_area, read_report

EVENTS = ("kill", "replace")
TIMES = ("before_s", "spread_s", "after_s")
# A suite's times may have other values of these.
RESOLUTION = {
    "settled_s": 1.0,  # at the beginning, not counted as throughput before the event
    "window_s": 1.0,  # of which the mean must be as high again
    "interval_s": 0.1,  # of the samples: the resolution of the time back to full throughput
}
BLOCK = 4096
DEPTH = 16
VERIFY_DEPTH = 4
VERIFY_RATE = 128  # operations per second of the job that is verified
BACK = 0.9  # of the throughput before: full throughput
SERIES = "samples.csv"
LEAST_TIME = 0.01  # s of a suite's times
LOST = "(requested block:"  # in the line that fio prints of each block that is not what was written


@dataclass(frozen=True)
class Timing:
    """Seconds since the load began: of the event, and of the end. The others are those of RESOLUTION."""

    event_s: float
    end_s: float
    settled_s: float = RESOLUTION["settled_s"]
    window_s: float = RESOLUTION["window_s"]
    interval_s: float = RESOLUTION["interval_s"]


def timing(workload: Workload, profile: str, seed: int, waits_s: float = 0.0) -> Timing:
    """When the event comes: at a random moment, the same for the same seed. waits_s: beside what comes after it."""
    known = workload.timing[profile]  # of an older plan without RESOLUTION
    when = known["before_s"] + random.Random(seed).uniform(0, known["spread_s"])
    end = sum(known[name] for name in TIMES) + waits_s
    return Timing(round(when, 3), round(end, 3), **{name: known.get(name, own) for name, own in RESOLUTION.items()})


def waits_s(profile: Profile, system: SystemConfig, event: str) -> float:
    """
    How much longer a run on a system takes than the suite says: in virtual time, where idle time costs nothing, as long
    as its framework does nothing after the event. Otherwise all systems have the same times.
    """
    return KINDS[system.kind].resend_s if profile.virtual and event == "kill" else 0.0


@dataclass
class Event:
    """What was done to the server, filled in when it is done. Seconds since fio's start."""

    load_s: float = 0.0  # its first request was completed
    began_s: float = 0.0
    ended_s: float = 0.0  # the new server serves, as far as it says so


def writes(disk: str) -> int:
    """Requests to write that a disk has completed."""
    return int(Path("/sys/block", disk, "stat").read_text().split()[4])


def argv(device: str, area: int, seconds: float, seed: int, directory: Path) -> list[str]:
    """The command line."""
    half = area // 2 // BLOCK * BLOCK
    verified = min(math.ceil(seconds * VERIFY_RATE) * BLOCK, half)
    return [
        "fio",
        "--name=global",
        f"--filename={device}",
        "--ioengine=libaio",
        "--direct=1",
        "--thread=1",
        "--rw=randwrite",
        f"--bs={BLOCK}",
        "--allow_file_create=0",
        "--randrepeat=0",
        f"--randseed={seed}",
        "--continue_on_error=all",
        "--verify_state_save=0",
        "--eta=never",
        "--output-format=json",
        f"--output={directory / 'fio.json'}",
        "--name=load",
        f"--iodepth={DEPTH}",
        f"--offset={half}",
        f"--size={half}",
        "--norandommap=1",
        "--time_based=1",
        f"--runtime={fio_time(seconds)}",
        "--name=verify",
        f"--iodepth={VERIFY_DEPTH}",
        "--offset=0",
        f"--size={verified}",
        f"--rate_iops=,{VERIFY_RATE}",  # of writes
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_fatal=0",
    ]


Series = Sequence[tuple[float, float]]  # end of the interval in s since the start of the load, kop/s in it


def read_series(path: Path) -> Series:
    """Throughput, from the samples of the machine."""
    with path.open(newline="") as file:
        return [
            (float(row["time_s"]), float(row["read_kops"]) + float(row["write_kops"])) for row in csv.DictReader(file)
        ]


def mean_rate(series: Series, begin: float, end: float) -> float | None:
    """kop/s between two times, None if no whole interval lies between."""
    total = seconds = 0.0
    for (before, _), (end_s, rate) in zip(series, series[1:], strict=False):
        if before >= begin and end_s <= end:
            total += rate * (end_s - before)
            seconds += end_s - before
    return total / seconds if seconds else None


def silence(series: Series, begin: float, end: float) -> float:
    """Seconds of the longest time, begun between begin and end, in which nothing was completed until something was.

    The load, from begin to end, always waits for requests: so long they took at least, also those that failed then.
    What is read back after it comes when it comes.
    """
    longest, busy_until, silent_until = 0.0, math.inf, 0.0
    for at, rate in series:
        if rate and at >= begin:
            if busy_until < end:
                longest = max(longest, silent_until - busy_until)
            busy_until = at
        silent_until = at
    return longest


def recovery(series: Series, before: float, event: float, end: float, times: Timing) -> float | None:
    """Seconds from the event until throughput is back for a window, 0 if it never left; None: not before the end.

    before: kop/s.
    """
    for at in [event, *(at for at, _ in series if at > event)]:
        if at + times.window_s > end:
            return None
        rate = mean_rate(series, at, at + times.window_s + times.interval_s)
        if rate is not None and rate >= BACK * before:
            return at - event
    return None


def verify_limit(times: Timing) -> float:
    """Seconds that reading back may take, beyond what the runner grants anyway."""
    return times.end_s * VERIFY_RATE / 100


def parse(directory: Path, times: Timing, event: Event) -> Result:
    """Raises WorkloadError if there is nothing to read."""
    try:
        report = read_report(directory / "fio.json")
        load, verify = report["jobs"]
        written, checked = load["write"], verify["read"]
        seconds = written["runtime"] / 1e3
        failed = sum(job.get("total_err", 0) for job in (load, verify))
        longest = max(part["lat_ns"]["max"] for part in (written, verify["write"], checked)) / 1e9
        # total_ios has what failed, too: of the writes it is not what was done, of the reads it is what was tried.
        operations, blocks, verified = written["lat_ns"]["N"], verify["write"]["lat_ns"]["N"], checked["total_ios"]
        throughput, latency = operations / (seconds or 1.0) / 1e3, written["lat_ns"]["mean"] / 1e3
        moved, code = written["io_bytes"] / (seconds or 1.0) / 1e6, load["error"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WorkloadError(f"fio.json cannot be read: {error}") from None
    lost = sum(path.read_text(errors="replace").count(LOST) for path in (directory / "commands").glob("*-fio.err"))
    refused = max(0, failed - lost)
    series = read_series(directory / SERIES)
    problems = []
    warnings = []
    load_end = event.load_s + times.end_s
    before = mean_rate(series, event.load_s + times.settled_s, event.began_s)
    back = recovery(series, before, event.began_s, load_end, times) if before else None
    if not event.began_s:
        problems.append("the load ended before the event")
    elif not before:
        problems.append("nothing was written before the event")
    if seconds < LEAST_RUNTIME or not operations:
        problems.append("fio wrote nothing")
    elif seconds < times.end_s - times.window_s:
        problems.append(f"the load ended after {seconds:.1f} s of {times.end_s:g} s: {os.strerror(code)}")
    if not verified or verified < blocks:
        problems.append(f"fio verified {verified} of {blocks} blocks")
    if refused > DEPTH + VERIFY_DEPTH:  # others than those that were under way at the event
        back = None
        warnings.append(f"failed requests: {refused}, which the disk counts as done: when it was back is not known")
    elif back is None and event.began_s:
        left = times.end_s - times.event_s
        warnings.append(f"slow: not back at {BACK * 100:.0f} % of the throughput within {round(left, 1):g} s")
    return Result(
        throughput_kops=throughput,
        throughput_mbps=moved,
        latency_us=latency,
        duration_s=seconds,
        measured_from=0.0,
        version=str(report.get("fio version", "")),
        problems=tuple(problems),
        warnings=tuple(warnings),
        operations=float(operations),
        warm_up=WarmUp("none", 0.0, None, "the server's end is meant to change the throughput"),
        metrics={
            "failed_requests": float(refused),
            "lost_blocks": float(lost),
            # fio keeps no time of requests that failed.
            "stall_s": max(longest, silence(series, event.load_s, load_end - times.interval_s)),
            "recovery_s": back,
        },
        settings={
            "event_s": event.began_s,
            "restarted_s": event.ended_s,
            "load_s": event.load_s,
            "end_s": times.end_s,
            "window_s": times.window_s,
            "interval_s": times.interval_s,
            "before_kops": before,
            "blocks_verified": verified,
        },
    )


def _workloads(suite: str, table: Table) -> Iterator[Workload]:
    """Workloads from the rest of a suite's table: one for each event."""
    events, part = [str(event) for event in table.array("events")], table.table("timing")
    timing = {}
    for profile in list(part.values):
        times = part.table(profile)
        timing[profile] = {key: times.number(key, LEAST_TIME) for key in TIMES}
        timing[profile] |= {key: times.number(key, LEAST_TIME) for key in RESOLUTION if key in times.values}
        times.end((*TIMES, *RESOLUTION))
    table.end(("name", "engine", "systems", "events", "timing"))
    for event in events:
        if event not in EVENTS:
            raise table.error("events", event, f"must be of {', '.join(EVENTS)}")
        yield Workload(event, "randwrite", suite=suite, engine="failover", event=event, timing=timing)


class Failover(DeviceEngine):
    """fio, while the server's end comes at its time."""

    name = "failover"
    own_report = True
    table_files = (SERIES,)
    has_ramp = False
    busy = True  # but for nbdkit's 10 s

    def suite(self, name: str, table: Table, profile: str, systems: tuple[str, ...]) -> Suite:
        return Suite(name, tuple(_workloads(name, table)), systems)

    def fits(self, workload: Workload, system: SystemConfig, kind: Kind) -> bool:
        return system.uses_device and workload.event in kind.events

    def with_values(
        self, workload: Workload, profile: Profile, parameters: Sequence[Parameter], devices: Sequence[str]
    ) -> Workload:
        """In virtual time with the times of that."""
        times = dict(workload.timing)
        virtual = times.pop(VIRTUAL, {})
        if virtual and profile.virtual:
            times[profile.name] = virtual
        return dataclasses.replace(workload, timing=times)

    def duration_s(self, workload: Workload, profile: Profile) -> float:
        return sum(workload.timing[profile.name][name] for name in TIMES)

    def run_text(self, workload: Workload, profile: Profile) -> str:
        return f"{self.duration_s(workload, profile):g} s of load per run, in which the server ends"

    def ramp_s(self, profile: Profile) -> float:
        return 0.0

    def prepare(self, run: Run) -> tuple[Job, dict[str, object]]:
        found = make_area(run) | drop_caches(run.devices(), run.area)
        running, workload, directory = run.running, run.workload, run.directory
        waits = waits_s(run.plan.profile, run.plan.systems[run.entry.system], workload.event)
        times = timing(workload, run.plan.profile.name, run.entry.seed, waits)
        event, disk = Event(), running.used.disk
        first = writes(disk)

        def disturb(seconds: float) -> None:
            if not event.load_s and writes(disk) > first:
                event.load_s = seconds
            if event.ended_s or not event.load_s or seconds < event.load_s + times.event_s:
                return
            began = time.monotonic()
            event.began_s = seconds
            with on_cpus(run.plan.pin_server):
                running.change_server(workload.event)
            event.ended_s = seconds + time.monotonic() - began

        job = Job(
            argv=argv(running.used.path, run.area, times.end_s, run.entry.seed, directory),
            seconds=times.end_s + verify_limit(times),
            parse=lambda: parse(directory, times, event),
            synced=(running.used.path,),
            sync=os.fsync,
            area=run.area,
            disturb=disturb,
            ends=(0, 1),  # requests that fail are counted
            interval_s=times.interval_s,
        )
        return job, found


ENGINES.add(Failover())
