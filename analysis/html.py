# SPDX-License-Identifier: BSD-3-Clause
"""Tables as HTML, by templates: a page of their own, or parts of the report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .render import half_text, legend, shade, sign_text, unit_text, value_text
from .table import DEVICES, SYSTEMS, Table


@dataclass(frozen=True)
class CellView:
    """value "" where there is none. style: CSS. hint: what is shown over it."""

    value: str
    half: str
    signs: str
    style: str
    hint: str


@dataclass(frozen=True)
class RowView:
    """device: "" but in the first row of one. name: of its part of the report, "" outside of one."""

    device: str
    workload: str
    name: str
    cells: tuple[CellView, ...]


@dataclass(frozen=True)
class TableView:
    title: str
    emulated: str
    groups: tuple[str, ...]
    heads: tuple[tuple[str, str], ...]  # system, unit
    systems: int
    rows: tuple[RowView, ...]
    notes: tuple[str, ...]


def table_view(table: Table, names: Mapping[tuple[str, str], str] | None = None) -> TableView:
    """names: of rows in the report, by device and workload."""
    rows, last = [], ""
    for device, workload in table.rows:
        cells = []
        for metric in table.metrics:
            for system in table.systems:
                cell = table.cell(device, workload, system, metric)
                colours = shade(metric, system, cell)
                style = ""
                if colours:
                    style = f"background:{colours.background};color:{colours.text}"
                    style += ";font-weight:bold" if colours.bold else ""
                hint = f"{SYSTEMS.get(system, system)}, {metric.title}, n = {cell.n}"
                if cell.mean is not None and not table.absolute(system):
                    hint += f", mean {cell.mean.value:.4g} {metric.unit}"
                if cell.p_holm is not None:
                    hint += f", p = {cell.p_holm:.2g} (Holm)"
                value = value_text(table, metric, system, cell)
                half = half_text(table, metric, system, cell)
                cells.append(CellView(value, half, sign_text(table, cell), style, hint))
        name = (names or {}).get((device, workload), "")
        rows.append(RowView("" if device == last else DEVICES.get(device, device), workload, name, tuple(cells)))
        last = device
    heads = tuple((SYSTEMS.get(s, s), unit_text(table, metric, s)) for metric in table.metrics for s in table.systems)
    groups = tuple(metric.title for metric in table.metrics)
    notes = (*table.notes, *legend(table))
    return TableView(table.title, table.emulated, groups, heads, len(table.systems), tuple(rows), notes)


@cache
def templates() -> Environment:
    """The templates of the directory beside this file; a name that is not there is an error."""
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def embedded(value: object) -> str:
    """JSON that may stand in a <script>."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def html(tables: Sequence[Table], ci: bool = False) -> str:
    """A page that needs nothing else."""
    page: str = templates().get_template("tables.html").render(tables=[table_view(t) for t in tables], ci=ci)
    return page
