# SPDX-License-Identifier: BSD-3-Clause
"""fio jobs of the block suite and the figures in what fio writes."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..machine.blockdev import flush_cache
from ..machine.filesystem import limit_memory
from ..machine.prepare import discard_area, drop_caches, fill_area, make_known_to_write_back, settle_write_back
from ..machine.safety import recheck
from ..model.config import Profile, Suite, Workload
from ..model.parts import ENGINES, FILL_BYTES_PER_S, History
from ..model.tables import Table
from ..observing import warmup
from ..observing.histogram import Bins, merged, tails
from ..observing.warmup import Interval
from . import Result, WorkloadError, least_runtime
from .base import DeviceEngine, Job, Run, grid

LAST_INTERVALS = 2  # of a run, beyond what is measured
REPORTS_ERROR = "fio reports error"
END_FSYNC = "end_fsync"  # option of fio that a workload may have
NOTHING_LEFT = "fio completed no operation after the ramp"
TOO_SHORT = "s only; use a larger area"
REPORT, IOPS_LOG = "fio.json", "fio_iops.log"
GAP = 1.5  # lengths between two lines of a log that are more than a late line


def subrange(workload: Workload, area: int) -> int:
    """Bytes of each thread's part of the area."""
    return area // workload.threads // workload.block_size * workload.block_size


def fio_time(seconds: float) -> str:
    """As fio reads it: whole seconds, else milliseconds."""
    return f"{seconds:.0f}" if seconds == int(seconds) else f"{seconds * 1e3:.0f}ms"


def log_options(profile: Profile, directory: Path) -> list[str]:
    """For what parse() reads."""
    log = directory / "fio"
    return [
        f"--write_bw_log={log}",
        f"--write_iops_log={log}",
        f"--write_lat_log={log}",
        f"--log_avg_msec={profile.workload_interval_ms}",
        "--per_job_logs=0",
        "--output-format=json+",
        f"--output={directory / REPORT}",
    ]


def through_write_back(workload: Workload) -> bool:
    """Does it write, and not past the page cache?"""
    return workload.writes and not workload.depth


def cuts_ramp(workload: Workload, profile: Profile) -> bool:
    """
    Is the ramp cut from fio's logs? fio ends the ramp of each thread by itself, with the first operation that is over
    after it. A writer that write-back holds at that moment begins as much later, and ends as much later than the
    others, whose part of the disk it has then: in runs of less than a second that was up to a third of the result.
    """
    return through_write_back(workload) and profile.virtual and profile.fixed_warm_up


def fio_times(workload: Workload, profile: Profile) -> tuple[float, float]:
    """The ramp that fio discards, and what it runs for after that, s."""
    if not cuts_ramp(workload, profile):
        return profile.ramp_s, profile.runtime_s
    # The log of a thread that write-back holds ends some intervals before the thread does.
    return 0.0, profile.ramp_s + profile.runtime_s + LAST_INTERVALS * profile.workload_interval_ms / 1e3


def argv(workload: Workload, profile: Profile, area: int, device: str, seed: int, directory: Path) -> list[str]:
    """The command line. Buffered, closed loop, one outstanding operation a thread, each thread on its own part.

    There is no time_based: a run ends early when its parts are done, as in the paper, since a second pass
    would read from the page cache. A workload with a depth goes past that, and on for the whole time.
    """
    size = subrange(workload, area)
    ramp_s, runtime_s = fio_times(workload, profile)
    engine = ["--ioengine=psync", "--iodepth=1", "--direct=0"]
    if workload.depth:
        engine = ["--ioengine=io_uring", f"--iodepth={workload.depth}", "--direct=1", "--time_based=1"]
        engine += ["--end_fsync=1"] * workload.writes
    return [
        "fio",
        f"--name={workload.id}",
        f"--filename={device}",
        *engine,
        "--thread=1",
        f"--numjobs={workload.threads}",
        f"--rw={workload.rw}",
        f"--bs={workload.block_size}",
        f"--size={size}",
        f"--offset_increment={size}",
        # The caches were dropped. Each thread would write back the whole device when it begins, and would wait for the
        # writers that began before it: they would not run at the same time.
        "--invalidate=0",
        "--allow_file_create=0",
        f"--ramp_time={fio_time(ramp_s)}",
        f"--runtime={fio_time(runtime_s)}",
        "--randrepeat=0",
        f"--randseed={seed}",
        "--group_reporting=1",
        "--eta=never",
        *log_options(profile, directory),
    ]


