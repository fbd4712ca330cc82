# SPDX-License-Identifier: BSD-3-Clause
"""Suites, profiles and systems from configs/*.toml, checked key by key. What the keys mean is in docs/extending.md.

What only an engine or a kind of system has is read by its own file (model/parts.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from . import tables
from .parts import ENGINES, KINDS, Engine
from .tables import ConfigError, Table, parse_bytes

BUSY = "busy"  # beside devices, in a profile's slowdown
VIRTUAL = "virtual"  # what stands instead of a profile's values in the lab's virtual time

# In the order in which they are set: the kernel recomputes read-ahead whenever it takes another limit.
QUEUE_KEYS = ("rotational", "nomerges", "rq_affinity", "scheduler", "max_sectors_kb", "read_ahead_kb")


@dataclass(frozen=True)
class Workload:
    """One workload of a suite; its id is unique there.

    engine fio: a job with this rw, threads and block_size (bytes). engine flow: configs/workloads/FILE.f with the
    variables given per device, which a plan fills in; threads and block_size are 0 where the file alone knows.
    engine store: fio with that many jobs on a device over a store; depth: requests that each has in flight.
    engine store-files: as flow, with the seconds of timing (by profile), on a volume over a store.
    files: the type of the flowop that stands for one file, "" where an operation is a read or a write.
    engine failover: fio while the server ends by event, with the seconds of timing (by profile).
    engine sweep: fio with io_uring past the page cache, depth operations of each thread at once; cpus: as many are
    on line, 0: all.
    engine response: an open loop that offers load, % of what fio does with threads jobs of that depth; 0: that run.
    engine attach: threads disks come and go at once, until there are depth samples of each measure.
    file: its workload file, "" where that has the id's name; fixed: variables of it that the suite sets; parameters:
    the paper that has the others' values (configs/papers), "": configs/workloads. text: of the workload file when the
    plan was made, so that all of a campaign runs the same.
    """

    id: str
    rw: str = ""
    threads: int = 0
    block_size: int = 0
    suite: str = ""
    engine: str = "fio"
    files: str = ""
    macro: bool = False
    variables: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    event: str = ""
    timing: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    depth: int = 0
    cpus: int = 0
    load: int = 0
    file: str = ""
    fixed: Mapping[str, int] = field(default_factory=dict)
    parameters: str = ""
    text: str = ""

    @property
    def alone(self) -> bool:
        """Needs a bring-up of its own: leaves another server than there was, or wants fewer CPUs."""
        return bool(self.event or self.cpus)

    @property
    def writes(self) -> bool:
        return "write" in self.rw

    @property
    def on_files(self) -> bool:
        """Does it need a file system?"""
        return ENGINES[self.engine].on_files


@dataclass(frozen=True)
class Figure:
    """A figure of workloads' throughput by x, "block_size" or "jobs"; workloads are ids."""

    title: str
    x: str
    workloads: Sequence[str]


@dataclass(frozen=True)
class Suite:
    """systems: those that it is for, where no others are asked for; none: the usual ones.

    latencies_ms and figures: of engine store only.
    """

    name: str
    workloads: tuple[Workload, ...]
    systems: tuple[str, ...] = ()
    latencies_ms: Sequence[int] = ()
    figures: Sequence[Figure] = ()

    @property
    def engine(self) -> Engine:
        """The first workload's, which answers for all: one that has answers of its own shares no suite with others."""
        return ENGINES[self.workloads[0].engine] if self.workloads else Engine()


@dataclass(frozen=True)
class Parameter:
    """A variable of workload files that the paper does not state, or that a profile scales.

    workloads: patterns of ids; of several of one variable that concern a workload, the last one counts. values: by
    profile, then by device; "" there is every device. In the lab's virtual time those of VIRTUAL take the place of the
    profile's.
    """

    variable: str
    workloads: tuple[str, ...]
    reason: str
    values: Mapping[str, Mapping[str, int]]

    def concerns(self, workload: str) -> bool:
        return any(fnmatchcase(workload, pattern) for pattern in self.workloads)

    def value(self, profile: str, device: str, virtual: bool = False) -> int | None:
        columns = [self.values.get(name, {}) for name in ((VIRTUAL, profile) if virtual else (profile,))]
        return next((column[key] for column in columns for key in (device, "") if key in column), None)


