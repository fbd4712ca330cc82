# SPDX-License-Identifier: BSD-3-Clause
"""Workload files for userblk-flow, and the figures in the results that it writes (docs/flow.md)."""

from __future__ import annotations

import csv
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from ..machine.blockdev import flush_cache
from ..machine.filesystem import (
    Memory,
    ext4_errors,
    limit_memory,
    make_ext4,
    mount_ext4,
    mount_points,
    new_ext4_bytes,
    sync_file_system,
)
from ..machine.interrupt import held
from ..machine.paths import CONFIGS
from ..machine.prepare import (
    discard_area,
    drop_caches,
    forget_writes,
    make_known_to_write_back,
    settle_write_back,
    unscale_dirty_share,
)
from ..machine.safety import recheck
from ..machine.subprocesses import CommandError, Process, Recorder
from ..machine.tuning import on_cpus
from ..model import tables
from ..model.config import Parameter, Profile, Suite, SystemConfig, Workload
from ..model.parts import ENGINES, FILL_BYTES_PER_S, History, Kind
from ..model.tables import ConfigError, Table
from ..observing import warmup
from ..observing.histogram import Bins, merged, tails
from ..observing.warmup import Interval
from ..systems.base import Running, built
from . import LEAST_SHARE, Result, WorkloadError, least_runtime
from .base import FIO_MODES, DeviceEngine, Job, Run, grid, paper_of, times_in, with_times

SCHEMA = 1
FILE_OPERATIONS = ("createfile", "openfile", "deletefile")
POLL_S = 0.1
RAMP_SHARE = 0.2  # of a run whose work is done, at most, is discarded as its ramp
UNFINISHED_WARNING, UNFINISHED_LIMIT = 0.05, 0.5  # of the bytes of counted writes; a run with more is of no use
CREATE_LIMIT = 36000.0  # s: four million files through a slow system


def _configured(workload: Workload) -> Path:
    return CONFIGS / "workloads" / f"{workload.file or workload.id}.f"


def with_text(workload: Workload) -> Workload:
    """With that of its file as it is now."""
    return replace(workload, text=_configured(workload).read_text())


def argv(
    program: Path, workload: Workload, device: str, directory: Path, place: Path, seed: int, phase: str, *options: str
) -> list[str]:
    """
    The command line of one phase. directory: where the files are made, on the file system; place: where the workload
    file is written that it reads.
    """
    words = [f"--set=dir={directory}"]
    words += [f"--set={name}={value}" for name, value in workload.variables[device].items()]
    if phase == "run":
        words.append("--trust")  # what it looked at would be in the caches, which were dropped for this
    file = _configured(workload)
    if workload.text:  # else the plan is of a version that did not keep it
        file = place / file.name
        file.write_text(workload.text)
    return [str(program), "--quiet", f"--phase={phase}", f"--seed={seed}", *words, *options, str(file)]


def duration_s(workload: Workload, profile: Profile) -> float:
    """Ramp and runtime."""
    return profile.files.ramp_s + profile.files.seconds(workload)


def run_options(workload: Workload, profile: Profile, results: Path) -> list[str]:
    """The options of the measured phase."""
    times = f"--seconds={duration_s(workload, profile):g}", f"--interval={profile.workload_interval_ms / 1e3:g}"
    return [*times, f"--json={results}"]


def _measured(intervals: Sequence[dict[str, Any]], ramp: float, interval: float) -> Sequence[dict[str, Any]]:
    """The intervals after the ramp; one that begins a little before its end counts, as clocks of samplers go."""
    least = max(ramp - interval / 2, min(ramp, interval) / 2)
    return [one for one in intervals if one["start_s"] >= least]


def _length(intervals: Sequence[dict[str, Any]]) -> float:
    return float(sum(one["end_s"] - one["start_s"] for one in intervals))


