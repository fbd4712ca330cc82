# SPDX-License-Identifier: BSD-3-Clause
"""What is run, in which order."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from made_up import small_plan
from userblk.harness.engines.base import device_engine
from userblk.harness.engines.flow import Flow, run_options
from userblk.harness.machine.filesystem import MKFS_OPTIONS
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.plan import FILL_BYTES_PER_S, Device, Plan, estimate, make_plan, read_plan, write_plan
from userblk.harness.model.tables import ConfigError
from userblk.harness.systems.base import ADMIN_PATH

DEVICES = [Device("sata", "/dev/null", "A"), Device("nvme", "$X", "B")]
SYSTEMS = [load_system(name) for name in ("native", "nbdkit", "tcmu")]


def plan_of(profile: str, seed: int | None = 7, **options: object) -> Plan:
    arguments = {"systems": SYSTEMS, "devices": DEVICES, "campaign": "c", "build": "build/host"} | options
    arguments = {"suite": load_suite("bdus-block")} | arguments
    return make_plan(profile=load_profile(profile), seed=seed, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(("profile", "rounds"), [("quick", 3), ("paper", 5)])
def test_a_round_is_every_cell_once(profile: str, rounds: int) -> None:
    plan = plan_of(profile)
    assert len(plan.entries) == 16 * 2 * 3 * rounds
    assert [entry.index for entry in plan.entries] == list(range(len(plan.entries)))
    for number in range(rounds):
        cells = Counter((e.device, e.system, e.workload) for e in plan.entries[number * 96 : number * 96 + 96])
        assert len(cells) == 96 and set(cells.values()) == {1}
        assert {e.repetition for e in plan.entries[number * 96 : number * 96 + 96]} == {number + 1}
    assert len({entry.seed for entry in plan.entries}) == len(plan.entries)


def test_what_is_on_no_device_is_run_once() -> None:
    suite = load_suite("attach")
    systems = [load_system(name) for name in suite.systems]
    plan = make_plan(
        suite=suite, systems=systems, devices=DEVICES, profile=load_profile("quick"), campaign="c", build="b", seed=7
    )
    for number in range(1, plan.rounds + 1):
        cells = [(e.system, e.workload) for e in plan.entries if e.repetition == number]
        assert len(cells) == len(set(cells)) == len(systems) * len(suite.workloads)
    # 16 times one disk, twice 8 of them and once 64, each of which took 0.9 s.
    per_round = len(systems) * (0.9 * (16 + 2 * 8 + 64) + 3 * plan.profile.overhead_s + plan.profile.bring_up_s)
    assert estimate(plan).seconds == pytest.approx(plan.rounds * per_round)


def test_quick_blocks_share_a_bring_up_and_read_first() -> None:
    orders = set()
    blocks = list(plan_of("quick").blocks())
    assert len(blocks) == 18
    for _, entries in blocks:
        assert len({(e.device, e.system, e.repetition) for e in entries}) == 1
        kinds = ["write" in e.workload for e in entries]
        assert kinds == [False] * 8 + [True] * 8
        orders.add(tuple(e.workload for e in entries))
    assert len(orders) == 18  # each is shuffled for itself
    rounds = [[(e[0].device, e[0].system) for _, e in blocks[i : i + 6]] for i in (0, 6, 12)]
    assert not rounds[0] == rounds[1] == rounds[2]


def test_paper_brings_up_for_every_run() -> None:
    plan = plan_of("paper")
    assert [len(entries) for _, entries in plan.blocks()] == [1] * len(plan.entries)


def test_the_seed_decides_and_is_recorded() -> None:
    assert plan_of("quick", 7) == plan_of("quick", 7)
    assert plan_of("quick", 7).entries != plan_of("quick", 8).entries
    free = plan_of("quick", None)
    assert plan_of("quick", free.seed) == free


def test_subsets_and_repetitions() -> None:
    plan = plan_of("quick", workloads=["rand-write-16th-4k", "seq-read-1th-4k"], repetitions=1)
    assert len(plan.entries) == 12
    with pytest.raises(ConfigError, match="workload=randread: unknown; use one of seq-read-1th-4k,"):
        plan_of("quick", workloads=["randread"])
    with pytest.raises(ConfigError, match="repetitions=0: must be at least 1"):
        plan_of("quick", repetitions=0)
    with pytest.raises(ConfigError, match="device=hdd: profile quick has no area"):
        plan_of("quick", devices=[Device("hdd", "/dev/x", "")])
    with pytest.raises(ConfigError, match=r"campaign=\.\./x: use lower case"):
        plan_of("quick", campaign="../x")


def bdus(profile: str = "quick", *systems: str) -> Plan:
    names = systems or ("native", "nbdkit", "tcmu", "fuse")
    return make_plan(
        suite=load_suite("bdus"),
        profile=load_profile(profile),
        systems=[load_system(name) for name in names],
        devices=DEVICES,
        campaign="c",
        build="build/host",
        seed=7,
    )


@pytest.mark.parametrize("profile", ["quick", "paper"])
def test_bdus_is_every_workload_on_every_system_that_can(profile: str) -> None:
    plan = bdus(profile)
    rounds = plan.profile.repetitions
    assert len(plan.entries) == 2 * (16 * 3 + 25 * 4) * rounds
    systems = Counter((entry.suite, entry.system) for entry in plan.entries)
    assert systems["bdus-block", "fuse"] == 0 and systems["bdus-fs", "fuse"] == 50 * rounds
    cells = Counter((e.device, e.suite, e.system, e.workload) for e in plan.entries)
    assert set(cells.values()) == {rounds}
    directories = {plan.directory(entry) for entry in plan.entries}
    assert len(directories) == len(plan.entries)  # though ids occur in both suites
    for entry in plan.entries:
        assert plan.workload(entry).suite == entry.suite


def test_a_block_is_one_system_with_or_without_file_systems() -> None:
    for _, entries in bdus().blocks():
        assert len({(e.device, e.system, e.suite) for e in entries}) == 1
        assert len(entries) in (16, 25)


def test_no_file_system_on_null_devices_and_no_fuse_on_block_workloads() -> None:
    assert {e.suite for e in bdus("quick", "tcmu-null").entries} == {"bdus-block"}
    with pytest.raises(ConfigError, match="system=fuse: none of the workloads can run on it"):
        plan_of("quick", systems=[load_system("fuse")])


def test_variables_follow_the_profile_and_the_device() -> None:
    workloads = {workload.id: workload.variables for workload in bdus("paper").suite.workloads if workload.variables}
    assert len(workloads) == 25
    data = workloads["rand-read-16th-4k"]
    own = {"nthreads": 16, "nfiles": 16, "iosize": 4096, "runtime": 900}
    assert data["sata"] == {"filesize": 4 << 30, "iters": 1 << 20} | own
    assert data["nvme"] == {"filesize": 16 << 30, "iters": 1 << 22} | own
    assert workloads["web-server"]["nvme"] == {"nfiles": 1250000, "memsize": 10 << 20, "runtime": 3600}
    quick = {workload.id: workload.variables for workload in bdus().suite.workloads}
    assert quick["read-1th"]["sata"]["finish"] == 3 * quick["read-1th"]["sata"]["nfiles"]
    profile = dataclasses.replace(load_profile("quick"), name="other")
    with pytest.raises(ConfigError, match="size of seq-read-1th-4k has no value for profile other"):
        make_plan(
            suite=load_suite("bdus-fs"), profile=profile, systems=SYSTEMS, devices=DEVICES, campaign="c", build="b"
        )


def test_the_whole_of_bdus_fits_its_time() -> None:
    plan = bdus()
    expected = estimate(plan)
    assert len(expected.each) == len(plan.entries) and sum(expected.each) == pytest.approx(expected.seconds)
    assert expected.seconds < 2.5 * 3600


def test_estimate_counts_what_may_be_written() -> None:
    plan = plan_of("quick", systems=[load_system("native"), load_system("tcmu-null")])
    area = plan.profile.area["sata"]
    # 3 rounds x (8 writes and a zero-fill); the null device lies on nothing
    assert estimate(plan).bytes_written == {"sata": 27 * area, "nvme": 27 * area}
    assert estimate(plan_of("paper")).seconds > 480 * 900
    assert estimate(plan_of("quick")).seconds < 30 * 60


@pytest.mark.parametrize(
    ("suite", "workload", "files"),
    [
        ("kv", "sqlite-c", 20000 << 12),
        ("postgresql", "oltp", 2 * 5000 * 600),
        ("source-tree", "build", 16 << 20),
        ("rfuse-fio", "seq-read-1th-128k", 768 << 20),
        ("fxmark", "mrpl-1w", 0),
    ],
)
def test_a_new_file_system_is_written_too(suite: str, workload: str, files: int, tmp_path: Path) -> None:
    """A run of suite kv wrote twice of what the plan called the most."""
    plan = plan_of("quick", suite=load_suite(suite), systems=[load_system("native")], workloads=[workload])
    (found,) = plan.suite.workloads
    engine = device_engine(found.engine)
    assert isinstance(engine, Flow)
    with (tmp_path / "image").open("wb") as image:
        image.truncate(plan.profile.files.size["sata"])
    per_inode = ["-i", str(engine.bytes_per_inode)] * bool(engine.bytes_per_inode)
    mkfs = ["mkfs.ext4", "-q", *per_inode, "-E", MKFS_OPTIONS, str(tmp_path / "image")]
    subprocess.run(mkfs, check=True, env={**os.environ, "PATH": f"{os.environ['PATH']}:{ADMIN_PATH}"})
    new = (tmp_path / "image").stat().st_blocks * 512
    assert new > 64 << 20
    assert engine.written(found, plan.profile, "sata") >= new + files


def test_plan_json_keeps_everything(tmp_path: Path) -> None:
    plan = plan_of("quick", systems=[*SYSTEMS, load_system("bdus"), load_system("nbdkit-file")])
    path = write_plan(plan, tmp_path)
    assert read_plan(path) == plan
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    assert plan.directory(plan.entries[0]).parts[-1] == "1"
    value = json.loads(path.read_text())
    path.write_text(json.dumps(value | {"schema": 1}))
    with pytest.raises(ConfigError, match="another schema than 4"):
        read_plan(path)
    path.write_text(json.dumps({"schema": 4, "suite": 5}))
    with pytest.raises(ConfigError, match="not a plan"):
        read_plan(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_plan(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("suite", "workload", "files", "seconds"),
    [
        ("bdus-fs", "read-1th", 2 << 30, 0),
        ("bdus-fs", "seq-write-1th-4k", 2 << 30, 3),
        ("fxmark", "mwcl-1w", 2 << 30, 0),
        ("ufs-ops", "wmpr-1w", 2 << 30, 3),
        ("rfuse-fio", "seq-write-1th-128k", 768 << 20, 0),
        ("rfuse-fio", "rand-write-1th-4k", 768 << 20, 3),
        ("kv", "rocksdb-a", 4 * 20_000 * 1024, 3),
        ("kv", "rocksdb-c", 4 * 20_000 * 1024, 0),
        ("postgresql", "oltp", 2 * 300 * 10_000, 3),
        ("source-tree", "unpack", 12 * (16 << 20), 0),
    ],
)
def test_what_file_systems_write_counts(suite: str, workload: str, files: int, seconds: float) -> None:
    """A new file system, the files, which may fill it, and what a device takes in the seconds that it may write."""
    plan = make_plan(
        suite=load_suite(suite),
        profile=load_profile("quick"),
        systems=SYSTEMS[:1],
        devices=DEVICES[:1],
        campaign="c",
        build="build/host",
        workloads=[workload],
        repetitions=1,
    )
    engine = device_engine(plan.suite.workloads[0].engine)
    assert isinstance(engine, Flow)
    whole = plan.profile.files.size["sata"]
    new = engine.new_bytes(plan.profile, "sata") if files < whole else 0
    assert estimate(plan).bytes_written == {"sata": new + files + seconds * FILL_BYTES_PER_S}


def test_idle_virtual_time_costs_little() -> None:
    """A second of the slow disk is estimated as less than one of the fast disk, on files too."""
    profile = load_profile("quick", virtual=True)
    for suite, workload in (("bdus-block", "seq-write-1th-4k"), ("bdus-fs", "seq-write-1th-4k")):
        plan = make_plan(
            suite=load_suite(suite),
            profile=profile,
            systems=SYSTEMS[:1],
            devices=DEVICES,
            campaign="c",
            build="b",
            model="cpu-1",
            repetitions=1,
            workloads=[workload],
        )
        overhead = profile.files.overhead_s if suite == "bdus-fs" else profile.overhead_s
        for entry, seconds in zip(plan.entries, estimate(plan).each, strict=True):
            own = profile.of(plan.workload(entry), entry.device)
            times = own.files.ramp_s + own.files.runtime_s if suite == "bdus-fs" else own.ramp_s + own.runtime_s
            slowdown = {"sata": 1.7, "nvme": 6.4}[entry.device]
            expected = slowdown * times + overhead + profile.bring_up_s
            assert seconds == pytest.approx(expected), entry


def test_a_load_without_a_pause_has_a_cost_of_its_own() -> None:
    """With either disk: two runs of failover on the slow one, with 15 s of load, took 12 minutes side by side."""
    profile = load_profile("quick", virtual=True)
    plan = make_plan(
        suite=load_suite("failover"),
        profile=profile,
        systems=[load_system("ublk-uring")],
        devices=DEVICES,
        campaign="c",
        build="b",
        model="cpu-1",
        repetitions=1,
    )
    assert len(plan.entries) == 4
    assert all(each == 1.2 * 40 + profile.overhead_s + profile.bring_up_s for each in estimate(plan).each)


def test_files_have_times_of_their_own_in_virtual_time() -> None:
    """Workloads that write have longer ones on the slow disk, and one server; userblk-flow has them, or --warm-up."""
    profile, suite = load_profile("quick", virtual=True), load_suite("bdus-fs")
    of = {workload.id: workload for workload in suite.workloads}

    def planned(warm_up_s: int | None = None) -> Plan:
        return make_plan(
            suite=suite,
            profile=profile,
            systems=[load_system("native")],
            devices=[Device("sata", "$LAB_SATA", "MODELSATA")],
            campaign="c",
            build="b",
            warm_up_s=warm_up_s,
        )

    runtimes = {workload.id: workload.variables["sata"]["runtime"] for workload in planned().suite.workloads}
    write, read = (profile.of(of[name], "sata") for name in ("rand-write-1th-4k", "rand-read-1th-4k"))
    assert read == profile and write.files.runtime_s > read.files.runtime_s
    for name in profile.files.workloads:  # which would hold for none if misspelt
        own = profile.of(of[name], "sata").files
        assert own.ramp_s > profile.of(of["web-server"], "sata").files.ramp_s == 0
        assert f"--seconds={own.ramp_s + own.macro_runtime_s:g}" in run_options(
            of[name], profile.of(of[name], "sata"), Path("/r.json")
        )
    seconds = write.files.ramp_s + write.files.runtime_s
    assert runtimes["rand-write-1th-4k"] == math.ceil(seconds)
    assert f"--seconds={seconds:g}" in run_options(of["rand-write-1th-4k"], write, Path("/r.json"))
    assert {planned(3).profile.of(one, "sata").files.ramp_s for one in suite.workloads} == {3}


def test_reads_and_writes_have_times_of_their_own_in_virtual_time() -> None:
    """A run has them, and the estimate; --warm-up holds for all."""
    profile = load_profile("quick", virtual=True)
    read, write = (w for w in load_suite("bdus-block").workloads if w.id in ("rand-read-1th-4k", "rand-write-1th-4k"))
    reads, writes = profile.of(read, "nvme"), profile.of(write, "nvme")
    assert (reads.ramp_s, reads.runtime_s) == (profile.read_ramp_s, profile.read_runtime_s)
    assert reads.ramp_s < writes.ramp_s == profile.writes["nvme"]["ramp_s"]
    assert load_profile("quick").of(read, "nvme") == load_profile("quick").of(write, "nvme") == load_profile("quick")
    assert writes.fixed_warm_up and not reads.fixed_warm_up  # write-back is steady from the start on
    assert profile.dirty_limits("nvme") == profile.dirty_limits("sata") > load_profile("quick").dirty_limits("sata")
    own = profile.writes["nvme"] | {"dirty_bytes": 1 << 28, "dirty_background_bytes": 1 << 27}
    other = dataclasses.replace(profile, writes={**profile.writes, "nvme": own})
    assert other.dirty_limits("nvme") == (1 << 28, 1 << 27)
    assert other.dirty_limits("sata") == profile.dirty_limits("sata")

    def seconds(workload: str, **options: object) -> float:
        made = make_plan(
            suite=load_suite("bdus-block"),
            profile=profile,
            systems=[load_system("nbdkit-null")],
            devices=[Device("nvme", "$LAB_NVME", "MODELNVME")],
            campaign="c",
            build="b",
            workloads=[workload],
            repetitions=1,
            **options,  # type: ignore[arg-type]
        )
        assert not options or [made.profile.of(of, "nvme").ramp_s for of in (read, write)] == [1, 1]
        return estimate(made).seconds

    times = writes.ramp_s + writes.runtime_s, reads.ramp_s + reads.runtime_s
    difference = seconds("rand-write-1th-4k") - seconds("rand-read-1th-4k")
    assert difference == pytest.approx(times[0] - times[1])
    seconds("rand-read-1th-4k", warm_up_s=1)


def test_a_host_is_not_called_as_a_directory_of_campaigns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runs would be taken for what an export leaves out."""
    monkeypatch.setattr("platform.node", lambda: "cache")
    assert small_plan(host=None).host == "host-cache"
    with pytest.raises(ConfigError, match="host=hosts: is a directory of each campaign; give it another id"):
        small_plan(host="hosts")


