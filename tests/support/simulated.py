# SPDX-License-Identifier: BSD-3-Clause
"""The runner over devices with a paper's rates, in time that does not pass: from a plan to what lies in its directory.

What is real: plan, order, command lines, ramps, warm-ups, what is read from the output of workloads, validity,
repetition, summaries. What is made up: the device, the system over it, and the process that would put the load on: it
writes what fio or userblk-flow would have written, and lets the clock go on. The numbers are inputs of tests, not
results.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from synthetic import ENVIRONMENT, histogram
from userblk.analysis.papers import load_paper
from userblk.analysis.table import METRICS, NATIVE
from userblk.harness.engines import fio, flow
from userblk.harness.machine.blockdev import BlockDevice
from userblk.harness.machine.filesystem import Memory
from userblk.harness.machine.paths import CONFIGS
from userblk.harness.model.plan import Entry
from userblk.harness.observing.samplers import Sample, Sampler
from userblk.harness.running import measuring, runner
from userblk.harness.systems import Running

EPOCH = 1_700_000_000.0
OTHERS = 0.85  # of native's throughput, of a system that the paper does not have
OTHERS_CPU = 5.0  # points more than native
LEAST_NOISE, MOST_NOISE = 0.003, 0.12  # of a run's mean, as a share of it; each cell has its own between them
WITHIN = 0.04  # the same of an interval
WORSE_START = 0.5  # a run's first seconds, which are no longer there after WARM_S
WARM_S = 20.0
LIMITS = {name: 0 for name in ("dirty_bytes", "dirty_ratio", "dirty_background_bytes", "dirty_background_ratio")}

Options = Mapping[str, str]


class Clock:
    """In place of the module time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return EPOCH + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Disk(BlockDevice):
    """The disk of a file that nothing is written to."""

    @property
    def queue(self) -> Path:
        return Path("/")


@dataclass(frozen=True)
class Rate:
    """The rate of a cell: what its runs scatter around."""

    kops: float
    cpu_percent: float
    noise: float


class Paper:
    """The rates of the BDUS paper's cells."""

    def __init__(self) -> None:
        self.tables = load_paper("bdus", CONFIGS).tables

    def _value(self, device: str, workload: str, system: str, metric: int) -> float | None:
        for table in self.tables.values():
            if (device, workload) not in table.rows:
                continue
            native = table.cell(device, workload, NATIVE, METRICS[metric]).mean
            if system == NATIVE or native is None:
                return native.value if native else None
            change = (
                table.cell(device, workload, system, METRICS[metric]).difference if system in table.systems else None
            )
            if change is None:
                return None
            return native.value + change.value if metric == 2 else native.value * (1 + change.value / 100)
        return None

    def rate(self, device: str, system: str, workload: str) -> Rate:
        """Raises AssertionError where not even native is known."""
        native, native_cpu = (self._value(device, workload, NATIVE, metric) for metric in (0, 2))
        assert native is not None and native_cpu is not None, f"{device} {workload}"
        kops, cpu = (self._value(device, workload, system, metric) for metric in (0, 2))
        rng = random.Random(f"{device} {system} {workload}")
        noise = rng.uniform(LEAST_NOISE, MOST_NOISE)
        return Rate(kops or native * OTHERS, native_cpu + OTHERS_CPU if cpu is None else cpu, noise)


class Process:
    """A workload that is over when it is looked at for the second time."""

    pid = os.getpid()

    def __init__(self, world: World, seconds: float) -> None:
        self.world, self.seconds = world, seconds
        self.record: dict[str, object] = {"name": "simulated"}
        self.errors = Path(os.devnull)
        self.looks = 0

    def poll(self) -> int | None:
        self.looks += 1
        if self.looks == 1:
            self.world.clock.now += self.seconds
            return None
        return 0

    def wait(self, patience: float) -> bool:
        return True

    def end(self) -> None:
        pass


class Samples(Sampler):
    """Counters of a machine of one CPU that is as busy as the cell's runs make it."""

    world: World

    def __enter__(self) -> Samples:
        self.began = self.world.clock.now
        return self

    def __exit__(self, *error: object) -> None:
        now, cpu = self.world.clock.now, self.world.cpu_percent / 100
        count = max(1, int((now - self.began) / self.interval))
        for step in range(count + 1):
            at = now if step == count else self.began + step * self.interval
            ticks = 100 * (at - self.began)
            busy = (ticks * cpu, 0.0, 0.0, ticks * (1 - cpu), 0.0, 0.0, 0.0, 0.0)
            disk = (ticks, 0.0, ticks * 8, 0.0, ticks, 0.0, ticks * 8, 0.0, 0.0, ticks * 10, ticks * 10)
            self.samples.append(Sample(at, busy, None, tuple(disk for _ in self.stats)))


