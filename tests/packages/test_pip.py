# SPDX-License-Identifier: BSD-3-Clause
"""`pip install .`, `pipx install .`: every module and file of configs/ is there, no checkout needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
KEPT = CHECKOUT / "docs/data/table1.tar.gz"
PIPX = "pipx==1.1.0"  # Debian 12's


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("source")
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=CHECKOUT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", top], input=archive, check=True)
    return top


@pytest.fixture(scope="module", params=["pip", "pipx"])
def prefix(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it is installed; what it depends on is that of the machine."""
    top = tmp_path_factory.mktemp(request.param)
    pip = [str(top / "venv/bin/pip"), "install", "-q", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", top / "venv"], check=True)
    if request.param == "pip":
        subprocess.run([*pip, "--no-deps", str(source)], check=True, timeout=600)
        return top / "venv"
    # The machine may have it, which would do for pip, but then the environment has no program.
    subprocess.run([*pip, "--ignore-installed", PIPX], check=True, timeout=600)
    own = {"PIPX_HOME": str(top / "home"), "PIPX_BIN_DIR": str(top / "bin"), "PIPX_DEFAULT_PYTHON": sys.executable}
    argv = [str(top / "venv/bin/pipx"), "install", "--system-site-packages", "--pip-args=--no-deps", str(source)]
    subprocess.run(argv, env=os.environ | own, check=True, timeout=600)
    assert (top / "bin/userblk").resolve() == top / "home/venvs/userblk/bin/userblk"
    return top / "home/venvs/userblk"


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
    assert userblk("import", str(KEPT)).returncode == 0
    (campaign,) = (tmp_path / "results").iterdir()
    assert "Throughput" in userblk("table", str(campaign)).stdout


def test_the_lab_needs_no_checkout(prefix: Path, tmp_path: Path) -> None:
    """A plan of it comes from the source that was brought along, which is unpacked once."""
    cache, empty = tmp_path / "cache", tmp_path / "empty"
    empty.mkdir()
    code = f"""import sys, pathlib
from userblk.harness.cli import main
from userblk.harness.model import source
source.CACHE = pathlib.Path({str(cache)!r}); sys.exit(main())"""
    argv = [str(prefix / "bin/python"), "-c", code, "plan", "--where", "lab", "--reps", "1"]
    for _ in range(2):
        done = subprocess.run(argv, cwd=empty, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
        assert done.returncode == 0 and "96 (1 of each cell)" in done.stdout, done.stderr
    (unpacked,) = cache.iterdir()
    assert (unpacked / "lab/make-in-root").is_file() and list(empty.iterdir()) == []
