# SPDX-License-Identifier: BSD-3-Clause
"""userblk-ublk@.service under a real systemd: what comes up, what a crash costs, and what goes before it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from guest import LIMIT, MIB, NVME, read, run
from guest_ublk import UBLK
from userblk.harness.systems.base import module_there
from waiting import wait_until

SYSTEMD = Path("/usr/lib/systemd/systemd")
UNIT = "userblk-ublk@3.service"
DISK = "/dev/ublkb3"
SLOW_MIB = 16  # that a slow device takes half a minute for

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not module_there("ublk_drv"), reason="kernel: it has no ublk_drv"),
    pytest.mark.skipif(not SYSTEMD.exists(), reason="release: it has no systemd"),
]

# No target but ours, and nothing that this boot is not about.
TARGET = f"""
[Unit]
Requires=basic.target
Wants={UNIT} remote-fs.target
After=basic.target {UNIT} remote-fs.target
"""
# What a container's systemd would change on the machine around it, or wait for.
MASKED = (
    "ldconfig.service", "network-online.target", "systemd-binfmt.service", "systemd-modules-load.service",
    "systemd-networkd.service", "systemd-sysctl.service", "systemd-sysusers.service", "systemd-tmpfiles-setup.service",
    "systemd-udev-trigger.service", "userblk.mount",
)  # fmt: skip

# In namespaces of its own, where it is process 1; the rest it does itself.
CGROUP = Path("/sys/fs/cgroup/systemd-test")
BOOT = f"""
set -e
echo 0 >{CGROUP}/cgroup.procs
exec unshare --pid --fork --kill-child --mount --cgroup --uts --ipc sh -ec '
    mount -t proc proc /proc
    umount /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount -t tmpfs run /run
    mkdir -p /run/systemd
    cp -r "$1" /run/systemd/system
    mount --bind "$2" /etc/fstab
    exec env -i container=lab PATH="$PATH" {SYSTEMD} --system --unit=userblk.target --log-target=kmsg
' sh "$1" "$2"
"""


class Machine:
    """A systemd that runs."""

    def __init__(self, units: Path, fstab: Path) -> None:
        CGROUP.mkdir(exist_ok=True)
        self.process = subprocess.Popen(["sh", "-c", BOOT, "sh", units, fstab], stdin=subprocess.DEVNULL)
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        self.until("a process begins", lambda: children.read_text() != "")
        self.first = int(children.read_text())  # its process 1, as it is called here

    def inside(self, *words: str | Path, expect: int | None = 0) -> str:
        return run(["nsenter", f"--target={self.first}", "--mount", "--pid", *words], expect=expect)

    def path(self, inside: Path) -> Path:
        return Path(f"/proc/{self.first}/root", inside.relative_to("/"))

    def show(self, unit: str, value: str) -> str:
        return self.inside("systemctl", "show", "--value", f"--property={value}", unit, expect=None).strip()

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        wait_until(what, condition, LIMIT / 2, process=self.process, log=lambda: run(["dmesg"]))

    def power_off(self) -> None:
        os.kill(self.first, signal.SIGRTMIN + 4)
        self.process.wait(LIMIT)


Boot = Callable[[str], Machine]


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The directory of what the systemd of boot has."""
    directory = tmp_path / "units"
    directory.mkdir()
    return directory


@pytest.fixture
def boot(tmp_path: Path, mountpoint: Path, units: Path) -> Iterator[Boot]:
    """boot(options): systemd, with the disk by our unit, and a mount of it in fstab with those options ("": none)."""
    fstab, settings = tmp_path / "fstab", Path("/etc/userblk/ublk-3")
    unit = Path("ublk/userblk-ublk@.service").read_text().replace("@sbindir@", str(UBLK.parent.absolute()))
    (units / "userblk-ublk@.service").write_text(unit)
    (units / "userblk.target").write_text(TARGET)
    for name in MASKED:
        (units / name).symlink_to("/dev/null")
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(f"USERBLK_DISK=passthrough file={NVME}\n")
    Path("/etc/fstab").touch()
    run(["modprobe", "ublk_drv"])
    run(["mkfs.ext4", "-qF", NVME])
    run(["dmesg", "--clear"])
    machines = []

    def enter(options: str) -> Machine:
        fstab.write_text(f"{DISK} {mountpoint} ext4 {options} 0 0\n" if options else "")
        machine = Machine(units, fstab)
        machines.append(machine)
        machine.until("userblk.target is active", lambda: machine.show("userblk.target", "ActiveState") == "active")
        return machine

    yield enter
    for machine in machines:
        machine.process.kill()
        machine.process.wait(LIMIT)
    if Path(DISK).exists():
        run([UBLK, "delete", "--force", DISK])
    settings.unlink()


def mounted(machine: Machine, mountpoint: Path) -> bool:
    return DISK in machine.inside("findmnt", "--noheadings", "--output=SOURCE", mountpoint, expect=None)


def assert_unmounted_in_time(data: bytes, mountpoint: Path) -> None:
    """The file is on the device, and the journal of the file system holds nothing."""
    assert "needs_recovery" not in run(["dumpe2fs", "-h", NVME])
    run(["fsck.ext4", "-f", "-n", NVME])
    run(["mount", "-o", "ro", NVME, mountpoint])
    try:
        assert (mountpoint / "file").read_bytes() == data
    finally:
        run(["umount", mountpoint])


