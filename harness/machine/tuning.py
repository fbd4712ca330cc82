# SPDX-License-Identifier: BSD-3-Clause
"""What a measurement wants of a machine's clocks, idle states and interrupts: shown, set, and put back.

Everything that is set is noted before the first change, in a file below /run, which a crash of this program outlives
and which goes with the settings themselves when the machine starts again.
Standard library only: the runner looks at it. root is another one in tests.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..observing.hardware import above, numa_node, numa_nodes
from .durable import write_json
from .teardown import RUN, boot_id

STATE = RUN / "tuned.json"
CPUS = "sys/devices/system/cpu"
DEEP_US = 10  # an idle state that takes longer to leave is in the latency of single requests
GOVERNOR, TURBO, IDLE, INTERRUPTS = "governor", "turbo", "idle states", "interrupts"
WHY = {
    GOVERNOR: "clock rates follow the load",
    TURBO: "clock rates depend on temperature and on how many CPUs are busy",
    IDLE: f"CPUs take more than {DEEP_US} us to wake up",
    INTERRUPTS: "a device's interrupts go to CPUs of another NUMA node",
}


class TuningError(Exception):
    """What could not be set or put back; one line."""


@dataclass(frozen=True)
class Setting:
    """A file below root, what it holds and what it should hold. about: the CPU or device, for people."""

    kind: str
    about: str
    path: str
    now: str
    wanted: str

    @property
    def differs(self) -> bool:
        if self.kind == INTERRUPTS:
            return not cpu_list(self.now) <= cpu_list(self.wanted)
        return self.now != self.wanted


def cpu_list(text: str) -> frozenset[int]:
    """The CPUs of a list such as 0-3,8. Raises ValueError."""
    found: set[int] = set()
    for part in text.split(","):
        first, several, last = part.partition("-")
        found |= set(range(int(first), int(last if several else first) + 1))
    if not found:
        raise ValueError(text)
    return frozenset(found)


def listed(cpus: Collection[int]) -> str:
    """As cpu_list() reads them: 0-3,8."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(f"{run[0]}-{run[-1]}" if run[1:] else str(run[0]) for run in runs)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _own_cpus() -> frozenset[int]:
    """The CPUs that this process may use, also those that are off line, which sched_getaffinity(2) leaves out."""
    lines = (line.partition(":") for line in _text(Path("/proc/self/status")).splitlines())
    return cpu_list(next(value.strip() for name, _, value in lines if name == "Cpus_allowed_list"))


OWN_CPUS = _own_cpus()  # from the start: what is started later must not stay where a workload with few CPUs was


# ---- what there is ------------------------------------------------------------------------


def hardware_disks(root: Path = Path("/")) -> list[str]:
    """Kernel names of whole disks that are no loop, RAM or other devices without hardware."""
    found = (path.parent for path in root.glob("sys/block/*/device"))
    return sorted(disk.name for disk in found if _text(disk / "hidden") != "1")  # a path to an NVMe disk of several


def interrupts(disk: str, root: Path = Path("/")) -> list[int]:
    """Those of each of its controllers."""
    return sorted(number for places in above(root, disk) for number in _interrupts(places))


def _interrupts(places: Sequence[Path]) -> list[int]:
    for place in places:
        if (place / "msi_irqs").is_dir():
            return [int(path.name) for path in (place / "msi_irqs").iterdir()]
        if (text := _text(place / "irq")).isdigit() and int(text):
            return [int(text)]
    return []


def _cpus(root: Path) -> list[Path]:
    return sorted((root / CPUS).glob("cpu[0-9]*"), key=lambda path: int(path.name[3:]))


def _settings(root: Path, disks: Sequence[str]) -> Iterator[tuple[str, str, Path, str]]:
    """Kind, about, path and what is wanted, of what there is."""
    for cpu in _cpus(root):
        if "performance" in _text(cpu / "cpufreq/scaling_available_governors").split():
            yield GOVERNOR, cpu.name, cpu / "cpufreq/scaling_governor", "performance"
    if (file := root / CPUS / "intel_pstate/no_turbo").exists():
        yield TURBO, "all CPUs", file, "1"
    elif (file := root / CPUS / "cpufreq/boost").exists():
        yield TURBO, "all CPUs", file, "0"
    for cpu in _cpus(root):
        for state in sorted(cpu.glob("cpuidle/state[0-9]*")):
            latency = _text(state / "latency")
            if latency.isdigit() and int(latency) > DEEP_US:
                yield IDLE, f"{cpu.name} {_text(state / 'name')}", state / "disable", "1"
    for disk in disks:
        found = ((numa_node(places), number) for places in above(root, disk) for number in _interrupts(places))
        for node, number in sorted(found, key=lambda one: one[1]):  # of each controller near to itself
            if not (near := _text(root / f"sys/devices/system/node/node{node}/cpulist")):
                continue
            yield INTERRUPTS, f"{disk} {number}", root / f"proc/irq/{number}/smp_affinity_list", near