def _series(measured: Sequence[dict[str, Any]], begin: float, length: float) -> list[Interval]:
    """The intervals, counted from begin; the last one may be cut short, and its rate says little then."""
    return [
        Interval(one["start_s"] - begin, one["end_s"] - begin, one["ops"], one["latency_ns"]["sum"] / 1e3)
        for one in measured
        if one["end_s"] - one["start_s"] > length / 2
    ]


def parse(path: Path, workload: Workload, profile: Profile) -> Result:
    """Raises WorkloadError if there is nothing to read."""
    try:
        report = json.loads(path.read_text())
        if report["schema"] != SCHEMA:
            raise WorkloadError(f"{path.name}: schema {report['schema']} instead of {SCHEMA}")
        return _result(report, workload, profile)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WorkloadError(f"{path.name} cannot be read: {type(error).__name__} {error}") from None


def read_history(file: Path, duration_s: float, interval_s: float) -> tuple[list[Interval], Bins]:
    """As of History, of the file with the results. Raises OSError, ValueError, LookupError, TypeError."""
    found = [one for one in json.loads(file.read_text())["intervals"] if one["end_s"] > one["start_s"]]
    intervals = [Interval(one["start_s"], one["end_s"], one["ops"], one["latency_ns"]["sum"] / 1e3) for one in found]
    begin = intervals[-1].end - duration_s - interval_s / 2 if intervals else 0.0
    return intervals, merged(one["latency_ns"]["bins"] for one in found if one["start_s"] >= begin)


def _logged_s(profile: Mapping[str, Any]) -> float:
    files = profile["files"]
    return float(files["ramp_s"] + max(files["runtime_s"], files["macro_runtime_s"]))


def history_in(file: str, seconds: Callable[[Mapping[str, Any]], float]) -> History:
    """What figures show of results that userblk-flow writes."""
    return History((file,), lambda directory, *times: read_history(directory / file, *times), seconds)


