# SPDX-License-Identifier: BSD-3-Clause
"""Suites, profiles, systems and hosts from configs/*.toml, checked key by key.

Every error is one line: "FILE: KEY=VALUE: what is wrong; remedy". What the keys mean is in docs/extending.md.
"""

from __future__ import annotations

import dataclasses
import re
import string
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .paths import CONFIGS

FIGURE_AXES = ("block_size", "jobs")
FIO_MODES = ("read", "randread", "write", "randwrite")
KINDS = ("native", "buse", "nbdkit", "tcmu", "fuse", "fuse-disk", "ublk", "command", "store")
# What the kernel, or somebody else's server, puts between a program and the device: left out where a part is missing.
LAYERS = ("loop", "dm-linear", "iblock", "nvme-tcp", "vduse")
ENGINES = ("fio", "flow", "failover", "sweep", "store", "attach")
# What harness/attach.py has come and go.
ATTACHED = ("buse", "fuse-disk", "loop", "nbdkit", "tcmu", "ublk", "vduse")
# What can be done to the server of which kinds of systems, by the best way that each has.
EVENTS = {"kill": ("nbdkit", "tcmu", "ublk"), "replace": ("ublk",)}
TIMES = ("before_s", "spread_s", "after_s")
FILE_OPERATIONS = ("createfile", "openfile", "deletefile")
DEVICES = ("passthrough", "null")
UBLK_MODES = ("workers", "uring")
DISKS = ("nbd", "output", "loop")  # how the server of a system of kind command becomes a disk
# What its commands may hold in braces, beside the environment variables that it requires.
PLACEHOLDERS = ("device", "directory", "socket", "pidfile", "mount", "size", "block_size", "threads", "connections")
STORE_DEVICES = ("s3", "s3backer", "nbdkit-s3", "null")
STORE_CLIENTS = ("fio", "kernel", "file")
# In the order in which they are set: the kernel recomputes read-ahead whenever it takes another limit.
QUEUE_KEYS = ("rotational", "nomerges", "rq_affinity", "scheduler", "max_sectors_kb", "read_ahead_kb")


class ConfigError(Exception):
    """Something the user wrote is wrong; one line that says what and what to do."""


