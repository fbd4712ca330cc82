# SPDX-License-Identifier: BSD-3-Clause
"""How much CPU time others take on this machine, during a run, or while a guest measures.

A guest sees its own processes only. So the host writes host-load.json (docs/results.md) beside the
results, the runner reads it around every run, and a run made under load says so in its warnings.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from pathlib import Path

FILE = "host-load.json"
PERIOD = 2.0  # s between two measurements
BYTES = 128
BUSY = 50.0  # % of one CPU: more than this before a campaign is worth a word


def _busy_ticks() -> int:
    """Ticks of all CPUs in user, nice, system, irq, softirq and steal, since boot. guest is part of user."""
    with open("/proc/stat", encoding="ascii") as stream:
        fields = [int(field) for field in stream.readline().split()[1:]]
    return sum(fields[:3]) + sum(fields[5:8])


def _process_ticks() -> dict[int, tuple[int, int]]:
    """pid -> parent, CPU ticks of the process and of its reaped children."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"/proc/{entry.name}/stat", encoding="utf-8", errors="replace") as stream:
                    fields = stream.read().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            found[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    return found


def _own_ticks(processes: dict[int, tuple[int, int]], root: int) -> int:
    """CPU ticks of a process and all its descendants."""
    total = 0
    for pid, (_, ticks) in processes.items():
        ancestor = pid
        while ancestor != root and ancestor in processes:
            ancestor = processes[ancestor][0]
        if ancestor == root:
            total += ticks
    return total


class OtherLoad:
    """CPU time of everything but this process and its descendants, 100 = one CPU."""

    def __init__(self) -> None:
        self._tick = os.sysconf("SC_CLK_TCK")
        self._last = self._now()

    def _now(self) -> tuple[float, int]:
        return time.monotonic(), _busy_ticks() - _own_ticks(_process_ticks(), os.getpid())

    def due(self) -> bool:
        return time.monotonic() - self._last[0] >= PERIOD

    def percent(self) -> float:
        """Since the last call, or since the object was made."""
        now = self._now()
        seconds, ticks = now[0] - self._last[0], now[1] - self._last[1]
        self._last = now
        return max(0.0, 100.0 * ticks / self._tick / seconds) if seconds > 0 else 0.0


KTHREADD = 2  # the parent of the kernel's threads


def _kernel_threads() -> set[int]:
    """Their parent, where it is seen: in a container the process of that number is a program."""
    try:
        program = Path(f"/proc/{KTHREADD}/cmdline").read_bytes()
    except OSError:
        return set()
    parent, _ = _process_ticks().get(KTHREADD, (KTHREADD, 0))
    return set() if program or parent else {KTHREADD}


class OtherPrograms:
    """CPU time of all programs but ours and their descendants, 100 = one CPU; not of the kernel's threads."""

    def __init__(self, ours: Collection[int]) -> None:
        self._ours = frozenset(ours) | _kernel_threads()
        self._began = time.monotonic()
        self._ticks = self._now()

    def _now(self) -> int:
        processes = _process_ticks()
        total = 0
        for pid, (_, ticks) in processes.items():
            ancestor = pid
            while ancestor not in self._ours and ancestor in processes:
                ancestor = processes[ancestor][0]
            total += ticks if ancestor not in self._ours else 0
        return total

    def percent(self) -> float:
        """Since the object was made."""
        seconds = time.monotonic() - self._began
        ticks = self._now() - self._ticks
        return max(0.0, 100.0 * ticks / os.sysconf("SC_CLK_TCK") / seconds) if seconds > 0 else 0.0


def write(directory: Path, percent: float) -> None:
    """
    Replace directory/host-load.json. It always has BYTES bytes: a guest that reads it just then by 9p may still know
    the size of the file before, and Linux 6.12 repeats its request for what is missing without end.
    """
    temporary = directory / f"{FILE}.new"
    text = json.dumps({"time": time.time(), "other_cpu_percent": round(percent, 1)})
    temporary.write_text(text.ljust(BYTES - 1) + "\n")
    temporary.rename(directory / FILE)