def _unfinished(summary: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """
    Problems and warnings about writes that were counted when they were submitted, as Filebench counts them, and had not
    ended at the end. They are compared with those of the whole run, which began with none under way: all others that
    were counted have ended in it. If these are most of them, the throughput is not what the device did.
    """
    left, counted = summary.get("unfinished_bytes", 0), summary.get("written_bytes", 0)
    if left <= UNFINISHED_WARNING * counted:
        return [], []
    line = f"{left} of {counted} bytes whose writing was counted had not been written at the end"
    return ([line], []) if left > UNFINISHED_LIMIT * counted else ([], [f"unfinished writes: {line}"])


def _result(report: dict[str, Any], workload: Workload, profile: Profile) -> Result:
    full, planned = profile.files.ramp_s, profile.files.seconds(workload)
    done = report["end"] not in ("time", "early", "interrupted")
    # A fast device may be through all files before the ramp is over, and more files would be more than memory holds.
    ramp = min(full, RAMP_SHARE * report["duration_s"]) if done and not profile.fixed_warm_up else full
    measured = _measured(report["intervals"], ramp, profile.workload_interval_ms / 1e3)
    if done and not profile.fixed_warm_up and _length(measured) < LEAST_SHARE * report["duration_s"]:
        ramp, measured = 0.0, report["intervals"]  # it is over within so few intervals that no ramp can be told apart
    begin = measured[0]["start_s"] if measured else report["duration_s"]
    warm_up = warmup.find(_series(measured, begin, profile.workload_interval_ms / 1e3), profile.fixed_warm_up)
    measured = [one for one in measured if one["start_s"] - begin >= warm_up.cut_s - profile.workload_interval_ms / 2e3]
    seconds = _length(measured)
    operations = sum(one["ops"] for one in measured)
    bins: Counter[int] = Counter()
    flowops: Counter[str] = Counter()
    for one in measured:
        bins.update({int(name): count for name, count in one["latency_ns"]["bins"].items()})
        flowops.update(one["flowops"])
    types = {row["name"]: row["type"] for row in report["flowops"]}
    span = seconds or 1.0
    files = sum(count for name, count in flowops.items() if types[name] == workload.files)

    problems, warnings = [], []
    end, lost = report["end"], report["threads_without_file"]
    idle = lost + report.get("threads_finished", 0)  # userblk-ops and userblk-kv tell of none
    ran = f"after {report['duration_s']:.1f} s of {full + planned:g} s"
    if end == "early":
        problems.append(f"{ran}, {lost} threads had no file left; give the workload more files")
    elif end == "interrupted":
        problems.append(f"interrupted {ran}")
    elif done and report["duration_s"] < full + 0.9 * planned:
        instead = f", of which {begin:.1f} s were discarded instead of {full:g}" if ramp < full else ""
        warnings.append(f"early end: {ran}, all files were finished{instead}")
    elif end == "time" and idle:
        warnings.append(f"idle threads: {idle} of {report['threads']} had nothing left to do before the end")
    if report["original"]:
        problems.append("ran with --original")
    problems_of_writes, warnings_of_writes = _unfinished(report.get("summary", {}))
    problems += problems_of_writes
    warnings += warnings_of_writes
    if not operations:
        problems.append(f"no operation was completed after the ramp; it ran for {report['duration_s']:.1f} s")
    elif seconds < least_runtime(planned):
        problems.append(f"measured for {seconds:.2f} s only; give the workload more files")
    return Result(
        throughput_kops=operations / span / 1e3,
        throughput_mbps=sum(one["bytes"] for one in measured) / span / 1e6,
        latency_us=sum(one["latency_ns"]["sum"] for one in measured) / max(1, operations) / 1e3,
        duration_s=seconds,
        operations=operations,
        warm_up=warm_up,
        measured_from=report["started_monotonic_s"] + begin,
        version=str(report["program"]),
        problems=tuple(problems),
        warnings=tuple(warnings),
        ramp_s=ramp,
        metrics={
            "files_kops": files / span / 1e3 if workload.files else None,
            **tails(bins),
        },
        settings={
            "end": end,
            "threads": report["threads"],
            "threads_without_file": lost,
            "variables": report["variables"],
            "filesets": report["filesets"],
            "operations": {name: count for name, count in flowops.items() if count},
        },
    )


def write_series(results: Path, path: Path) -> None:
    """The interval series as CSV: time_s counts from the start of the threads. Raises WorkloadError."""
    try:
        with path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["time_s", "kops", "mbps", "latency_us"])
            for one in json.loads(results.read_text())["intervals"]:
                span = one["end_s"] - one["start_s"] or 1.0
                values = [one["end_s"], one["ops"] / span / 1e3, one["bytes"] / span / 1e6]
                writer.writerow([f"{value:.6f}" for value in [*values, one["latency_ns"]["mean"] / 1e3]])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WorkloadError(f"{results.name} cannot be read: {error}") from None


def prepare_by(argv: Sequence[str], recorder: Recorder, memory: Memory, running: Running, limit: float) -> Process:
    """Run a preparing command to its end. Raises CommandError, also if the system's server dies meanwhile."""
    end = time.monotonic() + limit
    process: Process | None = None
    try:
        with held():
            process = recorder.spawn(argv, first=memory.joined)
        while not process.wait(POLL_S):
            if running.server_died():
                running.fail_io()
                raise CommandError("the server died while files were made")
            if time.monotonic() > end:
                raise CommandError(f"{process.record['name']}: has not ended within {limit:.0f} s")
    finally:
        if process:
            process.end()
    if process.poll():
        raise CommandError(process.fate())
    return process


SHAPE_KEYS = ("file", "id", "rw", "threads", "processes", "files", "block_sizes", "stands_for", "macro")


