# SPDX-License-Identifier: BSD-3-Clause
"""Tables, from made-up summaries (the numbers are inputs of the tests, not results) and the paper's own CSV."""

from __future__ import annotations

import csv
import io
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up import made_up, run, runs, small_campaign, summary
from rich.console import Console
from userblk.analysis import compare, costs, render, report
from userblk.analysis.papers import load_paper
from userblk.analysis.statistics import Interval
from userblk.analysis.summaries import Run, SummaryError, load_campaign, notes_of, read_campaign, run_from_summary
from userblk.analysis.table import (
    FILE_WORKLOADS,
    FILES,
    METRICS,
    SYSTEMS,
    WORKLOADS,
    Grade,
    Mark,
    Table,
    control,
    graded,
    half_width_limit,
    make_cell,
)
from userblk.analysis.tabulate import make_table, make_tables, tail_table
from userblk.harness.machine.paths import CONFIGS

THROUGHPUT, LATENCY, CPU = METRICS
PAPER = CONFIGS / "papers/bdus/table1.csv"
BDUS = load_paper("bdus", CONFIGS).tables


def text(table: Table, width: int, **options: Any) -> str:
    # A dumb terminal has 80 columns whatever width= says.
    environment = {"TERM": "xterm-256color"}
    console = Console(file=io.StringIO(), width=width, record=True, _environ=environment, **options)
    console.print(render.terminal(table, console, ci=True))
    return console.export_text()


# ---- the paper's table ------------------------------------------------------------


def test_papers_table_comes_out_as_it_went_in() -> None:
    assert render.csv_wide([BDUS[1]]) == PAPER.read_text()


def test_papers_second_table_comes_out_as_it_went_in() -> None:
    table = BDUS[2]
    assert render.csv_wide([table]) == (CONFIGS / "papers/bdus/table2.csv").read_text()
    assert table.title.startswith("Table 2")
    assert table.rows == tuple((device, name) for device in ("sata", "nvme") for name in WORKLOADS + FILE_WORKLOADS)
    left_out = table.cell("nvme", "web-server", "fuse", THROUGHPUT)
    assert render.cell_text(table, THROUGHPUT, "fuse", left_out) == "-"


def test_papers_rows_are_in_our_order() -> None:
    rows = BDUS[1].rows
    assert rows == tuple((device, workload) for device in ("sata", "nvme") for workload in WORKLOADS)


def test_paper_marks_its_improvements() -> None:
    table = BDUS[1]
    better = {key for key, cell in table.cells.items() if Mark.BETTER in cell.marks}
    # The only ones of the paper: CPU, where throughput fell.
    assert ("sata", "rand-read-16th-4k", "buse", "cpu_percent") in better
    assert {key[3] for key in better} == {"cpu_percent"}
    assert all(table.cells[key].difference.value < -5 for key in better)  # type: ignore[union-attr]
    assert render.cell_text(table, CPU, "buse", table.cell("sata", "rand-read-16th-4k", "buse", CPU)) == "-17*"


# ---- cells --------------------------------------------------------------------------


def test_cell_by_hand() -> None:
    cell = make_cell(THROUGHPUT, "sata", "seq-read-1th-4k", [8.0, 8.0, 8.0], [10.0, 10.0, 10.0], 0)
    assert cell.difference is not None and cell.mean is not None
    assert (cell.n, cell.mean.value, cell.difference.value) == (3, 8.0, pytest.approx(-20.0))
    assert cell.marks == frozenset()
    points = make_cell(CPU, "sata", "seq-read-1th-4k", [25.0, 27.0], [20.0, 22.0], 0)
    assert points.difference is not None and points.difference.value == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("metric", "value", "better"),
    [(THROUGHPUT, 105.1, True), (THROUGHPUT, 104.9, False), (THROUGHPUT, 90.0, False), (LATENCY, 94.9, True),
     (LATENCY, 95.1, False), (LATENCY, 110.0, False), (CPU, 94.9, True), (CPU, 95.1, False)],
)  # fmt: skip
def test_improvement_over_five(metric: Any, value: float, better: bool) -> None:
    cell = make_cell(metric, "sata", "seq-read-1th-4k", [value] * 2, [100.0] * 2, 0)
    assert (Mark.BETTER in cell.marks) is better


