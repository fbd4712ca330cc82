# SPDX-License-Identifier: BSD-3-Clause
"""Engines on a file system, other than userblk-flow: a killed server costs its run only, Ctrl-C leaves nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import runner_process as runner
from loops import MIB, loop_for_fuse
from userblk.harness.machine.prepare import dirty_limits
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.plan import Device, Plan, make_plan, write_plan
from waiting import wait_until

SIZE = 512 * MIB
SERVERS = ("userblk-passthrough", "userblk-nullfs")


@dataclass(frozen=True)
class Kind:
    """What runs long enough to be stopped. program: which measures, with this word in its command line."""

    suite: str
    workload: str
    system: str
    program: str
    word: str = ""
    fixed: tuple[tuple[str, int], ...] = ()


KINDS = [
    Kind("rfuse-fio", "rand-write-1th-4k", "rfuse-stackfs", "fio", "--rw=randwrite"),
    Kind("fxmark", "mrpl-1w", "nullfs", "userblk-ops", "--workers=1"),
    Kind("ufs-ops", "rmpr-1w", "fuse", "userblk-ops", "--phase=run"),
    Kind("source-tree", "build", "fuse", "make", "", (("copies", 4),)),
]


def below(pid: int) -> Iterator[int]:
    """The processes that a process has started, and theirs."""
    done = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    for child in map(int, done.stdout.split()):
        yield child
        yield from below(child)


def named(process: subprocess.Popen[str], *names: str, word: str = "") -> list[int]:
    found = []
    for pid in below(process.pid):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            continue  # it has ended
        if Path(words[0]).name in names and (not word or word in words):
            found.append(pid)
    return found


def plan_for(device: str, kind: Kind, directory: Path) -> Plan:
    """One run on native, one on a server."""
    profile = load_profile("quick")
    files = dataclasses.replace(profile.files, runtime_s=4, memory_bytes=512 * MIB, size={"nvme": SIZE})
    plan = make_plan(
        suite=load_suite(kind.suite),
        profile=dataclasses.replace(profile, area={"nvme": SIZE}, repetitions=1, max_repetitions=1, files=files),
        systems=[load_system(name) for name in ("native", kind.system)],
        devices=[Device("nvme", device, str(SIZE))],
        campaign="test",
        build="build/host",
        host="here",
        workloads=[kind.workload],
    )
    (workload,) = plan.suite.workloads
    if kind.fixed:
        fixed = {**workload.fixed, **dict(kind.fixed)}
        workload = dataclasses.replace(workload, fixed=fixed, variables={"nvme": fixed})
    if kind.suite == "rfuse-fio":
        workload = dataclasses.replace(workload, variables={"nvme": {"size": 256 * MIB}})
    plan = dataclasses.replace(plan, suite=dataclasses.replace(plan.suite, workloads=(workload,)))
    directory.mkdir()
    write_plan(plan, directory)
    return plan


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    with loop_for_fuse(tmp_path / "image", SIZE) as path:
        yield path
        os.close(os.open(path, os.O_RDWR | os.O_EXCL))  # nothing has it mounted


def by_system(directory: Path) -> dict[str, dict[str, object]]:
    found = (json.loads(file.read_text()) for file in (directory / "here").rglob("summary.json"))
    return {summary["system"]: summary for summary in found}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.suite)
def test_a_killed_server_costs_its_run_only(kind: Kind, device: str, tmp_path: Path) -> None:
    plan_for(device, kind, tmp_path / "c")
    process = runner.start(tmp_path / "c")
    wait_until(
        "the workload runs on the server",
        lambda: named(process, *SERVERS) and named(process, kind.program, word=kind.word),
        process=process,
    )
    os.kill(named(process, *SERVERS)[0], signal.SIGKILL)
    code, events, err = runner.finish(process)
    assert (code, err) == (3, ""), events
    found = by_system(tmp_path / "c")
    assert found["native"]["valid"], found["native"]["invalid"]
    told = [one for one in runner.said(events) if "the server died" in one]
    assert len(told) == 1 and "\n" not in told[0], events
    assert not found.get(kind.system, {}).get("valid")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.suite)
def test_an_interrupted_campaign_goes_on(kind: Kind, device: str, tmp_path: Path) -> None:
    limits = dirty_limits()
    plan_for(device, kind, tmp_path / "c")
    process = runner.start(tmp_path / "c")
    wait_until("the workload runs", lambda: named(process, kind.program, word=kind.word), process=process)
    process.send_signal(signal.SIGINT)
    code, events, _ = runner.finish(process)
    assert code == 128 + signal.SIGINT and events[-1]["interrupted"] is True
    assert not by_system(tmp_path / "c") and dirty_limits() == limits
    os.close(os.open(device, os.O_RDWR | os.O_EXCL))
    code, events, err = runner.finish(runner.start(tmp_path / "c"))
    assert (code, err) == (0, ""), events
    found = by_system(tmp_path / "c")
    assert set(found) == {"native", kind.system} and all(one["valid"] for one in found.values()), events
    assert dirty_limits() == limits
