# SPDX-License-Identifier: BSD-3-Clause
"""Systems that are commands only: brought up and torn down on this machine, with servers of a few words."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from loops import MIB, loop
from userblk.harness.machine import filesystem, teardown
from userblk.harness.machine.blockdev import identify
from userblk.harness.machine.interrupt import Interrupted
from userblk.harness.machine.subprocesses import CommandError, Process, Recorder
from userblk.harness.machine.teardown import Teardown, made_as, start_time
from userblk.harness.model.config import Requires, SystemConfig, load_system
from userblk.harness.systems import BringUpError, absent, base, bring_up, command, modules
from waiting import wait_until

SIZE = 64 * MIB
AREA = 16 * MIB


@pytest.fixture
def own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where what is up is kept: of this test alone."""
    directory = tmp_path / "run"
    directory.mkdir()
    for module in (teardown, filesystem, base):
        monkeypatch.setattr(module, "RUN", directory)
    return directory


@pytest.fixture
def device(tmp_path: Path, own_run: Path) -> Iterator[str]:
    (tmp_path / "image").mkdir()
    with loop(tmp_path / "image", SIZE) as path:
        yield path
    assert list(own_run.iterdir()) == [] == attached(own_run)


def system(script: str, disk: str, **changes: object) -> SystemConfig:
    options: dict[str, object] = {"device": "null", "server": ["sh", "-c", script], "disk": disk}
    return SystemConfig(name="made-up", kind="command", **(options | changes))  # type: ignore[arg-type]


def attached(directory: Path) -> list[str]:
    """The loop devices over files below a directory."""
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # just detached
            if path.read_text().startswith(f"{directory}/"):
                found.append(f"/dev/{path.parent.parent.name}")
    return found


def test_a_disk_that_the_server_names(device: str, own_run: Path, tmp_path: Path) -> None:
    script = "truncate -s {size} {directory}/f && losetup --find --show {directory}/f && exec sleep 1000"
    config = system(script, "output", stop=["losetup", "--detach", "{disk}"])
    recorder = Recorder(tmp_path / "commands")
    with bring_up(config, identify(device), AREA, "", recorder, Teardown()) as running:
        assert running.used.size == AREA and running.used.path.startswith("/dev/loop")
        assert running.server and not running.server_died() and running.backing is None
        server = running.server
        assert attached(own_run) == [running.used.path]
        (journal,) = own_run.glob("journal-*.json")
        steps = dict(teardown.noted(journal)[1])
        made = made_as(Path("/sys/class/block", Path(running.used.path).name))
        assert steps["stop_by_command"]["made"] == made and "stop_named" not in steps
    assert attached(own_run) == [] and not start_time(server)


DAEMON = "truncate -s {size} {directory}/f && losetup --find --show {directory}/f"  # which ends: the kernel serves


@pytest.mark.parametrize("named", [True, False])
def test_a_disk_that_was_named_to_nobody(
    device: str, own_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """A server that makes its disk and leaves, and an interrupt before its name was read, or was there to read."""
    recorder = Recorder(tmp_path / "commands")

    def interrupted(what: str, condition: Callable[[], bool], server: Process | None = None) -> None:
        wait_until("it has a disk", lambda: attached(own_run))
        if named:
            wait_until("it has ended", lambda: recorder.processes[0].poll() is not None)
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(command, "await_up", interrupted)
    script = DAEMON if named else f"trap 'ended=1' TERM; d=$({DAEMON}); sleep 1; echo $d"
    config = system(script, "output", stop=["losetup", "--detach", "{disk}"])
    with pytest.raises(Interrupted):
        with bring_up(config, identify(device), AREA, "", recorder, Teardown()):
            pass
    assert attached(own_run) == []


def test_a_disk_that_is_somebody_elses_by_now_is_not_stopped(device: str, tmp_path: Path) -> None:
    """The runner was killed, its daemon ended, and another disk of that name came."""
    argv = json.dumps(["touch", str(tmp_path / "stopped")])
    command.stop_by_command(argv=argv, disk=device, made=made_as(Path("/sys/class/block", Path(device).name)) + 1)
    assert not (tmp_path / "stopped").exists()


def test_a_file_that_the_server_shows(device: str, own_run: Path, tmp_path: Path) -> None:
    script = "mount -t tmpfs none {mount} && truncate -s {size} {mount}/file && exec sleep 1000"
    recorder = Recorder(tmp_path / "commands")
    config = system(script, "loop", file="{mount}/file")
    with bring_up(config, identify(device), AREA, "", recorder, Teardown()) as running:
        fd = os.open(running.used.path, os.O_RDWR)
        os.pwrite(fd, b"data", 4096)
        os.fsync(fd)
        os.close(fd)
        (mount,) = own_run.glob("m-*/ext4")
        assert (mount / "file").read_bytes()[4096:4100] == b"data"
    assert str(mount) not in Path("/proc/self/mountinfo").read_text()


def test_a_server_that_fails_is_told(device: str, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "commands")
    config = system("echo no bucket >&2; exit 3", "loop", file="{mount}/file")
    with pytest.raises(CommandError, match="exit code 3: no bucket"):
        with bring_up(config, identify(device), AREA, "", recorder, Teardown()):
            pass


def test_a_disk_of_another_size_is_refused(device: str, tmp_path: Path) -> None:
    script = "mount -t tmpfs none {mount} && truncate -s 1M {mount}/file && exec sleep 1000"
    recorder = Recorder(tmp_path / "commands")
    config = system(script, "loop", file="{mount}/file")
    with pytest.raises(BringUpError, match=f"has 1048576 bytes, not {AREA}"):
        with bring_up(config, identify(device), AREA, "", recorder, Teardown()):
            pass


def test_what_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = Requires(programs=["sh", "no-such-program"], modules=["no_such_module"], environment=["NO_SUCH_NAME"])
    config = system("", "output", requires=needs)
    assert absent(config) == [
        "no-such-program is not installed",
        "the kernel has no no_such_module",
        "NO_SUCH_NAME is not set in the environment",
    ]
    monkeypatch.setenv("NO_SUCH_NAME", "x")
    assert len(absent(config)) == 2 and modules(config) == ("no_such_module",)
    assert absent(load_system("nbdkit")) == [] and modules(load_system("nbdkit")) == ("nbd",)
