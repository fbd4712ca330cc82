# SPDX-License-Identifier: BSD-3-Clause
"""Blocks in guests of their own, played by a program that leaves what a sealed guest leaves."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from userblk.harness.cli import progress, run
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.plan import Device, Plan, make_plan, read_plan, write_plan
from userblk.harness.model.tables import ConfigError
from userblk.harness.running import guests

SYSTEMS = ["native", "nbdkit", "bdus"]
TICK = 0.1

# argv: the campaign's directory, the plan of the block, the system that is not installed, the block that dies.
GUEST = """
import json, pathlib, sys
directory, absent, dies = pathlib.Path(sys.argv[1]), sys.argv[3], int(sys.argv[4])
plan = json.loads(pathlib.Path(sys.argv[2]).read_text())
assert plan["campaign"] == "simulated"
def emit(event, **values):
    print(json.dumps({"event": event, "time": 0, **values}), flush=True)
emit("start", entries=1, skipped=0, campaign="c")
emit("environment", warnings=[], found={"kernel": (directory / "kernel").read_text(), "warnings": []})
if plan["entries"][0]["block"] == dies:
    sys.exit(125)
counts = {"done": 0, "invalid": 0, "failed": 0, "full": 0, "left_out": 0}
if (directory / f"stops-{plan['entries'][0]['system']}").exists():
    emit("note", text="the campaign stops: kernel module m cannot be loaded: no message")
    emit("end", **counts, interrupted=False)
    sys.exit(1)
for entry in plan["entries"]:
    if entry["system"] == absent:
        counts["left_out"] += 1
        emit("entry-left-out", index=entry["index"], reason="not there")
        continue
    run = directory / plan["host"] / entry["device"] / entry["suite"] / entry["system"] / entry["workload"]
    run = run / str(entry["repetition"])
    run.mkdir(parents=True)  # what an earlier guest left of it is gone
    value = 100.0 + 40 * (entry["repetition"] % 2)
    metrics = {"throughput_kops": value, "latency_us": value, "cpu_percent": 1.0}
    valid = entry["workload"] != "rand-write-1th-4k" or not (directory / "broken").exists()
    summary = {"schema": 1, "campaign": plan["campaign"], "valid": valid, "metrics": metrics}
    (run / "summary.json").write_text(json.dumps(summary))
    counts["done" if valid else "invalid"] += 1
    emit("entry-done", index=entry["index"], summary=summary)
emit("end", **counts, interrupted=False)
"""


def plan_in(directory: Path, repetitions: int, most: int) -> Plan:
    directory.mkdir()
    (directory / "kernel").write_text("k")
    profile = dataclasses.replace(load_profile("quick", virtual=True), repetitions=repetitions, max_repetitions=most)
    plan = make_plan(
        suite=load_suite("bdus-block"),
        profile=profile,
        systems=[load_system(name) for name in SYSTEMS],
        devices=guests_devices(),
        campaign="c",
        build="build/trixie",
        host="lab",
        emulated=True,
        model="cpu-1",
        seed=1,
        workloads=["rand-read-1th-4k", "rand-write-1th-4k"],
    )
    write_plan(plan, directory)
    return plan


def guests_devices() -> list[Device]:
    return [Device("sata", "$LAB_SATA", "MODELSATA"), Device("nvme", "$LAB_NVME", "MODELNVME")]


def play(
    monkeypatch: pytest.MonkeyPatch,
    directory: Path,
    plan: Plan,
    dies: int = -1,
    guest: Callable[[], Mapping[str, str]] = dict,
) -> tuple[list[dict[str, object]], int]:
    """All events, and the exit code."""

    def argv(plan: Plan, directory: Path, given: Path, module: str) -> list[str]:
        return [sys.executable, "-c", GUEST, str(directory), str(given), "bdus", str(dies)]

    monkeypatch.setattr(guests, "runner_argv", argv)
    monkeypatch.setattr(guests, "at_once", lambda plan: 2)
    all_of_them = guests.Guests(plan, directory, guest=guest)
    events = [event for event in all_of_them.events(TICK) if event]
    return events, all_of_them.wait()


def test_one_campaign_of_many_guests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It looks like that of one runner: started, looked at and ended once, and nothing is reported twice."""
    directory = tmp_path / "c"
    plan = plan_in(directory, 1, 1)
    events, code = play(monkeypatch, directory, plan)
    kinds = [event["event"] for event in events]
    assert code == 0 and kinds[0] == "start" and kinds[-1] == "end"
    assert [kinds.count(kind) for kind in ("start", "environment", "end")] == [1, 1, 1]
    assert sorted(e["index"] for e in events if "index" in e) == list(range(12))  # type: ignore[type-var]
    assert {key: events[-1][key] for key in ("done", "left_out", "failed")} == {"done": 8, "left_out": 4, "failed": 0}
    assert json.loads((directory / "environment.json").read_text())["kernel"] == "k"
    assert [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()] == events
    again, code = play(monkeypatch, directory, plan)  # what was done is skipped, what could not be is tried
    assert code == 0 and (again[0]["entries"], again[0]["skipped"]) == (4, 8)


