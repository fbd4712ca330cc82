# SPDX-License-Identifier: BSD-3-Clause
"""What was brought up is undone: in reverse, whatever fails, and even after a SIGKILL."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from interrupted import interrupts, spawn_and_interrupt
from loops import LIMIT, loop, run, small_tmpfs
from userblk.harness.engines.flow import prepare_by
from userblk.harness.machine import filesystem, teardown
from userblk.harness.machine.blockdev import BlockDevice, identify
from userblk.harness.machine.durable import write_json
from userblk.harness.machine.filesystem import Memory
from userblk.harness.machine.interrupt import Interrupted, held
from userblk.harness.machine.prepare import VM, dirty_limits, limit_dirty
from userblk.harness.machine.subprocesses import CommandError, Recorder
from userblk.harness.machine.teardown import Teardown, TeardownError, noted, recover, settings_put_back, start_time
from userblk.harness.model.config import load_system
from userblk.harness.running.runner import mark_done
from userblk.harness.stores.servers import LocalStore
from userblk.harness.systems import base, nfs, ublk, vduse
from userblk.harness.systems import loop as loop_system
from userblk.harness.systems.base import BringUpError, Context, Running
from userblk.harness.systems.command import detach_at_teardown
from waiting import wait_until

NO_DEVICE = BlockDevice("/dev/none", "none", "none", 0, 0, 512, False, "")


@pytest.fixture(autouse=True)
def own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teardown, "RUN", tmp_path / "run")


def test_all_steps_are_taken_in_reverse(tmp_path: Path) -> None:
    stack = Teardown()
    setting = tmp_path / "setting"
    setting.write_text("0")
    stack.push("restore_setting", path=str(setting), value="first")
    stack.push("restore_setting", path=str(tmp_path), value="this is a directory")
    mark = stack.mark()
    stack.push("restore_setting", path=str(setting), value="last")
    stack.unwind(mark)
    assert setting.read_text() == "last"
    with pytest.raises(TeardownError, match="Is a directory"):
        stack.unwind()
    assert setting.read_text() == "first"  # the failed step did not keep the others from being taken
    assert [arguments["value"] for _, arguments in noted(stack.journal)[1]] == ["this is a directory"]
    with pytest.raises(TeardownError, match="Is a directory"):
        stack.unwind()  # it stays noted


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_full_run_keeps_no_step_from_being_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal then tells of steps that were taken, too, which does no harm."""
    settings = [tmp_path / "first", tmp_path / "last"]
    with small_tmpfs(tmp_path, "16k") as small:
        monkeypatch.setattr(teardown, "RUN", small)
        stack = Teardown()
        stack.push("restore_setting", path=str(tmp_path), value="a directory, which fails")
        for setting in settings:
            setting.write_text("changed")
            stack.push("restore_setting", path=str(setting), value="old")
        with contextlib.suppress(OSError):
            (small / "full").write_bytes(bytes(1 << 20))
        with pytest.raises(TeardownError, match=f"{small}: No space left on device; make room there"):
            stack.unwind(1)
        assert [setting.read_text() for setting in settings] == ["old", "old"]
        with pytest.raises(TeardownError, match=f"{small}: No space left on device"):
            stack.push("restore_setting", path=str(tmp_path), value="more")
        left_by_a_killed_runner(stack)
        with pytest.raises(TeardownError, match=f"{small}: No space left on device; .*, or remove {small}/journal"):
            recover()
        (small / "full").unlink()
        with pytest.raises(TeardownError, match="Is a directory: .*; fix that"):
            recover()


def test_what_cannot_be_torn_down_stops_the_next_campaign_until_it_can(tmp_path: Path) -> None:
    path = tmp_path / "setting"
    path.mkdir()
    steps = [["restore_setting", {"path": str(path), "value": "old"}]]
    Teardown()  # makes the directory
    journal = teardown.RUN / f"journal-{1 << 30}-1.json"  # there is no such process
    other = teardown.RUN / f"journal-{(1 << 30) + 1}-1.json"
    journal.write_text(json.dumps(steps))
    setting = tmp_path / "other"
    setting.write_text("changed")
    other.write_text(json.dumps([["restore_setting", {"path": str(setting), "value": "original"}]]))
    for _ in range(2):
        with pytest.raises(TeardownError, match=f"Is a directory.*; fix that, or remove {journal}"):
            recover()
    assert setting.read_text() == "original" and not other.exists()
    path.rmdir()
    path.write_text("changed")
    assert len(recover()) == 1 and path.read_text() == "old" and not journal.exists()


