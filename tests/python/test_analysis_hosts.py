# SPDX-License-Identifier: BSD-3-Clause
"""A campaign on several hosts, one device on each or identical machines: one comparison, all warnings, one status."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from command_line import userblk
from made_up import summary
from synthetic import ENVIRONMENT, make_campaign
from userblk.analysis.export import openmetrics
from userblk.analysis.history import SHOWN_METRICS, points
from userblk.analysis.page import write_report
from userblk.analysis.paper import compare_with_paper
from userblk.analysis.paper_cells import Verdict
from userblk.analysis.papers import load_paper
from userblk.analysis.suites import reports_of
from userblk.analysis.summaries import read_campaign
from userblk.analysis.tabulate import make_tables
from userblk.harness.cli.results import status, status_lines
from userblk.harness.machine.paths import CONFIGS
from userblk.harness.model.hosts import Host, Hosts

MACHINE: dict[str, Any] = {
    **ENVIRONMENT,
    "memory_bytes": 64 << 30,
    "governor": "performance",
    "turbo": "off",
    "smt": "0",
    "virtual": "",
    "distribution": "Debian",
}
BDUS = load_paper("bdus", CONFIGS)
WORKLOADS = ["seq-read-1th-4k", "rand-read-16th-4k"]


def several_hosts(tmp_path: Path, hosts: dict[str, tuple[str, dict[str, Any]]]) -> Path:
    """hosts: the device of each, "" for both, and its environment. They share one campaign's directory."""
    results = tmp_path / "results"
    for name, (device, environment) in hosts.items():
        chosen: dict[str, Any] = {"suite": "bdus-block", "systems": ["native", "nbdkit"], "workloads": WORKLOADS}
        part = make_campaign(results, name, repetitions=2, seed=len(name), emulated=False, **chosen)
        if not (results / "all").exists():
            (results / "all").mkdir()
            (results / "all/plan.json").write_bytes((part / "plan.json").read_bytes())
            (results / "all/campaign.json").write_bytes((part / "campaign.json").read_bytes())
        for file in part.glob("nowhere/*/*/*/*/*/summary.json"):
            value = json.loads(file.read_text())
            if device in ("", value["device"]):
                file.write_text(json.dumps(value | {"host": name}))
                file.with_name("environment.json").write_text(json.dumps(environment))
                target = results / "all" / name / file.parent.relative_to(part / "nowhere")
                target.parent.mkdir(parents=True, exist_ok=True)
                file.parent.rename(target)
        there = results / "all/hosts" / name
        there.mkdir(parents=True)
        plan = json.loads((part / "plan.json").read_text())
        plan["host"] = name
        plan["entries"] = [entry for entry in plan["entries"] if device in ("", entry["device"])]
        (there / "plan.json").write_text(json.dumps(plan))
        (there / "environment.json").write_text(json.dumps({"warnings": [f"governor of {name}"]}))
    asked = Hosts("two", "/u", "/d", ("ssh",), tuple(Host(name, name, {}, {}) for name in hosts))
    (results / "all/hosts.json").write_text(json.dumps({"schema": 1, **asdict(asked)}))
    return results / "all"


def test_a_device_on_each_is_one_comparison(tmp_path: Path) -> None:
    directory = several_hosts(tmp_path, {"one": ("sata", MACHINE), "other": ("nvme", {**MACHINE, "cpus": 72})})
    campaign = read_campaign(directory)
    found = compare_with_paper([campaign], make_tables(campaign.runs), BDUS)
    assert len(found.cells) == 1365
    measured = [cell for cell in found.cells if cell.shape is not None]
    assert {(cell.device, cell.host) for cell in measured} == {("sata", "one"), ("nvme", "other")}
    faster = next(ours for ours, _ in found.claims if ours.claim.id == "native-nvme-faster")
    assert faster.true + faster.false + faster.undecided == 4  # over both hosts


