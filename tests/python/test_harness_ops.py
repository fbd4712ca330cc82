# SPDX-License-Identifier: BSD-3-Clause
"""Suites of single operations: their workloads, and a run on ext4, over it and on a file system without data."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import runner_process as runner
from loops import MIB, loop
from userblk.analysis.summaries import run_from_summary
from userblk.analysis.tabulate import make_tables
from userblk.harness.engines import flow, ops
from userblk.harness.machine import paths
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.parts import ENGINES
from userblk.harness.model.plan import Device, Plan, make_plan, write_plan
from userblk.harness.model.tables import ConfigError
from userblk.harness.running.campaign import choices

SIZE = 64 * MIB
SYSTEMS = ("native", "rfuse-stackfs", "nullfs", "nullfs-clone-fd")


def plan_for(device: str, directory: Path, workloads: list[str]) -> Plan:
    profile = load_profile("quick")
    files = dataclasses.replace(profile.files, runtime_s=1, memory_bytes=runner.MEMORY, size={"sata": SIZE})
    plan = make_plan(
        suite=load_suite("fxmark"),
        profile=dataclasses.replace(profile, area={"sata": SIZE}, repetitions=1, max_repetitions=1, files=files),
        systems=[load_system(name) for name in SYSTEMS],
        devices=[Device("sata", device, str(SIZE))],
        campaign="test",
        build="build/host",
        host="here",
        workloads=workloads,
    )
    # As many files as a small file system holds.
    small = [
        dataclasses.replace(one, fixed={key: min(value, 10000) for key, value in one.fixed.items()})
        for one in plan.suite.workloads
    ]
    plan = dataclasses.replace(plan, suite=dataclasses.replace(plan.suite, workloads=tuple(small)))
    directory.mkdir()
    write_plan(plan, directory)
    return plan


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    for name in ("ops/userblk-ops", "fuse-passthrough/userblk-passthrough", "fuse-nullfs/userblk-nullfs"):
        if not (paths.HOST_BUILD / name).exists():
            pytest.skip(f"{name} is not built; run: make")
    (tmp_path / "image").mkdir()
    with loop(tmp_path / "image", SIZE) as path:
        yield path


@pytest.mark.parametrize("profile", ["quick", "paper"])
def test_its_operations_are_those_of_the_program(profile: str) -> None:
    suite = load_suite("fxmark", profile)
    text = (Path(__file__).parents[2] / "harness/ops/operations.c").read_text()
    known = re.findall(r'^\t\{"(M[\w-]+)", "', text, re.M)
    assert list(dict.fromkeys(one.file for one in suite.workloads)) == known
    assert len(suite.workloads) == 15 * 7 and suite.workloads[0].id == "mwcl-1w"


@pytest.mark.parametrize("suite", ["fxmark", "ufs-ops"])
def test_files_of_profile_paper_fit_the_file_system(suite: str) -> None:
    """By default each worker of MWCL and MWCM has 10 million, ten more than there are inodes."""
    text = (Path(__file__).parents[2] / "harness/ops/operations.c").read_text()
    table = re.sub(r"\s+", " ", text.partition("const struct operation operations[]")[2])
    defaults = {name: int(files) for name, files in re.findall(r'\{"([\w-]+)", "[^"]*", \w+, \w+, (\d+),', table)}
    assert defaults["MWCL"] == 10_000_000
    inodes = min(load_profile("paper").files.size.values()) // ENGINES["ops"].bytes_per_inode  # type: ignore[attr-defined]
    for workload in load_suite(suite, "paper").workloads:
        words = dict(word.partition("=")[::2] for word in ops.argv(Path("p"), workload, 7, "run", Path("/d")))
        each = int(words.get("--files", defaults.get(workload.file, 0)))
        assert each * workload.threads < 0.95 * inodes, workload.id


def test_fxmark_runs_as_long_as_its_program() -> None:
    workload = load_suite("fxmark", "paper").workloads[0]
    profile = ENGINES["ops"].timed(load_profile("paper"), workload)  # type: ignore[attr-defined]
    words = flow.run_options(workload, profile, Path("x"))
    assert words[:2] == ["--seconds=30", "--interval=0.3"] and profile.interval_ms == 300
    assert ENGINES["ops"].duration_s(workload, load_profile("paper")) == 30
    assert load_suite("fxmark").workloads[0].timing == {}  # profile quick has its own


def test_files_are_divided_among_the_workers() -> None:
    workload = next(one for one in load_suite("fxmark").workloads if one.id == "mwul-4w")
    words = ops.argv(Path("p"), workload, 7, "run", Path("/d"), "--json=x")
    assert words == [
        "p", "--files=30000", "--op=MWUL", "--workers=4", "--seed=7", "--phase=run", "--json=x", "/d",
    ]  # fmt: skip


@pytest.mark.parametrize(("virtual", "files"), [(False, 120000), (True, 32000)])
def test_a_short_run_has_fewer_files(virtual: bool, files: int) -> None:
    workload = next(one for one in load_suite("fxmark").workloads if one.id == "mwum-1w")
    found = ENGINES["ops"].with_values(workload, load_profile("quick", virtual=virtual), [], ["nvme"])
    assert found.fixed == {"files": files} and found.variables == {"nvme": {"files": files}}


def test_overwrites_and_appends_are_writes() -> None:
    writers = {one.file for one in load_suite("ufs-ops").workloads if one.writes}
    assert writers == {f"{kind}{place}{who}" for kind in ("WM", "WD") for place in "PS" for who in ("R", "S")} | {
        "AMPS", "AMSS", "ADPS", "ADSS",
    }  # fmt: skip


def test_what_has_no_files_below_is_for_these_alone() -> None:
    suite, nullfs = load_suite("fxmark"), load_system("nullfs")
    assert all(nullfs.runs(workload) for workload in suite.workloads)
    assert not any(nullfs.runs(one) for name in ("bdus-block", "bdus-fs") for one in load_suite(name).workloads)
    assert not load_system("nbdkit-null").runs(suite.workloads[0])


def test_an_operation_with_no_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (paths.CONFIGS / "suites/fxmark.toml").read_text()
    (tmp_path / "suites").mkdir()
    (tmp_path / "papers").symlink_to(paths.CONFIGS / "papers")
    (tmp_path / "suites/fxmark.toml").write_text(text.replace("[sizes.quick]", "[sizes.quick]\nMWCX = { files = 1 }"))
    monkeypatch.setattr("userblk.harness.model.tables.CONFIGS", tmp_path)
    with pytest.raises(ConfigError, match="MWCX"):
        load_suite("fxmark")


def test_a_suite_of_no_paper_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "suites").mkdir()
    shutil.copy(paths.CONFIGS / "suites/fxmark.toml", tmp_path / "suites")
    monkeypatch.setattr("userblk.harness.model.tables.CONFIGS", tmp_path)
    with pytest.raises(ConfigError, match="parameters=rfuse: configs/papers/rfuse/parameters.toml is missing; add it"):
        load_suite("fxmark")


@pytest.mark.parametrize(
    ("suite", "workload", "says"),
    [
        (
            "fxmark",
            "mwcl-1w",
            "the time of an operation: in profile paper FxMark's 30 s, in others the profile's; less",
        ),
        ("ufs-ops", "wmpr-1w", "dirty pages of writes in memory (wm*) and to the disk (wd*): the same limit for both"),
        ("ufs-ops", "rdsr-1w", "memory: 4 GiB for the workload and its page cache"),
    ],
)
def test_what_differs_from_the_paper_is_said(suite: str, workload: str, says: str) -> None:
    plan = make_plan(
        suite=load_suite(suite),
        profile=load_profile("quick"),
        systems=[load_system("native")],
        devices=[Device("nvme", "/dev/none", "serial")],
        campaign="test",
        build="build/host",
        host="here",
        workloads=[workload],
    )
    assert any(line.startswith(says) for line in choices(plan))


def test_from_plan_to_table(device: str, tmp_path: Path) -> None:
    cpus = len(os.sched_getaffinity(0))
    plan_for(device, tmp_path / "c", ["mrph-1w", "mrph-40w"] if cpus < 40 else ["mrph-1w"])
    code, events, err = runner.finish(runner.start(tmp_path / "c"))
    assert (code, err) == (0, ""), events
    left_out = [event["reason"] for event in events if event["event"] == "entry-left-out"]
    reason = f"mrph-40w: 40 workers on CPUs of their own need more than the {cpus} of this machine"
    assert left_out == [reason] * len(SYSTEMS) * (cpus < 40)
    files = (tmp_path / "c/here").rglob("summary.json")
    found = {summary["system"]: summary for summary in (json.loads(file.read_text()) for file in files)}
    assert set(found) == set(SYSTEMS)
    for name, summary in found.items():
        settings = summary["settings"]
        assert summary["valid"], summary["invalid"]
        assert settings["ops"]["operations"]["operation"] > 0 and settings["ops"]["threads"] == 1
        assert ("negotiated" in settings) is (name != "native")
    (table,) = make_tables([run_from_summary(summary, "here") for summary in found.values()])
    assert set(table.systems) == set(SYSTEMS) and ENGINES["ops"].operation in table.notes


def test_it_is_an_engine_on_files() -> None:
    assert ENGINES["ops"].on_files and ENGINES["ops"].beyond(load_suite("fxmark").workloads[0], 1) == ""
