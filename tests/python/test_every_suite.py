# SPDX-License-Identifier: BSD-3-Clause
"""What is wrong is one line, whatever the suite, and nothing of it stays."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import runner_process as runner
from command_line import userblk
from loops import MIB, loop
from userblk.harness.cli import doctor, store
from userblk.harness.machine import paths
from userblk.harness.model import tables
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.parts import ENGINES
from userblk.harness.model.plan import Device, Plan, make_plan, write_plan
from userblk.harness.model.tables import ConfigError
from userblk.harness.systems import ext4

SUITES = tables.names("suites")
OVER_STORES = ("s3", "bs3-fs")  # which need no device
SIZE = MIB
ENOUGH = 2 << 30  # bytes: what profile quick uses
FULL = 12 * MIB  # of a file system that is too small


def complaint(directory: Path, *words: str, dry: bool = True) -> str:
    """The error line; the lines before it say what the plan leaves out. dry: already of the plan."""
    done = userblk("run", *["--dry-run"] * dry, *words, cwd=directory)
    assert done.returncode == 2 and done.stdout == "", (done.stdout, done.stderr)
    *others, line = done.stderr.splitlines()
    assert line.startswith("userblk: ")
    assert all(other.startswith(("Left out: ", "Without ")) for other in others), others
    assert list(directory.iterdir()) == []
    return line.removeprefix("userblk: ")


def system_on_a_device(suite: str) -> str:
    """One of a suite that this machine may have, on the device."""
    names = ["native", "fuse-null", *load_suite(suite).systems]
    return next(name for name in names if any(load_system(name).runs(one) for one in load_suite(suite).workloads))


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("what", ["system", "workload", "profile"])
def test_an_unknown_name(suite: str, what: str, tmp_path: Path) -> None:
    line = complaint(tmp_path, "--where", "lab", "--suite", suite, f"--{what}{'s' * (what != 'profile')}", "nosuch")
    assert line.startswith(f"{what}=nosuch: ")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with loop(tmp_path_factory.mktemp("small"), SIZE) as device:
        yield device


@pytest.mark.parametrize("suite", SUITES)
def test_a_device_that_is_too_small(suite: str, small: str, tmp_path: Path) -> None:
    profile = suite if suite == "pts" else "quick"
    words = ("--where", "host", "--suite", suite, "--profile", profile, "--nvme", small, "--confirm", str(SIZE))
    system = system_on_a_device(suite)
    lacking = doctor.lacks(doctor.system_needs(load_system(system)))
    line = complaint(tmp_path, *words, "--systems", system)
    if suite in OVER_STORES:
        assert line == f"suite={suite}: it needs no device; leave --nvme out"
    elif lacking and "kernel" in lacking:
        assert line.startswith("where=host: this host's kernel has no ")
    else:
        assert line.startswith(f"{small}: has {SIZE} bytes, but profile {profile} uses ")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with loop(tmp_path_factory.mktemp("large"), ENOUGH) as device:
        yield device


@pytest.mark.parametrize(
    ("suite", "system", "missing", "says"),
    [
        ("depth-jobs", "native", "fio", "program fio is not installed; run: apt-get install fio"),
        ("response", "native", "fio", "program fio is not installed; run: apt-get install fio"),
        ("fuse45", "native", "mkfs.ext4", "program mkfs.ext4 is not installed; run: apt-get install e2fsprogs"),
        ("rfuse-fio", "native", "fio", "program fio is not installed; run: apt-get install fio"),
        ("rfuse-macro", "native", "mkfs.ext4", "program mkfs.ext4 is not installed; run: apt-get install e2fsprogs"),
        ("fxmark", "native", "mkfs.ext4", "program mkfs.ext4 is not installed; run: apt-get install e2fsprogs"),
        ("ufs-files", "native", "mkfs.ext4", "program mkfs.ext4 is not installed; run: apt-get install e2fsprogs"),
        ("source-tree", "native", "tar", "suite=source-tree: tar is not installed; apt-get install tar"),
        ("source-tree", "native", "gcc", "suite=source-tree: gcc is not installed; apt-get install gcc"),
        ("bdus-fs", "bindfs", "bindfs", "system=bindfs: program bindfs: apt-get install bindfs"),
        ("s3", "s3", "nbdkit", "system=s3: nbdkit is not installed; run: apt-get install nbdkit"),
        ("s3", "s3,s3-null", "fio", "suite=s3: program fio: apt-get install fio"),
        ("ufs-ops", "fuse2fs", "fuse2fs", "system=fuse2fs: program fuse2fs: apt-get install fuse2fs"),
        ("fuse45", "native", "mount", "program mount is not installed; run: apt-get install mount"),
        ("kv", "native", "umount", "program umount is not installed; run: apt-get install mount"),
    ],
)
def test_a_program_that_is_missing(
    suite: str, system: str, missing: str, says: str, large: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **more: None if name == missing else found(name, **more))
    words = () if suite in OVER_STORES else ("--where", "host", "--nvme", large, "--confirm", str(ENOUGH))
    assert complaint(tmp_path, "--suite", suite, *words, "--systems", system) == says


@pytest.mark.parametrize("suite", OVER_STORES)
def test_a_suite_over_a_store_takes_no_confirmation(suite: str, tmp_path: Path) -> None:
    line = complaint(tmp_path, "--suite", suite, "--confirm", "5")
    assert line == f"suite={suite}: it needs no device; leave --confirm out"


def test_none_of_the_systems_over_a_store_can_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asked for a device, which the suite does not take."""
    monkeypatch.setattr(store, "missing_modules", lambda systems: ["nbd"])
    line = complaint(tmp_path, "--suite", "bs3-fs", "--where", "host")
    assert line == "suite=bs3-fs: none of its systems can run here; install what they lack, or use --where lab"