@dataclass(frozen=True)
class Choice:
    """What the paper leaves open, what is done here, and why. workloads: patterns of ids, of which it is true."""

    what: str
    value: str
    reason: str
    workloads: tuple[str, ...]


@dataclass(frozen=True)
class FilesProfile:
    """
    Workloads on a file system: how long, in how much memory (bytes), on file systems of which size (bytes).
    unscaled_dirty_bytes: the dirty limit that dirty_bytes is a small one instead of; 0: of none. writes: by device,
    other times of those that write data; workloads: by id and device, other times of that one.
    """

    ramp_s: float
    runtime_s: float
    macro_runtime_s: float
    memory_bytes: int
    dirty_bytes: int
    dirty_background_bytes: int
    overhead_s: float
    size: Mapping[str, int]
    unscaled_dirty_bytes: int = 0
    writes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    workloads: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)

    def of(self, workload: Workload, device: str) -> FilesProfile:
        """With the times of a workload on the device."""
        own = self.workloads.get(workload.id, {}).get(device)
        if own is None:
            own = self.writes.get(device, {}) if workload.writes else {}
        if not own:
            return self
        runtime = "macro_runtime_s" if workload.macro else "runtime_s"
        return dataclasses.replace(self, ramp_s=own["ramp_s"], **{runtime: own["runtime_s"]})

    def seconds(self, workload: Workload) -> float:
        """Measured after the ramp."""
        return self.macro_runtime_s if workload.macro else self.runtime_s


@dataclass(frozen=True)
class StoreProfile:
    """Workloads over a store: on a volume of size bytes; files_size: of one with a file system."""

    repetitions: int
    runtime_s: int
    size: int
    files_size: int
    overhead_s: float


# Not at the top of a profile's file.
NOT_IN_FILES = ("fixed_warm_up", "instructions", "read_ramp_s", "read_runtime_s", "writes", "slowdown")
LEAST_WINDOW = 3  # rounds, below which no line can be fitted
ROUNDS = ("most", "window", "passes")
TIMES = ("ramp_s", "runtime_s")
LIMITS = ("dirty_bytes", "dirty_background_bytes")


@dataclass(frozen=True)
class Profile:
    """How long and how often; see configs/profiles. files: for workloads on a file system; store: over a store.

    A cell is measured repetitions times, and again up to max_repetitions times as long as a half width of its
    intervals is over half_width: % of the mean, points for CPU. ramp_s are discarded, and what observing/warmup.py
    finds beyond them, unless fixed_warm_up. What is no key of the file: fixed_warm_up is what --warm-up and writes say,
    instructions what --instructions says: an emulated CPU counts them, and nothing is timed.
    interval_ms: of the samples of the machine; workload_interval_ms: of the workload's own series. reuse_system: one
    bring-up serves all workloads of a suite. memory_bytes: what the programs of block workloads may use, their page
    cache with it; 0: all of it.
    read_ramp_s, read_runtime_s: instead of the others for block workloads that read, where they differ.
    rounds: of SNIA's Performance Test Specification: the device is purged and written sequentially passes times, then a
    workload is repeated in rounds of runtime_s until it is steady over a window of them, most times at most.
    writes: by device, what TIMES and LIMITS name instead, for block workloads that write to it. Write-back is in a
    steady state from their start on (machine/prepare.py), so that the ramp is all that is discarded.
    slowdown: by device, for the estimate only: s of a core's time that a second of virtual time takes; BUSY: one in
    which no CPU is idle.
    """

    name: str
    repetitions: int
    max_repetitions: int
    half_width: float
    ramp_s: float
    runtime_s: float
    interval_ms: int
    workload_interval_ms: int
    reuse_system: bool
    dirty_bytes: int
    dirty_background_bytes: int
    overhead_s: float
    bring_up_s: float
    area: Mapping[str, int]
    files: FilesProfile
    store: StoreProfile
    memory_bytes: int = 0
    fixed_warm_up: bool = False
    instructions: bool = False
    read_ramp_s: float | None = None
    read_runtime_s: float | None = None
    writes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    rounds: Mapping[str, int] = field(default_factory=dict)
    slowdown: Mapping[str, float] = field(default_factory=dict)

    @property
    def virtual(self) -> bool:
        """Is it for the lab's virtual time?"""
        return self.read_ramp_s is not None

    def of(self, workload: Workload, device: str) -> Profile:
        """With the times of a workload on the device in ramp_s and runtime_s, its own or those of its files."""
        if workload.on_files:
            return dataclasses.replace(self, files=self.files.of(workload, device))
        if workload.writes and device in self.writes:
            own = self.writes[device]
            return dataclasses.replace(self, ramp_s=own["ramp_s"], runtime_s=own["runtime_s"], fixed_warm_up=True)
        if workload.writes or self.read_ramp_s is None or self.read_runtime_s is None:
            return self
        return dataclasses.replace(self, ramp_s=self.read_ramp_s, runtime_s=self.read_runtime_s)

    def dirty_limits(self, device: str) -> tuple[int, int]:
        """Bytes that may be dirty while its blocks are written, and from which on they are written back; 0: unset."""
        own = self.writes.get(device, {})
        dirty = own.get("dirty_bytes", self.dirty_bytes)
        return int(dirty), int(own.get("dirty_background_bytes", self.dirty_background_bytes))