def _threads(path: Path) -> list[list[tuple[float, float]]]:
    """For each thread, the times (s after the ramp) and values of a log of fio: its jobs follow one another."""
    threads: list[list[tuple[float, float]]] = []
    last = math.inf
    for line in path.read_text().splitlines():
        fields = line.split(",")
        when, value = float(fields[0]) / 1e3, float(fields[1])
        if when <= last:
            threads.append([])
        threads[-1].append((when, value))
        last = when
    return threads


def _spread(
    threads: Sequence[Sequence[tuple[float, float]]], length: float, count: int, amount: float | None
) -> list[float]:
    """
    Amounts in each of count intervals of a log that fio wrote once a length: a value is a rate since fio looked last.
    It looks at all threads at a time, and writes nothing of those in which nothing completed. After such a gap a value
    is of one length; after a gap in which no other thread has a line either, fio was late, and it is of all of the gap.
    amount: of all of the log together, where it is known, since times are whole milliseconds.
    """
    sums = [0.0] * count
    total = 0.0
    # Each thread's times are from its own start; its first line says how they lie to those of others.
    looks = sorted(when - thread[0][0] for thread in threads for when, _ in thread)
    for thread in threads:
        begin = 0.0
        for end, rate in thread:
            at = begin
            if begin and end - begin > GAP * length:
                first = bisect_right(looks, begin - thread[0][0] + length / 2)
                if first < bisect_left(looks, end - thread[0][0] - length / 2):
                    at = end - length
            total += rate * (end - at)
            while at < end:
                index = int(at / length + 1e-9)
                if index >= count:
                    break
                until = min(end, (index + 1) * length)
                sums[index] += rate * (until - at)
                at = until
            begin = end
    scale = 1.0 if amount is None or not total else amount / total
    return [scale * value for value in sums]


def under_way(side: dict[str, Any], seconds: float) -> float:
    """Mean number of operations under way at a time, of one side (read or write) of fio's report (Little's law)."""
    return float(side["lat_ns"]["mean"] / 1e9 * side["total_ios"] / seconds) if seconds else 0.0


def series(log: Path, length: float, waiting: float, operations: float | None = None) -> list[Interval]:
    """What all threads did in each interval (length: s) after the ramp, as far as the parts of the log of all go.

    A thread's log ends up to an interval before the thread does, and threads whose part is done end early: the series
    ends with the first log of those that lasted. Latencies are by Little's law, with waiting operations under way
    at any time: those that fio logs weigh operations wrongly where some are a thousand times as long as others, as
    buffered writes are. operations: that fio counted, in all.
    """
    rates = _threads(log)
    lasting = max((thread[-1][0] for thread in rates), default=0.0)
    count = int(min((t[-1][0] for t in rates if t[-1][0] > lasting - 2 * length), default=0.0) / length + 1e-9)
    return [
        Interval(i * length, (i + 1) * length, done, waiting * length * 1e6)
        for i, done in enumerate(_spread(rates, length, count, operations))
    ]


def read_history(directory: Path, duration_s: float, interval_s: float) -> tuple[list[Interval], Bins]:
    """As of History. Raises OSError, ValueError, LookupError, TypeError, AttributeError."""
    job = read_report(directory / REPORT)["jobs"][0]
    sides = job["read"], job["write"]
    waiting = sum(under_way(side, side["runtime"] / 1e3) for side in sides)
    return series(directory / IOPS_LOG, interval_s, waiting), merged(side["clat_ns"].get("bins", {}) for side in sides)


def logged_s(times: Mapping[str, Any]) -> float:
    """How long its logs are. times: of a profile, or of its files, in a plan.json."""
    return float(times["ramp_s"] + times["runtime_s"])


