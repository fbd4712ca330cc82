# SPDX-License-Identifier: BSD-3-Clause
"""The numbers of a paper beside ours, cell by cell: whether they can be compared, and whether they agree.

Where a paper prints no intervals, its means are assumed to have the half widths that the paper allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from .compare import environments
from .papers import Paper, PaperDevice
from .statistics import Interval
from .summaries import SIMULATED, Campaign
from .table import CPU, METRICS, NATIVE, RATE, SYSTEMS, Cell, CellKey, Metric, Table, half_width_limit, ordered

ROUNDING = {True: 0.5, False: 0.05}  # of a printed difference: points of CPU; %
MARGIN = 2.0  # of the comparison, in half widths that the paper allows its means
BLOCKS = 1  # number of the table of block devices


class Verdict(Enum):
    """Verdict on one of the paper's numbers. The first four also judge the shape of cells that cannot be compared."""

    AGREES = "agrees"
    SAME = "same sign and order"
    DIFFERS = "differs"
    UNDECIDED = "undecided"
    NOT_COMPARABLE = "not comparable"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class PaperCell:
    """A number of the paper's and ours. bound: half width that the paper's may have; margin: of the comparison.

    suite: of ours, with the table; device: the paper's; host: where ours was measured.
    shape: what the verdict would be if it could be compared, None where nothing was measured. reasons: why it cannot.
    base: as the table's.
    """

    table: int
    suite: str
    host: str
    device: str
    workload: str
    system: str
    metric: Metric
    paper: float
    bound: float
    margin: float
    ours: Interval | None
    n: int
    verdict: Verdict
    shape: Verdict | None
    reasons: tuple[str, ...]
    base: str = NATIVE

    @property
    def absolute(self) -> bool:
        """Is it a mean, and no difference to another system?"""
        return self.base in ("", self.system)


# ---- numbers ------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """A value and how far it may be from the truth on either side."""

    low: float
    value: float
    high: float

    def clear_of(self, other: Span) -> int:
        """-1 if all of it is below the other, 1 if above, 0 if they overlap."""
        return -1 if self.high < other.low else 1 if self.low > other.high else 0


def span_of(interval: Interval) -> Span:
    """What has no interval, such as a single run, may be anywhere."""
    low, high = interval.low, interval.high
    if low is None or high is None:
        return Span(-math.inf, interval.value, math.inf)
    return Span(low, interval.value, high)


def _bound(metric: Metric, table: Table, device: str, workload: str, system: str, value: float) -> float:
    """Half width that a number of the paper's may have, with its rounding.

    A difference has the uncertainty of both means, taken as independent.
    """
    limit = half_width_limit(metric, device, workload, 1.0, files=table.number != BLOCKS)
    if table.absolute(system):
        return limit if metric.points else abs(value) * limit
    if metric.points:
        return limit * math.sqrt(2) + ROUNDING[True]
    return (100 + value) * limit * math.sqrt(2) + ROUNDING[False]


def paper_span(table: Table, device: str, workload: str, system: str, metric: Metric) -> Span | None:
    """One of the paper's numbers with its interval, or the half width that it may have."""
    interval = table.printed(system, table.cell(device, workload, system, metric))
    if interval is None:
        return None
    if interval.half is not None:
        return span_of(interval)
    bound = _bound(metric, table, device, workload, system, interval.value)
    return Span(interval.value - bound, interval.value, interval.value + bound)


def equivalence_margin(
    metric: Metric, table: int, device: str, workload: str, value: float, absolute: bool = False
) -> float:
    """How far from one of the paper's numbers a number of ours counts as the same, in the number's unit.

    Twice the half width that the paper allows its means: 10 % of an absolute value or of what is left of it (writes to
    NVMe in Table 1: 20 %), 10 points of CPU. table: its number.
    """
    limit = MARGIN * half_width_limit(metric, device, workload, 1.0, files=table != BLOCKS)
    if metric.points:
        return limit
    return limit * abs(value if absolute else 100 + value)


ZERO = Span(0.0, 0.0, 0.0)