def shaped(suite: str, table: Table, engine: str, more: Sequence[str] = ()) -> Iterator[Workload]:
    """
    Workloads from the rest of a suite's table: each shape is a workload file, and the product of what it is run with.
    more: keys that it has besides.
    """
    parameters, shapes = paper_of(table), table.array("shape")
    table.end(("name", "engine", "systems", "parameters", "shape", *more))
    for number, item in enumerate(shapes, 1):
        one = Table(table.file, item if isinstance(item, dict) else {}, f"shape {number}: ")
        file, pattern = one.text("file"), one.text("id")
        if not (CONFIGS / f"workloads/{file}.f").is_file():
            raise one.error("file", file, f"configs/workloads/{file}.f is missing; add it")
        rw = one.text("rw", FIO_MODES) if "rw" in one.values else ""
        keys = ("threads", "processes", "files")
        threads, processes, files = ([] if key not in one.values else tables.counts(one, key) for key in keys)
        sizes = one.array("block_sizes") if "block_sizes" in one.values else []
        stands_for = one.text("stands_for", FILE_OPERATIONS) if "stands_for" in one.values else ""
        macro = one.boolean("macro") if "macro" in one.values else False
        one.end(SHAPE_KEYS)
        if threads and processes:
            raise one.error("processes", processes, "each has one thread; leave threads out")
        for count, forked, many, size in product(threads or [0], processes or [0], files or [0], sizes or [""]):
            bytes_each = tables.block_size(one, "block_sizes", size) if size else 0
            fixed = {"nthreads": count or min(forked, 1), "nprocesses": forked, "nfiles": many, "iosize": bytes_each}
            yield Workload(
                pattern.format(threads=count, processes=forked, files=many, size=size),
                rw,
                count or forked,
                bytes_each,
                suite,
                engine,
                files=stands_for,
                macro=macro,
                file=file,
                fixed={key: value for key, value in fixed.items() if value},
                parameters=parameters,
            )