@dataclass(frozen=True)
class Requires:
    """What must be there for a system: programs, kernel modules, set environment variables.

    packages: Debian's, which bring it; hint: how to get what Debian has not.
    """

    programs: Sequence[str] = field(default_factory=list)
    modules: Sequence[str] = field(default_factory=list)
    environment: Sequence[str] = field(default_factory=list)
    packages: Sequence[str] = field(default_factory=list)
    hint: str = ""


@dataclass(frozen=True)
class SystemConfig:
    """How a system is brought up; see configs/systems. device: which of ours it serves, "" for native and fuse.

    title: in tables and figures, "" where it is the name, or that which analysis/table.py has.
    mode: of ublk: how requests are served; of tcmu: "handler" if the handler's own threads do it.
    client: of store: fio's or the kernel's NBD client, or a file.
    options, negotiated: of fuse and fuse-disk: the daemon's, and what its status line must say.
    options, mount: of ext4: mkfs.ext4's and mount's.
    server, stop, file, disk, requires: of kind command, which is commands only (harness/systems/command.py).
    server, disk, requires: of mount: the program, and whether it mounts a "directory" or the "device".
    """

    name: str
    kind: str
    device: str = ""
    connections: int = 0
    threads: int = 0
    timeout_s: int = 0
    queue: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    mode: str = ""
    client: str = ""
    options: Sequence[str] = field(default_factory=list)
    mount: Sequence[str] = field(default_factory=list)
    negotiated: Mapping[str, str] = field(default_factory=dict)
    server: Sequence[str] = field(default_factory=list)
    stop: Sequence[str] = field(default_factory=list)
    file: str = ""
    disk: str = ""
    requires: Requires = field(default_factory=Requires)
    title: str = ""

    @property
    def uses_device(self) -> bool:
        """Does its data lie on the user's device?"""
        return self.device != "null"

    def runs(self, workload: Workload) -> bool:
        """Does it make sense there?"""
        return ENGINES[workload.engine].fits(workload, self, KINDS[self.kind])


def load_suite(name: str, profile: str = "quick") -> Suite:
    """The workloads of configs/suites/NAME.toml, in its order; of several suites those of one after the other.

    profile: says how many points a suite has that is drawn over block sizes, jobs and depths.
    """
    table = tables.read("suites", name)
    systems = tuple(str(system) for system in table.array("systems")) if "systems" in table.values else ()
    if "suites" in table.values:
        parts = [str(part) for part in table.array("suites")]
        table.end(("name", "suites", "systems"))
        workloads = [workload for part in parts for workload in load_suite(part, profile).workloads]
        return Suite(name, tuple(workloads), systems)
    engine = table.text("engine", ENGINES.names())
    return ENGINES[engine].suite(name, table, profile, systems)


