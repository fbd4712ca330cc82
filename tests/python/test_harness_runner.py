# SPDX-License-Identifier: BSD-3-Clause
"""The runner from plan to summaries, with real fio on a real loop device: also when it is stopped or killed."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from interrupted import interrupts, spawn_and_interrupt
from made_up import small_plan
from runner_process import MEMORY, WORKLOADS, finish, fio_on, plan_for, read_until, said, start, summaries
from userblk import __version__
from userblk.analysis.summaries import load_campaign
from userblk.harness.engines import Result, fio
from userblk.harness.engines.base import Run
from userblk.harness.machine import paths
from userblk.harness.machine.prepare import dirty_limits
from userblk.harness.machine.teardown import Teardown, recover
from userblk.harness.model.config import load_profile
from userblk.harness.model.plan import estimate, read_plan, write_plan
from userblk.harness.observing.environment import programs, snapshot
from userblk.harness.observing.host_load import OtherPrograms
from userblk.harness.running import measuring
from userblk.harness.running import runner as runner_module
from userblk.harness.running.measuring import NO_SAMPLES
from userblk.harness.running.runner import Runner
from waiting import wait_until


def test_from_plan_to_summaries(device: str, tmp_path: Path) -> None:
    limits = dirty_limits()
    plan = plan_for(device, tmp_path / "c", runtime_s=2)
    # A fast disk writes the area in three of the profile's intervals.
    plan = dataclasses.replace(plan, profile=dataclasses.replace(plan.profile, workload_interval_ms=20))
    write_plan(plan, tmp_path / "c")
    code, events, err = finish(start(tmp_path / "c"))
    assert (code, err) == (0, ""), said(events)
    expected = ["start", *["entry-start", "entry-done"] * 3, "end"]
    assert [event["event"] for event in events] == expected, said(events)
    assert dirty_limits() == limits
    for entry in plan.entries:
        directory = tmp_path / "c" / plan.directory(entry)
        names = {path.name for path in directory.iterdir()}
        wanted = "DONE summary fio queue-before queue-after environment commands samples"
        assert {Path(name).stem for name in names} >= set(wanted.split())
        summary = json.loads((directory / "summary.json").read_text())
        assert summary["valid"], summary["invalid"]
        assert (summary["schema"], summary["system"], summary["seed"]) == (1, "native", entry.seed)
        assert summary["settings"]["cached_area_share"] == 0
        assert summary["settings"]["dirty_bytes"] == plan.profile.dirty_bytes
        assert (summary["settings"]["memory_limit"], summary["settings"]["memory_bytes"]) == ("cgroup", MEMORY)
        assert summary["settings"]["memory_peak_bytes"] > 0
        metrics, use = summary["metrics"], summary["device_io"]
        assert metrics["throughput_kops"] > 0 and metrics["latency_us"] > 0 and 0 < metrics["cpu_percent"] <= 100
        assert metrics["server_cpu_percent"] is None
        assert summary["warm_up"]["rule"].startswith("MSER-") and summary["warm_up"]["ramp_s"] == 0
        assert summary["warm_up"]["intervals"] >= 5
        assert summary["costs"] == {}
        found = json.loads((directory / "environment.json").read_text())
        assert found["devices"]["sata"]["disk"] == Path(device).name and found["condition"]["load"] >= 0
        # Reads really came from the device, writes really reached it, each in the measured window.
        direction = "write" if "write" in entry.workload else "read"
        assert use[f"{direction}_request_kib"] >= 4
        assert use["utilisation_percent"] > 1
        (command,) = json.loads((directory / "commands.json").read_text())
        assert command["exit_code"] == 0 and f"--randseed={entry.seed}" in command["argv"]

    # Everything is there: nothing is run again, and nothing changes.
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "c/here").rglob("*")}
    code, events, _ = finish(start(tmp_path / "c"))
    assert code == 0 and [event["event"] for event in events] == ["start", "end"] and events[0]["skipped"] == 3
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "c/here").rglob("*")} == before

    assert json.loads((tmp_path / "c/environment.json").read_text())["userblk"]["version"] == __version__

    # On another kernel it says so, and goes on saying so.
    environment = tmp_path / "c/environment.json"
    first_found = json.loads(environment.read_text())
    first_found["began"]["kernel"] = "another"
    environment.write_text(json.dumps(first_found))
    for _ in range(2):
        finish(start(tmp_path / "c"))
        reported = [line for line in json.loads(environment.read_text())["warnings"] if line.startswith("differs")]
        assert len(reported) == 1 and reported[0].endswith(" instead of another")

    # A run without DONE, and one that is not valid, are run again; the third is not.
    first, second, _ = (tmp_path / "c" / plan.directory(entry) for entry in plan.entries)
    (first / "DONE").unlink()
    (first / "stray").touch()
    summary = json.loads((second / "summary.json").read_text())
    (second / "summary.json").write_text(json.dumps(summary | {"valid": False}))
    code, events, _ = finish(start(tmp_path / "c"))
    assert code == 0 and events[0]["entries"] == 2
    assert not (first / "stray").exists()
    assert all(summary["valid"] for summary in summaries(tmp_path / "c").values())


def test_a_campaign_takes_no_longer_than_it_says(device: str, tmp_path: Path) -> None:
    """What a user reads before it begins, on a machine that others use three times that, and no less than it runs."""
    plan = plan_for(device, tmp_path / "c", runtime_s=2)
    expected, began = estimate(plan), time.monotonic()
    code, events, err = finish(start(tmp_path / "c"))
    took = time.monotonic() - began
    assert (code, err) == (0, ""), said(events)
    assert 2 * len(plan.entries) < took < 3 * expected.seconds


def test_a_workload_beyond_its_time_limit_is_ended(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its run is not valid; the next one goes on, and nothing of it is left."""
    (tmp_path / "bin").mkdir()
    hangs, pids = tmp_path / "bin/fio", tmp_path / "pids"
    hangs.write_text(f"#!/bin/sh\necho $$ >> {pids}\nexec sleep 600\n")
    hangs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(measuring, "FLUSH_PATIENCE", 1.0)
    plan, began = plan_for(device, tmp_path / "c", workloads=WORKLOADS[:2]), time.monotonic()
    assert Runner(plan, tmp_path / "c").run() == 1
    assert time.monotonic() - began < 60
    found = summaries(tmp_path / "c")
    assert len(found) == 2
    for summary in found.values():
        assert not summary["valid"]
        assert "the workload did not end within 1 s after its runtime" in summary["invalid"]  # type: ignore[operator]
    assert len(pids.read_text().split()) == 2
    assert not any(Path("/proc", pid).exists() for pid in pids.read_text().split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(device: str, tmp_path: Path, number: signal.Signals) -> None:
    limits = dirty_limits()
    plan_for(device, tmp_path / "c", runtime_s=30)
    runner = start(tmp_path / "c")
    read_until(runner, "entry-start")
    wait_until("fio runs", lambda: fio_on(device))
    runner.send_signal(number)
    code, events, _ = finish(runner)
    assert code == 128 + number
    assert events[-1]["event"] == "end" and events[-1]["interrupted"] is True
    assert fio_on(device) == []
    assert dirty_limits() == limits
    assert not list((tmp_path / "c").rglob("fio.json"))  # the half-done run is gone
    os.close(os.open(device, os.O_RDWR | os.O_EXCL))  # and nobody holds the device


def test_killed_and_resumed(device: str, tmp_path: Path) -> None:
    limits = dirty_limits()
    plan = plan_for(device, tmp_path / "c", runtime_s=3)
    runner = start(tmp_path / "c")
    read_until(runner, "entry-done")
    wait_until("fio runs", lambda: fio_on(device))  # in the middle of the second, or if we are very late of the third
    runner.kill()
    runner.wait()
    if runner.stdout and runner.stderr:
        runner.stdout.close()
        runner.stderr.close()
    wait_until("fio has ended", lambda: not fio_on(device))  # fio does not go on writing without its runner
    assert dirty_limits()["dirty_bytes"] == plan.profile.dirty_bytes  # nobody could restore them
    kept = summaries(tmp_path / "c")
    assert 1 <= len(kept) <= 2
    code, events, err = finish(start(tmp_path / "c"))
    assert (code, err) == (0, "")
    assert [event["event"] for event in events][:2] == ["note", "start"]  # tore down what was left, then went on
    assert events[1]["skipped"] == len(kept)
    assert dirty_limits() == limits
    found = summaries(tmp_path / "c")
    assert len(found) == 3 and kept.items() <= found.items()
    assert recover() == []


def test_a_system_that_cannot_come_up_fails_its_cells_only(device: str, tmp_path: Path) -> None:
    if Path("/sys/module/nbd").exists():
        pytest.skip("kernel: it has nbd; the lab's tests cover it")
    plan = plan_for(device, tmp_path / "c", systems=("nbdkit",))
    code, events, err = finish(start(tmp_path / "c"))
    assert (code, err) == (1, "")
    assert "kernel module nbd cannot be loaded" in said(events)[-1]
    assert events[-1]["event"] == "end" and not summaries(tmp_path / "c")
    assert len(plan.entries) == 3


def test_refusals_come_before_anything_else(device: str, tmp_path: Path) -> None:
    plan = plan_for(device, tmp_path / "c")
    devices = {"sata": dataclasses.replace(plan.devices["sata"], confirm="wrong")}
    write_plan(dataclasses.replace(plan, devices=devices), tmp_path / "c")
    with Path(device).open("r+b") as file:
        file.write(b"precious")
    code, events, err = finish(start(tmp_path / "c"))
    assert (code, events) == (2, [])
    assert err.startswith(f"userblk: {device}: wrong is not its size in bytes")
    with Path(device).open("rb") as file:
        assert file.read(8) == b"precious"
    code, _, err = finish(start(tmp_path / "none"))
    assert code == 2 and "name the plan.json of a campaign" in err


# ---- adaptive repetition ------------------------------------------------------------------


def test_cells_with_wide_intervals_are_measured_until_the_most(device: str, tmp_path: Path) -> None:
    plan = plan_for(
        device, tmp_path / "c", workloads=["rand-read-1th-4k"], repetitions=2, max_repetitions=4, half_width=0.0
    )
    assert len(plan.entries) == 2
    code, events, err = finish(start(tmp_path / "c"))
    assert (code, err) == (0, "")
    extensions = [event for event in events if event["event"] == "extend"]
    assert len(extensions) == 2 and "1 of 1 cells are measured once more" in str(extensions[0]["reason"])
    grown = read_plan(tmp_path / "c/plan.json")
    assert [entry.repetition for entry in grown.entries] == [1, 2, 3, 4]
    assert len({entry.seed for entry in grown.entries}) == 4
    (cell,) = json.loads((tmp_path / "c/repetitions.json").read_text())["cells"]
    assert (cell["runs"], cell["valid"], cell["again"]) == (4, 4, False)
    assert cell["reason"].startswith("the maximum of 4 runs was made: ")
    # Nothing is left to do; a run that is lost is made up for, in the same plan.
    assert finish(start(tmp_path / "c"))[1][0]["skipped"] == 4
    (tmp_path / "c" / plan.directory(grown.entries[3]) / "DONE").unlink()
    code, events, _ = finish(start(tmp_path / "c"))
    assert code == 0 and events[0]["entries"] == 1 and len(read_plan(tmp_path / "c/plan.json").entries) == 4


def test_narrow_intervals_end_a_cell(device: str, tmp_path: Path) -> None:
    plan_for(device, tmp_path / "c", workloads=["rand-read-1th-4k"], repetitions=2, max_repetitions=4, half_width=1e6)
    code, events, _ = finish(start(tmp_path / "c"))
    assert code == 0 and not [event for event in events if event["event"] == "extend"]
    (cell,) = json.loads((tmp_path / "c/repetitions.json").read_text())["cells"]
    assert cell["reason"].startswith("narrow enough: ")


# ---- what stops or leaves out ---------------------------------------------------------------


def test_a_clock_that_is_set_during_a_run_costs_a_warning(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By fio's clock, which an old fio does not tell, the run lay a hundred seconds after all samples."""
    parsed = fio.parse

    def parse(*arguments: object) -> Result:
        result = parsed(*arguments)  # type: ignore[arg-type]
        return dataclasses.replace(result, measured_from=time.time() - result.duration_s)

    class Late:
        """Until the workload runs, the clock is behind."""

        calls = 0
        monotonic, sleep = staticmethod(time.monotonic), staticmethod(time.sleep)

        def time(self) -> float:
            self.calls += 1
            return time.time() - 100 * (self.calls == 1)

    monkeypatch.setattr(measuring, "time", Late())
    monkeypatch.setattr(fio, "parse", parse)
    assert Runner(plan_for(device, tmp_path / "c", workloads=WORKLOADS[:1]), tmp_path / "c").run() == 0
    (summary,) = summaries(tmp_path / "c").values()
    assert "clock: it was set by +100.0 s during the run" in summary["warnings"]  # type: ignore[operator]
    assert summary["metrics"]["cpu_percent"] > 0  # type: ignore[index]


def test_what_is_made_again_no_longer_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a part of it is removed: `userblk table` may look at it, or the runner be killed, meanwhile."""
    plan = small_plan()
    directory = tmp_path / plan.directory(plan.entries[0])
    directory.mkdir(parents=True)
    (directory / "DONE").touch()
    counted = []
    rmtree = shutil.rmtree

    def remove(path: Path, *options: Any, **more: Any) -> None:
        counted.append((directory / "DONE").exists())
        rmtree(path, *options, **more)

    monkeypatch.setattr(shutil, "rmtree", remove)
    Runner(plan, tmp_path).begin(plan.entries[0])
    assert counted == [False] and list(directory.iterdir()) == []


@pytest.mark.parametrize("engine", ["libaio", "io_uring"])
def test_what_disks_have_moved_is_no_first_io(engine: str, device: str) -> None:
    """A fio that is not in the page cache reads more than that from its disk before it begins."""
    words = ["fio", "--name=x", f"--filename={device}", "--allow_file_create=0", "--thread=1", "--rw=randwrite"]
    words += [f"--ioengine={engine}", "--direct=1", "--bs=4k", "--iodepth=4", "--time_based=1", "--runtime=600"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:

        def written() -> int:
            counts = Path(f"/proc/{process.pid}/io").read_text().split()
            return int(counts[counts.index("write_bytes:") + 1])

        try:
            wait_until("it writes", lambda: written() > 2 * measuring.FIRST_IO, 60, process=process)
            assert 0 < measuring.bytes_moved(process.pid) < measuring.FIRST_IO
        finally:
            process.terminate()


OLD_FIO = """#!/bin/sh
sleep 2
for word; do
    case $word in
        --output=*) cp {report} "${{word#*=}}" ;;
        --write_iops_log=*) printf '100, 2000, 0, 0, 0\\n1000, 2000, 0, 0, 0\\n' > "${{word#*=}}_iops.log" ;;
    esac
