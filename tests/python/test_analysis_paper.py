# SPDX-License-Identifier: BSD-3-Clause
"""Our results beside the paper's numbers and claims."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections import Counter
from pathlib import Path

import pytest
from paper_claims import CONTRADICTED, OMITTED
from rich.console import Console
from synthetic import ENVIRONMENT, make_campaign
from userblk.analysis.paper import PaperComparison, as_csv, as_json, compare_with_paper, terminal
from userblk.analysis.paper_cells import PaperCell, Place, Verdict, equivalence_margin, judge_cell, reasons_against
from userblk.analysis.paper_claims import ClaimVerdict, check_claim
from userblk.analysis.papers import Claim, load_claims, load_paper
from userblk.analysis.statistics import Interval
from userblk.analysis.summaries import SummaryError, read_campaign
from userblk.analysis.table import METRICS, Cell, Table
from userblk.analysis.tabulate import make_tables
from userblk.harness.machine.paths import CONFIGS

THROUGHPUT, LATENCY, CPU = METRICS
BDUS = load_paper("bdus", CONFIGS)
PAPER = BDUS.tables
CLAIMS = {claim.id: claim for claim in BDUS.claims}
ROWS = {number: table.rows for number, table in PAPER.items()}

UNPRINTED = {"write-nvme-variability", "files-nvme-variability"}  # about intervals, which it does not print


# ---- claims -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_hold_in_the_papers_own_tables(name: str) -> None:
    """They are read rightly, then; with the exceptions that are known."""
    result = check_claim(CLAIMS[name], PAPER, ROWS, printed=True)
    if name in OMITTED | UNPRINTED:
        assert result.verdict is ClaimVerdict.NOT_MEASURED
    elif name in CONTRADICTED:
        assert result.verdict is ClaimVerdict.FAILS and result.against
    else:
        assert result.verdict is ClaimVerdict.HOLDS, result.against
        assert result.undecided == 0


WORDS = {0.0, 5.0}  # bounds that no number of the text states: more than nothing, nothing perceptible


@pytest.mark.parametrize("name", CLAIMS)
def test_bounds_are_the_papers_words(name: str) -> None:
    """Not what happens to be the extreme cell: what is neither a word's nor in the sentence is no bound."""
    claim = CLAIMS[name]
    for bound in (claim.least, claim.most):
        assert math.isinf(bound) or bound in WORDS or f"{abs(bound):g}" in claim.text, bound


def test_every_section_has_claims() -> None:
    assert Counter(claim.section for claim in CLAIMS.values()).keys() == {"6.1", "6.2", "6.3"}


def claim(**changes: object) -> Claim:
    fields: dict[str, object] = {
        "id": "x",
        "section": "6.1",
        "text": "x",
        "tables": (1,),
        "devices": ("sata",),
        "workloads": ("seq-read-1th-*",),
        "systems": ("nbdkit",),
        "metrics": (THROUGHPUT,),
    }
    return Claim(**fields | changes)  # type: ignore[arg-type]


def interval(value: float, half: float | None) -> Interval:
    return Interval(value) if half is None else Interval(value, value - half, value + half)


def table_with(values: dict[tuple[str, str], tuple[float, float | None]], number: int = 1) -> Table:
    """Cells by workload and system: throughput's difference and its half width, None for a single run."""
    cells = {
        ("sata", workload, system, THROUGHPUT.id): Cell(
            5 if half else 1, 0, Interval(1.0, 0.9, 1.1), interval(value, half), frozenset()
        )
        for (workload, system), (value, half) in values.items()
    }
    rows = tuple(dict.fromkeys(("sata", workload) for workload, _ in values))
    systems = tuple(dict.fromkeys(["native", *(system for _, system in values)]))
    return Table(number, "made up", (), rows, systems, cells)


A, B = "seq-read-1th-4k", "seq-read-1th-128k"


