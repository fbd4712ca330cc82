# SPDX-License-Identifier: BSD-3-Clause
"""Papers as data: what is in configs/papers, what is wrong with a file there, and the commands that know papers."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from command_line import userblk
from synthetic import make_campaign
from userblk.analysis.paper_claims import cells_of, places_of
from userblk.analysis.papers import load_paper, load_papers, paper_names, papers_of, read_toml, sample_of
from userblk.analysis.statistics import mean_interval
from userblk.analysis.summaries import SummaryError
from userblk.analysis.table import natural
from userblk.harness.machine.paths import CONFIGS
from userblk.harness.model import tables
from userblk.harness.model.config import load_suite

ROOT = Path(__file__).parents[2]


def test_every_paper_can_be_read_and_the_one_with_most_numbers_is_first() -> None:
    papers = load_papers(CONFIGS)
    assert {paper.name for paper in papers} == set(paper_names(CONFIGS)) and papers[0].name == "bdus"
    assert papers[0].numbers == 1365 and len(papers[0].claims) == 100
    assert [paper.name for paper in papers_of(["bdus-fs"], CONFIGS)] == ["bdus"] and not papers_of(["attach"], CONFIGS)


KEYS = ("device", "workload", "system")


@pytest.mark.parametrize("name", paper_names(CONFIGS))
def test_tables_are_whole(name: str) -> None:
    """Each cell once and without blanks, of a device of the paper's and a workload of one of its suites."""
    paper = load_paper(name, CONFIGS)
    for one in read_toml(CONFIGS / "papers" / name / "paper.toml")["table"]:
        with (CONFIGS / "papers" / name / one["file"]).open(newline="", encoding="utf-8") as stream:
            records = list(csv.DictReader(stream))
        cells = Counter(tuple(record.get(key) for key in KEYS) for record in records)
        assert records and set(cells.values()) == {1}, one["file"]
        assert not any(None in record or None in record.values() for record in records), one["file"]
        suites = [load_suite(suite, "paper") for suite in paper.suites[one["number"]]]
        known = {workload.id for suite in suites for workload in suite.workloads}
        for record in records:
            assert record["workload"] in known and record.get("system", "native") in tables.names("systems"), record
            assert record["device"].lower() in {*paper.devices, "enterprise-ssd"}, record
            for value in (value for key, value in record.items() if key not in (*KEYS, "source_name") and value):
                assert math.isfinite(float(value)), record
            for positive in {"gbps", "mib_per_s", "ops_per_s", "runs"} & record.keys():
                assert float(record[positive]) > 0, record
            for width in {"sd", "below", "above"} & record.keys():
                assert float(record[width]) >= 0, record


@pytest.mark.parametrize(
    ("name", "number", "rows", "systems"),
    [
        ("bdus", 1, 32, 5), ("bdus", 2, 50, 6), ("fast17", 2, 90, 3), ("terra", 2, 135, 0), ("rfuse", 2, 14, 2),
        ("rfuse", 3, 24, 0), ("rfuse", 4, 2, 0), ("rfuse", 5, 49, 0), ("thesis", 1, 12, 4), ("thesis", 2, 18, 2),
        ("thesis", 3, 3, 3), ("thesis", 4, 90, 0), ("thesis", 5, 135, 0), ("ufs", 2, 128, 0), ("ufs", 3, 24, 0),
    ],
)  # fmt: skip
def test_tables_have_the_rows_of_the_papers(name: str, number: int, rows: int, systems: int) -> None:
    table = load_paper(name, CONFIGS).tables[number]
    assert len(table.rows) == rows and len({system for _, _, system, _ in table.cells}) == systems


@pytest.mark.parametrize("name", [name for name in paper_names(CONFIGS) if load_paper(name, CONFIGS).claims])
def test_claims_are_about_cells_that_exist(name: str) -> None:
    """A pattern that matches nothing, or a cell that is left out and is none, would never be judged."""
    paper = load_paper(name, CONFIGS)
    rows = {number: table.rows for number, table in paper.tables.items()}
    assert len({claim.id for claim in paper.claims}) == len(paper.claims)
    for claim in paper.claims:
        listed = [row for number in claim.tables for row in rows[number]]
        for pattern in claim.workloads:
            assert any(fnmatchcase(workload, pattern) for _, workload in listed), (claim.id, pattern)
        for left_out in claim.left_out:
            assert tuple(left_out.split(" ")) in listed, (claim.id, left_out)
        assert set(claim.devices) <= {device for device, _ in listed} | set(paper.devices), claim.id
        for number, device, system in places_of(claim, rows):
            assert device in {one for one, _ in rows[number]} and system in tables.names("systems"), claim.id
        for number, workload, _ in cells_of(claim, rows):
            assert workload in {one for _, one in rows[number]} or (claim.than or {}).get("table"), (claim.id, workload)


