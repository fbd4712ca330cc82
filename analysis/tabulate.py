# SPDX-License-Identifier: BSD-3-Clause
"""Tables of runs: samples to cells, Holm's correction, and the notes below a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from userblk.harness.model.parts import ENGINES, Engine

from .statistics import ALPHA, holm
from .summaries import REAL, SIMULATED, Run, warnings_note
from .table import (
    ALL_METRICS,
    CONTROL,
    DEVICES,
    FILE_WORKLOADS,
    METRICS,
    NATIVE,
    PAPERS,
    RATE,
    SYSTEMS,
    TAILS,
    WORKLOADS,
    Cell,
    CellKey,
    Mark,
    Metric,
    Table,
    make_cell,
    ordered,
)

Round = tuple[str, int]  # machine, repetition


def _engine(run: Run) -> Engine:
    """The run's; one of defaults where the campaign's engine is not here."""
    return ENGINES.get(run.engine, Engine())


def _corrected(cells: Mapping[CellKey, Cell]) -> dict[CellKey, Cell]:
    """With Holm's correction over all of them but the control's, which are a family of their own."""
    corrected = dict(cells)
    for control in (False, True):
        tested = [
            key
            for key, cell in cells.items()
            if cell.p is not None and (key[2] == CONTROL) is control and key[3] in PAPERS
        ]
        adjusted = holm([cells[key].p or 0.0 for key in tested])
        for key, p_holm in zip(tested, adjusted, strict=True):
            corrected[key] = replace(cells[key], p_holm=p_holm)
    return corrected


def _tested(cells: Mapping[CellKey, Cell]) -> str:
    """How many differences a test of their own shows, and how many are left after the correction."""
    tested = [cell for key, cell in cells.items() if key[2] != CONTROL and cell.p_holm is not None]
    if not tested:
        return ""
    alone = sum(cell.p <= ALPHA for cell in tested if cell.p is not None)
    return (
        f"{alone} of {len(tested)} differences to native are significant by tests of their own (Welch, 5 %),"
        f" {sum(cell.significant for cell in tested)} after Holm's correction over the table."
    )


def _range(values: Iterable[int]) -> str:
    numbers = sorted(set(values))
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _one(runs: Sequence[Run], name: str) -> str:
    return ", ".join(sorted({str(getattr(run, name)) for run in runs if getattr(run, name)}))


def _round(run: Run) -> Round:
    """Where the run stands in time; a modelled machine has the same speed at any time."""
    return ("", 0) if run.emulated.startswith(SIMULATED) else (run.machine, run.repetition)


def _beside(base: Sequence[tuple[Round, float]], rounds: Set[Round]) -> list[float]:
    """
    The base's values of the rounds in which a system has runs: cells that need more rounds than others have them later,
    and a machine that drifts would make a difference of that. All values where those are too few for an interval.
    """
    beside = [value for place, value in base if place in rounds]
    return beside if len(beside) > 1 else [value for _, value in base]


def make_table(
    runs: Sequence[Run],
    seed: int | None = None,
    choices: Sequence[str] = (),
    of_blocks: Sequence[str] = (),
    base: str = NATIVE,
    metrics: Sequence[Metric] = METRICS,
) -> Table:
    """Table 1, or 2, of runs of one host and suite. runs is not empty; invalid ones are counted only.

    choices: what was chosen where the paper is silent about Table 2, of_blocks: how Table 1 is
    measured. base, metrics: as the table's.
    """
    engines = {run.engine: _engine(run) for run in runs}.values()
    files = any(engine.on_files for engine in engines)
    samples: dict[CellKey, list[tuple[Round, float]]] = defaultdict(list)
    rounds: dict[tuple[str, str, str], set[Round]] = defaultdict(set)
    valid: dict[tuple[str, str, str], int] = defaultdict(int)
    invalid: dict[tuple[str, str, str], int] = defaultdict(int)
    for run in runs:
        rounds[run.cell].add(_round(run))
        if not run.valid:
            invalid[run.cell] += 1
            continue
        valid[run.cell] += 1
        for name, value in run.metrics.items():
            samples[(*run.cell, name)].append((_round(run), value))
    for failed in invalid:
        valid[failed] += 0  # a cell all the same
    unsteady = {run.cell for run in runs if run.valid and run.steady is False}
    pairs = {(run.device, run.workload) for run in runs}
    rows = tuple(
        (device, workload)
        for device in ordered((run.device for run in runs), DEVICES)
        for workload in ordered((run.workload for run in runs), WORKLOADS + FILE_WORKLOADS if _known(runs) else ())
        if (device, workload) in pairs
    )
    systems = ordered({run.system for run in runs} | ({base} if base else set()), SYSTEMS)
    cells = {}
    for device, workload in rows:
        for system in systems:
            for metric in dict.fromkeys((*ALL_METRICS, *metrics)):
                key = (device, workload, system, metric.id)
                native = None
                if base not in ("", system):
                    native = _beside(samples.get((device, workload, base, metric.id), []), rounds[key[:3]])
                bad = invalid.get(key[:3], 0)
                if metric not in METRICS and key not in samples:
                    continue
                sample = [value for _, value in samples.get(key, [])]
                cell = make_cell(metric, device, workload, sample, native, bad, files)
                if metric in TAILS:
                    marks, absent = cell.marks & {Mark.INVALID, Mark.SINGLE}, valid[key[:3]] - cell.n
                    cells[key] = replace(cell, marks=marks, p=None, absent=absent)
                    continue
                if key[:3] in unsteady:
                    cell = replace(cell, marks=cell.marks | {Mark.UNSTEADY})
                cells[key] = cell
    cells = _corrected(cells)
    emulated = max(run.emulated for run in runs)
    notes = _notes(runs, valid, seed)
    notes += tuple(dict.fromkeys(engine.operation for engine in engines if engine.operation))
    if files and all(engine.parameters for engine in engines):
        head = "The paper does not state it" if _known(runs) else "How it is done"
        notes += tuple(f"{head}: {choice}." for choice in choices)
    elif not files:
        notes += tuple(f"How it is done: {choice}." for choice in of_blocks)
    return Table(
        2 if files else 1,
        _title(runs, emulated, files),
        notes,
        rows,
        systems,
        cells,
        emulated,
        host=_one(runs, "host"),
        suite=_one(runs, "suite"),
        base=base,
        metrics=tuple(metrics),
        tests=_tested(cells),
    )


def tail_table(table: Table) -> Table | None:
    """The percentiles of latency of a table's cells, laid out as it is; None where no run has them."""
    cells = {key: cell for key, cell in table.cells.items() if key[3] in {metric.id for metric in TAILS}}
    if not cells:
        return None
    notes = (
        *table.notes,
        "Mean over runs of each run's percentile, nearest rank; - where fewer than ten operations lie beyond it.",
    )
    title = f"Percentiles of latency: {table.title}"
    return replace(table, title=title, notes=notes, cells=cells, metrics=TAILS, tests="")


