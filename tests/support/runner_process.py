# SPDX-License-Identifier: BSD-3-Clause
"""The runner as a child process, with what it says."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from loops import LIMIT, MIB
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.plan import Device, Plan, make_plan, write_plan

SIZE = 256 * MIB
WORKLOADS = ["rand-read-1th-4k", "rand-write-16th-4k", "rand-read-16th-4k"]
MEMORY = 256 * MIB  # of fio and its page cache


def start(directory: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "userblk.harness.running.runner", str(directory / "plan.json")]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(runner: subprocess.Popen[str]) -> tuple[int, list[dict[str, object]], str]:
    """Exit code, events (but for what this machine is like), standard error."""
    out, err = runner.communicate(timeout=LIMIT)
    events = [json.loads(line) for line in out.splitlines()]
    return runner.returncode, [event for event in events if event["event"] != "environment"], err


def said(events: list[dict[str, object]]) -> list[str]:
    """Why runs failed or are not valid, and what else events say about a campaign that did not go well."""
    lines = []
    for event in events:
        summary = event.get("summary", {})
        assert isinstance(summary, dict)
        found = [event.get("reason"), event.get("text"), *summary.get("invalid", [])]
        lines += [str(one) for one in found if one]
    return lines


def read_until(runner: subprocess.Popen[str], event: str) -> None:
    assert runner.stdout is not None
    for line in runner.stdout:
        if json.loads(line)["event"] == event:
            return
    raise AssertionError(f"no {event}: {runner.stderr.read() if runner.stderr else ''}")


def summaries(directory: Path) -> dict[str, dict[str, object]]:
    return {path.parts[-3]: json.loads(path.read_text()) for path in directory.rglob("summary.json")}


def plan_for(
    device: str,
    directory: Path,
    *,
    runtime_s: int = 1,
    suite: str = "bdus-block",
    systems: tuple[str, ...] = ("native",),
    workloads: list[str] = WORKLOADS,
    repetitions: int = 1,
    max_repetitions: int = 1,
    half_width: float = 5.0,
    count_costs: bool = False,
    sample_stacks: bool = False,
) -> Plan:
    """One round unless more are asked for; directory becomes the campaign's."""
    profile = load_profile("quick")
    changes = {
        "area": {"sata": SIZE},
        "ramp_s": 0,
        "runtime_s": runtime_s,
        "repetitions": repetitions,
        "max_repetitions": max_repetitions,
        "half_width": half_width,
        "memory_bytes": MEMORY,
    }
    plan = make_plan(
        suite=load_suite(suite),
        profile=dataclasses.replace(profile, **changes),  # type: ignore[arg-type]
        systems=[load_system(name) for name in systems],
        devices=[Device("sata", device, str(SIZE))],
        campaign="test",
        build="build/host",
        host="here",
        workloads=workloads,
        count_costs=count_costs,
        sample_stacks=sample_stacks,
    )
    directory.mkdir()
    write_plan(plan, directory)
    return plan


def fio_on(device: str) -> list[int]:
    """pids of the fio processes that use the device."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if command[:1] == [b"fio"] and f"--filename={device}".encode() in command:
            found.append(int(entry.name))
    return found