def judge_cell(ours: Table, paper: Table, device: str, workload: str, system: str, metric: Metric) -> Verdict | None:
    """Agreement of a cell, whether it can be compared or not; None where we have nothing.

    Two one-sided tests of half the error each: the interval lies within the margin around the paper's number, or
    beyond it. What does neither, or is wider than the margin, is undecided.
    """
    interval = paper.printed(system, ours.cell(device, workload, system, metric))
    theirs = paper_span(paper, device, workload, system, metric)
    if interval is None or theirs is None:
        return None
    mine = span_of(interval)
    absolute = paper.absolute(system)
    margin = equivalence_margin(metric, paper.number, device, workload, theirs.value, absolute)
    if theirs.value - margin <= mine.low and mine.high <= theirs.value + margin:
        return Verdict.AGREES
    if not mine.clear_of(Span(theirs.value - margin, theirs.value, theirs.value + margin)):
        return Verdict.UNDECIDED
    if absolute or mine.clear_of(ZERO) * theirs.clear_of(ZERO) < 0:
        return Verdict.DIFFERS
    for other in ours.systems:
        rival = ours.cell(device, workload, other, metric).difference
        theirs_rival = paper_span(paper, device, workload, other, metric)
        if other == system or paper.absolute(other) or rival is None or theirs_rival is None:
            continue
        if mine.clear_of(span_of(rival)) * theirs.clear_of(theirs_rival) < 0:
            return Verdict.DIFFERS
    if interval.half is None or interval.half > margin:
        return Verdict.UNDECIDED
    return Verdict.SAME if mine.clear_of(ZERO) == theirs.clear_of(ZERO) else Verdict.DIFFERS


# ---- what can be compared --------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """What decides whether a host's numbers can be compared. models: of the devices, by id. turning: the hard disks."""

    emulated: str  # as Run.emulated
    profile: str
    kernel: str
    packages: Mapping[str, str]
    cpus: int
    models: Mapping[str, str]
    turning: frozenset[str]

    @property
    def simulated(self) -> bool:
        """By a model, in virtual time."""
        return self.emulated.startswith(SIMULATED)

    def differences(self, other: Place) -> list[str]:
        """What tells the two apart; another model of a device, only if both have the device."""
        names = [
            name
            for name in ("emulated", "profile", "kernel", "packages", "cpus")
            if getattr(self, name) != getattr(other, name)
        ]
        devices = self.models.keys() & other.models.keys()
        return names + [f"model of {name}" for name in sorted(devices) if self.models[name] != other.models[name]]

    def with_devices_of(self, other: Place) -> Place:
        """The same place, with the devices of both."""
        return replace(self, models={**self.models, **other.models}, turning=self.turning | other.turning)


def _models(environment: Mapping[str, Any]) -> dict[str, str]:
    devices = environment.get("devices", {})
    if not isinstance(devices, Mapping):
        return {}
    return {name: str(one.get("model", "")) for name, one in devices.items() if isinstance(one, Mapping)}


def places(campaign: Campaign) -> dict[str, Place]:
    """By host."""
    found = {}
    known = environments(campaign)
    for host in dict.fromkeys(run.host for run in campaign.runs):
        run = next(run for run in campaign.runs if run.host == host)
        environment = known[run.machine or run.host]
        packages = environment.get("packages", {})
        packages = dict(packages) if isinstance(packages, Mapping) else {}
        cpus = int(environment.get("cpus") or 0)
        models = _models(environment)
        # A virtual disk says that it turns; a real one has a model.
        turning = {name for name, model in models.items() if model and not run.emulated and _turns(environment, name)}
        found[host] = Place(run.emulated, run.profile, run.kernel, packages, cpus, models, frozenset(turning))
    return found


def _turns(environment: Mapping[str, Any], device: str) -> bool:
    return environment["devices"][device].get("rotational") is True


def _upstream(version: str) -> str:
    """The upstream part of a Debian version."""
    return version.split(":", 1)[-1]


def reasons_against(whole: Paper, place: Place | None, system: str, device: str, absolute: bool) -> tuple[str, ...]:
    """Why a system's numbers from a place cannot be compared with the paper's on its device. absolute: of PaperCell."""
    if place is None:
        return ("unknown host",)
    reasons = []
    paper, stand_in = whole.environment, whole.devices[device]
    if place.emulated:
        reasons.append("simulated" if place.simulated else "emulated device")
    elif absolute and paper["device"].get(device, "?") not in place.models.get(stand_in.ours, ""):
        reasons.append(f"another {stand_in.title} device")
    if place.profile != paper["profile"]:
        reasons.append(f"profile {place.profile}")
    if not place.kernel.startswith(tuple(paper["kernel_same"])):
        reasons.append(f"Linux {place.kernel}, not {paper['kernel']}")
    cpus = paper["cpus"].get(device, place.cpus)
    if place.cpus != cpus and not place.emulated:
        reasons.append(f"{place.cpus or 'unknown'} CPUs, not {cpus}")
    if system in paper["instead"]:
        reasons.append(paper["instead"][system])
    elif framework := paper["framework"].get(system):
        found = [_upstream(place.packages[name]) for name in framework["packages"] if name in place.packages]
        if not any(version.startswith(tuple(framework["same"])) for version in found):
            shown = found[0] if found else "of unknown version"
            reasons.append(f"{SYSTEMS.get(system, system)} {shown}, not {framework['version']}")
    return tuple(reasons)