def _of_shape(workload: Workload, size: int, io: int) -> dict[str, int]:
    """On files of size bytes together: each thread of a data workload moves a file's bytes, or its share of io."""
    filesize = size // workload.fixed["nfiles"]
    return {"filesize": filesize, "iters": (io // workload.threads if io else filesize) // workload.block_size}


def values_of(workload: Workload, profile: Profile, parameters: Sequence[Parameter], device: str) -> dict[str, int]:
    """What the parameters say of a workload's variables. Raises ConfigError."""
    values = {}
    for parameter in parameters:
        if parameter.concerns(workload.id):
            value = parameter.value(profile.name, device, profile.virtual)
            if value is None:
                of_paper = f"papers/{workload.parameters}" if workload.parameters else "workloads"
                raise ConfigError(
                    f"configs/{of_paper}/parameters.toml: {parameter.variable} of {workload.id} has no value"
                    f" for profile {profile.name} on {device}; add one"
                )
            values[parameter.variable] = value
    return values


def _mode(workload: Workload) -> str:
    """The workload file of MODE-THREADSth-BLOCKSIZE."""
    return workload.id.rpartition(f"-{workload.threads}th-")[0]


def _own_files(workload: Workload) -> dict[str, int]:
    """Each thread on a file of its own."""
    return {"nthreads": workload.threads, "nfiles": workload.threads, "iosize": workload.block_size}


class Flow(DeviceEngine):
    """userblk-flow on a file system: workload files, their names in the suite's table."""

    name = "flow"
    operation = (
        "An operation is a flowop of the workload file, such as open, read, close. Files per second (created, opened or"
        " deleted) are in table-long.csv as files_kops."
    )
    on_files = True
    parameters = True
    history: History | None = history_in("flow.json", _logged_s)
    bytes_per_inode = 0  # of the ext4; 0: mkfs chooses
    results = ""  # the name of the file with them; "": the engine's

    def suite(self, name: str, table: Table, profile: str, systems: tuple[str, ...]) -> Suite:
        if "shape" in table.values:
            timing = times_in(table, profile)
            workloads = list(shaped(name, table, self.name, ("timing",)))
            return Suite(name, tuple(one if one.macro else replace(one, timing=timing) for one in workloads), systems)
        data, threads = grid(table, name, self.name)
        workloads = [replace(one, file=_mode(one), fixed=_own_files(one)) for one in data]
        metadata, macro = table.table("metadata"), table.table("macro")
        table.end(("name", "engine", "threads", "block_sizes", "modes", "metadata", "macro", "suites", "systems"))
        for mode in list(metadata.values):
            files = metadata.text(mode, FILE_OPERATIONS)
            one = Workload("", suite=name, engine="flow", files=files, file=mode)
            workloads += [replace(one, id=f"{mode}-{n}th", threads=n, fixed={"nthreads": n}) for n in threads]
        for mode in list(macro.values):
            files = macro.text(mode, FILE_OPERATIONS)
            workloads.append(Workload(mode, suite=name, engine="flow", files=files, macro=True))
        return Suite(name, tuple(workloads), systems)

    def fits(self, workload: Workload, system: SystemConfig, kind: Kind) -> bool:
        return system.uses_device and not kind.of_store

    def modelled(self, workload: Workload) -> bool:
        return True

    def with_values(
        self, workload: Workload, profile: Profile, parameters: Sequence[Parameter], devices: Sequence[str]
    ) -> Workload:
        """With the values of its file's variables."""
        variables = {}
        for device in devices:
            values = values_of(workload, profile, parameters, device)
            if workload.file and workload.block_size:
                values |= _of_shape(workload, values.pop("size"), values.pop("io", 0))
            seconds = self.duration_s(workload, profile.of(workload, device))
            variables[device] = {**workload.fixed, **values, "runtime": math.ceil(seconds)}  # whole, as files have it
        return with_text(replace(workload, variables=variables))

    def comes_first(self, workload: Workload) -> bool:
        return True

    def used_bytes(self, profile: Profile, device: str) -> int:
        return profile.files.size[device]

    def timed(self, profile: Profile, workload: Workload) -> Profile:
        own = workload.timing.get(profile.name)
        return with_times(profile, own) if own else profile

    def duration_s(self, workload: Workload, profile: Profile) -> float:
        return duration_s(workload, self.timed(profile, workload))

    def overhead_s(self, profile: Profile) -> float:
        return profile.files.overhead_s

    def new_bytes(self, profile: Profile, device: str) -> int:
        """What is written of a file system before there is a file on it."""
        return new_ext4_bytes(profile.files.size[device], self.bytes_per_inode)

    def written(self, workload: Workload, profile: Profile, device: str) -> int:
        """It makes its files, which are less than the file system has, and may write as long as it runs."""
        reads = "-read-" in workload.id or workload.id.startswith("read-")
        seconds = 0 if reads else self.duration_s(workload, profile)
        return profile.files.size[device] + int(seconds * FILL_BYTES_PER_S)

    def programs(self, build: str) -> list[str]:
        return [str(built(build, "flow", "userblk-flow"))]

    def dirty_limits(self, profile: Profile, device: str) -> tuple[int, int]:
        return profile.files.dirty_bytes, profile.files.dirty_background_bytes

    def memory_bytes(self, profile: Profile) -> int:
        return profile.files.memory_bytes

    def ramp_s(self, profile: Profile) -> float:
        return profile.files.ramp_s

    def create(self, run: Run, program: Path, directory: Path) -> list[str]:
        """What makes its files below the system under test; none: the workload does."""
        return argv(program, run.workload, run.entry.device, directory, run.directory, run.entry.seed, "create")

    def measured(self, run: Run, program: Path, directory: Path, results: Path) -> list[str]:
        """What is measured, and writes its results."""
        options = run_options(run.workload, run.profile, results)
        return argv(program, run.workload, run.entry.device, directory, run.directory, run.entry.seed, "run", *options)

    def make(self, run: Run, directory: Path, recorder: Recorder, memory: Memory) -> dict[str, object]:
        """Makes its files below the system under test; what was found. Raises CommandError, BringUpError."""
        (program,) = map(Path, self.programs(run.plan.build))
        if create := self.create(run, program, directory):
            prepare_by(create, recorder, memory, run.running, CREATE_LIMIT)
        return {}

    def begin(
        self, run: Run, mounted: Sequence[Path], recorder: Recorder, memory: Memory
    ) -> tuple[list[str], Callable[[], list[str]]]:
        """
        What is measured on the system as the run uses it, and what may be wrong with it afterwards. mounted: where the
        file system under test is, and the ext4 below it, if that is another.
        """
        (program,) = map(Path, self.programs(run.plan.build))
        return self.measured(run, program, mounted[0], self.place_of_results(run)), lambda: []

    def place_of_results(self, run: Run) -> Path:
        return run.directory / f"{self.results or self.name}.json"

    def read_results(self, run: Run, results: Path) -> Result:
        """Raises WorkloadError if there is nothing to read."""
        write_series(results, results.with_name(f"{self.name}_intervals.csv"))
        return parse(results, run.workload, run.profile)

    def prepare(self, run: Run) -> tuple[Job, dict[str, object]]:
        """
        Its files on a new ext4, nothing in the caches. The system is then as the run uses it. Writers of data to
        a modelled disk find write-back as it is after minutes of writing, that of a file system over the ext4, too.
        """
        device, entry, profile, workload, teardown = run.device, run.entry, run.profile, run.workload, run.teardown
        running = run.running
        size = profile.files.size[entry.device]
        recheck(device, run.confirm, running.server if running.backing else None, running.used.name)
        recorder = Recorder(run.directory / "preparation", run.teardown)
        lower, upper = mount_points(teardown)
        memory = limit_memory(self.memory_bytes(profile), run.plan.emulated, teardown)
        results = self.place_of_results(run)
        steady = bool(run.plan.model) and workload.writes
        try:
            if steady:
                make_known_to_write_back(running.used, size)
            for used in run.devices():
                flush_cache(used.path)
            found = discard_area(device, run.plan.used_bytes(entry.device), entry.seed)
            for used in run.devices():  # pages of what was there before
                flush_cache(used.path)
            found |= make_ext4(running.used, size, recorder, self.bytes_per_inode, running.mkfs)
            teardown.push("unmount", path=str(lower))
            mount_ext4(running.used, lower, recorder, running.mount)
            found |= self.make(run, lower, recorder, memory)
            recorder.run(["umount", str(lower)], timeout=CREATE_LIMIT)
            found |= drop_caches(run.devices(), size)
            if not running.on_device:
                mount_ext4(running.used, lower, recorder, running.mount)
            top = lower
            if running.serve:
                with on_cpus(run.plan.pin_server):
                    run.running, top = running.serve(lower, upper, recorder, teardown), upper
                if run.running.server:
                    memory.add(run.running.server)
                share = unscale_dirty_share(top, profile.files.dirty_bytes, profile.files.unscaled_dirty_bytes)
                found |= share
                if share and run.plan.model:  # where files were made a moment ago, and a run is short
                    forget_writes()
            mounted = (top,) if running.on_device else tuple(dict.fromkeys((top, lower)))
            measured, own_problems = self.begin(run, mounted, recorder, memory)
            if steady:
                written = dict.fromkeys((running.used.path, str(top)))
                found |= settle_write_back(written, device.disk, workload.threads)
        finally:
            recorder.save()

        def problems() -> list[str]:
            count = ext4_errors(run.running.used)
            return memory.problems() + ([f"ext4 found {count} errors"] if count else []) + own_problems()

        job = Job(
            argv=measured,
            seconds=duration_s(workload, profile),
            parse=lambda: self.read_results(run, results),
            synced=tuple(map(str, mounted)),
            sync=sync_file_system,
            area=size,
            memory=memory,
            problems=problems,
        )
        return job, found


ENGINES.add(Flow())
