# SPDX-License-Identifier: BSD-3-Clause
"""Suites of uFS, and the ext4 in other ways that it is compared with."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
import runner_process as runner
from loops import MIB, loop
from synthetic import make_campaign
from userblk.analysis.paper import compare_with_paper
from userblk.analysis.paper_claims import ClaimVerdict
from userblk.analysis.papers import load_paper
from userblk.analysis.summaries import read_campaign
from userblk.analysis.tabulate import make_tables
from userblk.harness.engines import flow, ops
from userblk.harness.machine import paths
from userblk.harness.machine.blockdev import BlockDevice
from userblk.harness.machine.paths import CONFIGS
from userblk.harness.machine.subprocesses import Recorder
from userblk.harness.machine.teardown import Teardown
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.parts import ENGINES
from userblk.harness.model.plan import Device, Plan, make_plan, write_plan
from userblk.harness.systems import ext4
from userblk.harness.systems.base import BringUpError, Context
from wrong_systems import complaint

UFS = load_paper("ufs", CONFIGS)
SIZE = 64 * MIB
VARIANTS = ("ext4-nojournal", "ext4-noreadahead", "ext4-data-journal")


@pytest.mark.parametrize(("suite", "table"), [("ufs-ops", 2), ("ufs-files", 3)])
@pytest.mark.parametrize("profile", ["quick", "paper"])
def test_its_workloads_are_those_of_the_figures(suite: str, table: int, profile: str) -> None:
    found = load_suite(suite, profile).workloads
    assert [("nvme", workload.id) for workload in found] == list(UFS.tables[table].rows)


def test_single_operations_are_those_of_the_program() -> None:
    text = (Path(__file__).parents[2] / "harness/ops/operations.c").read_text()
    rows = re.findall(r'^\t(?:BOTH\("(\w+)", |\{)"(\w+)"', text.partition("/* uFS. */")[2], re.M)
    known = [name for row in rows for name in row if name]
    assert {workload.file for workload in load_suite("ufs-ops").workloads} == set(known) and len(known) == 32


def test_what_more_clients_do_is_judged_operation_by_operation(tmp_path: Path) -> None:
    """Section 4.2 is about an ext4 without journal; two clients alone leave its sentences open."""
    names = [f"{name}-{clients}w" for name in ("s1mp", "cmp", "rdpr", "wdpr") for clients in (1, 2)]
    systems = {"native": 1.0, "ext4-nojournal": 1.0}
    made = make_campaign(
        tmp_path, repetitions=3, suite="ufs-ops", workloads=names, systems=list(systems), speed=systems
    )
    for file in made.rglob("summary.json"):
        summary = json.loads(file.read_text())
        scales = summary["system"] == "ext4-nojournal" and not summary["workload"].startswith("cmp")
        kops = 190 if scales and summary["workload"].endswith("-2w") else 100
        summary["metrics"]["throughput_kops"] = kops + 0.1 * summary["repetition"]
        file.write_text(json.dumps(summary))
    campaign = read_campaign(made)
    claims = {ours.claim.id: ours for ours, _ in compare_with_paper([campaign], make_tables(campaign.runs), UFS).claims}
    expected = {"stat-scales": (1, 0), "metadata-flat": (1, 1), "reads-scale": (1, 0), "writes-scale": (1, 0)}
    assert {name: (claims[name].true, claims[name].false) for name in expected} == expected
    assert {claims[name].verdict for name in expected} == {ClaimVerdict.OPEN}
    assert claims["varmail-clients"].verdict is ClaimVerdict.NOT_MEASURED


# kop/s of one client in the lab (docs/ufs.md; RMP and RMS, which are slower, as UMP), and operations of a file. Clients
# that do not disturb each other, here, are as fast as can be.
FASTEST = {
    "cmp": (60.78 * 1.02, 1), "cms": (60.65 * 1.02, 1), "ump": (88.77, 1), "ums": (88.77, 1), "rmp": (88.77, 1),
    "rms": (88.77, 1), "smallfile-create": (27.41 * 3.08, 4), "smallfile-unlink": (88.77 * 1.04, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", FASTEST)
@pytest.mark.parametrize("clients", [1, 2, 4, 10])
def test_what_ends_with_its_files_is_valid_in_profile_paper(tmp_path: Path, name: str, clients: int) -> None:
    """Runs of less than 5 s had one interval. Its start should have been discarded, and nothing was left."""
    suite = "ufs-files" if name.startswith("small") else "ufs-ops"
    plan = make_plan(
        suite=load_suite(suite, "paper"), profile=load_profile("paper"), systems=[load_system("native")],
        devices=[Device("nvme", "/dev/null", "A")], campaign="c", build="b",
    )  # fmt: skip
    workload = next(one for one in plan.suite.workloads if re.fullmatch(f"{name}-{clients}[cw]", one.id))
    engine = ENGINES[workload.engine]
    assert isinstance(engine, flow.Flow)
    profile = engine.timed(plan.profile.of(workload, "nvme"), workload)
    options = dict(word.split("=") for word in flow.run_options(workload, profile, Path("x")))
    (kops, each), most, interval = FASTEST[name], float(options["--seconds"]), float(options["--interval"])
    values = workload.variables["nvme"]
    operations = values.get("nfiles", values.get("files", 0)) * each
    rate = kops * clients * 1e3
    seconds = min(most, operations / rate)
    ends = [*(interval * i for i in range(1, int(seconds / interval) + 1)), seconds]
    latency = {"sum": 1000, "mean": 1.0, "bins": {}}
    intervals = [
        {"start_s": a, "end_s": b, "ops": int((b - a) * rate), "bytes": 0, "flowops": {}, "latency_ns": latency}
        for a, b in pairwise((0.0, *ends))
    ]
    report = {
        "schema": 1, "program": "p", "original": False, "threads": clients, "threads_without_file": clients,
        "started_monotonic_s": 1.0, "duration_s": seconds, "end": "time" if seconds == most else "all-done",
        "variables": {}, "filesets": [], "flowops": [], "intervals": intervals,
    }  # fmt: skip
    (tmp_path / "r.json").write_text(json.dumps(report))
    result = flow.parse(tmp_path / "r.json", workload, profile)
    assert result.problems == () and result.throughput_kops == pytest.approx(kops * clients, rel=0.001)
    assert result.duration_s + result.warm_up.cut_s == pytest.approx(seconds) and result.ramp_s == 0
    assert profile.interval_ms <= 500  # the machine's CPU time is of these seconds, too


def test_servers_have_the_times_of_the_profile() -> None:
    workloads = {one.id: one for one in planned("/dev/null", "ufs-files", None, "paper").suite.workloads}
    profile, engine = load_profile("paper"), ENGINES["flow"]
    assert engine.duration_s(workloads["varmail-1c"], profile) == 3600
    assert workloads["varmail-1c"].variables["nvme"]["runtime"] == 3600
    assert engine.duration_s(workloads["largefile-1c"], profile) == 30
    assert workloads["largefile-1c"].variables["nvme"]["runtime"] == 30
    for virtual in (False, True):
        quick = load_profile("quick", virtual=virtual)
        unlink = next(one for one in load_suite("ufs-files").workloads if one.id == "smallfile-unlink-1c")
        assert engine.duration_s(unlink, quick) == quick.files.runtime_s


def test_bytes_are_divided_among_the_clients() -> None:
    found = {workload.id: workload for workload in load_suite("ufs-ops").workloads}
    words = ops.argv(Path("p"), found["rdpr-10w"], 1, "run", Path("/d"))
    assert f"--size={536870912 // 10 // 4096 * 4096}" in words
    assert "--size=536870912" in ops.argv(Path("p"), found["rdsr-10w"], 1, "run", Path("/d"))


def test_every_variable_is_one_of_the_workloads_file() -> None:
    for profile in ("quick", "paper"):
        for workload in planned("/dev/null", "ufs-files", None, profile).suite.workloads:
            text = (CONFIGS / f"workloads/{workload.file}.f").read_text()
            known = set(re.findall(r"^set \$(\w+)=", text, re.MULTILINE))
            assert set(workload.variables["nvme"]) <= known, workload.id


def test_each_client_of_a_server_is_a_process() -> None:
    found = {workload.id: workload for workload in planned("/dev/null", "ufs-files", None).suite.workloads}
    for name in ("varmail", "webserver"):
        values = found[f"{name}-4c"].variables["nvme"]
        assert (values["nprocesses"], values["nthreads"], found[f"{name}-4c"].threads) == (4, 1, 4)
    assert "nprocesses" not in found["smallfile-read-4c"].variables["nvme"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('mkfs = ["-O", 1]', "mkfs="),
        ('mount = "data=journal"', "mount=data=journal: must be a list"),
        ("read_ahead_kb = -1", "read_ahead_kb=-1: must be an integer of at least 0"),
        ('device = "disk"', "device=disk: must be one of ramdisk"),
        ("journal = false", "journal=False: unknown key"),
    ],
)
def test_a_wrong_system_is_named(text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert says in complaint("ext4", text, tmp_path, monkeypatch)


def test_they_are_for_files_alone() -> None:
    block = load_suite("bdus-block").workloads[0]
    assert not any(load_system(name).runs(block) for name in (*VARIANTS, "ext4-ramdisk"))
    assert all(load_system(name).runs(load_suite("ufs-ops").workloads[0]) for name in (*VARIANTS, "ext4-ramdisk"))


@pytest.mark.parametrize("own", [True, False])
def test_the_disk_in_memory_that_a_guest_begins_with_gives_way(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In virtual time the lab has the module loaded; somebody else's disk stays."""
    loaded = {"brd"}
    monkeypatch.setattr(ext4, "module_loaded", loaded.__contains__)
    monkeypatch.setattr(ext4, "remove_module", loaded.remove)
    monkeypatch.setattr(ext4.subprocess, "run", lambda argv, **_: subprocess.CompletedProcess(argv, 1, "", "no room"))
    monkeypatch.delenv("LAB_RAM", raising=False)
    if own:
        monkeypatch.setenv("LAB_RAM", "/dev/ram0")
    disk = BlockDevice("/dev/x", "x", "x", 1, SIZE, 512, False, "")
    teardown = Teardown()
    context = Context(load_system("ext4-ramdisk"), disk, SIZE, "b", Recorder(Path()), teardown, ExitStack())
    with pytest.raises(BringUpError, match="no room" if own else "is loaded already"):
        ext4.Ext4().up(context)
    assert loaded == (set() if own else {"brd"})
    assert [step for step, _ in teardown.steps] == ["remove_module"] * own


