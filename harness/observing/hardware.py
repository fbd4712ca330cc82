# SPDX-License-Identifier: BSD-3-Clause
"""What happens to a disk's PCIe link, to temperatures and to clock rates while a workload runs.

Watcher looks at the beginning, every PERIOD seconds, and at the end. A link that was slower for a part of a run makes
that run invalid: its mean is the mean of two devices. Heat and errors are warnings.
Standard library only; what cannot be read is left out. root is another one in tests.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from .periodic import Periodic

CPUS = "sys/devices/system/cpu"
PERIOD = 1.0  # s; reads of sysfs that send the disk no command
SLOWED = 0.9  # of the highest clock rate: a rate below it is a warning if the governor asks for the highest
PATIENCE = 30  # s for a command
LINK = ("current_link_speed", "current_link_width")
SENSORS = ("hwmon*", "hwmon/hwmon*", "device/hwmon/hwmon*")  # below a controller; of one kernel or another
ERRORS = ("aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal")
# What an NVMe disk counts of its heat, as nvme and smartctl call it: minutes above a limit, times that it slowed down.
THERMAL = ("warning_temp_time", "critical_comp_time", "thm_temp1_trans_count", "thm_temp2_trans_count")


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def controllers(disk: Path) -> list[Path]:
    """Where the buses that a disk is on begin: its device, or the controllers of an NVMe disk of several paths, which
    is their subsystem's. disk: its directory of sysfs.
    """
    device = (disk / "device").resolve()
    if not device.name.startswith("nvme-subsys"):
        return [device]
    return sorted(path.resolve() for path in device.glob("nvme*") if re.fullmatch(r"nvme\d+", path.name))


def above(root: Path, disk: str) -> Iterator[list[Path]]:
    """For each of them, its directory and those of the buses that it is on, the nearest first."""
    top = (root / "sys").resolve()
    for place in controllers(root / "sys/block" / disk):
        yield [one for one in (place, *place.parents) if top in one.parents]


def numa_node(places: Sequence[Path]) -> int | None:
    """The node of a controller, whose places above() gives; None: it has none of its own, or does not tell."""
    found = next((text for place in places if (text := _text(place / "numa_node"))), "-1")
    return int(found) if found.isdigit() else None


def numa_nodes(disk: str, root: Path = Path("/")) -> list[int]:
    """Those of its controllers."""
    return sorted({node for places in above(root, disk) if (node := numa_node(places)) is not None})


def _ports(disk: str, root: Path) -> list[Path]:
    """The PCIe devices that a disk is, or hangs on."""
    found = (next((place for place in places if (place / LINK[0]).exists()), None) for places in above(root, disk))
    return [port for port in found if port]


def link(disk: str, root: Path = Path("/")) -> str:
    """The PCIe link of a disk or of each of its controllers, such as "8.0 GT/s PCIe x4"; "" without one."""
    return ", ".join(f"{_text(port / LINK[0])} x{_text(port / LINK[1])}" for port in _ports(disk, root))


def full_link(disk: str, root: Path = Path("/")) -> str:
    """What that link can be."""
    links = [[_text(port / name.replace("current", "max")) for name in LINK] for port in _ports(disk, root)]
    return ", ".join(f"{speed} x{width}" for speed, width in links) if all(map(all, links)) else ""


def link_errors(disk: str, root: Path = Path("/")) -> int:
    """Errors that the PCIe devices of a disk have reported since they were found."""
    texts = [_text(port / name) for port in _ports(disk, root) for name in ERRORS]
    return sum(int(number) for text in texts for number in re.findall(r"^TOTAL_ERR_\w+ (\d+)$", text, re.MULTILINE))


def frequencies(root: Path = Path("/")) -> list[float]:
    """Clock rates of the CPUs, MHz: of those that have one together, one, since each is asked by an interrupt."""
    policies = {path.resolve() for path in (root / CPUS).glob("cpu[0-9]*/cpufreq")}
    texts = (_text(policy / "scaling_cur_freq") for policy in policies)
    return [int(text) / 1e3 for text in texts if text.isdigit()]


def throttled(root: Path = Path("/")) -> int:
    """How often CPUs have been slowed down because they were hot."""
    texts = (_text(path) for path in (root / CPUS).glob("cpu[0-9]*/thermal_throttle/core_throttle_count"))
    return sum(int(text or 0) for text in texts)


def temperature(disk: str, root: Path = Path("/")) -> tuple[float | None, float | None]:
    """The temperature of a disk by the kernel's sensor, and the one it calls too hot; degrees C."""
    places = controllers(root / "sys/block" / disk)
    for sensor in (path for place in places for name in SENSORS for path in sorted(place.glob(name))):
        values = [_text(sensor / name) for name in ("temp1_input", "temp1_max")]
        if values[0]:
            now, limit = (float(value) / 1e3 if value.lstrip("-").isdigit() else None for value in values)
            return now, limit
    return None, None