def test_limits_of_the_paper() -> None:
    assert half_width_limit(THROUGHPUT, "sata", "seq-write-1th-4k", 200.0) == 10.0
    assert half_width_limit(LATENCY, "nvme", "seq-read-1th-4k", 200.0) == 10.0
    assert half_width_limit(LATENCY, "nvme", "rand-write-16th-4k", 200.0) == 20.0
    assert half_width_limit(CPU, "nvme", "rand-write-16th-4k", 50.0) == 5.0


def test_wide_interval_is_marked() -> None:
    sample = [100.0, 102.0, 104.0]  # half width 4.97 %
    assert Mark.WIDE not in make_cell(THROUGHPUT, "sata", "seq-read-1th-4k", sample, None, 0).marks
    wider = [99.0, 102.0, 105.0]  # 7.3 %
    assert Mark.WIDE in make_cell(THROUGHPUT, "sata", "seq-read-1th-4k", wider, None, 0).marks
    assert Mark.WIDE not in make_cell(THROUGHPUT, "nvme", "seq-write-1th-4k", wider, None, 0).marks


def test_single_run_says_so() -> None:
    table = make_table(runs("native", [10.0, 10.1]) + runs("nbdkit", [8.0]))
    cell = table.cell("sata", "seq-read-1th-4k", "nbdkit", THROUGHPUT)
    assert cell.marks == {Mark.SINGLE} and cell.difference is not None and cell.difference.half is None
    assert render.cell_text(table, THROUGHPUT, "nbdkit", cell) == "-20.4 n=1"
    assert "n=1: a single run, so no interval." in render.legend(table)


def test_one_repetition_is_said_once() -> None:
    table = make_table(runs("native", [10.0]) + runs("nbdkit", [8.0]))
    cell = table.cell("sata", "seq-read-1th-4k", "nbdkit", THROUGHPUT)
    assert render.cell_text(table, THROUGHPUT, "nbdkit", cell) == "-20.0"
    assert "One repetition: no intervals." in table.notes
    assert not any("n=1" in line for line in render.legend(table))
    both = make_table(runs("native", [10.0, 10.1]))
    assert "One repetition: no intervals." not in both.notes


def test_single_native_run_leaves_others_without_interval() -> None:
    table = make_table(runs("native", [10.0]) + runs("nbdkit", [8.0, 8.0]))
    cell = table.cell("sata", "seq-read-1th-4k", "nbdkit", THROUGHPUT)
    assert render.cell_text(table, THROUGHPUT, "nbdkit", cell) == "-20.0 ±?"
    assert any(line.startswith("±?") for line in render.legend(table))


def test_invalid_runs_are_counted_and_never_averaged() -> None:
    bad = run(1e9, system="nbdkit", repetition=4, valid=False, invalid=["fio failed"])
    table = make_table([*runs("native", [10.0, 10.0]), *runs("nbdkit", [8.0, 8.0]), bad])
    cell = table.cell("sata", "seq-read-1th-4k", "nbdkit", THROUGHPUT)
    assert (cell.n, cell.invalid, cell.mean and cell.mean.value) == (2, 1, 8.0)
    assert render.cell_text(table, THROUGHPUT, "nbdkit", cell) == "-20.0 ±0.0 !1"
    assert any("1 of 5 runs are invalid" in note for note in table.notes)


def test_cell_of_invalid_runs_only() -> None:
    bad = run(5.0, system="nbdkit", valid=False, invalid=["fio failed"])
    table = make_table([*runs("native", [10.0, 10.0]), bad])
    cell = table.cell("sata", "seq-read-1th-4k", "nbdkit", THROUGHPUT)
    assert (cell.n, cell.mean, cell.difference) == (0, None, None)
    assert render.cell_text(table, THROUGHPUT, "nbdkit", cell) == "- !1"
    assert "; n = 0 to 2 runs per cell" in table.notes[0]


def test_a_machine_that_becomes_slower_is_no_difference() -> None:
    """Native has more rounds than the system, because another system needed them."""
    values = [100 - 0.5 * index for index in range(15)]

    def difference(**place: Any) -> Interval:
        table = make_table(runs("native", values, **place) + runs("tcmu", values[:5], **place))
        found = table.cell("sata", "seq-read-1th-4k", "tcmu", THROUGHPUT).difference
        assert found and table.cell("sata", "seq-read-1th-4k", "native", THROUGHPUT).n == 15
        return found

    assert difference(emulated=False).value == pytest.approx(0)
    # A modelled machine has one speed, and all runs count.
    assert difference(model="cpu-9").value == pytest.approx(100 * (99 / 96.5 - 1))


