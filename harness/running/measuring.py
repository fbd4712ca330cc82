# SPDX-License-Identifier: BSD-3-Clause
"""One run of a workload: watch it until it ends, and what its summary says."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from ..engines import Result, WorkloadError, replay
from ..engines.base import Job, Run, device_engine
from ..engines.store import StoreResult
from ..machine.blockdev import BlockDevice, opened, queue_attributes
from ..machine.durable import write_json
from ..machine.interrupt import held
from ..machine.packages import installing
from ..machine.prepare import dirty_limits
from ..machine.subprocesses import Process, Recorder, now
from ..machine.tuning import on_cpus
from ..model.plan import COUNTING, EXTRA, SAMPLING
from ..observing import counters, perf
from ..observing.energy import Meter
from ..observing.environment import meminfo
from ..observing.hardware import Watcher
from ..observing.host_load import OtherPrograms
from ..observing.instructions import Sides
from ..observing.samplers import DiskUse, Sampler, Use
from ..observing.warmup import WarmUp
from ..systems import Running
from .recording import recording

ENVIRONMENT = "environment.json"  # in the directory of a campaign, and of each run
FLUSH_PATIENCE = 300.0  # s that a workload may take beyond ramp and runtime, to write back what it left dirty
STEAL_LIMIT = 1.0  # %
CACHE_LIMIT = 1.1  # times what its disk has read
CLOCK_STEP = 0.1  # s by which the clock may be set during a run without a word
SERVER_PATIENCE = 30  # s that a workload may take to end once its device's server is dead
POLL_S = 0.1
SERVER_DIED = "the server died"
NO_SAMPLES = "no samples of the measured window"
WRITE_BACK_FAILED = "writing back failed"
FIRST_IO = 256 << 10  # bytes that fio has moved once its job has begun, for old fio that does not tell the time


def mean_use(use: DiskUse | None) -> dict[str, float | None] | None:
    """A device's part of the summary."""
    if use is None:
        return None
    names = ("read_request_kib", "write_request_kib", "queue_depth", "utilisation_percent")
    values = ((name, getattr(use, name)) for name in names)
    return {name: None if value is None else round(value, 3) for name, value in values}


def metrics_of(result: Result | StoreResult, use: Use | None) -> dict[str, float | None]:
    """What each run measures, whatever its engine: rates in 1,000/s and MB/s, us, percent of one CPU or of all."""
    return {
        "throughput_kops": result.throughput_kops,
        "latency_us": result.latency_us,
        "cpu_percent": use.cpu_percent if use else None,
        "server_cpu_percent": use.server_cpu_percent if use else None,
        "throughput_mbps": result.throughput_mbps,
    }


def energy_of(operations: float, use: Use | None) -> dict[str, float | None]:
    """What an operation took of the whole machine's energy, where that is counted."""
    if use is None or not use.energy_j or not operations:
        return {}
    return {"energy_uj_per_op": round(1e6 * sum(use.energy_j.values()) / operations, 3)}


def traced(number: int) -> str:
    """A device number as trace points print it."""
    return f"{os.major(number)},{os.minor(number)}"


def sides(job: Job, running: Running, device: BlockDevice) -> Sides:
    """Who is who in what perf recorded. device: of the plan."""
    below = running.backing or device
    own = running.used.number != below.number and not running.file
    return Sides(
        application=Path(job.argv[0]).name,
        server=running.server,
        device=traced(running.used.number) if own else "",
        backing=traced(below.number),
    )


def keep_stacks(directory: Path, sampled: str, who: Sides, window: tuple[float, float], operations: float) -> None:
    """What perf recorded of the measured time, folded; the recording itself, which is large, is not kept."""
    data = directory / perf.DATA
    perf.write(directory / perf.FILE, perf.folded(perf.script(data, window), who), operations, sampled)
    data.unlink()


def steady_warnings(warm_up: WarmUp) -> list[str]:
    """The warning about a run that is known not to be steady."""
    return [f"not steady: {warm_up.reason}"] if warm_up.steady is False else []


def steal_warnings(use: Use | None) -> list[str]:
    """The warning about CPU time that went to other virtual machines, if it is worth one."""
    if use is None or use.steal_percent <= STEAL_LIMIT:
        return []
    return [f"steal: {use.steal_percent:.1f} % of the CPU time went to other machines"]


