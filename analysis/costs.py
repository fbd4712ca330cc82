# SPDX-License-Identifier: BSD-3-Clause
"""What operations cost, as the kernel counted it: a table of its own, since none of it is a timing.

A figure is the mean over the runs of a cell in which it was counted; other load on the machine hardly touches it.
"""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Group, RenderableType
from rich.text import Text

from .render import new_grid
from .summaries import DEPTH, SummaryError
from .table import DEVICES, FILE_WORKLOADS, SYSTEMS, WORKLOADS

# In the order of columns; titles with the unit.
TITLES = {
    "server_syscalls_per_op": "Syscalls of the server",
    "server_switches_per_op": "Context switches of the server",
    "server_instructions_per_op": "Instructions of the server",
    "machine_instructions_per_op": "Instructions of the whole machine",
    "device_requests_per_op": "Requests to its disk",
    "device_bytes_per_op": "Bytes to its disk",
    "backing_requests_per_op": "Requests to the device below",
    "backing_bytes_per_op": "Bytes to the device below",
}


@dataclass(frozen=True)
class Cost:
    """What an operation of a workload costs: the mean of n runs."""

    host: str
    suite: str
    device: str
    workload: str
    system: str
    cost: str
    n: int
    mean: float


def load_costs(directory: Path) -> list[Cost]:
    """The costs in all valid runs of a campaign, in the order of its tables. Raises SummaryError."""
    samples: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for file in sorted(directory.glob("*/" * DEPTH + "summary.json")):
        if not (file.parent / "DONE").exists():
            continue
        try:
            summary = json.loads(file.read_text(encoding="utf-8"))
            cell = tuple(str(summary[name]) for name in ("host", "suite", "device", "workload", "system"))
            for name, value in (summary.get("costs") or {}).items() if summary["valid"] else ():
                samples[(*cell, str(name))].append(float(value))
        except FileNotFoundError:
            continue  # it is being made again
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise SummaryError(f"{file}: not a summary: {type(error).__name__} {error}") from None
    found = []
    for (host, suite, device, workload, system, name), sample in samples.items():
        found.append(Cost(host, suite, device, workload, system, name, len(sample), fmean(sample)))
    return sorted(found, key=_order)


def _order(cost: Cost) -> tuple[str, str, list[tuple[int, str]]]:
    places = []
    for names, name in (
        (DEVICES, cost.device),
        (WORKLOADS + FILE_WORKLOADS, cost.workload),
        (TITLES, cost.cost),
        (SYSTEMS, cost.system),
    ):
        listed = list(names)
        places.append((listed.index(name) if name in listed else len(listed), name))
    return cost.host, cost.suite, places


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def terminal(costs: Sequence[Cost]) -> RenderableType:
    """A grid for each host, suite and kind of cost."""
    parts: list[RenderableType] = []
    groups: dict[tuple[str, str, str], list[Cost]] = defaultdict(list)
    for cost in costs:
        groups[cost.host, cost.suite, cost.cost].append(cost)
    for (host, suite, name), group in groups.items():
        systems = list(dict.fromkeys(cost.system for cost in sorted(group, key=lambda one: _order(one)[-1][-1])))
        values = {(cost.device, cost.workload, cost.system): cost.mean for cost in group}
        grid = new_grid("Device", "Workload")
        for system in systems:
            grid.add_column(SYSTEMS.get(system, system), justify="right", no_wrap=True)
        for device, workload in dict.fromkeys((cost.device, cost.workload) for cost in group):
            cells = (values.get((device, workload, system)) for system in systems)
            texts = ("-" if value is None else _text(value) for value in cells)
            grid.add_row(DEVICES.get(device, device), workload, *texts)
        title = f"{TITLES.get(name, name)}, per operation; suite {suite}, host {host}"
        parts += [*[""] * bool(parts), Text(title, style="bold"), "", grid]
    return Group(*parts)


def rows(costs: Sequence[Cost]) -> list[dict[str, object]]:
    return [asdict(cost) for cost in costs]


def as_csv(costs: Sequence[Cost]) -> str:
    """One line for each cell and cost, in full precision."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(Cost.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(costs))
    return out.getvalue()