def test_the_limit_of_writes_to_nvme_is_named_where_it_is_applied() -> None:
    """Below Table 1, not below tables of files, whose limit is 5 % everywhere."""
    place = {"device": "nvme", "workload": "rand-write-1th-4k"}
    of_files = runs("native", [92, 100, 108], engine="flow", **place)
    of_blocks = runs("native", [70, 100, 130], **place)
    for sample, named in ((of_blocks, True), (of_files, False)):
        (said,) = (line for line in render.legend(make_table(sample)) if line.startswith(Mark.WIDE.value))
        assert ("(NVMe writes 10 %)" in said) is named and "over 5 % of the mean" in said


def test_without_native_there_is_no_difference() -> None:
    table = make_table(runs("tcmu", [8.0, 8.2]))
    cell = table.cell("sata", "seq-read-1th-4k", "tcmu", THROUGHPUT)
    assert cell.mean is not None and cell.difference is None
    assert render.cell_text(table, THROUGHPUT, "tcmu", cell) == "no native"


# ---- the whole table ------------------------------------------------------------------


def test_rows_and_columns_are_the_papers() -> None:
    table = make_table(made_up(), seed=77)
    assert table.rows == BDUS[1].rows
    assert table.systems == ("native", "nbdkit", "tcmu")
    assert "EMULATED (lab)" in table.title and "host nowhere" in table.title
    for fact in ("devices SATA, NVMe", "profile quick", "n = 3 runs", "Linux 0.0.0-test", "seed 77"):
        assert fact in table.notes[0]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_terminal_shows_every_cell_whatever_its_width(width: int) -> None:
    table = make_table(made_up())
    shown = text(table, width)
    assert max(map(len, shown.splitlines())) <= width
    for metric in METRICS:
        for system in table.systems:
            cell = table.cell("sata", "seq-read-1th-4k", system, metric)
            assert render.cell_text(table, metric, system, cell) in shown
    assert shown.count("seq-read-1th-4k") in (2, 6)  # one grid, or one a metric
    assert "…" not in shown


def test_terminal_is_legible_without_colour_and_dark_is_worse() -> None:
    table = make_table(made_up())
    assert text(table, 200, no_color=True, color_system=None) == text(table, 200, force_terminal=True)
    better = render.cell_style(THROUGHPUT, "nbdkit", table.cell("sata", "seq-read-1th-4k", "nbdkit", THROUGHPUT))
    assert better.bgcolor is not None and better.bgcolor.name == "#ffffff"
    shades = [
        sum(style.bgcolor.get_truecolor())
        for value in (100.0, 80.0, 40.0, 5.0)
        if (
            style := render.cell_style(THROUGHPUT, "x", make_cell(THROUGHPUT, "sata", "w", [value], [100.0], 0))
        ).bgcolor
    ]
    assert len(shades) == 4 and shades == sorted(shades, reverse=True) and len(set(shades)) == 4


