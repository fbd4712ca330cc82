# SPDX-License-Identifier: BSD-3-Clause
"""The table and the figures of suite failover, from the files of a campaign."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from userblk.analysis import failover, report
from userblk.analysis.summaries import SummaryError, load_campaign
from userblk.analysis.tabulate import make_tables


def write_run(
    campaign: Path, system: str, number: int, event: str = "kill", valid: bool = True, **metrics: float | None
) -> Path:
    directory = campaign / "lab/nvme/failover" / system / event / str(number)
    directory.mkdir(parents=True)
    values = {"failed_requests": 0.0, "lost_blocks": 0.0, "stall_s": 2.0, "recovery_s": 3.0} | metrics
    summary: dict[str, Any] = {
        "schema": 1, "campaign": "c", "host": "lab", "device": "nvme", "suite": "failover", "engine": "failover",
        "system": system, "workload": event, "repetition": number, "profile": "quick", "emulated": True,
        "kernel": "6.12", "valid": valid, "invalid": [] if valid else ["the server died"], "warnings": [],
        "metrics": values, "settings": {"failover": {"event_s": 6.5, "before_kops": 12.0}},
    }  # fmt: skip
    (directory / "summary.json").write_text(json.dumps(summary))
    rows = [f"{tick / 10},0,{0 if 65 <= tick < 95 else 12}" for tick in range(1, 330)]
    (directory / "samples.csv").write_text("time_s,read_kops,write_kops\n" + "\n".join(rows) + "\n")
    (directory / "DONE").touch()
    return directory


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    for number, stall in enumerate((2.0, 4.0, 3.0), 1):
        write_run(tmp_path, "tcmu", number, stall_s=stall)
        write_run(tmp_path, "nbdkit", number, recovery_s=None if number == 2 else 11.0)
    write_run(tmp_path, "ublk-uring", 1, event="replace", stall_s=0.25)
    write_run(tmp_path, "tcmu", 4, valid=False, stall_s=99.0)
    write_run(tmp_path, "tcmu", 0, stall_s=99.0)  # in which costs are counted
    return tmp_path


def test_the_table_in_every_form(campaign: Path) -> None:
    (one,) = failover.reports(campaign)
    assert "EMULATED" in one.title
    assert [row[1:4] for row in one.rows] == [
        ("nbdkit", "killed", "3"),
        ("TCMU", "killed", "3"),
        ("ublk (io_uring)", "replaced", "1"),
    ]
    assert one.rows[1][6] == "3.00 ±2.48"  # t = 4.303, s = 1, n = 3
    assert one.rows[0][7] == "11.00 ±0.00 (not in 1)"
    assert one.rows[2][6] == "0.25"
    assert any("1 of 8 runs are invalid" in note for note in one.notes)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report.terminal(one))
    for text in (console.export_text(), report.markdown([one])):
        assert "3.00 ±2.48" in text and "ENOTCONN" in text
    lines = {(r["system"], r["measure"]): r for r in csv.DictReader(io.StringIO(report.as_csv(one)))}
    assert float(lines["tcmu", "stall_s"]["mean"]) == 3 and lines["tcmu", "stall_s"]["n"] == "3"
    assert float(lines["tcmu", "stall_s"]["ci_low"]) == pytest.approx(0.516, abs=0.001)
    assert lines["ublk-uring", "stall_s"]["ci_low"] == ""


def test_figures_show_the_time_around_the_event(campaign: Path, tmp_path: Path) -> None:
    (one,) = failover.reports(campaign)
    assert report.draw([one], tmp_path) == [
        "failover-nvme-kill.png", "failover-nvme-kill.svg", "failover-nvme-replace.png", "failover-nvme-replace.svg",
    ]  # fmt: skip
    assert (tmp_path / "failover-nvme-kill.png").read_bytes()[1:4] == b"PNG"
    assert "<svg" in (tmp_path / "failover-nvme-kill.svg").read_text()
    runs = [failover.Run("", "", "", {}, series) for series in ([(0.05, 4.0), (0.15, 6.0)], [(0.2, 8.0)])]
    assert failover.mean_series(runs) == [(0.125, 6.0)]


def test_the_resolution_is_that_of_the_runs(campaign: Path, tmp_path: Path) -> None:
    """Summaries that do not have it are of runs with 0.1 s."""
    (old,) = failover.reports(campaign)
    assert any("the mean of 1 s was 90 %" in note and "resolution of 0.1 s" in note for note in old.notes)
    directory = write_run(tmp_path / "virtual", "tcmu", 1)
    summary = json.loads((directory / "summary.json").read_text())
    summary["settings"]["failover"] |= {"window_s": 0.1, "interval_s": 0.02}
    (directory / "summary.json").write_text(json.dumps(summary))
    (new,) = failover.reports(tmp_path / "virtual")
    assert any("the mean of 0.1 s was 90 %" in note and "resolution of 0.02 s" in note for note in new.notes)
    runs = [failover.Run("", "", "", {}, [(0.01, 4.0), (0.03, 6.0), (0.06, 8.0)], interval_s=0.02)]
    assert failover.mean_series(runs) == [(0.025, 5.0), (pytest.approx(0.075), 8.0)]


def test_its_runs_are_in_no_table_of_the_paper(campaign: Path) -> None:
    assert make_tables(load_campaign(campaign)) == []


def test_a_run_that_has_lost_its_summary_is_left_out(campaign: Path) -> None:
    """Or is made again meanwhile: the other tables of the campaign can be made, and so can these."""
    (campaign / "lab/nvme/failover/tcmu/kill/2/summary.json").unlink()
    (one,) = failover.reports(campaign)
    assert [row[3] for row in one.rows] == ["3", "2", "1"]


def test_no_runs_and_broken_files(tmp_path: Path) -> None:
    assert failover.reports(tmp_path) == []
    directory = write_run(tmp_path, "tcmu", 1)
    (directory / "samples.csv").write_text("nothing\n1\n")
    with pytest.raises(SummaryError, match="samples.csv: cannot be read"):
        failover.reports(tmp_path)
    (directory / "summary.json").write_text("{}")
    with pytest.raises(SummaryError, match="schema=None"):
        failover.reports(tmp_path)
