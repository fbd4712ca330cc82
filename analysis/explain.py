# SPDX-License-Identifier: BSD-3-Clause
"""Where the time of a cell goes, as tables: instructions by place and function, and the life of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from userblk.harness.observing.instructions import Place, Profile

from .report import NO_VALUE, Report
from .stages import STAGES, Life
from .table import SYSTEMS

MOST = 12  # functions shown of each system
OF_SAMPLES = (
    "Instructions in all: the CPU's speed times the time in which it was not idle, in a run that nobody looked"
    " at. How they are divided: samples of the CPU each 10 us of another run, by several timers, which wake an idle"
    " CPU.",
    "What runs with interrupts off is found where they are on again: a switch of threads in finish_task_switch.",
)
OF_STAGES = (
    "us, means, of a run with trace points on; requests of the most common kind, others are left out.",
    "Where a kind of request does not pass an event, the stages around it are one. With several requests at a time the"
    " server may come back from a system call for another one: then it received this one later than shown here.",
)


@dataclass(frozen=True)
class Explained:
    """One system of a cell. slowed: by how much trace points made its operations slower, %."""

    system: str
    profile: Profile
    life: Life
    slowed: float


def _name(system: str) -> str:
    return SYSTEMS.get(system, system)


def places(cell: str, emulated: str, found: Sequence[Explained]) -> Report:
    """Instructions a request by place."""
    rows = []
    for place in Place:
        rows.append((place.value, "", *(f"{one.profile.places()[place]:,.0f}" for one in found)))
    rows.append(("all", "", *(f"{one.profile.instructions:,.0f}" for one in found)))
    rows.append(("CPU idle, in the run with samples", "%", *(f"{100 * one.profile.idle:.1f}" for one in found)))
    records = tuple(
        (one.system, place.value, repr(value)) for one in found for place, value in one.profile.places().items()
    )
    samples = ", ".join(f"{_name(one.system)} {one.profile.samples}" for one in found)
    return Report(
        name="explain-places",
        title=f"Instructions a request, {cell}, {emulated}",
        notes=(*OF_SAMPLES, f"Samples: {samples}."),
        columns=("Where", "", *(_name(one.system) for one in found)),
        rows=tuple(rows),
        heads=("system", "place", "instructions_per_request"),
        records=records,
        emulated=emulated,
    )


def functions(cell: str, emulated: str, found: Sequence[Explained]) -> Report:
    """The functions in which most instructions are, of each system."""
    rows, records = [], []
    for one in found:
        listed = sorted(one.profile.functions().items(), key=lambda item: -item[1])
        records += [(one.system, *where, repr(value)) for where, value in listed]
        for (place, function), value in listed[:MOST]:
            share = 100 * value / one.profile.instructions if one.profile.instructions else 0.0
            rows.append((_name(one.system), f"{function} ({place})", f"{value:,.0f}", f"{share:.1f}"))
    return Report(
        name="explain-functions",
        title=f"Functions with most instructions, {cell}, {emulated}",
        notes=(f"The {MOST} first of each system; the CSV has all. By the innermost function.",),
        columns=("System", "Function", "Instructions", "%"),
        rows=tuple(rows),
        heads=("system", "place", "function", "instructions_per_request"),
        records=tuple(records),
        emulated=emulated,
    )


def stages(cell: str, emulated: str, found: Sequence[Explained]) -> Report:
    """The life of a request."""
    of_each = [dict(one.life.stages) for one in found]
    rows = [
        (stage, "us", *(f"{times[stage]:.1f}" if stage in times else NO_VALUE for times in of_each))
        for stage in STAGES.values()
        if any(stage in times for times in of_each)
    ]
    rows.append(("all", "us", *(f"{one.life.total:.1f}" for one in found)))
    rows.append(("thread switches a request", "", *(f"{one.life.switches:.1f}" for one in found)))
    rows.append(("system calls of the server a request", "", *(f"{one.life.calls:.1f}" for one in found)))
    counts = ", ".join(f"{_name(one.system)} {one.life.requests} (and {one.life.left_out})" for one in found)
    slowed = ", ".join(f"{_name(one.system)} {one.slowed:.0f} %" for one in found)
    return Report(
        name="explain-stages",
        title=f"The life of a request, {cell}, {emulated}",
        notes=(*OF_STAGES, f"Requests shown (and left out): {counts}.", f"Slower for being traced by: {slowed}."),
        columns=("Stage", "", *(_name(one.system) for one in found)),
        rows=tuple(rows),
        heads=("system", "stage", "us"),
        records=tuple((one.system, stage, repr(time)) for one in found for stage, time in one.life.stages),
        emulated=emulated,
    )
