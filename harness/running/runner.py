# SPDX-License-Identifier: BSD-3-Clause
"""Runs a plan where the devices are: python3 -m userblk.harness.running.runner results/CAMPAIGN/plan.json

Standard library only. Formats, events and exit codes: docs/results.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from userblk import __version__

from ..engines import WorkloadError, fio
from ..engines.base import Job, Run, device_engine
from ..machine import interrupt, paths, tuning
from ..machine.blockdev import BlockDevice
from ..machine.durable import append, replace, sync_tree, write_json
from ..machine.filesystem import FileSystemError, with_own_dirty_limit
from ..machine.prepare import (
    DeviceError,
    PrepareError,
    become_machine_of,
    kept_cached,
    limit_cpus,
    limit_dirty,
)
from ..machine.safety import Refused, alone, check, claimed, confirmation, recheck, refuse_twice
from ..machine.subprocesses import CommandError, Recorder
from ..machine.teardown import Teardown, TeardownError, undo
from ..machine.tuning import on_cpus
from ..model.config import Profile, Workload
from ..model.parts import KINDS
from ..model.plan import COUNTING, CellId, Entry, Plan, read_plan, write_plan
from ..model.tables import ConfigError
from ..observing import environment, host_load, perf
from ..observing.environment import snapshot
from ..observing.samplers import read_sample, use_between
from ..systems import BringUpError, Running, absent, bring_up, load_modules, modules, recover
from . import stopping
from .hand_over import hand_over
from .measuring import ENVIRONMENT, NO_SAMPLES, WRITE_BACK_FAILED, Measurement, write_counters

SCHEMA = 1
CHANGED = "differs from the beginning:"  # a warning
IDENTITY = (  # of all runs of a campaign
    "kernel", "cpu_model", "cpus", "governor", "turbo", "smt", "mitigations", "transparent_hugepages", "untuned",
    "packages", "userblk", "programs",
)  # fmt: skip
EVENTS = "events.jsonl"  # in the campaign's directory
OTHER_CPU_LIMIT = 10.0  # % of one CPU, of everything else on the machine
QUIET_S = 0.5
SPARE_BYTES = 256 << 20  # that must be free where results are, beside what the largest run took three times
SHORTER_RAMP, LEAST_RAMP = 0.2, 0.1  # share of the ramp that a fast device did not outlast; s

EXIT_DONE, EXIT_NOTHING, EXIT_USAGE, EXIT_PARTLY = 0, 1, 2, 3


FULL, ALL_USED = os.strerror(errno.ENOSPC), (errno.ENOSPC, errno.EDQUOT)
# What fails a run, or all of a block, and not the campaign.
FAILURES = (BringUpError, CommandError, FileSystemError, PrepareError, subprocess.TimeoutExpired, OSError)


class Stopped(Exception):
    """Going on makes no sense, or would do harm; one line."""


class NoSpace(Stopped):
    """Results cannot be kept."""


def cannot_keep(error: BaseException, directory: Path) -> Stopped | None:
    """
    Why a campaign must stop, if the error is that nothing can be kept in its directory any more: it is full, gone or
    read-only. Outside of runs only what is kept of them is written to files.
    """
    if not isinstance(error, OSError):
        return None
    named = isinstance(error.filename, str | os.PathLike)
    below = named and Path(error.filename).is_relative_to(directory)
    if error.errno in ALL_USED and (below or not named):  # a write does not name its file
        return NoSpace(f"{directory}: {error.strerror}; make room and resume")
    if below:
        where = error.filename if directory.exists() else directory
        return Stopped(f"{where}: {error.strerror}; results are kept there: correct that and resume")
    return None


def exit_code(counts: Mapping[str, int], skipped: int) -> int:
    """
    The exit code of a campaign that came to its end. counts: as of the event `end`; skipped: runs that had been done
    before.
    """
    bad = counts["invalid"] + counts["failed"]
    if counts["done"] or skipped:
        return EXIT_PARTLY if bad else EXIT_DONE
    return EXIT_USAGE if bad and counts["full"] == bad else EXIT_NOTHING  # what was asked for needs more room


def valid_summary(directory: Path) -> bool:
    """Is the run in this directory complete and valid?"""
    if not (directory / "DONE").exists():
        return False
    try:
        summary = json.loads((directory / "summary.json").read_text())
        return bool(summary["schema"] == SCHEMA and summary["valid"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def no_space(directory: Path, largest_run: int) -> str:
    """What is wrong with the file system that results go to, "" if nothing is. largest_run: bytes, so far."""
    free = shutil.disk_usage(directory).free
    needed = SPARE_BYTES + 3 * largest_run
    if free >= needed:
        return ""
    return f"{directory}: {free >> 20} MiB are free for results, {needed >> 20} are needed; make room and resume"


def of_session(directory: Path, found: Mapping[str, Any], warnings: Iterable[str] = ()) -> dict[str, Any]:
    """
    environment.json of a campaign in this directory that found this and warns of that: with what may have distorted
    earlier sessions and what is not as it was in the first one, whose settings stay in `began`.
    """
    try:
        last = json.loads((directory / ENVIRONMENT).read_text())
    except (OSError, ValueError):
        return {**found, "warnings": [*dict.fromkeys(warnings)]}
    now, before = _settings(found), _settings(last)
    began = last.get("began", {name: before[name] for name in IDENTITY if name in before})
    lines = [*warnings, *last.get("warnings", []), *differences(began, now, IDENTITY)]
    return {**found, "began": began, "warnings": [*dict.fromkeys(lines)]}


def _settings(found: Mapping[str, Any]) -> dict[str, Any]:
    """With how many settings of a kind are not as recommended, of kinds that environment.json does not name itself."""
    differs = found.get("tuning", {}).get("differs", {})
    return {**found, "untuned": {kind: differs[kind] for kind in (tuning.IDLE, tuning.INTERRUPTS) if kind in differs}}


def differences(first: Mapping[str, Any], found: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """What of these is found otherwise than first, a warning each. An older campaign does not have all names."""
    lines = []
    for name in names:
        was, is_now = first.get(name), found.get(name)
        if isinstance(was, Mapping) and isinstance(is_now, Mapping):
            inner = differences(was, is_now, sorted(was.keys() | is_now.keys()))
            lines += [line.replace(CHANGED, f"{CHANGED} {name}", 1) for line in inner]
        elif name in first and was != is_now:
            lines.append(f"{CHANGED} {name} is {is_now} instead of {was}")
    return lines


class Runner:
    """
    One execution of a plan. port: in a sealed guest, where each run is handed over to the host; the plan is then of one
    block, and what is of the whole campaign is left to the host, which may have others beside it.
    """

    def __init__(self, plan: Plan, directory: Path, port: Path | None = None) -> None:
        self.plan = plan
        self.port = port
        self.directory = directory
        self.teardown = Teardown()
        self.devices: dict[str, BlockDevice] = {}
        self.environment: dict[str, object] = {}
        self.condition: dict[str, object] = {}
        self.cached: set[str] = set()
        self.ramps: dict[CellId, float] = {}  # s, of cells whose area is done within the profile's
        self.largest_run = 0  # bytes
        self.counts = {"done": 0, "invalid": 0, "failed": 0, "full": 0, "left_out": 0}
        self.interrupted = False

    # ---- events -----------------------------------------------------------------

    def emit(self, event: str, **values: object) -> None:
        line = json.dumps({"event": event, "time": round(time.time(), 3), **values})
        if self.port is None:
            with suppress(OSError):  # which ends the campaign elsewhere, and the end is still told below
                append(self.directory / EVENTS, line)
        with suppress(BrokenPipeError):  # the listener is gone, and will have ended us
            print(line, flush=True)

    def failed(self, entry: Entry, reason: str) -> None:
        self.counts["failed"] += 1
        self.counts["full"] += FULL in reason
        directory = self.directory / self.plan.directory(entry)
        if self.port and directory.exists():
            hand_over(directory, self.directory, self.port)
        self.emit("entry-failed", index=entry.index, reason=reason)

    # ---- the campaign ---------------------------------------------------------------

    def check_devices(self, stack: ExitStack) -> None:
        """Identify every device, and keep other campaigns off it. Raises Refused."""
        for name, device in self.plan.devices.items():
            path = device.path
            if path.startswith("$"):
                path = os.environ.get(path[1:], "")
                if not path:
                    raise Refused(f"{device.path}: not set in the environment; set it to the device's path")
            # Where no campaign has seen it yet, what is on it is not ours. That of a guest is there for it.
            found = check(path, device.confirm, first=not device.identity and not device.path.startswith("$"))
            if reason := self.plan.too_small(name, path, found.size):
                raise Refused(reason)
            disks = {other.disk for other in self.devices.values()}
            for other in self.devices.values():
                refuse_twice(found, other)
            if found.disk not in disks:
                stack.enter_context(claimed(found))
            if device.identity and found.identity != device.identity:
                raise Refused(
                    f"{path}: is not the device that the campaign was planned for ({device.identity}), but another"
                    f" ({found.identity}); find that one, or start a new campaign"
                )
            if device.identity and found.seen != device.seen:
                raise Refused(
                    f"{path}: is known by its size alone, and may be another disk of that size, since the machine was"
                    " started after the campaign began, or is another one; start a new campaign"
                )
            # Not by a link: in /dev/disk/by-path they have colons, which part names for fio and LIO.
            self.devices[name] = dataclasses.replace(found, path=os.path.realpath(path))
        self.keep_identities()

    def check_pins(self) -> None:
        """Has this machine the CPUs that the plan names, which another may have made? Raises Refused."""
        for cpus in (self.plan.pin_server, self.plan.pin_client):
            try:
                with on_cpus(cpus):
                    pass
            except OSError as error:
                pin = f"{self.plan.pin_server}:{self.plan.pin_client}"
                raise Refused(f"pin={pin}: {error.strerror}; start a new campaign with CPUs of this machine") from None

    def keep_identities(self) -> None:
        """
        Record the identity of devices that the plan named unseen: a resumed run must find the same. What they hold is
        confirmed then.
        """
        known = {
            name: device
            if device.identity or device.path.startswith("$")
            else dataclasses.replace(device, identity=found.identity, confirm=confirmation(found)[0], seen=found.seen)
            for name, device in self.plan.devices.items()
            for found in (self.devices[name],)
        }
        if known != self.plan.devices:
            self.plan = dataclasses.replace(self.plan, devices=known)
            write_plan(self.plan, self.directory)

    def run(self) -> int:
        """Everything that is not done yet. The exit code; raises Refused before anything of its own was touched."""
        with ExitStack() as stack:
            stack.enter_context(alone(self.directory))
            for line in recover():
                self.emit("note", text=line)
            self.check_pins()  # a killed runner may have left CPUs off line
            self.check_devices(stack)
            pending = [e for e in self.plan.entries if not valid_summary(self.directory / self.plan.directory(e))]
            skipped = len(self.plan.entries) - len(pending)
            self.emit("start", campaign=self.plan.campaign, entries=len(pending), skipped=skipped)
            code = 0
            try:
                with interrupt.outranks():
                    try:
                        self.record_environment()
                        while pending or (pending := self.extend_plan()):
                            self.set_up(pending, stack)
                            todo = {entry.index for entry in pending}
                            for number, entries in self.plan.blocks():
                                self.run_block(number, [entry for entry in entries if entry.index in todo])
                            pending = []
                    finally:
                        self.teardown.unwind()
            except interrupt.Interrupted as reason:
                self.interrupted = True
                code = 128 + reason.number
                if reason.__cause__:
                    self.emit("note", text=f"while the campaign was ended: {reason.__cause__}")
            except (
                Refused,
                TeardownError,
                BringUpError,
                PrepareError,
                FileSystemError,
                Stopped,
                subprocess.TimeoutExpired,
            ) as error:
                code = self.stopped(error)
            except OSError as error:
                if not (stop := cannot_keep(error, self.directory)):
                    raise
                code = self.stopped(stop)
            self.emit("end", **self.counts, interrupted=self.interrupted)
        code = code or exit_code(self.counts, skipped)
        # The host counts for a sealed guest, whose other exit codes would end the campaign.
        return EXIT_NOTHING if self.port and code == EXIT_USAGE else code

    def stopped(self, error: Exception) -> int:
        """Say why the campaign ends before all is done. The exit code."""
        self.emit("note", text=f"the campaign stops: {error}")
        return EXIT_USAGE if isinstance(error, NoSpace) else EXIT_NOTHING

    def disks(self) -> dict[str, str]:
        return {name: device.disk for name, device in self.devices.items()}

    def record_environment(self) -> None:
        """What holds for the whole campaign, and what may distort it."""
        facts = {name: environment.device_facts(disk) for name, disk in self.disks().items()}
        self.environment = snapshot() | {"devices": facts}
        self.condition = environment.condition(self.disks())
        tuned = tuning.facts([disk for disk in self.disks().values()])
        self.environment["tuning"] = tuned | {"pin": {"server": self.plan.pin_server, "client": self.plan.pin_client}}
        lines = environment.distortions(self.environment, self.condition) + tuning.warnings(tuned)
        if not self.plan.pin_client and (os.cpu_count() or 1) > 1:
            lines.append("not pinned: the scheduler places servers and workloads where it likes; --pin SERVER:CLIENT")
        if self.plan.emulated:
            lines = []  # the lab's are distorted as such, and say so
        self.environment["userblk"] = environment.source(paths.CHECKOUT) | {"version": __version__}
        if self.port is None:  # the host knows what a sealed guest has
            self.environment["programs"] = environment.programs((paths.CHECKOUT or Path()) / self.plan.build)
        found = of_session(self.directory, self.environment, lines)
        if self.port is None:
            write_json(self.directory / ENVIRONMENT, found)
        self.emit("environment", warnings=found["warnings"], **({} if self.port is None else {"found": found}))

    def extend_plan(self) -> list[Entry]:
        """Another round of the cells whose intervals are too wide; what was decided for each is kept."""
        if self.port:
            return []  # which the host sees to
        self.plan, added, event = stopping.another_round(
            self.plan,
            self.directory,
            lambda cell: not absent(self.plan.systems[cell[2]]) and not self.beyond(cell[1], cell[3]),
        )
        if added:
            self.emit("extend", **event)
        return added

    def set_up(self, pending: list[Entry], stack: ExitStack) -> None:
        """What the entries need beside their systems."""
        systems = [self.plan.systems[name] for name in dict.fromkeys(entry.system for entry in pending)]
        for system in systems:
            if not absent(system):
                load_modules(modules(system), self.teardown)
        if any(entry.repetition == COUNTING for entry in pending):
            mount_tracefs(self.teardown)
        for program in self.programs(pending):
            if program not in self.cached:
                stack.enter_context(kept_cached(program))
                self.cached.add(program)

    def check_space(self) -> None:
        """Stop before the results' file system is full: a run that cannot be kept is lost. Raises NoSpace."""
        if lacks := no_space(self.directory, self.largest_run):
            raise NoSpace(lacks)

    def keep_counters(self, directory: Path) -> None:
        """What the kernel counted in a block. Runs are no worse without it, and stop if nothing can be kept."""
        with suppress(OSError):
            write_counters(directory)

    def programs(self, pending: list[Entry]) -> list[str]:
        """What the workloads run."""
        engines = dict.fromkeys(self.plan.workload(entry).engine for entry in pending)
        return [program for name in engines for program in device_engine(name).programs(self.plan.build)]

    def profile_of(self, entry: Entry) -> Profile:
        """Where costs are counted nothing is discarded: all that the kernel counted is divided by all operations."""
        workload = self.plan.workload(entry)
        profile = self.plan.profile.of(workload, entry.device)
        profile = device_engine(workload.engine).timed(profile, workload)
        if entry.repetition != COUNTING:
            return dataclasses.replace(profile, ramp_s=self.ramps.get(entry.cell, profile.ramp_s))
        files = dataclasses.replace(profile.files, ramp_s=0)
        return dataclasses.replace(profile, ramp_s=0, files=files, fixed_warm_up=True)

    def beyond(self, suite: str, name: str) -> str:
        """Why this machine cannot show a workload, "" if it can."""
        workload = next(w for w in self.plan.suite.workloads if (w.suite, w.id) == (suite, name))
        engine = device_engine(workload.engine)
        reason = engine.beyond(workload, len(os.sched_getaffinity(0))) or engine.lacks(workload, self.plan.build)
        return f"{name}: {reason}" if reason else ""

    def run_block(self, number: int, pending: list[Entry]) -> None:
        """Bring the block's system up, as often as a dead server makes it necessary, and run what is pending."""
        if pending and (reasons := absent(self.plan.systems[pending[0].system])):
            for entry in pending:
                self.counts["left_out"] += 1
                self.emit("entry-left-out", index=entry.index, reason=f"{entry.system}: {'; '.join(reasons)}")
            return
        for entry in [entry for entry in pending if self.beyond(entry.suite, entry.workload)]:
            self.counts["left_out"] += 1
            self.emit("entry-left-out", index=entry.index, reason=self.beyond(entry.suite, entry.workload))
            pending.remove(entry)
        attempt = 1
        while pending:
            while (directory := self.directory / f"blocks/{number}.{attempt}").exists():
                attempt += 1
            first = pending[0]
            device = self.devices[first.device]
            recheck(device, self.plan.devices[first.device].confirm, None)
            facts = environment.device_facts(device.disk)
            if reason := environment.failing(facts) or environment.throttling(facts):
                raise Stopped(f"{device.path}: {reason}")
            workload = self.plan.workload(first)
            engine = device_engine(workload.engine)
            system = engine.system(self.plan.systems[first.system])
            profile = self.plan.profile
            area = profile.area[first.device]
            outlives = bool(workload.event)
            recorder = Recorder(directory)
            mark = self.teardown.mark()
            try:
                with interrupt.outranks():
                    become_machine_of(device.disk)
                    share_of = with_own_dirty_limit(engine.memory_bytes(profile), self.plan.emulated)
                    limit_dirty(*engine.dirty_limits(profile, first.device), share_of, self.teardown)
                    limit_cpus(workload.cpus, self.teardown)
                    with ExitStack() as up:
                        on_files, build = engine.on_files, self.plan.build
                        with on_cpus(self.plan.pin_server):
                            running = up.enter_context(
                                bring_up(system, device, area, build, recorder, self.teardown, on_files, outlives)
                            )
                        filled = False
                        while pending and not running.server_died():
                            filled = self.run_entry(pending[0], running, directory.name, filled)
                            pending.pop(0)
            except FAILURES as error:
                if cannot_keep(error, self.directory):
                    raise
                for entry in pending:
                    self.failed(entry, f"{system.name} on {device.path}: {error}")
                return
            finally:
                try:
                    self.teardown.unwind(mark)
                finally:
                    self.keep_counters(directory)

    # ---- one run ----------------------------------------------------------------------

    def begin(self, entry: Entry) -> Path:
        """Announce a run and make its directory, empty."""
        directory = self.directory / self.plan.directory(entry)
        self.check_space()
        clear(directory)
        directory.mkdir(parents=True)
        self.emit(
            "entry-start",
            index=entry.index,
            device=entry.device,
            system=entry.system,
            suite=entry.suite,
            workload=entry.workload,
            repetition=entry.repetition,
        )
        return directory

    def finish(self, entry: Entry, directory: Path, summary: dict[str, object]) -> None:
        """Keep a run that came to its end. Raises Stopped."""
        try:
            write_json(directory / "summary.json", summary)
            self.largest_run = max(self.largest_run, sum(path.stat().st_size for path in directory.rglob("*")))
            if self.port:
                hand_over(directory, self.directory, self.port)
            else:
                mark_done(directory)
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            kind = NoSpace if error.errno in ALL_USED else Stopped
            reason = error.strerror or error
            raise kind(f"{directory}: a run cannot be kept: {reason}; correct that and resume") from None
        self.counts["done" if summary["valid"] else "invalid"] += 1
        problems = summary["invalid"]
        assert isinstance(problems, list)
        self.counts["full"] += any(FULL in problem for problem in problems)
        self.emit("entry-done", index=entry.index, summary=summary)

    def stop_if_lost(self, error: Exception, directory: Path) -> None:
        """A run that cannot be kept did not fail; nothing of it stays. directory: the run's. Raises Stopped."""
        stop = cannot_keep(error, self.directory)
        if stop and (not isinstance(stop, NoSpace) or no_space(self.directory, self.largest_run)):
            shutil.rmtree(directory, ignore_errors=True)
            raise stop from None

    def identity(self, entry: Entry, workload: Workload, block: str) -> dict[str, object]:
        """What a summary begins with: which run it is of."""
        return {
            "schema": SCHEMA,
            "campaign": self.plan.campaign,
            "host": self.plan.host,
            "device": entry.device,
            "suite": entry.suite,
            "engine": workload.engine,
            "system": entry.system,
            "workload": entry.workload,
            "repetition": entry.repetition,
            "profile": self.plan.profile.name,
            "seed": entry.seed,
            "order": entry.index,
            "block": block,
            "emulated": self.plan.emulated,
            "model": self.plan.model,
            "kernel": self.environment.get("kernel", ""),
        }

    def run_entry(self, entry: Entry, running: Running, block: str, filled: bool) -> bool:
        """One run in its directory. Is the area zero-filled afterwards?"""
        workload = self.plan.workload(entry)
        engine = device_engine(workload.engine)
        directory = self.begin(entry)
        mark = self.teardown.mark()
        try:
            with interrupt.outranks():
                try:
                    began = time.monotonic()
                    run = Run(
                        plan=self.plan,
                        entry=entry,
                        workload=workload,
                        profile=self.profile_of(entry),
                        device=self.devices[entry.device],
                        running=running,
                        filled=filled,
                        directory=directory,
                        teardown=self.teardown,
                    )
                    job, preparation = engine.prepare(run)
                    running = run.running
                    preparation["preparation_s"] = round(time.monotonic() - began, 3)
                    summary = self.measure(run, job, block, preparation)
                finally:
                    try:
                        if running.server_died():
                            running.fail_io()  # else what is still dirty would hold the unmount
                    finally:
                        self.teardown.unwind(mark)
        except (*FAILURES, WorkloadError, perf.PerfError) as error:
            self.stop_if_lost(error, directory)
            self.failed(entry, str(error))
            return False
        except DeviceError as error:
            self.failed(entry, str(error))
            raise Stopped(f"{error}; look at the kernel's log (dmesg)") from None
        except interrupt.Interrupted:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        if ramp := self.shorter_ramp(entry, workload, summary):
            self.ramps[entry.cell] = ramp
            text = f"{entry.workload} on {entry.device} ended during its warm-up; it runs again with {ramp:g} s of it"
            self.emit("note", text=text)
            return self.run_entry(entry, running, block, not workload.writes)
        self.finish(entry, directory, summary)
        if KINDS[self.plan.systems[entry.system].kind].bare:
            stop_if_device_failed(summary)
        return engine.fills(workload)

    def shorter_ramp(self, entry: Entry, workload: Workload, summary: Mapping[str, Any]) -> float:
        """The ramp to repeat the run with, because its area was finished before the ramp's end; 0: do not repeat it."""
        profile = self.profile_of(entry)
        problems = [problem for problem in summary["invalid"] if problem != NO_SAMPLES]
        if profile.fixed_warm_up or not device_engine(workload.engine).done_in_ramp(problems):
            return 0.0
        ramp = round(profile.ramp_s * SHORTER_RAMP, 3)
        return ramp if ramp >= LEAST_RAMP else 0.0

    def command(self, entry: Entry, argv: Sequence[str]) -> Sequence[str]:
        """What is started for a run of a workload. argv: the workload's own."""
        return argv

    def measure(self, run: Run, job: Job, block: str, preparation: Mapping[str, object]) -> dict[str, object]:
        """Run the workload and return the summary."""
        measurement = Measurement(run, job)
        condition = environment.condition(self.disks())
        measurement.warnings += self.warnings_before(run, condition, preparation)
        measurement.keep_job_file()
        watched = measurement.watch(self.command(run.entry, job.argv))
        measurement.keep_state(watched, self.environment | {"condition": condition})
        measurement.look_for_problems(watched)
        found = measurement.read_results(watched)
        measurement.warnings += self.busy_warnings(watched.others)
        return self.identity(run.entry, run.workload, block) | measurement.summary(watched, found, preparation)

    def warnings_before(
        self, run: Run, condition: Mapping[str, object], preparation: Mapping[str, object]
    ) -> list[str]:
        """What is odd about a run before its workload begins."""
        warnings = self.busy_warnings() + environment.changes(self.condition, condition, bool(run.workload.cpus))
        if run.entry.cell in self.ramps:
            ramp = device_engine(run.workload.engine).ramp_s(run.profile)
            full = self.plan.profile.of(run.workload, run.entry.device).ramp_s
            warnings.append(f"the area was finished within {full:g} s: {ramp:g} s were discarded instead of {full:g}")
        if preparation.get("discarded") is False:
            warnings.append("discard: the device does not support it, so data of earlier runs is still there")
        return warnings

    def busy_warnings(self, others: host_load.OtherPrograms | None = None) -> list[str]:
        """What else keeps this machine, or a guest's host, busy. others: what ran during the run, None before it."""
        if self.plan.profile.instructions or self.plan.model:
            return []  # it does not matter
        try:
            found = json.loads((self.directory / host_load.FILE).read_text())
            other = float(found["other_cpu_percent"])
        except FileNotFoundError:
            if self.plan.emulated:
                return []
            if others is not None:
                other = others.percent()
                return [f"load: other programs took {other:.0f} % of a CPU during the run"] * (other > OTHER_CPU_LIMIT)
            a = read_sample([], None)
            time.sleep(QUIET_S)
            other = use_between(a, read_sample([], None)).cpu_percent * (os.cpu_count() or 1)
        except (OSError, ValueError, KeyError, TypeError) as error:
            return [f"host-load.json cannot be read: {error}"]
        if other <= OTHER_CPU_LIMIT:
            return []
        return [f"load: other programs took {other:.0f} % of a CPU {'before' if others is None else 'after'} the run"]


