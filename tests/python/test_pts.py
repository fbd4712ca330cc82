# SPDX-License-Identifier: BSD-3-Clause
"""PROFILE=pts: a device that is purged and written, and rounds of a workload until they are steady."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from loops import MIB, loop
from runner_process import finish, said, start
from userblk.analysis import pts, report
from userblk.harness.engines import rounds
from userblk.harness.machine.teardown import start_time
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.plan import Device, Plan, estimate, make_plan, write_plan
from userblk.harness.model.tables import ConfigError
from userblk.harness.observing.warmup import settled
from waiting import wait_until

SIZE = 64 * MIB
LIMITS = {"dirty_bytes": 8 << 20, "dirty_background_bytes": 4 << 20}  # as of other campaigns on the machine


@pytest.mark.parametrize(
    ("values", "slope", "between", "steady"),
    [
        ([100, 100, 100, 100, 100], 0, 0, True),
        ([95, 97.5, 100, 102.5, 105], 10, 10, True),  # as much as a line may change
        ([94, 97, 100, 103, 106], 12, 12, False),
        ([100, 110, 90, 110, 90], -8, 20, True),  # as much as rounds may differ
        ([100, 111, 89, 111, 89], -8.8, 22, False),
        ([0, 0, 0, 0, 0], 0, 0, False),
    ],
)
def test_what_is_steady(values: list[float], slope: float, between: float, steady: bool) -> None:
    assert settled(values) == (pytest.approx(slope), pytest.approx(between), steady)


FAKE = """#!/usr/bin/env python3
import json, os, sys
words = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(words["--randseed"] + "\\n")
rates = json.loads(os.environ["FAKE_RATES"])
number = sum(1 for _ in open(os.environ["FAKE_LOG"]))
side = {"total_ios": rates[number - 1] * 1000, "runtime": 1000, "lat_ns": {"mean": 5000.0 * number},
        "clat_ns": {"bins": {"5000": 100000}}}
none = {"total_ios": 0, "runtime": 0}
report = {"fio version": "f", "jobs": [{"error": 0, "read": none, "write": side}]}
open(words["--output"], "w").write(json.dumps(report))
"""


def repeat(directory: Path, rates: list[int], most: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    program = directory / "fio"
    program.write_text(FAKE)
    program.chmod(0o755)
    monkeypatch.setenv("FAKE_LOG", str(directory / "log"))
    monkeypatch.setenv("FAKE_RATES", json.dumps(rates))
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # those of the tests stay
    words = [str(program), "--randseed=7", f"--output={rounds.ROUND}/fio.json"]
    assert rounds.main([f"--most={most}", "--window=5", f"--output={directory / rounds.FILE}", "--", *words]) == 0
    workload = load_suite("pts", "pts").workloads[0]
    return rounds.parse(directory / rounds.FILE, workload, load_profile("pts"))


def test_rounds_go_on_until_five_are_steady(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is fast as long as it has empty blocks."""
    found = repeat(tmp_path, [400, 300, 200, 100, 102, 98, 101, 99, 500], 25, monkeypatch)
    assert found.settings["rounds_kops"] == [400, 300, 200, 100, 102, 98, 101, 99]
    assert found.throughput_kops == 100 and found.warm_up.steady is True and found.warm_up.reason == ""
    assert found.latency_us == pytest.approx((4 * 100 + 5 * 102 + 6 * 98 + 7 * 101 + 8 * 99) * 5 / 500)
    assert found.metrics["latency_p50_us"] == 5 and found.operations == 500_000
    assert found.warm_up.cut_s > 0 and found.measured_from > 0
    assert (tmp_path / "log").read_text().split() == [str(7 + number) for number in range(8)]


def test_what_never_becomes_steady_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = repeat(tmp_path, [100, 200, 100, 200, 100, 200], 6, monkeypatch)
    assert len(found.settings["rounds_kops"]) == 6 and found.warm_up.steady is False
    assert "after 6 rounds" in found.warm_up.reason


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_round_does_not_outlive_its_program(tmp_path: Path, number: signal.Signals) -> None:
    """Which gets SIGTERM if the runner is killed: fio went on writing until its round was over."""
    pid = tmp_path / "pid"
    program = tmp_path / "fio"
    program.write_text(f"#!/bin/sh\necho $$ > {pid}.new\nmv {pid}.new {pid}\nexec sleep 600\n")
    program.chmod(0o755)
    words = [sys.executable, "-m", rounds.__name__, "--most=1", "--window=1", f"--output={tmp_path / rounds.FILE}"]
    with subprocess.Popen([*words, "--", str(program)]) as running:
        wait_until("the round runs", pid.exists)
        running.send_signal(number)
    child = int(pid.read_text())
    try:
        wait_until("the round has ended", lambda: not start_time(child))
    finally:
        if start_time(child):
            os.kill(child, signal.SIGKILL)


