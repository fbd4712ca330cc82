# SPDX-License-Identifier: BSD-3-Clause
"""The tables and figures of all suites that are not in Tables 1 and 2."""

from __future__ import annotations

from pathlib import Path

from . import attach, failover, response, store_figures, sweep
from .report import Report


def reports_of(directory: Path) -> list[Report]:
    """Of a campaign. Raises SummaryError."""
    return [one for module in (attach, failover, sweep, response, store_figures) for one in module.reports(directory)]
