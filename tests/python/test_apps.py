# SPDX-License-Identifier: BSD-3-Clause
"""Suites of applications: libraries of keys and values, a PostgreSQL server, a source tree; from plan to table, and
killed."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
import runner_process as runner
from engine_program import run_program
from loops import MIB, loop_for_fuse
from userblk.analysis.summaries import run_from_summary
from userblk.analysis.tabulate import make_tables
from userblk.harness.cli import doctor
from userblk.harness.engines import WorkloadError, kv, postgresql, source_tree
from userblk.harness.engines.base import OF_APPLICATIONS
from userblk.harness.machine import paths
from userblk.harness.machine.mounts import mounts_of
from userblk.harness.model import tables
from userblk.harness.model.config import Workload, load_profile, load_suite, load_system
from userblk.harness.model.parts import ENGINES
from userblk.harness.model.plan import Device, Plan, make_plan, write_plan
from userblk.harness.model.tables import ConfigError
from userblk.harness.observing import timed
from userblk.harness.systems import recover
from userblk.lab import images
from waiting import wait_until

SIZE = 2048 * MIB  # sparse
QUICK = load_profile("quick")


def plan_for(
    device: str,
    directory: Path,
    suite: str,
    workloads: list[str],
    small: Mapping[str, int],
    *,
    runtime_s: int = 1,
    systems: tuple[str, ...] = ("native",),
) -> Plan:
    files = dataclasses.replace(QUICK.files, runtime_s=runtime_s, memory_bytes=1024 * MIB, size={"nvme": SIZE})
    plan = make_plan(
        suite=load_suite(suite),
        profile=dataclasses.replace(QUICK, area={"nvme": SIZE}, repetitions=1, max_repetitions=1, files=files),
        systems=[load_system(name) for name in systems],
        devices=[Device("nvme", device, str(SIZE))],
        campaign="test",
        build="build/host",
        host="here",
        workloads=workloads,
    )
    reduced = []
    for workload in plan.suite.workloads:
        fixed = {**workload.fixed, **small}
        reduced.append(dataclasses.replace(workload, fixed=fixed, variables={"nvme": fixed}))
    plan = dataclasses.replace(plan, suite=dataclasses.replace(plan.suite, workloads=tuple(reduced)))
    directory.mkdir()
    write_plan(plan, directory)
    return plan


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    with loop_for_fuse(tmp_path / "image", SIZE) as path:
        yield path


def campaign(directory: Path) -> dict[tuple[str, str], dict[str, object]]:
    """Its valid summaries, by system and workload."""
    code, events, err = runner.finish(runner.start(directory))
    assert (code, err) == (0, ""), events
    found = [json.loads(file.read_text()) for file in (directory / "here").rglob("summary.json")]
    for summary in found:
        assert summary["valid"], summary["invalid"]
    (table,) = make_tables([run_from_summary(summary, "here") for summary in found])
    assert OF_APPLICATIONS in table.notes
    return {(str(one["system"]), str(one["workload"])): one for one in found}


# ---- libraries of keys and values -----------------------------------------------------------


def test_kv_has_the_workloads_of_ycsb() -> None:
    found = [workload.id for workload in load_suite("kv").workloads]
    assert len(found) == 20 and found[0] == "rocksdb-a" and "leveldb-fillrandom" in found
    assert {one.partition("-")[0] for one in found} == set(kv.STORES)
    assert not any(load_system("nullfs").runs(workload) for workload in load_suite("kv").workloads)


def test_kv_says_the_sizes_in_both_phases() -> None:
    workload = next(one for one in load_suite("kv").workloads if one.id == "leveldb-d")
    workload = ENGINES["kv"].with_values(workload, QUICK, (), ["nvme"])
    words = kv.argv(Path("p"), workload, "nvme", 7, "load", Path("/d"))
    assert words == [
        "p", "--records=20000", "--threads=2", "--write-buffer=1048576", "--store=leveldb", "--workload=d", "--seed=7",
        "--phase=load", "/d",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('rocksdb = ["a",', 'rocksdb = ["g",', "stores.rocksdb=g: must be of a, b"),
        ("leveldb = [", "lmdb = [", "lmdb"),
        ("records = 20000", "records = -1", "records=-1: must be an integer"),
        ("threads = 2", "threads = 2\nclients = 1", "clients"),
    ],
)
def test_a_wrong_suite_is_one_line(
    old: str, new: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "suites").mkdir()
    text = (paths.CONFIGS / "suites/kv.toml").read_text()
    assert old in text
    (tmp_path / "suites/kv.toml").write_text(text.replace(old, new, 1))
    monkeypatch.setattr(tables, "CONFIGS", tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_suite("kv")
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("suite", ["kv", "postgresql", "source-tree"])
def test_what_does_not_fit_is_refused_by_the_plan(suite: str) -> None:
    profile = load_profile("paper")
    small = dataclasses.replace(profile, files=dataclasses.replace(profile.files, size={"nvme": 256 * MIB}))
    workload = load_suite(suite, "paper").workloads[0]
    with pytest.raises(ConfigError, match="may need .* bytes, but the file system of profile paper on nvme has"):
        ENGINES[suite].with_values(workload, small, (), ["nvme"])
    assert ENGINES[suite].with_values(workload, profile, (), ["nvme"]).variables["nvme"]


def test_kv_that_is_not_built_is_left_out(tmp_path: Path) -> None:
    workload = load_suite("kv").workloads[0]
    reason = ENGINES["kv"].lacks(workload, str(tmp_path))
    assert reason == "userblk-kv is built without rocksdb; install librocksdb-dev and build it again"
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv/userblk-kv").write_text("#!/bin/sh\necho userblk-kv 1; echo sqlite 3; echo rocksdb 7\n")
    (tmp_path / "kv/userblk-kv").chmod(0o755)
    assert ENGINES["kv"].lacks(workload, str(tmp_path)) == ""


def test_doctor_names_each_package_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(paths, "HOST_BUILD", tmp_path)
    lacking = doctor.suite_needs("kv")
    assert [need.fix for need in lacking] == [f"install {name} and build it again" for name in kv.STORES.values()]
    monkeypatch.setattr(postgresql, "server_program", lambda name: "")
    (need,) = doctor.suite_needs("postgresql")
    assert (need.what, need.fix) == ("PostgreSQL is not installed", "apt-get install postgresql")


def test_kv_from_plan_to_table(device: str, tmp_path: Path) -> None:
    if not (paths.HOST_BUILD / "kv/userblk-kv").exists():
        pytest.skip("userblk-kv is not built; run: make deps-apps kv")
    plan_for(
        device,
        tmp_path / "c",
        "kv",
        ["rocksdb-a", "leveldb-fillseq", "sqlite-e"],
        {"records": 40000},
        systems=("fuse",),
    )
    found = campaign(tmp_path / "c")
    assert len(found) == 3
    for (_, name), summary in found.items():
        settings = summary["settings"]
        assert isinstance(settings, dict)
        kinds = {"rocksdb-a": {"read", "update"}, "leveldb-fillseq": {"insert"}, "sqlite-e": {"scan", "insert"}}
        done = set(settings["kv"]["whole_run"])  # of few operations on a busy machine none may be an insert
        assert done and done <= kinds[name]
        assert settings["kv"]["library"].startswith(name.partition("-")[0])
        assert "negotiated" in settings


# ---- PostgreSQL -------------------------------------------------------------------------------

OUTPUT = """sysbench 1.0.20 (using system LuaJIT 2.1.0-beta3)