@pytest.mark.parametrize("options", ["_netdev", ""], ids=["fstab", "by hand"])
def test_a_shutdown_loses_nothing(boot: Boot, mountpoint: Path, options: str) -> None:
    machine = boot(options)
    assert machine.show(UNIT, "ActiveState") == "active"
    if not options:
        machine.inside("mount", DISK, mountpoint)
    machine.until("the file system is mounted", lambda: mounted(machine, mountpoint))
    data = os.urandom(MIB)
    (machine.path(mountpoint) / "file").write_bytes(data)
    machine.power_off()
    assert "ordering cycle" not in run(["dmesg"])
    assert_unmounted_in_time(data, mountpoint)


def test_a_stopped_unit_takes_its_mount_along(boot: Boot, mountpoint: Path) -> None:
    machine = boot("_netdev")
    machine.until("the file system is mounted", lambda: mounted(machine, mountpoint))
    data = os.urandom(MIB)
    (machine.path(mountpoint) / "file").write_bytes(data)
    machine.inside("systemctl", "stop", UNIT)
    assert not mounted(machine, mountpoint)
    assert not Path(DISK).exists()
    assert_unmounted_in_time(data, mountpoint)
    machine.power_off()


def test_a_server_is_started_until_it_can_serve(boot: Boot, tmp_path: Path) -> None:
    """More often than systemd's own limit, which is five times in ten seconds."""
    link = tmp_path / "disk"
    link.symlink_to(NVME)
    Path("/etc/userblk/ublk-3").write_text(f"USERBLK_DISK=passthrough file={link}\n")
    machine = boot("")
    pid = machine.show(UNIT, "MainPID")
    link.unlink()
    machine.inside("systemctl", "kill", "--signal=KILL", UNIT)
    machine.until("it has failed often", lambda: int(machine.show(UNIT, "NRestarts") or 0) > 6)
    link.symlink_to(NVME)
    machine.until("it serves again", lambda: machine.show(UNIT, "ActiveState") == "active")
    assert machine.show(UNIT, "MainPID") != pid
    machine.power_off()


def test_a_mount_waits_for_a_device_that_comes_late(boot: Boot, mountpoint: Path, tmp_path: Path) -> None:
    link = tmp_path / "disk"
    link.symlink_to(NVME)
    Path("/etc/userblk/ublk-3").write_text(f"USERBLK_DISK=passthrough file={link}\n")
    machine = boot("_netdev")
    machine.inside("systemctl", "stop", UNIT)
    assert not mounted(machine, mountpoint)
    link.unlink()
    mount = machine.inside("systemd-escape", "--path", "--suffix=mount", mountpoint).strip()
    machine.inside("systemctl", "start", "--no-block", UNIT, mount)
    machine.until("the unit has failed", lambda: int(machine.show(UNIT, "NRestarts") or 0) > 1)
    link.symlink_to(NVME)
    machine.until("the file system is mounted", lambda: mounted(machine, mountpoint))
    machine.power_off()


def test_a_killed_server_is_started_again(boot: Boot, mountpoint: Path) -> None:
    machine = boot("_netdev")
    data = os.urandom(MIB)
    (machine.path(mountpoint) / "file").write_bytes(data)
    before = machine.show(UNIT, "MainPID")
    mount = machine.inside("systemd-escape", "--path", "--suffix=mount", mountpoint).strip()
    since = machine.show(mount, "ActiveEnterTimestampMonotonic")
    machine.inside("kill", "-KILL", before)
    machine.inside("sync", "--file-system", mountpoint)  # waits for the next server
    assert machine.show(UNIT, "MainPID") not in (before, "0")
    assert mounted(machine, mountpoint)
    assert machine.show(mount, "ActiveEnterTimestampMonotonic") == since  # it was not unmounted meanwhile
    machine.power_off()
    assert_unmounted_in_time(data, mountpoint)


@contextmanager
def slow_disk() -> Iterator[str]:
    """The same device, where each write takes a second."""
    sectors = run(["blockdev", "--getsz", NVME]).strip()
    run(["modprobe", "dm-delay"])
    run(["dmsetup", "create", "slow", "--table", f"0 {sectors} delay {NVME} 0 0 {NVME} 0 1000"])
    try:
        yield "/dev/mapper/slow"
    finally:
        run(["dmsetup", "remove", "--retry", "slow"])


def test_a_write_back_is_not_cut_short(boot: Boot, units: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes several times as long as the unit may need to stop."""
    monkeypatch.setenv("DM_DISABLE_UDEV", "1")  # there is none, which would name the slow disk
    limit, content = units / "userblk-ublk@.service.d/limit.conf", os.urandom(SLOW_MIB * MIB)
    limit.parent.mkdir()
    limit.write_text("[Service]\nTimeoutStopSec=5\n")
    with slow_disk() as slow:
        settings = f"USERBLK_DISK=--queues=1 --depth=1 passthrough file={slow}\n"
        Path("/etc/userblk/ublk-3").write_text(settings)
        machine = boot("")
        try:
            assert write_slowly(machine, content) == "success"
        finally:
            machine.process.kill()
            machine.process.wait(LIMIT)
    assert read(NVME, 0, len(content)) == content


def write_slowly(machine: Machine, content: bytes) -> str:
    """What becomes of the unit that has to stop then."""
    machine.until("the disk is there", Path(DISK).exists)
    disk = os.open(DISK, os.O_WRONLY)  # the last one to close it would wait
    try:
        assert os.write(disk, content) == len(content)
        begun = time.monotonic()
        machine.inside("systemctl", "stop", UNIT)
        assert time.monotonic() - begun > 3 * 5, "it is not slow"
    finally:
        os.close(disk)
    return machine.show(UNIT, "Result")
