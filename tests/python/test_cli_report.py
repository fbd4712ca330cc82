# SPDX-License-Identifier: BSD-3-Clause
"""userblk table, compare and report as a user calls them."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
import tarfile
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
from command_line import userblk
from synthetic import SPEED, make_campaign
from userblk.harness.cli.common import optional_packages
from userblk.harness.cli.results import typeset
from userblk.harness.model.tables import ConfigError

SMALL = {"suite": "bdus-block", "systems": ["native", "nbdkit"], "workloads": ["seq-read-1th-4k"]}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Campaigns a and b, nbdkit being slower in b; and one without a run, none."""
    directory = tmp_path_factory.mktemp("cli") / "results"
    make_campaign(directory, "a", repetitions=5, seed=1, **SMALL)  # type: ignore[arg-type]
    speed = SPEED | {"nbdkit": 0.3}
    make_campaign(directory, "b", repetitions=5, seed=2, speed=speed, **SMALL)  # type: ignore[arg-type]
    files = {"suite": "bdus-fs", "systems": ["native", "nbdkit"], "workloads": ["seq-read-1th-4k"]}
    make_campaign(directory, "files", repetitions=5, seed=1, **files)  # type: ignore[arg-type]
    older = {number: {"kernel": "6.1"} for number in range(4)}
    make_campaign(directory, "other", repetitions=1, changes=older, **SMALL)  # type: ignore[arg-type]
    none = make_campaign(directory, "none", repetitions=1, **SMALL)  # type: ignore[arg-type]
    for mark in none.glob("*/*/*/*/*/*/DONE"):
        mark.unlink()
    return directory


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["compare", "a"], "OTHER"),
        (["compare", "a", "nosuch"], "nosuch; name a campaign's directory, or a paper: paper, bdus, "),
        (["table", "nosuch"], "nosuch; name a campaign's directory, or a paper: bdus, "),
        (["compare", "paper", "a"], "userblk compare CAMPAIGN paper"),
        (["compare", "a", "none"], "userblk resume"),
        (["compare", "a", "files", "b"], "more than two campaigns are compared with a paper only"),
        (["compare", "a", "b", "paper"], "of suite bdus-block with nvme, as a has"),
        (["compare", "files", "other", "paper"], "other: nowhere is not as in files (kernel)"),
        (["report", "nosuch"], "nosuch"),
        (["report", "none"], "userblk resume"),
        (["report", "a", "--output", "/proc/nosuch"], "output=/proc/nosuch"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(results: Path, arguments: list[str], says: str) -> None:
    done = userblk(*arguments, cwd=results.parent)
    assert done.returncode == 2 and done.stdout == ""
    assert says in done.stderr.strip().splitlines()[-1] and "Traceback" not in done.stderr


def test_campaigns_of_different_workloads_are_compared_with_a_paper_together(tmp_path: Path) -> None:
    for workload in ("seq-read-1th-4k", "rand-read-1th-4k"):
        only = SMALL | {"workloads": [workload]}
        make_campaign(tmp_path / "results", workload, repetitions=3, seed=1, **only)  # type: ignore[arg-type]
    done = userblk("compare", "seq-read-1th-4k", "rand-read-1th-4k", "paper", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    cells = json.loads(done.stdout)["cells"]
    measured = {cell["workload"] for cell in cells if cell["verdict"] != "not measured"}
    assert measured == {"seq-read-1th-4k", "rand-read-1th-4k"}


def test_suites_of_different_models_are_compared_with_a_paper_together(tmp_path: Path) -> None:
    """And it is said. Within a suite, one model is compared."""

    def make(name: str, model: str, **what: object) -> None:
        changes = {number: {"model": model} for number in range(4)}
        asked = {"systems": ["native", "nbdkit"], "repetitions": 1, "changes": changes} | what
        make_campaign(tmp_path / "results", name, **asked)  # type: ignore[arg-type]

    make("blocks", "cpu-8", suite="bdus-block", workloads=["seq-read-1th-4k"])
    make("files", "cpu-9", suite="bdus-fs", workloads=["seq-read-1th-4k"])
    make("more", "cpu-8", suite="bdus-fs", workloads=["seq-write-1th-4k"])
    done = userblk("compare", "blocks", "files", "paper", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "Suites differ in their model: bdus-block: SIMULATED (lab, virtual time, model cpu-8); bdus-fs: SIM" in text
    done = userblk("compare", "blocks", "files", "more", "paper", cwd=tmp_path)
    assert done.returncode == 2 and "more: suite bdus-fs is SIMULATED" in done.stderr
    assert "Suites differ" not in userblk("compare", "files", "paper", cwd=tmp_path).stdout


def test_compare_in_three_forms(results: Path) -> None:
    text = userblk("compare", "a", "b", cwd=results.parent)
    assert text.returncode == 0, text.stderr
    assert "b against a: 12 comparisons: 4 worse, 8 no difference shown" in " ".join(text.stdout.split())
    value = json.loads(userblk("compare", "a", "b", "--json", cwd=results.parent).stdout)
    records = list(csv.DictReader(io.StringIO(userblk("compare", "a", "b", "--csv", cwd=results.parent).stdout)))
    assert [line["verdict"] for line in value["comparisons"]] == [record["verdict"] for record in records]
    assert sum(record["verdict"] == "worse" for record in records) == 4


def test_the_gate_has_an_exit_code_of_its_own(results: Path) -> None:
    for second, code in (("a", 0), ("b", 3)):
        done = userblk("compare", "a", second, "--fail-over", "10", cwd=results.parent)
        assert done.returncode == code, done.stderr
        value = json.loads(userblk("compare", "a", second, "--fail-over", "10", "--json", cwd=results.parent).stdout)
        assert value["gate"]["open"] is (code == 0)
    for arguments, says in (
        (("b", "--fail-over", "-1"), "fail-over=-1: is not a valid limit; give a percentage from 0 on"),
        (("paper", "--fail-over", "10"), "fail-over=10: is not a valid limit; compare two campaigns"),
    ):
        done = userblk("compare", "a", *arguments, cwd=results.parent)
        assert done.returncode == 2 and done.stderr == f"userblk: {says}\n"


def test_campaigns_of_different_devices_beside_a_paper(results: Path) -> None:
    """The same numbers as from one campaign with both: a campaign that is taken apart is put together again."""
    kept = {"sata": "apart-1", "nvme": "apart-2"}
    for device, name in kept.items():
        part = shutil.copytree(results / "a", results / name)
        for other in kept.keys() - {device}:
            shutil.rmtree(part / "nowhere" / other)
        for file in part.rglob("environment.json"):
            environment = json.loads(file.read_text())
            environment["devices"] = {device: environment["devices"][device]}
            file.write_text(json.dumps(environment))
    whole, parts = (
        json.loads(userblk("compare", *names, "paper", "--json", cwd=results.parent).stdout)
        for names in (("a",), kept.values())
    )
    assert whole["cells"] == parts["cells"] and whole["claims"] == parts["claims"]


def test_campaigns_of_different_suites_beside_a_paper(results: Path) -> None:
    """Claims across the paper's tables are judged by the campaigns of both."""
    both, one, other = (
        json.loads(userblk("compare", *names, "paper", "--json", cwd=results.parent).stdout)
        for names in (("a", "files"), ("a",), ("files",))
    )

    def measured(value: Any) -> set[str]:
        return {repr(cell) for cell in value["cells"] if cell["value"] is not None}

    def across(value: Any) -> int:
        return next(claim["true"] for claim in value["claims"] if claim["id"] == "files-sata-as-blocks")

    assert measured(both) == measured(one) | measured(other) and measured(one) and measured(other)
    assert across(both) > across(one) == across(other) == 0


def test_compare_with_the_paper(results: Path) -> None:
    text = userblk("compare", "a", "paper", cwd=results.parent)
    assert text.returncode == 0, text.stderr
    assert "12 of the paper's 1,365 numbers are measured, 0 comparable." in text.stdout
    value = json.loads(userblk("compare", "a", "paper", "--json", cwd=results.parent).stdout)
    assert len(value["cells"]) == 1365
    assert userblk("compare", "a", "paper", "--csv", cwd=results.parent).stdout.count("\n") == 1366


def test_report(results: Path, tmp_path: Path) -> None:
    done = userblk("report", "a", cwd=results.parent)
    assert done.returncode == 0 and str(results / "a/report/report.html") in done.stderr, done.stderr
    done = userblk("report", "a", "--output", str(tmp_path / "out"), "--json", cwd=results.parent)
    assert json.loads(done.stdout)["written"] == [str(tmp_path / "out" / name) for name in ("report.html", "figures")]
    assert (tmp_path / "out/report.html").read_bytes() == (results / "a/report/report.html").read_bytes()


def test_what_was_kept_is_not_packed(results: Path, tmp_path: Path) -> None:
    make_campaign(tmp_path / "results", "c", repetitions=1, **SMALL)  # type: ignore[arg-type]
    (tmp_path / "results/c/cache").mkdir()
    (tmp_path / "results/c/cache/kept.json").write_text("{}")
    done = userblk("export", "c", "--output", "c.tar.gz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / "c.tar.gz") as packed:
        names = packed.getnames()
    assert "c/campaign.json" in names and not [name for name in names if "cache" in name]


@pytest.mark.parametrize("form", ["terminal", "markdown", "csv", "latex", "html"])
def test_tables_show_half_widths_on_demand(results: Path, form: str) -> None:
    plain = userblk("table", "a", "--format", form, cwd=results.parent)
    with_ci = userblk("table", "a", "--format", form, "--ci", cwd=results.parent)
    assert plain.returncode == with_ci.returncode == 0, plain.stderr + with_ci.stderr
    assert "seq-read-1th-4k" in plain.stdout and plain.stdout != with_ci.stdout


def test_a_package_that_only_reports_need_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = cast(dict[str, object], sys.modules)  # None: cannot be imported
    monkeypatch.setitem(modules, "jinja2", None)
    monkeypatch.delitem(sys.modules, "userblk.analysis.html", raising=False)
    with pytest.raises(ConfigError, match="jinja2: is not installed, and reports need it; run: "):
        typeset([], "html", False)
    monkeypatch.setitem(modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "userblk.analysis.figures", raising=False)
    with pytest.raises(ConfigError, match="matplotlib: is not installed"), optional_packages():
        import userblk.analysis.figures  # noqa: F401
    with pytest.raises(ModuleNotFoundError), optional_packages():
        import_module("userblk.no_such_module")
