# SPDX-License-Identifier: BSD-3-Clause
"""Where the instructions of a request go: samples of the CPU at even distances, put together by place and function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from .perf_script import UNKNOWN, Frame, Record


class Place(Enum):
    """Who an instruction is executed for, and where."""

    APPLICATION = "application"
    APPLICATION_KERNEL = "kernel, for the application"
    SERVER = "server"
    SERVER_KERNEL = "kernel, for the server"
    KERNEL = "kernel's own threads, and interrupts of an idle CPU"
    OTHERS = "harness and other programs"


IDLE = frozenset(
    (
        "pv_native_safe_halt",
        "native_safe_halt",
        "default_idle",
        "arch_cpu_idle",
        "default_idle_call",
        "mwait_idle",
        "intel_idle",
        "intel_idle_irq",
        "intel_idle_ibrs",
        "acpi_safe_halt",
        "acpi_idle_do_entry",
        "acpi_idle_enter",
        "mwait_idle_with_hints",
        "cpuidle_enter_state",
        "poll_idle",
    )  # fmt: skip
)
HARNESS = ("perf", "python3")
# A sample takes about 1.1 us of virtual time: the next one that is due is taken then.
SAMPLE_S = 1.25e-6

Path = tuple[str, ...]  # place, thread and functions, from the outermost to the innermost


@dataclass(frozen=True)
class Sides:
    """Who is who. application: its program's name; server: pid, 0 for none.

    device, backing: numbers as trace points print them, device "" where requests have none above the backing one.
    """

    application: str
    server: int
    device: str
    backing: str


@dataclass(frozen=True)
class Profile:
    """Profile of one system. paths: instructions a request by path; idle: share of samples with the CPU idle."""

    system: str
    instructions: float
    samples: int
    idle: float
    paths: Mapping[Path, float]

    def places(self) -> dict[Place, float]:
        """Instructions a request by place."""
        found = dict.fromkeys(Place, 0.0)
        for path, value in self.paths.items():
            found[Place(path[0])] += value
        return found

    def functions(self) -> dict[tuple[str, str], float]:
        """By place and innermost function."""
        found: Counter[tuple[str, str]] = Counter()
        for path, value in self.paths.items():
            found[path[0], path[-1]] += value  # type: ignore[assignment]
        return dict(found)


def application_pids(records: Iterable[Record], sides: Sides) -> frozenset[int]:
    """The ids of the processes that ran the application's program."""
    name = sides.application[:15]  # which is all that the kernel keeps
    return frozenset(one.pid for one in records if one.command == name)


def is_idle(record: Record) -> bool:
    return record.pid == 0 and bool(record.stack) and record.stack[0].function in IDLE


def place(record: Record, sides: Sides, applications: frozenset[int]) -> Place:
    """Where a sample that is not idle was taken."""
    in_kernel = bool(record.stack) and record.stack[0].in_kernel
    if record.pid in applications:
        return Place.APPLICATION_KERNEL if in_kernel else Place.APPLICATION
    if sides.server and record.pid == sides.server:
        return Place.SERVER_KERNEL if in_kernel else Place.SERVER
    # A thread of the kernel's own has nobody in user space who called it.
    own = all(frame.in_kernel for frame in record.stack)
    return Place.KERNEL if own and record.command not in HARNESS else Place.OTHERS


def function(frame: Frame) -> str:
    """Its name, or that of the file where nothing is known but that."""
    return f"in {frame.file.rsplit('/', 1)[-1]}" if frame.function == UNKNOWN else frame.function


def path_of(record: Record, where: Place) -> Path:
    """The path of a sample; only the innermost function of a program is known: Debian's have no frame pointers."""
    known = [frame for frame in record.stack if frame.in_kernel] or record.stack[:1]
    return where.value, record.command, *(function(frame) for frame in reversed(known))


def profile(
    system: str, samples: Sequence[Record], sides: Sides, window: tuple[float, float], instructions: float
) -> Profile:
    """
    samples: in the order of time; the event of each names the timer that took it. window: of time, from which samples
    count. instructions: of a request, on the whole, as counted in a run without samples: their own cost would be in it.
    """
    begin, end = window
    within = [one for one in samples if begin <= one.time < end and one.stack]
    applications = application_pids(samples, sides)
    timers: dict[str, Counter[Path]] = {}
    for one in without_delayed(within):
        if not is_idle(one):
            timers.setdefault(one.event, Counter())[path_of(one, place(one, sides, applications))] += 1
    shares = shares_of(list(timers.values()))
    idle = sum(map(is_idle, within)) / len(within) if within else 0.0
    return Profile(
        system, instructions, len(within), idle, {path: instructions * share for path, share in shares.items()}
    )


def without_delayed(samples: Iterable[Record]) -> list[Record]:
    """
    Without those that follow another one of the same thread and place at once: their timers expired while the other
    sample was taken, which no run without samples spends time on.
    """
    found: list[Record] = []
    last: Record | None = None
    for one in samples:
        if last is None or one.time - last.time > SAMPLE_S or (one.tid, one.stack) != (last.tid, last.stack):
            found.append(one)
        last = one
    return found


def shares_of(timers: Sequence[Mapping[Path, int]]) -> dict[Path, float]:
    """
    The share of each path in all samples; timers: samples by path, of each. A sample takes time, so that requests may
    come to keep step with a timer, which then finds one place too often or not at all. So the timers that find a place
    most often and most rarely, a third of them each, do not count there.
    """
    totals = [sum(counts.values()) for counts in timers]
    shares: Counter[Path] = Counter()
    for where in Place:
        of_place = []
        for counts, total in zip(timers, totals, strict=True):
            own = {path: count / total for path, count in counts.items() if path[0] == where.value}
            of_place.append((sum(own.values()), own))
        of_place.sort(key=lambda each: each[0])
        left_out = max(0, len(of_place) - 1) // 3
        middle = of_place[left_out : len(of_place) - left_out]
        for _, own in middle:
            for path, share in own.items():
                shares[path] += share / len(middle)  # type: ignore[assignment]
    whole = sum(shares.values())
    return {path: share / whole for path, share in shares.items()}