def test_what_a_suite_does_not_run_may_be_missing(large: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suites on file systems wanted fio."""
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **more: None if name == "fio" else found(name, **more))
    words = ("--where", "host", "--nvme", large, "--confirm", str(ENOUGH), "--systems", "native")
    done = userblk("run", "--dry-run", "--suite", "source-tree", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_system_that_this_kernel_lacks_is_not_begun_with(
    large: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ext4, "module_there", lambda name: False)
    words = ("--where", "host", "--nvme", large, "--confirm", str(ENOUGH))
    says = "system=ext4-ramdisk: the kernel has no brd; name another one, or use --where lab"
    assert complaint(tmp_path, "--suite", "ufs-ops", *words, "--systems", "ext4-ramdisk") == says


@pytest.mark.parametrize(("system", "file"), [("s3", "s3.so"), ("s3-null", "null.so")])
def test_a_plugin_that_is_missing(system: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, too: what is ours is not left out."""
    monkeypatch.setattr(paths, "HOST_BUILD", tmp_path / "none")
    says = f"system={system}: file {tmp_path}/none/plugins/{file}: make plugins"
    assert complaint(tmp_path, "--suite", "s3", "--systems", system, dry=False) == says
    assert system != "s3" or complaint(tmp_path, "--suite", "s3", dry=False) == says


@pytest.mark.parametrize(
    ("suite", "system"),
    [("s3", "s3"), ("bdus-fs", "fuse"), ("ufs-ops", "native"), ("response", "native"), ("kv", "native")],
)
def test_a_plan_does_not_wait_for_what_make_builds(
    suite: str, system: str, large: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """make bench DRY_RUN=1 builds nothing, and asked for it in a fresh checkout; without DRY_RUN it is an error."""
    monkeypatch.setattr(paths, "HOST_BUILD", tmp_path / "none")
    words = () if suite in OVER_STORES else ("--where", "host", "--nvme", large, "--confirm", str(ENOUGH))
    done = userblk("run", "--dry-run", "--suite", suite, *words, "--systems", system, cwd=tmp_path)
    assert done.returncode == 0 and f"systems    {system}\n" in done.stdout, done.stderr
    line = complaint(tmp_path, "--suite", suite, *words, "--systems", system, dry=False)
    assert "none/" in line or "built without" in line


@pytest.mark.parametrize(
    ("suite", "workload", "says"),
    [
        ("source-tree", "build", "gcc is not installed; apt-get install gcc"),
        ("fxmark", "mwcl-40w", "40 workers on CPUs of their own need more than the 39 of this machine; leave it out"),
    ],
)
def test_a_workload_that_is_named_and_cannot_run(
    suite: str, workload: str, says: str, large: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was left out when it was its turn, and the exit code was 0. One that is only part of the suite still is."""
    engine = ENGINES[suite if suite == "source-tree" else "ops"]
    lacks = engine.lacks
    monkeypatch.setattr(engine, "lacks", lambda one, build: says if one.id == "build" else lacks(one, build))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(39)))
    words = ("--suite", suite, "--where", "host", "--nvme", large, "--confirm", str(ENOUGH), "--systems", "native")
    assert complaint(tmp_path, *words, "--workloads", workload) == f"workload={workload}: {says}"
    done = userblk("run", "--dry-run", *words, cwd=tmp_path)
    assert done.returncode == 0 and done.stderr.startswith("Left out: "), done.stderr


def test_a_system_that_will_be_left_out_is_told_first(
    large: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **more: None if name == "bindfs" else found(name, **more))
    words = ("--suite", "bdus-fs", "--where", "host", "--nvme", large, "--confirm", str(ENOUGH))
    done = userblk("run", "--dry-run", *words, "--systems", "native,bindfs", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "Left out: system bindfs: bindfs is not installed.\n")


def planned(suite: str, workload: str, device: str, system: str = "native") -> Plan:
    """One run on a file system that is too small for it. Raises ConfigError where that is known beforehand."""
    profile = load_profile("quick")
    files = dataclasses.replace(profile.files, memory_bytes=256 * MIB, size={"nvme": FULL})
    return make_plan(
        suite=load_suite(suite),
        profile=dataclasses.replace(profile, area={"nvme": FULL}, repetitions=1, max_repetitions=1, files=files),
        systems=[load_system(system)],
        devices=[Device("nvme", device, str(2 * FULL))],
        campaign="test",
        build=str(paths.HOST_BUILD),
        host="here",
        workloads=[workload],
    )


@pytest.mark.parametrize(
    ("suite", "workload"),
    [
        ("bdus-fs", "seq-read-1th-128k"),
        ("ufs-ops", "rdpr-1w"),
        ("rfuse-fio", "seq-read-1th-128k"),
        ("fuse45", "rand-write-1th-1f-1m"),
        ("ufs-files", "smallfile-unlink-1c"),
        ("rfuse-macro", "fileserver"),
        ("fxmark", "mwum-1w"),
    ],
)
def test_a_file_system_that_is_full(suite: str, workload: str, tmp_path: Path) -> None:
    check_reasons(reasons_of_full(suite, workload, "native", tmp_path))


@pytest.mark.parametrize(
    ("suite", "workload", "system"),
    [
        ("bdus-fs", "create-1th", "native"),
        ("rfuse-fio", "seq-write-1th-128k", "native"),
        ("rfuse-fio", "seq-write-1th-128k", "rfuse-stackfs"),
        ("fuse45", "seq-write-1th-1f-128k", "stackfs-opt"),
        ("ufs-files", "largefile-1c", "fuse"),
        ("ufs-ops", "amps-1w", "ext4-nojournal"),
    ],
)
def test_a_file_system_that_gets_full(suite: str, workload: str, system: str, tmp_path: Path) -> None:
    """While it is measured, by writes that a system may answer first and refuse later."""
    if lacking := doctor.lacks(doctor.system_needs(load_system(system))):
        pytest.skip(lacking)
    check_reasons(reasons_of_full(suite, workload, system, tmp_path))


def check_reasons(reasons: list[str]) -> None:
    """The first one says it; what a busy machine adds is one line each, too."""
    assert "No space left on device" in reasons[0]
    assert not any("\n" in reason or "cannot be read" in reason for reason in reasons), reasons


def reasons_of_full(suite: str, workload: str, system: str, directory: Path) -> list[str]:
    """What a campaign says of its only run, for which there is not enough room; it leaves nothing mounted."""
    (directory / "disk").mkdir()
    (directory / "c").mkdir()
    with loop(directory / "disk", 2 * FULL) as device:
        write_plan(planned(suite, workload, device, system), directory / "c")
        code, events, err = runner.finish(runner.start(directory / "c"))
        mounts = Path("/proc/self/mountinfo").read_text()
        assert f" {device} " not in mounts and " /run/userblk/" not in mounts
    assert code == 2 and err == "", events
    return runner.said(events)


@pytest.mark.parametrize(
    ("suite", "workload"),
    [("kv", "sqlite-a"), ("postgresql", "oltp"), ("source-tree", "unpack"), ("source-tree", "build")],
)
def test_a_file_system_that_would_be_full(suite: str, workload: str) -> None:
    with pytest.raises(
        ConfigError, match=f"{workload} may need [0-9]+ bytes, but the file system .* has {FULL}; use fewer$"
    ):
        planned(suite, workload, "/dev/null")