@undo
def unmount_tracefs(path: str) -> None:
    subprocess.run(["umount", path], capture_output=True, timeout=60, check=False)  # somebody else may look at it


def mount_tracefs(teardown: Teardown) -> None:
    """Where it is not mounted yet; without it syscalls are not counted."""
    point = Path("/sys/kernel/tracing")
    if point.is_dir() and not (point / "events").exists():
        argv = ["mount", "-t", "tracefs", "tracefs", str(point)]
        if not subprocess.run(argv, capture_output=True, timeout=60, check=False).returncode:
            teardown.push("unmount_tracefs", path=str(point))


def stop_if_device_failed(summary: Mapping[str, Any]) -> None:
    """
    Nothing is between native and its device: its I/O errors are the device's, unless a file system is full. Raises
    Stopped.
    """
    for problem in summary["invalid"]:
        failed = WRITE_BACK_FAILED in problem or problem.startswith(fio.REPORTS_ERROR)
        if failed and not problem.endswith(FULL):
            raise Stopped(f"{summary['device']}: the device fails: {problem}; look at the kernel's log (dmesg)")


def clear(directory: Path) -> None:
    """Nothing stays of a run, if there is one; DONE goes first: half of a run must not count."""
    if directory.is_dir():
        (directory / "DONE").unlink(missing_ok=True)
        shutil.rmtree(directory)


