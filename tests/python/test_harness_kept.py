# SPDX-License-Identifier: BSD-3-Clause
"""The runner when the disk for its results is full, read-only or gone."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from loops import small_tmpfs
from runner_process import finish, fio_on, plan_for, said, start, summaries
from userblk.harness.engines.base import Run
from userblk.harness.model.plan import read_plan
from userblk.harness.running import runner as runner_module
from userblk.harness.running.runner import NoSpace, Runner, cannot_keep


def test_a_full_results_disk_stops_the_campaign_before_a_run(device: str, tmp_path: Path) -> None:
    with small_tmpfs(tmp_path, "100M") as small:
        plan_for(device, small / "c")
        code, events, err = finish(start(small / "c"))
        assert (code, err) == (2, "") and "MiB are free for results" in said(events)[0] and "resume" in said(events)[0]
        assert [event["event"] for event in events] == ["start", "note", "end"]
        assert not summaries(small / "c") and not fio_on(device)


def test_another_full_disk_is_not_that_of_results(tmp_path: Path) -> None:
    """A write that fails names no file; all but results is written elsewhere, and by name."""
    for file in (None, str(tmp_path / "c/plan.json")):
        found = cannot_keep(OSError(errno.ENOSPC, "No space left on device", file), tmp_path / "c")
        assert isinstance(found, NoSpace) and str(found).startswith(f"{tmp_path}/c: No space left")
    elsewhere = OSError(errno.ENOSPC, "No space left on device", "/run/userblk/s-1")
    assert cannot_keep(elsewhere, tmp_path / "c") is None


@pytest.mark.parametrize("in_run", [False, True])
def test_a_results_disk_that_gets_full_stops_the_campaign(
    in_run: bool, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others may fill it while a run measures, whatever was free before: nothing fits then, not even an event."""
    with small_tmpfs(tmp_path, "1M") as small:

        def measure(self: Runner, run: Run, *rest: object) -> dict[str, object]:
            with (small / "of others").open("wb", buffering=0) as other, suppress(OSError):
                while other.write(bytes(4096)):
                    pass
            if in_run:
                (run.directory / "more").write_bytes(bytes(4096))
            return {"valid": True, "invalid": [], "metrics": {}, "more": "x" * 4096}

        monkeypatch.setattr(Runner, "measure", measure)
        monkeypatch.setattr(Runner, "record_environment", lambda self: None)
        monkeypatch.setattr(runner_module, "SPARE_BYTES", 4096)
        code = Runner(plan_for(device, small / "c"), small / "c").run()
        events = printed(capsys)
        notes = [str(event["text"]) for event in events if event["event"] == "note"]
        assert [event["event"] for event in events] == ["start", "entry-start", "note", "end"] and code == 2, events
        assert notes[0].startswith("the campaign stops: ") and "No space left on device" in notes[0]
        kept = [json.loads(line)["event"] for line in (small / "c/events.jsonl").read_text().splitlines()]
        assert kept[:2] == ["start", "entry-start"]  # and no half of a line
        assert not list((small / "c").rglob("*.new")) and not list((small / "c").glob("here/*/*/*/*/*"))
        assert not list((small / "c").rglob("commands.json"))
        (small / "of others").unlink()
        assert not summaries(small / "c") and Runner(read_plan(small / "c/plan.json"), small / "c").run() == 2


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    """The events of a runner, but for what it tore down of others first."""
    events: list[dict[str, object]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return events[[event["event"] for event in events].index("start") :]


@pytest.mark.parametrize("what", ["gone", "read-only"])
def test_results_that_cannot_be_kept_any_more_stop_the_campaign(
    what: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says why, and what was removed is not begun again without its plan."""
    with small_tmpfs(tmp_path, "300M") as small:
        plan = plan_for(device, small / "c")

        def measure(self: Runner, run: Run, *rest: object) -> dict[str, object]:
            if what == "gone":
                shutil.rmtree(small / "c")
            else:
                subprocess.run(["mount", "-o", "remount,ro", small], check=True)
            return {"valid": True, "invalid": [], "metrics": {}}

        monkeypatch.setattr(Runner, "measure", measure)
        monkeypatch.setattr(Runner, "record_environment", lambda self: None)
        monkeypatch.setattr(runner_module, "SPARE_BYTES", 0)
        assert Runner(plan, small / "c").run() == 1
        events = printed(capsys)
        assert [event["event"] for event in events] == ["start", "entry-start", "note", "end"]
        reason = "c: No such file or directory" if what == "gone" else "Read-only file system"
        remedy = "results are kept there: correct that and resume"
        assert str(events[2]["text"]).startswith(f"the campaign stops: {small}/c")
        assert str(events[2]["text"]).endswith(f"{reason}; {remedy}")
        assert (small / "c").exists() is (what == "read-only")


def test_results_that_are_removed_between_runs_stop_the_campaign(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, finish_run = plan_for(device, tmp_path / "c"), Runner.finish

    def finish(self: Runner, *arguments: object) -> None:
        finish_run(self, *arguments)  # type: ignore[arg-type]
        shutil.rmtree(tmp_path / "c")

    result = {"valid": True, "invalid": [], "metrics": {}}
    monkeypatch.setattr(Runner, "measure", lambda self, run, *rest: result)
    monkeypatch.setattr(Runner, "record_environment", lambda self: None)
    monkeypatch.setattr(Runner, "finish", finish)
    assert Runner(plan, tmp_path / "c").run() == 1
    events = printed(capsys)
    assert [event["event"] for event in events] == ["start", "entry-start", "entry-done", "note", "end"]
    remedy = "results are kept there: correct that and resume"
    assert events[3]["text"] == f"the campaign stops: {tmp_path}/c: No such file or directory; {remedy}"
    assert not (tmp_path / "c").exists()