def parse_thermal(text: str) -> dict[str, int]:
    """The counts of THERMAL in what `nvme smart-log` or smartctl print as JSON."""
    try:
        report = json.loads(text)
    except ValueError:
        return {}
    found = report.get("nvme_smart_health_information_log", report) if isinstance(report, dict) else {}
    values = {name: found.get(name) for name in THERMAL} if isinstance(found, dict) else {}
    return {name: value for name, value in values.items() if isinstance(value, int) and not isinstance(value, bool)}


def thermal_counts(disk: str) -> dict[str, int]:
    """What an NVMe disk counts of its heat; {} of others, or without a tool that asks it."""
    asked = (
        ("nvme", "smart-log", "--output-format=json", f"/dev/{disk}"),
        ("smartctl", "--json", "--all", f"/dev/{disk}"),
    )
    for argv in asked if disk.startswith("nvme") else ():
        if shutil.which(argv[0]):
            with suppress(OSError, subprocess.TimeoutExpired):
                done = subprocess.run(
                    argv, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False
                )
                if found := parse_thermal(done.stdout):
                    return found
    return {}


class Watcher(Periodic):
    """From entry to exit of the with block: problems, warnings and facts of the disk and of the CPUs."""

    def __init__(self, name: str, disk: str, root: Path = Path("/"), period: float = PERIOD) -> None:
        """name: of the disk, for people; disk: of the kernel."""
        super().__init__(period)
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.facts: dict[str, object] = {}
        self._name, self._disk, self._root = name, disk, root
        self._links: list[str] = []
        self._rates: list[float] = []  # the highest of all CPUs

    def look(self) -> None:
        now = link(self._disk, self._root)
        if not self._links or self._links[-1] != now:
            self._links.append(now)
        if rates := frequencies(self._root):
            self._rates.append(max(rates))

    def _counts(self) -> dict[str, int]:
        counts = {"cpus_throttled": throttled(self._root), "link_errors": link_errors(self._disk, self._root)}
        return counts | (thermal_counts(self._disk) if self._root == Path("/") else {})

    def __enter__(self) -> Watcher:
        self._before = self._counts()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        after = self._counts()
        self._judge({name: after[name] - count for name, count in self._before.items() if name in after})

    def _judge(self, risen: dict[str, int]) -> None:
        first, *others = self._links
        if others:
            seen = [one or "none" for one in self._links]
            self.problems.append(f"link: the PCIe link of {self._name} changed during the run: {', '.join(seen)}")
        if count := risen.get("link_errors"):
            self.warnings.append(f"link: PCIe reported {count} errors of {self._name} during the run")
        if count := risen.get("cpus_throttled"):
            self.warnings.append(
                f"throttled: CPUs were slowed down {count} times during the run, because they were too hot"
            )
        hot = {name: count for name, count in risen.items() if name in THERMAL and count > 0}
        if hot:
            counts = ", ".join(f"{name} +{count}" for name, count in hot.items())
            self.warnings.append(f"throttled: {self._name} was too hot during the run ({counts})")
        degrees, limit = temperature(self._disk, self._root)
        if degrees is not None and limit is not None and degrees >= limit:
            self.warnings.append(
                f"hot: {self._name} has {degrees:.0f} degrees C after the run and throttles at {limit:.0f}"
            )
        governors = {_text(path) for path in (self._root / CPUS).glob("cpu[0-9]*/cpufreq/scaling_governor")}
        if self._rates and governors == {"performance"} and min(self._rates) < SLOWED * max(self._rates):
            self.warnings.append(
                f"frequency: the fastest CPU ran at {min(self._rates):.0f} to {max(self._rates):.0f} MHz during the run"
            )
        found = {
            "link": first,
            "cpu_mhz": [round(min(self._rates)), round(max(self._rates))] if self._rates else None,
            "temperature_c": degrees,
            **{name: count for name, count in risen.items() if count},
        }
        self.facts = {name: value for name, value in found.items() if value not in ("", None)}
