# SPDX-License-Identifier: BSD-3-Clause
"""Tables as LaTeX and HTML, and half widths on demand in all forms."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_up import made_up, runs
from rich.console import Console
from userblk.analysis import latex, render
from userblk.analysis.html import html
from userblk.analysis.papers import load_paper
from userblk.analysis.summaries import Run
from userblk.analysis.table import METRICS, TAILS, Mark, Table
from userblk.analysis.tabulate import make_table, tail_table
from userblk.harness.machine.paths import CONFIGS

PAPER = list(load_paper("bdus", CONFIGS).tables.values())
FORMS = {"markdown": render.markdown, "csv": render.csv_wide, "latex": latex.latex, "html": html}


def terminal(tables: list[Table], ci: bool) -> str:
    console = Console(file=io.StringIO(), width=250, record=True, _environ={"TERM": "xterm-256color"})
    for table in tables:
        console.print(render.terminal(table, console, ci))
    return console.export_text()


def test_half_widths_are_shown_on_demand() -> None:
    table = make_table(made_up())
    half = render.half_text(table, METRICS[0], "nbdkit", table.cell("sata", "seq-read-1th-4k", "nbdkit", METRICS[0]))
    assert re.fullmatch(r"±\d+\.\d", half)
    forms: list[Any] = [terminal, FORMS["markdown"]]
    for form in forms:
        assert half in form([table], True) and "±" not in form([table], False)
    assert "$\\pm$" in latex.latex([table], True) and "$\\pm$" not in latex.latex([table])
    assert '<body class="plain">' in html([table]) and "<body>" in html([table], True)
    wide = list(csv.DictReader(io.StringIO(render.csv_wide([table], True))))
    assert wide[0]["tput_kops_nbdkit_half"] == half[1:] and "tput_kops_nbdkit_half" not in render.csv_wide([table])


def test_what_is_not_significant_is_marked() -> None:
    same = make_table(runs("native", [10.0, 10.2, 9.8]) + runs("nbdkit", [10.1, 9.9, 10.05]))
    cell = same.cell("sata", "seq-read-1th-4k", "nbdkit", METRICS[0])
    assert Mark.SAME in cell.marks and not cell.significant and cell.p_holm is not None and cell.p is not None
    assert cell.p_holm >= cell.p
    assert render.cell_text(same, METRICS[0], "nbdkit", cell, ci=False).endswith("=")
    clear = make_table(runs("native", [10.0, 10.2, 9.8]) + runs("nbdkit", [5.1, 4.9, 5.0]))
    cell = clear.cell("sata", "seq-read-1th-4k", "nbdkit", METRICS[0])
    assert Mark.SAME not in cell.marks and cell.significant
    assert "2 of 3 differences to native are significant by tests of their own" in clear.tests


def test_what_the_correction_takes_away_is_not_called_the_same() -> None:
    """One clear difference among thirty cells without any, in three runs each."""
    others = [f"w{number}" for number in range(30)]
    several = [run for name in others for run in runs("native", [10.0, 10.2, 9.8], workload=name)]
    several += [run for name in others for run in runs("nbdkit", [10.1, 9.9, 10.05], workload=name)]
    several += runs("native", [10.0, 10.2, 9.8]) + runs("nbdkit", [9.2, 9.4, 9.0])
    table = make_table(several)
    cell = table.cell("sata", "seq-read-1th-4k", "nbdkit", METRICS[0])
    assert not cell.significant and Mark.SAME not in cell.marks
    assert "2 of 93 differences to native are significant by tests of their own" in table.tests
    assert " (Welch, 5 %), 0 after Holm" in table.tests


def test_the_control_is_a_family_of_its_own() -> None:
    """It must neither make the correction of the table harder nor be hidden by it."""
    systems = runs("native", [10.0, 10.2, 9.8]) + runs("nbdkit", [9.0, 9.3, 9.1])
    alone = make_table(systems)
    with_control = make_table(systems + runs("native-control", [10.1, 10.0, 9.9]))
    key = ("sata", "seq-read-1th-4k", "nbdkit", "throughput_kops")
    assert alone.cells[key].p_holm == with_control.cells[key].p_holm
    assert with_control.systems == ("native", "native-control", "nbdkit")


# ---- tails ----------------------------------------------------------------------------------


def with_tails(system: str, factor: float) -> list[Run]:
    return [
        replace(run, metrics={**run.metrics, "latency_p50_us": 10.0 * factor + n, "latency_p99_us": 100.0 * factor + n})
        for n, run in enumerate(runs(system, [10.0, 10.2, 9.8]))
    ]


@pytest.mark.parametrize("form", FORMS)
def test_tails_are_tables_of_their_own(form: str) -> None:
    table = make_table(with_tails("native", 1.0) + with_tails("nbdkit", 2.0))
    plain = make_table(runs("native", [10.0, 10.2, 9.8]) + runs("nbdkit", [10.0, 10.2, 9.8]))
    assert FORMS[form]([table], True) == FORMS[form]([plain], True)  # the paper's layout stays as it is
    tails = tail_table(table)
    assert tails is not None and tail_table(plain) is None
    cell = tails.cell("sata", "seq-read-1th-4k", "nbdkit", TAILS[2])
    assert cell.mean is not None and cell.mean.value == 201.0 and cell.mean.half is not None
    assert cell.difference is not None and cell.difference.value == pytest.approx(100 * (201 / 101 - 1))
    assert "99.0" in FORMS[form]([tails], True)
    assert "latency_p99_us" in render.csv_long([table]) and "latency_p99_us" not in render.csv_long([plain])


@pytest.mark.parametrize("form", sorted(FORMS.keys() - {"csv"}))  # the long CSV has n
def test_runs_without_a_percentile_are_told(form: str) -> None:
    """It is the slow ones that have too few operations beyond it."""
    found = with_tails("nbdkit", 2.0)
    found[1] = replace(found[1], metrics={k: v for k, v in found[1].metrics.items() if k != "latency_p99_us"})
    tails = tail_table(make_table(with_tails("native", 1.0) + found))
    assert tails is not None
    cell = tails.cell("sata", "seq-read-1th-4k", "nbdkit", TAILS[2])
    assert (cell.n, cell.absent, cell.p) == (2, 1, None)
    text = FORMS[form]([tails], True)
    assert "(not in 1)" in text and "not in k" in text
    whole = tail_table(make_table(with_tails("native", 1.0)))
    assert whole is not None and "not in" not in FORMS[form]([whole], True)


# ---- LaTeX ----------------------------------------------------------------------------------


def test_latex_has_the_papers_layout() -> None:
    text = latex.latex(PAPER)
    assert text.count(r"\begin{table*}") == text.count(r"\end{table*}") == 2
    for rule in (r"\toprule", r"\bottomrule", r"\usepackage{booktabs}", r"\cmidrule(lr){3-7}\ "[:-2]):
        assert rule in text
    rows = [line for line in text.splitlines() if r"\texttt{" in line]
    assert len(rows) == 32 + 50
    assert {row.count(" & ") for row in rows[:32]} == {1 + 15} and {row.count(" & ") for row in rows[32:]} == {1 + 18}
    assert rows[0].startswith(r"SATA & \texttt{seq-read-1th-4k} & 133.18 & \cellcolor[HTML]{")
    assert "$-$21.4" in rows[0]
    assert sum("SATA" in row for row in rows) == 2 and sum("NVMe" in row for row in rows) == 2


def test_latex_escapes() -> None:
    assert latex.escape(r"50 % of a_b & $c {d} ~ ^ \ #") == (
        r"50 \% of a\_b \& \$c \{d\} \textasciitilde{} \textasciicircum{} \textbackslash{} \#"
    )


@pytest.mark.parametrize("ci", [False, True])
def test_latex_compiles(tmp_path: Path, ci: bool) -> None:
    program = shutil.which("pdflatex")
    if program is None:
        pytest.skip("pdflatex is not installed; run: apt-get install texlive-latex-recommended")
    (tmp_path / "tables.tex").write_text(latex.latex([*PAPER, make_table(made_up(), choices=["a_b is 5 % (#1)"])], ci))
    argv = [program, "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "Output written on tables.pdf (3 pages" in done.stdout
    assert "Overfull" not in done.stdout


# ---- HTML -----------------------------------------------------------------------------------


class Counter(HTMLParser):
    """Counts elements, and notices those that are not closed."""

    VOID = {"meta", "br", "input", "link"}

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_well_formed_and_complete() -> None:
    parser = Counter()
    parser.feed(html(PAPER))
    assert parser.open == []
    # The two empty cells above the names of devices and workloads head nothing, and only the first row of each of the
    # two devices has a name of a device.
    empty = 2 * 2 + (32 - 2) + (50 - 2)
    assert parser.counts["table"] == 2 and parser.counts["td"] == 32 * 15 + 50 * 18 + empty
    assert parser.counts["tr"] == 32 + 50 + 2 * 2


def test_html_shades_as_the_terminal_does() -> None:
    text = html([PAPER[0]])
    cell = PAPER[0].cell("sata", "rand-read-16th-4k", "buse", METRICS[0])
    colours = render.shade(METRICS[0], "buse", cell)
    assert colours is not None
    style = f"background:{colours.background};color:{colours.text}"
    assert re.search(rf'{style}" title="BUSE, Throughput[^"]*">-89\.2<', text)