@pytest.mark.parametrize(
    ("values", "changes", "verdict"),
    [
        # 25 % and the paper's 5 % of the 75 % that are left: 28.75.
        ({(A, "nbdkit"): (-20, 1), (B, "nbdkit"): (-20, 1)}, {"most": 25.0}, ClaimVerdict.HOLDS),
        ({(A, "nbdkit"): (-20, 1), (B, "nbdkit"): (-27, 1)}, {"most": 25.0}, ClaimVerdict.HOLDS),
        ({(A, "nbdkit"): (-20, 1), (B, "nbdkit"): (-30, 1)}, {"most": 25.0}, ClaimVerdict.FAILS),
        ({(A, "nbdkit"): (-20, 1), (B, "nbdkit"): (-28, 2)}, {"most": 25.0}, ClaimVerdict.OPEN),
        ({(A, "nbdkit"): (-20, None)}, {"most": 25.0}, ClaimVerdict.OPEN),
        ({(A, "nbdkit"): (-20, 1), (B, "nbdkit"): (-30, 1)}, {"most": 25.0, "share": 0.5}, ClaimVerdict.HOLDS),
        ({(A, "nbdkit"): (-20, 1)}, {"least": 22.5}, ClaimVerdict.HOLDS),
        ({(A, "nbdkit"): (-20, 1)}, {"least": 26.5}, ClaimVerdict.FAILS),
        ({(A, "nbdkit"): (20, 1)}, {"most": 0.0}, ClaimVerdict.HOLDS),
        ({(A, "tcmu"): (-20, 1)}, {"most": 25.0}, ClaimVerdict.NOT_MEASURED),
        ({(A, "nbdkit"): (-20, 1), (A, "tcmu"): (-30, 1)}, {"than": {"systems": ["tcmu"]}}, ClaimVerdict.HOLDS),
        ({(A, "nbdkit"): (-30, 1), (A, "tcmu"): (-20, 1)}, {"than": {"systems": ["tcmu"]}}, ClaimVerdict.FAILS),
        ({(A, "nbdkit"): (-30, 6), (A, "tcmu"): (-20, 6)}, {"than": {"systems": ["tcmu"]}}, ClaimVerdict.OPEN),
        ({(A, "nbdkit"): (-20, 1), (A, "tcmu"): (-50, None)}, {"than": {"systems": ["tcmu"]}}, ClaimVerdict.OPEN),
        (
            {(A, "nbdkit"): (-27, 1), (A, "tcmu"): (-20, 1)},
            {"than": {"systems": ["tcmu"]}, "margin": 5.0},
            ClaimVerdict.HOLDS,
        ),
        (
            {(A, "nbdkit"): (-23, 1), (A, "tcmu"): (-10, 1)},
            {"than": {"systems": ["tcmu"]}, "near": 5.0},
            ClaimVerdict.FAILS,
        ),
        ({(A, "nbdkit"): (20, 1)}, {"of": "size", "most": 10.0}, ClaimVerdict.FAILS),
        ({(A, "nbdkit"): (-20, 1)}, {"half_width": 10.0}, ClaimVerdict.HOLDS),
        ({(A, "nbdkit"): (-20, 1)}, {"half_width": 9.0}, ClaimVerdict.FAILS),
    ],
)
def test_claims_by_hand(
    values: dict[tuple[str, str], tuple[float, float | None]], changes: dict[str, object], verdict: ClaimVerdict
) -> None:
    table = table_with(values)
    assert check_claim(claim(**changes), {1: table}, {1: table.rows}).verdict is verdict


def test_a_limit_of_a_class_is_exact() -> None:
    """95 % are the end of a class: what keeps 93 % is in the next one, also where the claim has a tolerance else."""
    table = table_with({(A, "nbdkit"): (-7, 1)})
    for exact, verdict in ((False, ClaimVerdict.HOLDS), (True, ClaimVerdict.FAILS)):
        assert check_claim(claim(most=5.0, exact=exact), {1: table}, {1: table.rows}).verdict is verdict