def test_a_device_on_each_is_one_table(tmp_path: Path) -> None:
    hosts = {"one": ("sata", MACHINE), "other": ("nvme", {**MACHINE, "cpus": 72})}
    campaign = read_campaign(several_hosts(tmp_path, hosts))
    apart = {table.rows[0][0]: table for table in make_tables(campaign.runs)}
    (table,) = make_tables(campaign.runs, joined=True)
    assert {device for device, _ in table.rows} == {"sata", "nvme"} and "host one, other" in table.title
    assert "devices SATA of one, NVMe of other" in table.notes[0]
    # Each device is compared with the native of its own host.
    for key, cell in table.cells.items():
        own = apart[key[0]].cells[key]
        assert (cell.n, cell.mean, cell.difference) == (own.n, own.mean, own.difference)


def test_an_artefact_has_the_tables_that_the_command_prints(tmp_path: Path) -> None:
    """With several hosts as well, and if the campaign was resumed with something else."""
    hosts = {"one": ("sata", MACHINE), "other": ("nvme", {**MACHINE, "cpus": 72})}
    directory = several_hosts(tmp_path, hosts)
    line = "differs from the beginning: kernel is 6.12 instead of 6.1"
    (directory / "hosts/one/environment.json").write_text(json.dumps({"warnings": [line]}))
    assert userblk("bundle", str(directory), "--output", "a.tar.gz", cwd=tmp_path).returncode == 0
    with tarfile.open(tmp_path / "a.tar.gz") as packed:
        for name, options in (
            ("table.md", ["markdown", "--ci"]),
            ("table.csv", ["csv"]),
            ("table-long.csv", ["csv-long"]),
        ):
            file = packed.extractfile(f"all/tables/{name}")
            assert file is not None
            assert file.read().decode() == userblk("table", str(directory), "--format", *options).stdout
            assert name != "table.md" or f"one: {line}" in userblk("table", str(directory)).stdout


def test_a_device_on_both_is_two_tables(tmp_path: Path) -> None:
    campaign = read_campaign(several_hosts(tmp_path, {"one": ("", MACHINE), "other": ("", {**MACHINE, "cpus": 72})}))
    assert [table.host for table in make_tables(campaign.runs, joined=True)] == ["one", "other"]


def test_identical_machines_are_pooled(tmp_path: Path) -> None:
    campaign = read_campaign(several_hosts(tmp_path, {"one": ("", MACHINE), "other": ("", MACHINE)}))
    tables = make_tables(campaign.runs)
    assert {table.host for table in tables} == {"one+other"}
    assert {cell.n for table in tables for cell in table.cells.values()} == {4}
    found = compare_with_paper([campaign], tables, BDUS)
    assert len(found.cells) == 1365 and Counter(cell.n for cell in found.cells)[4] > 0
    assert all((campaign.directory / run.directory / "DONE").exists() for run in campaign.runs)


def test_what_was_measured_twice_counts_once(tmp_path: Path) -> None:
    """On the host that can better be compared with the paper's."""
    alike = MACHINE | {"devices": {"sata": {"model": "SAMSUNG MZ7LN128"}}}
    campaign = read_campaign(several_hosts(tmp_path, {"one": ("sata", MACHINE), "other": ("sata", alike)}))
    tables = make_tables(campaign.runs)
    assert {table.host for table in tables} == {"one", "other"}
    found = compare_with_paper([campaign], tables, BDUS)
    assert len(found.cells) == 1365
    measured = [cell for cell in found.cells if cell.verdict is not Verdict.NOT_MEASURED]
    assert {cell.host for cell in measured} == {"other"}


@pytest.mark.parametrize("machine", [{}, {**MACHINE, "packages": {}}])
def test_unknown_machines_are_not_pooled(tmp_path: Path, machine: dict[str, Any]) -> None:
    """Nor those whose programs may have any version."""
    campaign = read_campaign(several_hosts(tmp_path, {"one": ("", machine), "other": ("", machine)}))
    assert {run.host for run in campaign.runs} == {"one", "other"}


