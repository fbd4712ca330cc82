# SPDX-License-Identifier: BSD-3-Clause
"""userblk-ublk@.service under a real systemd: what comes up, what a crash costs, and the order in which it goes down."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import LIMIT, MIB, run
from test_ublk import NVME, UBLK
from userblk.harness.systems.command import module_there

SYSTEMD = Path("/usr/lib/systemd/systemd")
UNIT = "userblk-ublk@3.service"
DISK = "/dev/ublkb3"
REQUIRES = f"x-systemd.requires={UNIT}"

pytestmark = [
    pytest.mark.skipif(not module_there("ublk_drv"), reason="kernel: it has no ublk_drv"),
    pytest.mark.skipif(not SYSTEMD.exists(), reason="release: it has no systemd"),
]

# Of the machine's own: no target but ours, and nothing that this boot is not about.
TARGET = f"""
[Unit]
Requires=basic.target
Wants={UNIT} remote-fs.target
After=basic.target {UNIT} remote-fs.target
"""
MASKED = ("systemd-udev-trigger.service", "systemd-networkd.service", "systemd-tmpfiles-setup.service", "network-online.target")

# In namespaces of its own, where it is process 1; the rest it does itself.
BOOT = """
set -e
mkdir -p /sys/fs/cgroup/systemd-test
echo 0 >/sys/fs/cgroup/systemd-test/cgroup.procs
exec unshare --pid --fork --kill-child --mount --cgroup --uts --ipc sh -ec '
    mount -t proc proc /proc
    umount /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount -t tmpfs run /run
    mkdir -p /run/systemd
    cp -r "$1" /run/systemd/system
    mount --bind "$2" /etc/fstab
    exec env -i container=lab PATH="$PATH" /usr/lib/systemd/systemd --system --unit=userblk.target
' sh "$1" "$2"
"""


class Machine:
    """A systemd that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def inside(self, *words: str | Path, expect: int | None = 0) -> str:
        (pid,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return run(["nsenter", "--target", pid, "--mount", "--pid", *words], expect=expect)

    def state(self, unit: str) -> str:
        return self.inside("systemctl", "show", "--value", "--property=ActiveState", unit, expect=None).strip()

    def await_up(self) -> None:
        self.until("the target is not reached", lambda: self.state("userblk.target") == "active")

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not condition():
            assert self.process.poll() is None and time.monotonic() < end, (
                what + ":\n" + self.inside("systemctl", "--no-pager", "list-jobs", expect=None)
                + self.inside("journalctl", "--no-pager", "-b", "-n", "80", expect=None)
            )  # fmt: skip
            time.sleep(0.2)

    def power_off(self) -> None:
        self.inside("systemctl", "poweroff", expect=None)
        self.process.wait(LIMIT)


@pytest.fixture
def boot(tmp_path: Path, mountpoint: Path) -> Iterator[Callable[[str], Machine]]:
    """boot(options): systemd, with the disk by our unit, and a mount of it in fstab with those options ("": none)."""
    units = tmp_path / "units"
    units.mkdir()
    template = Path("ublk/userblk-ublk@.service").read_text().replace("@sbindir@", str(UBLK.parent.absolute()))
    (units / "userblk-ublk@.service").write_text(template)
    (units / "userblk.target").write_text(TARGET)
    for name in MASKED:
        (units / name).symlink_to("/dev/null")
    settings = Path("/etc/userblk/ublk-3")
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(f"USERBLK_DISK=passthrough file={NVME}\n")
    Path("/etc/fstab").touch()
    run(["modprobe", "ublk_drv"])
    run(["mkfs.ext4", "-qF", NVME])
    machines = []

    def enter(options: str) -> Machine:
        fstab = tmp_path / "fstab"
        fstab.write_text(f"{DISK} {mountpoint} ext4 {options} 0 0\n" if options else "")
        process = subprocess.Popen(["sh", "-c", BOOT, "sh", units, fstab], stdin=subprocess.DEVNULL, text=True)
        machines.append(Machine(process))
        machines[-1].await_up()
        return machines[-1]

    yield enter
    for machine in machines:
        machine.process.kill()
        machine.process.wait(LIMIT)
    settings.unlink()