@pytest.mark.parametrize(
    ("value", "share", "verdict"),
    [
        (-20, 1.0, ClaimVerdict.OPEN),
        (-50, 1.0, ClaimVerdict.FAILS),
        (-20, 0.25, ClaimVerdict.HOLDS),
        (-20, 0.5, ClaimVerdict.OPEN),
        (-50, 0.75, ClaimVerdict.OPEN),
        (-50, 0.8, ClaimVerdict.FAILS),
    ],
)
def test_cells_that_are_missing_count(value: float, share: float, verdict: ClaimVerdict) -> None:
    """One of four cells says nothing of all or most of them, but may be against it."""
    table = table_with({(A, "nbdkit"): (value, 1)})
    rows = [("sata", workload) for workload in (A, B, "seq-read-1th-32k", "seq-read-1th-1m")]
    result = check_claim(claim(most=25.0, share=share), {1: table}, {1: rows})
    assert result.verdict is verdict and (result.judged, result.missing) == (1, 3)


def test_what_a_paper_leaves_out_of_its_tables_is_not_missing() -> None:
    table = table_with({(A, "nbdkit"): (-20, 1)})
    rows = {1: [("sata", A), ("sata", B)]}
    ours, theirs = (check_claim(claim(most=25.0), {1: table}, rows, printed=printed) for printed in (False, True))
    assert (ours.verdict, theirs.verdict) == (ClaimVerdict.OPEN, ClaimVerdict.HOLDS)


@pytest.mark.parametrize(
    ("pattern", "than", "holds"),
    [
        ("*-1th-*", "*-16th-*", True),
        ("seq-?e*-1th-[4k][4k]", "s?q-*-16th-*", False),  # names that the table does not have
        ("[rs]*-1th-?k", "[rs]*-16th-?k", True),
        ("seq-read-1th-*", "seq-read-1th-4k", False),  # of 4k and 128k
    ],
)
def test_wildcards_stand_for_what_they_matched(pattern: str, than: str, holds: bool) -> None:
    """Each workload is measured against its own."""
    values = {("seq-read-1th-4k", "nbdkit"): (-20.0, 1.0), ("seq-read-1th-128k", "nbdkit"): (-50.0, 1.0)}
    values |= {("seq-read-16th-4k", "nbdkit"): (-25.0, 1.0), ("seq-read-16th-128k", "nbdkit"): (-60.0, 1.0)}
    table = table_with(values)  # type: ignore[arg-type]
    one = claim(workloads=(pattern,), than={"workload": than})
    assert (check_claim(one, {1: table}, {1: table.rows}).verdict is ClaimVerdict.HOLDS) is holds


def means(**values: float) -> Table:
    """Workloads with these means, of nbdkit, each with a half width of 1 %."""
    cells = {
        ("sata", name, "nbdkit", THROUGHPUT.id): Cell(5, 0, interval(value, value / 100), None, frozenset())
        for name, value in values.items()
    }
    return Table(2, "made up", (), tuple(("sata", name) for name in values), ("nbdkit",), cells)


@pytest.mark.parametrize(
    ("values", "verdict", "says"),
    [
        ({"a": 5.0, "b": 9.8, "c": 7.0}, ClaimVerdict.HOLDS, ""),
        ({"a": 5.0, "b": 12.0, "c": 7.0}, ClaimVerdict.FAILS, "SATA nbdkit, largest throughput: 12.00"),
        ({"a": 5.0, "b": 6.0, "c": 7.0}, ClaimVerdict.FAILS, "7.00"),
        ({"a": 5.0, "b": 9.8}, ClaimVerdict.NOT_MEASURED, ""),  # c may be larger
        ({"a": 5.0, "b": 12.0}, ClaimVerdict.FAILS, "12.00"),  # whatever c is
    ],
)
def test_the_largest_of_a_systems_cells(values: dict[str, float], verdict: ClaimVerdict, says: str) -> None:
    one = claim(of="largest", tables=(2,), workloads=("*",), least=9.0, most=10.0)
    rows = [("sata", name) for name in ("a", "b", "c")]
    result = check_claim(one, {2: means(**values)}, {2: rows})
    assert result.verdict is verdict and says in "".join(result.against)


