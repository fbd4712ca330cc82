# SPDX-License-Identifier: BSD-3-Clause
"""Systems that a program mounts: over a directory, and on the device itself."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import runner_process as runner
from loops import MIB, loop
from userblk.harness.machine import paths
from userblk.harness.machine.blockdev import BlockDevice
from userblk.harness.machine.mounts import Mount
from userblk.harness.machine.subprocesses import Recorder
from userblk.harness.machine.teardown import Teardown
from userblk.harness.model.config import SystemConfig, load_profile, load_suite, load_system
from userblk.harness.model.plan import Device, make_plan, write_plan
from userblk.harness.systems import nfs
from userblk.harness.systems.base import Context
from wrong_systems import complaint

SIZE = 64 * MIB
PROGRAM = paths.HOST_BUILD / "fuse-passthrough/userblk-passthrough"


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    for name in (PROGRAM, paths.HOST_BUILD / "ops/userblk-ops"):
        if not name.exists():
            pytest.skip(f"{name.name} is not built; run: make")
    (tmp_path / "image").mkdir()
    with loop(tmp_path / "image", SIZE) as path:
        yield path


def run(device: str, directory: Path, system: SystemConfig) -> tuple[int, dict[str, object], list[dict[str, object]]]:
    """One run of an operation that finds its files made; the code, its summary and the events."""
    profile = load_profile("quick")
    files = dataclasses.replace(profile.files, runtime_s=1, memory_bytes=runner.MEMORY, size={"nvme": SIZE})
    plan = make_plan(
        suite=load_suite("ufs-ops"),
        profile=dataclasses.replace(profile, area={"nvme": SIZE}, repetitions=1, max_repetitions=1, files=files),
        systems=[system],
        devices=[Device("nvme", device, str(SIZE))],
        campaign="test",
        build="build/host",
        host="here",
        workloads=["s1mp-1w"],
    )
    directory.mkdir()
    write_plan(plan, directory)
    code, events, err = runner.finish(runner.start(directory))
    assert err == "", events
    file = directory / plan.directory(plan.entries[0]) / "summary.json"
    mounts = Path("/proc/self/mountinfo").read_text()
    assert f" {device} " not in mounts
    return code, json.loads(file.read_text()) if file.exists() else {}, events


def test_over_a_directory(device: str, tmp_path: Path) -> None:
    words = [str(PROGRAM), "-f", "{source}", "{mountpoint}"]
    code, summary, events = run(device, tmp_path / "c", SystemConfig("mine", "mount", server=words, disk="directory"))
    assert code == 0 and summary["valid"], (summary, events)
    settings = summary["settings"]
    assert isinstance(settings, dict)
    assert settings["mounted"].startswith("fuse") and settings["server"].endswith("/over")


def test_on_the_device(device: str, tmp_path: Path) -> None:
    if not shutil.which("fuse2fs"):
        pytest.skip("fuse2fs is not installed; run: apt-get install fuse2fs")
    code, summary, events = run(device, tmp_path / "c", load_system("fuse2fs"))
    assert code == 0 and summary["valid"], (summary, events)
    commands = json.loads(next((tmp_path / "c").rglob("preparation/commands.json")).read_text())
    assert sum("ext4" in one["argv"] for one in commands) == 1  # where its files are made: not once more below it


def test_a_program_that_mounts_nothing_is_named(device: str, tmp_path: Path) -> None:
    words = ["/bin/true", "{mountpoint}"]
    code, summary, events = run(device, tmp_path / "c", SystemConfig("mine", "mount", server=words, disk="directory"))
    assert code == 1 and not summary
    (failed,) = [event for event in events if event["event"] == "entry-failed"]
    assert "true: exit code 0" in str(failed["reason"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('server = ["p", "{device}", "{mountpoint}"]\nover = "directory"', "{device} is unknown; use one of {source}"),
        ('server = ["p", "{source}"]\nover = "directory"', "needs {mountpoint} in it"),
        ('server = ["p", "{mountpoint}"]\nover = "disk"', "over=disk: must be one of directory, device"),
        ('server = ["p", "{mountpoint}"]\nover = "device"\nstop = ["p"]', "stop=['p']: unknown key"),
        ('server = ["p", "{mountpoint"]\nover = "device"', "server={mountpoint"),
    ],
)
def test_a_wrong_system_is_named(text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert says in complaint("mount", text, tmp_path, monkeypatch)


def test_the_cache_of_the_kernels_nfs_server_is_labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory limit is that of the workload's processes; the server is none, and caches the files once more."""
    mounted = Mount(str(tmp_path / "over"), "nfs4", "127.0.0.1:/", 0, ("soft",))
    recorder = Recorder(tmp_path / "r")
    authority = recorder.adopt(["sleep", "600"], subprocess.Popen(["sleep", "600"], start_new_session=True))
    replaced: dict[str, Any] = {
        "threads": lambda: 0,
        "start_authority": lambda *_: authority,
        "export": lambda *_: None,
        "mounts_of": lambda: [mounted],
    }
    for name, function in replaced.items():
        monkeypatch.setattr(nfs, name, function)
    monkeypatch.setattr(recorder, "run", lambda *_, **__: "")
    none = BlockDevice("/dev/none", "none", "none", 0, 0, 512, False, "")
    context = Context(load_system("nfs"), none, SIZE, "b", recorder, Teardown(), ExitStack())
    try:
        serve = nfs.up(context).serve
        assert serve is not None
        settings = serve(tmp_path, tmp_path / "over", recorder, context.teardown).settings
    finally:
        authority.end()
        context.teardown.unwind()
    assert (settings["mounted"], settings["server_threads"]) == ("nfs4", 16)
    assert settings["server_memory_limit"] == "machine"