done
printf '%300000s' '' > {report}.log
sleep 0.3
"""


def test_an_old_fio_whose_io_is_not_seen_until_it_writes_its_logs(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with io_uring: a window that began with the logs lay behind all samples."""
    (tmp_path / "bin").mkdir()
    old, report = tmp_path / "bin/fio", tmp_path / "report.json"
    old.write_text(OLD_FIO.format(report=report))
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    none = {"runtime": 0, "total_ios": 0, "io_bytes": 0, "lat_ns": {"N": 0, "mean": 0.0}}
    done = {"runtime": 1000, "total_ios": 2000, "io_bytes": 8_192_000, "lat_ns": {"N": 2000, "mean": 500_000.0}}
    report.write_text(json.dumps({"fio version": "fio-3.33", "jobs": [{"error": 0, "read": done, "write": none}]}))
    plan = plan_for(device, tmp_path / "c", workloads=["rand-read-1th-4k"])
    plan = dataclasses.replace(plan, profile=dataclasses.replace(plan.profile, ramp_s=1))
    began = time.monotonic()
    assert Runner(plan, tmp_path / "c").run() == 0
    ((path, summary),) = summaries(tmp_path / "c").items()
    assert summary["valid"], (path, summary["invalid"])
    assert began < summary["measured_from_s"] < time.monotonic() - summary["duration_s"]  # type: ignore[operator]


