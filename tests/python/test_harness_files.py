# SPDX-License-Identifier: BSD-3-Clause
"""The runner with workloads on a file system: real userblk-flow, ext4 and FUSE on a real loop device."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from loops import MIB, loop
from runner_process import finish, read_until, start, summaries
from userblk.harness.machine import paths
from userblk.harness.machine.prepare import dirty_limits
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.plan import Device, Plan, make_plan, write_plan
from waiting import wait_until

SIZE = 1024 * MIB  # which has inodes for 65536 files
MANY = 60000
WORKLOADS = ["rand-read-1th-4k", "create-1th", "mail-server"]
SMALL = {"nfiles": 200, "dirwidth": 200, "filesize": 64 * MIB, "iters": 1 << 24, "memsize": MIB}
PROGRAMS = [paths.HOST_BUILD / "flow/userblk-flow", paths.HOST_BUILD / "fuse-passthrough/userblk-passthrough"]


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    for program in PROGRAMS:
        if not program.exists():
            pytest.skip(f"{program.name} is not built; run: make flow fuse-passthrough")
    for name in ("mkfs.ext4", "setpriv"):
        if not shutil.which(name):
            pytest.skip(f"{name} is not installed")
    (tmp_path / "image").mkdir()
    others.extend(leftovers())
    with loop(tmp_path / "image", SIZE) as path:
        yield path
    assert leftovers() == []
    others.clear()


others: list[str] = []  # what campaigns beside this test had before it


def leftovers() -> list[str]:
    """Mounts, control groups and processes of runs, but for those of others."""
    found = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    found = [point for point in found if point.startswith("/run/userblk/")]
    found += [str(path) for path in Path("/sys/fs/cgroup").glob("**/userblk-[0-9]*") if path.is_dir()]
    found += [f"{name} {pid}" for name in ("userblk-flow", "userblk-passthrough") for pid in pids(name)]
    return [one for one in found if one not in others]


def pids(name: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cmdline").read_bytes().split(b"\0")[0].endswith(f"/{name}".encode()):
                if b"/run/userblk/" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        except OSError:
            continue  # it has ended
    return found


def is_below(pid: int, ancestor: int) -> bool:
    """In the tree of processes."""
    while pid not in (0, ancestor):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid == ancestor


def plan_for(
    device: str, directory: Path, *, runtime_s: int = 1, workloads: list[str] = WORKLOADS, **variables: int
) -> Plan:
    """One round on native and fuse; directory becomes the campaign's."""
    profile = load_profile("quick")
    files = dataclasses.replace(
        profile.files, ramp_s=0, runtime_s=runtime_s, macro_runtime_s=runtime_s, memory_bytes=SIZE, size={"sata": SIZE}
    )
    plan = make_plan(
        suite=load_suite("bdus-fs"),
        profile=dataclasses.replace(profile, area={"sata": SIZE}, repetitions=1, files=files),
        systems=[load_system("native"), load_system("fuse")],
        devices=[Device("sata", device, str(SIZE))],
        campaign="test",
        build="build/host",
        host="here",
        seed=1,
        workloads=workloads,
    )
    small = []
    for workload in plan.suite.workloads:
        values = dict(workload.variables["sata"])
        free = values.keys() - workload.fixed.keys()
        values |= {name: value for name, value in (SMALL | variables).items() if name in free}
        if workload.id.startswith("create") and not variables:
            values["nfiles"] = MANY
        small.append(dataclasses.replace(workload, variables={"sata": values}))
    plan = dataclasses.replace(plan, suite=dataclasses.replace(plan.suite, workloads=tuple(small)))
    directory.mkdir()
    write_plan(plan, directory)
    return plan


def test_from_plan_to_summaries(device: str, tmp_path: Path) -> None:
    limits = dirty_limits()
    plan = plan_for(device, tmp_path / "c")
    code, events, err = finish(start(tmp_path / "c"))
    assert (code, err) == (0, ""), [event for event in events if event["event"] in ("entry-failed", "note")]
    assert [event["event"] for event in events] == ["start", *["entry-start", "entry-done"] * 6, "end"]
    assert dirty_limits() == limits
    for entry in plan.entries:
        directory = tmp_path / "c" / plan.directory(entry)
        names = {path.name for path in directory.iterdir()}
        assert names >= {"DONE", "flow.json", "flow_intervals.csv", "samples.csv", "commands.json", "preparation"}
        summary = json.loads((directory / "summary.json").read_text())
        assert summary["valid"], summary["invalid"]
        assert (summary["engine"], summary["suite"], summary["seed"]) == ("flow", "bdus-fs", entry.seed)
        settings, metrics = summary["settings"], summary["metrics"]
        assert settings["memory_limit"] == "cgroup" and settings["memory_bytes"] == SIZE
        assert settings["cached_area_share"] <= 0.01 and settings["file_system_bytes"] == SIZE
        assert settings["dirty_bytes"] == plan.profile.files.dirty_bytes
        assert metrics["throughput_kops"] > 0 and metrics["latency_us"] > 0 and metrics["cpu_percent"] > 0
        if entry.workload == "create-1th":  # three operations a file
            assert metrics["files_kops"] == pytest.approx(metrics["throughput_kops"] / 3, rel=0.05)
        results = json.loads((directory / "flow.json").read_text())
        assert results["seed"] == entry.seed
        mounted = "over" if entry.system == "fuse" else "ext4"
        assert Path(results["variables"]["dir"]).name == mounted
        if entry.system == "fuse":
            assert settings["negotiated"]["writeback"] == "on" and metrics["server_cpu_percent"] > 0
        # FUSE has 1 % of the dirty limit, and gets that of the limit that this profile's stands for.
        assert settings.get("dirty_share_percent") == (3 if entry.system == "fuse" else None)
        create, run = (
            next(r["argv"] for r in json.loads((where / "commands.json").read_text()) if r["name"] == "userblk-flow")
            for where in (directory / "preparation", directory)
        )
        assert {"--phase=create", f"--seed={entry.seed}"} <= set(create) and {"--phase=run", "--trust"} <= set(run)
    # The caches were dropped: the reads came from the device.
    native = summaries_of(tmp_path / "c", plan)["native", "rand-read-1th-4k"]
    assert native["device_io"]["read_request_kib"] >= 4  # type: ignore[index]


