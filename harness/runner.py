# SPDX-License-Identifier: BSD-3-Clause
"""Runs a plan where the devices are: python3 -m userblk.harness.runner results/CAMPAIGN/plan.json

Standard library only. Formats, events and exit codes: docs/results.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from . import interrupt
from .blockdev import BlockDevice, flush_cache, opened, queue_attributes
from .commands import CommandError, Recorder, now
from .config import ConfigError, Workload
from .environment import meminfo, snapshot
from .plan import Entry, Plan, read_plan
from .prepare import PrepareError, dirty_limits, discard_area, drop_caches, fill_area, kept_cached, limit_dirty
from .safety import Refused, check, claimed, recheck
from .samplers import DiskUse, Sampler, read_sample, use_between
from .systems import Running, SystemError_, bring_up, load_modules, modules
from .teardown import Teardown, TeardownError, recover
from .workloads import fio

SCHEMA = 1
FLUSH_PATIENCE = 300.0  # s that fio may take beyond ramp and runtime, to write back what it left dirty
OTHER_CPU_LIMIT = 10.0  # % of one CPU, of everything else on the machine
STEAL_LIMIT = 1.0  # %
QUIET_S = 0.5
SERVER_PATIENCE = 30  # s that fio may take to end once its device's server is dead
POLL_S = 0.1
FIRST_IO = 256 << 10  # bytes that fio has moved once its job has begun, for old fio that does not tell the time

EXIT_DONE, EXIT_NOTHING, EXIT_USAGE, EXIT_PARTLY = 0, 1, 2, 3


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def valid_summary(directory: Path) -> bool:
    """Is the run in this directory complete and valid?"""
    if not (directory / "DONE").exists():
        return False
    try:
        summary = json.loads((directory / "summary.json").read_text())
        return bool(summary["schema"] == SCHEMA and summary["valid"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def mean_use(use: DiskUse | None) -> dict[str, float | None] | None:
    """A device's part of the summary."""
    if use is None:
        return None
    names = ("read_request_kib", "write_request_kib", "queue_depth", "utilisation_percent")
    values = ((name, getattr(use, name)) for name in names)
    return {name: None if value is None else round(value, 3) for name, value in values}


