# SPDX-License-Identifier: BSD-3-Clause
"""Suites, profiles and systems from configs/*.toml, checked key by key.

Every error is one line: "FILE: KEY=VALUE: what is wrong; remedy".
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .paths import CONFIGS

FIO_MODES = ("read", "randread", "write", "randwrite")
KINDS = ("native", "nbdkit", "tcmu")
DEVICES = ("passthrough", "null")
# In the order in which they are set: the kernel recomputes read-ahead whenever it takes another limit.
QUEUE_KEYS = ("rotational", "nomerges", "rq_affinity", "scheduler", "max_sectors_kb", "read_ahead_kb")


class ConfigError(Exception):
    """Something the user wrote is wrong; one line that says what and what to do."""


@dataclass(frozen=True)
class Workload:
    """One fio job: what it does, on how many threads, in which block size (bytes)."""

    id: str
    rw: str
    threads: int
    block_size: int

    @property
    def writes(self) -> bool:
        return "write" in self.rw


@dataclass(frozen=True)
class Suite:
    name: str
    workloads: tuple[Workload, ...]


@dataclass(frozen=True)
class Profile:
    """How long and how often; see configs/profiles."""

    name: str
    repetitions: int
    ramp_s: int
    runtime_s: int
    interval_ms: int
    keep_up: bool
    dirty_bytes: int
    dirty_background_bytes: int
    overhead_s: float
    bring_up_s: float
    area: Mapping[str, int]


@dataclass(frozen=True)
class SystemConfig:
    """How a system is brought up; see configs/systems. device: which of ours it serves, "" for native."""

    name: str
    kind: str
    device: str = ""
    connections: int = 0
    threads: int = 0
    timeout_s: int = 0
    queue: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def backed(self) -> bool:
        """Does its data lie on the user's device?"""
        return self.device != "null"


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

    def number(self, key: str) -> float:
        value = self.take(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
            raise self.error(key, value, "must be a number of at least 0")
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

    def end(self, known: Sequence[str]) -> None:
        for key, value in self.values.items():
            raise self.error(key, value, f"unknown key; known are {', '.join(known)}")


def names(kind: str) -> list[str]:
    """What there is of a kind: "suites", "profiles" or "systems"."""
    return sorted(path.stem for path in (CONFIGS / kind).glob("*.toml"))


def _read(kind: str, name: str) -> Table:
    path = CONFIGS / kind / f"{name}.toml"
    if name not in names(kind):
        raise ConfigError(f"{kind.removesuffix('s')}={name}: unknown; use one of {', '.join(names(kind))}")
    file = str(path.relative_to(CONFIGS.parent))
    try:
        table = Table(file, tomllib.loads(path.read_text()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
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


def load_suite(name: str) -> Suite:
    """The workloads of configs/suites/NAME.toml, in its order."""
    table = _read("suites", name)
    table.text("engine", ("fio",))
    threads = table.array("threads")
    sizes = table.array("block_sizes")
    modes = table.table("modes")
    table.end(("name", "engine", "threads", "block_sizes", "modes"))
    workloads = []
    for mode in list(modes.values):
        rw = modes.text(mode, FIO_MODES)
        for count in threads:
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise table.error("threads", count, "must be an integer of at least 1")
            for size in sizes:
                try:
                    block_size = parse_block_size(str(size))
                except ValueError:
                    message = "must be a power of two of at least 512, as in 4k or 128k"
                    raise table.error("block_sizes", size, message) from None
                workloads.append(Workload(f"{mode}-{count}th-{size}", rw, count, block_size))
    if not workloads:
        raise ConfigError(f"{table.file}: modes is empty; add a line such as seq-read = \"read\"")
    return Suite(name, tuple(workloads))


def load_profile(name: str) -> Profile:
    table = _read("profiles", name)
    area = table.table("area")
    profile = Profile(
        name=name,
        repetitions=table.integer("repetitions", 1),
        ramp_s=table.integer("ramp_s", 0),
        runtime_s=table.integer("runtime_s", 1),
        interval_ms=table.integer("interval_ms", 100),
        keep_up=table.boolean("keep_up"),
        dirty_bytes=table.integer("dirty_bytes", 0),
        dirty_background_bytes=table.integer("dirty_background_bytes", 0),
        overhead_s=table.number("overhead_s"),
        bring_up_s=table.number("bring_up_s"),
        area={key: area.integer(key, 1 << 20) for key in list(area.values)},
    )
    table.end(("name", *Profile.__dataclass_fields__))
    for key, value in profile.area.items():
        if value % (1 << 20):
            raise area.error(key, value, "must be a multiple of 1048576 (1 MiB)")
    if bool(profile.dirty_bytes) != bool(profile.dirty_background_bytes):
        raise table.error("dirty_bytes", profile.dirty_bytes, "set both dirty limits, or both to 0")
    return profile


def load_system(name: str) -> SystemConfig:
    table = _read("systems", name)
    kind = table.text("kind", KINDS)
    if kind == "native":
        table.end(("name", "kind"))
        return SystemConfig(name, kind)
    queue = table.table("queue", optional=True)
    parameters = table.table("parameters", optional=True)
    system = SystemConfig(
        name=name,
        kind=kind,
        device=table.text("device", DEVICES),
        connections=table.integer("connections", 1) if kind == "nbdkit" else 0,
        threads=table.integer("threads", 1),
        timeout_s=table.integer("timeout_s", 1),
        queue={key: queue.text(key) for key in QUEUE_KEYS if key in queue.values},
        parameters={key: parameters.text(key) for key in list(parameters.values)},
    )
    queue.end(QUEUE_KEYS)
    table.end(("name", *SystemConfig.__dataclass_fields__))
    return system
