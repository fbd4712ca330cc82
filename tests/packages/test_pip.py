# SPDX-License-Identifier: BSD-3-Clause
"""`pip install .`: every module and every file of configs/ is there, and a campaign can be read without a checkout."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("pip")
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=CHECKOUT, capture_output=True, check=True).stdout
    (top / "source").mkdir()
    subprocess.run(["tar", "-x", "-C", top / "source"], input=archive, check=True)
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", top / "venv"], check=True)
    argv = [str(top / "venv/bin/pip"), "install", "-q", "--disable-pip-version-check", "--no-deps", str(top / "source")]
    subprocess.run(argv, check=True, timeout=600)
    return top / "venv"


def installed(prefix: Path) -> Path:
    return next(prefix.glob("lib/python3.*/site-packages/userblk"))


def test_nothing_is_left_out(prefix: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        path = Path(name)
        if path.parts[0] in ("harness", "analysis") and (path.suffix == ".py" or "templates" in path.parts):
            assert (installed(prefix) / path).is_file(), name
        elif path.parts[0] == "configs":
            assert (prefix / "share/userblk" / path).is_file(), name


def test_it_runs_without_a_checkout(prefix: Path, tmp_path: Path) -> None:
    def userblk(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [str(prefix / "bin/userblk"), *words]
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        return subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True)

    assert userblk("--version").stdout.startswith("userblk ")
    assert "nbdkit" in userblk("systems").stdout
    missing = userblk("table", "no-such-campaign")
    assert missing.returncode == 2 and missing.stderr.count("\n") == 1
