# SPDX-License-Identifier: BSD-3-Clause
"""fio's command line, and which of its reports are believed."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from loops import LIMIT
from userblk.harness.engines import failover, fio, replay, store
from userblk.harness.model.config import Workload, load_profile

READ = Workload("rand-read-16th-4k", "randread", 16, 4096)
ONE = Workload("rand-read-1th-4k", "randread", 1, 4096)
QUICK = load_profile("quick")


def report(**side: Any) -> dict[str, Any]:
    none = {"runtime": 0, "total_ios": 0, "io_bytes": 0, "lat_ns": {"N": 0, "mean": 0.0}}
    done = {"runtime": 2000, "total_ios": 4000, "io_bytes": 16_384_000, "lat_ns": {"N": 4000, "mean": 250_000.0}}
    return {"fio version": "fio-3.33", "jobs": [{"error": 0, "read": done | side, "write": none}]}


def write_log(directory: Path, *threads: Sequence[tuple[int, float]]) -> None:
    """fio's log of threads one after the other: ms, operations a second."""
    lines = [f"{ms}, {rate:.0f}, 0, 0, 0\n" for thread in threads for ms, rate in thread]
    (directory / fio.IOPS_LOG).write_text("".join(lines))


def parse(tmp_path: Path, value: object) -> fio.Result:
    (tmp_path / "fio.json").write_text(json.dumps(value))
    if not (tmp_path / fio.IOPS_LOG).exists():
        write_log(tmp_path, [(100 * i, 2000) for i in range(1, 21)])
    return fio.parse(tmp_path / "fio.json", ONE, QUICK)


def test_figures(tmp_path: Path) -> None:
    result = parse(tmp_path, report())
    assert (result.throughput_kops, result.throughput_mbps, result.latency_us) == (2, 8.192, 250)
    assert (result.problems, result.warnings) == ((), ())
    assert (result.warm_up.rule, result.warm_up.cut_s, result.warm_up.steady) == ("MSER-2", 0, True)
    assert (result.operations, result.duration_s) == (4000, 2)


def test_threads_that_go_on_alone_after_the_end_are_no_load(tmp_path: Path) -> None:
    """Write-back held one of 16 for 0.4 s beyond the runtime: the operations are of the time that all had."""
    result = parse(tmp_path, report(runtime=2400))
    assert (result.throughput_kops, result.latency_us, result.duration_s) == (2, 250, 2)
    deep = dataclasses.replace(ONE, depth=8)  # for the whole time, and its flush is part of it
    assert fio.parse(tmp_path / "fio.json", deep, QUICK).throughput_kops == pytest.approx(4 / 2.4)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_the_sync_at_the_end_is_part_of_the_time_of_a_real_job(tmp_path: Path) -> None:
    """A file of 16 MiB is in the page cache at once, and its fsync takes 2 s: throughput is not that of the cache."""
    profile = dataclasses.replace(QUICK, ramp_s=0, runtime_s=1)
    write = Workload("seq-write-1th-128k", "write", 1, 1 << 17, fixed={"end_fsync": 1})
    words = ["fio", "--name=data", f"--directory={tmp_path}", "--thread=1", "--rw=write", "--bs=128k", "--size=16m"]
    words += ["--fallocate=none", "--end_fsync=1", "--runtime=1", "--group_reporting=1", "--eta=never"]
    delay = ["strace", "-f", "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:delay_enter=2000000"]
    subprocess.run([*delay, *words, *fio.log_options(profile, tmp_path)], check=True, timeout=LIMIT)
    result = fio.parse(tmp_path / "fio.json", write, profile)
    assert result.problems == () and result.operations == 128
    assert result.duration_s > 2 and result.throughput_mbps < (16 << 20) / 2e6


def test_what_writes_past_the_page_cache_has_no_write_back() -> None:
    write = dataclasses.replace(READ, rw="randwrite")
    direct = dataclasses.replace(write, depth=8)
    assert [fio.through_write_back(one) for one in (READ, write, direct)] == [False, True, False]


def test_the_warm_up_is_left_out_of_the_figures(tmp_path: Path) -> None:
    """0.4 s at a quarter of the speed and four times the latency: 200 of 3400 operations."""
    slow = [(100 * i, 500) for i in range(1, 5)]
    write_log(tmp_path, slow + [(100 * i, 2000) for i in range(5, 21)])
    latency = {"N": 3400, "mean": (200 * 1_000_000 + 3200 * 250_000) / 3400}
    side = {"total_ios": 3400, "io_bytes": 3400 * 4096, "lat_ns": latency}
    result = parse(tmp_path, report(**side))
    assert (result.warm_up.cut_s, result.warm_up.steady) == (0.4, True)
    assert result.duration_s == pytest.approx(1.6) and result.operations == pytest.approx(3200)
    assert result.throughput_kops == pytest.approx(2) and result.latency_us == pytest.approx(250)
    assert result.throughput_mbps == pytest.approx(8.192)
    fixed = dataclasses.replace(QUICK, fixed_warm_up=True)
    kept = fio.parse(tmp_path / "fio.json", ONE, fixed)
    assert kept.warm_up.cut_s == 0 and kept.throughput_kops == pytest.approx(1.7)