def cache_warnings(rw: str, mbps: float, use: Use | None, interval_s: float) -> list[str]:
    """
    The warning about random reads, of so many MB/s, that found in the page cache what was read before. rw: fio's.
    interval_s: of the samples, of which one at either end may lie half outside of the load, so that the disk seems to
    have read less.
    """
    read = use.disks[-1].read_mbps if use and use.disks else 0.0
    if rw != "randread" or not use or not read:
        return []
    surely = mbps * (1 - interval_s / (2 * use.duration_s))
    if surely <= CACHE_LIMIT * read:
        return []
    share = 100 * (1 - read / surely)
    return [f"page cache: at least {share:.0f} % of what was read came from memory, as the files are small"]


def costs(use: Use, operations: float, speed: int = 0) -> dict[str, float]:
    """
    What an operation of the workload cost, as far as the kernel counts it: no timings. speed: the one CPU of this
    machine executes just so many instructions a microsecond.
    """
    if not operations:
        return {}
    if speed:
        return {"machine_instructions_per_op": round((use.duration_s - use.idle_s) * 1e6 * speed / operations)}
    found = {f"server_{name}_per_op": value for name, value in use.counts.items()}
    for prefix, disk in zip(("device", "backing"), use.disks, strict=False):
        found[f"{prefix}_requests_per_op"] = (disk.read_kops + disk.write_kops) * 1e3 * use.duration_s
        found[f"{prefix}_bytes_per_op"] = (disk.read_mbps + disk.write_mbps) * 1e6 * use.duration_s
    return {name: round(value / operations, 6) for name, value in found.items()}