def test_what_another_version_noted_is_told(tmp_path: Path) -> None:
    """The steps that are known are taken, and the others stay noted."""
    setting = tmp_path / "setting"
    setting.write_text("changed")
    steps = [["restore_setting", {"path": str(setting), "value": "old"}], ["remove_other", {"disk": "/dev/other"}]]
    Teardown()  # makes the directory
    journal = teardown.RUN / f"journal-{1 << 30}-1.json"
    journal.write_text(json.dumps(steps))
    said = f"remove_other /dev/other: noted by another version of userblk; .*, or remove {journal}"
    with pytest.raises(TeardownError, match=said):
        recover()
    assert setting.read_text() == "old" and noted(journal)[1] == [tuple(steps[1])]


def test_a_journal_that_is_none_is_named_with_its_remedy() -> None:
    """As after a loss of power, on a /run that outlives it."""
    Teardown()  # makes the directory
    journal = teardown.RUN / f"journal-{1 << 30}-1.json"
    for text in ("", "5", "[[1]]", '{"steps": []}'):
        journal.write_text(text)
        for look in (recover, settings_put_back):
            with pytest.raises(TeardownError, match=f"^{journal}: cannot be read: .*, and remove it$"):
                look()


def test_only_files_are_removed_of_what_was_left_before_a_restart(tmp_path: Path) -> None:
    """The rest went with the machine; disks, processes and settings of those names are somebody else's by now."""
    setting, tree = tmp_path / "setting", tmp_path / "tree"
    setting.write_text("of this boot")
    tree.mkdir()
    left = Teardown()
    left.boot = "another"
    left.push("remove_tree", path=str(tree))
    left.push("restore_setting", path=str(setting), value="of the earlier boot")
    assert settings_put_back() == {}
    left_by_a_killed_runner(left)
    (line,) = recover()
    assert line.startswith("tore down 1 things") and line.endswith("before the machine was started again")
    assert setting.read_text() == "of this boot" and not tree.exists()
    left.push("restore_setting", path=str(setting), value="of the earlier boot")
    left_by_a_killed_runner(left)
    assert len(recover()) == 1 and recover() == []


def test_a_killed_runner_is_recovered(tmp_path: Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("changed")
    code = (
        "import os, signal, subprocess, sys; from pathlib import Path; from userblk.harness.machine import teardown\n"
        "teardown.RUN = Path(sys.argv[1]); t = teardown.Teardown()\n"
        "t.push('restore_setting', path=sys.argv[2], value='original')\n"
        "child = subprocess.Popen(['sleep', '300'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "t.push('end_process', pid=child.pid, started=teardown.start_time(child.pid), name='sleep')\n"
        "print(child.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    argv = [sys.executable, "-c", code, str(teardown.RUN), str(setting)]
    killed = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL
    child = int(killed.stdout)
    assert start_time(child)
    living = Teardown()
    living.push("restore_setting", path=str(setting), value="of the living")
    assert len(recover()) == 1
    assert start_time(child) == 0
    assert setting.read_text() == "original"  # and the journal of the one that lives was left alone
    assert recover() == []


@pytest.mark.parametrize(
    "code",
    [
        "from userblk.harness.machine import interrupt; interrupt.install(); sys.exit(run())",
        "from userblk.lab.cli import main; main(lambda arguments: run())",
    ],
)
def test_children_leave_a_status_where_sigchld_was_ignored(code: str) -> None:
    """As by a scheduler that does not wait for what it starts: a fio that failed ended with 0."""
    first = "import signal, subprocess, sys\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    first += "def run(): return subprocess.run([sys.executable, '-c', 'raise SystemExit(7)']).returncode\n"
    assert subprocess.run([sys.executable, "-c", first + code], timeout=60).returncode == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="changing sysctls needs root")
def test_two_campaigns_put_back_what_the_machine_had() -> None:
    """The second finds the limits of the first, and outlasts it."""
    limits = dirty_limits()
    first, second = Teardown(), Teardown()
    second.journal = second.journal.with_name("journal-1-0.json")  # of another process
    try:
        limit_dirty(64 << 20, 32 << 20, 0, first)
        limit_dirty(128 << 20, 64 << 20, 0, second)
        assert dirty_limits()["dirty_bytes"] == 128 << 20
    finally:
        first.unwind()
        second.unwind()
    assert dirty_limits() == limits


@pytest.mark.skipif(os.geteuid() != 0, reason="changing sysctls needs root")
def test_a_campaign_of_an_older_version_is_put_back_as_well() -> None:
    """Its runner lives, has limits of its own, and notes what the machine had by a step of another name."""
    before, stack = dirty_limits(), Teardown()
    settings = {}
    for name in ("dirty_background", "dirty"):
        kind = f"{name}_bytes" if before[f"{name}_bytes"] else f"{name}_ratio"
        settings[str(VM / kind)] = str(before[kind])
        (VM / f"{name}_bytes").write_text(str(64 << 20))
    steps = [["restore_setting", {"path": path, "value": value}] for path, value in settings.items()]
    (teardown.RUN / f"journal-{os.getppid()}-{start_time(os.getppid())}.json").write_text(json.dumps(steps))
    try:
        limit_dirty(128 << 20, 32 << 20, 0, stack)
        stack.unwind()
        assert dirty_limits() == before
    finally:
        for path, value in settings.items():
            Path(path).write_text(value)
    assert dirty_limits() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="changing sysctls needs root")