Threads started!

[ 1s ] thds: 4 tps: 100.50 qps: 2010.00 (r/w/o: 1407.00/402.00/201.00) lat (ms,95%): 50.00 err/s: 0.00 reconn/s: 0.00
[ 2s ] thds: 4 tps: 50.00 qps: 1000.00 (r/w/o: 700.00/200.00/100.00) lat (ms,95%): 90.00 err/s: 0.00 reconn/s: 0.00
[ 3s ] thds: 4 tps: 50.00 qps: 1000.00 (r/w/o: 700.00/200.00/100.00) lat (ms,95%): 90.00 err/s: 0.00 reconn/s: 0.00
Latency histogram (values are in milliseconds)
       value  ------------- distribution ------------- count
      30.815 |***********************                  190
      92.424 |*                                        10

SQL statistics:
    transactions:                        200    (66.67 per sec.)
    ignored errors:                      1      (0.33 per sec.)
"""


def oltp() -> Workload:
    return load_suite("postgresql").workloads[0]


def parsed(text: str, ramp_s: int = 0) -> postgresql.Result:
    profile = dataclasses.replace(QUICK, files=dataclasses.replace(QUICK.files, ramp_s=ramp_s))
    workload = dataclasses.replace(oltp(), fixed={**oltp().fixed, "threads": 4})
    return postgresql.parse(text, workload, profile)


def test_what_sysbench_prints_is_read() -> None:
    whole = parsed(OUTPUT)
    assert whole.operations == 200 and whole.duration_s == 3 and not whole.problems
    assert whole.throughput_kops == pytest.approx(200 / 3 / 1e3)
    assert whole.latency_us == pytest.approx(4 / (200 / 3) * 1e6)  # each of four clients waits for its own
    assert whole.metrics["latency_p50_us"] == 30815 and whole.metrics["latency_p99_us"] is None
    assert (
        whole.version == "sysbench 1.0.20" and whole.settings["conflicts"] == 1 and "conflicts: 1 " in whole.warnings[0]
    )


def test_a_ramp_is_left_out_with_the_histogram_of_the_whole() -> None:
    rest = parsed(OUTPUT, ramp_s=1)
    assert rest.operations == 100 and rest.duration_s == 2 and rest.throughput_kops == 0.05 and not rest.metrics


def test_a_run_without_a_transaction_is_no_result() -> None:
    problems = parsed(OUTPUT.replace("tps: ", "tps: 0.00 was ")).problems
    assert problems == ("no transaction was completed after the ramp",)


def test_what_is_no_output_of_sysbench() -> None:
    with pytest.raises(WorkloadError, match="no count of transactions"):
        parsed("FATAL: unable to connect\n")


def test_it_is_a_user_that_the_file_system_must_let_in() -> None:
    engine = ENGINES["postgresql"]
    assert isinstance(engine, postgresql.Postgresql)
    assert engine.system(load_system("fuse")).options[-2:] == ["-o", "allow_other"]
    assert engine.system(load_system("nbdkit")) == load_system("nbdkit")
    assert load_system("fuse").runs(oltp()) and not load_system("bindfs").runs(oltp())
    assert "setpriv" in postgresql.as_user(["true"]) and "--reuid=0" not in postgresql.as_user(["true"])


def need_server() -> None:
    if reason := ENGINES["postgresql"].lacks(oltp(), ""):
        pytest.skip(f"{reason.partition(';')[0]}; run: make deps-apps")


def test_postgresql_from_plan_to_table(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is set for other servers."""
    need_server()
    small = {"tables": 1, "rows": 500}
    both = ["oltp", "oltp-no-fsync"]
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGOPTIONS", "-c nosuch=1")
    plan_for(device, tmp_path / "c", "postgresql", both, small, runtime_s=2, systems=("fuse",))
    found = campaign(tmp_path / "c")
    assert len(found) == 2
    for (_, name), summary in found.items():
        settings, metrics = summary["settings"], summary["metrics"]
        assert isinstance(settings, dict) and isinstance(metrics, dict)
        assert settings["postgresql"]["transactions"] > 0 and metrics["throughput_kops"] > 0
        assert settings["server"].startswith("postgres (PostgreSQL)")
        run = tmp_path / "c/here/nvme/postgresql" / str(summary["system"]) / name / "1/preparation/commands.json"
        servers = [command["argv"] for command in json.loads(run.read_text()) if "-k" in command["argv"]]
        assert len(servers) == 2 and all(("fsync=on" in argv) is (name == "oltp") for argv in servers)
        assert all("listen_addresses=" in argv for argv in servers)


