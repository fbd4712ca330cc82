# SPDX-License-Identifier: BSD-3-Clause
"""`make install` puts programs, data and links where they are looked for; `make uninstall` removes all of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PLUGINS = ("null", "passthrough", "s3")
# Each program has a page.
PAGES = [Path(name) for name in subprocess.check_output(["git", "ls-files", "*.[18]"], text=True).split()]
PROGRAMS = {page.stem for page in PAGES if page.stem.startswith("userblk")}


def _make(target: str, destination: Path) -> subprocess.CompletedProcess[str]:
    """DESTDIR is as a user may write it: from here on."""
    argv = ["make", "-s", target, f"DESTDIR={os.path.relpath(destination)}"]
    return subprocess.run(argv, stderr=subprocess.PIPE, text=True, timeout=900)


def _files(top: Path) -> set[Path]:
    return {path for path in top.rglob("*") if path.is_symlink() or not path.is_dir()}


def test_another_program_may_be_in_a_directory_python(tmp_path: Path) -> None:
    """/usr/local/python is no checkout's."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "python/bin").mkdir(parents=True)
    packages = tmp_path / "lib/python3/dist-packages"
    packages.mkdir(parents=True)
    (packages / "userblk").symlink_to(Path("python/userblk").absolute())
    shutil.copy("bin/userblk", tmp_path / "bin")
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([tmp_path / "bin/userblk", "--version"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("userblk "), done.stderr


def test_an_archive_is_whole_or_not_made(tmp_path: Path) -> None:
    """What the lab is built from where there is no checkout: a part that tar cannot read is not left out silently."""
    (tmp_path / "packaging").mkdir()
    shutil.copy("packaging/source-archive", tmp_path / "packaging")
    archive = tmp_path / "build/source.tar.gz"
    done = subprocess.run([tmp_path / "packaging/source-archive", archive], capture_output=True, text=True)
    assert done.returncode != 0 and "LICENSE: Cannot stat" in done.stderr and not archive.exists()


def test_what_is_installed_can_be_removed(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache_of_lab, top = tmp_path_factory.mktemp("cache"), tmp_path / "a b"
    other = top / "usr/bin/other"
    other.parent.mkdir(parents=True)
    other.touch()
    done = _make("install", top)
    assert done.returncode == 0, done.stderr
    usr = top / "usr/local"
    programs = [path for place in ("bin", "sbin") for path in (usr / place).glob("userblk*")]
    assert {path.name for path in programs} == PROGRAMS
    assert all(os.access(path, os.X_OK) for path in programs)
    assert {path.name for path in (usr / "share/bash-completion/completions").iterdir()} == PROGRAMS
    installed = _files(top)
    for link in (path for path in installed if path.is_symlink()):
        assert (top / os.readlink(link).lstrip("/")).is_file(), link
    rooms = {str(path.relative_to(usr / "lib/userblk")) for path in (usr / "lib/userblk").rglob("*.so")}
    assert rooms == {f"plugins/{name}.so" for name in PLUGINS} | {
        f"tcmu-handlers/handler_userblk_{name}.so" for name in PLUGINS
    }
    pages = {path.name for path in (usr / "share/man").rglob("*.[1-8]")}
    assert pages == {page.name for page in PAGES}
    python = usr / "lib/python3/dist-packages/userblk"
    assert {str(path.relative_to(python)) for path in python.rglob("*") if path.is_file()} == {
        "__init__.py",
        *(str(path) for room in ("harness", "analysis") for path in Path(room).rglob("*.py")),
        *(str(path) for path in Path("analysis/templates").iterdir()),
    }
    assert "/usr/local/sbin/userblk-ublk" in (usr / "lib/systemd/system/userblk-ublk@.service").read_text()
    done = subprocess.run([usr / "bin/userblk", "--version"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([usr / "sbin/userblk-ublk", "--help"], capture_output=True, text=True)
    assert [name for name in PLUGINS if f"\nDevice {name}: " not in done.stdout] == [] and not done.stderr
    # The plan of a run in the lab: from the source that was brought along.
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    code = f"""import sys, pathlib
sys.path.insert(0, {str(python.parent)!r})
from userblk.harness.cli import main
from userblk.harness.model import source
source.CACHE = pathlib.Path({str(cache_of_lab)!r}); sys.exit(main())"""
    run = [sys.executable, "-B", "-c", code, "run", "--where", "lab", "--reps", "1", "--dry-run"]
    for _ in range(2):  # unpacked, then found there
        done = subprocess.run(run, capture_output=True, text=True, env=environment, cwd=tmp_path_factory.mktemp("any"))
        assert done.returncode == 0 and "96 (1 of each cell)" in done.stdout, done.stderr
    (source,) = cache_of_lab.iterdir()
    assert (source / "lab/make-in-root").is_file() and not list(source.rglob("*.so"))
    for cache in python.rglob("__pycache__"):
        subprocess.run(["rm", "-r", str(cache)], check=True)
    assert _make("uninstall", top).returncode == 0
    assert _files(top) == {other}
    done = _make("uninstall", top)
    assert done.returncode == 2 and f"uninstall: {top}/usr/local has nothing of userblk; name " in done.stderr
