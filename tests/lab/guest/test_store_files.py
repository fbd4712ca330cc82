# SPDX-License-Identifier: BSD-3-Clause
"""An ext4 on an S3 volume's disk: a killed server, Ctrl-C and a full disk leave nothing mounted or connected."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from guest import BUILD, MIB, leftovers
from guest_campaign import END_LIMIT, START_LIMIT, events, pids, runner, summaries
from userblk.harness.model import plan
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.parts import ENGINES
from userblk.harness.running.campaign import store_devices

pytestmark = pytest.mark.long
WORKLOADS = ["varmail", "oltp"]


def make_campaign(directory: Path, size: int = 512 * MIB) -> None:
    directory.mkdir()
    suite, profile = load_suite("bs3-fs"), load_profile("quick")
    made = plan.make_plan(
        suite=suite,
        profile=dataclasses.replace(profile, store=dataclasses.replace(profile.store, files_size=size)),
        systems=[load_system("s3-weak-nbd")],
        devices=store_devices([0], None),
        campaign=directory.name,
        host="lab",
        emulated=True,
        build=BUILD,
        workloads=WORKLOADS,
        repetitions=1,
        seed=1,
    )
    plan.write_plan(made, directory)


def await_run(process: subprocess.Popen[bytes], directory: Path) -> None:
    """Until the first run of the campaign measures."""
    end = time.monotonic() + START_LIMIT
    while not any(b"--phase=run" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids("userblk-flow")):
        assert process.poll() is None, (directory / "runner.log").read_text()
        assert time.monotonic() < end, (directory / "runner.log").read_text()
        time.sleep(0.1)


def assert_clean() -> None:
    assert not leftovers() and not pids("userblk-flow") and not pids("versitygw")
    assert " /run/userblk/" not in Path("/proc/self/mounts").read_text()


def module() -> str:
    return ENGINES["store-files"].runner


def test_a_killed_server_costs_its_run_only(tmp_path: Path) -> None:
    directory = tmp_path / "campaign"
    make_campaign(directory)
    with runner(directory, module()) as process:
        await_run(process, directory)
        (server,) = pids("nbdkit")
        os.kill(server, signal.SIGKILL)
        assert process.wait(END_LIMIT) == 3, (directory / "runner.log").read_text()
    found = events(directory)
    (done,) = summaries(directory)
    failed = [event["reason"] for event in found if event["event"] == "entry-failed"]
    assert done["valid"], done["invalid"]
    assert done["metrics"]["throughput_mbps"] > 0
    assert len(failed) == 1 and "nbdkit" in failed[0], failed
    assert_clean()


def test_an_interrupted_campaign_tears_down_and_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "campaign"
    make_campaign(directory)
    with runner(directory, module()) as process:
        await_run(process, directory)
        process.send_signal(signal.SIGINT)
        assert process.wait(END_LIMIT) == 130, (directory / "runner.log").read_text()
    assert_clean()
    with runner(directory, module()) as process:
        assert process.wait(END_LIMIT) == 0, (directory / "runner.log").read_text()
    assert sorted(one["workload"] for one in summaries(directory)) == sorted(WORKLOADS)
    assert all(one["valid"] for one in summaries(directory)), [one["invalid"] for one in summaries(directory)]
    assert_clean()


def test_a_full_file_system_is_told(tmp_path: Path) -> None:
    directory = tmp_path / "campaign"
    make_campaign(directory, 32 * MIB)
    with runner(directory, module()) as process:
        assert process.wait(END_LIMIT) != 0, (directory / "runner.log").read_text()
    reasons = [event["reason"] for event in events(directory) if event["event"] == "entry-failed"]
    assert reasons and all("No space left on device" in reason for reason in reasons), reasons
    assert_clean()
