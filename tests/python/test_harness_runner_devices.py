# SPDX-License-Identifier: BSD-3-Clause
"""The runner and its devices: which one it is, whether it is free, and what becomes of one that fails."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from loops import loop, run, small_tmpfs
from runner_process import SIZE, WORKLOADS, finish, plan_for, said, start, summaries
from userblk.harness.engines import flow
from userblk.harness.machine import blockdev, prepare, safety
from userblk.harness.machine.blockdev import identify
from userblk.harness.machine.safety import Refused
from userblk.harness.model.plan import Plan, read_plan, write_plan
from userblk.harness.running.runner import Runner
from userblk.harness.systems import base
from waiting import wait_until


def test_no_run_on_a_device_that_fails_is_valid(tmp_path: Path) -> None:
    """This device takes 32 MiB and then fails; buffered writes succeed all the same, so fio cannot tell."""
    with small_tmpfs(tmp_path, "32M") as small, loop(small, SIZE) as device:
        plan_for(device, tmp_path / "c")
        code, events, err = finish(start(tmp_path / "c"))
    # The zero-fill before the first read fails; nothing more is tried on a device that fails.
    assert (code, err) == (1, "") and f"the campaign stops: {device}: the device fails: " in said(events)[-1]
    assert [event["event"] for event in events] == ["start", "entry-start", "entry-failed", "note", "end"]
    assert not summaries(tmp_path / "c")


def test_a_device_that_fails_later_stops_the_campaign(tmp_path: Path) -> None:
    """Discards succeed, and so do the first 32 MiB of writes."""
    with small_tmpfs(tmp_path, "32M") as small, loop(small, SIZE) as device:
        plan_for(device, tmp_path / "c", workloads=["seq-write-1th-128k", "rand-write-16th-4k"])
        code, events, err = finish(start(tmp_path / "c"))
    assert (code, err) == (1, "") and str(events[-2]["text"]).startswith("the campaign stops: sata: the device fails: ")
    (write,) = summaries(tmp_path / "c").values()
    # What fio measured before that must not be taken for a result.
    assert write["valid"] is False and write["metrics"] == {} and write["duration_s"]
    assert "writing back failed" in str(write["invalid"])


@pytest.mark.parametrize("workload", ["rand-write-1th-4k", "rand-read-1th-4k"])
@pytest.mark.parametrize("able", [True, False])
def test_all_that_a_campaign_uses_is_discarded(
    workload: str, able: bool, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the area lies what file systems wrote before; a device that cannot discard still has it."""
    area, mark = SIZE // 2, b"x" * 4096
    plan = plan_for(device, tmp_path / "c", workloads=[workload])
    # In 0.1 s no machine comes to the end of its area, which would be too short a run.
    short = {"runtime_s": 0.1, "workload_interval_ms": 5}
    plan = dataclasses.replace(plan, profile=dataclasses.replace(plan.profile, area={"sata": area}, **short))
    monkeypatch.setattr(Plan, "used_bytes", lambda self, name: SIZE - 4096)
    if not able:
        monkeypatch.setattr(prepare, "discard", lambda path, length: False)
    with Path(device).open("r+b") as disk:
        for offset in (area, SIZE - 8192, SIZE - 4096):
            disk.seek(offset)
            disk.write(mark)
    assert Runner(plan, tmp_path / "c").run() == 0
    left = (b"\0" if able else b"x") * 4096
    with Path(device).open("rb") as disk:
        for offset, wanted in ((area, left), (SIZE - 8192, left), (SIZE - 4096, mark)):
            disk.seek(offset)
            assert disk.read(4096) == wanted, offset
    (summary,) = summaries(tmp_path / "c").values()
    warned = [line for line in summary["warnings"] if line.startswith("discard:")]  # type: ignore[attr-defined]
    assert len(warned) == (0 if able else 1) and summary["settings"]["discarded"] is able  # type: ignore[index]


