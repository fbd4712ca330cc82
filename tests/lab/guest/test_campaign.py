# SPDX-License-Identifier: BSD-3-Clause
"""Whole campaigns on real nbd and TCMU disks: a killed server, a killed runner, Ctrl-C; nothing stays behind."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from pathlib import Path

import guest_campaign
import pytest
from guest import AREA, MIB
from guest_campaign import END_LIMIT, await_start, events, pids, runner, summaries
from userblk.harness.machine.prepare import PrepareError, limit_cpus
from userblk.harness.machine.teardown import Teardown
from userblk.harness.model.config import load_profile
from userblk.harness.running.measuring import bytes_moved

SERVER = {"nbdkit": "nbdkit", "tcmu": "tcmu-runner"}
SERVERS = ["nbdkit", pytest.param("tcmu", marks=pytest.mark.long)]  # make test-lab waits for one of each end
WORKLOADS = ["rand-read-16th-4k", "rand-write-16th-4k"]


def make_campaign(directory: Path, system: str) -> None:
    # Beside other load a poll and what follows it take seconds.
    profile = dataclasses.replace(load_profile("quick"), area={"nvme": AREA}, runtime_s=6)
    guest_campaign.make_campaign(directory, "bdus-block", profile, system, WORKLOADS)


def await_io(process: subprocess.Popen[bytes], directory: Path) -> None:
    """Until fio is in the middle of the campaign's first run."""
    await_start(process, directory, lambda: any(bytes_moved(pid) > MIB // 4 for pid in pids("fio")))


def test_cpus_are_taken_off_line_and_come_back() -> None:
    teardown, count = Teardown(), os.cpu_count()
    assert count and count > 1
    try:
        limit_cpus(0, teardown)
        assert os.cpu_count() == count
        limit_cpus(1, teardown)
        assert os.cpu_count() == 1
        with pytest.raises(PrepareError, match=f"{count} CPUs are needed, but 1 are on line"):
            limit_cpus(count, teardown)
    finally:
        teardown.unwind()
    assert os.cpu_count() == count


@pytest.mark.long
@pytest.mark.parametrize("system", SERVER)
def test_a_killed_server_costs_its_run_only(system: str, tmp_path: Path) -> None:
    directory = tmp_path / "campaign"
    make_campaign(directory, system)
    with runner(directory) as process:
        await_io(process, directory)
        (server,) = pids(SERVER[system])
        os.kill(server, signal.SIGKILL)
        assert process.wait(END_LIMIT) == 3, (directory / "runner.log").read_text()
    first, second = summaries(directory)
    assert not first["valid"] and "the server died" in first["invalid"]
    assert second["valid"], second["invalid"]


@pytest.mark.parametrize("system", SERVERS)
def test_a_killed_runner_is_cleared_up_after_and_resumed(system: str, tmp_path: Path) -> None:
    directory = tmp_path / "campaign"
    make_campaign(directory, system)
    with runner(directory) as process:
        await_io(process, directory)
        process.kill()
    with runner(directory) as process:
        assert process.wait(END_LIMIT) == 0, (directory / "runner.log").read_text()
    assert sorted(s["workload"] for s in summaries(directory)) == sorted(WORKLOADS)


@pytest.mark.parametrize("system", SERVERS)
def test_an_interrupted_campaign_tears_down(system: str, tmp_path: Path) -> None:
    directory = tmp_path / "campaign"
    make_campaign(directory, system)
    with runner(directory) as process:
        await_io(process, directory)
        process.send_signal(signal.SIGINT)
        assert process.wait(END_LIMIT) == 130, (directory / "runner.log").read_text()
    assert not pids(SERVER[system]) and not pids("fio")
    assert events(directory)[-1]["event"] == "end" and events(directory)[-1]["interrupted"]