def write_counters(directory: Path) -> None:
    """What the device counted, which servers print when they close it: counters.json in the block's directory."""
    counters: dict[str, int] = {}
    for log in sorted((directory / "commands").glob("*.err")):
        for line in re.findall(r"counters:((?: \w+=\d+)+)", log.read_text(errors="replace")):
            counters |= {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", line)}
    write_json(directory / "counters.json", counters)


def bytes_moved(pid: int) -> int:
    """
    Bytes that a process has read and written by system calls, 0 if it is gone. What disks have moved for it would be
    that of io_uring and libaio as well, but also the program itself, which the dropped caches no longer hold.
    """
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    counts = {name: int(count) for name, _, count in (line.partition(": ") for line in lines)}
    return counts["rchar"] + counts["wchar"]


def ramp_end(first_io: float, ramp_s: float, ended: float, measured_s: float) -> float:
    """
    When the ramp was over, if the workload does not tell: by its first I/O that was seen (0: none). What it measured
    fits in before its end. So it is placed if its I/O is by io_uring or libaio, of which nothing is seen, or only the
    logs that fio writes last: later than it was by those, by the last flush and by a poll.
    """
    latest = ended - measured_s
    return min(first_io + ramp_s, latest) if first_io else latest


def watch(process: Process, job: Job, running: Running, origin: float) -> tuple[list[str], float]:
    """
    Wait until the workload ends, its server dies or its time is over, and end it. Returns the problems, and when it had
    done its first I/O (0: never seen). origin: when it was started.
    """
    problems = []
    first_io = 0.0
    limit = time.monotonic() + job.seconds + FLUSH_PATIENCE
    try:
        while process.poll() is None:
            time.sleep(POLL_S)
            job.disturb(time.monotonic() - origin)
            first_io = first_io or (time.monotonic() if bytes_moved(process.pid) > FIRST_IO else 0.0)
            if running.server_died():
                problems.append(SERVER_DIED)
                for _ in range(SERVER_PATIENCE):
                    running.fail_io()  # once more: what waited behind the first comes next
                    if process.wait(1.0):
                        break
                break
            if time.monotonic() > limit:
                problems.append(f"the workload did not end within {FLUSH_PATIENCE:.0f} s after its runtime")
                break
    finally:
        process.end()
    return problems, first_io


def used_by(running: Running, area: int) -> dict[str, object]:
    """What the workload opened, for the summary."""
    return {"path": running.target, "size": area} if running.file else dataclasses.asdict(running.used)


@dataclass(frozen=True)
class Watched:
    """
    A workload that has ended, and what looked at it. sampled: what perf counted; queues: of the devices, afterwards.
    ended: before what it wrote was written back. Times are of time.monotonic(), which time.time() was so far ahead of
    at the origin; clock_set: s by which that has been set since.
    """

    process: Process
    started: str
    origin: float
    ahead: float
    clock_set: float
    first_io: float
    ended: float
    sampled: str
    sampler: Sampler
    hardware: Watcher
    others: OtherPrograms
    queues: Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class Found:
    """What a run has measured, from begin on. result: None where its output could not be read."""

    result: Result | None
    begin: float
    use: Use | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    warm_up: Mapping[str, object] | None = None


class Measurement:
    """
    A run from where it is prepared to its summary, in the order of the methods. What was seen is kept in its directory.

    problems: why it is not valid; warnings: what is odd about it.
    """

    def __init__(self, run: Run, job: Job) -> None:
        self.run, self.job = run, job
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.ramp = device_engine(run.workload.engine).ramp_s(run.profile)
        self.devices = run.devices()
        self.queues = {device.name: queue_attributes(device) for device in self.devices}
        write_json(run.directory / "queue-before.json", self.queues)
        self.limits = dirty_limits()

    @property
    def counting(self) -> bool:
        return self.run.entry.repetition == COUNTING

    @property
    def interval_s(self) -> float:
        """Between samples."""
        return self.job.interval_s or self.run.profile.interval_ms / 1e3

    def keep_job_file(self) -> None:
        """The job file that repeats what fio is asked for."""
        run, job = self.run, self.job
        if job.argv[0] != "fio":
            return
        target = run.running.target
        comments = (
            f"{run.entry.workload} on {run.entry.system} over {run.entry.device}, campaign {run.plan.campaign}.",
            f"WRITES to {target}." if run.workload.writes else f"Reads {target}.",
            "Before writes userblk discards the area, before reads it fills it with zeroes; then it drops caches.",
            f"area {job.area} bytes, vm.dirty_bytes {self.limits['dirty_bytes']},"
            f" memory {job.memory.limit if job.memory else 'not limited'}",
        )
        (run.directory / replay.FILE).write_text(replay.job_file(job.argv, comments))

    def looking(self, recorder: Recorder) -> AbstractContextManager[str]:
        """perf, in the repetition that it looks at: what it samples, else ""."""
        if self.run.entry.repetition != SAMPLING:
            return nullcontext("")
        seconds = self.job.seconds
        limit = seconds + FLUSH_PATIENCE + SERVER_PATIENCE
        return recording(recorder, self.run.directory / perf.DATA, seconds, limit, installing(perf.PACKAGE))

    def watch(self, argv: Sequence[str]) -> Watched:
        """Start argv and watch it until it has ended and what it wrote is written back."""
        run, job = self.run, self.job
        recorder = Recorder(run.directory, run.teardown)
        started = now()
        names = [device.name for device in self.devices]
        server = run.running.server or None
        with ExitStack() as stack:
            stack.callback(recorder.save)  # once all has ended
            synced = [stack.enter_context(opened(path, os.O_RDONLY)) for path in job.synced]
            interval_s = self.interval_s
            events = self.counting and not run.profile.instructions  # which counting syscalls takes itself
            counted = stack.enter_context(counters.counting(server, events))
            sampled = stack.enter_context(self.looking(recorder))
            sampler = stack.enter_context(Sampler(names, server, interval_s, counted, Meter()))
            hardware = Watcher(run.entry.device, run.device.disk)
            if not run.plan.emulated:
                stack.enter_context(hardware)
            others = OtherPrograms({os.getpid(), *([server] if server else [])})
            origin = time.monotonic()
            ahead = time.time() - origin
            process: Process | None = None
            try:
                with on_cpus(run.plan.pin_client), held():
                    process = recorder.spawn(argv, first=job.memory.joined if job.memory else ())
                problems, first_io = watch(process, job, run.running, origin)
                ended = time.monotonic()
            finally:
                if process:
                    process.end()
            self.problems += problems
            self._write_back(synced)
        assert process  # else an error has left the block
        after = {device.name: queue_attributes(device) for device in self.devices if device.queue.exists()}
        clock_set = time.time() - time.monotonic() - ahead
        times = (origin, ahead, clock_set, first_io, ended)
        return Watched(process, started, *times, sampled, sampler, hardware, others, after)

    def _write_back(self, held: Sequence[int]) -> None:
        """held: the job's synced files, opened before it wrote: the kernel reports an error once for each open file."""
        for fd, path in zip(held, self.job.synced, strict=True):
            try:
                if not self.problems:
                    self.job.sync(fd)
            except OSError as error:
                self.problems.append(f"{path}: {WRITE_BACK_FAILED}: {error.strerror}")

    def keep_state(self, watched: Watched, facts: dict[str, object]) -> None:
        """The samples, and the machine's state after the run. facts: what is known of it before."""
        directory = self.run.directory
        write_json(directory / "queue-after.json", watched.queues)
        memory = {name: value for name, value in meminfo().items() if name in ("MemAvailable", "Cached", "Buffers")}
        write_json(directory / ENVIRONMENT, facts | {"load": os.getloadavg(), "memory": memory})
        watched.sampler.write_csv(directory / "samples.csv", watched.origin)

    def look_for_problems(self, watched: Watched) -> None:
        """What went wrong, as far as it does not take the workload's results to see it."""
        job, running, problems = self.job, self.run.running, self.problems
        if running.server_died() and SERVER_DIED not in problems:
            problems.append(SERVER_DIED)
        if watched.process.poll() not in job.ends:
            problems.append(watched.process.fate())
        problems += watched.hardware.problems
        self.warnings += watched.hardware.warnings
        problems += watched.sampler.errors + ([] if problems else running.problems()) + job.problems()
        if watched.queues != self.queues:
            changed = sorted(name for name, before in self.queues.items() if before != watched.queues.get(name))
            problems.append(f"queue settings of {', '.join(changed)} changed during the run")
        if dirty_limits() != self.limits:
            problems.append("vm.dirty_bytes and the like changed during the run; another campaign on this machine?")

    def read_results(self, watched: Watched) -> Found:
        """What the workload says and the samples show. Raises WorkloadError if nothing else explains it."""
        try:
            result = self.job.parse()
        except WorkloadError as error:
            if not self.problems:
                raise
            if watched.process.poll() in self.job.ends:  # else its exit code says why there is nothing to read
                self.problems.append(str(error))
            return Found(None, watched.origin)
        self.problems += result.problems
        self.warnings += result.warnings
        measured_from = result.begin(watched.ahead)
        if result.since_1970 and abs(watched.clock_set) > CLOCK_STEP:
            measured_from = 0.0
            self.warnings.append(f"clock: it was set by {watched.clock_set:+.1f} s during the run")
        cut_s = result.warm_up.cut_s
        ramped = measured_from or ramp_end(watched.first_io, self.ramp, watched.ended, cut_s + result.duration_s)
        begin = ramped + cut_s
        end = begin + result.duration_s
        use = watched.sampler.use(begin, end)
        if use is None:
            self.problems.append(NO_SAMPLES)
        self.warnings += steal_warnings(use)
        self.warnings += steady_warnings(result.warm_up)
        self.warnings += cache_warnings(self.run.workload.rw, result.throughput_mbps, use, self.interval_s)
        if watched.sampled:
            who = sides(self.job, self.run.running, self.run.device)
            keep_stacks(self.run.directory, watched.sampled, who, (begin, end), result.operations)
        metrics = {**metrics_of(result, use), **result.metrics, **energy_of(result.operations, use)}
        if self.run.entry.repetition in EXTRA:
            metrics = {}  # its timings are those of a slowed machine
        ramp = self.ramp if result.ramp_s is None else result.ramp_s
        warm_up = dataclasses.asdict(result.warm_up) | {"ramp_s": ramp}
        return Found(result, begin, use, metrics, self._costs(watched, result, begin), warm_up)

    def _costs(self, watched: Watched, result: Result, begin: float) -> dict[str, float]:
        """Where all of the machine is counted, without the start of the workload's program."""
        instructions = self.run.profile.instructions
        whole = watched.sampler.use(begin if instructions else -math.inf, math.inf)
        if not whole or not self.counting:
            return {}
        return costs(whole, result.operations, int(os.environ["LAB_INSTRUCTIONS_PER_US"]) if instructions else 0)

    def settings(self, result: Result | None, preparation: Mapping[str, object]) -> dict[str, object]:
        """With what the run was made."""
        run, job = self.run, self.job
        settings: dict[str, object] = {
            **run.running.settings,
            **preparation,
            **self.queues.get(run.running.used.name, {}),
        }
        settings |= {"area_bytes": job.area, **self.limits}
        if job.memory:
            settings |= job.memory.settings()
        if run.running.backing:
            settings["backing"] = self.queues[run.running.backing.name]
        if result:
            settings[run.workload.engine] = dict(result.settings) | {"version": result.version}
        return settings

    def summary(self, watched: Watched, found: Found, preparation: Mapping[str, object]) -> dict[str, object]:
        """All but which run it is."""
        disks = found.use.disks if found.use else ()
        return {
            "started": watched.started,
            "measured_from_s": round(found.begin, 9),
            "duration_s": found.result.duration_s if found.result else 0.0,
            "valid": not self.problems,
            "invalid": self.problems,
            "warnings": self.warnings,
            "metrics": {} if self.problems else found.metrics,
            "warm_up": found.warm_up,
            "costs": {} if self.problems else found.costs,
            "energy_j": found.use.energy_j if found.use else {},
            "hardware": watched.hardware.facts,
            "device_io": mean_use(disks[0] if disks else None),
            "backing_io": mean_use(disks[1] if len(disks) > 1 else None),
            "settings": self.settings(found.result, preparation),
            "device_used": used_by(self.run.running, self.job.area),
        }
