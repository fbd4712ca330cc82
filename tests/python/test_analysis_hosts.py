# SPDX-License-Identifier: BSD-3-Clause
"""A campaign on several hosts, one device on each or identical machines: one comparison, all warnings, one status."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from synthetic import ENVIRONMENT, make_campaign
from userblk.analysis.page import write_report
from userblk.analysis.paper import compare_with_paper
from userblk.analysis.paper_cells import Verdict
from userblk.analysis.papers import load_paper
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


def test_unknown_machines_are_not_pooled(tmp_path: Path) -> None:
    campaign = read_campaign(several_hosts(tmp_path, {"one": ("", {}), "other": ("", {})}))
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
