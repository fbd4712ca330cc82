# SPDX-License-Identifier: BSD-3-Clause
"""The tables and figures of all suites that are not in Tables 1 and 2."""

from __future__ import annotations

from pathlib import Path

from . import attach, depth_jobs, failover, pts, response, store_figures, sweep
from .report import Report

MODULES = (attach, failover, sweep, response, depth_jobs, pts, store_figures)


def reports_of(directory: Path) -> list[Report]:
    """The reports on a campaign. Raises SummaryError."""
    return [one for module in MODULES for one in module.reports(directory)]
