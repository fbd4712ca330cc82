# SPDX-License-Identifier: BSD-3-Clause
"""The runner beside another campaign: on the same device, on the machine, in a container."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from loops import LIMIT, loop
from runner_process import SIZE, finish, plan_for, read_until, start
from userblk.harness.machine import locks
from userblk.harness.machine.blockdev import identify
from userblk.harness.machine.safety import BESIDE, claimed


def test_a_second_campaign_on_the_same_device_is_refused(device: str, tmp_path: Path) -> None:
    plan_for(device, tmp_path / "first", runtime_s=30)
    plan_for(device, tmp_path / "second")
    runner = start(tmp_path / "first")
    try:
        read_until(runner, "entry-start")
        code, events, err = finish(start(tmp_path / "second"))
        assert (code, events) == (2, [])
        assert "in use by another campaign" in err or " is open in " in err
    finally:
        runner.send_signal(signal.SIGINT)
        finish(runner)


# With processes, a /run and a /dev of its own: of the first campaign only the kernel knows.
CONTAINER = """
mount -t tmpfs none /run && cp -a /dev/null /dev/urandom "$DEVICE" /run && mount --bind /run /dev &&
mount -t tmpfs none /run && exec "$@"
"""


def in_container(argv: list[str], device: str) -> list[str]:
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [*unshare, "env", f"DEVICE={device}", "sh", "-c", CONTAINER, "container", *argv]


def test_a_claimed_device_is_refused_in_a_container(device: str, tmp_path: Path) -> None:
    """Also while the campaign that claims it has it open for nothing: between two runs."""
    plan_for(device, tmp_path / "c", workloads=["rand-read-1th-4k"])
    argv = [sys.executable, "-m", "userblk.harness.running.runner", str(tmp_path / "c/plan.json")]
    inside = in_container(argv, device)
    with claimed(identify(device)):
        done = subprocess.run(inside, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        who = f"disk {Path(device).name} is in use by another campaign (pid {os.getpid()}); wait for its end"
        assert done.stderr == f"userblk: {device}: {who}\n"
    done = subprocess.run(inside, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("contained", [False, True])
def test_a_second_campaign_on_the_machine_is_refused(
    contained: bool, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another device, too: both would measure the other's CPU time, and one would put back its settings."""
    name = f"test-{tmp_path.name}-{os.getpid()}"
    code = (
        "import sys; from userblk.harness.machine import safety\n"
        "safety.MACHINE = sys.argv[1]\n"  # this test's own machine: others run beside it
        "from userblk.harness.running import runner; sys.exit(runner.main(sys.argv[2:]))"
    )

    def begin(campaign: str, container_of: str = "") -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", code, name, str(tmp_path / campaign / "plan.json")]
        if container_of:
            argv = in_container(argv, container_of)
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    monkeypatch.delenv(BESIDE)
    (tmp_path / "other").mkdir()
    with loop(tmp_path / "other", SIZE) as other:
        plan_for(device, tmp_path / "first", runtime_s=30)
        plan_for(other, tmp_path / "second", workloads=["rand-read-1th-4k"])
        runner = begin("first")
        try:
            read_until(runner, "entry-start")
            status, events, err = finish(begin("second", other if contained else ""))
            assert (status, events) == (2, [])
            who = f"(pid {runner.pid}, {tmp_path / 'first'})"
            assert err == (
                f"userblk: {tmp_path / 'second'}: another campaign {who} measures on this machine;"
                " wait for its end, then resume\n"
            )
        finally:
            runner.send_signal(signal.SIGINT)
            finish(runner)
        assert finish(begin("second", other if contained else ""))[0] == 0
        with locks.locked(name, ""):
            Path("/dev", locks.DIRECTORY, name).unlink(missing_ok=True)


def test_locks_where_devtmpfs_may_not_be_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise PermissionError

    monkeypatch.setattr(locks, "_devtmpfs", refused)
    monkeypatch.setattr(locks, "RUN", tmp_path / "run")
    with locks.locked("one", "pid 1"):
        with pytest.raises(locks.Held, match="^pid 1$"), locks.locked("one", "pid 2"):
            pass
        with locks.locked("two", "pid 2"):
            pass
    assert (tmp_path / "run/one").read_text() == "pid 1\n"
    with locks.locked("one", os.fsdecode(b"pid 3, \xff")):  # a campaign may be called so
        pass