def summaries_of(campaign: Path, plan: Plan) -> dict[tuple[str, str], dict[str, object]]:
    return {
        (entry.system, entry.workload): json.loads((campaign / plan.directory(entry) / "summary.json").read_text())
        for entry in plan.entries
    }


def test_a_run_that_is_over_at_once_is_invalid(device: str, tmp_path: Path) -> None:
    plan = plan_for(device, tmp_path / "c", runtime_s=30, workloads=["create-1th"], nfiles=32)
    code, _, _ = finish(start(tmp_path / "c"))
    assert code == 1
    found = summaries_of(tmp_path / "c", plan)
    assert "give the workload more files" in str(found["native", "create-1th"]["invalid"])


def test_a_refused_feature_makes_the_run_invalid(device: str, tmp_path: Path) -> None:
    plan = plan_for(device, tmp_path / "c", workloads=["rand-read-1th-4k"])
    systems = dict(plan.systems)
    systems["fuse"] = dataclasses.replace(systems["fuse"], options=["--no-writeback"])
    write_plan(dataclasses.replace(plan, systems=systems), tmp_path / "c")
    code, _, _ = finish(start(tmp_path / "c"))
    assert code == 3
    found = summaries_of(tmp_path / "c", plan)
    assert found["native", "rand-read-1th-4k"]["valid"]
    assert "writeback is off instead of on" in str(found["fuse", "rand-read-1th-4k"]["invalid"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_in_the_middle_nothing_is_left(device: str, tmp_path: Path, number: signal.Signals) -> None:
    """On whichever of the two systems comes first, then on both."""
    limits = dirty_limits()
    plan_for(device, tmp_path / "c", runtime_s=4, workloads=["mail-server"], nfiles=2000)
    runner = start(tmp_path / "c")
    read_until(runner, "entry-start")
    wait_until("userblk-flow runs", lambda: [pid for pid in pids("userblk-flow") if b"--phase=run" in cmdline(pid)])
    runner.send_signal(number)
    code, events, _ = finish(runner)
    if number == signal.SIGKILL:
        wait_until("userblk-flow has ended", lambda: not pids("userblk-flow"))
    else:
        assert code == 128 + number and events[-1]["interrupted"] is True
        assert leftovers() == [] and dirty_limits() == limits
        os.close(os.open(device, os.O_RDWR | os.O_EXCL))
    assert not summaries(tmp_path / "c")
    code, events, err = finish(start(tmp_path / "c"))
    assert (code, err) == (0, "")
    assert events[0]["event"] == ("note" if number == signal.SIGKILL else "start")
    assert leftovers() == [] and dirty_limits() == limits


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_killed_daemon_costs_its_run_only(device: str, tmp_path: Path) -> None:
    plan = plan_for(device, tmp_path / "c", runtime_s=5, workloads=["mail-server"], nfiles=2000)
    runner = start(tmp_path / "c")
    wait_until(
        "userblk-flow runs",
        lambda: pids("userblk-passthrough") and [p for p in pids("userblk-flow") if b"--phase=run" in cmdline(p)],
    )
    names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in pids("userblk-passthrough")}
    (daemon,) = [pid for pid, name in names.items() if is_below(pid, runner.pid) and name != "userblk-asker\n"]
    os.kill(daemon, signal.SIGKILL)
    code, _, _ = finish(runner)
    assert code == 3
    found = summaries_of(tmp_path / "c", plan)
    assert found["native", "mail-server"]["valid"], found["native", "mail-server"]["invalid"]
    assert "the server died" in str(found["fuse", "mail-server"]["invalid"])


def test_a_mounted_device_is_refused(device: str, tmp_path: Path) -> None:
    plan_for(device, tmp_path / "c")
    subprocess.run(["mkfs.ext4", "-q", device], check=True, timeout=60)
    point = tmp_path / "mnt"
    point.mkdir()
    subprocess.run(["mount", device, str(point)], check=True, timeout=60)
    try:
        (point / "precious").write_text("x")
        code, events, err = finish(start(tmp_path / "c"))
        assert (code, events) == (2, []) and "is mounted at" in err
        assert (point / "precious").read_text() == "x"
    finally:
        subprocess.run(["umount", str(point)], check=True, timeout=60)