def test_warnings_and_status_of_all(tmp_path: Path) -> None:
    directory = several_hosts(tmp_path, {"one": ("sata", MACHINE), "other": ("nvme", {**MACHINE, "cpus": 72})})
    (next(directory.glob("other/*/*/*/*/1")) / "DONE").unlink()
    found = status(directory)
    assert isinstance(found["hosts"], list) and [part["host"] for part in found["hosts"]] == ["one", "other"]
    assert (found["runs"], found["missing"]) == (16, 1)
    assert "other: 7 of 8 runs valid, 0 invalid, 1 missing" in status_lines(found)
    page = (write_report(read_campaign(directory), tmp_path / "report", CONFIGS)[0]).read_text()
    assert "one: governor of one" in page and "other: governor of other" in page


def test_samples_have_names_of_their_own_where_machines_are_pooled(tmp_path: Path) -> None:
    """What reads OpenMetrics takes two samples with the same labels for one."""
    campaign = read_campaign(several_hosts(tmp_path, {"one": ("", MACHINE), "other": ("", MACHINE)}))
    campaign = replace(campaign, runs=tuple(replace(run, campaign=campaign.name) for run in campaign.runs))
    assert {run.host for run in campaign.runs} == {"one+other"}
    lines = [line.rpartition(" ")[0] for line in openmetrics(campaign).splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines)) > 0


def test_a_history_keeps_hosts_apart(tmp_path: Path) -> None:
    """A machine that is missing the second time is no change of the other one."""
    found = []
    for day, hosts in ((1, {"fast": 30.0, "slow": 10.0}), (2, {"slow": 10.0})):
        directory = tmp_path / str(day)
        for host, kops in hosts.items():
            for number in (1, 2):
                path = directory / host / "sata/bdus-block/native/seq-read-1th-4k" / str(number)
                path.mkdir(parents=True)
                value = summary(host=host, repetition=number, metrics={"throughput_kops": kops + number / 10})
                (path / "summary.json").write_text(json.dumps(value))
                (path / "DONE").touch()
        asked = {"campaign": str(day), "created": f"2026-01-0{day}T00:00:00Z", "seed": 1}
        (directory / "campaign.json").write_text(json.dumps(asked))
        found.append(read_campaign(directory))
    one = points(found, SHOWN_METRICS["throughput"])["native"]
    assert [(point.cells, round(point.change, 6)) for point in one if point] == [(1, 0.0), (1, 0.0)]


def test_reports_of_other_suites_keep_hosts_apart(tmp_path: Path) -> None:
    for host, seconds in (("one", 0.001), ("other", 0.1)):
        path = tmp_path / host / "sata/attach/loop/1-disks/1"
        path.mkdir(parents=True)
        value = summary(host=host, suite="attach", system="loop", workload="1-disks", settings={"attach": {"disks": 1}})
        (path / "summary.json").write_text(json.dumps(value))
        (path / "attach.json").write_text(json.dumps({name: [seconds] * 10 for name in ("there", "read", "gone")}))
        (path / "DONE").touch()
    found = reports_of(tmp_path)
    assert [(one.name, one.rows[0][4]) for one in found] == [
        ("attach-one", "1.0 [1.0, 1.0]"), ("attach-other", "100.0 [100.0, 100.0]"),
    ]  # fmt: skip
    assert [list(one.figures) for one in found] == [["attach-one"], ["attach-other"]]
    assert "host one," in found[0].title and "host other," in found[1].title


def test_machines_with_another_userblk_are_not_pooled(tmp_path: Path) -> None:
    new = {**MACHINE, "userblk": {"version": "2"}}
    campaign = read_campaign(several_hosts(tmp_path, {"one": ("", MACHINE), "other": ("", new)}))
    assert {run.host for run in campaign.runs} == {"one", "other"}