@pytest.mark.parametrize("name", ["dirty_ratio", "dirty_background_ratio", "dirty_bytes", "dirty_background_bytes"])
def test_dirty_limits_that_were_no_default_are_put_back(name: str) -> None:
    """A ratio of 0, which the kernel takes for no change while the limit is in bytes; and bytes."""
    before, stack = dirty_limits(), Teardown()
    (VM / name).write_text("0" if "ratio" in name else str(48 << 20))
    try:
        limits = dirty_limits()
        limit_dirty(64 << 20, 32 << 20, 0, stack)
        stack.unwind()
        assert dirty_limits() == limits
    finally:
        for other, value in before.items():
            if value:  # of two that are one limit the other is 0
                (VM / other).write_text(str(value))
    assert dirty_limits() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root and loop devices")
@pytest.mark.parametrize("by_the_next", [False, True])
def test_the_queue_of_a_disk_that_stays_is_put_back(tmp_path: Path, by_the_next: bool) -> None:
    """The kernel keeps what a loop device had for the next one that gets its number."""
    wanted = {"nomerges": "2", "max_sectors_kb": "64", "read_ahead_kb": "512"}

    def queue(disk: str) -> dict[str, str]:
        return {name: Path("/sys/block", disk, "queue", name).read_text().strip() for name in wanted}

    (tmp_path / "images").mkdir()
    with loop(tmp_path / "images", 16 << 20) as below:
        with loop(tmp_path / "images", 16 << 20):  # so that the kernel has one
            pass
        before = {path.name: queue(path.name) for path in Path("/sys/block").glob("loop*")}
        stack, config = Teardown(), dataclasses.replace(load_system("loop"), queue=wanted)
        context = Context(config, identify(below), 16 << 20, "b", Recorder(tmp_path / "r"), stack, ExitStack())
        try:
            disk = loop_system.up(context).used.disk
            assert queue(disk) == wanted != before[disk]
            if by_the_next:
                stack.journal = stack.journal.rename(stack.journal.with_name("journal-1-0.json"))
                assert recover() == ["tore down 4 things that runner 1 had left"]
                stack.steps = []
        finally:
            stack.unwind()
        assert queue(disk) == before[disk]


def test_who_cannot_keep_a_journal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(TeardownError, match="cannot be written; run as root"):
        Teardown()


def test_a_runner_that_ends_while_others_look_is_no_killed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ending = Teardown()
    ending.push("restore_setting", path=str(tmp_path / "none"), value="x")

    def ends(pid: int) -> int:
        ending.unwind()
        return 0

    monkeypatch.setattr(teardown, "start_time", ends)
    assert recover() == []


def test_two_runners_do_not_tear_down_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(teardown.UNDO, "restore_setting", lambda **_: time.sleep(0.5))  # type: ignore[misc]
    teardown.RUN.mkdir()
    (teardown.RUN / f"journal-{1 << 30}-1.json").write_text('[["restore_setting", {}]]')  # there is no such process
    with ThreadPoolExecutor(2) as pool:
        reported = pool.map(lambda _: recover(), range(2))
        assert sorted(map(len, reported)) == [0, 1]


def test_a_pid_that_was_given_to_another_process_is_left_alone() -> None:
    other = subprocess.Popen(["sleep", "300"])
    try:
        teardown.UNDO["end_process"](pid=other.pid, started=start_time(other.pid) + 1, name="other")
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_process_that_ended_before_it_was_noted_needs_nothing() -> None:
    ended = subprocess.Popen(["true"])
    wait_until("true ends", lambda: not start_time(ended.pid))
    started = start_time(ended.pid)
    teardown.UNDO["end_process"](pid=ended.pid, started=started, name="true")  # a zombie still
    ended.wait()
    teardown.UNDO["end_process"](pid=ended.pid, started=started, name="true")


