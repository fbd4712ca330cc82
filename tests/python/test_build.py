# SPDX-License-Identifier: BSD-3-Clause
"""The Makefile, packaging/build and meson.build: what they forward, set up, name and leave out."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from userblk.harness.machine import paths

assert paths.CHECKOUT is not None
CHECKOUT = paths.CHECKOUT
# Built in the root of the lab's guest: lab/models.py.
IN_ROOT = ("lab/preload", "lab/ssd")


def test_each_c_file_and_manual_page_is_named() -> None:
    """In the meson.build of its folder, or of one above. A device that is not linked is one that nobody misses."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.c", "*.[18]"],
        cwd=CHECKOUT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert len(listed) > 150
    forgotten = []
    for name in map(Path, listed):
        texts = {
            folder: (CHECKOUT / folder / "meson.build").read_text()
            for folder in name.parents
            if (CHECKOUT / folder / "meson.build").exists()
        }
        named = any(f"'{name.relative_to(folder)}'" in text for folder, text in texts.items())
        own = texts.get(name.parent, "")
        test = name.name.startswith("test_") and f"'{name.stem}'" in own
        device = "device + '.c'" in own and f"'{name.stem}'" in texts[Path(".")]
        if (CHECKOUT / name).exists() and not (named or test or device or any(map(name.is_relative_to, IN_ROOT))):
            forgotten.append(str(name))
    assert not forgotten


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build directory on a machine that has none of the libraries."""
    directory = tmp_path_factory.mktemp("build") / "bare"
    assert build(directory, "-Dtcmu=disabled", "--", "build.ninja").returncode == 0
    return directory


def build(directory: Path, *words: str, tree: Path = CHECKOUT) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PKG_CONFIG_LIBDIR": "/nonexistent"}
    argv = [str(tree / "packaging/build"), str(directory), *words]
    return subprocess.run(argv, env=env, capture_output=True, text=True)


def test_an_installation_brings_all_that_a_build_needs(tmp_path: Path) -> None:
    """The lab is built from this archive where there is no checkout: what the Makefile and Meson include is in it."""
    archive, tree = tmp_path / "source.tar.gz", tmp_path / "tree"
    tree.mkdir()
    subprocess.run([CHECKOUT / "packaging/source-archive", archive], check=True)
    subprocess.run(["tar", "-x", "-f", archive, "-C", tree], check=True)
    subprocess.run(["make", "--dry-run", "help"], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    done = build(tmp_path / "built", "-Dtcmu=disabled", "--", "build.ninja", tree=tree)
    assert done.returncode == 0, done.stderr


def test_what_is_left_out_is_said(bare: Path) -> None:
    left_out = (bare / "left-out").read_text()
    for what in ("S3 device", "nbdkit plugins", "userblk-ublk", "userblk-passthrough", "userblk-fuse-disk", "RocksDB"):
        assert what in left_out
    assert "handlers" not in left_out  # by an option
    done = build(bare, "-Dtcmu=disabled", "--", "plugins")
    assert done.returncode != 0 and "left out: the nbdkit plugins, which need nbdkit-plugin-dev" in done.stderr


def test_unit_tests_that_are_left_out_are_said(tmp_path: Path) -> None:
    """Those of a part that was not built are no tests of meson's, which cannot say that they were skipped."""
    (tmp_path / "meson-logs").mkdir()
    (tmp_path / "meson-logs/testlog.txt").write_text("SKIPPED [1] kernel: no ramfs\n")
    (tmp_path / "left-out").write_text("left out: the S3 device, which needs libcurl\n")
    (tmp_path / "meson").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "meson").chmod(0o755)
    target = os.path.relpath(tmp_path, CHECKOUT / "build")
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    argv = ["make", "-s", "run-unit", f"TARGET={target}", "BUILD=@true"]
    done = subprocess.run(argv, cwd=CHECKOUT, env=env, capture_output=True, text=True)
    skipped = ["kernel: no ramfs", "left out: the S3 device, which needs libcurl"]
    assert done.stdout.splitlines() == [f"SKIPPED [1] {reason}" for reason in skipped]
    assert "Error 3" in done.stderr  # meson's own status


def test_it_is_set_up_once_for_its_options(bare: Path) -> None:
    first = (bare / "setup.log").stat().st_mtime_ns
    assert build(bare, "-Dtcmu=disabled", "--", "build.ninja").returncode == 0
    assert (bare / "setup.log").stat().st_mtime_ns == first
    refused = build(bare, "-Dtcmu=disabled", "-Dnbdkit=enabled", "--", "build.ninja")
    assert refused.returncode == 2 and "nbdkit" in refused.stderr
    assert build(bare, "-Dtcmu=disabled", "--", "build.ninja").returncode == 0


def test_it_is_set_up_again_when_a_package_is_installed(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libleveldb-dev, which has no file of pkg-config's; and a newer version of one."""
    query = tmp_path / "dpkg-query"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    times = []
    for answer in ("", "libleveldb-dev 1.23-4", "libleveldb-dev 1.23-5", "libleveldb-dev 1.23-5"):
        query.write_text(f"#!/bin/sh\ncase $* in *-dev) echo {answer} ;; *) exit 1 ;; esac\n")
        query.chmod(0o755)
        assert build(bare, "-Dtcmu=disabled", "--", "build.ninja").returncode == 0
        times.append((bare / "setup.log").stat().st_mtime_ns)
    assert len(set(times)) == 3 and times[2] == times[3]


def test_another_version_of_a_suite_replaces_it(tmp_path: Path) -> None:
    """And an older one that one, when an older commit is looked at."""
    log, cargo = tmp_path / "log", tmp_path / "bin/cargo"
    cargo.parent.mkdir()
    cargo.write_text(f'#!/bin/sh\necho "$*" >>{log}\n')
    cargo.chmod(0o755)
    env = os.environ | {"PATH": f"{cargo.parent}:{os.environ['PATH']}"}
    versions = ("0.1", "0.2", "0.2", "0.1")
    for version in versions:
        crates = [f"CRATES={tmp_path}/crates", f"FS_SUITES={tmp_path}/crates/pjdfstest-{version}"]
        subprocess.run(["make", "-s", "fs-suites", *crates], cwd=CHECKOUT, env=env, check=True)
    told = [line.split()[-3:] for line in log.read_text().splitlines()]
    assert told == [["--version", version, "pjdfstest"] for version in ("0.1", "0.2", "0.1")]


def test_make_bench_forwards_to_the_command() -> None:
    given = ["DRY_RUN=1", "MAX_REPS=3", "CONFIRM=one two", "SYSTEMS=native", "ARGS=--no-colour --name x"]
    done = subprocess.run(["make", "-n", "bench", *given], cwd=CHECKOUT, check=True, capture_output=True, text=True)
    words = shlex.split(done.stdout.partition("bin/userblk run")[2].replace("\\\n", " "))
    want = ["--dry-run", "--no-colour", "--name", "x"]
    assert words == ["--confirm", "one two", "--max-reps", "3", "--systems", "native", *want]


STORE_SUITES = [f.stem for f in CHECKOUT.glob("configs/suites/*.toml") if 'engine = "store' in f.read_text()]


@pytest.mark.parametrize("suite", STORE_SUITES)
def test_make_bench_installs_what_a_store_is_built_with(suite: str) -> None:
    """The suites that start an S3 server build it first, which needs Go."""
    argv = ["make", "-n", "-W", "configs/packages.csv", "bench", f"SUITE={suite}"]
    done = subprocess.run(argv, cwd=CHECKOUT, check=True, capture_output=True, text=True)
    assert "packaging/install-packages s3\n" in done.stdout