def test_the_program_of_rounds_ends_after_its_round(tmp_path: Path) -> None:
    """Which may still write: the run's teardown begins once the program has ended."""
    ready, program = tmp_path / "ready", tmp_path / "fio"
    script = f"trap 'sleep 1; touch {ready}.ended; exit 0' TERM\ntouch {ready}\nwhile :; do sleep 0.1; done\n"
    program.write_text(f"#!/bin/sh\n{script}")
    program.chmod(0o755)
    words = [sys.executable, "-m", rounds.__name__, "--most=9", "--window=3", f"--output={tmp_path / rounds.FILE}"]
    with subprocess.Popen([*words, "--", str(program)]) as running:
        wait_until("the round runs", ready.exists)
        running.terminate()
        assert running.wait(60) == 128 + signal.SIGTERM and (tmp_path / "ready.ended").exists()
    assert not (tmp_path / "round-2").exists()


def plan_of(device: str, confirm: str, round_s: float = 60, **changes: Any) -> Plan:
    profile, suite = load_profile("pts"), load_suite("pts", "pts")
    times: Any = {"pts": {"ramp_s": 0, "runtime_s": round_s}}
    workloads = tuple(dataclasses.replace(workload, timing=times) for workload in suite.workloads)
    return make_plan(
        suite=dataclasses.replace(suite, workloads=workloads),
        profile=dataclasses.replace(profile, **changes), host="here", campaign="t",
        systems=[load_system("native")], devices=[Device("nvme", device, confirm)], build="build/host",
        workloads=["rand-write-4j-32d-4k"],
    )  # fmt: skip


def test_what_it_takes() -> None:
    expected = estimate(plan_of("/dev/null", "1"))
    area = 256 << 30
    assert expected.bytes_written["nvme"] == 2 * area + 25 * 60 * 500_000_000
    assert expected.seconds == pytest.approx(25 * 60 + 40 + 4 + 2 * area / 5e8)


def test_a_suite_without_rounds_is_refused() -> None:
    with pytest.raises(ConfigError, match="profile=pts: bdus-block has no rounds; use it with suite pts"):
        make_plan(
            suite=load_suite("bdus-block"), profile=load_profile("pts"), systems=[load_system("native")],
            devices=[Device("nvme", "/dev/null", "1")], campaign="t", build="b",
        )  # fmt: skip


def test_other_profiles_are_refused() -> None:
    with pytest.raises(ConfigError, match="profile quick is missing; add it, or use one of pts"):
        make_plan(
            suite=load_suite("pts"), profile=load_profile("quick"), systems=[load_system("native")],
            devices=[Device("nvme", "/dev/null", "1")], campaign="t", build="b",
        )  # fmt: skip


def test_a_run_in_rounds(tmp_path: Path) -> None:
    if not shutil.which("fio"):
        pytest.skip("fio is not installed")
    (tmp_path / "image").mkdir()
    (tmp_path / "c").mkdir()
    with loop(tmp_path / "image", SIZE) as device:
        few = {"most": 3, "window": 3, "passes": 2}
        plan = plan_of(device, str(SIZE), 0.5, area={"nvme": SIZE}, rounds=few, interval_ms=100, **LIMITS)
        write_plan(plan, tmp_path / "c")
        code, events, err = finish(start(tmp_path / "c"))
    assert (code, err) == (0, ""), said(events)
    directory = tmp_path / "c" / plan.directory(plan.entries[0])
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["valid"], summary["invalid"]
    assert summary["settings"]["preconditioned_passes"] == 2 and summary["settings"]["discarded"] in (True, False)
    assert len(summary["settings"]["sweep"]["rounds_kops"]) == 3 and summary["warm_up"]["rule"] == "SNIA PTS"
    assert summary["metrics"]["cpu_percent"] > 0 and summary["metrics"]["throughput_kops"] > 0
    (written,) = (one for one in json.loads((directory / "preparation/commands.json").read_text()))
    again = (directory / "replay.fio").read_text()  # of one round
    assert "rw=randwrite" in again and "filename=${DEVICE}" in again
    assert "--rw=write" in written["argv"] and f"--size={SIZE}" in written["argv"] and "--loops=2" in written["argv"]
    (one,) = pts.reports(tmp_path / "c")
    assert one.rows[0][:3] == ("NVMe", "rand-write-4j-32d-4k", "Native")
    names = report.draw([one], tmp_path)
    assert os.path.getsize(tmp_path / names[0]) > 1000