LEADER = """
(trap 'sleep 1.5; touch "$0.ended"; exit' TERM; touch "$0"; while :; do sleep 0.1; done) &
trap 'exit 0' TERM
while :; do sleep 0.1; done
"""


@pytest.mark.parametrize("recovered", [False, True])
def test_the_end_of_a_command_is_that_of_its_process_group(recovered: bool, tmp_path: Path) -> None:
    """What it has started does I/O, and may take longer than itself."""
    ready = tmp_path / "ready"
    process = Recorder(tmp_path).spawn(["sh", "-c", LEADER, str(ready)])
    wait_until("the group runs", ready.exists)
    if recovered:
        teardown.UNDO["end_process"](pid=process.pid, started=process.started, name="sh")
    else:
        process.end()
    assert ready.with_name("ready.ended").exists() and process.poll() is not None


def test_what_a_command_leaves_on_purpose_stays(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.run(["sh", "-c", f"sleep 300 & echo $! > {tmp_path}/pid"], timeout=60)
    server = int((tmp_path / "pid").read_text())
    assert start_time(server)
    os.kill(server, signal.SIGKILL)


def test_a_load_that_outlives_a_killed_runner_is_ended(tmp_path: Path) -> None:
    """The signal for the death of its parent may find it where it cannot end."""
    killed = Teardown()
    load = Recorder(tmp_path / "run", killed).spawn(["sleep", "1000"])
    killed.journal = killed.journal.rename(killed.journal.with_name("journal-1-1.json"))  # of a runner that is gone
    recover()
    assert load.wait(0)


def test_commands_are_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    assert recorder.run(["echo", "out"], timeout=20) == "out\n"
    with pytest.raises(CommandError, match="ls /no-such: exit code 2: .*cannot access"):
        recorder.run(["ls", "/no-such"], timeout=20)
    for number, name in ((9, "SIGKILL"), (40, "signal 40")):
        process = Recorder(tmp_path / name).spawn(["sh", "-c", f"echo bye >&2; kill -{number} $$"])
        assert process.wait(LIMIT) and process.fate() == f"sh: ended by {name}: bye"
    began = time.monotonic()
    with pytest.raises(CommandError, match="has not ended within 0 s"):
        recorder.run(["sleep", "3000"], timeout=0.2)
    assert time.monotonic() - began < 300
    recorder.save()
    assert [record["exit_code"] for record in recorder.records] == [0, 2, -signal.SIGTERM]
    assert (tmp_path / "commands/00-echo.out").read_text() == "out\n"
    assert "cannot access" in (tmp_path / "commands/01-ls.err").read_text()


def test_commands_do_not_get_what_users_set_for_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """make bench passes MAKEFLAGS on, with which a source tree was built otherwise, or not at all."""
    own = {"MAKEFLAGS": "-n", "PGPORT": "1", "TAR_OPTIONS": "-v", "MKE2FS_CONFIG": "/nosuch", "HERE": "yes"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    lines = Recorder(tmp_path).run(["env"], timeout=LIMIT).splitlines()
    assert own.keys() & {line.partition("=")[0] for line in lines} == {"HERE"}


def test_an_interrupt_waits_for_the_step() -> None:
    steps = []
    with interrupts():
        with pytest.raises(Interrupted) as reason, held():
            os.kill(os.getpid(), signal.SIGTERM)
            steps.append("done")
        assert steps == ["done"]
        assert reason.value.number == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)  # once is enough: teardown must not be interrupted
        steps.append("still here")
    assert steps == ["done", "still here"]


def started_by_run(recorder: Recorder) -> None:
    recorder.run(["sleep", "300"], timeout=LIMIT)


def started_by_spawn(recorder: Recorder) -> None:
    recorder.spawn(["sleep", "300"])


def started_to_prepare(recorder: Recorder) -> None:
    prepare_by(["sleep", "300"], recorder, Memory(None, 0), Running(NO_DEVICE), LIMIT)


def interrupted_child_ends(begin: Callable[[Recorder], None], recorder: Recorder) -> bool:
    with interrupts(), pytest.raises(Interrupted):
        begin(recorder)
    (process,) = recorder.processes
    ended = not start_time(process.pid)
    process.end()
    return ended


@pytest.mark.parametrize("begin", [started_by_spawn, started_by_run, started_to_prepare])
def test_an_interrupt_as_a_command_starts_leaves_no_child(
    begin: Callable[[Recorder], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Popen(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            os.kill(os.getpid(), signal.SIGINT)

    recorder = Recorder(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", Popen)
    assert interrupted_child_ends(begin, recorder)


@pytest.mark.parametrize("begin", [started_by_run, started_to_prepare])
def test_an_interrupt_once_a_command_has_started_leaves_no_child(
    begin: Callable[[Recorder], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path)
    spawn_and_interrupt(monkeypatch, "sleep")
    assert interrupted_child_ends(begin, recorder)


@pytest.mark.parametrize(
    "make",
    [base.scratch, filesystem.mount_points, lambda undo: LocalStore(base.RUN, 0, Recorder(base.RUN), undo)],
    ids=["scratch", "mount points", "store"],
)
def test_an_interrupt_as_a_directory_is_made_leaves_none(
    make: Callable[[Teardown], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not noted yet: nobody ever removed it."""
    mkdtemp, made = tempfile.mkdtemp, []

    def interrupted(**where: Any) -> str:
        made.append(mkdtemp(**where))
        os.kill(os.getpid(), signal.SIGINT)
        return str(made[0])

    undo = Teardown()
    for module in (base, filesystem):
        monkeypatch.setattr(module, "RUN", tmp_path)
    monkeypatch.setattr(tempfile, "mkdtemp", interrupted)
    with interrupts(), pytest.raises(Interrupted):
        make(undo)
    undo.unwind()
    assert len(made) == 1 and not Path(made[0]).exists()


def test_what_is_replaced_is_kept_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/fio.json").write_text("{}")
    synced: list[tuple[str, bool]] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{fd}")).name, (tmp_path / "run/DONE").exists()))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    mark_done(tmp_path / "run")
    assert synced == [("fio.json", False), ("run", False), ("DONE.new", False), ("run", True)]
    plan = tmp_path / "plan.json"
    plan.write_text("old")
    synced.clear()
    write_json(plan, {"schema": 1})
    assert [name for name, _ in synced] == ["plan.json.new", tmp_path.name]
    assert json.loads(plan.read_text()) == {"schema": 1}


def test_other_users_pass_what_a_strict_umask_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL's server, which is not root, has its files below."""
    monkeypatch.setattr(teardown, "RUN", tmp_path / "run")
    before = os.umask(0o077)
    try:
        Teardown()
    finally:
        os.umask(before)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o755


def left_by_a_killed_runner(stack: Teardown) -> None:
    """Its journal becomes that of a process that there is not."""
    stack.journal.rename(stack.journal.with_name(f"journal-{1 << 30}-1.json"))
    stack.steps = []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root and loop devices")
def test_a_loop_device_that_is_somebody_elses_by_now_stays(tmp_path: Path) -> None:
    """The runner was killed, its device was detached, and the user's next one has the same number."""
    (tmp_path / "images").mkdir()
    with loop(tmp_path / "images", 1 << 20) as device:
        stack = Teardown()
        detach_at_teardown(device, stack)
        run("losetup", "--detach", device)
        run("losetup", device, str(tmp_path / "images/disk0"))
        left_by_a_killed_runner(stack)
        assert len(recover()) == 1
        assert Path("/sys/block", Path(device).name, "loop").exists()
        try:
            detach_at_teardown(device, stack)
            stack.unwind()
            assert not Path("/sys/block", Path(device).name, "loop").exists()
        finally:
            run("losetup", device, str(tmp_path / "images/disk0"))


def test_a_ublk_disk_that_is_somebody_elses_by_now_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of a disk whose server has ended by itself with the killed runner."""
    monkeypatch.setattr(ublk, "DEVICES", tmp_path)
    program, node = tmp_path / "userblk-ublk", tmp_path / "ublkc0"
    program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/said; rm {node}\n')
    program.chmod(0o755)
    node.symlink_to("/dev/null")
    stack = Teardown()
    for _ in range(2):
        stack.push("remove_ublk", program=str(program), number=0, character=ublk.character_of(0))
    node.unlink()
    node.symlink_to("/dev/zero")  # another device of that number
    left_by_a_killed_runner(stack)
    assert len(recover()) == 1
    assert not (tmp_path / "said").exists()
    stack.push("remove_ublk", program=str(program), number=0, character=ublk.character_of(0))
    stack.unwind()
    assert (tmp_path / "said").read_text() == "delete --force 0\n" and not node.is_symlink()


def test_an_nfs_server_that_is_somebody_elses_by_now_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nfs, "CONTROL", tmp_path)
    control = tmp_path / "threads"
    control.write_text("8\n")
    stack, ours = Teardown(), os.getpid()
    stack.push("stop_nfs_server", thread=ours, started=start_time(ours) - 1)
    left_by_a_killed_runner(stack)
    assert len(recover()) == 1 and nfs.threads() == 8
    stack.push("stop_nfs_server", thread=ours, started=start_time(ours))
    stack.unwind()
    assert nfs.threads() == 0


def test_the_thread_of_a_server_is_the_kernels(tmp_path: Path) -> None:
    """And no program that is called so."""
    if Path("/proc/2/comm").read_text() != "kthreadd\n":
        pytest.skip("kernel: its threads cannot be seen here")
    assert nfs.first_thread("kthreadd") == (2, start_time(2))
    code = "from pathlib import Path; Path('/proc/self/comm').write_text('nfsd'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline() == b"\n"
        assert nfs.first_thread()[0] != other.pid
        other.communicate(b"\n", timeout=LIMIT)


def kernel_of_vduse(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files, and the request to destroy a device, which it refuses as long as that is in use: once."""
    (directory / "control").touch()
    monkeypatch.setattr(vduse, "CONTROL", directory / "control")
    refusals = [OSError(errno.EBUSY, "in use")]

    def ioctl(control: object, request: int, name: bytes) -> int:
        assert request == vduse.VDUSE_DESTROY_DEV and len(name) == vduse.NAME_MAX
        if refusals:
            raise refusals.pop()
        (directory / name.rstrip(b"\0").decode()).unlink()
        return 0

    monkeypatch.setattr(fcntl, "ioctl", ioctl)


def test_a_vduse_device_goes_whose_server_ended_before_it_could(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server ends with a killed runner, and cannot remove it then, as the kernel's disk is still there."""
    kernel_of_vduse(tmp_path, monkeypatch)
    daemon, vdpa = tmp_path / "qemu-storage-daemon", tmp_path / "vdpa"
    # The last word is the file that says that it is ready.
    ready = f'for last; do :; done; sleep 0.2; touch "$last" {tmp_path}/is-ready'
    daemon.write_text(f"#!/bin/sh\ntouch {tmp_path}/{vduse.NAME}\n{ready}\nexec sleep 1000\n")
    vdpa.write_text(f"#!/bin/sh\ntest -e {tmp_path}/is-ready && echo refused >&2\nexit 1\n")
    for program in (daemon, vdpa):
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    stack = Teardown()
    context = Context(
        load_system("vduse-null"), NO_DEVICE, 1 << 20, "b", Recorder(tmp_path / "r"), stack, ExitStack()
    )  # fmt: skip
    with pytest.raises(CommandError, match="vdpa dev add.*refused"):  # asked when the server was ready
        vduse.up(context)
    with pytest.raises(BringUpError, match=f"{tmp_path}/{vduse.NAME} exists already"):
        vduse.up(context)
    stack.unwind()
    assert not (tmp_path / vduse.NAME).exists()
    stack.push("destroy_vduse", name=vduse.NAME)
    stack.unwind()  # nothing is left to do


NO_DIRECT_IO = """#!/bin/sh
for word; do
    shift
    if [ "$word" = --direct-io=on ]; then refused=yes; else set -- "$@" "$word"; fi
done
PATH=$REAL losetup "$@" && [ -z "$refused" ]
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root and loop devices")
def test_a_loop_device_without_direct_io_is_detached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """losetup has attached it when it finds that, and fails."""
    (tmp_path / "losetup").write_text(NO_DIRECT_IO)
    (tmp_path / "losetup").chmod(0o755)
    (tmp_path / "images").mkdir()

    def attached(below: str) -> list[str]:
        found = Path("/sys/block").glob("loop*/loop/backing_file")
        return [str(path) for path in found if path.read_text().strip() == below]

    with loop(tmp_path / "images", 1 << 20) as below:
        monkeypatch.setenv("REAL", os.environ["PATH"])
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        stack, config = Teardown(), load_system("loop")
        context = Context(config, identify(below), 1 << 20, "b", Recorder(tmp_path / "r"), stack, ExitStack())
        with pytest.raises(CommandError, match="losetup --direct-io=on"):
            loop_system.up(context)
        stack.unwind()
        assert attached(below) == []
        monkeypatch.setenv("PATH", os.environ["REAL"])
