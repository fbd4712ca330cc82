# SPDX-License-Identifier: BSD-3-Clause
"""Runs the plan of a suite over a store: python3 -m userblk.harness.running.store_runner results/CAMPAIGN/plan.json

As runner.py, of which it is a kind, with a store in place of a block device: a block is a store with a volume that
one system has filled; every run starts that system again over the volume as it was filled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from ..engines import Result, WorkloadError, flow, replay
from ..engines import store as load
from ..engines.store_files import StoreFiles
from ..machine import interrupt
from ..machine.blockdev import flush_cache, identify, opened
from ..machine.filesystem import (
    FileSystemError,
    Memory,
    ext4_errors,
    make_ext4,
    mount_ext4,
    mount_points,
    sync_file_system,
)
from ..machine.prepare import PrepareError, drop_caches
from ..machine.subprocesses import CommandError, Process, Recorder, now
from ..machine.tuning import on_cpus
from ..model.config import SystemConfig, Workload
from ..model.parts import ENGINES, KINDS
from ..model.plan import Entry
from ..model.tables import ConfigError
from ..observing.energy import Meter
from ..observing.host_load import OtherPrograms
from ..observing.samplers import Sampler, Use
from ..stores.servers import Access, GivenStore, LocalStore, Store, new_prefix, roomy
from ..stores.serving import Served, serve
from ..systems import BringUpError, Running
from ..systems.base import built
from .measuring import (
    FLUSH_PATIENCE,
    POLL_S,
    SERVER_DIED,
    WRITE_BACK_FAILED,
    energy_of,
    metrics_of,
    steady_warnings,
    steal_warnings,
)
from .runner import Runner, cannot_keep, main

NO_STORE = Access("", "", "", "", "", Path())  # of what needs none


@dataclass(frozen=True)
class Load:
    """What is measured: its engine, command line and seconds; parse: its results, given the seconds from its end until
    all was stored.

    close: before the server ends; what went wrong meanwhile.
    """

    engine: str
    argv: list[str]
    seconds: float
    parse: Callable[[float], load.StoreResult | Result]
    close: Callable[[], list[str]] = lambda: []


class StoreRunner(Runner):
    """One execution of a plan over stores."""

    store_place: Path | None = None  # of all stores of its own, since the first one

    def check_devices(self, stack: ExitStack) -> None:
        """There are none."""

    def programs(self, pending: list[Entry]) -> list[str]:
        if any(self.plan.workload(entry).on_files for entry in pending):
            return [str(self.flow_program())]
        return ["fio"] if pending else []

    def flow_program(self) -> Path:
        """What runs the workloads on a file system. Raises BringUpError."""
        return built(self.plan.build, "flow", "userblk-flow")

    def size_of(self, workload: Workload) -> int:
        """Bytes of its volume."""
        store = self.plan.profile.store
        return store.files_size if workload.on_files else store.size

    def run_block(self, number: int, pending: list[Entry]) -> None:
        """A store with a filled volume, and the runs over it."""
        if not pending:
            return
        attempt = 1
        while (directory := self.directory / f"blocks/{number}.{attempt}").exists():
            attempt += 1
        system = self.plan.systems[pending[0].system]
        recorder = Recorder(directory)
        mark = self.teardown.mark()
        left = list(pending)
        store: Store | None = None
        try:
            with interrupt.outranks():
                store = self.bring_up(pending[0], system, recorder)
                filled = False
                while left:
                    if store and not filled:
                        self.fill(system, store, self.plan.workload(left[0]), recorder)
                        store.keep()
                    dirty = self.run_one(left[0], system, store, directory.name)
                    left.pop(0)
                    filled = not dirty or (store is not None and bool(left) and store.reset())
        except (ConfigError, BringUpError, CommandError, subprocess.TimeoutExpired, OSError) as error:
            if cannot_keep(error, self.directory):
                raise
            for entry in left:
                self.failed(entry, f"{system.name} over {entry.device}: {error}")
        finally:
            try:
                self.teardown.unwind(mark)
            finally:
                recorder.save()
                self.keep_counters(directory)

    def bring_up(self, first: Entry, system: SystemConfig, recorder: Recorder) -> Store | None:
        """The store of a block. Raises BringUpError, CommandError."""
        if not KINDS[system.kind].needs_store(system):
            return None
        device = self.plan.devices[first.device]
        if device.path:
            return GivenStore(Path(device.path), device.identity or new_prefix(), self.teardown)
        self.store_place = self.store_place or roomy(max(map(self.size_of, self.plan.suite.workloads)))
        return LocalStore(self.store_place, device.latency_ms, recorder, self.teardown)

    def start(self, system: SystemConfig, store: Store | None, size: int, create: bool, recorder: Recorder) -> Served:
        access = store.access if store else NO_STORE
        with on_cpus(self.plan.pin_server):
            return serve(system, access, size, create, self.plan.build, recorder, self.teardown)

    def fill(self, system: SystemConfig, store: Store, workload: Workload, recorder: Recorder) -> None:
        """The volume, all of it written; for a file system it is only made."""
        size = self.size_of(workload)
        served = self.start(system, store, size, True, recorder)
        if not workload.on_files:
            recorder.run(load.fill_argv(served.target, size), timeout=load.FILL_LIMIT)
        served.stop()

    # ---- one run ------------------------------------------------------------------

    def run_one(self, entry: Entry, system: SystemConfig, store: Store | None, block: str) -> bool:
        """One run in its directory. May the volume have changed?"""
        workload = self.plan.workload(entry)
        directory = self.begin(entry)
        mark = self.teardown.mark()
        try:
            with interrupt.outranks():
                try:
                    summary = self.measure_one(entry, workload, system, store, block, directory)
                finally:
                    self.teardown.unwind(mark)
        except (
            CommandError,
            WorkloadError,
            BringUpError,
            FileSystemError,
            PrepareError,
            subprocess.TimeoutExpired,
            OSError,
        ) as error:
            self.stop_if_lost(error, directory)
            self.failed(entry, str(error))
            return True
        except interrupt.Interrupted:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        self.finish(entry, directory, summary)
        return workload.writes or workload.on_files

    def measure_one(
        self, entry: Entry, workload: Workload, system: SystemConfig, store: Store | None, block: str, directory: Path
    ) -> dict[str, object]:
        """Serve the volume, run the workload and return the summary."""
        profile = self.plan.profile
        warnings = self.busy_warnings() + (store.warnings if store else [])
        problems: list[str] = []
        recorder = Recorder(directory, self.teardown)
        size = self.size_of(workload)
        try:
            served = self.start(system, store, size, False, recorder)
            job = (
                self.on_files(entry, workload, served, directory)
                if workload.on_files
                else self.on_device(entry, workload, served, directory)
            )
            started = now()
            with ExitStack() as sampling:
                sampler = Sampler([], served.server.pid, profile.interval_ms / 1e3, meter=Meter())
                sampling.enter_context(sampler)
                others = OtherPrograms({os.getpid(), served.server.pid})
                origin = time.monotonic()
                ahead = time.time() - origin
                process: Process | None = None
                try:
                    with on_cpus(self.plan.pin_client), interrupt.held():
                        process = recorder.spawn(job.argv)
                    while process.poll() is None and served.server.poll() is None:
                        time.sleep(POLL_S / 10)
                        if time.monotonic() > origin + job.seconds + FLUSH_PATIENCE:
                            problems.append(f"the workload did not end within {FLUSH_PATIENCE:.0f} s after its runtime")
                            break
                finally:
                    try:
                        if problems or served.server.poll() is not None:
                            served.fail_io()  # else who waits for it could not end
                    finally:
                        if process:
                            process.end()
                ended = time.monotonic()
                if not served.flush_by_end:
                    sampling.close()
                problems = self.end(served, process, job, sampler, problems)
                later = time.monotonic() - ended if served.flush_by_end else 0.0
        finally:
            recorder.save()
        sampler.write_csv(directory / "samples.csv", origin)
        metrics: dict[str, float | None] = {}
        use: Use | None = None
        duration = 0.0
        version = ""
        more: dict[str, object] = {}
        warm_up: dict[str, object] | None = None
        try:
            result = job.parse(later)
        except WorkloadError:
            if not problems:
                raise
        else:
            problems += result.problems * (not problems)
            duration, version = result.duration_s, result.version
            operations = 1e3 * result.throughput_kops * duration
            begin = max(origin, ended + later - duration)
            if isinstance(result, Result):
                warnings += [*result.warnings, *steady_warnings(result.warm_up)]
                warm_up = asdict(result.warm_up) | {"ramp_s": result.ramp_s}
                begin = result.begin(ahead) or origin
                more, operations = dict(result.settings), result.operations
            use = sampler.use(begin, begin + duration)
            warnings += steal_warnings(use)
            metrics = metrics_of(result, use) | (result.metrics if isinstance(result, Result) else {})
            metrics |= energy_of(operations, use)
        settings = served.settings | (store.settings if store else {}) | {"volume_bytes": size}
        settings |= {"jobs": workload.threads, "depth": workload.depth, "block_size": workload.block_size}
        return {
            **self.identity(entry, workload, block),
            "started": started,
            "duration_s": duration,
            "valid": not problems,
            "invalid": problems,
            "warnings": warnings + self.busy_warnings(others),
            "metrics": {} if problems else metrics,
            "warm_up": warm_up,
            "energy_j": use.energy_j if use else {},
            "device_io": None,
            "backing_io": None,
            "settings": settings | {job.engine: {"version": version, **more}},
            "device_used": {"path": served.target[-1], "size": size},
        }

    def end(self, served: Served, process: Process, job: Load, sampler: Sampler, known: Sequence[str]) -> list[str]:
        """
        End the server of a workload that has ended. Returns the first of what went wrong, also of what is known: the
        rest follows from it, as does what the results say.
        """
        problems = list(known)
        if died := served.server.poll() is not None:
            problems.append(SERVER_DIED)
        if process.poll():
            problems.append(process.fate())
        problems += job.close()
        try:
            served.stop(sampler.keep_server_end)
        except BringUpError as error:
            if died or not problems:
                raise
            problems.insert(0, str(error))
        return problems[:1]

    def on_device(self, entry: Entry, workload: Workload, served: Served, directory: Path) -> Load:
        """fio on the volume."""
        profile = self.plan.profile.store
        argv = load.argv(workload, profile.runtime_s, profile.size, served.target, entry.seed, directory)
        comments = (
            f"{entry.workload} on {entry.system} over {entry.device}, campaign {self.plan.campaign}.",
            f"For a volume of {profile.size} bytes, all written, that {' '.join(served.target)} reaches.",
        )
        (directory / replay.FILE).write_text(replay.job_file(argv, comments))
        file = directory / "fio.json"
        return Load("fio", argv, profile.runtime_s, lambda later: load.parse(file, workload, later))

    def on_files(self, entry: Entry, workload: Workload, served: Served, directory: Path) -> Load:
        """The workload's files on a new ext4 on the volume's disk, nothing of them in the page cache."""
        engine = ENGINES[workload.engine]
        assert isinstance(engine, StoreFiles)
        profile = engine.timed(workload, self.plan.profile)
        recorder = Recorder(directory / "preparation", self.teardown)
        disk = identify(served.device)
        mark = self.teardown.mark()
        point, _ = mount_points(self.teardown)
        program, results = self.flow_program(), directory / "flow.json"
        words = (program, workload, entry.device, point, directory, entry.seed)
        try:
            flush_cache(disk.path)  # of a volume that another run had there
            made = make_ext4(disk, self.size_of(workload), recorder)
            self.teardown.push("unmount", path=str(point))
            mount_ext4(disk, point, recorder)
            everything = Memory(None, 0)
            running = Running(disk, server=served.server.pid, server_started=served.server.started)
            running.fail_io = served.fail_io
            flow.prepare_by(flow.argv(*words, "create"), recorder, everything, running, flow.CREATE_LIMIT)
            recorder.run(["umount", str(point)], timeout=flow.CREATE_LIMIT)
            made |= drop_caches([disk], self.size_of(workload))
            mount_ext4(disk, point, recorder)
        finally:
            recorder.save()
        served.settings |= made

        def close() -> list[str]:
            """Write back and unmount; what went wrong."""
            problems = []
            try:
                with opened(str(point), os.O_RDONLY) as fd:
                    sync_file_system(fd)
            except OSError as error:
                problems.append(f"{point}: {WRITE_BACK_FAILED}: {error.strerror}")
            if count := ext4_errors(disk):
                problems.append(f"ext4 found {count} errors")
            self.teardown.unwind(mark)
            return problems

        def parse(later: float) -> Result:
            flow.write_series(results, directory / "flow_intervals.csv")
            return flow.parse(results, workload, profile)

        argv = flow.argv(*words, "run", *flow.run_options(workload, profile, results))
        return Load("flow", argv, engine.duration_s(workload, self.plan.profile), parse, close)


def run(arguments: Sequence[str] | None = None) -> int:
    return main(arguments, StoreRunner)


if __name__ == "__main__":
    sys.exit(run())
