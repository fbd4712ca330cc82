# SPDX-License-Identifier: BSD-3-Clause
"""A campaign's plan: which cells run, in which order, with which seeds.

A round is every cell once, later (extend()) every cell that needs another run. Rounds follow one another, so that slow
drift of the machine spreads over all cells alike; inside a round the order is shuffled from the recorded seed. With
reuse_system the unit that is shuffled is the block (device, system, suite), brought up once: reads first, shuffled, on
a zero-filled area, then writes, shuffled, each after a discard; workloads on a file system, all shuffled, each on a new
one. Without it every run is its own block.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from ..machine.durable import write_json
from .config import (
    BUSY,
    Figure,
    FilesProfile,
    Profile,
    Requires,
    StoreProfile,
    Suite,
    SystemConfig,
    Workload,
    load_parameters,
)
from .parts import ENGINES, FILL_BYTES_PER_S, KINDS
from .tables import ConfigError

SCHEMA = 4
ID = re.compile(r"[a-z0-9][a-z0-9._-]*")
NO_HOSTS = ("blocks", "cache", "hosts")  # directories beside those of hosts

SIMULATED = "simulated"  # what a campaign is called where its name must not be known
COUNTING = 0  # the repetition in which costs are counted, and no timing is used
SAMPLING = -1  # the one in which the kernel samples where the CPUs are: nor is it used here
EXTRA = {COUNTING: "0", SAMPLING: "perf"}  # those that are in no table, and what their directories are called
COUNTED_AREA = 448 << 20  # bytes of the disk in memory
COUNTED_RUNTIME_S = 2  # of the guest's time: idle is counted in hundredths of a second
COUNTED_SLOWDOWN = 8  # of an emulated CPU that counts, for the estimate only

CellId = tuple[str, str, str, str]  # device, suite, system, workload


@dataclass(frozen=True)
class Device:
    """A device to measure. path: /dev/..., or $NAME: from the runner's environment (the lab's guest).

    confirm is the serial (or size in bytes, where there is none) that the user repeated.
    A store counts as one: path is the file that describes it, "" for one that is started here.
    latency_ms: added to it. identity: what identified it when it was confirmed, "" if it was not here; of a store: what
    the campaign's keys begin with, the same when it is resumed. seen: when and where that holds, ""
    if always.
    """

    id: str
    path: str
    confirm: str
    latency_ms: int = 0
    identity: str = ""
    seen: str = ""


@dataclass(frozen=True)
class Entry:
    """One run. Entries of one block share a bring-up of their system."""

    index: int
    block: int
    device: str
    system: str
    suite: str
    workload: str
    repetition: int
    seed: int

    @property
    def cell(self) -> CellId:
        return self.device, self.suite, self.system, self.workload


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
    model: str = ""  # in virtual time: what is simulated, and which version
    pin_server: str = ""  # CPUs that servers are started on, and workloads; "": any
    pin_client: str = ""

    def workload(self, entry: Entry) -> Workload:
        return next(w for w in self.suite.workloads if (w.suite, w.id) == (entry.suite, entry.workload))

    @property
    def rounds(self) -> int:
        """Without those that are in no table."""
        return max((entry.repetition for entry in self.entries if entry.repetition not in EXTRA), default=0)

    @property
    def with_files(self) -> bool:
        """Does a workload need a file system?"""
        return any(workload.on_files for workload in self.suite.workloads)

    def too_small(self, device: str, path: str, size: int) -> str:
        """What is wrong with a device of so many bytes, "" if nothing is."""
        used = self.used_bytes(device)
        if size >= used:
            return ""
        return f"{path}: has {size} bytes, but profile {self.profile.name} uses {used}; name a larger one"

    def used_bytes(self, device: str) -> int:
        """At the start of a device."""
        engines = {workload.engine for workload in self.suite.workloads}
        return max((ENGINES[engine].used_bytes(self.profile, device) for engine in engines), default=0)

    def directory(self, entry: Entry) -> Path:
        """The entry's run directory, relative to the campaign's."""
        cell = Path(self.host, entry.device, entry.suite, entry.system, entry.workload)
        return cell / EXTRA.get(entry.repetition, str(entry.repetition))

    def blocks(self) -> Iterator[tuple[int, tuple[Entry, ...]]]:
        for number, entries in groupby(self.entries, key=lambda entry: entry.block):
            yield number, tuple(entries)

    def of_block(self, block: int) -> Plan:
        """
        One block of it alone, for a simulated guest, which must not find in it by what the campaign differs from others
        with this block: its name, other systems, how often it repeats.
        """
        entries = tuple(entry for entry in self.entries if entry.block == block)
        names = {entry.system for entry in entries}
        return dataclasses.replace(
            self,
            campaign=SIMULATED,
            entries=entries,
            systems={name: system for name, system in self.systems.items() if name in names},
            profile=dataclasses.replace(self.profile, repetitions=1, max_repetitions=1),
        )


@dataclass(frozen=True)
class Estimate:
    """seconds in all and of each entry; the most bytes that are written to each device, by device id: what
    workloads on file systems write depends on their speed, which is taken to be FILL_BYTES_PER_S."""

    runs: int
    seconds: float
    each: Sequence[float]
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
    model: str = "",
    seed: int | None = None,
    repetitions: int | None = None,
    max_repetitions: int | None = None,
    warm_up_s: int | None = None,
    count_costs: bool = False,
    sample_stacks: bool = False,
    count_instructions: bool = False,
    workloads: Sequence[str] | None = None,
    pin: tuple[str, str] = ("", ""),
) -> Plan:
    """Lay a campaign out. build: directory of plugins/ and tcmu-handlers/, relative to the checkout.

    seed None: a new one. repetitions: just so many; max_repetitions: more than the profile's where intervals are
    wide, at most so many. count_costs: a round before the first in which costs are counted. sample_stacks: one in
    which perf looks on. count_instructions: a round of the first kind alone. pin: CPUs of servers, and of workloads.
    warm_up_s: discarded instead of what is found. workloads: None: all of the suite.
    """
    if host in NO_HOSTS:
        raise ConfigError(f"host={host}: is a directory of each campaign; give it another id")
    host = host or re.sub(r"[^a-z0-9._-]", "-", platform.node().lower()) or "host"
    host = f"host-{host}" if host in NO_HOSTS else host
    for kind, name in (("campaign", campaign), ("host", host), *(("device", d.id) for d in devices)):
        if not ID.fullmatch(name):
            raise ConfigError(f"{kind}={name}: use lower case letters, digits, '.', '_' and '-'")
    if not systems or not devices:
        raise ConfigError("nothing to run: name at least one system and one device")
    if count_instructions:
        profile = _of_counted(profile, suite, devices)
    for device in devices:
        suite.engine.check_device(profile, device.id)
    for workload in suite.workloads if profile.rounds else ():
        if not ENGINES[workload.engine].in_rounds:
            raise ConfigError(f"profile={profile.name}: {workload.suite} has no rounds; use it with suite pts")
    if repetitions is None:
        repetitions = suite.engine.repetitions(profile)
    if repetitions is not None:
        if repetitions < 1:
            raise ConfigError(f"repetitions={repetitions}: must be at least 1")
        profile = dataclasses.replace(profile, repetitions=repetitions, max_repetitions=repetitions)
    if max_repetitions is not None:
        if repetitions is not None:
            raise ConfigError(f"max-reps={max_repetitions}: --reps {repetitions} is honoured exactly; leave one out")
        if max_repetitions < profile.repetitions:
            least = profile.repetitions
            raise ConfigError(
                f"max-reps={max_repetitions}: profile {profile.name} has at least {least}; use --reps for fewer"
            )
        profile = dataclasses.replace(profile, max_repetitions=max_repetitions)
    if warm_up_s is not None:
        writes = _with_ramp(profile.files.writes, warm_up_s)
        singled = {key: _with_ramp(own, warm_up_s) for key, own in profile.files.workloads.items()}
        files = dataclasses.replace(profile.files, ramp_s=warm_up_s, writes=writes, workloads=singled)
        profile = dataclasses.replace(profile, ramp_s=warm_up_s, files=files, fixed_warm_up=True)
        if profile.read_ramp_s is not None:
            writes = _with_ramp(profile.writes, warm_up_s)
            profile = dataclasses.replace(profile, read_ramp_s=warm_up_s, writes=writes)
    chosen = _pick("workload", workloads, list(dict.fromkeys(w.id for w in suite.workloads)))
    if warm_up_s is not None:
        for workload in suite.workloads:
            if workload.id in chosen and (profile.rounds or not ENGINES[workload.engine].has_ramp):
                raise ConfigError(
                    f"warm-up={warm_up_s}: runs of suite {workload.suite} discard none; leave --warm-up out"
                )
        timed = (dataclasses.replace(w, timing=_with_ramp(w.timing, warm_up_s)) for w in suite.workloads)
        suite = dataclasses.replace(suite, workloads=tuple(timed))
    papers = {w.parameters: load_parameters(w.parameters)[0] for w in suite.workloads}
    suite = dataclasses.replace(
        suite,
        workloads=tuple(
            ENGINES[w.engine].with_values(w, profile, papers[w.parameters], [device.id for device in devices])
            for w in suite.workloads
            if w.id in chosen
        ),
        figures=tuple(
            dataclasses.replace(figure, workloads=ids)
            for figure in suite.figures
            if (ids := tuple(name for name in figure.workloads if name in chosen))
        ),
    )
    for workload in suite.workloads:
        if workload.timing and profile.name not in workload.timing:
            raise ConfigError(
                f"configs/suites/{workload.suite}.toml: timing: profile {profile.name} is missing; add it,"
                f" or use one of {', '.join(workload.timing)}"
            )
    for system in systems:
        if not any(system.runs(workload) for workload in suite.workloads):
            raise ConfigError(f"system={system.name}: none of the workloads can run on it; leave it out")
    if seed is None:
        seed = int.from_bytes(os.urandom(4), "big")
    plan = Plan(
        campaign=campaign,
        host=host,
        emulated=emulated,
        build=build,
        seed=seed,
        suite=suite,
        profile=profile,
        systems={system.name: system for system in systems},
        devices={device.id: device for device in devices},
        entries=(),
        model=model,
        pin_server=pin[0],
        pin_client=pin[1],
    )
    if count_costs or count_instructions:
        plan = _round(plan, COUNTING)
    if sample_stacks:
        plan = _round(plan, SAMPLING)
    for _ in range(0 if count_instructions else profile.repetitions):
        plan = extend(plan)
    return plan


def _with_ramp(times: Mapping[str, Mapping[str, float]], ramp_s: float) -> dict[str, dict[str, float]]:
    """Times by device or profile, with that ramp."""
    return {device: {**own, "ramp_s": float(ramp_s)} for device, own in times.items()}


def _of_counted(profile: Profile, suite: Suite, devices: Sequence[Device]) -> Profile:
    """The profile where instructions are counted. Raises ConfigError."""
    for workload in suite.workloads:
        if not ENGINES[workload.engine].counted:
            raise ConfigError(f"suite={suite.name}: instructions are counted of block workloads only; use bdus-block")
    return dataclasses.replace(
        profile,
        ramp_s=0,
        runtime_s=COUNTED_RUNTIME_S,
        read_ramp_s=None,
        writes={},
        overhead_s=COUNTED_SLOWDOWN * profile.overhead_s,
        bring_up_s=COUNTED_SLOWDOWN * profile.bring_up_s,
        area={device.id: COUNTED_AREA for device in devices},
        instructions=True,
    )


def extend(plan: Plan, wanted: Collection[CellId] | None = None) -> Plan:
    """The plan with one round more: of the wanted cells, None: of all. Its order follows from the seed alone."""
    return _round(plan, plan.rounds + 1, wanted)


def _round(plan: Plan, repetition: int, wanted: Collection[CellId] | None = None) -> Plan:
    rng = random.Random(f"{plan.seed} {repetition}")
    profile = plan.profile
    parts = list(dict.fromkeys(workload.suite for workload in plan.suite.workloads))
    of_none = {workload.suite for workload in plan.suite.workloads if not ENGINES[workload.engine].uses_device}
    triples = [
        (device, system, part)
        for number, device in enumerate(plan.devices)
        for system in plan.systems.values()
        for part in parts
        # To the others all devices, or stores, are the same.
        if number == 0 or (KINDS[system.kind].needs_store(system) and part not in of_none)
    ]
    if profile.reuse_system:
        rng.shuffle(triples)
    groups: list[list[CellId]] = []
    ranks: dict[tuple[str, str], int] = {}
    for device, system, part in triples:
        here = [w for w in plan.suite.workloads if w.suite == part and system.runs(w)]
        if repetition in EXTRA:
            here = [w for w in here if not w.load]  # which begins with a capacity in operations a second
        first = [w.id for w in here if ENGINES[w.engine].comes_first(w)]
        then = [w.id for w in here if w.id not in first]
        if profile.reuse_system:
            first, then = rng.sample(first, len(first)), rng.sample(then, len(then))
        ranks |= {(part, w.id): ENGINES[w.engine].rank(w) for w in here}
        first, then = (sorted(ids, key=lambda one: ranks[part, one]) for ids in (first, then))
        group = [(device, part, system.name, workload) for workload in first + then]
        alone = {workload.id for workload in here if workload.alone}
        groups.append([cell for cell in group if cell[3] not in alone])
        groups += [[cell] for cell in group if cell[3] in alone]
    if not profile.reuse_system:
        flat = [cell for group in groups for cell in group]
        rng.shuffle(flat)
        flat.sort(key=lambda cell: ranks[cell[1], cell[3]])
        groups = [[cell] for cell in flat]
    entries = list(plan.entries)
    block = entries[-1].block + 1 if entries else 0
    for group in groups:
        cells = [cell for cell in group if wanted is None or cell in wanted]
        for device, part, name, workload in cells:
            seed = rng.randrange(1, 1 << 31)
            entries.append(Entry(len(entries), block, device, name, part, workload, repetition, seed))
        block += bool(cells)
    return dataclasses.replace(plan, entries=tuple(entries))


def estimate(plan: Plan) -> Estimate:
    """How long a plan takes and what it writes: a block workload ends at the latest when its area is full.

    Only runs that are in it count; with adaptive repetition there may come to be max_repetitions / repetitions as many.
    """
    profile = plan.profile
    slowdown = profile.slowdown if plan.model else {}
    default = COUNTED_SLOWDOWN if profile.instructions else 1
    each: list[float] = []
    written = dict.fromkeys(plan.devices, 0)
    for _, entries in plan.blocks():
        device, system = entries[0].device, plan.systems[entries[0].system]
        workloads = [plan.workload(entry) for entry in entries]
        start = max(ENGINES[workload.engine].start_s(profile) for workload in workloads)
        if system.uses_device and not plan.model and any(ENGINES[one.engine].fills(one) for one in workloads):
            written[device] += profile.area[device]
            start += profile.area[device] / FILL_BYTES_PER_S
        for workload in workloads:
            engine = ENGINES[workload.engine]
            seconds = engine.duration_s(workload, profile.of(workload, device))
            cost = slowdown.get(BUSY if engine.busy else device, default)
            each.append(seconds * cost + engine.overhead_s(profile))
            written[device] += engine.written(workload, profile, device) if system.uses_device else 0
        each[-len(entries)] += start
    return Estimate(len(plan.entries), sum(each), each, written)


def write_plan(plan: Plan, directory: Path, name: str = "plan.json") -> Path:
    """Write a plan to a file in directory, by rename, and return its path."""
    path = directory / name
    write_json(path, {"schema": SCHEMA, **dataclasses.asdict(plan)})
    return path


def read_plan(path: Path) -> Plan:
    """The plan that write_plan() wrote. Raises ConfigError."""
    try:
        value = json.loads(path.read_text())
        if value.pop("schema") != SCHEMA:
            raise ConfigError(f"{path}: another schema than {SCHEMA}; start a new campaign")
        suite, profile = value.pop("suite"), value.pop("profile")
        return Plan(
            suite=Suite(
                name=suite["name"],
                workloads=tuple(Workload(**w) for w in suite["workloads"]),
                systems=tuple(suite["systems"]),
                latencies_ms=tuple(suite["latencies_ms"]),
                figures=tuple(
                    Figure(figure["title"], figure["x"], tuple(figure["workloads"])) for figure in suite["figures"]
                ),
            ),
            profile=Profile(
                **profile | {"files": FilesProfile(**profile["files"]), "store": StoreProfile(**profile["store"])}
            ),
            systems={
                key: SystemConfig(**system | {"requires": Requires(**system["requires"])})
                for key, system in value.pop("systems").items()
            },
            devices={key: Device(**device) for key, device in value.pop("devices").items()},
            entries=tuple(Entry(**entry) for entry in value.pop("entries")),
            **value,
        )
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name the plan.json of a campaign") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a plan: {error}; start a new campaign") from None