def test_threads_that_cannot_be_told_apart_cost_a_warning(tmp_path: Path) -> None:
    """
    One thread's part was done before the other had its first line, which the log does not show: in what seemed to be
    one thread, what the first did was taken for a warm-up.
    """
    two = dataclasses.replace(READ, threads=2)
    slow, fast = [(100 * i, 500) for i in range(1, 5)], [(100 * i, 2000) for i in range(5, 21)]
    value = report()
    write_log(tmp_path, slow, fast)
    (tmp_path / "fio.json").write_text(json.dumps(value))
    result = fio.parse(tmp_path / "fio.json", two, QUICK)
    line = "threads: the log shows 1 of 2 threads, so that no warm-up was cut"
    assert (result.warnings, result.problems, result.warm_up.steady) == ((line,), (), None)
    assert (result.warm_up.cut_s, result.operations, result.duration_s) == (0, 4000, 2)
    write_log(tmp_path, [*slow, *fast], [*slow, *fast])
    result = fio.parse(tmp_path / "fio.json", two, QUICK)
    assert (result.warnings, result.warm_up.cut_s) == ((), 0.4)


def test_writers_in_virtual_time_are_measured_in_one_window(tmp_path: Path) -> None:
    """
    Two threads begin together at 3,000 op/s each; the second pauses where the ramp ends and goes on alone at the end.
    Counted is what both did from the ramp's end to the run's: 600 and 500 operations.
    What fio counted until it ended is more than its log has.
    """
    write = dataclasses.replace(READ, rw="randwrite", threads=2)
    profile = load_profile("quick", virtual=True).of(write, "nvme")
    assert (profile.ramp_s, profile.runtime_s, profile.workload_interval_ms) == (0.15, 0.6, 50)
    assert {"--ramp_time=0", "--runtime=850ms"} <= set(fio.argv(write, profile, 1 << 30, "/dev/x", 5, tmp_path))
    reading = load_profile("quick", virtual=True).of(READ, "nvme")
    assert {"--ramp_time=100ms", "--runtime=300ms"} <= set(fio.argv(READ, reading, 1 << 30, "/dev/x", 5, tmp_path))

    def thread(lengths: int, pause: int) -> list[tuple[int, float]]:
        rates = [3000 if at < 3 else 0 if at < 3 + pause else 1000 for at in range(lengths)]
        return [(50 * (at + 1), rate) for at, rate in enumerate(rates) if rate]

    threads = [thread(16, 0), thread(19, 2)]
    write_log(tmp_path, *threads)
    total = round(sum(0.05 * rate for one in threads for _, rate in one)) + 100
    value = report()
    side = {"runtime": 950, "total_ios": total, "io_bytes": total * 4096, "lat_ns": {"N": total, "mean": 1e6}}
    value["jobs"][0] |= {"read": value["jobs"][0]["write"], "write": side, "job_start": 1_000_000}
    (tmp_path / "fio.json").write_text(json.dumps(value))
    result = fio.parse(tmp_path / "fio.json", write, profile)
    assert result.problems == () and result.duration_s == pytest.approx(0.6)
    assert result.operations == 600 + 500 and result.throughput_kops == pytest.approx(1.1 / 0.6)
    assert result.throughput_mbps == pytest.approx(1100 * 4096 / 0.6e6)
    waiting = total * 1e-3 / 0.85  # operations under way at a time
    assert result.latency_us == pytest.approx(waiting * 0.6e6 / 1100)
    assert result.begin(900) == pytest.approx(100.15)


def test_a_clock_that_is_set_during_a_run_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the samplers saw was then taken from another time than fio's."""
    began, ahead = time.monotonic(), time.time() - time.monotonic()
    value = report()
    value["jobs"][0] |= {"job_start": round((began + ahead) * 1e3)}
    (tmp_path / "fio.json").write_text(json.dumps(value))
    write_log(tmp_path, [(100 * i, 1000) for i in range(1, 21)])
    set_forward = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: set_forward)
    assert fio.parse(tmp_path / "fio.json", ONE, QUICK).begin(ahead) == pytest.approx(began, abs=0.01)