@pytest.mark.parametrize("end", ["true", "kill -11 $$"])
def test_what_sysbench_cannot_do_is_said(
    end: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two threads it exits with 0 after that; half of the tables were then measured."""
    need_server()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sysbench").write_text(f"#!/bin/sh\necho 'FATAL: made up'\n{end}\n")
    (tmp_path / "bin/sysbench").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    plan_for(device, tmp_path / "c", "postgresql", ["oltp"], {"tables": 1, "rows": 500})
    code, events, err = runner.finish(runner.start(tmp_path / "c"))
    assert (code, err) == (1, ""), events
    says = "sysbench: FATAL: made up" if end == "true" else "sysbench: ended by SIGSEGV: no message"
    assert runner.said(events) == [says]


def servers_of(path: Path) -> list[str]:
    """Command lines of PostgreSQL servers whose data lie below the path."""
    done = subprocess.run(["pgrep", "-fa", f"bin/postgres -D {path}"], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def test_a_killed_run_leaves_no_server_and_no_mount(device: str, tmp_path: Path) -> None:
    need_server()
    small = {"tables": 1, "rows": 500}
    plan_for(device, tmp_path / "c", "postgresql", ["oltp"], small, runtime_s=120, systems=("fuse",))
    process = runner.start(tmp_path / "c")
    run = tmp_path / "c/here/nvme/postgresql/fuse/oltp/1"
    wait_until("sysbench runs", lambda: list(run.glob("commands/*-sysbench.out")))
    argv = json.loads((run / "preparation/commands.json").read_text())[-1]["argv"]
    data = Path(argv[argv.index("-D") + 1])
    base = data.parents[1]  # of the ext4 and what is over it
    wait_until("its new processes have their own names", lambda: len(servers_of(data)) == 1)
    assert sum(mount.point.startswith(str(base)) for mount in mounts_of()) == 2
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_until("the server has ended", lambda: not servers_of(data))
    recover()
    assert not any(mount.point.startswith(str(base)) for mount in mounts_of()) and not base.exists()


# ---- a source tree ----------------------------------------------------------------------------

SOURCES = len(list((Path(__file__).parents[2] / source_tree.BUILT).glob("*.c")))


def test_a_guest_in_virtual_time_has_the_whole_tree() -> None:
    assert {*source_tree.ROOMS, Path(source_tree.BUILT).parts[0]} <= set(images.PARTS)


def test_a_tree_is_unpacked_and_built(device: str, tmp_path: Path) -> None:
    for workload in load_suite("source-tree").workloads:
        if reason := ENGINES["source-tree"].lacks(workload, ""):
            pytest.skip(f"installation: {reason}")
    plan_for(device, tmp_path / "c", "source-tree", ["unpack", "build"], {"copies": 2}, systems=("fuse",))
    found = campaign(tmp_path / "c")
    assert set(found) == {("fuse", "unpack"), ("fuse", "build")}
    files = {name: one["settings"]["source-tree"]["files"] for (_, name), one in found.items()}  # type: ignore[index]
    assert files["build"] == 2 * SOURCES and files["unpack"] > 500
    for log in (tmp_path / "c/here").rglob("commands.json"):
        for words in (one["argv"] for one in json.loads(log.read_text())):
            if timed.__file__ in words:
                rest = words[words.index(timed.__file__) + 2 :]
                assert [Path(one).name for one in rest[: rest.index("--")]] == ["over", "ext4"]
                del files[log.parts[-3]]
    assert not files


def test_all_file_systems_are_synced_after_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one under test first: what it writes goes to the one below it."""
    places = [tmp_path / name for name in ("over", "below")]
    for place in places:
        place.mkdir()
    synced = []

    def syncfs(fd: int) -> int:
        synced.append((Path(os.readlink(f"/proc/self/fd/{fd}")), (tmp_path / "made").exists()))
        return 0

    monkeypatch.setattr(timed.ctypes, "CDLL", lambda name, **more: SimpleNamespace(syncfs=syncfs))
    monkeypatch.setattr(timed.signal, "signal", lambda number, what: None)
    assert timed.main([str(tmp_path / "r.json"), *map(str, places), "--", "touch", str(tmp_path / "made")]) == 0
    assert synced == [(place, True) for place in places]
    assert json.loads((tmp_path / "r.json").read_text())["program"] == "touch"


@pytest.mark.parametrize(
    ("command", "code", "says", "of_run"),
    [
        ("kill -9 $$", 137, "sh: ended by signal 9", "sh has not done its work: ended by SIGKILL"),
        ("echo full >&2; exit 3", 3, "full", "sh has not done its work: exit code 3"),
    ],
)
def test_a_command_that_fails_has_no_figures(command: str, code: int, says: str, of_run: str, tmp_path: Path) -> None:
    """A tar that was killed at once unpacked its files fastest of all."""
    results = tmp_path / "r.json"
    done = run_program(Path(sys.executable), timed.__file__, results, tmp_path, "--", "sh", "-c", command)
    assert (done.returncode, done.stderr) == (code, f"{says}\n")
    with pytest.raises(WorkloadError, match=f"^{of_run}$"):
        source_tree.parse(results, {"files": 1, "bytes": 1})


def test_what_cannot_be_synced_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(timed.ctypes, "CDLL", lambda name, **more: SimpleNamespace(syncfs=lambda fd: -1))
    monkeypatch.setattr(timed.ctypes, "get_errno", lambda: errno.ENOSPC)
    monkeypatch.setattr(timed.signal, "signal", lambda number, what: None)
    assert timed.main([str(tmp_path / "r.json"), str(tmp_path), "--", "true"]) == 1
    assert capsys.readouterr().err == f"{tmp_path}: cannot be synced: No space left on device\n"


def test_what_was_unpacked_and_built_is_looked_at(tmp_path: Path) -> None:
    unpack, build = load_suite("source-tree").workloads
    assert paths.CHECKOUT is not None
    tree = source_tree.write_archive(paths.CHECKOUT, 4, tmp_path / "tree.tar")
    assert tree.sources == 4 * SOURCES and tree.files > 1000 and tree.bytes > tree.source_bytes > 100_000
    subprocess.run(["tar", "-xf", str(tmp_path / "tree.tar"), "-C", str(tmp_path)], check=True)
    ((argv, said),) = source_tree.checks(unpack, tmp_path / "tree.tar", tmp_path)
    assert source_tree.look(argv, said) == ""
    (tmp_path / "tree/copy-0001/harness/flow/wml.c").write_text("int x;\n")
    assert "wml.c" in source_tree.look(argv, said)
    ((argv, said),) = source_tree.checks(build, tmp_path / "tree.tar", tmp_path)
    assert source_tree.look(argv, said) == f"{tmp_path}/tree/copy-0000/userblk-flow: No such file or directory"
    for text, wrong in (
        ("exit 1", "userblk-flow: exit code 1"),
        ("echo userblk-flow 0", "userblk-flow: userblk-flow 0"),
    ):
        (tmp_path / "tree/copy-0000/userblk-flow").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "tree/copy-0000/userblk-flow").chmod(0o755)
        assert source_tree.look(argv, said) == wrong