@dataclass(frozen=True)
class Workload:
    """One workload of a suite; its id is unique there.

    engine fio: a job with this rw, threads and block_size (bytes). engine flow: configs/workloads/ID.f with the
    variables given per device, which a plan fills in; threads and block_size are 0 where the file alone knows.
    engine store: fio with that many jobs on a device over a store; depth: requests that each has in flight.
    files: the type of the flowop that stands for one file, "" where an operation is a read or a write.
    engine failover: fio while the server ends by event, with the seconds of timing (by profile).
    engine sweep: fio with io_uring past the page cache, depth operations of each thread at once; cpus: as many are
    on line, 0: all.
    engine attach: threads disks come and go at once, until there are depth samples of each measure.
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
    timing: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    depth: int = 0
    cpus: int = 0

    @property
    def alone(self) -> bool:
        """Needs a bring-up of its own: leaves another server than there was, or wants fewer CPUs."""
        return bool(self.event or self.cpus)

    @property
    def writes(self) -> bool:
        return "write" in self.rw


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
    def on_store(self) -> bool:
        """Is what it measures over a store, and not on block devices?"""
        return any(workload.engine == "store" for workload in self.workloads)


@dataclass(frozen=True)
class Parameter:
    """A variable of workload files that the paper does not state, or that a profile scales.

    workloads: patterns of ids. values: by profile, then by device; "" there is every device.
    """

    variable: str
    workloads: tuple[str, ...]
    reason: str
    values: Mapping[str, Mapping[str, int]]

    def value(self, profile: str, device: str) -> int | None:
        column = self.values.get(profile, {})
        return column.get(device, column.get(""))


@dataclass(frozen=True)
class Choice:
    """What the paper leaves open, what is done here, and why."""

    what: str
    value: str
    reason: str


@dataclass(frozen=True)
class FilesProfile:
    """Workloads on a file system: how long, in how much memory (bytes), on file systems of which size (bytes)."""

    ramp_s: int
    runtime_s: int
    macro_runtime_s: int
    memory_bytes: int
    dirty_bytes: int
    dirty_background_bytes: int
    overhead_s: float
    size: Mapping[str, int]

    def seconds(self, workload: Workload) -> int:
        """Measured after the ramp."""
        return self.macro_runtime_s if workload.macro else self.runtime_s


@dataclass(frozen=True)
class StoreProfile:
    """Workloads over a store: on a volume of size bytes."""

    repetitions: int
    runtime_s: int
    size: int
    overhead_s: float


NOT_IN_FILES = ("fixed_warm_up", "instructions", "read_ramp_s", "read_runtime_s")  # at the top of a profile


@dataclass(frozen=True)
class Profile:
    """How long and how often; see configs/profiles. files: for workloads on a file system; store: over a store.

    A cell is measured repetitions times, and again up to max_repetitions times as long as a half width of its
    intervals is over half_width: % of the mean, points for CPU. ramp_s are discarded, and what harness/steady.py
    finds beyond them, unless fixed_warm_up. What is no key of the file: fixed_warm_up is what --warm-up says,
    instructions what --instructions says: an emulated CPU counts them, and nothing is timed.
    interval_ms: of the samples of the machine; series_ms: of the workload's own series. memory_bytes: what the
    programs of block workloads may use, their page cache with it; 0: all that there is.
    read_ramp_s, read_runtime_s: instead of the others for block workloads that read, where they differ.
    """

    name: str
    repetitions: int
    max_repetitions: int
    half_width: float
    ramp_s: float
    runtime_s: float
    interval_ms: int
    series_ms: int
    keep_up: bool
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

    def of(self, workload: Workload) -> Profile:
        """With the times of a workload on the device in ramp_s and runtime_s."""
        if workload.writes or self.read_ramp_s is None or self.read_runtime_s is None:
            return self
        return dataclasses.replace(self, ramp_s=self.read_ramp_s, runtime_s=self.read_runtime_s)


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

    mode: of ublk: who serves requests. client: of store: fio's or the kernel's NBD client, or a file.
    options, negotiated: of fuse and fuse-disk: the daemon's, and what its status line must say.
    server, stop, file, disk, requires: of kind command, which is commands only (harness/systems/command.py).
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
    negotiated: Mapping[str, str] = field(default_factory=dict)
    server: Sequence[str] = field(default_factory=list)
    stop: Sequence[str] = field(default_factory=list)
    file: str = ""
    disk: str = ""
    requires: Requires = field(default_factory=Requires)

    @property
    def backed(self) -> bool:
        """Does its data lie on the user's device?"""
        return self.device != "null"

    def runs(self, workload: Workload) -> bool:
        """A null device holds no file system nor data, FUSE is no block device, and a store holds no other workload."""
        if (self.kind == "store") != (workload.engine == "store"):
            return False
        if workload.engine == "attach":
            return self.kind in ATTACHED and (not self.backed or self.kind == "loop")
        if workload.event:
            return self.backed and self.kind in EVENTS[workload.event]
        return self.backed if workload.engine == "flow" else self.kind != "fuse"


