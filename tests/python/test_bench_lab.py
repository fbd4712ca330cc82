# SPDX-License-Identifier: BSD-3-Clause
"""The bars of tests/bench/bench_lab.py, on tables whose verdict is known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import bench_table1
from bench_lab import alarms, by_parts, differing, table_of, widths
from userblk.analysis.table import CONTROL, METRICS, NATIVE, Table, make_cell
from userblk.harness.running import archive

WORKLOADS = [f"w{number}" for number in range(20)]


def table(systems: Mapping[str, Sequence[float]], odd: Mapping[str, float] | None = None) -> Table:
    """Runs of each system in every cell, of both metrics; odd: a factor for native in some workload."""
    cells = {}
    for workload in WORKLOADS:
        factor = (odd or {}).get(workload, 1.0)
        for system, sample in systems.items():
            native = None if system == NATIVE else systems[NATIVE]
            for metric in METRICS[:2]:
                runs = [factor * one for one in sample] if system == NATIVE else sample
                cells["sata", workload, system, metric.id] = make_cell(metric, "sata", workload, runs, native, 0)
    return Table(1, "", (), tuple(("sata", workload) for workload in WORKLOADS), tuple(systems), cells)


def test_two_campaigns_may_differ_by_little() -> None:
    same = table({NATIVE: [100.0]})
    assert all(bar.met for bar in differing(same, table({NATIVE: [100.9], CONTROL: [100.0]})))
    assert [bar.met for bar in differing(same, table({NATIVE: [100.0]}, {"w3": 1.02}))] == [True, True]
    assert [bar.met for bar in differing(same, table({NATIVE: [100.0]}, {"w3": 1.04}))] == [True, False]
    assert [bar.met for bar in differing(same, table({NATIVE: [102.0]}))] == [False, True]
    assert [bar.met for bar in differing(same, table({"nbdkit": [100.0], NATIVE: [100.0]}))] == [False, True, True]


def test_intervals_are_narrow() -> None:
    narrow, wide = [100.0, 100.1, 100.2], [90.0, 100.0, 110.0]
    assert [bar.met for bar in widths(table({NATIVE: narrow}))] == [True, True]
    assert [bar.met for bar in widths(table({NATIVE: wide}))] == [False, False]
    assert not list(widths(table({NATIVE: [100.0]})))


def test_the_control_shows_nothing() -> None:
    bars = list(alarms(table({NATIVE: [100.0, 100.1, 100.2], CONTROL: [100.0, 100.2, 100.3]})))
    assert bars[0].met
    assert not next(alarms(table({NATIVE: [100.0, 100.1, 100.2], CONTROL: [102.0, 102.1, 102.3]}))).met


def test_the_kept_cells_are_those_of_the_kept_campaign(tmp_path: Path) -> None:
    data = Path("docs/data")
    kept = json.loads((data / "table1-reads.json").read_text())
    assert bench_table1.values(archive.unpack(data / "table1.tar.gz", tmp_path)) == kept and len(kept) == 12


def test_a_campaign_without_a_control_is_shown_without_it(tmp_path: Path) -> None:
    head, _, *rows = by_parts(table_of(archive.unpack(Path("docs/data/table1.tar.gz"), tmp_path))).splitlines()
    assert head.endswith("| median half width (%) |") and [row.count("|") for row in rows] == [head.count("|")] * 3