def load_system(name: str) -> SystemConfig:
    """configs/systems/NAME.toml. Raises ConfigError."""
    table = tables.read("systems", name)
    kind = KINDS[table.text("kind", KINDS.names())]
    title = table.text("title") if "title" in table.values else ""
    return dataclasses.replace(kind.read(name, table), title=title)


def queue_of(table: Table) -> dict[str, str]:
    """The settings of a disk's queue, in the order in which they are set."""
    queue = table.table("queue", optional=True)
    found = {key: queue.text(key) for key in QUEUE_KEYS if key in queue.values}
    queue.end(QUEUE_KEYS)
    return found


def parameters_of(table: Table) -> dict[str, str]:
    """Parameters of a device of ours."""
    parameters = table.table("parameters", optional=True)
    return {key: parameters.text(key) for key in list(parameters.values)}


def load_parameters(paper: str = "") -> tuple[tuple[Parameter, ...], tuple[Choice, ...]]:
    """What configs/workloads/parameters.toml says, or that of a paper."""
    table = tables.toml(tables.path(f"papers/{paper}/parameters" if paper else "workloads/parameters"))
    parameters, choices = [], []
    for number, item in enumerate(table.array("parameter"), 1):
        one = Table(table.file, item if isinstance(item, dict) else {}, f"parameter {number}: ")
        variable, reason = one.text("variable"), one.text("reason")
        workloads = tuple(str(pattern) for pattern in one.array("workloads"))
        values = {}
        for profile in list(one.values):
            column = one.take(profile)
            by_device = column if isinstance(column, dict) else {"": column}
            try:
                values[profile] = {str(key): parse_bytes(value) for key, value in by_device.items()}
            except ValueError as error:
                raise one.error(profile, error, "must be a whole number, or one with k, m or g") from None
        parameters.append(Parameter(variable, workloads, reason, values))
    for number, item in enumerate(table.array("choice"), 1):
        one = Table(table.file, item if isinstance(item, dict) else {}, f"choice {number}: ")
        patterns = tuple(one.texts("workloads", optional=True)) or ("*",)
        choices.append(Choice(one.text("what"), one.text("value"), one.text("reason"), patterns))
        one.end(("what", "value", "reason", "workloads"))
    table.end(("parameter", "choice"))
    return tuple(parameters), tuple(choices)