class Table:
    """One TOML table while it is read: every key is taken once, what is left over is an error."""

    def __init__(self, file: str, values: Mapping[str, object], prefix: str = "") -> None:
        self.file = file
        self.values = dict(values)
        self.prefix = prefix

    def error(self, key: str, value: object, text: str) -> ConfigError:
        return ConfigError(f"{self.file}: {self.prefix}{key}={value}: {text}")

    def take(self, key: str) -> object:
        if key not in self.values:
            raise ConfigError(f"{self.file}: {self.prefix}{key} is missing; add it")
        return self.values.pop(key)

    def text(self, key: str, allowed: Sequence[str] = ()) -> str:
        value = self.take(key)
        if not isinstance(value, str) or (allowed and value not in allowed):
            raise self.error(key, value, f"must be one of {', '.join(allowed)}" if allowed else "must be a string")
        return value

    def integer(self, key: str, minimum: int) -> int:
        value = self.take(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.error(key, value, f"must be an integer of at least {minimum}")
        return value

    def number(self, key: str, minimum: float = 0) -> float:
        value = self.take(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or value < minimum:
            raise self.error(key, value, f"must be a number of at least {minimum:g}")
        return float(value)

    def boolean(self, key: str) -> bool:
        value = self.take(key)
        if not isinstance(value, bool):
            raise self.error(key, value, "must be true or false")
        return value

    def table(self, key: str, optional: bool = False) -> Table:
        value = self.values.pop(key, {}) if optional else self.take(key)
        if not isinstance(value, dict):
            raise self.error(key, value, f"must be a table, written [{key}]")
        return Table(self.file, value, f"{self.prefix}{key}.")

    def array(self, key: str) -> list[object]:
        value = self.take(key)
        if not isinstance(value, list) or not value:
            raise self.error(key, value, "must be a list with at least one value")
        return value

    def texts(self, key: str, optional: bool = False) -> list[str]:
        """A list of strings; of an optional one also without any."""
        if optional and not self.values.get(key):
            self.values.pop(key, None)
            return []
        values = self.array(key)
        for value in values:
            if not isinstance(value, str):
                raise self.error(key, value, "must be a list of strings")
        return [str(value) for value in values]

    def end(self, known: Sequence[str]) -> None:
        for key, value in self.values.items():
            raise self.error(key, value, f"unknown key; known are {', '.join(known)}")


def names(kind: str) -> list[str]:
    """What there is of a kind: "suites", "profiles", "systems" or "hosts"."""
    return sorted(path.stem for path in (CONFIGS / kind).glob("*.toml"))


def description(kind: str, name: str) -> str:
    """What the comment at the top of its file says."""
    lines = []
    for line in (CONFIGS / kind / f"{name}.toml").read_text().splitlines()[1:]:  # the first is the licence
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)


def _read(kind: str, name: str) -> Table:
    path = CONFIGS / kind / f"{name}.toml"
    if name not in names(kind):
        raise ConfigError(f"{kind.removesuffix('s')}={name}: unknown; use one of {', '.join(names(kind))}")
    return _read_file(path, name)


def _read_file(path: Path, name: str) -> Table:
    file = str(path.relative_to(CONFIGS.parent)) if path.is_relative_to(CONFIGS.parent) else str(path)
    try:
        table = Table(file, tomllib.loads(path.read_text()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; name a file that can be read") from None
    if (found := table.text("name")) != name:
        raise table.error("name", found, f"must be the file's name, {name}")
    return table


def parse_block_size(text: str) -> int:
    """Bytes of "4k" or "128k". Raises ValueError."""
    match = re.fullmatch(r"([1-9][0-9]*)([km]?)", text)
    if not match:
        raise ValueError(text)
    size = int(match[1]) << {"": 0, "k": 10, "m": 20}[match[2]]
    if size < 512 or size & (size - 1):
        raise ValueError(text)
    return size


def parse_bytes(value: object) -> int:
    """A whole number, or "64g", "4k". Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = re.fullmatch(r"([1-9][0-9]*)([kmg])", str(value))
    if not match:
        raise ValueError(value)
    return int(match[1]) << {"k": 10, "m": 20, "g": 30}[match[2]]


def _store_suite(table: Table, name: str, profile: str, systems: tuple[str, ...]) -> Suite:
    """Its figures share workloads."""
    latencies = []
    for value in table.array("latencies_ms"):
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 10000:
            raise table.error("latencies_ms", value, "must be a whole number of milliseconds, 0 to 10000")
        latencies.append(value)
    items = table.array("figure")
    table.end(("name", "engine", "latencies_ms", "figure"))
    figures = []
    workloads: dict[str, Workload] = {}
    for number, item in enumerate(items, 1):
        one = Table(table.file, item if isinstance(item, dict) else {}, f"figure {number}: ")
        title, x = one.text("title"), one.text("x", FIGURE_AXES)
        modes = one.table("modes")
        points = one.table(profile)
        for other in list(one.values):  # of other profiles
            one.table(other)
        sizes = points.array("block_sizes")
        depths = _counts(points, "depths")
        jobs = _counts(points, "jobs")
        points.end(("block_sizes", "depths", "jobs"))
        ids = []
        for mode in list(modes.values):
            rw = modes.text(mode, FIO_MODES)
            for depth in depths:
                for count in jobs:
                    for size in sizes:
                        one_id = f"{mode}-{count}th-{size}-d{depth}"
                        block_size = _block_size(points, "block_sizes", size)
                        workloads[one_id] = Workload(one_id, rw, count, block_size, name, "store", depth=depth)
                        ids.append(one_id)
        figures.append(Figure(title, x, tuple(ids)))
    return Suite(name, tuple(workloads.values()), systems, tuple(latencies), tuple(figures))


def load_suite(name: str, profile: str = "quick") -> Suite:
    """The workloads of configs/suites/NAME.toml, in its order; of several suites those of one after the other.

    profile: says how many points a suite has that is drawn over block sizes, jobs and depths.
    """
    table = _read("suites", name)
    systems = tuple(str(system) for system in table.array("systems")) if "systems" in table.values else ()
    if "suites" in table.values:
        parts = [str(part) for part in table.array("suites")]
        table.end(("name", "suites", "systems"))
        workloads = [workload for part in parts for workload in load_suite(part, profile).workloads]
        return Suite(name, tuple(workloads), systems)
    engine = table.text("engine", ENGINES)
    if engine == "failover":
        return Suite(name, tuple(_failover_workloads(name, table)), systems)
    if engine == "sweep":
        return Suite(name, tuple(_sweep_workloads(name, table, profile)), systems)
    if engine == "attach":
        return Suite(name, tuple(_attach_workloads(name, table, profile)), systems)
    if engine == "store":
        return _store_suite(table, name, profile, systems)
    counts = _counts(table, "threads")
    sizes = table.array("block_sizes")
    modes = table.table("modes")
    metadata = table.table("metadata", optional=engine != "flow")
    macro = table.table("macro", optional=engine != "flow")
    table.end(("name", "engine", "threads", "block_sizes", "modes", "metadata", "macro", "suites", "systems"))
    workloads = []
    for mode in list(modes.values):
        rw = modes.text(mode, FIO_MODES)
        for count in counts:
            for size in sizes:
                block_size = _block_size(table, "block_sizes", size)
                workloads.append(Workload(f"{mode}-{count}th-{size}", rw, count, block_size, name, engine))
    if not workloads:
        raise ConfigError(f'{table.file}: modes is empty; add a line such as seq-read = "read"')
    for mode in list(metadata.values):
        files = metadata.text(mode, FILE_OPERATIONS)
        workloads += [Workload(f"{mode}-{n}th", threads=n, suite=name, engine=engine, files=files) for n in counts]
    for mode in list(macro.values):
        files = macro.text(mode, FILE_OPERATIONS)
        workloads.append(Workload(mode, suite=name, engine=engine, files=files, macro=True))
    return Suite(name, tuple(workloads), systems)


def _failover_workloads(suite: str, table: Table) -> Iterator[Workload]:
    """Of the rest of a suite's table: one for each event."""
    events, part = [str(event) for event in table.array("events")], table.table("timing")
    timing = {}
    for profile in list(part.values):
        times = part.table(profile)
        timing[profile] = {key: times.integer(key, 1) for key in TIMES}
        times.end(TIMES)
    table.end(("name", "engine", "systems", "events", "timing"))
    for event in events:
        if event not in EVENTS:
            raise table.error("events", event, f"must be of {', '.join(EVENTS)}")
        yield Workload(event, "randwrite", suite=suite, engine="failover", event=event, timing=timing)


def _attach_workloads(suite: str, table: Table, profile: str) -> Iterator[Workload]:
    """Of the rest of a suite's table: one for each number of disks."""
    disks, part = _counts(table, "disks"), table.table("samples")
    samples = part.integer(profile, 1)
    table.end(("name", "engine", "systems", "disks", "samples"))
    for count in disks:
        yield Workload(f"{count}-disks", threads=count, suite=suite, engine="attach", depth=samples)


def _counts(table: Table, key: str) -> list[int]:
    counts = []
    for count in table.array(key):
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise table.error(key, count, "must be an integer of at least 1")
        counts.append(count)
    return counts


def _block_size(table: Table, key: str, value: object) -> int:
    try:
        return parse_block_size(str(value))
    except ValueError:
        raise table.error(key, value, "must be a power of two of at least 512, as in 4k or 128k") from None


def _sweep_workloads(suite: str, table: Table, profile: str) -> Iterator[Workload]:
    """Of the rest of a suite's table."""
    part, points, scaling = table.table("modes"), table.table("points"), table.table("scaling")
    modes = {mode: part.text(mode, FIO_MODES) for mode in list(part.values)}
    grid = points.table(profile)
    for other in list(points.values):  # of other profiles
        points.table(other)
    jobs, depths = _counts(grid, "jobs"), _counts(grid, "depths")
    sizes = [(str(size), _block_size(grid, "block_sizes", size)) for size in grid.array("block_sizes")]
    grid.end(("jobs", "depths", "block_sizes"))
    depth, size = scaling.integer("depth", 1), _block_size(scaling, "block_size", scaling.text("block_size"))
    cpus = _counts(scaling, "cpus")
    scaling.end(("depth", "block_size", "cpus"))
    table.end(("name", "engine", "systems", "modes", "points", "scaling"))
    for mode, rw in modes.items():
        for count in jobs:
            for at_once in depths:
                for text, block in sizes:
                    name = f"{mode}-{count}j-{at_once}d-{text}"
                    yield Workload(name, rw, count, block, suite, "sweep", depth=at_once)
        for count in cpus:
            yield Workload(f"{mode}-{count}cpu", rw, count, size, suite, "sweep", depth=depth, cpus=count)


def load_parameters() -> tuple[tuple[Parameter, ...], tuple[Choice, ...]]:
    """What configs/workloads/parameters.toml says."""
    path = CONFIGS / "workloads/parameters.toml"
    file = str(path.relative_to(CONFIGS.parent))
    try:
        table = Table(file, tomllib.loads(path.read_text()))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    parameters, choices = [], []
    for number, item in enumerate(table.array("parameter"), 1):
        one = Table(file, item if isinstance(item, dict) else {}, f"parameter {number}: ")
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
        one = Table(file, item if isinstance(item, dict) else {}, f"choice {number}: ")
        choices.append(Choice(one.text("what"), one.text("value"), one.text("reason")))
        one.end(("what", "value", "reason"))
    table.end(("parameter", "choice"))
    return tuple(parameters), tuple(choices)


def load_profile(name: str, virtual: bool = False) -> Profile:
    """A profile. virtual: with what its table [virtual] says instead, where time is. Raises ConfigError."""
    table = _read("profiles", name)
    area, files, store = table.table("area"), table.table("files"), table.table("store")
    size = files.table("size")
    instead = table.table("virtual", optional=True)
    if virtual and not instead.values:
        raise ConfigError(f"profile={name}: has no times for virtual time ([virtual]); use quick, or --clock real")
    if virtual:
        for part, key in ((area, "area"), (files, "files")):
            part.values.update(instead.table(key, optional=True).values)
        reads = instead.table("reads", optional=True)
        table.values.update(instead.values)
    profile = Profile(
        name=name,
        repetitions=table.integer("repetitions", 1),
        max_repetitions=table.integer("max_repetitions", 1),
        half_width=table.number("half_width"),
        ramp_s=table.number("ramp_s"),
        runtime_s=table.number("runtime_s", 0.1),
        interval_ms=table.integer("interval_ms", 10),
        series_ms=table.integer("series_ms", 5),
        keep_up=table.boolean("keep_up"),
        dirty_bytes=table.integer("dirty_bytes", 0),
        dirty_background_bytes=table.integer("dirty_background_bytes", 0),
        memory_bytes=table.integer("memory_bytes", 0),
        overhead_s=table.number("overhead_s"),
        bring_up_s=table.number("bring_up_s"),
        area={key: area.integer(key, 1 << 20) for key in list(area.values)},
        files=FilesProfile(
            ramp_s=files.integer("ramp_s", 0),
            runtime_s=files.integer("runtime_s", 1),
            macro_runtime_s=files.integer("macro_runtime_s", 1),
            memory_bytes=files.integer("memory_bytes", 1 << 28),
            dirty_bytes=files.integer("dirty_bytes", 0),
            dirty_background_bytes=files.integer("dirty_background_bytes", 0),
            overhead_s=files.number("overhead_s"),
            size={key: size.integer(key, 1 << 28) for key in list(size.values)},
        ),
        store=StoreProfile(
            repetitions=store.integer("repetitions", 1),
            runtime_s=store.integer("runtime_s", 1),
            size=store.integer("size", 1 << 26),
            overhead_s=store.number("overhead_s"),
        ),
    )
    if virtual:
        ramp_s, runtime_s = reads.number("ramp_s"), reads.number("runtime_s", 0.1)
        profile = dataclasses.replace(profile, read_ramp_s=ramp_s, read_runtime_s=runtime_s)
        reads.end(("ramp_s", "runtime_s"))
    table.end([name for name in Profile.__dataclass_fields__ if name not in NOT_IN_FILES])
    if profile.max_repetitions < profile.repetitions:
        raise table.error("max_repetitions", profile.max_repetitions, f"must be at least {profile.repetitions}")
    files.end(tuple(FilesProfile.__dataclass_fields__))
    store.end(tuple(StoreProfile.__dataclass_fields__))
    if profile.store.size % (1 << 20):
        raise store.error("size", profile.store.size, "must be a multiple of 1048576 (1 MiB)")
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


def load_system(name: str) -> SystemConfig:
    table = _read("systems", name)
    kind = table.text("kind", (*KINDS, *LAYERS))
    if kind == "native":
        table.end(("name", "kind"))
        return SystemConfig(name, kind)
    if kind == "command":
        return _command_system(name, table)
    if kind in LAYERS:
        queue = table.table("queue", optional=True)
        null = kind == "vduse" and "device" in table.values
        system = SystemConfig(
            name=name,
            kind=kind,
            device=table.text("device", ("null",)) if null else "",
            queue={key: queue.text(key) for key in QUEUE_KEYS if key in queue.values},
        )
        queue.end(QUEUE_KEYS)
        table.end(("name", "kind", "queue", *(("device",) if kind == "vduse" else ())))
        return system
    if kind in ("fuse", "fuse-disk"):
        negotiated = table.table("negotiated")
        # A file is no block device: it holds no data that a workload could have of a device below.
        of_device = ("device", "threads") if kind == "fuse-disk" else ()
        system = SystemConfig(
            name=name,
            kind=kind,
            device=table.text("device", ("null",)) if of_device else "",
            threads=table.integer("threads", 1) if of_device else 0,
            options=table.texts("options", optional=True),
            negotiated={key: negotiated.text(key) for key in list(negotiated.values)},
        )
        table.end(("name", "kind", *of_device, "options", "negotiated"))
        return system
    parameters = table.table("parameters", optional=True)
    if kind == "store":
        system = SystemConfig(
            name=name,
            kind=kind,
            device=table.text("device", STORE_DEVICES),
            client=table.text("client", STORE_CLIENTS),
            threads=table.integer("threads", 1),
            parameters={key: parameters.text(key) for key in list(parameters.values)},
        )
        if (system.device == "s3backer") != (system.client == "file"):
            raise table.error("client", system.client, 'must be "file" for s3backer and only for it')
        table.end(("name", "kind", "device", "client", "threads", "parameters"))
        return system
    queue = table.table("queue", optional=True)
    system = SystemConfig(
        name=name,
        kind=kind,
        device=table.text("device", DEVICES),
        connections=table.integer("connections", 1) if kind == "nbdkit" else 0,
        threads=1 if kind == "buse" else table.integer("threads", 1),
        timeout_s=0 if kind == "ublk" else table.integer("timeout_s", 1),
        mode=table.text("mode", UBLK_MODES) if kind == "ublk" else "",
        queue={key: queue.text(key) for key in QUEUE_KEYS if key in queue.values},
        parameters={key: parameters.text(key) for key in list(parameters.values)},
    )
    queue.end(QUEUE_KEYS)
    command_keys = ("server", "stop", "file", "disk", "requires")
    table.end([key for key in SystemConfig.__dataclass_fields__ if key not in command_keys])
    return system


COMMAND_KEYS = ("name", "kind", "server", "disk", "backed", "connections", "threads", "timeout_s", "file", "stop")


def _command_system(name: str, table: Table) -> SystemConfig:
    """A system that is commands only."""
    server, disk = table.texts("server"), table.text("disk", DISKS)
    asked = table.table("requires", optional=True)
    requires = Requires(
        programs=asked.texts("programs", optional=True) or [server[0]],
        modules=asked.texts("modules", optional=True),
        environment=asked.texts("environment", optional=True),
        packages=asked.texts("packages", optional=True),
        hint=asked.text("hint") if "hint" in asked.values else "",
    )
    asked.end(tuple(Requires.__dataclass_fields__))
    queue = table.table("queue", optional=True)
    system = SystemConfig(
        name=name,
        kind="command",
        device="passthrough" if table.boolean("backed") else "null",
        connections=table.integer("connections", 1) if disk == "nbd" else 0,
        threads=table.integer("threads", 1) if "threads" in table.values else 1,
        timeout_s=table.integer("timeout_s", 1) if disk == "nbd" else 0,
        queue={key: queue.text(key) for key in QUEUE_KEYS if key in queue.values},
        server=server,
        stop=table.texts("stop", optional=True),
        file=table.text("file") if disk == "loop" else "",
        disk=disk,
        requires=requires,
    )
    queue.end(QUEUE_KEYS)
    table.end((*COMMAND_KEYS, "queue", "requires"))
    allowed = (*PLACEHOLDERS, *requires.environment)
    for key, words, more in (("server", server, ()), ("stop", system.stop, ("disk",)), ("file", [system.file], ())):
        for word in words:
            for used in _placeholders(table, key, word):
                if used not in (*allowed, *more):
                    known = ", ".join(f"{{{one}}}" for one in (*allowed, *more))
                    raise table.error(key, word, f"{{{used}}} is unknown; use one of {known}")
    if disk == "nbd" and not any("{socket}" in word for word in server):
        raise table.error("server", server, "disk=nbd needs {socket} in it")
    return system


def _placeholders(table: Table, key: str, word: str) -> list[str]:
    try:
        return [name for _, name, _, _ in string.Formatter().parse(word) if name is not None]
    except ValueError as error:
        raise table.error(key, word, f"{error}; write {{{{ and }}}} for braces of its own") from None


@dataclass(frozen=True)
class Host:
    """One machine of a campaign on several. address: for ssh; id: in the results; confirm: per device."""

    id: str
    address: str
    devices: Mapping[str, str]
    confirm: Mapping[str, str]


@dataclass(frozen=True)
class Hosts:
    """Machines that run a campaign side by side. userblk: the checkout, or the prefix it is installed below, on each.

    directory: where each keeps its part of campaigns until it is fetched. ssh: the command and its options.
    """

    name: str
    userblk: str
    directory: str
    ssh: Sequence[str]
    hosts: Sequence[Host]


def load_hosts(name: str) -> Hosts:
    """Of configs/hosts/NAME.toml, or of a file of the user's own, which has a / or .toml in its name."""
    own = "/" in name or name.endswith(".toml")
    table = _read_file(Path(name).absolute(), Path(name).stem) if own else _read("hosts", name)
    found = []
    for address in table.texts("hosts"):
        part = table.table(address, optional=False)
        devices = {key: part.text(key) for key in ("sata", "nvme") if key in part.values}
        if not devices:
            raise ConfigError(f"{table.file}: {address}: names no device; add sata = or nvme =")
        confirm = part.table("confirm")
        host = Host(
            id=part.text("id") if "id" in part.values else re.sub(r"[^a-z0-9.-]", "-", address.split("@")[-1].lower()),
            address=address,
            devices=devices,
            confirm={key: confirm.text(key) for key in devices},
        )
        confirm.end(tuple(devices))
        part.end(("id", "sata", "nvme", "confirm"))
        found.append(host)
    if len({host.id for host in found}) < len(found):
        raise ConfigError(f"{table.file}: hosts: two have the same id; give them different ones with id =")
    hosts = Hosts(
        name=table.file,
        userblk=table.text("userblk"),
        directory=table.text("directory") if "directory" in table.values else "/var/lib/userblk",
        ssh=table.texts("ssh", optional=True) or ["ssh"],
        hosts=found,
    )
    table.end(("name", "userblk", "directory", "ssh", "hosts"))
    return hosts