def _options(argv: list[str]) -> Options:
    return dict(word[2:].split("=", 1) for word in argv if word.startswith("--") and "=" in word)


class World:
    """What the runner sees in place of a machine."""

    def __init__(self, seed: int) -> None:
        self.clock = Clock()
        self.paper = Paper()
        self.rng = random.Random(seed)
        self.cpu_percent = 0.0

    # ---- processes -------------------------------------------------------------------

    def spawn(self, directory: Path, argv: list[str]) -> Process:
        """The measured process of the run in this directory."""
        if directory.name == "preparation":
            return Process(self, 0.0)  # whose files nobody needs
        device, _, system, workload = directory.parts[-5:-1]
        rate = self.paper.rate(device, system, workload)
        kops = rate.kops * max(0.1, self.rng.gauss(1.0, rate.noise))
        self.cpu_percent = min(100.0, max(0.1, rate.cpu_percent + self.rng.gauss(0.0, 50 * rate.noise)))
        write = self._fio if argv[0] == "fio" else self._flow
        return Process(self, write(argv, kops))

    def _relative(self, begin: float, end: float) -> float:
        """An interval's rate as a share of the run's, by its place in it."""
        cold = max(0.0, min(end, WARM_S) - begin) / (end - begin)
        return (1 - cold * (1 - WORSE_START)) * max(0.1, self.rng.gauss(1.0, WITHIN))

    def _fio(self, argv: list[str], kops: float) -> float:
        """Writes fio's report and log; returns how long it took."""
        options = _options(argv)
        threads, size, block = (int(options[name]) for name in ("numjobs", "size", "bs"))
        ramp, runtime, step = float(options["ramp_time"]), float(options["runtime"]), int(options["log_avg_msec"]) / 1e3
        each = size // block  # operations of a thread
        took = min(ramp + runtime, each * threads / kops / 1e3)
        measured = max(0.0, took - ramp)
        shares = [self._relative(ramp + i * step, ramp + (i + 1) * step) for i in range(int(measured / step))]
        operations = int(kops * 1e3 * (sum(shares) * step + max(0.0, measured - len(shares) * step)))
        side: dict[str, Any] = {
            "total_ios": operations,
            "io_bytes": operations * block,
            "runtime": round(measured * 1e3),
        }
        latency_ns = threads * measured * 1e9 / operations if operations else 0.0
        bins = histogram(self.rng, latency_ns * 0.9e-3, operations) if operations else {}
        side |= {"lat_ns": {"mean": latency_ns, "N": operations}, "clat_ns": {"bins": bins}}
        none: dict[str, Any] = {
            "total_ios": 0,
            "io_bytes": 0,
            "runtime": 0,
            "lat_ns": {"mean": 0.0, "N": 0},
            "clat_ns": {},
        }
        sides: dict[str, Any] = (
            {"write": side, "read": none} if "write" in options["rw"] else {"read": side, "write": none}
        )
        start = round((self.clock.time() + min(ramp, took)) * 1e3)
        report = {"fio version": "fio-3.33", "jobs": [{**sides, "error": 0, "job_start": start}]}
        Path(options["output"]).write_text(json.dumps(report))
        lines = [
            f"{round(1e3 * (i + 1) * step) + thread % 3}, {kops * 1e3 / threads * share:.0f}, 0, 0, 0\n"
            for thread in range(threads)
            for i, share in enumerate(shares)
        ]
        Path(f"{options['write_iops_log']}_iops.log").write_text("".join(lines))
        return took

    def _flow(self, argv: list[str], kops: float) -> float:
        """Writes userblk-flow's report; returns how long it took."""
        options = _options(argv)
        given = dict(word[6:].split("=", 1) for word in argv if word.startswith("--set="))
        text = Path(argv[-1]).read_text()
        values = dict(re.findall(r"^set \$(\w+)=(\S+)", text, re.MULTILINE)) | given
        names = re.findall(r"^\s*flowop (\w+) name=(\w+)", text, re.MULTILINE)
        threads, runtime, step = int(values.get("nthreads", "16")), float(values["runtime"]), float(options["interval"])
        work = float("inf")  # operations until all is done
        if "set mode quit alldone" in text:
            work = float(values["iters"]) * threads if "iters" in values else float(values["nfiles"]) * len(names)
        took = min(runtime, work / kops / 1e3)
        intervals, begin = [], 0.0
        bins = histogram(self.rng, threads * 0.9e3 / kops, int(kops * 1e3 * step))
        while begin < took - 1e-9:
            end = min(took, begin + step)
            operations = int(kops * 1e3 * (end - begin) * self._relative(begin, end))
            latency_ns = threads * (end - begin) * 1e9 / max(1, operations)
            one: dict[str, Any] = {"start_s": begin, "end_s": end, "ops": operations, "bytes": operations * 4096}
            one["latency_ns"] = {"sum": int(operations * latency_ns), "mean": latency_ns, "bins": bins}
            one["flowops"] = {name: operations // len(names) for _, name in names}
            intervals.append(one)
            begin = end
        report = {
            "schema": 1,
            "program": "userblk-flow 0.2",
            "end": "time" if took == runtime else "done",
            "duration_s": took,
            "started_monotonic_s": self.clock.now,
            "threads": threads,
            "threads_without_file": 0,
            "variables": values,
            "filesets": [],
            "original": False,
            "flowops": [{"name": name, "type": kind} for kind, name in names],
            "intervals": intervals,
        }
        Path(options["json"]).write_text(json.dumps(report))
        return took

    # ---- the machine -----------------------------------------------------------------

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """In place of what the runner and the engines would do to a machine."""
        world = self

        class Recorder:
            def __init__(self, directory: Path, teardown: object = None) -> None:
                self.directory = directory
                directory.mkdir(parents=True, exist_ok=True)

            def spawn(self, argv: list[str], first: Sequence[str]) -> Process:
                return world.spawn(self.directory, argv)

            def run(self, argv: list[str], timeout: float) -> str:
                return ""

            def save(self) -> None:
                pass

        Samples.world = self

        class Quiet:
            def __init__(self, own: set[int]) -> None:
                pass

            def percent(self) -> float:
                return 0.0

        def points(teardown: object) -> tuple[Path, Path]:
            return Path("/tmp"), Path("/tmp")

        def up(system: object, device: BlockDevice, *rest: object) -> contextlib.AbstractContextManager[Running]:
            return nullcontext(Running(used=device))

        nothing: dict[str, object] = {}
        replaced: list[tuple[Any, dict[str, Any]]]
        patch.setattr(os, "fsync", lambda fd: None)  # nothing has to outlive a crash
        replaced = [
            (
                runner,
                {
                    "time": self.clock, "Recorder": Recorder, "recheck": lambda *words: None,
                    "limit_dirty": lambda *words: None, "limit_cpus": lambda *words: None, "bring_up": up,
                    "absent": lambda system: [], "sync_tree": lambda path: None,
                },
            ),
            (
                measuring,
                {
                    "time": self.clock, "Recorder": Recorder, "Sampler": Samples, "bytes_moved": lambda pid: 1 << 30,
                    "queue_attributes": lambda device: {"scheduler": "none"}, "dirty_limits": lambda: LIMITS,
                    "Meter": lambda: None, "OtherPrograms": Quiet,
                },
            ),
            (measuring.counters, {"counting": lambda server, events: nullcontext(None)}),
            (runner.environment, {"device_facts": lambda disk: nothing, "condition": lambda disks: nothing}),
            (runner.environment, {"changes": lambda *words: [], "failing": lambda found: ""}),
            (runner.environment, {"throttling": lambda found: ""}),
            (fio, {"make_area": lambda run: {}, "drop_caches": lambda *words: {}}),
            (fio, {"limit_memory": lambda limit, *rest: Memory(None, limit)}),
            (
                flow,
                {
                    "Recorder": Recorder, "recheck": lambda *words: None, "mount_points": points,
                    "limit_memory": lambda limit, *rest: Memory(None, limit), "flush_cache": lambda path: None,
                    "discard_area": lambda *words: {}, "make_ext4": lambda *words: {},
                    "mount_ext4": lambda *words: None,
                    "drop_caches": lambda *words: {}, "prepare_by": lambda *words: None, "ext4_errors": lambda disk: 0,
                    "sync_file_system": lambda fd: None, "built": lambda *words: Path("userblk-flow"),
                },
            ),
        ]  # fmt: skip
        for module, values in replaced:
            for name, value in values.items():
                patch.setattr(module, name, value)


class Simulated(runner.Runner):
    """Carries out a plan in a World."""

    def check_devices(self, stack: ExitStack) -> None:
        for name in self.plan.devices:
            path = self.directory / f"{name}.disk"
            path.touch()
            self.devices[name] = Disk(str(path), name, name, 0, self.plan.used_bytes(name), 512, False, name)

    def record_environment(self) -> None:
        self.environment = dict(ENVIRONMENT)
        runner.write_json(self.directory / measuring.ENVIRONMENT, self.environment | {"warnings": []})

    def set_up(self, pending: list[Entry], stack: ExitStack) -> None:
        pass

    def busy_warnings(self, others: object = None) -> list[str]:
        return []


@contextmanager
def simulation(seed: int) -> Iterator[World]:
    """Inside, Simulated(plan, directory).run() is a campaign."""
    with pytest.MonkeyPatch.context() as patch:
        world = World(seed)
        world.install(patch)
        yield world