def test_an_area_that_is_done_within_the_ramp_gets_a_shorter_one(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for(device, tmp_path / "c", workloads=["seq-read-16th-128k"])
    paper = load_profile("paper")
    plan = dataclasses.replace(plan, profile=dataclasses.replace(plan.profile, ramp_s=paper.ramp_s))
    lasts = paper.area["nvme"] / 9.2e9  # s: all of the 30 s
    ramps = []

    def measure(self: Runner, run: Run, *rest: object) -> dict[str, object]:
        ramps.append(run.profile.ramp_s)
        invalid = [] if lasts - ramps[-1] > 0.5 else [fio.NOTHING_LEFT, NO_SAMPLES]
        return {"valid": not invalid, "invalid": invalid, "metrics": {}}

    monkeypatch.setattr(Runner, "measure", measure)
    monkeypatch.setattr(Runner, "record_environment", lambda self: None)
    runner = Runner(plan, tmp_path / "c")
    assert runner.run() == 0
    assert ramps == [30, 6.0] and runner.counts["done"] == 1
    others: list[list[str]] = [[], ["the server died"], [fio.NOTHING_LEFT, "the server died"]]
    for problems in others:
        assert not fio.done_in_ramp(problems)


@pytest.mark.parametrize(("percent", "warned"), [(11.0, True), (9.0, False)])
def test_load_during_a_run_is_told(
    percent: float, warned: bool, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for(device, tmp_path / "c", workloads=["rand-read-1th-4k"])
    monkeypatch.setattr(OtherPrograms, "percent", lambda self: percent)
    assert Runner(plan, tmp_path / "c").run() == 0
    (summary,) = summaries(tmp_path / "c").values()
    lines = [line for line in summary["warnings"] if line.endswith("during the run")]  # type: ignore[attr-defined]
    assert lines == ["load: other programs took 11 % of a CPU during the run"] * warned


def test_an_interrupt_once_the_workload_has_started_ends_it(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for it begins a moment later."""
    plan = plan_for(device, tmp_path / "c", workloads=WORKLOADS[:1], runtime_s=60)
    spawn_and_interrupt(monkeypatch, "fio")
    ended: list[list[int]] = []
    unwind = Teardown.unwind

    def look(teardown: Teardown, mark: int = 0) -> None:
        ended.append(fio_on(device))
        unwind(teardown, mark)

    monkeypatch.setattr(Teardown, "unwind", look)
    with interrupts():
        assert Runner(plan, tmp_path / "c").run() == 128 + signal.SIGINT
    assert ended and not any(ended)


@pytest.mark.parametrize("step", ["load_modules", "bring_up", "measure"])
def test_a_command_of_the_machine_that_takes_too_long_is_told(
    step: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as modprobe: it ends the campaign where nothing can run, else what needs it."""

    def fail(*_: object) -> None:
        raise subprocess.TimeoutExpired(["modprobe", "nbd"], 60)

    plan = plan_for(device, tmp_path / "c", workloads=WORKLOADS[:1])
    monkeypatch.setattr(Runner if step == "measure" else runner_module, step, fail)
    assert Runner(plan, tmp_path / "c").run() == 1
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (said,) = [event.get("text") or event["reason"] for event in events if event["event"] in ("note", "entry-failed")]
    assert said.endswith("Command '['modprobe', 'nbd']' timed out after 60 seconds")


def test_programs_are_found_wherever_the_runner_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another host, and in a guest, the plan names them relative to the checkout."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    build = tmp_path / "checkout/build/host"
    build.mkdir(parents=True)
    (build / "null.so").touch()
    monkeypatch.setattr(paths, "CHECKOUT", tmp_path / "checkout")
    Runner(plan_for("/dev/null", tmp_path / "c"), tmp_path / "c").record_environment()
    found = json.loads((tmp_path / "c/environment.json").read_text())["programs"]
    assert found == programs(build) != programs(tmp_path / "none")


def test_a_resumed_campaign_tells_what_is_set_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on telling what was wrong with the machine before. An older version kept less: that says nothing."""
    file = tmp_path / "c/environment.json"
    plan = plan_for("/dev/null", tmp_path / "c")
    settings = {"governor": "performance", "turbo": "on", "smt": "1", "transparent_hugepages": "[always] never"}
    began = snapshot() | settings | {"mitigations": {"spectre_v2": "Mitigation: Retpolines"}}
    now = began | {"governor": "powersave", "turbo": "off", "mitigations": {"spectre_v2": "Vulnerable"}}
    tuned = {"by_userblk": True, "differs": {"governor": 0, "idle states": 0}, "disks": {}}
    monkeypatch.setattr(runner_module.tuning, "facts", lambda disks: tuned)
    monkeypatch.setattr(runner_module, "snapshot", lambda: began)

    def warnings() -> list[str]:
        Runner(plan, tmp_path / "c").record_environment()
        found: list[str] = json.loads(file.read_text())["warnings"]
        return found

    before = warnings()
    turbo = next(line for line in before if line.startswith("turbo is on"))
    assert not any(line.startswith("differs") for line in before)
    monkeypatch.setattr(runner_module, "snapshot", lambda: now)
    tuned = tuned | {"differs": {"governor": 4, "idle states": 4}}
    expected = {
        "differs from the beginning: governor is powersave instead of performance",
        "differs from the beginning: turbo is off instead of on",
        "differs from the beginning: mitigations spectre_v2 is Vulnerable instead of Mitigation: Retpolines",
        "differs from the beginning: untuned idle states is 4 instead of 0",
    }
    for _ in range(2):
        found = warnings()
        assert {line for line in found if line.startswith("differs")} == expected
        assert found.count(turbo) == 1 and len(found) == len(set(found))
    # A third session, with the settings of the first: the warnings are those of the second one.
    monkeypatch.setattr(runner_module, "snapshot", lambda: began)
    assert {line for line in warnings() if line.startswith("differs")} >= expected
    assert not any("governor is performance" in line for line in warnings())
    monkeypatch.setattr(runner_module, "snapshot", lambda: now)
    kept = json.loads(file.read_text())
    kept.pop("began")
    older = {name: value for name, value in kept.items() if name not in (*settings, "mitigations", "tuning")}
    file.write_text(json.dumps(older | {"warnings": []}))
    assert not any(line.startswith("differs") for line in warnings())


def test_a_system_of_others_that_is_absent_is_left_out(device: str, tmp_path: Path) -> None:
    plan_for(device, tmp_path / "c", systems=("native", "bdus"))
    code, events, err = finish(start(tmp_path / "c"))
    assert (code, err) == (0, "")
    left_out = [str(event["reason"]) for event in events if event["event"] == "entry-left-out"]
    assert len(left_out) == 3 and all("bdus-loop is not installed" in reason for reason in left_out)
    assert events[-1]["left_out"] == 3 and events[-1]["done"] == 3


def test_the_end_of_its_input_ends_the_runner(device: str, tmp_path: Path) -> None:
    """As when a connection is lost."""
    limits = dirty_limits()
    plan_for(device, tmp_path / "c", runtime_s=30)
    argv = [sys.executable, "-m", "userblk.harness.running.runner", "--until-eof", str(tmp_path / "c/plan.json")]
    pipe = subprocess.PIPE
    runner = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    read_until(runner, "entry-start")
    wait_until("fio runs", lambda: fio_on(device))
    assert runner.stdin is not None
    runner.stdin.close()
    runner.stdin = None
    code, events, _ = finish(runner)
    assert code == 130 and events[-1]["interrupted"] is True
    assert fio_on(device) == [] and dirty_limits() == limits


def test_after_a_reboot_the_campaign_goes_on(device: str, tmp_path: Path) -> None:
    """A reboot takes /run with it: there is nothing to tear down, but a half-done run to make again."""
    plan = plan_for(device, tmp_path / "c")
    code, *_ = finish(start(tmp_path / "c"))
    assert code == 0
    half = tmp_path / "c" / plan.directory(plan.entries[1])
    (half / "DONE").unlink()
    (half / "summary.json").unlink()
    (half / "stray").touch()
    code, events, _ = finish(start(tmp_path / "c"))
    assert code == 0 and events[0]["skipped"] == 2 and not (half / "stray").exists()


# ---- control and costs ------------------------------------------------------------------------


def test_native_is_measured_against_native(device: str, tmp_path: Path) -> None:
    plan_for(device, tmp_path / "c", systems=("native", "native-control"), workloads=["rand-read-1th-4k"])
    code, *_ = finish(start(tmp_path / "c"))
    assert code == 0
    found = sorted((tmp_path / "c/here").rglob("summary.json"))
    assert [json.loads(path.read_text())["system"] for path in found] == ["native", "native-control"]


def test_costs_are_counted_in_a_run_of_their_own(device: str, tmp_path: Path) -> None:
    plan = plan_for(device, tmp_path / "c", workloads=["rand-read-1th-4k"], count_costs=True)
    assert [entry.repetition for entry in plan.entries] == [0, 1]
    code, *_ = finish(start(tmp_path / "c"))
    assert code == 0
    places = [tmp_path / "c" / plan.directory(entry) for entry in plan.entries]
    counted, timed = (json.loads((place / "summary.json").read_text()) for place in places)
    assert counted["metrics"] == {} and timed["metrics"]["throughput_kops"] > 0
    assert timed["costs"] == {} and counted["warm_up"]["ramp_s"] == 0
    # 4 KiB for each read of 4 KiB, and little more for what is at the device's beginning.
    assert counted["costs"]["device_bytes_per_op"] == pytest.approx(4096, rel=0.05)
    assert counted["costs"]["device_requests_per_op"] == pytest.approx(1, rel=0.05)
    assert [run.repetition for run in load_campaign(tmp_path / "c")] == [1]
