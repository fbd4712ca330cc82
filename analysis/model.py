# SPDX-License-Identifier: BSD-3-Clause
"""The lab's models beside the machine that they stand for: native throughput, ours and the paper's, cell by cell.

The models (configs/models) are set from some of the paper's native cells, which they list; the other native cells, and
everything about any other system, are predictions.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path

from .papers import Paper, papers_of
from .report import NO_VALUE, Report, interval_fields, interval_text
from .summaries import Campaign, SummaryError
from .table import DEVICES, METRICS, NATIVE, Table

LIMIT = 15.0  # % of the paper's value that a modelled one may be away from it
THROUGHPUT = METRICS[0]
HEADS = "device workload ours ours_low ours_high paper difference_percent within calibration"


def calibration(models: Path) -> tuple[frozenset[tuple[str, str]], str]:
    """The cells (device, workload) that the models are set from, and what results made with them are labelled with.

    Raises SummaryError.
    """
    cells: set[tuple[str, str]] = set()
    names = []
    for name in ("cpu", *DEVICES):
        path = models / f"{name}.toml"
        try:
            value = tomllib.loads(path.read_text(encoding="utf-8"))
            names.append(f"{value['name']}-{value['version']}")
            for cell in value["calibration"]:
                device, workload = cell.split()
                cells.add((device, workload))
        except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
            raise SummaryError(f"{path}: cannot be read: {error}") from None
    return frozenset(cells), " ".join(names)


def _notes(campaign: Campaign, source: str, models: str, distances: Sequence[tuple[float, bool]]) -> list[str]:
    within = sum(abs(distance) <= LIMIT for distance, _ in distances)
    predicted = [distance for distance, calibrated in distances if not calibrated]
    predicted_within = sum(abs(distance) <= LIMIT for distance in predicted)
    notes = [
        f"campaign {campaign.name}; kop/s; paper: Table 1 of {source}, column native",
        f"{within} of {len(distances)} cells are within {LIMIT:g} % of the paper's; of the"
        f" {len(predicted)} that calibrated no model, {predicted_within} are.",
    ]
    if str(campaign.asked.get("model")) != models:
        notes.append(f"Calibration cells are those of models {models}, not of the campaign's.")
    return notes


def beside_paper(campaign: Campaign, tables: Sequence[Table], configs: Path) -> Report:
    """Native throughput of a simulated campaign beside the paper's. Raises SummaryError where it was not simulated."""
    found = next((table for table in tables if table.number == 1 and table.emulated), None)
    if found is None or not campaign.asked.get("model"):
        raise SummaryError(
            f"{campaign.directory}: was not run in the lab's virtual time, or not with suite bdus-block; it"
            " used no model"
        )
    calibrated, models = calibration(configs / "models")
    paper = papers_of([found.suite], configs)[0]
    return _report(campaign, found, paper, calibrated, models)


def _report(
    campaign: Campaign, ours: Table, paper: Paper, calibrated: Collection[tuple[str, str]], models: str
) -> Report:
    rows, records, distances = [], [], []
    for device, workload in ours.rows:
        mean = ours.cell(device, workload, NATIVE, THROUGHPUT).mean
        theirs = paper.tables[1].cell(device, workload, NATIVE, THROUGHPUT).mean
        if mean is None or theirs is None:
            continue
        distance = 100 * (mean.value / theirs.value - 1)
        within = abs(distance) <= LIMIT
        used = (device, workload) in calibrated
        distances.append((distance, used))
        rows.append(
            (
                DEVICES.get(device, device),
                workload,
                interval_text(mean, 2),
                f"{theirs.value:.2f}",
                f"{distance:+.1f} %",
                "yes" if within else "NO",
                "set from it" if used else NO_VALUE,
            )
        )
        flags = [str(flag).lower() for flag in (within, used)]
        records.append((device, workload, *interval_fields(mean), repr(theirs.value), repr(distance), *flags))
    return Report(
        "model",
        f"Native throughput beside the paper's, {ours.emulated}",
        (*_notes(campaign, paper.source, models, distances), *ours.notes[1:]),
        ("Device", "Workload", "Model", "Paper", "Difference", f"Within {LIMIT:g} %", "Calibration"),
        tuple(rows),
        tuple(HEADS.split()),
        tuple(records),
        emulated=ours.emulated,
    )
