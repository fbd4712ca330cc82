# SPDX-License-Identifier: BSD-3-Clause
"""Where the CPUs of a machine are while a workload runs: perf beside it, and what it recorded as folded stacks.

Standard library only. Stacks are folded where they were recorded, since only that machine knows its programs: one path
a line, from the outermost part to the innermost, and its cost, as other tools for flame graphs read it, too.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import perf_script
from .instructions import Sides, application_pids, is_idle, path_of, place

FILE, HEAD = "stacks.txt", "# "  # in a run's directory; its first line
DATA = "perf.data"
SAMPLES, MOST_HZ = 100_000, 997  # of a run, about; and never more often
FIELDS = "comm,pid,tid,time,period,event,ip,sym,dso"
UNITS = {"cycles": "cycles", "cpu-clock": "ns of CPU time"}
SEPARATOR = ";"
PACKAGE = "linux-perf"  # by Debian's name
END_LIMIT = 600.0  # s
COUNTERS = Path("/sys/bus/event_source/devices")  # of CPUs: cpu, or cpu_core and cpu_atom

Stacks = Mapping[tuple[str, ...], float]


class PerfError(Exception):
    """perf did not do its work; one line."""


def event() -> str:
    """What is sampled: cycles, where this machine has their counter, else time."""
    return "cycles" if any(COUNTERS.glob("cpu*")) else "cpu-clock"


def argv(output: Path, seconds: float, sampled: str) -> list[str]:
    """perf's command line for a run of so many seconds."""
    often = max(1, min(MOST_HZ, int(SAMPLES / ((os.cpu_count() or 1) * max(seconds, 1)))))
    words = ["perf", "record", "--quiet", "--all-cpus", "-g", f"--event={sampled}", f"--freq={often}"]
    return [*words, "--clockid=CLOCK_MONOTONIC", "--no-buildid", "--no-buildid-cache", f"--output={output}"]


def folded(records: Sequence[perf_script.Record], sides: Sides) -> Stacks:
    """The cost of each path, in what the event counts. Idle CPUs are left out."""
    applications = application_pids(records, sides)
    found: Counter[tuple[str, ...]] = Counter()
    for one in records:
        if one.stack and not is_idle(one):
            found[path_of(one, place(one, sides, applications))] += one.period
    return found


def script(data: Path, window: tuple[float, float]) -> list[perf_script.Record]:
    """What was recorded in a window of CLOCK_MONOTONIC. Raises PerfError."""
    words = ["perf", "script", "--ns", f"--time={window[0]:.9f},{window[1]:.9f}", f"--input={data}", "--fields", FIELDS]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=END_LIMIT, check=False)
    if done.returncode:
        said = (done.stderr.decode(errors="replace").strip().splitlines() or ["no word"])[-1]
        raise PerfError(f"perf script ended with exit code {done.returncode}: {said}")
    lines = done.stdout.decode(errors="replace").splitlines()
    found = list(perf_script.records(lines))
    if not found:
        said = f"prints what userblk cannot read, such as {lines[0].strip()!r}" if lines else "finds no sample"
        raise PerfError(f"perf script {said} of the measured time; try another version of perf")
    return found


def write(path: Path, stacks: Stacks, operations: float, sampled: str) -> None:
    """The first line tells of how many operations the costs are."""
    lines = [f"{HEAD}operations={operations:.0f} event={sampled}\n"]
    for parts, value in sorted(stacks.items()):
        lines.append(f"{SEPARATOR.join(part.replace(SEPARATOR, ':') for part in parts)} {value:.0f}\n")
    path.write_text("".join(lines))


def read(path: Path) -> tuple[Stacks, str]:
    """The cost of an operation by path, and its unit. Raises ValueError, OSError."""
    head, *lines = path.read_text().splitlines()
    facts = dict(word.split("=", 1) for word in head.removeprefix(HEAD).split())
    operations, unit = float(facts["operations"]), UNITS[facts["event"]]
    found = {}
    for line in lines:
        parts, _, value = line.rpartition(" ")
        found[tuple(parts.split(SEPARATOR))] = float(value) / operations
    return found, unit