def settings(disks: Sequence[str], root: Path = Path("/")) -> list[Setting]:
    """The settings of this machine, and of these disks."""
    return [
        Setting(kind, about, str(path.relative_to(root)), now, wanted)
        for kind, about, path, wanted in _settings(root, disks)
        if (now := _text(path))
    ]


# ---- setting, and putting back -----------------------------------------------------------------


def noted(state: Path = STATE) -> list[tuple[str, str]]:
    """Files that were set, and what they held, in order; none of those that a restart of the machine has put back.
    Raises TuningError.
    """
    try:
        found = json.loads(state.read_text())
        boot, settings = (found["boot"], found["settings"]) if isinstance(found, dict) else (boot_id(), found)
        return [(str(path), str(value)) for path, value in settings] if boot == boot_id() else []
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise TuningError(f"{state}: cannot be read: {error}; start the machine again, and remove it") from None


def _note(state: Path, settings: Sequence[tuple[str, str]]) -> None:
    write_json(state, {"boot": boot_id(), "settings": settings})


def tune(disks: Sequence[str], root: Path = Path("/"), state: Path = STATE) -> list[str]:
    """Set what differs. What was refused, a line each: the kernel keeps some interrupts where they are.
    Raises TuningError where nothing can be noted."""
    wanted = [one for one in settings(disks, root) if one.differs]
    before = noted(state)
    known = {path for path, _ in before}  # set earlier: what they held before that is what is put back
    if wanted:
        try:
            state.parent.mkdir(mode=0o755, exist_ok=True)
            _note(state, before + [(one.path, one.now) for one in wanted if one.path not in known])
        except OSError as error:
            raise TuningError(f"{state}: {error.strerror}; run as root") from None
    return [line for one in wanted if (line := _set(root, one.kind, one.about, one.path, one.wanted))]


def _set(root: Path, kind: str, about: str, path: str, value: str) -> str:
    """Why it could not be set, "" if it could."""
    try:
        (root / path).write_text(value)
    except OSError as error:
        return f"{kind} of {about}: /{path}={value}: {error.strerror}"
    now = _text(root / path)
    kept = cpu_list(now) == cpu_list(value) if kind == INTERRUPTS and now else now == value
    return "" if kept else f"{kind} of {about}: /{path}={value}: it stays {now}"


def restore(root: Path = Path("/"), state: Path = STATE) -> int:
    """Put back all that was set; how many files. Raises TuningError with what stays, which also stays noted."""
    before = noted(state)
    left, lines = [], []
    for path, value in reversed(before):
        if _text(root / path) == value or not (root / path).exists():  # refused in the first place, or gone
            continue
        if line := _set(root, "setting", path, path, value):
            left.append((path, value))
            lines.append(line)
    try:
        if left:
            _note(state, left[::-1])
        else:
            state.unlink(missing_ok=True)
    except OSError as error:
        raise TuningError(f"{state}: {error.strerror}; run as root") from None
    if left:
        raise TuningError("; ".join(lines))
    return len(before)


# ---- for a campaign -----------------------------------------------------------------------------


def facts(disks: Sequence[str], root: Path = Path("/"), state: Path = STATE) -> dict[str, object]:
    """The machine's condition: which settings are as wanted and which are not, and where disks are."""
    found = settings(disks, root)
    kinds = dict.fromkeys(one.kind for one in found)
    places: dict[str, object] = {
        disk: {
            "numa_node": nodes[0] if len(nodes := numa_nodes(disk, root)) == 1 else nodes or None,
            "interrupts": {str(n): _text(root / f"proc/irq/{n}/smp_affinity_list") for n in interrupts(disk, root)},
        }
        for disk in disks
    }
    try:
        by_userblk = bool(noted(state))
    except TuningError:
        by_userblk = True  # whatever it set
    return {
        "by_userblk": by_userblk,
        "differs": {kind: sum(one.differs for one in found if one.kind == kind) for kind in kinds},
        "disks": places,
    }


def warnings(found: Mapping[str, object]) -> list[str]:
    """What facts() tells against a campaign, a line each; of governor and turbo the environment tells."""
    differs = found["differs"]
    assert isinstance(differs, dict)
    return [f"not tuned: {kind}: {WHY[kind]}; userblk tune set" for kind in (IDLE, INTERRUPTS) if differs.get(kind, 0)]


@contextlib.contextmanager
def on_cpus(cpus: str) -> Iterator[None]:
    """What is started meanwhile runs on these CPUs; "": on any. Raises OSError if one of them cannot be used: the
    kernel leaves out those that are off line, or not there.
    """
    if not cpus:
        yield
        return
    try:
        try:
            os.sched_setaffinity(0, cpu_list(cpus))
        except OSError as error:
            raise OSError(error.errno, f"CPUs {cpus} cannot be used: {error.strerror}") from None
        if (found := os.sched_getaffinity(0)) != cpu_list(cpus):
            raise OSError(errno.EINVAL, f"CPUs {cpus} cannot be used: only {listed(found)} of them")
        yield
    finally:
        os.sched_setaffinity(0, OWN_CPUS)
