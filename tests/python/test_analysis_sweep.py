# SPDX-License-Identifier: BSD-3-Clause
"""Suite buse-null: its workloads, and its tables beside the thesis's numbers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from userblk.analysis import report, sweep
from userblk.analysis.table import SYSTEMS
from userblk.harness.engines.fio import argv
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.plan import Device, Plan, estimate, make_plan
from userblk.harness.model.tables import ConfigError


def test_its_workloads_are_the_thesis_experiments() -> None:
    suite = load_suite("buse-null", "paper")
    points = [w for w in suite.workloads if not w.cpus]
    assert len(points) == 2 * 3 * 3 * 5
    assert len([w for w in load_suite("buse-null").workloads if not w.cpus]) == 2 * 2 * 2 * 4
    assert {w.engine for w in suite.workloads} == {"sweep"}
    assert all(sweep.POINT.fullmatch(w.id) for w in points)
    assert [w.id for w in suite.workloads if w.cpus == 2] == ["read-2cpu", "write-2cpu"]
    (one,) = (w for w in suite.workloads if w.id == "write-2cpu")
    assert (one.threads, one.depth, one.block_size) == (2, 4, 65536)
    words = argv(one, load_profile("quick"), 1 << 30, "/dev/x", 1, Path("/r"))
    assert {"--ioengine=io_uring", "--iodepth=4", "--direct=1", "--time_based=1", "--end_fsync=1"} <= set(words)
    assert "--rw=write" in words and "--numjobs=2" in words


def plan_for(*systems: str) -> Plan:
    """With 2 CPUs."""
    suite = load_suite("buse-null")
    return make_plan(
        suite=dataclasses.replace(suite, workloads=tuple(w for w in suite.workloads if w.cpus <= 2)),
        profile=load_profile("quick"),
        systems=[load_system(name) for name in systems or suite.systems],
        devices=[Device("nvme", "/dev/null", "1")],
        campaign="test",
        build="build",
    )


def test_what_wants_fewer_cpus_is_brought_up_alone() -> None:
    for system in ("ublk-null", "fuse-null"):
        assert sorted(len(entries) for _, entries in plan_for(system).blocks()) == sorted(3 * [1, 1, 1, 1, 32])


def test_the_quick_profile_is_over_in_50_minutes() -> None:
    assert estimate(plan_for()).seconds < 50 * 60


def test_it_has_a_null_device_of_each_framework() -> None:
    assert {load_system(name).kind for name in load_suite("buse-null").systems} == {
        "buse", "nbdkit", "tcmu", "ublk", "fuse-disk",
    }  # fmt: skip


def test_a_profile_without_points_is_refused() -> None:
    with pytest.raises(ConfigError, match="buse-null.toml: points.other is missing"):
        load_suite("buse-null", "other")


def write_run(campaign: Path, system: str, workload: str, number: int, mbps: float, device: str = "nvme") -> None:
    directory = campaign / "lab" / device / "buse-null" / system / workload / str(number)
    directory.mkdir(parents=True)
    summary = {
        "schema": 1, "campaign": "c", "host": "lab", "system": system, "workload": workload, "profile": "quick",
        "emulated": False, "kernel": "6.12", "valid": True, "warnings": [], "metrics": {"throughput_mbps": mbps},
        "device": device, "suite": "buse-null", "repetition": number, "invalid": [],
    }  # fmt: skip
    (directory / "summary.json").write_text(json.dumps(summary))
    (directory / "DONE").touch()


def test_tables_stand_beside_the_thesis(tmp_path: Path) -> None:
    for number, mbps in enumerate((1000.0, 1200.0, 1100.0), 1):
        write_run(tmp_path, "ublk-null", "read-2cpu", number, mbps)
    for size, mbps in (("4k", 100.0), ("1m", 900.0)):
        write_run(tmp_path, "ublk-null", f"read-1j-4d-{size}", 1, mbps)
        write_run(tmp_path, "nbdkit-null", f"read-1j-4d-{size}", 1, mbps / 2)
    points, scaling = sweep.reports(tmp_path)
    assert points.columns[4:] == ("nbdkit null", "ublk null")
    assert points.rows == (("read", "4", "1", "4k", "0.050", "0.100"), ("read", "4", "1", "1m", "0.450", "0.900"))
    rows = {row[:2]: row[2:] for row in scaling.rows}
    assert rows["read", "2"] == ("-", "1.100 ±0.248", "6.56 (-0.05, +0.06)", "2.72 (-0.04, +0.05)",
                                 "3.89 (-0.15, +0.12)", "-")  # fmt: skip
    assert rows["read", "48"] == ("-", "-", "71.89 (-0.34, +0.29)", "11.29 (-0.56, +0.42)", "4.05 (-0.17, +0.17)",
                                  "6.80 (-0.03, +0.03)")  # fmt: skip
    assert len(report.draw([points, scaling], tmp_path)) == 4
    assert (tmp_path / "buse-null-scaling.png").read_bytes()[1:4] == b"PNG"


def test_disks_of_two_devices_are_not_of_one_sample(tmp_path: Path) -> None:
    """Where systems over them are measured beside null devices."""
    for device, mbps in (("nvme", 4000.0), ("sata", 400.0)):
        write_run(tmp_path, "native", "read-1j-4d-1m", 1, mbps, device)
    sata, nvme = sweep.reports(tmp_path)
    assert (sata.name, nvme.name) == ("buse-null-sata", "buse-null-nvme")
    assert [one.rows[0][-1] for one in (sata, nvme)] == ["0.400", "4.000"]
    assert "SATA, host lab" in sata.title and list(sata.figures) == ["buse-null-read-sata"]


def test_the_thesis_has_its_44_numbers() -> None:
    values = sweep.published()
    assert sum(map(len, values.values())) == 44
    assert values["write", 48] == {
        "BUSE": "114.35 (-0.71, +0.68)", "NBD": "14.02 (-0.28, +0.27)", "TCMU": "3.61 (-0.10, +0.09)",
        "BDUS": "6.01 (-0.03, +0.03)",
    }  # fmt: skip


def test_a_campaign_without_it_has_no_report(tmp_path: Path) -> None:
    assert sweep.reports(tmp_path) == []
    write_run(tmp_path, "ublk-null", "read-1j-4d-4k", 1, 1.0)
    assert [one.name for one in sweep.reports(tmp_path)] == ["buse-null"]


def test_a_system_of_one_panel_is_in_the_legend_with_a_look_of_its_own(tmp_path: Path) -> None:
    """There are seven null devices, and not all run at each number of CPUs or of jobs."""
    systems = [name for name in SYSTEMS if name.endswith("-null")]
    assert len(systems) == 7
    for jobs, system in enumerate(systems, 1):
        write_run(tmp_path, system, f"read-{jobs}j-4d-4k", 1, 100.0)
        write_run(tmp_path, system, "read-1cpu" if jobs == 1 else "write-1cpu", 1, 100.0)
    for one in sweep.reports(tmp_path):
        (draw,) = one.figures.values()
        figure = draw()
        (legend,) = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
        assert {text.get_text() for text in legend.get_texts()} == {SYSTEMS[name] for name in systems}
        lines = [line for axes in figure.axes for line in axes.get_lines() if line.get_marker() not in "_|"]
        assert len({line.get_color() for line in lines}) == len({line.get_marker() for line in lines}) == 7


def test_a_single_run_has_no_interval_of_width_0(tmp_path: Path) -> None:
    write_run(tmp_path, "ublk-null", "read-1cpu", 1, 100.0)
    (one,) = sweep.reports(tmp_path)
    figure = one.figures["buse-null-scaling"]()
    assert figure._suptitle.get_text().endswith(", single runs")
    assert not [path for axes in figure.axes for bars in axes.collections for path in bars.get_paths()]
    write_run(tmp_path, "ublk-null", "read-1cpu", 2, 110.0)
    (one,) = sweep.reports(tmp_path)
    assert one.figures["buse-null-scaling"]()._suptitle.get_text().endswith(", 95 % confidence intervals")


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    write_run(tmp_path, "ublk-null", "read-1cpu", 1, 100.0)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        report.draw(sweep.reports(tmp_path), tmp_path / name)
    for kind in ("svg", "png"):
        one, other = (tmp_path / name / f"buse-null-scaling.{kind}" for name in ("one", "other"))
        assert one.read_bytes() == other.read_bytes()


def test_panels_show_the_highest_of_all(tmp_path: Path) -> None:
    """They share an axis, of which the first one drawn must not fix the end."""
    for depth, mbps in ((1, 100.0), (16, 5000.0)):
        write_run(tmp_path, "ublk-null", f"read-1j-{depth}d-1m", 1, mbps)
    for mode, mbps in (("read", 100.0), ("write", 5000.0)):
        write_run(tmp_path, "ublk-null", f"{mode}-1cpu", 1, mbps)
    figures = [draw() for one in sweep.reports(tmp_path) for draw in one.figures.values()]
    assert len(figures) == 2
    for figure in figures:
        assert {axis.get_ylim()[0] for axis in figure.axes} == {0.0}
        assert all(axis.get_ylim()[1] >= 5.0 for axis in figure.axes)