def test_what_claims_are_measured_against_is_listed() -> None:
    assert load_paper("ufs", CONFIGS).systems == ["native", "ext4-noreadahead", "ext4-nojournal", "ext4-ramdisk"]
    assert load_paper("terra", CONFIGS).systems == ["stackfs", "native"]


def test_why_claims_cannot_be_compared(tmp_path: Path) -> None:
    """Also of a paper without numbers: its claims are judged by numbers, too."""
    systems = ["native", "ext4-noreadahead"]
    made = make_campaign(
        tmp_path / "results", repetitions=3, suite="ufs-ops", workloads=["rdps-1w", "rdss-1w"], systems=systems,
        speed={"native": 1.0, "ext4-noreadahead": 0.3},
    )  # fmt: skip
    text = userblk("compare", made.name, "ufs", cwd=tmp_path, COLUMNS="200").stdout
    assert "9 claims in its text: 1 hold, 0 do not hold, 0 are undecided, 8 are not measured.\n" in text, text
    assert "Claims judged by numbers that are not comparable: 1 of 1. Why: emulated device (1); profile " in text
    (line,) = [line for line in text.splitlines() if "because of its read-ahead" in line]
    assert line.split()[1:5] == ["holds", "no", "numbers", "2/2"]
    found = json.loads(userblk("compare", made.name, "ufs", "--json", cwd=tmp_path).stdout)
    assert [claim["id"] for claim in found["claims"] if claim["reasons"]] == ["read-ahead-sequential"]


def test_no_module_of_analysis_names_a_paper() -> None:
    for file in (ROOT / "analysis").glob("*.py"):
        named = [
            name
            for name in paper_names(CONFIGS)
            if f'"{name}/' in file.read_text() or f"papers/{name}" in file.read_text()
        ]
        assert not named, file


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("sections", "sentences"), "sentences: unknown key"),
        (("number = 2", "number = 1"), "number=1: must be 1"),
        (('name = "bdus"', 'name = "sudb"'), "name=sudb: must be the directory's name"),
        (('kernel = "5.8.9"', ""), "environment.kernel: is missing"),
        (('file = "table2.csv"', 'file = "table3.csv"'), "table3.csv: cannot be read"),
        (('title = "', "title = "), "cannot be read"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    shutil.copytree(CONFIGS / "papers/bdus", tmp_path / "papers/bdus")
    file = tmp_path / "papers/bdus/paper.toml"
    text = file.read_text()
    assert change[0] in text
    file.write_text(text.replace(*change))
    with pytest.raises(SummaryError, match=says) as caught:
        load_paper("bdus", tmp_path)
    assert "\n" not in str(caught.value)


def test_means_with_deviations_have_their_intervals() -> None:
    """Three runs, of which the paper gives mean and standard deviation."""
    assert mean_interval(sample_of(3, 100.0, 2.0)).half == pytest.approx(4.303 * 2 / 3**0.5, rel=1e-3)
    assert mean_interval(sample_of(5, 100.0, 2.0)).half == pytest.approx(2.776 * 2 / 5**0.5, rel=1e-3)


def test_ids_are_sorted_by_their_numbers() -> None:
    ids = ["w-32th-128k", "w-1th-1m", "w-1th-4k", "w-1th-128k", "create-32th", "create-1th"]
    assert sorted(ids, key=natural) == [
        "create-1th",
        "create-32th",
        "w-1th-4k",
        "w-1th-128k",
        "w-1th-1m",
        "w-32th-128k",
    ]


def test_papers_are_listed_with_what_they_lack_here(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in json.loads(userblk("papers", "--json", cwd=tmp_path).stdout)}
    assert set(rows) == set(paper_names(CONFIGS))
    assert rows["bdus"]["numbers"] == 1365 and rows["bdus"]["suites"] == ["bdus-block", "bdus-fs"]
    lacks = rows["bdus"]["missing_here"]["bdus"]
    assert "program bdus" in lacks and lacks.count("build BDUS") == 1  # one remedy for all that it makes
    text = userblk("papers", cwd=tmp_path).stdout
    assert "1,365 numbers, 100 claims" in text and "userblk-buse, not BUSE" in text


def test_what_cannot_be_compared_is_one_line(tmp_path: Path) -> None:
    few = {"suite": "bdus-block", "workloads": ["seq-read-1th-4k"], "systems": ["native", "nbdkit"]}
    name = make_campaign(tmp_path / "results", repetitions=1, **few).name  # type: ignore[arg-type]
    by_name, by_suite = (userblk("compare", name, paper, "--json", cwd=tmp_path) for paper in ("bdus", "paper"))
    assert by_name.returncode == 0 and by_name.stdout == by_suite.stdout
    for words in (["compare", name, "sudb"], ["compare", "bdus", name], ["table", name, "--classes", "bdus"]):
        done = userblk(*words, cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done
