# SPDX-License-Identifier: BSD-3-Clause
"""Two campaigns beside each other."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from synthetic import ENVIRONMENT, SPEED, make_campaign
from userblk.analysis import history
from userblk.analysis.compare import (
    Comparison,
    Verdict,
    as_csv,
    as_json,
    compare,
    flat,
    gate_json,
    gate_text,
    regressions,
    terminal,
)
from userblk.analysis.summaries import SummaryError, read_campaign
from userblk.analysis.table import METRICS
from userblk.harness.model.plan import Plan, read_plan
from userblk.harness.running.campaign import block_choices, choices, parameters

WORKLOADS = ["seq-read-16th-4k", "rand-write-1th-4k"]
SYSTEMS = ["native", "nbdkit"]


def pair(tmp_path: Path, repetitions: int = 8, slower: float = 1.0, **second: object) -> Comparison:
    """Two campaigns that differ by the seed, and in nbdkit's speed by a factor."""
    options = {"suite": "bdus-block", "systems": SYSTEMS, "workloads": WORKLOADS, "repetitions": repetitions}
    a = make_campaign(tmp_path, "a", seed=1, **options)  # type: ignore[arg-type]
    speed = SPEED | {"nbdkit": SPEED["nbdkit"] * slower}
    b = make_campaign(tmp_path, "b", seed=2, speed=speed, **options | second)  # type: ignore[arg-type]
    return compare(read_campaign(a), read_campaign(b))


def shown(comparison: Comparison, everything: bool = False) -> str:
    console = Console(file=io.StringIO(), width=200, record=True, _environ={"TERM": "xterm-256color"})
    console.print(terminal(comparison, everything))
    return console.export_text()


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    comparison = pair(tmp_path)
    assert len(comparison.lines) == 2 * 2 * 2 * 3
    assert {line.verdict for line in comparison.lines} == {Verdict.NONE}
    assert "24 no difference shown" in comparison.summary


def test_a_slower_system_is_found_and_no_other(tmp_path: Path) -> None:
    comparison = pair(tmp_path, slower=0.7)
    worse = {(line.system, line.metric.id) for line in comparison.lines if line.verdict is Verdict.WORSE}
    assert worse == {("nbdkit", "throughput_kops"), ("nbdkit", "latency_us")}
    assert not [line for line in comparison.lines if line.verdict is Verdict.BETTER]
    line = next(line for line in comparison.lines if line.verdict is Verdict.WORSE)
    assert line.difference is not None and line.difference.low is not None and line.difference.high is not None
    assert line.difference.low < -30 < line.difference.high
    assert line.p is not None and line.p_holm is not None and line.p <= line.p_holm <= 0.05
    text = shown(comparison)
    assert "worse" in text and "16 comparisons without a significant difference are not shown" in text
    assert "no difference shown" in shown(comparison, everything=True)


def test_faster_is_better_in_throughput_and_latency(tmp_path: Path) -> None:
    better = [line for line in pair(tmp_path, slower=1.4).lines if line.verdict is Verdict.BETTER]
    assert {line.metric.id for line in better} == {"throughput_kops", "latency_us"}


def test_single_runs_decide_nothing(tmp_path: Path) -> None:
    comparison = pair(tmp_path, repetitions=1, slower=0.3)
    assert {line.verdict for line in comparison.lines} == {Verdict.FEW}
    assert all(line.difference is not None and line.difference.half is None for line in comparison.lines)


def test_what_only_one_has_is_said(tmp_path: Path) -> None:
    comparison = pair(tmp_path, workloads=["seq-read-16th-4k", "seq-read-1th-4k"])
    verdicts = {line.workload: line.verdict for line in comparison.lines}
    assert verdicts["rand-write-1th-4k"] is Verdict.ONLY_A and verdicts["seq-read-1th-4k"] is Verdict.ONLY_B


def test_invalid_runs_are_left_out(tmp_path: Path) -> None:
    bad = {index: {"valid": False, "invalid": ["broken"]} for index in range(4)}
    comparison = pair(tmp_path, changes=bad)
    assert sum(line.n_b for line in comparison.lines) == sum(line.n_a for line in comparison.lines) - 4 * 3