@pytest.mark.parametrize("step", ["set_up", "begin"])
def test_a_device_that_came_into_use_is_not_touched(
    step: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is looked at again before a block's system is brought up, and before its area is prepared."""
    before, uppers = getattr(Runner, step), []
    with Path(device).open("r+b") as disk:
        disk.write(b"precious")

    def used(self: Runner, *arguments: object) -> object:
        uppers.append(run("losetup", "--find", "--show", device))
        return before(self, *arguments)

    monkeypatch.setattr(Runner, step, used)
    plan = plan_for(device, tmp_path / "c", workloads=["rand-write-1th-4k"])
    try:
        assert Runner(plan, tmp_path / "c").run() == 1
    finally:
        for upper in uppers:
            run("losetup", "--detach", upper)
    out = capsys.readouterr().out
    line = json.loads(out.splitlines()[-2])["text"]
    assert line.startswith(f"the campaign stops: {device}: loop device ") and " lies on it; " in line
    assert ('"entry-start"' in out) is (step == "begin") and '"entry-done"' not in out
    with Path(device).open("rb") as after:
        assert after.read(8) == b"precious"


def test_a_device_whose_name_another_has_since_is_not_written(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is replugged while it is discarded, which may take minutes. A block workload holds it open."""
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    os.truncate(other, SIZE)

    def swap(*_: object) -> dict[str, object]:
        run("losetup", "--detach", device)
        wait_until("the kernel lets go of it", lambda: not Path("/sys/block", Path(device).name, "loop").exists())
        run("losetup", device, str(other))
        return {}

    monkeypatch.setattr(flow, "discard_area", swap)
    plan = plan_for(device, tmp_path / "c", suite="bdus-fs", workloads=["read-1th"])
    small = dataclasses.replace(plan.profile.files, size={"sata": SIZE})
    plan = dataclasses.replace(plan, profile=dataclasses.replace(plan.profile, files=small))
    events: list[dict[str, Any]] = []
    monkeypatch.setattr(Runner, "emit", lambda self, event, **values: events.append({"event": event, **values}))
    assert Runner(plan, tmp_path / "c").run() == 1
    text = f"the campaign stops: {device}: is not the device that it was when the campaign began; start a new one"
    assert [event["text"] for event in events if event["event"] == "note"] == [text]
    with other.open("rb") as file:
        assert file.read(8) == b"precious" and not any(file.read())


def test_what_identifies_a_partition_may_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(argv: list[str], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(argv, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert blockdev._partuuid("/dev/none") == ""
    monkeypatch.setattr(base, "find_program", lambda name: name)
    assert not base.module_there("userblk-none")


def test_another_device_than_the_planned_one_is_refused(device: str, tmp_path: Path) -> None:
    plan_for(device, tmp_path / "c")
    path = tmp_path / "c/plan.json"
    value = json.loads(path.read_text())
    value["devices"]["sata"]["identity"] = f"wwid=eui.01, size={SIZE}"
    path.write_text(json.dumps(value))
    code, events, err = finish(start(tmp_path / "c"))
    assert (code, events) == (2, [])
    own = identify(device).identity
    assert f"planned for (wwid=eui.01, size={SIZE}), but another ({own})" in err
    del value["devices"]["sata"]["identity"]  # as plans had none
    value["entries"] = []
    path.write_text(json.dumps(value))
    finish(start(tmp_path / "c"))
    assert json.loads(path.read_text())["devices"]["sata"]["identity"] == own


def test_what_became_a_member_since_is_refused(device: str, tmp_path: Path) -> None:
    """The user gave the disk to another purpose; the campaign that had it is resumed."""
    plan_for(device, tmp_path / "c", workloads=WORKLOADS[:1])
    code, events, _ = finish(start(tmp_path / "c"))
    assert code == 0, said(events)
    run("mke2fs", "-q", "-F", "-O", "journal_dev", device)
    code, events, err = finish(start(tmp_path / "c"))
    assert (code, events) == (2, []) and "it holds jbd, a part of" in err


@pytest.mark.parametrize("place", ["another start", ""])
def test_a_size_names_a_disk_only_where_it_was_seen(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """
    A campaign that began on another machine, or before a restart: the disk of that size may be another one. Those of
    older versions do not tell.
    """
    known = dataclasses.replace(identify(device), file="")  # as a disk without a serial is
    monkeypatch.setattr(safety, "identify", lambda path: known)
    plan = dataclasses.replace(plan_for(device, tmp_path / "c"), entries=())

    def resume(seen: str) -> None:
        at = dataclasses.replace(plan.devices["sata"], identity=f"size={SIZE}", seen=seen)
        runner = Runner(dataclasses.replace(plan, devices={"sata": at}), tmp_path / "c")
        with ExitStack() as stack:
            runner.check_devices(stack)

    resume(known.seen)
    with pytest.raises(Refused, match="is known by its size alone, .*; start a new campaign"):
        resume(place)
    runner = Runner(plan, tmp_path / "c")
    with ExitStack() as stack:
        runner.check_devices(stack)  # for the first time
    assert read_plan(tmp_path / "c/plan.json").devices["sata"].seen == known.seen != ""


def test_a_device_that_no_plan_has_seen_is_looked_at(device: str, tmp_path: Path) -> None:
    """As those of other hosts: what is on it is not ours. Once it is, its size is enough."""
    plan = plan_for(device, tmp_path / "c", workloads=WORKLOADS[:1])
    run("mke2fs", "-q", "-F", "-O", "journal_dev", device)
    code, events, err = finish(start(tmp_path / "c"))
    assert (code, events) == (2, []) and "it holds jbd, a part of" in err
    run("wipefs", "--all", device)
    run("mkfs.ext4", "-q", "-F", device)
    code, _, err = finish(start(tmp_path / "c"))
    assert code == 2 and f"its size in bytes and what it holds, {SIZE},ext4" in err
    confirmed = dataclasses.replace(plan.devices["sata"], confirm=f"{SIZE},ext4")
    write_plan(dataclasses.replace(plan, devices={"sata": confirmed}), tmp_path / "c")
    code, events, _ = finish(start(tmp_path / "c"))
    assert code == 0, said(events)
    assert read_plan(tmp_path / "c/plan.json").devices["sata"].confirm == str(SIZE)
    run("mkfs.ext4", "-q", "-F", device)
    assert finish(start(tmp_path / "c"))[0] == 0  # resumed


def test_a_device_may_be_named_by_its_place(device: str, tmp_path: Path) -> None:
    """Such as /dev/disk/by-path/pci-0000:03:00.0-nvme-1, which fio and LIO take for several names."""
    link = tmp_path / "pci-0000:03:00.0-nvme-1"
    link.symlink_to(device)
    plan_for(str(link), tmp_path / "c", workloads=WORKLOADS[:1])
    code, events, err = finish(start(tmp_path / "c"))
    assert (code, err) == (0, ""), said(events)


def test_two_equal_disks_that_were_swapped_are_refused(device: str, tmp_path: Path) -> None:
    """Without serials: between two sessions the names have come to stand for each other's disk."""
    plan_for(device, tmp_path / "c")
    assert finish(start(tmp_path / "c"))[0] == 0
    plan = json.loads((tmp_path / "c/plan.json").read_text())
    (tmp_path / "other").mkdir()
    with loop(tmp_path / "other", SIZE) as other:
        assert identify(device).serial == identify(other).serial and identify(device).size == identify(other).size
        content = (tmp_path / "other/disk0").read_bytes()
        plan["devices"]["sata"]["path"] = other  # as the planned name would lead there
        (tmp_path / "c/plan.json").write_text(json.dumps(plan))
        shutil.rmtree(tmp_path / "c/here")  # nothing is done yet
        status, events, err = finish(start(tmp_path / "c"))
        assert (status, events) == (2, []) and "is not the device that the campaign was planned for" in err
        assert len(err.splitlines()) == 1
        assert (tmp_path / "other/disk0").read_bytes() == content
