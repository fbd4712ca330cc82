# SPDX-License-Identifier: BSD-3-Clause
"""Energy that the machine's CPUs and memory take, where they count it: RAPL, by Linux's powercap.

Standard library only. A package has its cores in it, so that those are left out; memory is beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/class/powercap")
COUNTED = ("package", "dram")  # how the names of zones begin


@dataclass(frozen=True)
class Zone:
    """name: such as package-0, or dram-0 of it. wraps: uJ at which its counter begins again."""

    name: str
    counter: Path
    wraps: int


def zones() -> list[Zone]:
    """Those of this machine that can be read."""
    found = []
    for directory in sorted(ROOT.glob("intel-rapl:*")):
        try:
            name = (directory / "name").read_text().strip()
            wraps = int((directory / "max_energy_range_uj").read_text())
            int((directory / "energy_uj").read_text())
        except (OSError, ValueError):
            continue
        if name.startswith(COUNTED):
            package = directory.name.split(":")[1]
            found.append(Zone(name if name[-1].isdigit() else f"{name}-{package}", directory / "energy_uj", wraps))
    return found


class Meter:
    """Joules since the meter was made, by zone; nothing where the machine counts none."""

    def __init__(self) -> None:
        self._zones = zones()
        self.names = tuple(zone.name for zone in self._zones)
        self._last: list[int] = []
        self._sums = [0] * len(self._zones)
        self.read()

    def read(self) -> tuple[float, ...]:
        """To be called more often than a counter wraps, which is after minutes. Raises OSError."""
        values = [int(zone.counter.read_text()) for zone in self._zones]
        for number, (zone, value) in enumerate(zip(self._zones, values, strict=True)):
            if self._last:
                self._sums[number] += (value - self._last[number]) % (zone.wraps or 1 << 64)
        self._last = values
        return tuple(total / 1e6 for total in self._sums)

    def between(self, a: tuple[float, ...], b: tuple[float, ...]) -> Mapping[str, float]:
        """By zone, from one reading to another."""
        return {name: round(y - x, 6) for name, x, y in zip(self.names, a, b, strict=True)}
