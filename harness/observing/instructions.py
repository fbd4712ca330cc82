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
    window: of time, from which samples count. instructions: of a request, on the whole, as counted in a run without
    samples: their own cost would be in it.
    """
    begin, end = window
    within = [one for one in samples if begin <= one.time < end and one.stack]
    applications = application_pids(samples, sides)
    counts = Counter(path_of(one, place(one, sides, applications)) for one in within if not is_idle(one))
    busy = sum(counts.values())
    paths = {path: instructions * count / busy for path, count in counts.items()}
    return Profile(system, instructions, len(within), 1 - busy / len(within) if within else 0.0, paths)
