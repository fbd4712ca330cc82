# SPDX-License-Identifier: BSD-3-Clause
"""userblk-flow's command line, and which of its results are believed (the numbers are inputs of the tests)."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from userblk.harness.engines import WorkloadError, flow
from userblk.harness.machine.paths import CONFIGS
from userblk.harness.model.config import Workload, load_profile, load_suite, load_system
from userblk.harness.model.plan import Device, make_plan, read_plan, write_plan
from userblk.harness.observing.samplers import DiskUse, Use
from userblk.harness.running.measuring import cache_warnings

QUICK = load_profile("quick")
PROFILE = dataclasses.replace(QUICK, files=dataclasses.replace(QUICK.files, ramp_s=1, runtime_s=2))
READ = Workload("read-1th", threads=1, suite="bdus-fs", engine="flow", files="openfile", file="read")


def interval(start: float, end: float, ops: int = 300) -> dict[str, Any]:
    flowops = {"open1": ops // 3, "read1": ops // 3, "close1": ops // 3, "finish1": 7}
    latency = {"sum": ops * 2000, "mean": 2000.0, "bins": {"1000": ops - 10, "92672": 10}}
    return {"start_s": start, "end_s": end, "ops": ops, "bytes": ops * 4096, "flowops": flowops, "latency_ns": latency}


def report(*ends: float, **changes: Any) -> dict[str, Any]:
    """With intervals that end at these times, the first one busier than the others."""
    starts = (0.0, *ends)
    intervals = [interval(a, b, 300 if a else 9000) for a, b in zip(starts, ends, strict=False)]
    types = {"open1": "openfile", "read1": "readwholefile", "close1": "closefile", "finish1": "finishoncount"}
    return {
        "schema": 1,
        "program": "userblk-flow 0.1.0",
        "original": False,
        "threads": 4,
        "threads_finished": 0,
        "threads_without_file": 0,
        "started_monotonic_s": 100.0,
        "duration_s": ends[-1],
        "end": "time",
        "variables": {"nfiles": 5},
        "filesets": [],
        "flowops": [{"name": name, "type": kind} for name, kind in types.items()],
        "intervals": intervals,
    } | changes


def parse(tmp_path: Path, value: object) -> Any:
    (tmp_path / "flow.json").write_text(json.dumps(value))
    return flow.parse(tmp_path / "flow.json", READ, PROFILE)


def test_figures_are_of_the_time_after_the_ramp(tmp_path: Path) -> None:
    result = parse(tmp_path, report(0.98, 2.0, 3.0))  # the sampler came 20 ms early: still the ramp's end
    assert result.duration_s == pytest.approx(2.02)
    assert result.throughput_kops == pytest.approx(0.6 / 2.02)
    assert result.throughput_mbps == pytest.approx(600 * 4096 / 2.02e6)
    assert result.latency_us == 2.0
    assert result.measured_from == pytest.approx(100.98)
    assert result.metrics["files_kops"] == pytest.approx(0.2 / 2.02)
    assert (result.metrics["latency_p50_us"], result.metrics["latency_p99_us"]) == (1.0, None)  # 6 lie beyond
    assert result.settings["operations"] == {"open1": 200, "read1": 200, "close1": 200, "finish1": 14}
    assert (result.problems, result.warnings) == ((), ())


def test_a_data_workload_counts_no_files(tmp_path: Path) -> None:
    (tmp_path / "flow.json").write_text(json.dumps(report(1.0, 3.0)))
    data = Workload("seq-read-1th-4k", "read", 1, 4096, "bdus-fs", "flow")
    assert flow.parse(tmp_path / "flow.json", data, PROFILE).metrics["files_kops"] is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"end": "early", "threads_without_file": 3}, "3 threads had no file left"),
        ({"end": "interrupted"}, "interrupted"),
        ({"original": True}, "--original"),
    ],
)
def test_a_run_that_did_not_go_to_its_end_is_a_problem(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    assert problem in " ".join(parse(tmp_path, report(1.0, 3.0, **changes)).problems)


def test_a_run_that_says_nothing_is_a_problem(tmp_path: Path) -> None:
    assert "after the ramp" in parse(tmp_path, report(0.4)).problems[0]
    early = parse(tmp_path, report(0.4, end="all-done"))
    assert early.problems == ("measured for 0.40 s only; give the workload more files",)
    short = parse(tmp_path, report(1.0, 1.4))
    assert short.problems == ("measured for 0.40 s only; give the workload more files",)


@pytest.mark.parametrize(
    ("ends", "ramp", "measured"), [((4.0,), 0, 4.0), ((5.0, 8.0), 0, 8.0), ((5.0, 10.0, 12.0), 2.4, 7.0)]
)
def test_work_that_is_done_within_a_few_intervals_counts(
    tmp_path: Path, ends: tuple[float, ...], ramp: float, measured: float
) -> None:
    """The first interval was discarded for a ramp that is a small part of it. Nothing was left of a short run."""
    (tmp_path / "flow.json").write_text(json.dumps(report(*ends, end="all-done")))
    result = flow.parse(tmp_path / "flow.json", READ, load_profile("paper"))
    assert (result.problems, result.ramp_s) == ((), pytest.approx(ramp))
    assert result.duration_s == pytest.approx(measured)
    assert f"of which {0 if ramp == 0 else 5:.1f} s were discarded instead of 30" in result.warnings[0]


def test_a_short_run_needs_half_of_its_time(tmp_path: Path) -> None:
    short = load_profile("quick", virtual=True)
    for ran, problems in ((0.145, ("measured for 0.14 s only; give the workload more files",)), (0.16, ())):
        (tmp_path / "flow.json").write_text(json.dumps(report(0.05, 0.1, ran, end="all-done")))
        assert flow.parse(tmp_path / "flow.json", READ, short).problems == problems


def papers_rates() -> list[tuple[str, str, float]]:
    """Device, workload and kop/s of what ends when its files are done, native in the paper."""
    rows = csv.DictReader(Path("configs/papers/bdus/table2.csv").open())
    ends = ("create-", "read-", "delete-", "seq-", "rand-")
    return [
        (row["device"].lower(), row["workload"], float(row["tput_kops_native"]))
        for row in rows
        if row["workload"].startswith(ends)
    ]


@pytest.mark.parametrize(("device", "name", "kops"), papers_rates())
def test_every_workload_that_ends_is_valid_at_the_papers_rates(
    tmp_path: Path, device: str, name: str, kops: float
) -> None:
    profile, suite = load_profile("paper"), load_suite("bdus-fs")
    devices = [Device("sata", "/dev/null", "A"), Device("nvme", "$X", "B")]
    plan = make_plan(
        suite=suite, profile=profile, systems=[load_system("native")], devices=devices, campaign="c", build="b"
    )
    workload = next(w for w in plan.suite.workloads if w.id == name)
    values = workload.variables[device]
    operations = values.get("finish") or values.get("iters", 0) * workload.threads
    operations = operations or values["nfiles"] * (3 if name.startswith("create") else 1)
    limit = values["runtime"]
    seconds = min(limit, operations / kops / 1e3)
    ends = [*(5.0 * i for i in range(1, int(seconds / 5) + 1)), seconds]
    value = report(*ends, end="time" if seconds == limit else "all-done")
    for one in value["intervals"]:
        one["ops"] = int((one["end_s"] - one["start_s"]) * kops * 1e3)
    (tmp_path / "flow.json").write_text(json.dumps(value))
    result = flow.parse(tmp_path / "flow.json", workload, profile)
    assert result.problems == () and result.throughput_kops == pytest.approx(kops, rel=0.001)
    assert result.duration_s > 0.7 * min(seconds, profile.files.seconds(workload))
    if seconds < 100:
        assert result.ramp_s == pytest.approx(0.2 * seconds)
        assert f"early end: after {seconds:.1f} s of 900 s" in result.warnings[0]


# kop/s of native in the lab, by bin/userblk run --where lab --suite bdus-fs --systems native --reps 1 --seed 1
@pytest.mark.parametrize(
    ("device", "name", "kops"),
    [
        ("sata", "create-1th", 151.9),
        ("nvme", "create-16th", 150.5),
        ("sata", "delete-1th", 83.5),
        ("nvme", "delete-16th", 84.1),
        ("sata", "read-16th", 288.8),
        ("nvme", "read-16th", 288.8),
        ("nvme", "seq-read-16th-4k", 813.1),
        ("nvme", "seq-read-16th-128k", 25.6),
        ("nvme", "rand-read-16th-128k", 40.1),
        ("sata", "seq-read-16th-4k", 134.5),
        ("nvme", "rand-write-1th-128k", 15.7),
    ],
)
def test_files_last_for_a_run_in_virtual_time(device: str, name: str, kops: float) -> None:
    devices = [Device("sata", "/dev/null", "A"), Device("nvme", "$X", "B")]
    plan = make_plan(
        suite=load_suite("bdus-fs"),
        profile=load_profile("quick", virtual=True),
        systems=[load_system("native")],
        devices=devices,
        campaign="c",
        build="b",
    )
    workload = next(w for w in plan.suite.workloads if w.id == name)
    values = workload.variables[device]
    operations = values.get("finish") or values.get("iters", 0) * workload.threads
    operations = operations or values["nfiles"] * (3 if name.startswith("create") else 1)
    assert operations / kops / 1e3 > 1.05 * flow.duration_s(workload, plan.profile.of(workload, device))
    assert values.get("finish", 0) <= 3 * values["nfiles"]
    bytes_in_all = values["nfiles"] * values.get("filesize", 4096)
    assert bytes_in_all < 0.8 * plan.profile.files.size[device]


@pytest.mark.parametrize("suite", ["bdus-fs", "fuse45", "fuse45-terra"])
def test_random_reads_seldom_draw_what_is_in_memory(suite: str) -> None:
    """In virtual time on SATA, of which a run reads so much: 550 MB/s, or what one thread gets in small pieces."""
    plan = make_plan(
        suite=load_suite(suite),
        profile=load_profile("quick", virtual=True),
        systems=[load_system("native")],
        devices=[Device("sata", "/dev/null", "A")],
        campaign="c",
        build="b",
    )
    found = [one for one in plan.suite.workloads if one.rw == "randread"]
    assert len(found) >= 4
    for workload in found:
        rate = 210e6 if workload.threads == 1 and workload.block_size <= 32 << 10 else 550e6
        values = workload.variables["sata"]
        read = rate * flow.duration_s(workload, plan.profile.of(workload, "sata"))
        assert read < 0.15 * values["nfiles"] * values["filesize"], workload.id


@pytest.mark.parametrize("suite", ["bdus-fs", "fuse45", "fuse45-terra"])
@pytest.mark.parametrize("profile", ["quick", "paper"])
def test_all_mails_are_in_one_directory(suite: str, profile: str) -> None:
    """Whatever width is drawn for it from a gamma distribution: one in 20,000 is below a thousandth of the mean."""
    plan = make_plan(
        suite=load_suite(suite, profile),
        profile=load_profile(profile),
        systems=[load_system("native")],
        devices=[Device("sata", "/dev/null", "A")],
        campaign="c",
        build="b",
    )
    values = next(one for one in plan.suite.workloads if one.id == "mail-server").variables["sata"]
    assert values["dirwidth"] == 1000 * values["nfiles"]


@pytest.mark.parametrize("device", ["sata", "nvme"])
@pytest.mark.parametrize("virtual", [False, True])
def test_smallfiles_are_in_100_directories(device: str, virtual: bool) -> None:
    plan = make_plan(
        suite=load_suite("ufs-files"),
        profile=load_profile("quick", virtual=virtual),
        systems=[load_system("native")],
        devices=[Device(device, "/dev/null", "A")],
        campaign="c",
        build="b",
    )
    for workload in plan.suite.workloads:
        if workload.id.startswith("smallfile"):
            values = workload.variables[device]
            assert values["nfiles"] == 100 * values["dirwidth"], workload.id


def test_random_reads_from_memory_are_told() -> None:
    def used(*read_mbps: float) -> Use:
        disks = tuple(DiskUse(0.0, one, None, 0.0, 0.0, None, 0.0, 0.0) for one in read_mbps)
        return Use(1.0, 0.0, 0.0, 0.0, None, disks)

    line = "page cache: at least 35 % of what was read came from memory, as the files are small"
    for disks in ((550,), (884, 550)):
        assert cache_warnings("randread", 884, used(*disks), 0.1) == [line]
    assert cache_warnings("randread", 600, used(550), 0.0) == [] == cache_warnings("read", 884, used(550), 0.1)
    assert cache_warnings("randread", 884, used(0.0), 0.1) == [] == cache_warnings("randread", 884, None, 0.1)
    # The disk read 551 MB/s, of which its samples show less at either end.
    assert cache_warnings("randread", 1.07 * 551, used(0.917 * 551), 0.167) == []


@pytest.mark.parametrize(
    ("left", "problems", "warnings"),
    [
        (50, [], []),
        (60, [], ["unfinished writes: 60 of 1000 bytes whose writing was counted had not been written at the end"]),
        (510, ["510 of 1000 bytes whose writing was counted had not been written at the end"], []),
    ],
)
def test_writes_that_were_counted_and_not_done(
    tmp_path: Path, left: int, problems: list[str], warnings: list[str]
) -> None:
    result = parse(tmp_path, report(1.0, 3.0, summary={"written_bytes": 1000, "unfinished_bytes": left}))
    assert (list(result.problems), list(result.warnings)) == (problems, warnings)
    assert parse(tmp_path, report(1.0, 3.0, summary={"written_bytes": 0})).problems == ()  # of an older userblk-flow


def test_a_ramp_that_the_user_gave_stays(tmp_path: Path) -> None:
    fixed = dataclasses.replace(load_profile("paper"), fixed_warm_up=True)
    (tmp_path / "flow.json").write_text(json.dumps(report(5.0, 10.0, 15.0, 20.0, 22.0, end="all-done")))
    assert "after the ramp" in flow.parse(tmp_path / "flow.json", READ, fixed).problems[0]


def test_an_early_end_and_idle_threads_are_warnings(tmp_path: Path) -> None:
    early = parse(tmp_path, report(1.0, 2.0, end="all-done", threads_without_file=4))
    assert early.problems == () and early.warnings[0].startswith("early end: after 2.0 s of 3 s")
    idle = parse(tmp_path, report(1.0, 3.0, threads_without_file=2))
    assert idle.problems == () and idle.warnings == ("idle threads: 2 of 4 had nothing left to do before the end",)
    finished = parse(tmp_path, report(1.0, 3.0, threads_without_file=1, threads_finished=2))
    assert finished.warnings == ("idle threads: 3 of 4 had nothing left to do before the end",)
    assert parse(tmp_path, report(1.0, 2.9, end="all-done", threads_finished=4)).warnings == ()


def test_an_unreadable_result(tmp_path: Path) -> None:
    for value in ({}, [], {"schema": 2}, report(1.0, 3.0) | {"intervals": 5}):
        with pytest.raises(WorkloadError, match=r"flow\.json"):
            parse(tmp_path, value)
    with pytest.raises(WorkloadError, match="cannot be read"):
        flow.parse(tmp_path / "none.json", READ, PROFILE)


def test_the_series_is_kept(tmp_path: Path) -> None:
    (tmp_path / "flow.json").write_text(json.dumps(report(0.5, 1.0)))
    flow.write_series(tmp_path / "flow.json", tmp_path / "series.csv")
    rows = list(csv.DictReader((tmp_path / "series.csv").open()))
    assert [float(row["time_s"]) for row in rows] == [0.5, 1.0]
    assert float(rows[1]["kops"]) == pytest.approx(0.6) and float(rows[1]["latency_us"]) == 2.0


def test_both_phases_get_the_same_seed_and_variables() -> None:
    workload = dataclasses.replace(READ, variables={"sata": {"nfiles": 7, "runtime": 3}, "nvme": {}})
    create, run = (
        flow.argv(Path("/f"), workload, "sata", Path("/m"), Path("/r"), 5, phase) for phase in ("create", "run")
    )
    assert [word for word in create if word not in run] == ["--phase=create"]
    # The files were made a moment ago: to look at them would bring metadata into caches that were dropped since.
    assert [word for word in run if word not in create] == ["--phase=run", "--trust"]
    assert {"--seed=5", "--set=dir=/m", "--set=nfiles=7", "--set=runtime=3"} <= set(run)
    assert run[-1].endswith("configs/workloads/read.f")


def test_every_workload_has_its_file() -> None:
    for workload in load_suite("bdus-fs").workloads:
        any_values = dataclasses.replace(workload, variables={"x": {}})
        assert Path(flow.argv(Path("/f"), any_values, "x", Path("/"), Path("/r"), 1, "run")[-1]).is_file()


def test_a_campaign_goes_on_with_the_workload_files_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever has become of them since; its runs keep them."""
    monkeypatch.setattr(flow, "CONFIGS", tmp_path)
    (tmp_path / "workloads").mkdir()
    file = tmp_path / "workloads/read.f"
    file.write_text("as it was\n")
    began = flow.with_text(dataclasses.replace(READ, variables={"x": {}}))
    file.write_text("edited meanwhile\n")
    (tmp_path / "run").mkdir()
    words = flow.argv(Path("/f"), began, "x", Path("/m"), tmp_path / "run", 1, "create")
    assert words[-1] == str(tmp_path / "run/read.f") and Path(words[-1]).read_text() == "as it was\n"
    older = dataclasses.replace(began, text="")  # a plan of a version that did not keep it
    assert flow.argv(Path("/f"), older, "x", Path("/m"), tmp_path / "run", 1, "create")[-1] == str(file)


def test_a_plan_keeps_its_workload_files(tmp_path: Path) -> None:
    plan = make_plan(
        suite=load_suite("bdus-fs"), profile=QUICK, systems=[load_system("native")],
        devices=[Device("nvme", "/dev/null", "1")], campaign="t", build="b",
    )  # fmt: skip
    kept = read_plan(write_plan(plan, tmp_path)).suite.workloads
    assert {one.text for one in kept} == {(CONFIGS / f"workloads/{one.file or one.id}.f").read_text() for one in kept}
