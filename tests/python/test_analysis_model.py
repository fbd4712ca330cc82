# SPDX-License-Identifier: BSD-3-Clause
"""Native throughput of a simulated campaign beside the paper's: userblk table --model."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import make_campaign
from userblk.analysis import model, report
from userblk.analysis.papers import load_paper
from userblk.analysis.summaries import SummaryError, read_campaign
from userblk.analysis.tabulate import make_tables
from userblk.harness.machine import paths

PAPER = {("sata", "seq-read-1th-4k"): 133.18, ("nvme", "rand-write-16th-128k"): 13.04}


def simulated(tmp_path: Path, models: str, factor: float) -> Path:
    """A campaign whose native cells are so many times the paper's."""
    directory = make_campaign(tmp_path, systems=["native"], suite="bdus-block", repetitions=1)
    file = directory / "campaign.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model": models}))
    with (paths.CONFIGS / "papers/bdus/table1.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    paper = {(row["device"].lower(), row["workload"]): float(row["tput_kops_native"]) for row in rows}
    for summary in directory.rglob("summary.json"):
        value = json.loads(summary.read_text())
        value["metrics"]["throughput_kops"] = factor * paper[value["device"], value["workload"]]
        summary.write_text(json.dumps(value | {"model": models}))
    return directory


def beside(directory: Path, *notes: str, configs: Path = paths.CONFIGS) -> report.Report:
    campaign = read_campaign(directory)
    tables = [replace(table, notes=(*table.notes, *notes)) for table in make_tables(campaign.runs)]
    return model.beside_paper(campaign, tables, configs)


@pytest.mark.parametrize(("factor", "within"), [(1.14, True), (1.16, False), (0.86, True), (0.84, False)])
def test_every_native_cell_beside_the_paper(tmp_path: Path, factor: float, within: bool) -> None:
    cells, models = model.calibration(paths.CONFIGS / "models")
    one = beside(simulated(tmp_path, models, factor))
    rows = list(csv.DictReader(io.StringIO(report.as_csv(one))))
    assert len(rows) == 32 and {row["within"] for row in rows} == {str(within).lower()}
    found = {(row["device"], row["workload"]): row for row in rows}
    for cell, value in PAPER.items():
        assert float(found[cell]["paper"]) == value
        assert float(found[cell]["difference_percent"]) == pytest.approx(100 * factor - 100)
    assert {cell for cell, row in found.items() if row["calibration"] == "true"} == cells
    inside, predicted = 32 * within, (32 - len(cells)) * within
    assert one.notes[1].startswith(f"{inside} of 32 cells") and one.notes[1].endswith(f"no model, {predicted} are.")
    assert one.notes[2:] == ("One repetition: no intervals.",) and one.title.endswith(f"model {models})")


def test_only_cells_of_the_paper_are_calibrated() -> None:
    """The native columns have each of them, and no model may be set from anything else."""
    cells, _ = model.calibration(paths.CONFIGS / "models")
    assert cells
    paper = load_paper("bdus", paths.CONFIGS).tables[1]
    assert cells <= set(paper.rows)


def test_another_version_of_the_models_is_told(tmp_path: Path) -> None:
    assert "not of the campaign's" in beside(simulated(tmp_path, "cpu-0 sata-0 nvme-0", 1.0)).notes[2]


def test_what_qualifies_the_table_qualifies_it_beside_the_paper(tmp_path: Path) -> None:
    directory = simulated(tmp_path, "cpu-0 sata-0 nvme-0", 1.0)
    file = next(directory.rglob("summary.json"))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"valid": False, "invalid": ["broken"]}))
    notes = beside(directory, "LOST: a run").notes
    assert "1 of 32 runs are invalid and were left out." in notes and "LOST: a run" in notes


def test_what_has_no_model_is_refused(tmp_path: Path) -> None:
    directory = make_campaign(tmp_path, systems=["native"], suite="bdus-block", repetitions=1)
    with pytest.raises(SummaryError, match="it used no model"):
        beside(directory)


def test_a_model_that_does_not_tell_its_cells(tmp_path: Path) -> None:
    shutil.copytree(paths.CONFIGS / "models", tmp_path / "models")
    file = tmp_path / "models/sata.toml"
    file.write_text(file.read_text().replace("calibration = ", "cells = "))
    with pytest.raises(SummaryError, match="sata.toml: cannot be read: 'calibration'"):
        model.calibration(tmp_path / "models")