@pytest.mark.parametrize(
    ("values", "verdict", "says"),
    [
        ({"a": 10.0, "b": 60.0}, ClaimVerdict.HOLDS, ""),
        ({"a": 1.0, "b": 1.0}, ClaimVerdict.FAILS, "SATA nbdkit, largest throughput: 0.10 times"),
        ({"a": 10.0, "b": 90.0}, ClaimVerdict.FAILS, "9.00 times"),
        ({"a": 60.0}, ClaimVerdict.NOT_MEASURED, ""),  # b may be larger
        ({"a": 90.0}, ClaimVerdict.FAILS, "9.00 times"),  # whatever b is
    ],
)
def test_up_to_six_times_as_much(values: dict[str, float], verdict: ClaimVerdict, says: str) -> None:
    """A slower system does not satisfy it, whose ratios are all below six."""
    table = means(**values)
    cells = table.cells | {
        ("sata", name, "tcmu", THROUGHPUT.id): Cell(5, 0, interval(10.0, 0.1), None, frozenset()) for name in values
    }
    table = dataclasses.replace(table, cells=cells)
    one = claim(of="largest", tables=(2,), workloads=("*",), ratio=True, than={"systems": ["tcmu"]}, least=5, most=7)
    result = check_claim(one, {2: table}, {2: [("sata", "a"), ("sata", "b")]})
    assert result.verdict is verdict and says in "".join(result.against)


def test_bounds_of_absolute_values_are_as_written() -> None:
    """Also of throughput, of which less is worse."""
    for most, verdict in ((5.0, ClaimVerdict.HOLDS), (4.0, ClaimVerdict.FAILS)):
        one = claim(of="mean", tables=(2,), workloads=("a",), most=most)
        assert check_claim(one, {2: means(a=5.0)}, {2: [("sata", "a")]}).verdict is verdict


@pytest.mark.parametrize(("half", "verdict"), [(1.0, ClaimVerdict.HOLDS), (2.0, ClaimVerdict.OPEN)])
def test_a_ratio_to_an_uncertain_mean_is_not_symmetric(half: float, verdict: ClaimVerdict) -> None:
    """10 ±0.5 over 5 ±2 is from 1.4 to 3.3; linearised, it would end at 2.8."""
    table = table_with({(A, "nbdkit"): (-100, 1), (A, "tcmu"): (-20, 1)})
    cells = dict(table.cells)
    for system, mean in (("nbdkit", interval(10.0, 0.5)), ("tcmu", interval(5.0, half))):
        key = ("sata", A, system, THROUGHPUT.id)
        cells[key] = dataclasses.replace(cells[key], mean=mean)
    table = dataclasses.replace(table, cells=cells)
    one = claim(ratio=True, most=3.0, than={"systems": ["tcmu"]})
    assert check_claim(one, {1: table}, {1: table.rows}).verdict is verdict