def load_profile(name: str, virtual: bool = False) -> Profile:
    """A profile. virtual: with what its table [virtual] says instead, where time is. Raises ConfigError."""
    table = tables.read("profiles", name)
    area, files, store = table.table("area"), table.table("files"), table.table("store")
    size = files.table("size")
    instead, rounds = table.table("virtual", optional=True), table.table("rounds", optional=True)
    if virtual and not instead.values:
        raise ConfigError(f"profile={name}: has no times for virtual time ([virtual]); use quick, or --clock real")
    if virtual:
        for part, key in ((area, "area"), (files, "files")):
            part.values.update(instead.table(key, optional=True).values)
        reads, writes = instead.table("reads", optional=True), instead.table("writes", optional=True)
        slowdown = instead.table("slowdown")
        table.values.update(instead.values)
    slow, singled = files.table("writes", optional=True), files.table("workloads", optional=True)
    profile = Profile(
        name=name,
        repetitions=table.integer("repetitions", 1),
        max_repetitions=table.integer("max_repetitions", 1),
        half_width=table.number("half_width"),
        ramp_s=table.number("ramp_s"),
        runtime_s=table.number("runtime_s", 0.1),
        interval_ms=table.integer("interval_ms", 10),
        workload_interval_ms=table.integer("workload_interval_ms", 5),
        reuse_system=table.boolean("reuse_system"),
        dirty_bytes=table.size("dirty_bytes", 0),
        dirty_background_bytes=table.size("dirty_background_bytes", 0),
        memory_bytes=table.size("memory_bytes", 0),
        overhead_s=table.number("overhead_s"),
        bring_up_s=table.number("bring_up_s"),
        area={key: area.size(key, 1 << 20) for key in list(area.values)},
        files=FilesProfile(
            ramp_s=files.number("ramp_s"),
            runtime_s=files.number("runtime_s", 0.1),
            macro_runtime_s=files.number("macro_runtime_s", 0.1),
            memory_bytes=files.size("memory_bytes", 1 << 28),
            dirty_bytes=files.size("dirty_bytes", 0),
            dirty_background_bytes=files.size("dirty_background_bytes", 0),
            overhead_s=files.number("overhead_s"),
            size={key: size.size(key, 1 << 28) for key in list(size.values)},
            unscaled_dirty_bytes=files.size("unscaled_dirty_bytes", 0) if "unscaled_dirty_bytes" in files.values else 0,
            writes={key: _times(slow.table(key)) for key in list(slow.values)},
            workloads={key: _times_by_device(singled.table(key)) for key in list(singled.values)},
        ),
        store=StoreProfile(
            repetitions=store.integer("repetitions", 1),
            runtime_s=store.integer("runtime_s", 1),
            size=store.size("size", 1 << 26),
            files_size=store.size("files_size", 1 << 28),
            overhead_s=store.number("overhead_s"),
        ),
    )
    if rounds.values:
        profile = dataclasses.replace(profile, rounds={key: rounds.integer(key, 1) for key in ROUNDS})
        rounds.end(ROUNDS)
        if profile.rounds["window"] < LEAST_WINDOW or profile.rounds["most"] < profile.rounds["window"]:
            raise rounds.error("window", profile.rounds["window"], f"must be from {LEAST_WINDOW} to most")
    if virtual:
        ramp_s, runtime_s = reads.number("ramp_s"), reads.number("runtime_s", 0.1)
        profile = dataclasses.replace(profile, read_ramp_s=ramp_s, read_runtime_s=runtime_s)
        reads.end(("ramp_s", "runtime_s"))
        profile = dataclasses.replace(profile, writes={key: _times(writes.table(key), *LIMITS) for key in profile.area})
        writes.end(tuple(profile.area))
        known = (*profile.area, BUSY)
        profile = dataclasses.replace(profile, slowdown={key: slowdown.number(key, 1) for key in known})
        slowdown.end(known)
    table.end([name for name in Profile.__dataclass_fields__ if name not in NOT_IN_FILES])
    if profile.max_repetitions < profile.repetitions:
        raise table.error("max_repetitions", profile.max_repetitions, f"must be at least {profile.repetitions}")
    files.end(tuple(FilesProfile.__dataclass_fields__))
    store.end(tuple(StoreProfile.__dataclass_fields__))
    for key, value in (("size", profile.store.size), ("files_size", profile.store.files_size)):
        if value % (1 << 20):
            raise store.error(key, value, "must be a multiple of 1048576 (1 MiB)")
    for part, values in ((area, profile.area), (size, profile.files.size)):
        for key, value in values.items():
            if value % (1 << 20):
                raise part.error(key, value, "must be a multiple of 1048576 (1 MiB)")
    if set(profile.area) != set(profile.files.size):
        raise files.error("size", "", "must name the same devices as area")
    for part, dirty, background in (
        (table, profile.dirty_bytes, profile.dirty_background_bytes),
        (files, profile.files.dirty_bytes, profile.files.dirty_background_bytes),
    ):
        if bool(dirty) != bool(background):
            raise part.error("dirty_bytes", dirty, "set both dirty limits, or both to 0")
    return profile


def _times_by_device(table: Table) -> dict[str, dict[str, float]]:
    return {key: _times(table.table(key)) for key in list(table.values)}


def _times(table: Table, *limits: str) -> dict[str, float]:
    """How long, and limits in bytes."""
    found = {"ramp_s": table.number("ramp_s"), "runtime_s": table.number("runtime_s", 0.1)}
    found |= {name: table.size(name, 1) for name in limits}
    table.end((*TIMES, *limits))
    return found