def _known(runs: Sequence[Run]) -> bool:
    """Are they of the rows of Tables 1 and 2?"""
    return {run.workload for run in runs} <= {*WORKLOADS, *FILE_WORKLOADS}


def _title(runs: Sequence[Run], emulated: str, files: bool) -> str:
    place = emulated or REAL
    what = "file system workloads" if files else "block device workloads"
    what = f"Table {2 if files else 1}: {what}" if _known(runs) else what.capitalize()
    return f"{what}, suite {_one(runs, 'suite')}, host {_one(runs, 'host')}, {place}"


def _notes(runs: Sequence[Run], valid: dict[tuple[str, str, str], int], seed: int | None) -> tuple[str, ...]:
    facts = [
        "devices " + ", ".join(_device(runs, d) for d in ordered((run.device for run in runs), DEVICES)),
        f"campaign {_one(runs, 'campaign')}",
        f"profile {_one(runs, 'profile')}",
        f"n = {_range(valid.values())} runs per cell",
    ]
    if kernel := _one(runs, "kernel"):
        facts.append(f"Linux {kernel}")
    if seed is not None:
        facts.append(f"seed {seed}")
    notes = ["; ".join(facts)]
    if valid and max(valid.values()) == 1:
        notes.append("One repetition: no intervals.")
    if bad := [run for run in runs if not run.valid]:
        notes.append(f"{len(bad)} of {len(runs)} runs are invalid and were left out.")
    if warned := warnings_note((run.warnings for run in runs if run.valid), len(runs)):
        notes.append(warned)
    return tuple(notes)


def _device(runs: Sequence[Run], device: str) -> str:
    """Its title, and where hosts have different ones, whose it is."""
    title = DEVICES.get(device, device)
    if len({run.host for run in runs}) == 1:
        return title
    return f"{title} of {_one([run for run in runs if run.device == device], 'host')}"


def make_tables(
    runs: Sequence[Run],
    seed: int | None = None,
    choices: Sequence[str] = (),
    of_blocks: Sequence[str] = (),
    joined: bool = False,
) -> list[Table]:
    """
    One table for each host and suite that runs were made on, but for engines that have reports of their own. joined:
    hosts that measured different devices are in one, where each device is compared with the native of its own host all
    the same.
    """
    groups = _groups(run for run in runs if not _engine(run).own_report)
    if joined:
        groups = _joined(groups)
    tables = []
    for group in groups:
        base, metrics = (NATIVE, METRICS) if _engine(group[0]).beside_native else ("", (RATE, *METRICS))
        tables.append(make_table(group, seed, choices, of_blocks, base, metrics))
    return tables


def tables_of(runs: Sequence[Run], base: str, metrics: Sequence[Metric]) -> list[Table]:
    """The same for a comparison, of whatever engine. base, metrics: as the table's."""
    return [make_table(group, base=base, metrics=metrics) for group in _groups(runs)]


def _groups(runs: Iterable[Run]) -> list[list[Run]]:
    """By host and suite."""
    groups: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.host, run.suite].append(run)
    return [group for _, group in sorted(groups.items())]


def _joined(groups: Iterable[list[Run]]) -> list[list[Run]]:
    """Those of one suite as one, unless a device is in two of them."""
    by_suite: dict[str, list[list[Run]]] = defaultdict(list)
    for group in groups:
        by_suite[group[0].suite].append(group)
    found = []
    for parts in by_suite.values():
        devices = [device for part in parts for device in {run.device for run in part}]
        alike = len(devices) > len(set(devices)) or len({run.emulated for part in parts for run in part}) > 1
        found += parts if alike else [[run for part in parts for run in part]]
    return found
