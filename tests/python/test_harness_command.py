# SPDX-License-Identifier: BSD-3-Clause
"""Systems that are commands only: brought up and torn down on this machine, with servers of a few words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from loops import MIB, loop
from userblk.harness.blockdev import identify
from userblk.harness.commands import CommandError, Recorder
from userblk.harness.config import Requires, SystemConfig, load_system
from userblk.harness.systems import SystemError_, absent, bring_up, modules
from userblk.harness.teardown import RUN, Teardown, start_time

SIZE = 64 * MIB
AREA = 16 * MIB


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "image").mkdir()
    with loop(tmp_path / "image", SIZE) as path:
        yield path
    assert not list(RUN.glob("[ms]-*"))


def system(script: str, disk: str, **changes: object) -> SystemConfig:
    options: dict[str, object] = {"device": "null", "server": ["sh", "-c", script], "disk": disk}
    return SystemConfig(name="made-up", kind="command", **(options | changes))  # type: ignore[arg-type]


def attached() -> set[str]:
    return {path.parent.parent.name for path in Path("/sys/block").glob("loop*/loop/backing_file")}


def test_a_disk_that_the_server_names(device: str, tmp_path: Path) -> None:
    script = "truncate -s {size} {directory}/f && losetup --find --show {directory}/f && exec sleep 1000"
    config = system(script, "output", stop=["losetup", "--detach", "{disk}"])
    before = attached()
    recorder = Recorder(tmp_path / "commands")
    with bring_up(config, identify(device), AREA, "", recorder, Teardown()) as running:
        assert running.used.size == AREA and running.used.path.startswith("/dev/loop")
        assert running.server and not running.server_died() and running.backing is None
        server = running.server
        assert len(attached()) == len(before) + 1
    assert attached() == before and not start_time(server)


def test_a_file_that_the_server_shows(device: str, tmp_path: Path) -> None:
    script = "mount -t tmpfs none {mount} && truncate -s {size} {mount}/file && exec sleep 1000"
    before = attached()
    recorder = Recorder(tmp_path / "commands")
    config = system(script, "loop", file="{mount}/file")
    with bring_up(config, identify(device), AREA, "", recorder, Teardown()) as running:
        fd = os.open(running.used.path, os.O_RDWR)
        os.pwrite(fd, b"data", 4096)
        os.fsync(fd)
        os.close(fd)
        (mount,) = RUN.glob("m-*/ext4")
        assert (mount / "file").read_bytes()[4096:4100] == b"data"
    assert attached() == before and str(mount) not in Path("/proc/self/mountinfo").read_text()


def test_a_server_that_fails_is_told(device: str, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "commands")
    config = system("echo no bucket >&2; exit 3", "loop", file="{mount}/file")
    with pytest.raises(CommandError, match="exit code 3: no bucket"):
        with bring_up(config, identify(device), AREA, "", recorder, Teardown()):
            pass


def test_a_disk_of_another_size_is_refused(device: str, tmp_path: Path) -> None:
    script = "mount -t tmpfs none {mount} && truncate -s 1M {mount}/file && exec sleep 1000"
    before = attached()
    recorder = Recorder(tmp_path / "commands")
    config = system(script, "loop", file="{mount}/file")
    with pytest.raises(SystemError_, match=f"has 1048576 bytes, not {AREA}"):
        with bring_up(config, identify(device), AREA, "", recorder, Teardown()):
            pass
    assert attached() == before


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