def test_facts_that_differ_are_listed(tmp_path: Path) -> None:
    assert pair(tmp_path).facts == {}
    b = tmp_path / "b"
    changed = ENVIRONMENT | {"kernel": "7.0", "packages": {"fio": "4.0-1"}}
    for file in b.glob("*/*/*/*/*/*/environment.json"):
        file.write_text(json.dumps(changed))
    comparison = compare(read_campaign(tmp_path / "a"), read_campaign(b))
    assert comparison.facts["kernel"] == ("0.0.0-made-up", "7.0")
    assert comparison.facts["packages.fio"] == ("3.33-1", "4.0-1")
    assert comparison.facts["packages.nbdkit"] == ("1.42.3-1", "")
    assert "load" not in " ".join(comparison.facts)
    assert "packages.nbdkit: 1.42.3-1 -> -" in shown(comparison)


def test_guests_that_differ_are_listed(tmp_path: Path) -> None:
    """The same campaign in another guest, or by another QEMU, gives other numbers."""
    pair(tmp_path)
    for name, qemu in (("a", "7.2"), ("b", "10.0")):
        file = tmp_path / name / "campaign.json"
        asked = json.loads(file.read_text())
        asked |= {
            "guest": {"root_image": "aa", "checkout_image": name},
            "machine": {"packages": {"qemu-system-x86": qemu}},
        }
        file.write_text(json.dumps(asked))
    comparison = compare(read_campaign(tmp_path / "a"), read_campaign(tmp_path / "b"))
    assert comparison.facts == {"guest.checkout_image": ("a", "b"), "machine.packages.qemu-system-x86": ("7.2", "10.0")}


def asked_otherwise(directory: Path, **changes: object) -> None:
    file = directory / "campaign.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_parameters_that_differ_are_listed_by_line(tmp_path: Path) -> None:
    """Another number of files, or another warm-up, is no change of what is measured."""
    pair(tmp_path)
    first = {"warm_up": "60 s, as asked for", "choices": ["files: 5", "I/O: 1m"], "block_choices": []}
    asked_otherwise(tmp_path / "a", **first)
    asked_otherwise(tmp_path / "b", warm_up="found", choices=["files: 500000", "I/O: 1m"], block_choices=["memory: 1"])
    comparison = compare(read_campaign(tmp_path / "a"), read_campaign(tmp_path / "b"))
    assert comparison.facts == {
        "warm_up": ("60 s, as asked for", "found"),
        "choices": ("files: 5", "files: 500000"),
        "block_choices": ("", "memory: 1"),
    }


def test_a_parameter_that_only_one_says_is_unknown(tmp_path: Path) -> None:
    """As of a campaign that an older version made."""
    pair(tmp_path)
    asked_otherwise(tmp_path / "b", warm_up="found", block_choices=["memory: 1"])
    assert compare(read_campaign(tmp_path / "a"), read_campaign(tmp_path / "b")).facts == {}


def asks(directory: Path, plan: Plan) -> None:
    values = {"choices": choices(plan), "block_choices": block_choices(plan), "parameters": parameters(plan)}
    asked_otherwise(directory, warm_up="found", **values)


@pytest.mark.parametrize(
    ("suite", "more"), [("bdus-block", "seq-read-1th-4k"), ("bdus-fs", "web-server"), ("bdus-fs", "file-server")]
)
def test_only_what_concerns_both_is_compared(suite: str, more: str, tmp_path: Path) -> None:
    """A subset of a campaign is measured as the whole of it."""
    one = {"bdus-block": "rand-write-1th-4k", "bdus-fs": "create-1th"}[suite]
    options: dict[str, Any] = {"suite": suite, "repetitions": 2, "seed": 1}
    a = make_campaign(tmp_path, "a", **options, systems=("native", "nbdkit", "tcmu"), workloads=[one, more])
    b = make_campaign(tmp_path, "b", **options, systems=("native", "nbdkit"), workloads=[one])
    asks(a, read_plan(a / "plan.json"))
    plan = read_plan(b / "plan.json")
    asks(b, replace(plan, devices={"nvme": plan.devices["nvme"]}))
    first, second = read_campaign(a), read_campaign(b)
    assert first.choices != second.choices or first.block_choices != second.block_choices
    second = replace(second, runs=tuple(run for run in second.runs if run.device == "nvme"))
    assert compare(first, second).facts == {}
    assert not any("NOT" in note for note in history.history([first, second], METRICS[0]).notes)


