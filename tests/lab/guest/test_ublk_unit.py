# SPDX-License-Identifier: BSD-3-Clause
"""userblk-ublk@.service without a systemd: what its commands do to disks, and to what is on them."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from guest import LIMIT, MIB, NVME, run
from guest_ublk import NEEDS_UBLK, UBLK, Add, assert_kept, disks, info, kill
from waiting import wait_until

UNIT = Path("ublk/userblk-ublk@.service")

pytestmark = NEEDS_UBLK


def unit_command(name: str) -> list[str]:
    """What the unit of disk 3 runs."""
    (line,) = re.findall(rf"^{name}=(.*)$", UNIT.read_text().replace("\\\n", " "), re.M)
    line = line.replace("@sbindir@/userblk-ublk", str(UBLK.absolute()))
    return shlex.split(line.replace("%i", "3").replace("$$", "$"))


def unit_words() -> list[str]:
    """What it starts, without the device."""
    words = unit_command("ExecStart")
    assert words.pop() == "$USERBLK_DISK"
    return words


def users(disk: str) -> list[str]:
    """Volumes and swap on the disk."""
    volumes = [path.name for path in Path("/sys/block", Path(disk).name, "holders").iterdir()]
    return volumes + [line for line in Path("/proc/swaps").read_text().splitlines() if line.startswith(disk)]


@pytest.mark.parametrize("use", ["swap", "volume", "busy volume"])
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
        run(["env", f"MAINPID={pid}", *unit_command("ExecStop")], expect=None)
        assert user or users(disk) == []
        os.kill(pid, signal.SIGTERM)  # as systemd does then
        wait_until("the disk is gone", lambda: disks() == [], LIMIT / 5)
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
