# SPDX-License-Identifier: BSD-3-Clause
"""Workloads on file systems: one of data, one of metadata, one server, on every system; and stopped midway."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import guest_campaign
import pytest
from guest import MIB
from guest_campaign import await_start, events, pids, runner, summaries
from userblk.harness.machine.teardown import module_loaded
from userblk.harness.model import plan
from userblk.harness.model.config import load_profile
from userblk.harness.systems import nfs

SYSTEMS = [
    "nbdkit",
    pytest.param("native", marks=pytest.mark.long),
    pytest.param("tcmu", marks=pytest.mark.long),
    pytest.param("fuse", marks=pytest.mark.long),
]
WORKLOADS = ["rand-read-16th-4k", "delete-16th", "mail-server"]
SIZE = 512 * MIB
APPLICATIONS = 1024 * MIB  # half of the file system that suites kv and postgresql ask for
SMALL = {"nfiles": 1000, "dirwidth": 1000, "filesize": 2 * MIB, "iters": 1 << 20}
END_LIMIT = 900.0  # s for what is left of a campaign of up to three cells
MANY = 6000  # of which the deletion takes longer than the least time that counts
DAEMON = {"nbdkit": "nbdkit", "tcmu": "tcmu-runner", "fuse": "userblk-passthr", "nfs": "rpc.mountd"}


def make_campaign(directory: Path, system: str, workloads: list[str], runtime_s: int) -> plan.Plan:
    profile = load_profile("quick")
    files = dataclasses.replace(
        profile.files, ramp_s=0, runtime_s=runtime_s, macro_runtime_s=runtime_s, size={"nvme": SIZE}
    )
    profile = dataclasses.replace(profile, area={"nvme": SIZE}, files=files)
    made = guest_campaign.make_campaign(directory, "bdus-fs", profile, system, workloads)
    small = []
    for workload in made.suite.workloads:
        values = dict(workload.variables["nvme"])
        free = values.keys() - workload.fixed.keys()
        values |= {name: value for name, value in SMALL.items() if name in free}
        if workload.id.startswith("delete"):
            values["nfiles"] = MANY
        small.append(dataclasses.replace(workload, variables={"nvme": values}))
    made = dataclasses.replace(made, suite=dataclasses.replace(made.suite, workloads=tuple(small)))
    plan.write_plan(made, directory)
    return made


def leftovers() -> list[str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    found = [point for point in points if point.startswith("/run/userblk/")]
    if nfs.threads():
        found.append("the kernel's NFS server")
    found += nfs.EXPORTS.read_text().splitlines() if nfs.EXPORTS.exists() else []
    found += [f"module {name}" for name in ("brd", "nfsd") if module_loaded(name)]
    names = ("userblk-flow", "userblk-passthr", "rpc.mountd")
    return found + [f"process {pid} {name}" for name in names for pid in pids(name)]


def await_run(process: subprocess.Popen[bytes], directory: Path) -> None:
    """Until the measured phase goes on."""
    argv = ["pgrep", "-f", "--", "--phase=run"]
    await_start(process, directory, lambda: bool(subprocess.run(argv, capture_output=True, check=False).stdout))


@pytest.mark.parametrize("system", SYSTEMS)
def test_data_metadata_and_a_server(system: str, tmp_path: Path) -> None:
    directory = tmp_path / "campaign"
    made = make_campaign(directory, system, WORKLOADS, 1)
    with runner(directory) as process:
        assert process.wait(END_LIMIT) == 0, (directory / "runner.log").read_text()
    found: dict[str, Any] = {summary["workload"]: summary for summary in summaries(directory)}
    assert sorted(found) == sorted(WORKLOADS)
    for entry in made.entries:
        summary = found[entry.workload]
        assert summary["valid"] and summary["engine"] == "flow", summary["invalid"]
        assert summary["metrics"]["throughput_kops"] > 0
        assert summary["settings"]["memory_limit"] == "machine"
        results = json.loads((directory / made.directory(entry) / "flow.json").read_text())
        assert results["seed"] == entry.seed and results["summary"]["ops"] > 0
    read, removed, mail = (found[name] for name in WORKLOADS)
    # Cold: what was read came from the device, through the system's own.
    assert read["device_io"]["read_request_kib"] >= 4
    assert (read["backing_io"] is not None) == (system in ("nbdkit", "tcmu"))
    assert removed["metrics"]["files_kops"] == pytest.approx(removed["metrics"]["throughput_kops"], rel=0.01)
    assert mail["metrics"]["files_kops"] < mail["metrics"]["throughput_kops"]
    if system == "fuse":
        assert read["settings"]["negotiated"]["writeback"] == "on"
        assert read["metrics"]["server_cpu_percent"] > 0
    assert leftovers() == []


@pytest.mark.parametrize(
    ("system", "mounted"),
    [
        pytest.param("ext4-data-journal", {"mount": ["data=journal"]}, marks=pytest.mark.long),
        pytest.param("ext4-ramdisk", {"mount": []}, marks=pytest.mark.long),
        ("nfs", {"mounted": "nfs4", "server_threads": 16}),
    ],
)
def test_other_file_systems_of_the_kernel(system: str, mounted: dict[str, Any], tmp_path: Path) -> None:
    directory = tmp_path / "campaign"
    make_campaign(directory, system, ["mail-server"], 1)
    with runner(directory) as process:
        assert process.wait(END_LIMIT) == 0, (directory / "runner.log").read_text()
    (summary,) = summaries(directory)
    assert summary["valid"], summary["invalid"]
    assert summary["metrics"]["throughput_kops"] > 0
    assert summary["settings"].items() >= mounted.items()
    assert (summary["device_used"]["path"] == "/dev/ram0") is (system == "ext4-ramdisk")
    assert leftovers() == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("suite", "workloads"), [("kv", ["rocksdb-a", "leveldb-a", "sqlite-a"]), ("postgresql", ["oltp"])]
)
def test_applications_run_in_the_guest(suite: str, workloads: list[str], tmp_path: Path) -> None:
    profile = load_profile("quick")
    files = dataclasses.replace(
        profile.files, ramp_s=0, runtime_s=2, macro_runtime_s=2, size={"nvme": 2 * APPLICATIONS}
    )
    profile = dataclasses.replace(profile, area={"nvme": APPLICATIONS}, files=files)
    directory = tmp_path / "campaign"
    guest_campaign.make_campaign(directory, suite, profile, "nbdkit", workloads)
    with runner(directory) as process:
        assert process.wait(END_LIMIT) == 0, (directory / "runner.log").read_text()
    found = summaries(directory)
    assert sorted(summary["workload"] for summary in found) == sorted(workloads)
    for summary in found:
        assert summary["valid"], summary["invalid"]
        assert summary["metrics"]["throughput_kops"] > 0
    assert leftovers() == []


@pytest.mark.long
def test_an_nfs_server_that_is_stopped_costs_its_run_only(tmp_path: Path) -> None:
    directory = tmp_path / "campaign"
    make_campaign(directory, "nfs", ["rand-read-16th-4k", "mail-server"], 2)
    with runner(directory) as process:
        await_run(process, directory)
        (nfs.CONTROL / "threads").write_text("0\n")
        assert process.wait(END_LIMIT) == 3, (directory / "runner.log").read_text()
    first, second = summaries(directory)
    assert not first["valid"] and "the server died" in first["invalid"]
    assert second["valid"], second["invalid"]
    assert leftovers() == []


@pytest.mark.long
def test_an_nfs_server_that_cannot_be_set_up_is_named(tmp_path: Path) -> None:
    directory = tmp_path / "campaign"
    make_campaign(directory, "nfs", ["mail-server"], 1)
    with socket.create_server((nfs.HERE, nfs.PORT)), runner(directory) as process:
        assert process.wait(END_LIMIT) == 1, (directory / "runner.log").read_text()
    (failed,) = [event for event in events(directory) if event["event"] == "entry-failed"]
    assert failed["reason"].startswith("rpc.nfsd ") and "\n" not in failed["reason"], failed
    assert summaries(directory) == [] and leftovers() == []


@pytest.mark.parametrize(
    "system", ["fuse", *(pytest.param(system, marks=pytest.mark.long) for system in ("nbdkit", "tcmu", "nfs"))]
)
def test_a_killed_server_costs_its_run_only(system: str, tmp_path: Path) -> None:
    directory = tmp_path / "campaign"
    make_campaign(directory, system, ["rand-read-16th-4k", "mail-server"], 2)
    with runner(directory) as process:
        await_run(process, directory)
        (server,) = pids(DAEMON[system])
        os.kill(server, signal.SIGKILL)
        assert process.wait(END_LIMIT) == 3, (directory / "runner.log").read_text()
    first, second = summaries(directory)
    assert not first["valid"] and "the server died" in first["invalid"]
    assert second["valid"], second["invalid"]
    assert leftovers() == []


@pytest.mark.parametrize(
    ("system", "number"),
    [
        pytest.param("native", signal.SIGINT, marks=pytest.mark.long),
        ("nbdkit", signal.SIGKILL),
        pytest.param("tcmu", signal.SIGINT, marks=pytest.mark.long),
        pytest.param("fuse", signal.SIGKILL, marks=pytest.mark.long),
        pytest.param("nfs", signal.SIGKILL, marks=pytest.mark.long),
    ],
)
def test_stopped_midway_nothing_is_left(system: str, number: signal.Signals, tmp_path: Path) -> None:
    directory = tmp_path / "campaign"
    make_campaign(directory, system, ["mail-server"], 2)
    with runner(directory) as process:
        await_run(process, directory)
        process.send_signal(number)
        process.wait(END_LIMIT)
    if number == signal.SIGINT:
        assert events(directory)[-1]["event"] == "end" and events(directory)[-1]["interrupted"]
        assert leftovers() == []
    assert summaries(directory) == []
    with runner(directory) as process:  # which also clears up after the one that was killed
        assert process.wait(END_LIMIT) == 0, (directory / "runner.log").read_text()
    assert len(summaries(directory)) == 1
    assert leftovers() == []