def _stands_for(device: str, theirs: PaperDevice, place: Place | None) -> bool:
    """Is a device of ours at a place what one of the paper's is compared with?"""
    turning = place is not None and device in place.turning
    return theirs.ours in ("", device) and theirs.rotational in (None, turning)


def of_all_hosts(
    tables: Sequence[Table],
    devices: Mapping[str, PaperDevice],
    where: Mapping[str, Place],
    reasons_of: Callable[[str, str, str], tuple[str, ...]],
    cpus: Mapping[str, int],
) -> tuple[Table | None, dict[str, str]]:
    """
    One table of the paper's devices, and the host of each: where least speaks against a comparison. cpus: that the
    paper's machine has with each device.
    """
    chosen: dict[str, Table] = {}
    names: dict[tuple[str, str], str] = {}
    for table in tables:
        for device, theirs in devices.items():
            place = where.get(table.host)
            own = next((own for own, _ in table.rows if _stands_for(own, theirs, place)), None)
            if own is None:
                continue
            best = chosen.get(device)
            if best is None or len(reasons_of(table.host, NATIVE, device)) < len(reasons_of(best.host, NATIVE, device)):
                chosen[device] = table
                names = {key: name for key, name in names.items() if name != device} | {(table.host, own): device}
    if not chosen:
        return None, {}
    parts = list({table.host: table for table in chosen.values()}.values())
    cells = {
        (names[table.host, key[0]], *key[1:]): _of_machine(cell, key, where.get(table.host), cpus)
        for table in parts
        for key, cell in table.cells.items()
        if (table.host, key[0]) in names
    }
    rows = tuple(
        (names[table.host, own], workload)
        for table in parts
        for own, workload in table.rows
        if (table.host, own) in names
    )
    systems = ordered((system for table in parts for system in table.systems), SYSTEMS)
    hosts = {device: table.host for device, table in chosen.items()}
    return replace(parts[0], rows=rows, systems=systems, cells=cells), hosts


def _of_machine(cell: Cell, key: CellKey, place: Place | None, cpus: Mapping[str, int]) -> Cell:
    """
    A cell of ours in the paper's unit: CPU use is a share of all CPUs. The lab in virtual time has one, on which the
    threads of the paper's machine run.
    """
    device, _, _, metric = key
    if metric != CPU.id or place is None or not place.simulated or device not in cpus:
        return cell
    share = place.cpus / cpus[device]
    mean, difference = (one and one.scaled(share, 0.0) for one in (cell.mean, cell.difference))
    return replace(cell, mean=mean, difference=difference)


def compared(
    ours: Table | None,
    paper: Table,
    suite: str,
    hosts: Mapping[str, str],
    reasons_of: Callable[[str, str, str], tuple[str, ...]],
) -> Iterator[PaperCell]:
    """hosts: of ours, by device. suite: of ours."""
    for (device, workload, system, name), cell in paper.cells.items():
        interval = paper.printed(system, cell)
        if interval is None:
            continue
        metric = next(metric for metric in (*METRICS, RATE) if metric.id == name)
        bound = interval.half
        if bound is None:
            bound = _bound(metric, paper, device, workload, system, interval.value)
        absolute = paper.absolute(system)
        margin = equivalence_margin(metric, paper.number, device, workload, interval.value, absolute)
        mine: Interval | None = None
        shape: Verdict | None = None
        reasons: tuple[str, ...] = ()
        n, verdict = 0, Verdict.NOT_MEASURED
        if ours is not None and device in hosts:
            own: Cell = ours.cell(device, workload, system, metric)
            mine, n = paper.printed(system, own), own.n
            shape = judge_cell(ours, paper, device, workload, system, metric)
            if shape is not None:
                reasons = reasons_of(hosts[device], system, device)
                verdict = Verdict.NOT_COMPARABLE if reasons else shape
        place = (paper.number, suite, hosts.get(device, ""), device, workload, system, metric)
        yield PaperCell(*place, interval.value, bound, margin, mine, n, verdict, shape, reasons, paper.base)
