# SPDX-License-Identifier: BSD-3-Clause
"""userblk-ublk@.service without a systemd: what its commands do to disks, and to what is on them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from guest import LIMIT, MIB, NVME, run
from guest_ublk import NEEDS_UBLK, UBLK, Add, assert_kept, disks, info, kill, ublk
from ublk_unit import unit_command
from waiting import wait_until

pytestmark = NEEDS_UBLK


def unit_words() -> list[str]:
    """What it starts, without the device."""
    words = unit_command("ExecStart", UBLK)
    assert words.pop() == "$USERBLK_DISK"
    return words


def users(disk: str) -> list[str]:
    """Volumes and swap on the disk."""
    volumes = [path.name for path in Path("/sys/block", Path(disk).name, "holders").iterdir()]
    return volumes + [line for line in Path("/proc/swaps").read_text().splitlines() if line.startswith(disk)]


@pytest.mark.parametrize(
    "use",
    ["swap", "volume", *(pytest.param(use, marks=pytest.mark.long) for use in ("another namespace", "busy volume"))],
)
def test_the_unit_ends_what_is_on_its_disk(
    add: Add, mountpoint: Path, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once where it can. busy: once what was written so far is on the device."""
    monkeypatch.setenv("DM_DISABLE_UDEV", "1")  # there is none, which would name the volume
    disk = add("--number=3", "passthrough", f"file={NVME}")
    pid = info(disk)["pid"]
    user, data = None, os.urandom(MIB)
    if use == "swap":
        run(["mkswap", disk])
        run(["swapon", disk])
    elif use == "another namespace":
        run(["mkfs.ext4", "-qF", disk])
        run(["mount", disk, mountpoint])
        (mountpoint / "file").write_bytes(data)
        words = ["unshare", "--mount", "--propagation=private", "sh", "-c", "echo; exec sleep infinity"]
        user = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert user.stdout and user.stdout.readline() == b"\n"
        run(["umount", mountpoint])
    else:
        run(["modprobe", "dm-mod"])
        run(["mkfs.ext4", "-qF", disk])
        sectors = Path("/sys/block", Path(disk).name, "size").read_text().strip()
        run(["dmsetup", "create", "layer", "--table", f"0 {sectors} linear {disk} 0"])
        run(["mount", "/dev/mapper/layer", mountpoint])
        (mountpoint / "file").write_bytes(data)
    try:
        if use == "busy volume":
            user = subprocess.Popen(["sleep", "infinity"], cwd=mountpoint)
        run(["env", f"MAINPID={pid}", *unit_command("ExecStop", UBLK)], expect=None)
        assert user or disks() == []
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)  # as systemd does then
        wait_until("the disk is gone", lambda: disks() == [], LIMIT / 2)
    finally:
        if user:
            user.kill()
            user.wait(LIMIT)
        run(["swapoff", disk], expect=None)
        run(["umount", "--lazy", mountpoint], expect=None)
        run(["dmsetup", "remove", "--force", "--retry", "layer"], expect=None)
    if use != "swap":
        assert user or "needs_recovery" not in run(["dumpe2fs", "-h", NVME])
        assert_kept(data, mountpoint)


def test_the_unit_leaves_a_disk_that_lives_alone(add: Add) -> None:
    """It takes away what remains of a disk that ended with its server, as one of the s3 device does."""
    disk = add("--number=3", "--recovery=none", "null", "size=1M")
    before = info(disk)
    run([*unit_words(), "passthrough", f"file={NVME}"], expect=2)
    assert info(disk) == before and before["state"] == "live"
    kill(disk)
    assert_taken_away(disk)


def assert_taken_away(disk: str) -> None:
    """By the unit, which then adds a disk of its own."""
    server = subprocess.Popen(
        [*unit_words(), "passthrough", f"file={NVME}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout and "/dev/ublkb3: removed" in server.stdout.readline()
        assert server.stdout.readline() == "/dev/ublkb3\n"
        assert info(disk)["pid"] == server.pid
        server.terminate()
        assert server.wait(LIMIT) == 0
    finally:
        server.kill()
        server.communicate()


def test_the_unit_takes_a_dead_disk_away(add: Add) -> None:
    """Whatever it was added with: no server can be given to it. This one died while it waited for the disk's node."""
    control = os.stat("/dev/ublk-control").st_rdev
    empty = """
mount -t tmpfs dev /dev
mknod /dev/ublk-control c "$1" "$2"
shift 2
exec "$@"
"""
    words = ["unshare", "--mount", "sh", "-ec", empty, "sh", str(os.major(control)), str(os.minor(control))]
    words += [str(UBLK.absolute()), "add", "--foreground", "--number=3", "--recovery=reissue", "null", "size=1M"]
    server = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    try:
        wait_until("the disk is added", lambda: disks() != [], LIMIT / 2, process=server)
    finally:
        server.kill()
        server.wait(LIMIT)
    dead = info("/dev/ublkb3")
    assert (dead["state"], dead["recovery"]) == ("dead", "reissue")
    begun = time.monotonic()
    for command in (["recover", "3"], ["replace", "3", "null", "size=1M"]):
        assert "ublk3: is dead" in ublk(*command, expect=2)
    assert time.monotonic() - begun < 10.0
    assert_taken_away("/dev/ublkb3")


def test_the_unit_adds_a_disk_and_recovers_it(add: Add) -> None:
    argv = [*unit_words(), "passthrough", f"file={NVME}"]
    systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    systemd.bind("\0userblk-test")
    systemd.settimeout(LIMIT)
    for state in ("", "waiting"):
        assert [disk["state"] for disk in disks()] == [state] * bool(state)
        server = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "NOTIFY_SOCKET": "@userblk-test"},
        )
        assert systemd.recv(64) == b"READY=1"
        assert [disk["state"] for disk in disks()] == ["live"]
        assert info("/dev/ublkb3")["pid"] == server.pid
        if not state:
            server.kill()
            server.wait(LIMIT)
            wait_until("the disk waits", lambda: [disk["state"] for disk in disks()] == ["waiting"], LIMIT)
    server.terminate()
    assert server.wait(LIMIT) == 0
    systemd.close()
    wait_until("the disk is gone", lambda: disks() == [], LIMIT)
