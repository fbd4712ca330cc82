# SPDX-License-Identifier: BSD-3-Clause
"""The tables and figures of all suites that are not in Tables 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from . import attach, depth_jobs, failover, pts, response, store_figures, sweep
from .report import Report
from .summaries import notes_of

MODULES = (attach, failover, sweep, response, depth_jobs, pts, store_figures)


def reports_of(directory: Path) -> list[Report]:
    """The reports on a campaign, one of each host: another machine is no repetition. Raises SummaryError."""
    notes = notes_of(directory)
    found = [one for module in MODULES for one in _reports(module, directory)]
    return [replace(one, notes=(*one.notes, *notes)) for one in found]


def _reports(module: ModuleType, directory: Path) -> Iterator[Report]:
    hosts = sorted({path.parts[-3] for path in directory.glob(f"*/*/{module.SUITE}")})
    if len(hosts) < 2:
        yield from module.reports(directory)
        return
    for host in hosts:
        for one in module.reports(directory, host):
            figures = {f"{name}-{host}": draw for name, draw in one.figures.items()}
            yield replace(one, name=f"{one.name}-{host}", figures=figures)
