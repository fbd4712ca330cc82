# SPDX-License-Identifier: BSD-3-Clause
"""An ext4 on an S3 volume's disk: a killed server, Ctrl-C and a full disk leave nothing mounted or connected."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from pathlib import Path

import guest_campaign
import pytest
from guest import MIB, leftovers
from guest_campaign import END_LIMIT, await_start, events, pids, runner, summaries
from userblk.harness.model.config import load_profile
from userblk.harness.model.parts import ENGINES
from userblk.harness.running.campaign import store_devices

pytestmark = pytest.mark.long
WORKLOADS = ["varmail", "oltp"]


def make_campaign(directory: Path, size: int = 512 * MIB) -> None:
    profile = load_profile("quick")
    profile = dataclasses.replace(profile, store=dataclasses.replace(profile.store, files_size=size))
    guest_campaign.make_campaign(directory, "bs3-fs", profile, "s3-weak-nbd", WORKLOADS, store_devices([0], None))


def await_run(process: subprocess.Popen[bytes], directory: Path) -> None:
    """Until the first run of the campaign measures."""
    await_start(
        process,
        directory,
        lambda: any(b"--phase=run" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids("userblk-flow")),
    )


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