@pytest.mark.parametrize("title", ["mine [file]", "mine [/memory]"])
def test_a_systems_title_is_text_wherever_it_is_printed(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the user's own, from a file of configs/systems."""
    monkeypatch.setitem(SYSTEMS, "mine", title)
    table = make_table(runs("native", [10.0, 11.0]) + runs("mine", [5.0, 6.0]))
    one = report.Report("r", "t", (), ("Device", "Mode", title), (("a", "b", "1"), ("c", "d", "2")), (), ())
    sides = [
        replace(small, runs=tuple(runs("mine", [5.0, 6.0]))) for small in [read_campaign(small_campaign(tmp_path))] * 2
    ]
    console = Console(file=io.StringIO(), width=200)
    for shown in (
        render.terminal(table, console),
        report.terminal(one),
        costs.terminal([costs.Cost("h", "s", "sata", "w", "mine", "server_syscalls_per_op", 1, 2.0)]),
        compare.terminal(compare.compare(*sides), True),
    ):
        console.file = io.StringIO()
        console.print(shown)
        assert title in console.file.getvalue()


def test_markdown_has_a_row_for_each_workload() -> None:
    table = make_table(made_up())
    lines = render.markdown([table]).splitlines()
    assert lines[0] == f"### {table.title}"
    rows = [line for line in lines if line.startswith("| SATA") or line.startswith("| NVMe")]
    assert len(rows) == 32 and {line.count("|") for line in rows} == {12}


def test_wide_csv_says_where_it_was_measured() -> None:
    records = list(csv.DictReader(io.StringIO(render.csv_wide([make_table(made_up())]))))
    assert len(records) == 32
    assert all("EMULATED (lab)" in record["measured"] for record in records)
    assert records[0]["tput_kops_native"] == "1246.85" and records[0]["tput_kops_nbdkit"] == "+20.0"


def test_wide_csv_has_numbers_only() -> None:
    """The difference to a native of one run has no interval; a program that reads the column stumbled over `?`."""
    table = make_table(runs("native", [10.0]) + runs("nbdkit", [8.0, 8.1]))
    (record,) = csv.DictReader(io.StringIO(render.csv_wide([table], ci=True)))
    halves = {name: text for name, text in record.items() if name.endswith("_half")}
    assert len(halves) == 6 and set(halves.values()) == {""}


def test_long_csv_keeps_every_digit() -> None:
    table = make_table(made_up())
    records = list(csv.DictReader(io.StringIO(render.csv_long([table]))))
    assert len(records) == 32 * 3 * 3
    record = next(r for r in records if (r["device"], r["system"], r["metric"]) == ("nvme", "tcmu", "latency_us"))
    cell = table.cell("nvme", record["workload"], "tcmu", LATENCY)
    assert cell.mean is not None and cell.difference is not None
    assert (int(record["n"]), float(record["mean"])) == (3, cell.mean.value)
    assert (float(record["ci_low"]), float(record["ci_high"])) == (cell.mean.low, cell.mean.high)
    assert (float(record["diff_ci_low"]), float(record["diff_ci_high"])) == (cell.difference.low, cell.difference.high)
    assert "EMULATED (lab)" in record["measured"]


def files_run(system: str, workload: str, kops: float, **changes: Any) -> Run:
    metrics = {"throughput_kops": kops, "latency_us": 9.0, "cpu_percent": 5.0, "files_kops": kops / 3}
    ids = {"engine": "flow", "suite": "bdus-fs", "workload": workload, "system": system}
    return run_from_summary(summary(metrics=metrics, **ids, **changes), "test")


def test_the_two_suites_are_two_tables() -> None:
    names = ("web-server", "create-1th", "seq-read-1th-4k")
    fs = [files_run(system, name, 9.0) for name in names for system in ("fuse", "native")]
    block, files = make_tables([*fs, *made_up()], 7, ["size is 5 (because)"])
    assert block.title.startswith("Table 1: block device") and files.title.startswith("Table 2: file system")
    assert block.systems == ("native", "nbdkit", "tcmu") and files.systems == ("native", "fuse")
    assert [name for _, name in files.rows] == ["seq-read-1th-4k", "create-1th", "web-server"]
    assert "The paper does not state it: size is 5 (because)." in files.notes
    assert any("An operation is a flowop" in note for note in files.notes)
    assert not any("flowop" in note for note in block.notes)


def test_files_per_second_are_in_the_long_csv_only() -> None:
    table = make_table([files_run("native", "create-1th", 9.0), files_run("fuse", "create-1th", 6.0)])
    assert table.cell("sata", "create-1th", "fuse", FILES).mean == Interval(2.0)
    assert "Files" not in render.markdown([table]).split("\n\n")[1]
    records = list(csv.DictReader(io.StringIO(render.csv_long([table]))))
    assert [r["mean"] for r in records if r["metric"] == "files_kops"] == ["3.0", "2.0"]
    assert {r["unit"] for r in records if r["metric"] == "files_kops"} == {"kfile/s"}


def test_writes_to_nvme_have_no_wider_limit_in_table_2() -> None:
    assert half_width_limit(THROUGHPUT, "nvme", "rand-write-1th-4k", 200.0, files=True) == 10.0
    assert half_width_limit(THROUGHPUT, "nvme", "rand-write-1th-4k", 200.0) == 20.0


def test_hosts_do_not_mix() -> None:
    tables = make_tables(runs("native", [10.0]) + runs("native", [20.0], host="elsewhere", emulated=False))
    assert ["EMULATED" in table.title for table in tables] == [False, True]


def test_warnings_are_counted() -> None:
    warned = run(warnings=["load: other programs took 60 % of a CPU"], repetition=2)
    assert any("1 of 2 runs have warnings: load (1)" in note for note in make_table([run(), warned]).notes)


# ---- files ----------------------------------------------------------------------------


def test_what_qualifies_a_table_qualifies_its_tails_and_classes() -> None:
    metrics = {"throughput_kops": 10.0, "latency_us": 99.0, "cpu_percent": 20.0, "latency_p99_us": 150.0}
    sample = [
        run_from_summary(summary(metrics=metrics, system=name, repetition=n, valid=n > 1, invalid=["x"][n > 1 :]), "t")
        for name in ("native", "nbdkit")
        for n in (1, 2, 3)
    ]
    table = make_table(sample, of_blocks=["memory: 1"])
    table = replace(table, notes=(*table.notes, "LOST: a run"))
    tails = tail_table(table)
    assert tails is not None and table.tests
    for other in (tails, graded(table, (Grade("good", "+", 90.0, "#ffffff"), Grade("bad", "-", 0.0, "#ffffff")), "X")):
        assert set(table.notes) < set(other.notes) and not other.tests


def store(campaign: Path, value: dict[str, Any], done: bool = True) -> None:
    names = ("host", "device", "suite", "system", "workload", "repetition")
    directory = campaign.joinpath(*(str(value[name]) for name in names))
    directory.mkdir(parents=True)
    (directory / "summary.json").write_text(json.dumps(value))
    if done:
        (directory / "DONE").touch()


def test_only_finished_runs_are_read(tmp_path: Path) -> None:
    store(tmp_path, summary())
    store(tmp_path, summary(repetition=2), done=False)
    (tmp_path / "blocks/0.1/commands").mkdir(parents=True)
    assert [one.repetition for one in load_campaign(tmp_path)] == [1]


def test_a_run_that_lost_its_summary_is_named(tmp_path: Path) -> None:
    """As a killed `userblk resume` could leave it; no table could be made of the others."""
    store(tmp_path, summary())
    assert notes_of(tmp_path) == ()
    store(tmp_path, summary(repetition=2))
    lost = tmp_path / "nowhere/sata/bdus-block/native/seq-read-1th-4k/2"
    (lost / "summary.json").unlink()
    assert [one.repetition for one in load_campaign(tmp_path)] == [1] and costs.load_costs(tmp_path) == []
    (line,) = notes_of(tmp_path)
    assert line == f"LOST: summary.json of {lost.relative_to(tmp_path)}; repeat it with: userblk resume"


def test_null_and_infinite_metrics_are_no_values() -> None:
    one = run_from_summary(
        summary(metrics={"throughput_kops": None, "latency_us": float("inf"), "cpu_percent": 1}), "x"
    )
    assert dict(one.metrics) == {"cpu_percent": 1.0}


@pytest.mark.parametrize(("changes", "says"), [({"schema": 2}, "schema=2"), ({"metrics": None}, "not a summary")])
def test_unreadable_summary_is_named(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    store(tmp_path, summary(**changes))
    with pytest.raises(SummaryError, match=says) as caught:
        load_campaign(tmp_path)
    assert "summary.json" in str(caught.value)


def test_thousands_of_summaries_load_quickly(tmp_path: Path) -> None:
    for repetition in range(1, 2001):
        store(tmp_path, summary(repetition=repetition))
    began = time.process_time()
    tables = make_tables(load_campaign(tmp_path))
    assert tables[0].cell("sata", "seq-read-1th-4k", "native", THROUGHPUT).n == 2000
    assert time.process_time() - began < 2.0


def test_a_workloads_metrics_are_one_cluster_of_the_control() -> None:
    """Throughput and latency rise and fall together: three alarms of a workload are no three findings."""
    found = [
        run(kops + n / 10, 1e3 / (kops + n / 10), 20 + n, system=system, workload=workload, repetition=n)
        for workload, differs in (("rand-read-1th-4k", 5.0), ("seq-read-1th-4k", 0.0))
        for system, kops in (("native", 10.0), ("native-control", 10.0 + differs))
        for n in (1, 2, 3)
    ]
    one = control(make_tables(found))
    assert one is not None and one.cells == ((3, 0), (3, 2)) and (one.tests, one.alarms) == (6, 2)
