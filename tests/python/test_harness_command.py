# SPDX-License-Identifier: BSD-3-Clause
"""Systems that are commands only: brought up and torn down on this machine, with servers of a few words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from loops import MIB, loop
from userblk.harness.machine import filesystem, teardown
from userblk.harness.machine.blockdev import identify
from userblk.harness.machine.subprocesses import CommandError, Recorder
from userblk.harness.machine.teardown import Teardown, start_time
from userblk.harness.model.config import Requires, SystemConfig, load_system
from userblk.harness.systems import BringUpError, absent, base, bring_up, modules

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
    assert attached(own_run) == [] and not start_time(server)


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
