# SPDX-License-Identifier: BSD-3-Clause
"""A campaign in the lab's guest: its runner, and what it has written so far."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from guest import BUILD
from userblk.harness.model import plan
from userblk.harness.model.config import Profile, load_suite, load_system
from waiting import wait_until

START_LIMIT = 300.0  # s until fio runs
END_LIMIT = 600.0  # s for what is left of a campaign of two cells

Events = list[dict[str, Any]]
NVME = plan.Device("nvme", "$LAB_NVME", "LABNVME")


def make_campaign(
    directory: Path,
    suite: str,
    profile: Profile,
    systems: str | Sequence[str],
    workloads: Sequence[str] | None = None,
    devices: Sequence[plan.Device] = (NVME,),
) -> plan.Plan:
    """A new directory with the plan of one repetition. systems: one, or several."""
    directory.mkdir()
    made = plan.make_plan(
        suite=load_suite(suite),
        profile=profile,
        systems=[load_system(name) for name in ([systems] if isinstance(systems, str) else systems)],
        devices=devices,
        campaign=directory.name,
        host="lab",
        emulated=True,
        build=BUILD,
        workloads=workloads,
        repetitions=1,
        seed=1,
    )
    plan.write_plan(made, directory)
    return made


def await_start(process: subprocess.Popen[bytes], directory: Path, started: Callable[[], bool]) -> None:
    """Until the campaign's first run has started. Fails if its runner ends before, or takes too long."""
    wait_until("a run starts", started, START_LIMIT, process=process, log=(directory / "runner.log").read_text)


@contextmanager
def runner(directory: Path, module: str = "userblk.harness.running.runner") -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", module, str(directory / "plan.json")]
    with (directory / "runner.log").open("ab") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def events(directory: Path) -> Events:
    path = directory / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def pids(name: str) -> list[int]:
    found = subprocess.run(["pgrep", "-x", name], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


def summaries(directory: Path) -> list[dict[str, Any]]:
    return [event["summary"] for event in events(directory) if event["event"] == "entry-done"]