def within(intervals: Sequence[Interval], begin: float, end: float) -> list[Interval]:
    """The whole intervals between two times, s; theirs are then from the first of the two on."""
    return [
        dataclasses.replace(one, start=one.start - begin, end=one.end - begin)
        for one in intervals
        if one.start >= begin - 1e-9 and one.end <= end + 1e-9
    ]


def done_in_ramp(problems: Sequence[str]) -> bool:
    """Is all that is wrong with a run that its area was done before there was something to measure?"""
    return bool(problems) and all(one == NOTHING_LEFT or one.endswith(TOO_SHORT) for one in problems)


def read_report(path: Path) -> dict[str, Any]:
    """What fio wrote to --output: errors go there too, before its JSON. Raises ValueError, OSError."""
    text = path.read_text(errors="replace")
    begin = 0 if text.startswith("{") else text.find("\n{") + 1
    report: dict[str, Any]
    report, _ = json.JSONDecoder().raw_decode(text, begin)
    return report


def parse(path: Path, workload: Workload, profile: Profile) -> Result:
    """
    The results beside fio.json at path. Where the ramp is cut from the logs, tails are those of the whole run.
    Raises WorkloadError if there is nothing to read.
    """
    length = profile.workload_interval_ms / 1e3
    try:
        report = read_report(path)
        job = report["jobs"][0]
        side = job["write" if workload.writes else "read"]
        other = job["read" if workload.writes else "write"]
        seconds = side["runtime"] / 1e3
        if not (workload.depth or workload.fixed.get(END_FSYNC)):  # else its last flush is part of the time
            # Threads that write-back holds at the end go on alone until their last operation is done: that is no load.
            seconds = min(seconds, fio_times(workload, profile)[1])
        operations = side["total_ios"]
        bytes_each = side["io_bytes"] / operations if operations else 0.0
        job_start = job.get("job_start", 0) / 1e3  # s since 1970, of the end of the ramp; an old fio does not tell
        errors = [j["error"] for j in report["jobs"]]
        waiting = under_way(side, seconds)
        bins = {int(name): count for name, count in side.get("clat_ns", {}).get("bins", {}).items()}
        logged = None if cuts_ramp(workload, profile) else operations  # which count what came after the log
        intervals = series(path.with_name(IOPS_LOG), length, waiting, logged)
        told = len(_threads(path.with_name(IOPS_LOG)))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WorkloadError(f"{path.name} cannot be read: {error}") from None
    if cuts_ramp(workload, profile):
        intervals = within(intervals, profile.ramp_s, profile.ramp_s + profile.runtime_s)
        operations, seconds = round(sum(one.operations for one in intervals)), len(intervals) * length
        job_start += profile.ramp_s if job_start else 0.0
    problems = [f"{REPORTS_ERROR} {error}: {os.strerror(error)}" for error in errors if error]
    warnings = []
    if len(report["jobs"]) != 1:
        problems.append(f"fio reports {len(report['jobs'])} groups instead of one")
    if not operations or not side["lat_ns"]["N"]:
        problems.append(NOTHING_LEFT)
    if other["total_ios"]:
        problems.append("fio also read, although the workload writes, or wrote, although it reads")
    if seconds < least_runtime(profile.runtime_s):
        problems.append(f"measured for {seconds:.2f} {TOO_SHORT}")
    elif seconds < 0.9 * profile.runtime_s:
        warnings.append(f"early end: the area was finished after {seconds:.1f} s of {profile.runtime_s:g} s")
    warm_up = warmup.find(intervals, profile.fixed_warm_up)
    if told not in (0, workload.threads):  # one began its log after another had ended its own, or has none
        reason = f"the log shows {told} of {workload.threads} threads"
        warnings.append(f"threads: {reason}, so that no warm-up was cut")
        warm_up = dataclasses.replace(warm_up, cut_s=0.0, steady=None, reason=reason)
    early = [one for one in intervals if one.start < warm_up.cut_s]
    before = min(operations, sum(one.operations for one in early))
    left, span = operations - before, (seconds - warm_up.cut_s) or 1.0
    waited = waiting * span * 1e6
    return Result(
        throughput_kops=left / span / 1e3,
        throughput_mbps=bytes_each * left / span / 1e6,
        latency_us=waited / left if left else 0.0,
        duration_s=span if seconds else 0.0,
        operations=left,
        warm_up=warm_up,
        measured_from=job_start,
        since_1970=True,
        version=str(report.get("fio version", "")),
        problems=tuple(problems),
        warnings=tuple(warnings),
        metrics=tails(bins),
    )