def test_a_value_that_differs_is_named_with_what_it_concerns(tmp_path: Path) -> None:
    pair(tmp_path)
    for name in ("a", "b"):
        asks(tmp_path / name, read_plan(tmp_path / name / "plan.json"))
    first, second = (read_campaign(tmp_path / name) for name in ("a", "b"))
    for record in second.asked["parameters"]["block_choices"]:
        if record.get("device") == "nvme" and record["name"].startswith("discarded"):
            record["value"] = "7"
    second.asked["parameters"]["block_choices"].append({"name": "threads", "value": "4", "system": "bdus"})
    second.asked["parameters"]["block_choices"].append({"name": "cache", "value": "warm", "workload": WORKLOADS[0]})
    (told,) = compare(first, second).facts.values()
    assert told[0].startswith("discarded before writes of nvme: ")
    assert told[1] == f"discarded before writes of nvme: 7; cache of {WORKLOADS[0]}: warm"


def test_the_gate_names_what_differs(tmp_path: Path) -> None:
    pair(tmp_path)
    asked_otherwise(tmp_path / "a", warm_up="60 s")
    asked_otherwise(tmp_path / "b", warm_up="found")
    first, second = (read_campaign(tmp_path / name) for name in ("a", "b"))
    second = replace(second, runs=tuple(replace(run, emulated="") for run in second.runs))
    comparison = compare(first, second)
    console = Console(file=io.StringIO(), width=200, record=True)
    console.print(gate_text([], 5, comparison))
    text = console.export_text()
    assert "NOT measured alike: EMULATED (lab) -> measured on a host's devices" in text
    assert "Differs in more than the results: emulated, warm_up." in text
    assert gate_json([], 5, comparison)["differing"] == ["emulated", "warm_up"]


def test_flat() -> None:
    assert flat({"a": {"b": 1, "c": {"d": "x"}}, "e": [1, 2]}) == {"a.b": "1", "a.c.d": "x", "e": "1, 2"}


def test_json_and_csv_hold_everything(tmp_path: Path) -> None:
    comparison = pair(tmp_path, slower=0.7)
    value = json.loads(json.dumps(as_json(comparison)))
    records = list(csv.DictReader(io.StringIO(as_csv(comparison))))
    assert len(value["comparisons"]) == len(records) == len(comparison.lines)
    for line, one, record in zip(comparison.lines, value["comparisons"], records, strict=True):
        assert line.a is not None and line.difference is not None
        assert one["a"]["value"] == float(record["a"]) == line.a.value
        assert one["difference"]["low"] == float(record["diff_low"]) == line.difference.low
        assert one["verdict"] == record["verdict"] == line.verdict.value
        assert one["metric"] == record["metric"] == line.metric.id
    assert value["emulated"] == "EMULATED (lab)"


def test_the_gate_closes_for_a_loss_beyond_its_limit_only(tmp_path: Path) -> None:
    comparison = pair(tmp_path, slower=0.7)
    worse = regressions(comparison, 10)
    assert {(line.system, line.metric.id) for line in worse} == {
        ("nbdkit", "throughput_kops"),
        ("nbdkit", "latency_us"),
    }
    assert regressions(comparison, 60) == []
    assert not gate_json(worse, 10, comparison)["open"] and len(gate_json(worse, 10, comparison)["worse"]) == len(worse)


def test_the_gate_stays_open_for_a_gain(tmp_path: Path) -> None:
    assert regressions(pair(tmp_path, slower=1.4), 0) == []


def test_the_gate_closes_for_a_cell_that_is_gone(tmp_path: Path) -> None:
    worse = regressions(pair(tmp_path, workloads=["seq-read-16th-4k"]), 5)
    assert {line.workload for line in worse} == {"rand-write-1th-4k"}


def test_a_gate_that_cannot_close_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SummaryError, match="fail-over=5: no cell has two valid runs"):
        regressions(pair(tmp_path, repetitions=1, slower=0.3), 5)


@pytest.mark.parametrize("spoilt", [0, 1])
def test_the_gate_closes_where_too_few_runs_are_left_to_test(tmp_path: Path, spoilt: int) -> None:
    """A server that spoils all runs but one: of the cell, nothing is known."""
    options: dict[str, Any] = {"suite": "bdus-block", "systems": SYSTEMS, "workloads": WORKLOADS, "repetitions": 3}
    both = [read_campaign(make_campaign(tmp_path, name, seed=1, **options)) for name in ("a", "b")]
    runs = [
        replace(run, valid=run.repetition == 1) if (run.system, run.workload) == ("nbdkit", WORKLOADS[1]) else run
        for run in both[spoilt].runs
    ]
    both[spoilt] = replace(both[spoilt], runs=tuple(runs))
    worse = regressions(compare(*both), 5)
    assert {(line.system, line.workload, line.verdict) for line in worse} == {("nbdkit", WORKLOADS[1], Verdict.FEW)}