@pytest.mark.parametrize(("half", "verdict"), [(0.1, ClaimVerdict.FAILS), (None, ClaimVerdict.OPEN)])
def test_a_ratio_of_nothing(half: float | None, verdict: ClaimVerdict) -> None:
    """A system that did nothing at all is 0 times as fast as another."""
    table = table_with({(A, "nbdkit"): (-100, 1), (A, "tcmu"): (-20, 1)})
    key = ("sata", A, "nbdkit", THROUGHPUT.id)
    cells = {**table.cells, key: dataclasses.replace(table.cells[key], mean=interval(0.0, half))}
    table = dataclasses.replace(table, cells=cells)
    one = claim(ratio=True, least=0.5, than={"systems": ["tcmu"]})
    assert check_claim(one, {1: table}, {1: table.rows}).verdict is verdict


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense = 1", "nonsense: unknown key"),
        ('metrics = ["speed"]', "metrics: speed is none of"),
        ("most = 5\nhalf_width = 5", "predicate"),
        ("near = 5", "predicate"),
        ('of = "colour"\nmost = 5', "of: must be one of"),
        ('of = "largest"\nthan = { workload = "a" }', "predicate"),
        ('than = { workload = "*-?" }', "than: workload=.*more wildcards"),
    ],
)
def test_wrong_claims_are_named(tmp_path: Path, line: str, says: str) -> None:
    keys = {"tables": "[1]", "workloads": '["*"]', "systems": '["nbdkit"]', "metrics": '["cpu"]'}
    written = [f"{key} = {value}" for key, value in keys.items() if not line.startswith(key)]
    file = tmp_path / "claims.toml"
    file.write_text("\n".join(["[[claim]]", 'id = "mine"', 'section = "6.1"', 'text = "x"', *written, line]))
    with pytest.raises(SummaryError, match=says) as caught:
        load_claims(file)
    assert "claim mine" in str(caught.value)


# ---- cells ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> PaperComparison:
    campaign = read_campaign(make_campaign(tmp_path_factory.mktemp("paper"), repetitions=3))
    return compare_with_paper([campaign], make_tables(campaign.runs), BDUS)


def test_a_campaign_counts_once(tmp_path: Path) -> None:
    """Twice the runs would halve the intervals: more would agree, of what was measured once."""
    directory = make_campaign(tmp_path, repetitions=3)
    campaign, copy = read_campaign(directory), read_campaign(directory)
    runs = [*campaign.runs, *copy.runs]
    with pytest.raises(SummaryError, match=r"as .* has; compare each by itself"):
        compare_with_paper([campaign, copy], make_tables(runs), BDUS)


def test_every_number_of_the_paper_has_a_verdict(comparison: PaperComparison) -> None:
    assert len(comparison.cells) == 1365
    counts = Counter(cell.verdict for cell in comparison.cells)
    assert counts[Verdict.NOT_MEASURED] == sum(cell.system in ("buse", "bdus") for cell in comparison.cells)
    assert counts[Verdict.NOT_COMPARABLE] == 1365 - counts[Verdict.NOT_MEASURED]
    reasons = {reason for cell in comparison.cells for reason in cell.reasons}
    assert {"emulated device", "profile quick", "nbdkit 1.42.3-1, not 1.22.1"} <= reasons
    assert "of the paper's 1,365 numbers" in comparison.summary[0] and "0 comparable" in comparison.summary[0]
    assert all((cell.shape is None) is (cell.verdict is Verdict.NOT_MEASURED) for cell in comparison.cells)


def test_cpu_use_of_the_simulated_lab_is_a_share_of_the_papers_cpus(tmp_path: Path) -> None:
    """The lab's one CPU does the work of the paper's machine: 100 % of one is 25 % of four."""
    directory = make_campaign(tmp_path, repetitions=3, systems=["native", "nbdkit"], workloads=["seq-read-1th-4k"])
    values: dict[bool, dict[tuple[str, str, str], float]] = {}
    for model in ("", "cpu-9"):
        for file in directory.glob("*/*/*/*/*/*/summary.json"):
            file.write_text(json.dumps(json.loads(file.read_text()) | {"model": model}))
            file.with_name("environment.json").write_text(json.dumps(ENVIRONMENT | {"cpus": 1}))
        campaign = read_campaign(directory)
        found = compare_with_paper([campaign], make_tables(campaign.runs), BDUS)
        said = "CPU use: the lab's, divided by the number of CPUs of the paper's machine (SATA 4, NVMe 72)."
        assert (said in found.summary) is bool(model)
        measured = [cell for cell in found.cells if cell.ours]
        values[bool(model)] = {(c.device, c.system, c.metric.id): c.ours.value for c in measured if c.ours}
    before, after = values[False], values[True]
    assert len(before) == 2 * 2 * 3
    for key, value in before.items():
        share = {"sata": 4, "nvme": 72}[key[0]] if key[2] == CPU.id else 1
        assert after[key] == pytest.approx(value / share), key