def test_the_series_adds_threads_up(tmp_path: Path) -> None:
    """One logs every 100 ms, another was held up and logs when it can, a third's part was done after 0.5 s."""
    steady = [(100 * i, 1000) for i in range(1, 21)]
    late = [(250, 400), (300, 1000)] + [(100 * i, 1000) for i in range(4, 21)]
    early = [(100 * i, 2000) for i in range(1, 6)]
    write_log(tmp_path, steady, late, early)
    series = fio.series(tmp_path / fio.IOPS_LOG, QUICK.workload_interval_ms / 1e3, 3)
    assert len(series) == 20 and series[-1].end == pytest.approx(2.0)
    operations = [one.operations for one in series]
    assert operations[:3] == pytest.approx([340, 340, 370]) and operations[5:] == pytest.approx([200] * 15)
    assert sum(operations) == pytest.approx(2000 + 150 + 1700 + 1000)
    assert series[-1].waited_us == pytest.approx(3 * 0.1 * 1e6)  # three under way, for 0.1 s


def test_a_burst_is_not_spread_over_the_pause_before_it(tmp_path: Path) -> None:
    """fio writes no line for a length in which nothing completed: as of writers that pause at the dirty limit."""
    steady = [(100 * i, 1000) for i in range(1, 21)]
    bursts = [(100, 5000), (600, 5000), (1100, 5000), (1600, 5000)]
    write_log(tmp_path, steady, bursts)
    length = QUICK.workload_interval_ms / 1e3
    operations = [one.operations for one in fio.series(tmp_path / fio.IOPS_LOG, length, 2)]
    assert operations[:6] == pytest.approx([600, 100, 100, 100, 100, 600])
    # Lines may be late: what fio counted is what the whole is.
    scaled = fio.series(tmp_path / fio.IOPS_LOG, length, 2, operations=2000)
    assert [one.operations for one in scaled] == pytest.approx([value / 2 for value in operations])


def test_a_gap_in_all_threads_is_fio_being_late(tmp_path: Path) -> None:
    """fio looks at all threads at a time, and its rates are those since it looked last. A thread may start later."""
    late = [(100, 1000), (400, 1000)] + [(100 * i, 1000) for i in range(5, 21)]
    write_log(tmp_path, late, [(when - 30, rate) for when, rate in late])
    length = QUICK.workload_interval_ms / 1e3
    operations = [one.operations for one in fio.series(tmp_path / fio.IOPS_LOG, length, 2)]
    assert operations[:19] == pytest.approx([200] * 19)


def test_a_thread_that_logs_no_end_does_not_end_the_series_early(tmp_path: Path) -> None:
    whole = [(100 * i, 1000) for i in range(1, 21)]
    write_log(tmp_path, whole, whole[:-1])  # its last interval is never logged
    assert len(fio.series(tmp_path / fio.IOPS_LOG, QUICK.workload_interval_ms / 1e3, 3)) == 19


def test_threads_have_their_own_parts() -> None:
    argv = fio.argv(READ, QUICK, 1 << 30, "/dev/x", 5, Path("/r"))
    assert {"--size=67108864", "--offset_increment=67108864", "--numjobs=16", "--randseed=5"} <= set(argv)
    assert {"--direct=0", "--ioengine=psync", "--iodepth=1", "--invalidate=0", "--thread=1"} <= set(argv)
    assert not [option for option in argv if "time_based" in option]
    assert fio.subrange(Workload("x", "read", 3, 131072), 1 << 20) == 2 * 131072


@pytest.mark.parametrize(
    ("side", "problem"),
    [
        ({"total_ios": 0}, "no operation"),
        ({"lat_ns": {"N": 0, "mean": 0.0}}, "no operation"),
        ({"runtime": 400}, "measured for 0.40 s only"),
    ],
)
def test_a_run_that_says_nothing_is_a_problem(tmp_path: Path, side: dict[str, Any], problem: str) -> None:
    assert problem in " ".join(parse(tmp_path, report(**side)).problems)


def test_errors_are_problems(tmp_path: Path) -> None:
    value = report()
    value["jobs"][0]["error"] = 5
    assert parse(tmp_path, value).problems == ("fio reports error 5: Input/output error",)
    value = report()
    value["jobs"][0]["write"]["total_ios"] = 3
    assert "also read, although the workload writes" in parse(tmp_path, value).problems[0]


def test_an_early_end_is_a_warning(tmp_path: Path) -> None:
    result = parse(tmp_path, report(runtime=1000))
    assert result.problems == ()
    assert "the area was finished" in result.warnings[0]


def test_an_unreadable_report(tmp_path: Path) -> None:
    for value in ({}, {"jobs": []}, []):
        with pytest.raises(fio.WorkloadError, match="cannot be read"):
            parse(tmp_path, value)