def make_area(run: Run) -> dict[str, object]:
    """Zero-filled before reads, discarded before writes."""
    device, modelled = run.device, bool(run.plan.model)
    if not run.plan.systems[run.entry.system].uses_device:
        return {}
    found: dict[str, object] = {}
    recheck(device, run.confirm, run.running.server, run.running.used.name)
    for used in run.devices():  # what the last run left dirty must not be written over the new state
        flush_cache(used.path)
    if through_write_back(run.workload) and modelled:
        make_known_to_write_back(run.running.used, run.area)
    whole = run.plan.used_bytes(run.entry.device)  # file systems lie beyond the area, too
    if run.workload.writes or (whole > run.area and not run.filled and not modelled):
        found |= discard_area(device, whole, run.entry.seed)
    # A modelled disk takes as long for what was never written.
    if not run.workload.writes and not run.filled and not modelled:
        fill_area(device, run.area, run.entry.seed)
    return found


class Fio(DeviceEngine):
    """fio on the device, buffered: the product of modes, threads and block sizes."""

    name = "fio"
    counted = True
    buffered = True
    history: History | None = History((REPORT, IOPS_LOG), read_history, logged_s)

    def suite(self, name: str, table: Table, profile: str, systems: tuple[str, ...]) -> Suite:
        workloads, _ = grid(table, name, self.name)
        table.end(("name", "engine", "threads", "block_sizes", "modes", "suites", "systems"))
        return Suite(name, tuple(workloads), systems)

    def modelled(self, workload: Workload) -> bool:
        return True

    def fills(self, workload: Workload) -> bool:
        return not workload.writes

    def memory_bytes(self, profile: Profile) -> int:
        return profile.memory_bytes

    def prepare(self, run: Run) -> tuple[Job, dict[str, object]]:
        """Nothing is in the caches."""
        profile, workload, directory = run.profile, run.workload, run.directory
        found = make_area(run)
        limit = self.memory_bytes(profile)
        memory = limit_memory(limit, run.plan.emulated, run.teardown) if limit else None
        job = Job(
            argv=argv(workload, profile, run.area, run.running.target, run.entry.seed, directory),
            seconds=sum(fio_times(workload, profile)),
            parse=lambda: parse(directory / REPORT, workload, profile),
            synced=(run.running.target,),
            sync=os.fsync,
            area=run.area,
            memory=memory,
            problems=memory.problems if memory else list,
        )
        found |= drop_caches(run.devices(), run.area)
        if through_write_back(workload):
            found |= settle_write_back([run.running.used.path], run.device.disk, workload.threads)
        return job, found

    def done_in_ramp(self, problems: Sequence[str]) -> bool:
        return done_in_ramp(problems)


class Direct(Fio):
    """fio with io_uring past the page cache, and for the whole time: of suites that may have times of their own."""

    counted = False
    buffered = False
    history = None

    def modelled(self, workload: Workload) -> bool:
        return False

    def timed(self, profile: Profile, workload: Workload) -> Profile:
        own = workload.timing.get(profile.name)
        return dataclasses.replace(profile, ramp_s=own["ramp_s"], runtime_s=own["runtime_s"]) if own else profile

    def duration_s(self, workload: Workload, profile: Profile) -> float:
        return super().duration_s(workload, self.timed(profile, workload))

    def written(self, workload: Workload, profile: Profile, device: str) -> int:
        """Not bound by the area: what a device may take in that time."""
        return int(self.duration_s(workload, profile) * FILL_BYTES_PER_S) if workload.writes else 0

    def done_in_ramp(self, problems: Sequence[str]) -> bool:
        return False


ENGINES.add(Fio())