# ---- on a real device ----------------------------------------------------------------------


def planned(device: str, suite: str, workloads: list[str] | None, profile: str = "quick") -> Plan:
    found = load_profile(profile)
    files = dataclasses.replace(found.files, runtime_s=1, memory_bytes=runner.MEMORY, size={"nvme": SIZE})
    return make_plan(
        suite=load_suite(suite, profile),
        profile=dataclasses.replace(found, area={"nvme": SIZE}, repetitions=1, max_repetitions=1, files=files),
        systems=[load_system(name) for name in VARIANTS],
        devices=[Device("nvme", device, str(SIZE))],
        campaign="test",
        build="build/host",
        host="here",
        workloads=workloads,
    )


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    if not (paths.HOST_BUILD / "ops/userblk-ops").exists():
        pytest.skip("userblk-ops is not built; run: make ops")
    (tmp_path / "image").mkdir()
    with loop(tmp_path / "image", SIZE) as path:
        yield path


def test_each_is_made_and_mounted_as_its_name_says(device: str, tmp_path: Path) -> None:
    ahead = Path("/sys/block", Path(device).name, "queue/read_ahead_kb")
    before = ahead.read_text()
    assert before.strip() != "0"
    plan = planned(device, "ufs-ops", ["s1mp-1w"])
    (tmp_path / "c").mkdir()
    write_plan(plan, tmp_path / "c")
    code, events, err = runner.finish(runner.start(tmp_path / "c"))
    assert (code, err) == (0, ""), events
    assert ahead.read_text() == before
    done = {}
    for entry in plan.entries:
        directory = tmp_path / "c" / plan.directory(entry)
        commands = json.loads((directory / "preparation/commands.json").read_text())
        done[entry.system] = [" ".join(command["argv"]) for command in commands]
        summary = json.loads((directory / "summary.json").read_text())
        assert summary["valid"], summary["invalid"]
        assert (summary["settings"]["read_ahead_kb"] == 0) is (entry.system == "ext4-noreadahead")
    assert any("mkfs.ext4 -q -i 4096 -O ^has_journal -E" in one for one in done["ext4-nojournal"])
    assert sum("mount -t ext4 -o data=journal" in one for one in done["ext4-data-journal"]) == 2
    assert not any("has_journal" in one or "-o data" in one for one in done["ext4-noreadahead"])