def papers_own(tmp_path: Path, **changes: object) -> dict[tuple[str, str, str], PaperCell]:
    """A campaign on the paper's devices and versions, whose results are the paper's own; by workload, system, metric.

    changes: difference in % of nbdkit, by workload.
    """
    directory = make_campaign(
        tmp_path,
        repetitions=3,
        suite="bdus-block",
        systems=["native", "nbdkit", "tcmu"],
        workloads=["seq-read-1th-4k", "rand-read-16th-4k"],
        emulated=False,
    )
    environment = ENVIRONMENT | {
        "cpus": 4,
        "packages": {"nbdkit": "1.22.1-1", "tcmu-runner": "1.5.2-5"},
        "devices": {"sata": {"model": "SAMSUNG MZ7LN128"}, "nvme": {"model": "Dell Express Flash PM1725b 1.6TB"}},
    }
    for file in directory.glob("*/*/*/*/*/*/summary.json"):
        value = json.loads(file.read_text())
        metrics = {}
        for metric in METRICS:
            native = PAPER[1].cell(value["device"], value["workload"], "native", metric).mean
            own = PAPER[1].cell(value["device"], value["workload"], value["system"], metric).difference
            assert native is not None
            change = own.value if own else 0.0
            if value["system"] == "nbdkit" and metric is THROUGHPUT:
                change = changes.get(value["workload"].replace("-", "_"), change)  # type: ignore[assignment]
            mean = native.value + change if metric.points else native.value * (1 + change / 100)
            metrics[metric.id] = mean * (1 + 0.002 * value["repetition"])
        value |= {"metrics": metrics, "profile": "paper", "kernel": "5.8.9"}
        file.write_text(json.dumps(value))
        file.with_name("environment.json").write_text(json.dumps(environment))
    campaign = read_campaign(directory)
    cells = compare_with_paper([campaign], make_tables(campaign.runs), BDUS).cells
    chosen = [cell for cell in cells if cell.device == "sata" and cell.table == 1]
    return {(cell.workload, cell.system, cell.metric.id): cell for cell in chosen}


def test_the_papers_own_results_agree_with_it(tmp_path: Path) -> None:
    cells = papers_own(tmp_path)
    measured = [cell for cell in cells.values() if cell.verdict is not Verdict.NOT_MEASURED]
    assert len(measured) == 2 * 3 * 3
    assert {cell.verdict for cell in measured} == {Verdict.AGREES}


def test_a_larger_overhead_in_the_same_order_is_of_the_same_shape(tmp_path: Path) -> None:
    # The paper: nbdkit -16.9, TCMU -0.3 there.
    cell = papers_own(tmp_path, seq_read_1th_4k=-40.0)["seq-read-1th-4k", "nbdkit", THROUGHPUT.id]
    assert cell.verdict is Verdict.SAME


def test_another_sign_differs(tmp_path: Path) -> None:
    cell = papers_own(tmp_path, seq_read_1th_4k=+20.0)["seq-read-1th-4k", "nbdkit", THROUGHPUT.id]
    assert cell.verdict is Verdict.DIFFERS


def test_another_order_of_systems_differs(tmp_path: Path) -> None:
    # The paper: nbdkit -28.6, TCMU -70.9 there.
    cell = papers_own(tmp_path, rand_read_16th_4k=-90.0)["rand-read-16th-4k", "nbdkit", THROUGHPUT.id]
    assert cell.verdict is Verdict.DIFFERS


def test_what_stands_in_for_the_papers_programs_is_not_compared(tmp_path: Path) -> None:
    """And neither are other CPUs."""
    wanted = {"suite": "bdus-block", "systems": ["native", "buse"], "workloads": [A], "emulated": False}
    speed = {"native": 1.0, "buse": 0.5}
    campaign = read_campaign(make_campaign(tmp_path, repetitions=2, speed=speed, **wanted))  # type: ignore[arg-type]
    cells = compare_with_paper([campaign], make_tables(campaign.runs), BDUS).cells
    reasons = {cell.system: cell.reasons for cell in cells if cell.shape is not None and cell.device == "nvme"}
    assert {"userblk-buse, not BUSE", "2 CPUs, not 72"} <= set(reasons["buse"])


