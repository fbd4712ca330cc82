# SPDX-License-Identifier: BSD-3-Clause
"""A pytest that is killed leaves no loop device, mount or server of its test behind, and others keep theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from loops import loop, run
from waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
TEST = """
import subprocess, sys, time
from pathlib import Path
from loops import loop, mounted, run

def test_it(tmp_path):
    with mounted(tmp_path / "point", "tmpfs") as point, loop(point, 1 << 20) as lower:
        upper = run("losetup", "--find", "--show", lower)
        server = subprocess.Popen(["sleep", "1000"], stdin=open(upper, "rb"))
        Path({ready!r}).write_text(f"{lower} {upper} {point} {server.pid}")
        time.sleep(1000)
"""


def backing_file(device: str) -> str | None:
    path = Path(f"/sys/block/{Path(device).name}/loop/backing_file")
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:  # detached, or just being so: the file is there and cannot be read
        return None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root and loop devices")
def test_a_killed_pytest_leaves_nothing_behind(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    (tmp_path / "test_it.py").write_text(TEST.replace("{ready!r}", repr(str(ready))), encoding="utf-8")
    (tmp_path / "others").mkdir()
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "conftest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]
    argv += ["--basetemp", str(tmp_path / "base"), str(tmp_path / "test_it.py")]
    paths = ["python", "tests", "tests/support"]
    env = {**os.environ, "PYTHONPATH": ":".join(str(ROOT / path) for path in paths)}
    with subprocess.Popen(argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as killed:
        try:
            wait_until("it has its devices", lambda: ready.exists() and ready.read_text(encoding="utf-8"))
        finally:
            killed.kill()
    lower, upper, point, server = ready.read_text(encoding="utf-8").split()
    with loop(tmp_path / "others", 1 << 20) as other:
        base = str(tmp_path / "base")
        wait_until("the upper device is detached", lambda: backing_file(upper) != lower)
        wait_until("the lower device is detached", lambda: base not in f"{backing_file(lower)}")
        wait_until("the mount is gone", lambda: point not in Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
        wait_until("the server is killed", lambda: not Path(f"/proc/{server}/exe").exists())
        assert run("losetup", "--noheadings", "--output", "BACK-FILE", other).startswith(str(tmp_path / "others"))
