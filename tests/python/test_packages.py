# SPDX-License-Identifier: BSD-3-Clause
"""The table of packages by purpose, and what installs them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
from userblk.harness.cli import doctor
from userblk.harness.machine import packages, paths

assert paths.CHECKOUT is not None
CHECKOUT = paths.CHECKOUT
ESSENTIAL = {"gcc", "make", "libc6-dev", "dpkg-dev"}  # of Debian's build-essential


@pytest.fixture
def installer() -> ModuleType:
    loader = SourceFileLoader("install_packages", str(CHECKOUT / "packaging/install-packages"))
    spec = importlib.util.spec_from_loader("install_packages", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_each_package_stands_once(installer: ModuleType) -> None:
    rows = installer.read_table()
    assert all(row["purpose"] and row["debian"] and row["fedora"] for row in rows)
    names = [row["debian"] for row in rows]
    assert len(names) == len(set(names))


def test_what_a_test_would_be_skipped_without_is_installed(installer: ModuleType) -> None:
    known = {row["debian"] for row in installer.read_table()}
    skip = re.compile(r"""(?:skip\(|reason=)f?".*run: apt-get install ([^"]+)\"""")
    wanted = {
        (file.name, package)
        for room in ("python", "component", "s3", "lab", "differential", "support")
        for file in (CHECKOUT / "tests" / room).rglob("*.py")
        for line in skip.findall(file.read_text())
        for package in line.split()
    }
    assert len(wanted) > 5
    assert {(file, package) for file, package in wanted if package not in known} == set()


def test_the_package_is_built_with_what_a_build_needs(installer: ModuleType) -> None:
    text = (CHECKOUT / "packaging/debian/control").read_text().partition("Build-Depends:")[2].partition("Standards-")[0]
    declared = {word.split()[0] for word in text.replace("\n", " ").split(",") if word.strip()}
    needed = {row["debian"] for row in installer.read_table() if row["purpose"] == "build"}
    assert needed - declared <= ESSENTIAL


def test_another_distribution_is_told_what_to_install(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installer, "distribution", lambda: "arch")
    assert installer.main(["bench"]) == 2
    error = capsys.readouterr().err
    assert "arch" in error and "nbd-client" in error and error.count("\n") == 1


def test_without_root_one_line_says_the_command(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installer, "distribution", lambda: "fedora")
    monkeypatch.setattr(installer, "is_installed", lambda system, package: package == "fio")
    monkeypatch.setattr(installer.os, "geteuid", lambda: 1000)
    assert installer.main(["bench"]) == 2
    error = capsys.readouterr().err
    assert "dnf install" in error and " procps-ng" in error and " fio" not in error


def test_it_leaves_no_bytecode(tmp_path: Path) -> None:
    """As root, whose files in the checkout a user could not remove."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path)
    argv = [str(CHECKOUT / "packaging/install-packages"), "--dry-run", "build"]
    subprocess.run(argv, env=environment, stdout=subprocess.DEVNULL, check=True)
    assert not list((tmp_path / CHECKOUT.relative_to("/")).rglob("*.pyc"))


@pytest.mark.parametrize(
    ("system", "remedies"),
    [
        (
            "debian",
            ["apt-get install no-such", "apt-get install mergerfs", "apt-get install util-linux mount nbd-client"],
        ),
        (
            "fedora",
            ["install what Debian has in no-such", "install what Debian has in mergerfs", "dnf install util-linux nbd"],
        ),
        (
            "arch",
            [f"install what Debian has in {names}" for names in ("no-such", "mergerfs", "util-linux mount nbd-client")],
        ),
    ],
)
def test_a_remedy_is_one_of_this_distribution(
    system: str, remedies: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "distribution", lambda: system)
    assert [doctor.program("no-such", package).fix for package in ("no-such", "mergerfs")] == remedies[:2]
    assert packages.installing("util-linux", "mount", "nbd-client") == remedies[2]


def test_a_purpose_that_is_none(installer: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        installer.main(["benches"])
    assert end.value.code == 2
    assert "benches" in capsys.readouterr().err


def test_postgresql_is_installed_without_a_cluster(
    installer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what tells it so is gone afterwards, also if the installation fails."""
    place = tmp_path / "postgresql-common/createcluster.d"
    monkeypatch.setattr(installer, "CLUSTERS", place)
    monkeypatch.setattr(installer, "distribution", lambda: "debian")
    monkeypatch.setattr(installer, "missing_packages", lambda system, purposes: ["postgresql"])
    monkeypatch.setattr(installer.os, "geteuid", lambda: 0)
    said: list[str] = []

    def install(system: str, packages: list[str]) -> None:
        said.append((place / "userblk.conf").read_text())
        raise installer.CannotInstall("no network")

    monkeypatch.setattr(installer, "install", install)
    assert installer.main(["apps"]) == 2
    assert said == ["create_main_cluster = off\n"] and list(tmp_path.iterdir()) == []
    with installer.without_cluster(["fio"]):
        assert list(tmp_path.iterdir()) == []


def test_nothing_is_missing_twice(
    installer: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installer, "distribution", lambda: "debian")
    monkeypatch.setattr(installer, "is_installed", lambda system, package: False)
    assert installer.main(["--dry-run", "build", "report"]) == 0
    reported = capsys.readouterr().out.split()
    assert "gcc" in reported and "python3-jinja2" in reported and "chromium" not in reported
    assert len(reported) == len(set(reported))


def test_the_completion_is_printed_with_what_a_build_needs(installer: ModuleType) -> None:
    """`make install` prints it, also where only the packages of a build are."""
    script = """import runpy, sys
before = set(sys.modules)
sys.argv = ["userblk", "completion", "bash"]
try:
    runpy.run_path("bin/userblk", run_name="__main__")
except SystemExit as end:
    assert end.code == 0
found = {name.partition(".")[0] for name in set(sys.modules) - before
         if "dist-packages" in (getattr(sys.modules[name], "__file__", None) or "")}
print(*found, file=sys.stderr)
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=True)
    needed = {row["debian"].removeprefix("python3-") for row in installer.read_table() if row["purpose"] == "build"}
    optional = {"attr"}  # rich can do without
    assert done.stdout and "rich" in set(done.stderr.split()) - optional <= needed


def test_a_package_has_the_completions_of_its_programs() -> None:
    for file in (CHECKOUT / "packaging/debian").glob("*.install"):
        lines = file.read_text().split()
        programs = {Path(line).name for line in lines if line.startswith(("usr/bin/", "usr/sbin/"))}
        completions = {Path(line).name for line in lines if "bash-completion" in line}
        assert completions == programs, file.name