def mark_done(directory: Path) -> None:
    """All that belongs to the run is kept before it counts as done."""
    sync_tree(directory)
    replace(directory / "DONE", "")


def interrupt_at_eof() -> None:
    """Over ssh a lost connection, or the end of the other side, shows by nothing else."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGINT)


def main(arguments: Sequence[str] | None = None, kind: type[Runner] = Runner) -> int:
    parser = argparse.ArgumentParser(
        prog="userblk.harness.running.runner", description="Run what is not done yet of a plan; events as JSON lines."
    )
    parser.add_argument("plan", type=Path, help="plan.json in the campaign's directory")
    parser.add_argument("--hand-over", type=Path, metavar="PORT", help="in a sealed guest: where runs go to the host")
    parser.add_argument("--until-eof", action="store_true", help="end as after SIGINT when standard input ends")
    args = parser.parse_args(arguments)
    path = args.plan
    interrupt.install()
    if args.until_eof:
        threading.Thread(target=interrupt_at_eof, daemon=True).start()
    try:
        return kind(read_plan(path), path.parent.resolve(), args.hand_over).run()
    except (ConfigError, Refused, TeardownError) as error:
        print(f"userblk: {error}", file=sys.stderr)
        return EXIT_USAGE
    except interrupt.Interrupted as reason:
        return 128 + reason.number


if __name__ == "__main__":
    sys.exit(main())
