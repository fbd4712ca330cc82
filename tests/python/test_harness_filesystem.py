# SPDX-License-Identifier: BSD-3-Clause
"""The ext4 of a run and its memory, on a real loop device and in a real control group."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from loops import LIMIT, MIB, loop
from userblk.harness.engines.flow import prepare_by
from userblk.harness.machine import filesystem, teardown
from userblk.harness.machine.blockdev import BlockDevice, identify
from userblk.harness.machine.filesystem import FileSystemError, limit_memory, make_ext4, mount_ext4, mounted_type
from userblk.harness.machine.mounts import Mount, mounts_of
from userblk.harness.machine.subprocesses import CommandError, Process, Recorder
from userblk.harness.machine.teardown import Teardown, noted, recover
from userblk.harness.systems import Running
from waiting import wait_until

SIZE = 64 * MIB


@pytest.fixture
def image(tmp_path: Path) -> Path:
    (tmp_path / "image").mkdir()
    return tmp_path / "image"


def test_mounts_are_told_whatever_their_names(tmp_path: Path) -> None:
    point = tmp_path / "a b\\c"
    point.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "", point], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("needs root")
    try:
        (found,) = (mount for mount in mounts_of() if mount.point == str(point))
        assert (found.kind, found.number) == ("tmpfs", point.stat().st_dev) and "size=1024k" in found.options
        assert mounted_type(point) == "tmpfs"
    finally:
        subprocess.run(["umount", point], check=True)


def test_made_mounted_and_gone(image: Path, tmp_path: Path) -> None:
    with loop(image, 2 * SIZE) as path:
        device, recorder, undo = identify(path), Recorder(tmp_path / "r"), Teardown()
        try:
            found = make_ext4(device, SIZE, recorder)
            assert found["file_system_bytes"] == SIZE and "nodiscard" in str(found["mkfs"])
            point, _ = filesystem.mount_points(undo)
            undo.push("unmount", path=str(point))
            mount_ext4(device, point, recorder)
            assert mounted_type(point) == "ext4"
            status = os.statvfs(point)
            assert SIZE // 2 < status.f_blocks * status.f_frsize < SIZE  # not the whole device
            assert filesystem.ext4_errors(device) == 0
            with pytest.raises(CommandError, match=r"mounted|in use"):
                make_ext4(device, SIZE, recorder)  # a mounted one is never made again
        finally:
            undo.unwind()
        assert mounted_type(point) == "" and not point.parent.exists() and not undo.journal.exists()


def test_a_mount_of_something_else_is_told(image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with loop(image, SIZE) as path:
        recorder = Recorder(tmp_path / "r")
        monkeypatch.setattr(recorder, "run", lambda argv, timeout: "")  # a mount that did nothing
        with pytest.raises(FileSystemError, match="is not the ext4 of"):
            mount_ext4(identify(path), tmp_path, recorder)


def test_a_directory_that_holds_something_is_never_emptied(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    with pytest.raises(OSError, match="not empty"):
        filesystem.remove_directory(str(precious))
    assert (precious / "file").exists()
    filesystem.remove_directory(str(tmp_path / "none"))
    filesystem.unmount(str(tmp_path))  # nothing is mounted there


def test_what_a_killed_runner_mounted_is_unmounted(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teardown, "RUN", tmp_path / "run")
    with loop(image, SIZE) as path:
        code = (
            "import os, signal, sys; from pathlib import Path\n"
            "from userblk.harness.machine import filesystem, teardown\n"
            "from userblk.harness.machine.blockdev import identify\n"
            "from userblk.harness.machine.subprocesses import Recorder\n"
            "teardown.RUN = filesystem.RUN = Path(sys.argv[1]); t = teardown.Teardown()\n"
            "device, recorder = identify(sys.argv[2]), Recorder(Path(sys.argv[3]))\n"
            "filesystem.make_ext4(device, 64 << 20, recorder); point, _ = filesystem.mount_points(t)\n"
            "filesystem.limit_memory(1 << 30, False, t)\n"
            "t.push('unmount', path=str(point)); filesystem.mount_ext4(device, point, recorder)\n"
            "print(point, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        argv = [sys.executable, "-c", code, str(tmp_path / "run"), path, str(tmp_path / "r")]
        killed = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT, check=False)
        point = Path(killed.stdout.strip())
        assert mounted_type(point) == "ext4", killed.stderr
        (journal,) = (tmp_path / "run").glob("journal-*")
        (group,) = (str(a["path"]) for name, a in noted(journal)[1] if name == "remove_cgroup")
        assert Path(group).is_dir()
        assert len(recover()) == 1
        assert mounted_type(point) == "" and not point.parent.exists() and not Path(group).exists()


def test_memory_is_limited() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    undo = Teardown()
    try:
        try:
            memory = limit_memory(64 * MIB, False, undo)
        except FileSystemError as error:
            pytest.skip(f"kernel: {error}")
        assert memory.cgroup is not None and memory.problems() == []
        # It waits until it is in the group.
        code = "import sys; sys.stdin.read(1); x = bytearray(256 << 20); x[::4096] = b'x' * len(x[::4096])"
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
            memory.add(process.pid)
            process.communicate(b"g", timeout=LIMIT)
        assert process.returncode == -9
        assert "were not enough" in memory.problems()[0]
        found = memory.settings()
        assert found["memory_limit"] == "cgroup" and found["memory_bytes"] == 64 * MIB
        memory.add(process.pid)  # it has ended: no error
    finally:
        undo.unwind()
    assert not memory.cgroup.exists()


def test_what_a_command_starts_at_once_is_limited_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even before this process goes on: it was put into the group by then, without its children."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    spawn, groups = Recorder.spawn, tmp_path / "groups"

    def later(recorder: Recorder, argv: Sequence[str], **options: Any) -> Process:
        process = spawn(recorder, argv, **options)
        wait_until("it has a child", groups.exists)
        return process

    monkeypatch.setattr(Recorder, "spawn", later)
    show = "cat /proc/self/cgroup > $0.new; mv $0.new $0"
    recorder, undo = Recorder(tmp_path / "r"), Teardown()
    try:
        try:
            memory = limit_memory(64 * MIB, False, undo)
        except FileSystemError as error:
            pytest.skip(f"kernel: {error}")
        assert memory.cgroup is not None
        none = BlockDevice("/dev/none", "none", "none", 0, 0, 512, False, "")
        argv = ["env", "sh", "-c", f"({show}) & wait", str(groups)]
        process = prepare_by(argv, recorder, memory, Running(none), LIMIT)
        assert f"/{memory.cgroup.name}\n" in groups.read_text()
        recorded = process.record["argv"]
        assert process.record["name"] == "env" and isinstance(recorded, list) and recorded[-len(argv) :] == argv
    finally:
        undo.unwind()


def test_what_a_container_leaves(tmp_path: Path) -> None:
    """It has less memory than its machine, as its control group says, or one above that."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    code = "from userblk.harness.machine import filesystem; print(filesystem.left_by_groups())"
    recorder, undo = Recorder(tmp_path / "r"), Teardown()
    try:
        try:
            memory = limit_memory(1 << 30, False, undo)
        except FileSystemError as error:
            pytest.skip(f"kernel: {error}")
        left = int(recorder.run([*memory.joined, sys.executable, "-c", code], timeout=LIMIT))
        assert 1 << 29 < left < 1 << 30
        assert memory.cgroup is not None
        undo.push("remove_cgroup", path=str(memory.cgroup / "below"))
        (memory.cgroup / "below").mkdir()
        below = dataclasses.replace(memory, cgroup=memory.cgroup / "below")
        left = int(recorder.run([*below.joined, sys.executable, "-c", code], timeout=LIMIT))
        assert 1 << 29 < left < 1 << 30
    finally:
        undo.unwind()


def test_memory_of_a_kernel_without_control_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is empty, where none is mounted, or is not there."""

    def missing(file: Path) -> list[str]:
        raise FileNotFoundError(file)

    for lines in (lambda file: [""], missing):
        monkeypatch.setattr(filesystem, "lines_of", lines)
        assert filesystem.left_by_groups() is None


def test_a_group_of_memory_and_another_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As version 1 mounts them together."""
    group = tmp_path / "mine"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text("1000\n")
    (group / "memory.usage_in_bytes").write_text("700\n")
    (group / "memory.stat").write_text("total_active_file 100\n")
    mount = Mount(str(tmp_path), "cgroup", "cgroup", 0, ("rw", "cpu", "memory"))
    monkeypatch.setattr(filesystem, "mounts_of", lambda: [mount])
    monkeypatch.setattr(filesystem, "lines_of", lambda file: ["2:cpu,memory:/mine", "0::/other"])
    assert filesystem.left_by_groups() == 400


def test_the_guest_is_its_own_limit() -> None:
    undo = Teardown()
    memory = limit_memory(64 * MIB, True, undo)
    assert memory.cgroup is None and memory.settings()["memory_limit"] == "machine" and not undo.steps
    memory.add(os.getpid())
    assert memory.problems() == []
