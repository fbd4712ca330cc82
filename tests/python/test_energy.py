# SPDX-License-Identifier: BSD-3-Clause
"""Energy by RAPL, of a made-up machine: which zones count, what becomes of it, and nothing where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from made_up import runs
from userblk.analysis.render import csv_long
from userblk.analysis.tabulate import make_tables
from userblk.harness.observing import energy
from userblk.harness.observing.energy import Meter, zones
from userblk.harness.observing.samplers import Sampler, Use
from userblk.harness.running.measuring import energy_of

WRAPS = 262_143_328_850
Write = Callable[[dict[str, int]], None]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Two packages with memory, as Linux shows them; called with uJ by zone, it sets their counters."""
    names = {
        "intel-rapl": None,
        "intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram",
        "intel-rapl:1": "package-1", "intel-rapl:1:0": "core", "intel-rapl:1:1": "dram",
        "intel-rapl:2": "psys",
        "intel-rapl-mmio:0": "package-0",  # the same counter by another way
    }  # fmt: skip
    for directory, name in names.items():
        (tmp_path / directory).mkdir()
        if name:
            (tmp_path / directory / "name").write_text(f"{name}\n")
            (tmp_path / directory / "max_energy_range_uj").write_text(f"{WRAPS}\n")
            (tmp_path / directory / "energy_uj").write_text("1000\n")
    monkeypatch.setattr(energy, "ROOT", tmp_path)

    def write(values: dict[str, int]) -> None:
        for directory, value in values.items():
            (tmp_path / f"intel-rapl:{directory}/energy_uj").write_text(f"{value}\n")

    return write


def test_packages_and_their_memory_count(machine: Write) -> None:
    assert [zone.name for zone in zones()] == ["package-0", "dram-0", "package-1", "dram-1"]


def test_counters_begin_anew(machine: Write) -> None:
    meter = Meter()
    begin = meter.read()
    machine({"0": 3_001_000, "0:0": 2_000_000, "1": WRAPS - 1_000_000})
    between = meter.read()
    machine({"0": 4_001_000, "1": 1_000_000})  # wraps
    end = meter.read()
    first = meter.between(begin, between)
    assert first["package-0"] == 3 and first["dram-0"] == 0
    assert meter.between(between, end) == {"package-0": 1, "dram-0": 0, "package-1": 2, "dram-1": 0}


def test_a_machine_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "ROOT", tmp_path / "none")
    meter = Meter()
    assert meter.read() == () and meter.between((), ()) == {}
    assert energy_of(100, Use(1.0, 0.0, 0.0, 0.0, None, ())) == {}


def test_a_sampler_tells_of_a_span(machine: Write) -> None:
    with Sampler([], None, 100.0, None, Meter()) as sampler:
        machine({"0": 6_001_000, "0:1": 501_000})
    first, last = sampler.samples[0].time, sampler.samples[-1].time
    whole = sampler.use(first, last)
    assert whole and whole.energy_j == {"package-0": 6.0, "dram-0": 0.5, "package-1": 0, "dram-1": 0}
    half = sampler.use(first, (first + last) / 2)
    assert half and half.energy_j["package-0"] == pytest.approx(3.0, rel=1e-3)
    assert energy_of(1000, whole) == {"energy_uj_per_op": 6500.0}
    assert json.dumps(whole.energy_j)


def test_it_is_in_the_long_csv_and_in_no_table_of_the_paper() -> None:
    made = [
        replace(run, metrics={**run.metrics, "energy_uj_per_op": value})
        for system, value in (("native", 50.0), ("nbdkit", 80.0))
        for run in runs(system, [10.0, 10.1, 10.2])
    ]
    (table,) = make_tables(made)
    lines = [line for line in csv_long([table]).splitlines() if ",energy_uj_per_op,uJ," in line]
    assert len(lines) == 2 and all(",3,0," in line for line in lines)
    assert any("80.0" in line for line in lines)