def test_wide_cells_get_another_round(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    directory = tmp_path / "c"
    events, _ = play(monkeypatch, directory, plan_in(directory, 2, 3))
    added = [event for event in events if event["event"] == "extend"]
    assert len(added) == 1 and len(added[0]["entries"]) == 8  # type: ignore[arg-type]
    assert len(read_plan(directory / "plan.json").entries) == 12 * 2 + 8
    assert events[-1]["done"] == 8 * 3


def test_a_guest_that_dies_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The others come to their end, and the exit code is its own."""
    directory = tmp_path / "c"
    plan = plan_in(directory, 1, 1)
    block = next(entry.block for entry in plan.entries if entry.system == "native")
    events, code = play(monkeypatch, directory, plan, dies=block)
    assert code == 125 and events[-1]["done"] == 6


def test_a_guest_that_stops_before_its_runs_is_not_success(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As one whose kernel lacks a module of a system of ours."""
    directory = tmp_path / "c"
    plan = plan_in(directory, 1, 1)
    (directory / "stops-nbdkit").touch()
    events, code = play(monkeypatch, directory, plan)
    assert code == 3 and events[-1]["done"] == 4
    assert any("kernel module m cannot be loaded" in str(event.get("text")) for event in events)
    (directory / "stops-nbdkit").unlink()
    assert play(monkeypatch, directory, plan)[1] == 0


SAYS_AT_ITS_END = """
import json, signal, sys, time
def end(*_):
    print(json.dumps({"event": "note", "text": "m is busy"}), flush=True)
    sys.exit(130)
signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, end)
print(json.dumps({"event": "note", "text": "begins"}), flush=True)
time.sleep(60)
"""


def test_what_guests_say_at_their_end_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the thread that stops them, as nobody takes their events then."""
    monkeypatch.setattr(guests, "runner_argv", lambda *_: [sys.executable, "-c", SAYS_AT_ITS_END])
    monkeypatch.setattr(guests, "at_once", lambda plan: 2)
    all_of_them, said = guests.Guests(plan_in(tmp_path / "c", 1, 1), tmp_path / "c"), list[str]()
    begun = 0
    for event in all_of_them.events(TICK):
        begun += bool(event and event.get("text") == "begins")
        if begun == 2:
            break
    all_of_them.stop(said.append)
    assert said == ["m is busy"] * 2


def test_a_block_is_run_again_from_its_beginning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a run finds depends on those before it in its guest, so that a resumed campaign is as one in one go."""
    directory = tmp_path / "c"
    plan = plan_in(directory, 1, 1)
    (directory / "broken").touch()
    events, code = play(monkeypatch, directory, plan)
    assert code == 3 and (events[-1]["done"], events[-1]["invalid"]) == (4, 4)
    native = next(entry for entry in plan.entries if entry.system == "native")
    leftover = directory / plan.directory(native) / "leftover"
    leftover.touch()
    (directory / "broken").unlink()
    (directory / "kernel").write_text("k2")
    events, code = play(monkeypatch, directory, plan)
    assert code == 0 and (events[0]["skipped"], events[-1]["done"]) == (0, 8) and not leftover.exists()
    changed = ["differs from the beginning: kernel is k2 instead of k"]
    assert [event["warnings"] for event in events if event["event"] == "environment"] == [changed]
    assert json.loads((directory / "environment.json").read_text())["warnings"] == changed
    for entry in plan.entries:
        if entry.system != "bdus":
            summary = json.loads((directory / plan.directory(entry) / "summary.json").read_text())
            assert summary["campaign"] == "c" and (directory / plan.directory(entry) / "DONE").exists()


def test_programs_that_change_in_a_campaign_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Once, whenever they change: the runs before and after are not of one sample."""
    directory = tmp_path / "c"
    plan = plan_in(directory, 1, 1)
    began = {"kernel": "k", "checkout_image": "a"}
    (directory / "campaign.json").write_text(json.dumps({"guest": began}))
    looks = [began, began | {"checkout_image": "b"}]

    def guest() -> Mapping[str, str]:
        return looks[-1] if len(looks) == 1 else looks.pop(0)

    events, _ = play(monkeypatch, directory, plan, guest=guest)
    line = "differs from the beginning: checkout_image is b instead of a"
    assert [event["text"] for event in events if event["event"] == "note"] == [line]
    assert json.loads((directory / "environment.json").read_text())["warnings"] == [line]
    events, _ = play(monkeypatch, directory, plan, guest=lambda: began | {"extra_image": "c"})
    assert not [event for event in events if event["event"] == "note"]
    assert json.loads((directory / "environment.json").read_text())["warnings"] == [line]


def test_programs_that_change_while_the_last_guest_starts_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Between the look at what it would consist of and its start, which may have taken either."""
    directory = tmp_path / "c"
    plan = plan_in(directory, 1, 1)
    (directory / "campaign.json").write_text(json.dumps({"guest": {"checkout_image": "a"}}))
    blocks = len({entry.block for entry in plan.entries})

    def guest() -> Mapping[str, str]:
        started = len(list((directory / "blocks").glob("*.json")))
        return {"checkout_image": "b" if started == blocks else "a"}

    events, code = play(monkeypatch, directory, plan, guest=guest)
    line = "differs from the beginning: checkout_image is b instead of a"
    assert code == 0 and [event["text"] for event in events if event["event"] == "note"] == [line]
    assert json.loads((directory / "environment.json").read_text())["warnings"] == [line]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_file_system_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Others have filled it between two looks at how much is free."""
    directory = tmp_path / "c"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(directory)], check=True)
    try:
        plan = plan_in(directory / "c", 1, 1)
        with suppress(OSError):
            (directory / "filler").write_bytes(bytes(2 << 20))
        monkeypatch.setattr(run, "guest_of", lambda plan: {})
        with pytest.raises(ConfigError, match=f"{directory / 'c'}: No space left on device; make room and resume"):
            run.follow(plan, directory / "c", progress.Lines(plan))
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def test_guests_with_files_need_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many are started as there is room for: those of a suite on file systems have a larger page cache."""
    profile = load_profile("quick", virtual=True)

    def at_once(suite: str, mib: int, left: int | None = None) -> int:
        plan = make_plan(
            suite=load_suite(suite), profile=profile, systems=[load_system("native")], devices=guests_devices(),
            campaign="c", build="build/trixie", emulated=True, model="cpu-1",
        )  # fmt: skip
        monkeypatch.setattr(guests, "meminfo", lambda: {"MemAvailable": mib << 20})
        monkeypatch.setattr(guests, "left_by_groups", lambda: left and left << 20)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
        words = guests.runner_argv(plan, Path("/r"), Path("/r/plan.json"))
        assert words[words.index("--memory") + 1] == {"bdus-block": "5120", "bdus-fs": "6144"}[suite]
        return guests.at_once(plan)

    assert [at_once("bdus-block", mib) for mib in (1000, 10240, 20480)] == [1, 2, 3]
    assert [at_once("bdus-fs", mib) for mib in (1000, 10240, 12288, 20480)] == [1, 1, 2, 3]
    assert [at_once("bdus-block", 20480, left) for left in (1000, 10240, 30720)] == [1, 2, 3]  # of a container


def test_nothing_is_started_where_there_is_no_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(guests, "no_space", lambda directory, largest: "1 MiB is free")
    events, code = play(monkeypatch, tmp_path / "c", plan_in(tmp_path / "c", 1, 1))
    assert code == 2 and [event["event"] for event in events] == ["start", "note", "end"]
    assert events[1]["text"] == "the campaign stops: 1 MiB is free"