def test_versions_are_the_papers() -> None:
    """A BDUS of which nothing is known but its name is not the paper's."""
    place = Place("", "paper", "5.8.9", {"nbdkit": "1.22.1-1"}, 4, {"sata": "SAMSUNG MZ7LN128"}, frozenset())
    for packages, reasons in (
        ({"bdus": "0.1.0"}, ()),
        ({"bdus": "0.1.2"}, ("BDUS 0.1.2, not 0.1.0",)),
        ({}, ("BDUS of unknown version, not 0.1.0",)),
    ):
        assert reasons_against(BDUS, dataclasses.replace(place, packages=packages), "bdus", "sata", False) == reasons
    assert reasons_against(BDUS, place, "nbdkit", "sata", False) == ()
    assert reasons_against(BDUS, place, "buse", "sata", False) == ("userblk-buse, not BUSE",)


def test_what_is_shown(comparison: PaperComparison) -> None:
    console = Console(file=io.StringIO(), width=160, record=True, _environ={"TERM": "xterm-256color"})
    console.print(terminal(comparison, console))
    text = console.export_text()
    assert "1,365 numbers" in text and "not measured" in text
    value = as_json(comparison)
    records = list(csv.DictReader(io.StringIO(as_csv(comparison))))
    assert len(records) == len(value["cells"]) == 1365 and len(value["claims"]) == len(CLAIMS)
    assert {record["verdict"] for record in records} == {"not comparable", "not measured"}
    json.dumps(value)


# ---- equivalence --------------------------------------------------------------------------

# The paper: nbdkit -16.9 % there, so that the margin is 10 % of 83.1.
PLACE = ("sata", A, "nbdkit", THROUGHPUT.id)


@pytest.mark.parametrize(
    ("value", "half", "verdict"),
    [
        (-16.9, 1.0, Verdict.AGREES),
        (-16.9, 8.2, Verdict.AGREES),
        (-16.9, 8.4, Verdict.UNDECIDED),  # too wide to show that it is the same
        (-22.0, 2.0, Verdict.AGREES),
        (-22.0, 6.0, Verdict.UNDECIDED),
        (-60.0, 90.0, Verdict.UNDECIDED),  # two runs that differ: overlap with everything
        (-16.9, None, Verdict.UNDECIDED),  # one run
        (-40.0, 2.0, Verdict.SAME),
        (-60.0, 20.0, Verdict.UNDECIDED),  # not the same, and too wide to say more
        (20.0, 2.0, Verdict.DIFFERS),
        (200.0, 100.0, Verdict.DIFFERS),
    ],
)
def test_cells_are_compared_by_equivalence(value: float, half: float | None, verdict: Verdict) -> None:
    ours = table_with({(A, "nbdkit"): (value, half)})
    assert judge_cell(ours, PAPER[1], *PLACE[:3], THROUGHPUT) is verdict


def test_margins_are_twice_the_papers_limits() -> None:
    assert equivalence_margin(THROUGHPUT, 1, "sata", A, -20.0) == pytest.approx(8.0)
    assert equivalence_margin(LATENCY, 1, "sata", A, 900.0) == pytest.approx(100.0)
    assert equivalence_margin(THROUGHPUT, 1, "nvme", "rand-write-1th-4k", -20.0) == pytest.approx(16.0)
    assert equivalence_margin(THROUGHPUT, 2, "nvme", "rand-write-1th-4k", -20.0) == pytest.approx(8.0)
    assert equivalence_margin(THROUGHPUT, 1, "sata", A, 50.0, absolute=True) == pytest.approx(5.0)
    assert equivalence_margin(CPU, 1, "sata", A, 3.0) == 10.0
