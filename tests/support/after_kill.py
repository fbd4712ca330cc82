# SPDX-License-Identifier: BSD-3-Clause
"""Cleans up after a pytest that was killed: python3 after_kill.py DIRECTORY.

Waits for the end of standard input, whose other end only that pytest has open. If nothing was written to it, pytest
ended without its fixtures: what lies in its temporary directory is unmounted, and loop devices on files there, or on
other such devices, are detached. Programs that have one of them open are killed first.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

LIMIT = 60.0  # s


def below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + "/")


def loop_devices(directory: str) -> list[str]:
    """Those on files below the directory, and those on such devices, the uppermost first."""
    backing = {}
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # it is being detached
            backing[f"/dev/{path.parts[3]}"] = path.read_text(encoding="utf-8").rstrip("\n").removesuffix(" (deleted)")
    found = [device for device, file in backing.items() if below(file, directory)]
    for lower in found:
        found += [device for device, file in backing.items() if file == lower and device not in found]
    return found[::-1]


def mounts(directory: str, devices: list[str]) -> list[str]:
    """Mount points below the directory or of the devices, the newest first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields = line.encode().decode("unicode_escape").split(" ")
        source = fields[fields.index("-") + 2]
        if below(fields[4], directory) or source in devices:
            found.append(fields[4])
    return found[::-1]


def kill_users(directory: str, devices: list[str]) -> None:
    """Kills the programs that have a device, or a file below the directory, open."""
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        with suppress(OSError):
            for fd in (process / "fd").iterdir():
                target = str(fd.readlink())
                if target in devices or below(target, directory):
                    os.kill(int(process.name), signal.SIGKILL)
                    break


def clean_up(directory: str) -> None:
    """Until nothing is left, or for LIMIT seconds."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        devices = loop_devices(directory)
        points = mounts(directory, devices)
        if not devices and not points:
            return
        kill_users(directory, devices)
        for argv in [["umount", "--lazy", point] for point in points] + [["losetup", "--detach", d] for d in devices]:
            subprocess.run(argv, capture_output=True, timeout=LIMIT, check=False)
        time.sleep(0.1)


def main() -> None:
    directory = str(Path(sys.argv[1]).resolve())
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not sys.stdin.buffer.read():
        clean_up(directory)


if __name__ == "__main__":
    main()