def test_errors_before_the_report(tmp_path: Path) -> None:
    """A real fio looks for checksums that nobody wrote."""
    file, out = tmp_path / "file", tmp_path / "fio.json"
    file.write_bytes(bytes(4 * 4096))
    subprocess.run(
        ["fio", "--name=verify", f"--filename={file}", "--rw=read", "--bs=4k", "--verify=crc32c", "--verify_fatal=0",
         "--continue_on_error=all", "--output-format=json", f"--output={out}"],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    (job,) = fio.read_report(out)["jobs"]
    assert job["total_err"] == 4
    out.write_text("fio: {an error}\n" + out.read_text() + "and another\n")
    assert fio.read_report(out)["jobs"] == [job]
    out.write_text("fio: cannot open /dev/x\n")
    with pytest.raises(ValueError):
        fio.read_report(out)


def test_the_tail_is_kept_where_enough_lies_beyond(tmp_path: Path) -> None:
    bins = {"1000": 3000, "2000": 900, "50000": 90, "900000": 10}
    metrics = parse(tmp_path, report(clat_ns={"bins": bins})).metrics
    found = [metrics[f"latency_p{percent}_us"] for percent in ("50", "90", "99", "99.9", "99.99")]
    assert found == [1.0, 2.0, 50.0, None, None]
    assert parse(tmp_path, report()).metrics["latency_p50_us"] is None  # an old fio tells none


def options_of(arguments: list[str], directory: Path) -> dict[str, str]:
    """What fio says it was asked."""
    done = subprocess.run(
        ["fio", *arguments], cwd=directory, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    text = (directory / "fio.json").read_text() if (directory / "fio.json").exists() else done.stdout
    report = json.loads(text[text.index("{") :])
    (job,) = report["jobs"]
    asked = report.get("global options", {}) | job["job options"] | {"name": job["jobname"]}
    return {name: value for name, value in asked.items() if not name.startswith("write_")}


DIRECT = Workload("rand-read-2j-4d-4k", "randread", 2, 4096, "depth-jobs", "sweep", depth=4)
OVER_STORE = Workload("rand-read-2th-4k-d4", "randread", 2, 4096, "s3", "store", depth=4)


def test_a_job_file_that_writes_names_no_disk(tmp_path: Path) -> None:
    """A bundle asks others to run it, and it overwrote their disk of that name."""
    if not shutil.which("fio"):
        pytest.skip("fio is not installed")
    for write in (
        fio.argv(dataclasses.replace(READ, rw="randwrite"), QUICK, 1 << 20, "/dev/nvme0n1", 7, tmp_path),
        failover.argv("/dev/nbd0", 1 << 20, 1, 7, tmp_path),
        store.argv(dataclasses.replace(OVER_STORE, rw="write"), 1, 1 << 20, ["--filename=/dev/nbd0"], 7, tmp_path),
    ):
        text = replay.job_file(write, ["WRITES to /dev/nvme0n1."])
        assert "/dev/" not in "".join(line for line in text.splitlines() if not line.startswith("#"))
        assert text.splitlines()[1] == "# WRITES; name a device that may be LOST: DEVICE=/dev/... fio replay.fio"
        (tmp_path / replay.FILE).write_text(text)
        for device, said in (
            ("DEVICE=/dev/mine", "--filename=/dev/mine"),
            ("OTHER=", "failed parsing filename=${DEVICE}"),
        ):
            argv = ["env", "-u", "DEVICE", device, "fio", "--showcmd", str(tmp_path / replay.FILE)]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert said in done.stdout + done.stderr
    read = fio.argv(READ, QUICK, 1 << 20, "/dev/nvme0n1", 7, tmp_path)
    assert "filename=/dev/nvme0n1" in replay.job_file(read, ["Reads."])


@pytest.mark.parametrize("workload", [READ, DIRECT, OVER_STORE], ids=["buffered", "direct", "store"])
def test_a_run_is_repeated_by_its_job_file_alone(workload: Workload, tmp_path: Path) -> None:
    if not shutil.which("fio"):
        pytest.skip("fio is not installed")
    (tmp_path / "disk").write_bytes(bytes(1 << 20))
    (tmp_path / "run").mkdir()
    (tmp_path / "again").mkdir()
    profile = dataclasses.replace(QUICK, ramp_s=0, runtime_s=1)
    if workload.engine == "store":
        argv = store.argv(
            workload, 1, 1 << 20, ["--ioengine=psync", f"--filename={tmp_path}/disk"], 7, tmp_path / "run"
        )
    else:
        argv = fio.argv(workload, profile, 1 << 20, str(tmp_path / "disk"), 7, tmp_path / "run")
    job = replay.job_file(argv, ["two\nlines", "of a head"])
    assert job.splitlines()[1:4] == ["# two lines", "# of a head", ""]
    (tmp_path / "again" / replay.FILE).write_text(job)
    first = options_of(argv[1:], tmp_path / "run")
    again = options_of(["--output-format=json", replay.FILE], tmp_path / "again")
    assert first == again and first["randseed"] == "7"
    assert (tmp_path / "again/replay_iops.log").exists() == (workload.engine != "store")