@pytest.mark.parametrize("suite", ["bdus", "depth-jobs", "response", "buse-null", "fxmark", "kv", "ufs"])
def test_a_warm_up_that_is_asked_for_holds_in_every_suite(suite: str) -> None:
    """Also where the suite has times of its own: it was ignored there, while plan and campaign said otherwise."""
    profile = "paper" if suite in ("fxmark", "ufs") else "quick"
    plan = plan_of(profile, suite=load_suite(suite, profile), warm_up_s=7, systems=[load_system("native")])
    for workload in plan.suite.workloads:
        engine = device_engine(workload.engine)
        timed = engine.timed(plan.profile.of(workload, "sata"), workload)
        assert (engine.ramp_s(timed), timed.fixed_warm_up) == (7, True)


@pytest.mark.parametrize(
    ("suite", "profile", "system"),
    [("attach", "quick", "nbdkit-null"), ("failover", "quick", "nbdkit"), ("source-tree", "quick", "native"),
     ("apps", "quick", "native"), ("s3", "quick", "s3-nbd"), ("pts", "pts", "native")],
)  # fmt: skip
def test_a_warm_up_is_refused_where_nothing_is_discarded(suite: str, profile: str, system: str) -> None:
    options: dict[str, Any] = {"suite": load_suite(suite, profile), "systems": [load_system(system)]}
    if suite == "s3":
        options["devices"] = [Device("store-0ms", "", "")]
    assert plan_of(profile, **options).entries
    own = "source-tree" if suite == "apps" else suite
    with pytest.raises(ConfigError, match=f"warm-up=7: runs of suite {own} discard none; leave --warm-up out"):
        plan_of(profile, warm_up_s=7, **options)
