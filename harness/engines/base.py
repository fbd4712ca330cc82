# SPDX-License-Identifier: BSD-3-Clause
"""What engines on a device or a file system have to do, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..machine.blockdev import BlockDevice
from ..machine.filesystem import Memory
from ..machine.teardown import Teardown
from ..model.config import VIRTUAL, Profile, SystemConfig, Workload
from ..model.parts import ENGINES, Engine
from ..model.plan import Entry, Plan
from ..model.tables import ConfigError, Table, block_size, counts, path
from ..systems import Running
from . import Result

INTERVALS = 100  # at least, of a run whose suite has times of its own
FIO_MODES = ("read", "randread", "write", "randwrite")
OF_APPLICATIONS = (
    "An operation is one of YCSB's (userblk-kv(1)), a transaction of sysbench, or a file that was unpacked or compiled:"
    " docs/apps.md. Rates of one row compare; those of two rows do not."
)


@dataclass(frozen=True)
class Job:
    """The measured process of a run. seconds: ramp and runtime; parse: reads its results.

    Synced at the end, which shows what a workload cannot see: that its buffered writes failed later.
    disturb: called all the time with the seconds since its start. ends: exit codes that are no failure of the run.
    """

    argv: list[str]
    seconds: float
    parse: Callable[[], Result]
    synced: tuple[str, ...]
    sync: Callable[[int], None]
    area: int
    memory: Memory | None = None
    problems: Callable[[], list[str]] = lambda: []
    disturb: Callable[[float], None] = lambda seconds: None
    ends: tuple[int, ...] = (0,)
    interval_s: float | None = None


@dataclass
class Run:
    """A run to prepare. profile: with the times of this run. filled: the area is zero-filled already.

    running: the system, which the preparation may put another one in the place of.
    """

    plan: Plan
    entry: Entry
    workload: Workload
    profile: Profile
    device: BlockDevice
    running: Running
    filled: bool
    directory: Path
    teardown: Teardown

    @property
    def area(self) -> int:
        """Bytes at the start of the device."""
        return self.profile.area[self.entry.device]

    @property
    def confirm(self) -> str:
        return self.plan.devices[self.entry.device].confirm

    def devices(self) -> list[BlockDevice]:
        return self.running.devices()


class DeviceEngine(Engine):
    """An engine whose workloads the runner runs on a device."""

    def programs(self, build: str) -> list[str]:
        """What its workloads run; kept in the page cache."""
        return ["fio"]

    def system(self, system: SystemConfig) -> SystemConfig:
        """What is brought up for workloads on the system."""
        return system

    def dirty_limits(self, profile: Profile, device: str) -> tuple[int, int]:
        """Bytes that may be dirty, and from which on they are written back; 0: the kernel's own."""
        return profile.dirty_limits(device)

    def memory_bytes(self, profile: Profile) -> int:
        """What the memory of its workloads and their page cache is limited to; 0: it is not."""
        return 0

    def timed(self, profile: Profile, workload: Workload) -> Profile:
        """With the workload's own times, where its suite has them."""
        return profile

    def run_text(self, workload: Workload, profile: Profile) -> str:
        """How long a run is, for people; "" where ramp and runtime say so."""
        return ""

    def ramp_s(self, profile: Profile) -> float:
        return profile.ramp_s

    def prepare(self, run: Run) -> tuple[Job, dict[str, object]]:
        """What is measured, and what was found while all that it needs was made."""
        raise NotImplementedError

    def done_in_ramp(self, problems: Sequence[str]) -> bool:
        """Is the run of no use only because its work was done within the ramp?"""
        return False


def device_engine(name: str) -> DeviceEngine:
    engine = ENGINES[name]
    assert isinstance(engine, DeviceEngine)
    return engine


def times(table: Table) -> dict[str, dict[str, int]]:
    """A suite's [timing]: by profile, the seconds that are discarded and measured; {} where it has none."""
    part, found = table.table("timing", optional=True), {}
    for profile in list(part.values):
        one = part.table(profile)
        found[profile] = {"ramp_s": one.integer("ramp_s", 0), "runtime_s": one.integer("runtime_s", 1)}
        one.end(("ramp_s", "runtime_s"))
    return found


def paper_of(table: Table) -> str:
    """The paper that a suite follows, whose parameters.toml has its sizes or choices. Raises ConfigError."""
    paper = table.text("parameters")
    if not path(f"papers/{paper}/parameters").is_file():
        raise table.error("parameters", paper, f"configs/papers/{paper}/parameters.toml is missing; add it")
    return paper


def times_in(table: Table, profile: str) -> dict[str, dict[str, int]]:
    """times() of one profile; {}: those of the profile itself."""
    return {name: own for name, own in times(table).items() if name == profile}


def with_times(profile: Profile, own: Mapping[str, float]) -> Profile:
    """
    The profile with times of a suite in those of its files. Work may be done long before its time is over: intervals
    are a small part of that.
    """
    ramp, seconds = own["ramp_s"], own["runtime_s"]
    most = int(1e3 * (ramp + seconds) / INTERVALS)
    return replace(
        profile,
        files=replace(profile.files, ramp_s=ramp, runtime_s=seconds, macro_runtime_s=seconds),
        interval_ms=min(profile.interval_ms, most),
        workload_interval_ms=min(profile.workload_interval_ms, most),
    )


def both_sizes_of(table: Table, profile: str) -> tuple[Table, Table]:
    """The part of a suite's [sizes] that a profile has, and what takes its place in virtual time, empty if nothing
    does; those of the others are read, and left.
    """
    sizes = table.table("sizes")
    size, instead = sizes.table(profile), sizes.table(VIRTUAL, optional=True)
    for other in list(sizes.values):
        sizes.table(other)
    return size, instead


def sizes_of(table: Table, profile: str) -> Table:
    """The part of a suite's [sizes] that a profile has."""
    return both_sizes_of(table, profile)[0]


def with_fixed_values(
    workload: Workload, profile: Profile, devices: Sequence[str], key: str, value: int, needed: int
) -> Workload:
    """The workload with the suite's own values on each device. ConfigError: it needs more than a file system has."""
    for device in devices:
        if needed > profile.files.size[device]:
            raise ConfigError(
                f"{key}={value}: {workload.id} may need {needed} bytes, but the file system of profile {profile.name}"
                f" on {device} has {profile.files.size[device]}; use fewer"
            )
    return replace(workload, variables={device: workload.fixed for device in devices})


def grid(table: Table, suite: str, engine: str) -> tuple[list[Workload], list[int]]:
    """The product of [modes], threads and block_sizes; and the numbers of threads."""
    threads, sizes, modes = counts(table, "threads"), table.array("block_sizes"), table.table("modes")
    workloads = []
    for mode in list(modes.values):
        rw = modes.text(mode, FIO_MODES)
        for count in threads:
            for size in sizes:
                size_bytes = block_size(table, "block_sizes", size)
                workloads.append(Workload(f"{mode}-{count}th-{size}", rw, count, size_bytes, suite, engine))
    if not workloads:
        raise ConfigError(f'{table.file}: modes is empty; add a line such as seq-read = "read"')
    return workloads, threads
