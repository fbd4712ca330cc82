# SPDX-License-Identifier: BSD-3-Clause
"""tests/lab/user_mode_linux.py: what it refuses. `make test-xfstests-lab LINUX=DIR` runs it."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from nbdkit_server import ROOT

PROGRAM = ROOT / "tests/lab/user_mode_linux.py"


def run(linux: Path, *options: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(PROGRAM), f"--linux={linux}", *options, "--", "true"]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def test_a_directory_without_linux(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 2
    assert f"--linux={tmp_path}: no source of Linux; unpack" in done.stderr.splitlines()[-1]
    assert done.stdout == ""


def test_a_linux_that_lacks_what_is_needed(tmp_path: Path) -> None:
    names = runpy.run_path(str(PROGRAM))
    lacking_settings = names["lacking_settings"]
    config = tmp_path / ".config"
    settings = names["FRAGMENT"].read_text()
    config.write_text(settings)
    assert lacking_settings(config) == []
    config.write_text(settings.replace("CONFIG_BLK_DEV_UBLK=y", "# CONFIG_BLK_DEV_UBLK is not set"))
    assert lacking_settings(config) == ["CONFIG_BLK_DEV_UBLK=y"]


NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


def in_own_mounts(script: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    """The script, with the program's functions and Path, in a mount namespace."""
    before = f"import runpy, sys\nfrom pathlib import Path\nglobals().update(runpy.run_path({str(PROGRAM)!r}))\n"
    argv = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", before + script]
    return subprocess.run([*argv, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60)


MOUNTED = """
with temporary_place() as place:
    (place / "root").mkdir()
    checked(["mount", "-t", "tmpfs", "tmpfs", str(place / "root")])
    (place / "root/userblk").mkdir()
    checked(["mount", "-o", "bind", sys.argv[1], str(place / "root/userblk")])
    print(place)
"""


@NEEDS_ROOT
@pytest.mark.parametrize("end", ["pass", "raise OSError('a mount failed')"])
def test_what_its_root_shows_stays(end: str, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("text")
    done = in_own_mounts(f"{MOUNTED}    {end}\n", tmp_path)
    assert (done.returncode == 0) == (end == "pass"), done.stderr
    assert (tmp_path / "precious").read_text() == "text"
    assert done.stdout and not Path(done.stdout.strip()).exists()


@NEEDS_ROOT
def test_what_cannot_be_unmounted_stays(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("text")
    done = in_own_mounts(f"{MOUNTED}    temporary_place.__wrapped__.__globals__['run'] = print\n", tmp_path)
    place = Path(done.stdout.split()[0])
    assert "cannot be unmounted" in done.stderr, done.stderr
    assert (tmp_path / "precious").read_text() == "text"
    (place / "root").rmdir()
    place.rmdir()


@pytest.mark.parametrize("option", ["share", "extra"])
def test_a_directory_to_show_must_be_there(option: str, tmp_path: Path) -> None:
    linux = tmp_path / "arch/um"
    linux.mkdir(parents=True)
    (linux / "Kconfig").touch()
    done = run(tmp_path, f"--{option}={tmp_path}/none")
    assert done.returncode == 2
    assert f"--{option}={tmp_path}/none: is no directory; make it first" in done.stderr.splitlines()[-1]
