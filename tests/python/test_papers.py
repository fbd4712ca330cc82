# SPDX-License-Identifier: BSD-3-Clause
"""Papers as data: what is in configs/papers, what is wrong with a file there, and the commands that know papers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import userblk
from synthetic import make_campaign
from userblk.analysis.papers import load_paper, load_papers, paper_names, papers_of, sample_of
from userblk.analysis.statistics import mean_interval
from userblk.analysis.summaries import SummaryError
from userblk.analysis.table import natural
from userblk.harness.machine.paths import CONFIGS

ROOT = Path(__file__).parents[2]


def test_every_paper_can_be_read_and_the_one_with_most_numbers_is_first() -> None:
    papers = load_papers(CONFIGS)
    assert {paper.name for paper in papers} == set(paper_names(CONFIGS)) and papers[0].name == "bdus"
    assert papers[0].numbers == 1365 and len(papers[0].claims) == 80
    assert [paper.name for paper in papers_of(["bdus-fs"], CONFIGS)] == ["bdus"] and not papers_of(["attach"], CONFIGS)


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
    assert "1,365 numbers, 80 claims" in text and "userblk-buse, not BUSE" in text


def test_what_cannot_be_compared_is_one_line(tmp_path: Path) -> None:
    few = {"suite": "bdus-block", "workloads": ["seq-read-1th-4k"], "systems": ["native", "nbdkit"]}
    name = make_campaign(tmp_path / "results", repetitions=1, **few).name  # type: ignore[arg-type]
    by_name, by_suite = (userblk("compare", name, paper, "--json", cwd=tmp_path) for paper in ("bdus", "paper"))
    assert by_name.returncode == 0 and by_name.stdout == by_suite.stdout
    for words in (["compare", name, "sudb"], ["compare", "bdus", name], ["table", name, "--classes", "bdus"]):
        done = userblk(*words, cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done
