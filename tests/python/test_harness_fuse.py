# SPDX-License-Identifier: BSD-3-Clause
"""What the FUSE daemons granted decides whether a run counts; a device of ours as a file, brought up and measured."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import runner_process as runner
from loops import MIB, loop
from userblk.harness.machine import paths
from userblk.harness.machine.blockdev import identify
from userblk.harness.machine.filesystem import mounted_type
from userblk.harness.machine.subprocesses import Recorder
from userblk.harness.machine.teardown import Teardown, start_time
from userblk.harness.model.config import load_system
from userblk.harness.systems import BringUpError, absent, bring_up, fuse
from waiting import wait_until

LINE = (
    "userblk-passthrough: ready libfuse=3.17.2 protocol=7.41 writeback=on timeout=86400 splice=on clone-fd=off"
    " max-threads=1000 passthrough=off io-uring=off killpriv-v2=off acl=on handles=on ownership=caller\n"
)
WANTED = load_system("fuse").negotiated


def test_the_status_line_is_found_among_others() -> None:
    found = fuse.status("a warning\n" + LINE)
    assert (found["libfuse"], found["writeback"], found["max-threads"]) == ("3.17.2", "on", "1000")
    assert fuse.status("") == fuse.status("userblk-passthrough: not yet\n") == {}


def test_what_was_asked_for_and_granted_is_no_fallback() -> None:
    assert fuse.fallbacks(fuse.status(LINE), WANTED) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("writeback=on", "writeback=refused", "writeback was refused"),
        ("splice=on", "splice=off", "splice is off instead of on"),
        ("passthrough=off", "passthrough=on", "passthrough is on instead of off"),
        (" timeout=86400", "", "does not report timeout"),
        ("acl=on", "acl=refused", "acl was refused"),
    ],
)
def test_a_fallback_is_told(old: str, new: str, says: str) -> None:
    (line,) = fuse.fallbacks(fuse.status(LINE.replace(old, new)), WANTED)
    assert says in line


# ---- io_uring ---------------------------------------------------------------------


def test_the_kernel_is_asked_for_rings_and_told_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = tmp_path / "enable_uring"
    setting.write_text("N\n")
    monkeypatch.setattr(fuse, "RINGS", setting)
    teardown = Teardown()
    fuse.allow_rings(teardown)
    assert setting.read_text().strip() == "Y"
    teardown.unwind()
    assert setting.read_text().strip() == "N"


@pytest.mark.skipif(not Path("/sys/module/fuse").exists(), reason="this kernel has no FUSE")
def test_a_kernel_without_rings_leaves_the_system_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse, "RINGS", tmp_path / "none")
    for name in ("fuse-uring", "nullfs-uring"):
        (reason,) = absent(load_system(name))
        assert "has no FUSE over io_uring" in reason
    assert absent(load_system("fuse")) == absent(load_system("fuse-clone-fd")) == []


# ---- userblk-fuse-disk --------------------------------------------------------------

AREA = 16 * MIB
PROGRAM = paths.HOST_BUILD / "fuse-disk/userblk-fuse-disk"


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM.name} is not built; run: make fuse-disk")
    if not shutil.which("fio"):
        pytest.skip("fio is not installed")
    (tmp_path / "image").mkdir()
    with loop(tmp_path / "image", runner.SIZE) as path:
        yield path


def test_a_file_is_null_and_nothing_else() -> None:
    system = load_system("fuse-null")
    assert (system.kind, system.device, system.threads, system.uses_device) == ("fuse-disk", "null", 16, False)
    assert (system.queue, system.parameters) == ({}, {})


def test_a_device_is_served_as_a_file(device: str, tmp_path: Path) -> None:
    recorder, build = Recorder(tmp_path / "commands"), str(paths.HOST_BUILD)
    with bring_up(load_system("fuse-null"), identify(device), AREA, build, recorder, Teardown()) as running:
        assert running.file and running.target == str(running.file)
        assert recorder.records[0]["argv"] == [
            "setpriv", "--pdeathsig", "TERM", "--",
            str(PROGRAM), "--max-threads=16", "--clone-fd", running.target, "null", f"size={AREA}",
        ]  # fmt: skip
        assert running.file.stat().st_size == AREA and running.problems() == []
        assert mounted_type(running.file) == "fuse.userblk-fuse-disk"
        assert running.settings["threads"] == 16 and running.backing is None
        assert running.server and not running.server_died()
    assert not running.file.exists() and not start_time(running.server)


def test_a_server_that_dies_is_noticed(device: str, tmp_path: Path) -> None:
    recorder, build = Recorder(tmp_path / "commands"), str(paths.HOST_BUILD)
    with bring_up(load_system("fuse-null"), identify(device), AREA, build, recorder, Teardown()) as running:
        os.kill(running.server, signal.SIGKILL)
        wait_until("the death is noticed", running.server_died)
        with pytest.raises(OSError) as caught:
            os.open(running.target, os.O_RDONLY)
        # The first, of the last thread's end; the second, of the requests under way then.
        assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    assert running.file and not os.path.lexists(running.file)


def test_a_server_of_another_size_is_refused(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file system is mounted there."""
    script = tmp_path / "fuse-disk/userblk-fuse-disk"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {PROGRAM} "$1" "$2" "$3" null size=1M\n')
    script.chmod(0o755)
    recorder = Recorder(tmp_path / "commands")
    with pytest.raises(BringUpError, match=f"has 1048576 bytes, not {AREA}"):
        with bring_up(load_system("fuse-null"), identify(device), AREA, str(tmp_path), recorder, Teardown()):
            pass


def test_it_is_measured_without_a_block_device(device: str, tmp_path: Path) -> None:
    workloads = ["read-1j-16d-32k", "write-4j-16d-4k"]
    plan = runner.plan_for(device, tmp_path / "c", suite="buse-null", systems=("fuse-null",), workloads=workloads)
    code, events, err = runner.finish(runner.start(tmp_path / "c"))
    assert (code, err) == (0, "") and events[-1]["done"] == len(plan.entries) == 2
    for summary in runner.summaries(tmp_path / "c").values():
        assert summary["valid"], summary["invalid"]
        used, settings, metrics = summary["device_used"], summary["settings"], summary["metrics"]
        assert isinstance(used, dict) and isinstance(settings, dict) and isinstance(metrics, dict)
        assert used["size"] == settings["area_bytes"] == runner.SIZE and used["path"].endswith("/disk")
        assert settings["negotiated"]["parallel-writes"] == "on"
        assert metrics["throughput_mbps"] > 0 and metrics["server_cpu_percent"] > 0
        assert summary["device_io"] is None and summary["backing_io"] is None
