# SPDX-License-Identifier: BSD-3-Clause
"""
CPU sets of control groups v1, from which a CPU that goes off line is gone for good: coming back it is in the first set
only, and what runs in another one, such as a container or a virtual machine's manager, stays without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from .mounts import mounts_of
from .tuning import cpu_list, listed

CPUS = "cpuset.cpus"
ONLY_FIRST = "release_agent"  # no set but the first of all has this file


class CpusetError(Exception):
    """CPUs cannot be taken off line without a loss; one line."""


def sets_below(top: Path) -> Iterator[tuple[Path, str]]:
    """Where the CPUs of each set below a mount's first one stand, and what they are; a set comes after its parent."""
    for path in sorted(top.rglob(CPUS), key=lambda path: path.parent):
        with suppress(FileNotFoundError):  # removed meanwhile
            if path.parent != top and (cpus := path.read_text().strip()):
                yield path, cpus


def to_restore(leaving: Collection[int], tops: Collection[Path] | None = None) -> list[tuple[Path, str]]:
    """
    The sets that these CPUs leave when they go off line, and what to write there when they are back, in this order.
    tops: where the sets are mounted, if not as this process has them. Raises CpusetError if one would be left without
    a CPU, which moves its processes elsewhere, or if sets cannot be seen from here.
    """
    if tops is None:
        tops = {Path(one.point) for one in mounts_of() if one.kind == "cgroup" and "cpuset" in one.options}
    found: dict[Path, str] = {}
    which = f"CPUs {listed(leaving)} cannot be taken off line"
    whole = [top for top in tops if (top / ONLY_FIRST).exists()]
    if tops and not whole:
        raise CpusetError(
            f"{which}: control groups v1 would take them from this container for good; run outside of it, or with "
            "control groups v2"
        )
    for top in whole:
        for path, cpus in sets_below(top):
            if leaving_it := cpu_list(cpus) & set(leaving):
                if leaving_it == cpu_list(cpus):
                    raise CpusetError(f"{which}: {path.parent} has no others ({cpus})")
                found[path] = cpus
    return list(found.items())
