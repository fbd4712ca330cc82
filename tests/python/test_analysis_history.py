# SPDX-License-Identifier: BSD-3-Clause
"""Campaigns one after the other: userblk history."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import userblk
from synthetic import SPEED, make_campaign
from userblk.analysis import history, report
from userblk.analysis.summaries import Campaign, SummaryError, read_campaign

WORKLOADS = ["seq-read-16th-4k", "rand-write-1th-4k"]


def campaigns(tmp_path: Path, *speeds: float, **options: object) -> list[Campaign]:
    """A day apart, with nbdkit so many times as fast as in the first; the same seed, so that nothing else differs."""
    found = []
    for day, speed in enumerate(speeds, 1):
        directory = make_campaign(
            tmp_path,
            f"day{day}",
            **{"suite": "bdus-block", "systems": ["native", "nbdkit"], "workloads": WORKLOADS} | options,  # type: ignore[arg-type]
            speed=SPEED | {"nbdkit": SPEED["nbdkit"] * speed},
        )
        file = directory / "campaign.json"
        value = json.loads(file.read_text())
        value |= {"created": f"2026-01-0{day}T00:00:00Z", "userblk": {"commit": f"{day}" * 40, "modified": day == 2}}
        file.write_text(json.dumps(value))
        found.append(read_campaign(directory))
    return found


def test_a_mean_follows_what_its_cells_do(tmp_path: Path) -> None:
    one = history.history(list(reversed(campaigns(tmp_path, 1.0, 0.8, 1.2))), history.SHOWN_METRICS["throughput"])
    assert [row[:2] for row in one.rows] == [("day1", "11111111"), ("day2", "22222222+"), ("day3", "33333333")]
    rows = list(csv.DictReader(io.StringIO(report.as_csv(one))))
    changes = {(row["campaign"], row["system"]): float(row["change_percent"]) for row in rows}
    for day, change in ((1, 0), (2, -20), (3, 20)):
        assert changes[f"day{day}", "nbdkit"] == pytest.approx(change, abs=1e-9)
        assert changes[f"day{day}", "native"] == pytest.approx(0, abs=1e-9)
    assert {row["cells"] for row in rows} == {"4"} and "geometric mean" in one.title


def test_one_cell_has_its_interval(tmp_path: Path) -> None:
    found = history.points(campaigns(tmp_path, 1.0, 0.5), history.SHOWN_METRICS["latency"], "nvme", "rand-write-1th-4k")
    first, second = found["nbdkit"]
    assert first and second and first.cells == 1 and first.value.half
    assert second.change == pytest.approx(100)


def test_only_what_all_have_is_compared(tmp_path: Path) -> None:
    first = campaigns(tmp_path, 1.0)
    second = campaigns(tmp_path / "b", 1.0, systems=["native"], workloads=WORKLOADS[:1])
    found = history.points([*first, *second], history.SHOWN_METRICS["throughput"])
    assert found["nbdkit"][1] is None
    assert [point and point.cells for point in found["native"]] == [2, 2]
    with pytest.raises(SummaryError, match="cell=nvme nosuch: no system"):
        history.points(first, history.SHOWN_METRICS["throughput"], "nvme", "nosuch")


def test_what_differs_beside_the_code_is_said(tmp_path: Path) -> None:
    """Another machine is no change of what is measured."""
    first, second = campaigns(tmp_path, 1.0, 1.4)
    alike = history.history([first, second], history.SHOWN_METRICS["throughput"])
    assert not any("NOT" in note for note in alike.notes)
    other = replace(second, runs=tuple(replace(run, host="fast", kernel="7.0", profile="paper") for run in second.runs))
    notes = history.history([first, other], history.SHOWN_METRICS["throughput"]).notes
    host, kernel = first.runs[0].host, first.runs[0].kernel
    said = f"NOT measured alike: host {host}, fast; profile quick, paper; kernel {kernel}, 7.0."
    assert said in notes
    first = replace(first, asked={**first.asked, "warm_up": "60 s"})
    other = replace(second, asked={**second.asked, "warm_up": "found", "choices": ["files: 7", *first.choices]})
    notes = history.history([first, other], history.SHOWN_METRICS["throughput"]).notes
    assert "NOT measured alike: warm_up: 60 s -> found; choices: - -> files: 7." in notes


def test_the_figure_says_where_it_was_measured_and_what_is_unlike(tmp_path: Path) -> None:
    first, second = campaigns(tmp_path, 1.0, 1.4)
    throughput = history.SHOWN_METRICS["throughput"]
    assert "EMULATED (lab)" in history.history([first, second], throughput).figures["history"]()._suptitle.get_text()
    other = replace(second, runs=tuple(replace(run, emulated="", kernel="7.0") for run in second.runs))
    figure = history.history([first, other], throughput).figures["history"]()
    title = " ".join(figure._suptitle.get_text().split())
    assert title.endswith("NOT measured alike: EMULATED (lab), measured on a host's devices, kernel")
    (axes,) = figure.axes
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["day1\nEMULATED (lab)", "day2\nmeasured on a host's devices"]


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    first, second = campaigns(tmp_path, 1.0, 1.4)
    throughput = history.SHOWN_METRICS["throughput"]
    apart = replace(
        second,
        runs=tuple(run for run in second.runs if run.system == "native" or run.workload == WORKLOADS[0]),
    )
    before = replace(
        first, runs=tuple(run for run in first.runs if run.system == "native" or run.workload == WORKLOADS[1])
    )
    one = history.history([before, apart], throughput)
    assert one.columns[2:] == ("Native",)
    assert "Left out, as no cell is in all campaigns that have the system: nbdkit." in one.notes
    zero = replace(first.runs[0], metrics=first.runs[0].metrics | {throughput.id: 0.0})
    notes = history.history([replace(first, runs=(zero, *first.runs[1:])), second], throughput).notes
    assert f"Left out, as they are 0 or less: 1 of {2 * len(first.runs)} values." in notes


def test_the_command_prints_and_draws(tmp_path: Path) -> None:
    campaigns(tmp_path, 1.0, 0.8)
    figure = tmp_path / "history.svg"
    done = userblk("history", "day1", "day2", "--results", str(tmp_path), "--output", str(figure))
    assert done.returncode == 0, done.stderr
    assert "-20.0 %" in done.stdout and "day1" in figure.read_text()
    shown = userblk("history", "day1", "day2", "--results", str(tmp_path), "--json", "--device", "nvme")
    assert {row["system"] for row in json.loads(shown.stdout)} == {"native", "nbdkit"}
    wrong = userblk("history", "day1", "--results", str(tmp_path), "--output", "history.pdf")
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and ".png or .svg" in wrong.stderr