def write_counters(directory: Path) -> None:
    """What the device counted, which servers print when they close it: counters.json in the block's directory."""
    counters: dict[str, int] = {}
    for log in sorted((directory / "commands").glob("*.err")):
        for line in re.findall(r"counters:((?: \w+=\d+)+)", log.read_text(errors="replace")):
            counters |= {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", line)}
    write_json(directory / "counters.json", counters)


def bytes_moved(pid: int) -> int:
    """Bytes that a process has read and written by system calls, 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines[:2])


class Runner:
    """One execution of a plan."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan = plan
        self.directory = directory
        self.teardown = Teardown()
        self.devices: dict[str, BlockDevice] = {}
        self.environment: dict[str, object] = {}
        self.counts = {"done": 0, "invalid": 0, "failed": 0}
        self.interrupted = False

    # ---- events -----------------------------------------------------------------

    def emit(self, event: str, **values: object) -> None:
        line = json.dumps({"event": event, "time": round(time.time(), 3), **values})
        with (self.directory / "events.jsonl").open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)

    def failed(self, entry: Entry, reason: str) -> None:
        self.counts["failed"] += 1
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
            found = check(path, device.confirm)
            area = self.plan.profile.area[name]
            if found.size < area:
                raise Refused(f"{path}: has {found.size} bytes, but profile {self.plan.profile.name} uses {area}")
            disks = {other.disk for other in self.devices.values()}
            if found.number in {other.number for other in self.devices.values()}:
                raise Refused(f"{path}: named for two devices; name two different ones")
            if found.disk not in disks:
                stack.enter_context(claimed(found))
            self.devices[name] = found

    def run(self) -> int:
        """Everything that is not done yet. The exit code; raises Refused before anything was touched."""
        with ExitStack() as stack:
            for line in recover():
                self.emit("note", text=line)
            self.check_devices(stack)
            pending = [e for e in self.plan.entries if not valid_summary(self.directory / self.plan.directory(e))]
            skipped = len(self.plan.entries) - len(pending)
            self.emit("start", campaign=self.plan.campaign, entries=len(pending), skipped=skipped)
            code = 0
            try:
                try:
                    self.set_up(pending)
                    stack.enter_context(kept_cached("fio"))
                    for number, entries in self.plan.blocks():
                        self.run_block(number, [entry for entry in entries if entry in pending])
                finally:
                    self.teardown.unwind()
            except interrupt.Interrupted as reason:
                self.interrupted = True
                code = 128 + reason.number
            except (Refused, TeardownError, SystemError_, PrepareError) as error:
                self.emit("note", text=f"the campaign stops: {error}")
                print(f"userblk: {error}", file=sys.stderr)
                code = EXIT_NOTHING
            self.emit("end", **self.counts, interrupted=self.interrupted)
        if code:
            return code
        if not self.counts["done"] and not skipped:
            return EXIT_NOTHING
        return EXIT_PARTLY if self.counts["invalid"] or self.counts["failed"] else EXIT_DONE

    def set_up(self, pending: list[Entry]) -> None:
        """What holds for the whole campaign."""
        self.environment = snapshot()
        kinds = dict.fromkeys(self.plan.systems[entry.system].kind for entry in pending)
        for kind in kinds:
            load_modules(modules(kind), self.teardown)
        limit_dirty(self.plan.profile.dirty_bytes, self.plan.profile.dirty_background_bytes, self.teardown)

    def run_block(self, number: int, pending: list[Entry]) -> None:
        """Bring the block's system up, as often as a dead server makes it necessary, and run what is pending."""
        attempt = 1
        while pending:
            while (directory := self.directory / f"blocks/{number}.{attempt}").exists():
                attempt += 1
            first = pending[0]
            device = self.devices[first.device]
            recheck_free(device, self.plan.devices[first.device].confirm)
            system = self.plan.systems[first.system]
            area = self.plan.profile.area[first.device]
            recorder = Recorder(directory)
            try:
                with bring_up(system, device, area, self.plan.build, recorder, self.teardown) as running:
                    filled = False
                    while pending and not running.server_died():
                        filled = self.run_entry(pending[0], running, directory.name, filled)
                        pending.pop(0)
            except (SystemError_, CommandError, OSError) as error:
                for entry in pending:
                    self.failed(entry, f"{system.name} on {device.path}: {error}")
                return
            finally:
                write_counters(directory)

    # ---- one run ----------------------------------------------------------------------

    def run_entry(self, entry: Entry, running: Running, block: str, filled: bool) -> bool:
        """One run in its directory. Is the area zero-filled afterwards?"""
        workload = self.plan.workload(entry)
        directory = self.directory / self.plan.directory(entry)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self.emit(
            "entry-start",
            index=entry.index,
            device=entry.device,
            system=entry.system,
            workload=entry.workload,
            repetition=entry.repetition,
        )
        try:
            began = time.monotonic()
            preparation = self.prepare(entry, workload, running, filled)
            preparation["preparation_s"] = round(time.monotonic() - began, 3)
            summary = self.measure(entry, workload, running, block, directory, preparation)
        except (PrepareError, CommandError, fio.WorkloadError, OSError) as error:
            self.failed(entry, str(error))
            return False
        except interrupt.Interrupted:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        write_json(directory / "summary.json", summary)
        mark = directory / "DONE.new"
        mark.touch()
        mark.rename(directory / "DONE")
        self.counts["done" if summary["valid"] else "invalid"] += 1
        self.emit("entry-done", index=entry.index, summary=summary)
        return not workload.writes

    def prepare(self, entry: Entry, workload: Workload, running: Running, filled: bool) -> dict[str, object]:
        device = self.devices[entry.device]
        area = self.plan.profile.area[entry.device]
        devices = [running.used] + ([running.backing] if running.backing else [])
        found: dict[str, object] = {}
        if self.plan.systems[entry.system].backed:
            recheck(device, self.plan.devices[entry.device].confirm)
            for used in devices:  # what the last run left dirty must not be written over the new state
                flush_cache(used.path)
            if workload.writes:
                found |= discard_area(device, area, entry.seed)
            elif not filled:
                fill_area(device, area, entry.seed)
        return found | drop_caches(devices, area)

    def measure(
        self,
        entry: Entry,
        workload: Workload,
        running: Running,
        block: str,
        directory: Path,
        preparation: dict[str, object],
    ) -> dict[str, object]:
        """Run the workload and return the summary."""
        profile = self.plan.profile
        area = profile.area[entry.device]
        devices = [running.used] + ([running.backing] if running.backing else [])
        before = {device.name: queue_attributes(device) for device in devices}
        write_json(directory / "queue-before.json", before)
        warnings = self.busy_warnings()
        recorder = Recorder(directory)
        started = now()
        names = [device.name for device in devices]
        with (
            opened(running.used.path, os.O_RDONLY) as held,
            Sampler(names, running.server or None, profile.interval_ms / 1e3) as sampler,
        ):
            origin = time.monotonic()
            argv = fio.argv(workload, profile, area, running.used.path, entry.seed, directory)
            process = recorder.spawn(argv)
            problems = []
            try:
                limit = time.monotonic() + profile.ramp_s + profile.runtime_s + FLUSH_PATIENCE
                first_io = 0.0
                while process.poll() is None:
                    time.sleep(POLL_S)
                    first_io = first_io or (time.monotonic() if bytes_moved(process.pid) > FIRST_IO else 0.0)
                    if running.server_died():
                        problems.append("the server died")
                        for _ in range(SERVER_PATIENCE):
                            running.fail_io()  # once more: what waited behind the first comes next
                            if process.wait(1.0):
                                break
                        break
                    if time.monotonic() > limit:
                        problems.append(f"fio did not end within {FLUSH_PATIENCE:.0f} s after its runtime")
                        break
            finally:
                process.end()
                recorder.save()
            try:
                # fio cannot see that its buffered writes failed later, on their way to the device.
                if not problems:
                    os.fsync(held)
            except OSError as error:
                problems.append(f"{running.used.path}: writing back failed: {error.strerror}")
        after = {device.name: queue_attributes(device) for device in devices if device.queue.exists()}
        write_json(directory / "queue-after.json", after)
        memory = {name: value for name, value in meminfo().items() if name in ("MemAvailable", "Cached", "Buffers")}
        write_json(directory / "environment.json", self.environment | {"load": os.getloadavg(), "memory": memory})
        sampler.write_csv(directory / "samples.csv", origin)

        if running.server_died() and "the server died" not in problems:
            problems.append("the server died")
        if process.poll():
            problems.append(f"fio: exit code {process.poll()}")
        problems += sampler.errors + ([] if problems else running.problems())
        if after != before:
            changed = sorted(name for name in before if before[name] != after.get(name))
            problems.append(f"queue settings of {', '.join(changed)} changed during the run")
        try:
            result = fio.parse(directory / "fio.json", workload, profile)
        except fio.WorkloadError as error:
            if not problems:
                raise
            result = None
            problems.append(str(error))
        metrics: dict[str, float | None] = {}
        use = None
        if result:
            problems += result.problems
            warnings += result.warnings
            if result.measured_from:
                begin = result.measured_from - time.time() + time.monotonic()
            else:
                begin = (first_io or origin) + profile.ramp_s
            use = sampler.use(begin, begin + result.duration_s)
            if use is None:
                problems.append("no samples of the measured window")
            elif use.steal_percent > STEAL_LIMIT:
                warnings.append(f"steal: {use.steal_percent:.1f} % of the CPU time went to other machines")
            metrics = {
                "throughput_kops": result.throughput_kops,
                "latency_us": result.latency_us,
                "cpu_percent": use.cpu_percent if use else None,
                "server_cpu_percent": use.server_cpu_percent if use else None,
                "throughput_mbps": result.throughput_mbps,
            }
        settings: dict[str, object] = dict(running.settings)
        settings |= preparation
        settings |= before[running.used.name]
        settings |= {"area_bytes": area, **dirty_limits()}
        if running.backing:
            settings["backing"] = before[running.backing.name]
        if result:
            settings["fio"] = result.version
        disks = use.disks if use else ()
        return {
            "schema": SCHEMA,
            "campaign": self.plan.campaign,
            "host": self.plan.host,
            "device": entry.device,
            "suite": self.plan.suite.name,
            "system": entry.system,
            "workload": entry.workload,
            "repetition": entry.repetition,
            "profile": profile.name,
            "seed": entry.seed,
            "order": entry.index,
            "block": block,
            "emulated": self.plan.emulated,
            "kernel": self.environment.get("kernel", ""),
            "started": started,
            "duration_s": result.duration_s if result else 0.0,
            "valid": not problems,
            "invalid": problems,
            "warnings": warnings + self.busy_warnings(quiet=False),
            "metrics": metrics,
            "device_io": mean_use(disks[0] if disks else None),
            "backing_io": mean_use(disks[1] if len(disks) > 1 else None),
            "settings": settings,
            "device_used": dataclasses.asdict(running.used),
        }

    def busy_warnings(self, quiet: bool = True) -> list[str]:
        """What else keeps this machine, or a guest's host, busy. quiet: nothing of ours runs at the moment."""
        try:
            load = json.loads((self.directory / "host-load.json").read_text())
            other = float(load["other_cpu_percent"])
        except FileNotFoundError:
            if self.plan.emulated or not quiet:
                return []
            a = read_sample([], None)
            time.sleep(QUIET_S)
            other = use_between(a, read_sample([], None)).cpu_percent * (os.cpu_count() or 1)
        except (OSError, ValueError, KeyError, TypeError) as error:
            return [f"host-load.json cannot be read: {error}"]
        if other <= OTHER_CPU_LIMIT:
            return []
        return [f"load: other programs took {other:.0f} % of a CPU {'before' if quiet else 'after'} the run"]


def recheck_free(device: BlockDevice, confirm: str) -> None:
    """Before a system is brought up, when nothing of ours holds the device. Raises Refused."""
    if check(device.path, confirm) != device:
        raise Refused(f"{device.path}: is not the device that it was when the campaign began; begin anew")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="userblk.harness.runner", description="Run what is not done yet of a plan; events as JSON lines."
    )
    parser.add_argument("plan", type=Path, help="plan.json in the campaign's directory")
    path = parser.parse_args(arguments).plan
    interrupt.install()
    try:
        return Runner(read_plan(path), path.parent.resolve()).run()
    except (ConfigError, Refused) as error:
        print(f"userblk: {error}", file=sys.stderr)
        return EXIT_USAGE
    except interrupt.Interrupted as reason:
        return 128 + reason.number


if __name__ == "__main__":
    sys.exit(main())
