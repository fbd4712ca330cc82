# SPDX-License-Identifier: BSD-3-Clause
"""A campaign's plan: which cells run, in which order, with which seeds.

A round is every cell once. Rounds follow one another, so that slow drift of the machine spreads
over all cells alike; inside a round the order is shuffled from the recorded seed. With keep_up the
unit that is shuffled is the block (device, system), brought up once: reads first, shuffled, on a
zero-filled area, then writes, shuffled, each after a discard. Without it every run is its own block.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from .config import ConfigError, Profile, Suite, SystemConfig, Workload

SCHEMA = 1
FILL_BYTES_PER_S = 500_000_000  # of a zero-fill, for the estimate only
ID = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True)
class Device:
    """A device to measure. path: /dev/..., or $NAME: from the runner's environment (the lab's guest).

    confirm is the serial (or size in bytes, where there is none) that the user repeated.
    """

    id: str
    path: str
    confirm: str


@dataclass(frozen=True)
class Entry:
    """One run. Entries of one block share a bring-up of their system."""

    index: int
    block: int
    device: str
    system: str
    workload: str
    repetition: int
    seed: int


@dataclass(frozen=True)
class Plan:
    """Everything that the runner needs."""

    campaign: str
    host: str
    emulated: bool
    build: str
    seed: int
    suite: Suite
    profile: Profile
    systems: Mapping[str, SystemConfig]
    devices: Mapping[str, Device]
    entries: tuple[Entry, ...]

    def workload(self, entry: Entry) -> Workload:
        return next(w for w in self.suite.workloads if w.id == entry.workload)

    def directory(self, entry: Entry) -> Path:
        """The entry's run directory, relative to the campaign's."""
        cell = Path(self.host, entry.device, self.suite.name, entry.system, entry.workload)
        return cell / str(entry.repetition)

    def blocks(self) -> Iterator[tuple[int, tuple[Entry, ...]]]:
        for number, entries in groupby(self.entries, key=lambda entry: entry.block):
            yield number, tuple(entries)


@dataclass(frozen=True)
class Estimate:
    """seconds; the most bytes that are written to each device, by device id."""

    runs: int
    seconds: float
    bytes_written: Mapping[str, int]


def _pick(kind: str, wanted: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    for name in wanted or ():
        if name not in known:
            raise ConfigError(f"{kind}={name}: unknown; use one of {', '.join(known)}")
    return [name for name in known if wanted is None or name in wanted]


def make_plan(
    *,
    suite: Suite,
    profile: Profile,
    systems: Sequence[SystemConfig],
    devices: Sequence[Device],
    campaign: str,
    build: str,
    host: str | None = None,
    emulated: bool = False,
    seed: int | None = None,
    repetitions: int | None = None,
    workloads: Sequence[str] | None = None,
) -> Plan:
    """Lay a campaign out. build: directory of plugins/ and tcmu-handlers/, relative to the checkout.

    seed None: a new one. repetitions, workloads None: the profile's, all of the suite.
    """
    host = host or re.sub(r"[^a-z0-9._-]", "-", platform.node().lower()) or "host"
    for kind, name in (("campaign", campaign), ("host", host), *(("device", d.id) for d in devices)):
        if not ID.fullmatch(name):
            raise ConfigError(f"{kind}={name}: use lower case letters, digits, '.', '_' and '-'")
    if not systems or not devices:
        raise ConfigError("nothing to run: name at least one system and one device")
    for device in devices:
        if device.id not in profile.area:
            known = ", ".join(profile.area)
            raise ConfigError(f"device={device.id}: profile {profile.name} has no area for it, only for {known}")
    if repetitions is not None:
        if repetitions < 1:
            raise ConfigError(f"repetitions={repetitions}: must be at least 1")
        profile = dataclasses.replace(profile, repetitions=repetitions)
    chosen = _pick("workload", workloads, [w.id for w in suite.workloads])
    suite = dataclasses.replace(suite, workloads=tuple(w for w in suite.workloads if w.id in chosen))
    if seed is None:
        seed = int.from_bytes(os.urandom(4), "big")
    entries = _shuffle(suite, profile, systems, devices, random.Random(seed))
    return Plan(
        campaign=campaign,
        host=host,
        emulated=emulated,
        build=build,
        seed=seed,
        suite=suite,
        profile=profile,
        systems={system.name: system for system in systems},
        devices={device.id: device for device in devices},
        entries=tuple(entries),
    )


def _shuffle(
    suite: Suite,
    profile: Profile,
    systems: Sequence[SystemConfig],
    devices: Sequence[Device],
    rng: random.Random,
) -> list[Entry]:
    reads = [w.id for w in suite.workloads if not w.writes]
    writes = [w.id for w in suite.workloads if w.writes]
    entries: list[Entry] = []
    block = 0
    for repetition in range(1, profile.repetitions + 1):
        pairs = [(device.id, system.name) for device in devices for system in systems]
        if profile.keep_up:
            rng.shuffle(pairs)
            cells = []
            for pair in pairs:
                order = rng.sample(reads, len(reads)) + rng.sample(writes, len(writes))
                cells.append([(*pair, workload) for workload in order])
        else:
            flat = [(*pair, workload) for pair in pairs for workload in reads + writes]
            rng.shuffle(flat)
            cells = [[cell] for cell in flat]
        for group in cells:
            for device, system, workload in group:
                seed = rng.randrange(1, 1 << 31)
                entries.append(Entry(len(entries), block, device, system, workload, repetition, seed))
            block += 1
    return entries


def estimate(plan: Plan) -> Estimate:
    """How long a plan takes and the most that it writes: a write run ends at the latest when its area is full."""
    profile = plan.profile
    seconds = 0.0
    written = dict.fromkeys(plan.devices, 0)
    for _, entries in plan.blocks():
        first = entries[0]
        area = profile.area[first.device]
        backed = plan.systems[first.system].backed
        reads = sum(not plan.workload(entry).writes for entry in entries)
        seconds += profile.bring_up_s
        seconds += len(entries) * (profile.ramp_s + profile.runtime_s + profile.overhead_s)
        if backed:
            written[first.device] += (len(entries) - reads) * area
            if reads:
                written[first.device] += area
                seconds += area / FILL_BYTES_PER_S
    return Estimate(len(plan.entries), seconds, written)


def write_plan(plan: Plan, directory: Path) -> Path:
    """Write directory/plan.json, by rename, and return its path."""
    path = directory / "plan.json"
    temporary = directory / "plan.json.new"
    value = {"schema": SCHEMA, **dataclasses.asdict(plan)}
    temporary.write_text(json.dumps(value, indent=1) + "\n")
    temporary.rename(path)
    return path


def read_plan(path: Path) -> Plan:
    """The plan that write_plan() wrote. Raises ConfigError."""
    try:
        value = json.loads(path.read_text())
        if value.pop("schema") != SCHEMA:
            raise ConfigError(f"{path}: another schema than {SCHEMA}; plan the campaign anew")
        suite = value.pop("suite")
        return Plan(
            suite=Suite(suite["name"], tuple(Workload(**w) for w in suite["workloads"])),
            profile=Profile(**value.pop("profile")),
            systems={key: SystemConfig(**system) for key, system in value.pop("systems").items()},
            devices={key: Device(**device) for key, device in value.pop("devices").items()},
            entries=tuple(Entry(**entry) for entry in value.pop("entries")),
            **value,
        )
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name the plan.json of a campaign") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a plan: {error}; plan the campaign anew") from None
