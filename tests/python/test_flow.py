# SPDX-License-Identifier: BSD-3-Clause
"""userblk-flow as its users meet it: workload files in, system calls, text and JSON out."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flow_program import FLOW, READS, ROOT, WORKLOADS, counts, results, run_flow, settings, write
from loops import LIMIT, MIB, loop

pytestmark = pytest.mark.usefixtures("flow_is_built")

GAMMA = "cvar(type=cvar-gamma,parameters=mean:{};gamma:1.5)"


@contextlib.contextmanager
def ext4(device: str, point: Path) -> Iterator[Path]:
    """A new one."""
    point.mkdir()
    subprocess.run(["mkfs.ext4", "-q", device], check=True)
    subprocess.run(["mount", device, point], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", point], check=True)


@contextlib.contextmanager
def frozen(point: Path) -> Iterator[None]:
    """A file system whose writers wait."""
    subprocess.run(["fsfreeze", "--freeze", point], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", point], check=True)


# ---- the workloads ----


def test_all_shapes_servers_and_files_are_correct() -> None:
    files = sorted(WORKLOADS.glob("*.f"))
    assert len(files) == 7 + 3 + 2 + 1
    for file in files:
        done = run_flow("--check", file)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), file


@pytest.mark.parametrize("name", [f"{order}-{op}" for order in ("seq", "rand") for op in ("read", "write")])
def test_data_workloads_use_a_file_per_thread_once(tmp_path: Path, name: str) -> None:
    sizes = {"nthreads": 16, "nfiles": 16, "iosize": "128k", "filesize": "4m", "iters": 32, "runtime": 60}
    result = results(tmp_path, WORKLOADS / f"{name}.f", **sizes)
    assert result["end"] == "all-done"
    rows = counts(result)
    verb = "read1" if "read" in name else "write1"
    assert rows[verb] == 16 * 32
    assert result["summary"]["bytes"] == 16 * 4 * 2**20
    files = list((tmp_path / "datafiles").rglob("0*1/0*"))
    assert sorted(f.stat().st_size for f in files if f.is_file()) == [4 * 2**20] * 16


@pytest.mark.parametrize("threads", [1, 16])
def test_metadata_workloads_handle_every_file_once(tmp_path: Path, threads: int) -> None:
    create = results(tmp_path, WORKLOADS / "create.f", nthreads=threads, nfiles=3000)
    assert counts(create) == {"create1": 3000, "write1": 3000, "close1": 3000}
    assert create["summary"]["written_bytes"] == 3000 * 4096
    assert create["end"] == "all-done" and create["threads_without_file"] == threads
    assert sum(1 for f in (tmp_path / "datafiles").rglob("*") if f.is_file()) == 3000

    read = results(tmp_path, WORKLOADS / "read.f", nthreads=threads, nfiles=3000, finish=9000)
    assert 3000 <= counts(read)["read1"] <= 3000 + threads
    assert read["summary"]["read_bytes"] == counts(read)["read1"] * 4096

    delete = results(tmp_path, WORKLOADS / "delete.f", nthreads=threads, nfiles=3000)
    assert counts(delete) == {"delete1": 3000}
    assert not [f for f in (tmp_path / "datafiles").rglob("*") if f.is_file()]


# Filebench 1.5-alpha3's own, per loop, of the same workloads.
SYSTEM_CALLS = {
    "file-server": dict(openat=3, close=3, newfstatat=2, write=2, read=2, lseek=2, unlink=1),
    "mail-server": dict(openat=3, close=3, read=4, lseek=4, write=2, fsync=2, unlink=1, newfstatat=1),
    "web-server": dict(openat=10, close=10, read=20, lseek=11, write=1),
}
FLOWOPS = {"file-server": 11, "mail-server": 13, "web-server": 31}


def system_calls(tmp_path: Path, workload: Path, values: list[str]) -> tuple[dict[str, Any], dict[str, int]]:
    """Results of a run whose files are made before, and how often it made each system call."""
    if subprocess.run(["which", "strace"], capture_output=True, check=False).returncode:
        pytest.skip("strace is not installed; run: apt-get install strace")
    out, table = tmp_path / "results.json", tmp_path / "strace"
    assert run_flow("-q", "--phase=create", *values, workload).returncode == 0
    command = [FLOW, "-q", "--phase=run", "--json", out, *values, workload]
    subprocess.run(
        ["strace", "-f", "-c", "-U", "name,calls", "-o", table, *map(str, command)],
        check=True,
        capture_output=True,
        timeout=LIMIT,
    )
    calls = {name: int(number) for name, number in (line.split() for line in table.read_text().splitlines()[2:-2])}
    return json.loads(out.read_text()), calls


@pytest.mark.parametrize("name", SYSTEM_CALLS)
def test_system_calls_of_a_loop_are_filebenchs(tmp_path: Path, name: str) -> None:
    loops = 0.0
    for runtime in (2, 60):  # the longer where fsync(2) takes long
        if loops > 100:
            break
        values = settings(tmp_path, nfiles=2000, nthreads=2, runtime=runtime)
        result, calls = system_calls(tmp_path, WORKLOADS / f"{name}.f", values)
        loops = result["summary"]["ops"] / FLOWOPS[name]
    assert loops > 100
    expected = SYSTEM_CALLS[name]
    # Start and end of the program, and the look at 64 files, are some hundred calls.
    for call in ("openat", "close", "newfstatat", "write", "read", "lseek", "unlink", "fsync"):
        assert calls.get(call, 0) == pytest.approx(expected.get(call, 0) * loops, rel=0.01, abs=250), call


OLTP = {"nshadows": 4, "ndbwriters": 2, "filesize": "1m", "logfilesize": "1m", "nfiles": 3, "usermode": 100}


def test_system_calls_of_oltp_are_filebenchs(tmp_path: Path) -> None:
    """
    Filebench posts to each writer by a semtimedop(2) of two semaphores and waits by two; a thread opens 128 files one
    after the other (opennext), writes through the C library's asynchronous I/O and reads by pread64(2).
    """
    result, calls = system_calls(tmp_path, WORKLOADS / "oltp.f", settings(tmp_path, **OLTP, runtime=6))
    rows = counts(result)
    posts = rows["shadow-post-lg"] + 2 * rows["shadow-post-dbwr"]
    waits = 2 * (rows["lg-block"] + rows["dbwr-block"])
    assert rows["shadowread"] > 2000 and rows["dbwr-block"] > 2
    reads = rows["shadowread"] - 4 * 128  # each descriptor's open counts as an operation
    writes = rows["dbwrite-a"] + rows["lg-write"] - 3 * 128
    # What ends after the time is not counted: at most one operation of each thread.
    assert calls["pread64"] == pytest.approx(reads, abs=60)
    semaphores = calls.get("semop", 0) + calls.get("semtimedop", 0)
    assert semaphores == pytest.approx(posts + waits, abs=60)
    # Those of the end may not have begun when the program ends.
    assert writes - 400 <= calls["pwrite64"] <= writes + 400
    # The program itself removes a file, by which it has found out that results can be written.
    assert "fsync" not in calls and calls["unlink"] == 1


def test_oltp_posts_as_its_writers_wait(tmp_path: Path) -> None:
    result = results(tmp_path, WORKLOADS / "oltp.f", **OLTP, runtime=3)
    rows = counts(result)
    done = rows["shadow-post-dbwr"]
    assert done > 3000
    # Each of two writers waits for 1000 posts, the log for 3200; posts are ahead by 3000 at most.
    assert done / 1000 - 4 <= rows["dbwr-block"] / 2 <= done / 1000
    assert rows["shadow-post-lg"] / 3200 - 3 <= rows["lg-block"] <= rows["shadow-post-lg"] / 3200
    assert rows["dbwrite-a"] == pytest.approx((rows["dbwr-block"] + 2) * 100 + 2 * 128, abs=400)
    shown = {row["name"]: row["in_summary"] for row in result["flowops"]}
    assert [name for name, yes in shown.items() if yes] == [
        "lg-write", "lg-aiowait", "dbwrite-a", "dbwr-aiowait", "shadowread",
    ]  # fmt: skip
    assert result["summary"]["ops"] == sum(rows[name] for name, yes in shown.items() if yes)
    assert subprocess.run(["ipcs", "-s"], capture_output=True, text=True, check=True).stdout.count("0x") == 0


@pytest.mark.parametrize("stalls", [False, True])
def test_writes_that_were_counted_and_not_done_are_told(tmp_path: Path, stalls: bool) -> None:
    """A disk that does nothing until the run is over: each of two writers has at least 100 under way."""
    (tmp_path / "image").mkdir()
    out, values = tmp_path / "results.json", {**OLTP, "runtime": 3, "logsize": "4k"}
    with loop(tmp_path / "image", 64 * MIB) as device:
        with ext4(device, tmp_path / "m") as point:
            words = [*settings(point, **values), str(WORKLOADS / "oltp.f")]
            assert run_flow("-q", "--phase=create", *words).returncode == 0
            with frozen(point) if stalls else contextlib.nullcontext():
                command = [str(FLOW), "-q", "--phase=run", "--json", str(out), *words]
                running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                time.sleep(4)
            _, errors = running.communicate(timeout=LIMIT)
    assert (running.returncode, errors) == (0, "")
    summary = json.loads(out.read_text())["summary"]
    left, written = summary["unfinished_bytes"], summary["written_bytes"]
    assert left == written if stalls else left < written
    assert summary["unfinished_writes"] >= 200 * stalls and written >= 200 * 2048


CLOSED = """
define fileset name=big,path=$dir,entries=50,dirwidth=10,size=1m,prealloc
define fileset name=small,path=$dir,entries=50,dirwidth=10,size=4k,prealloc
define process name=p {
  thread name=writer,memsize=64k,instances=2 {
    flowop openfile name=open1,filesetname=big,fd=1
    flowop aiowrite name=write1,fd=1,iosize=64k,random
    flowop closefile name=close1,fd=1
  }
  thread name=opener,instances=2 {
    flowop openfile name=open2,filesetname=small,fd=1
    flowop closefile name=close2,fd=1
  }
}
run 1
"""


def test_a_file_is_closed_after_its_asynchronous_writes(tmp_path: Path) -> None:
    """They failed, or went into the file that got the descriptor."""
    assert counts(results(tmp_path, write(tmp_path, CLOSED)))["write1"] > 10
    sizes = {"big": MIB, "small": 4096}
    for name, size in sizes.items():
        assert {path.stat().st_size for path in (tmp_path / name).rglob("*") if path.is_file()} == {size}


def test_events_come_at_their_rate(tmp_path: Path) -> None:
    result = results(tmp_path, WORKLOADS / "oltp.f", **OLTP, runtime=3, eventrate=200)
    assert 300 <= counts(result)["random-rate"] <= 600


@pytest.mark.parametrize(
    ("name", "size", "grows"),
    [("file-server", 131072, True), ("mail-server", 16384, True), ("web-server", 16384, False)],
)
def test_op_mix_and_bytes_per_op(tmp_path: Path, name: str, size: int, grows: bool) -> None:
    result = results(tmp_path, WORKLOADS / f"{name}.f", nfiles=3000, nthreads=16, runtime=3)
    rows = {row["name"]: row for row in result["flowops"]}
    assert len(rows) == FLOWOPS[name]
    loops = result["summary"]["ops"] / FLOWOPS[name]
    for row in rows.values():
        # Threads are within one loop of each other; the log adds an open per thread.
        assert row["ops"] == pytest.approx(loops, rel=0.01, abs=34), row["name"]
        if row["type"] == "appendfilerand":
            # Evenly from 0 to 16383, of which the mean has this standard error.
            error = 16384 / math.sqrt(12 * row["ops"])
            assert row["bytes"] / row["ops"] == pytest.approx(8191.5, abs=6 * error)
        if row["type"] == "writewholefile":
            assert row["bytes"] == row["ops"] * size
        if row["type"] == "readwholefile" and not grows:
            assert row["bytes"] == row["ops"] * size


def test_drift_does_not_end_a_file_server(tmp_path: Path) -> None:
    """Filebench passes over deletes of open files until no name is left, and then has no result."""
    values = {"nfiles": 250, "nthreads": 40, "filesize": "4k", "runtime": 4}
    result = results(tmp_path, WORKLOADS / "file-server.f", **values)
    assert result["end"] == "time"
    rows = counts(result)
    assert 0 <= rows["createfile1"] - rows["deletefile1"] <= 80


# ---- runs ----


def test_a_run_takes_the_time_it_was_given(tmp_path: Path) -> None:
    workload = write(tmp_path, READS.format("run 2"))
    result = results(tmp_path, workload, "--interval=0.5")
    assert result["duration_s"] == 2
    assert result["end"] == "time"
    edges = [(i["start_s"], i["end_s"]) for i in result["intervals"]]
    assert 2 <= len(edges) <= 4  # 4, unless this machine is so busy that the sampler came late
    assert [start for start, _ in edges] == [0, *(end for _, end in edges[:-1])]
    assert edges[-1][1] == 2
    for key in ("ops", "bytes"):
        assert sum(i[key] for i in result["intervals"]) == result["summary"][key]
    for interval in result["intervals"]:
        assert sum(interval["latency_ns"]["bins"].values()) == interval["ops"]
        assert sum(interval["flowops"].values()) == interval["ops"]
    merged: dict[str, int] = {}
    for row in result["flowops"]:
        for value, number in row["latency_ns"]["bins"].items():
            merged[value] = merged.get(value, 0) + number
    assert merged == result["summary"]["latency_ns"]["bins"]
    summary = result["summary"]
    assert summary["latency_ns"]["mean"] == pytest.approx(summary["latency_ns"]["sum"] / summary["ops"], abs=0.1)
    middle = sum(int(v) * n for v, n in summary["latency_ns"]["bins"].items()) / summary["ops"]
    assert middle == pytest.approx(summary["latency_ns"]["mean"], rel=0.01)
    assert 0 < summary["user_s"] + summary["system_s"] < 2 * (os.cpu_count() or 1)


def test_text_is_in_filebenchs_layout(tmp_path: Path) -> None:
    done = run_flow("-q", *settings(tmp_path), write(tmp_path, READS.format("psrun -1 4")))
    assert done.returncode == 0
    row = r"read1                \d+ops +\d+ops/s +[\d.]+mb/s +[\d.]+ms/op \[[\d.]+ms - +[\d.]+ms\]"
    # Each a second's, the last one of the whole run; fewer if this machine is so busy that the sampler came late.
    number = len(re.findall(row, done.stdout))
    assert 2 <= number <= 4
    summary = (
        r"(?m)^\d+\.\d+: IO Summary: +(\d+) ops ([\d.]+) ops/s (\d+)/0 rd/wr"
        r" +[\d.]+mb/s +[\d.]+ms/op$"
    )
    found = re.findall(summary, done.stdout)
    assert len(found) == number
    assert float(found[-1][1]) == pytest.approx(int(found[-1][0]) / 4, abs=0.01)
    # Rows stand in reverse order of definition.
    assert re.findall(r"(?m)^(\w+1) ", done.stdout)[:3] == ["close1", "read1", "open1"]


def test_seconds_end_a_run_before_its_own_time(tmp_path: Path) -> None:
    found = results(tmp_path, WORKLOADS / "mail-server.f", "--seconds=0.3", nfiles=300, nthreads=2, runtime=60)
    assert found["end"] == "time" and found["duration_s"] == pytest.approx(0.3)
    assert found["variables"]["runtime"] == 60


def test_a_seed_gives_the_same_files_and_another_seed_others(tmp_path: Path) -> None:
    values = {"nfiles": 500, "runtime": 1, "filesize": GAMMA.format(3000)}

    def tree(seed: int) -> list[tuple[str, int]]:
        done = run_flow(
            "-q", "--phase=create", f"--seed={seed}", *settings(tmp_path, **values),
            WORKLOADS / "mail-server.f",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        files = (tmp_path / "bigfileset").rglob("*")
        return sorted((str(f), f.stat().st_size) for f in files if f.is_file())

    assert tree(1) == tree(1)
    assert tree(1) != tree(2)
    assert results(tmp_path, WORKLOADS / "mail-server.f", "--seed=77", **values)["seed"] == 77


def test_phases(tmp_path: Path) -> None:
    workload = WORKLOADS / "mail-server.f"
    values = {"nfiles": 300, "nthreads": 2, "runtime": 1}
    missing = run_flow("-q", "--phase=run", *settings(tmp_path, **values), workload)
    assert missing.returncode == 1
    assert "create the files with the same workload, --seed and --set" in missing.stderr
    assert run_flow("-q", "--phase=create", *settings(tmp_path, **values), workload).returncode == 0
    other = run_flow("-q", "--phase=run", "--seed=2", *settings(tmp_path, **values), workload)
    assert other.returncode == 1
    assert "is not as expected" in other.stderr
    before = {f.stat().st_ino for f in (tmp_path / "bigfileset").rglob("*") if f.is_file()}
    assert 150 < len(before) < 300
    result = results(tmp_path, workload, "--phase=run", **values)
    assert result["filesets"][0]["preallocated"] == len(before)
    assert result["filesets"][0]["create_s"] == 0


def looks_before_the_run(tmp_path: Path, *options: str) -> list[str]:
    """System calls on the fileset's files that come before the first open, by strace."""
    trace, words = tmp_path / "strace", [*settings(tmp_path), str(write(tmp_path, READS.format("run 1")))]
    assert run_flow("-q", "--phase=create", *words).returncode == 0
    command = ["strace", "-f", "-e", "trace=%file", "-o", str(trace), str(FLOW), "-q", "--phase=run", *options, *words]
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT)
    calls = [line for line in trace.read_text().splitlines() if f'"{tmp_path}/f' in line]
    first = next(number for number, line in enumerate(calls) if "openat(" in line)
    return calls[:first]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_trusted_files_are_not_looked_at_before_the_run(tmp_path: Path) -> None:
    """Their metadata would be in the cache that was dropped for the run."""
    assert looks_before_the_run(tmp_path, "--trust") == []
    assert len(looks_before_the_run(tmp_path)) == 64


def test_variables_are_recorded(tmp_path: Path) -> None:
    result = results(tmp_path, WORKLOADS / "file-server.f", nfiles=100, nthreads=2, runtime=1)
    assert result["variables"]["nfiles"] == 100
    assert result["variables"]["filesize"] == 131072
    assert result["variables"]["dir"] == str(tmp_path)
    assert result["threads"] == 2
    assert result["original"] is False


def test_statements_are_carried_out_in_order(tmp_path: Path) -> None:
    workload = write(
        tmp_path,
        'set $n=3\nsystem "echo $n >${dir}/first"\nset $n=4\necho "n is $n"\n'
        'system "test $n = 4 && mv $(dir)/first $(dir)/second"\nquit\nrun\n',
    )
    done = run_flow(*settings(tmp_path), workload)
    assert done.returncode == 0, done.stderr
    assert "n is 4" in done.stdout
    assert (tmp_path / "second").read_text() == "3\n"


LATE = """
define fileset name=a,path=$dir,entries=2,dirwidth=10,size=4k,prealloc
create files
define fileset name=b,path=$dir,entries=3,dirwidth=10,size=4k,prealloc
define process name=p { thread name=t {
  flowop openfile name=open1,filesetname=b,fd=1
  flowop closefile name=close1,fd=1
  flowop finishoncount name=finish1,value=2
} }
set mode quit alldone
run
"""


def test_files_defined_after_files_were_made_are_made_too(tmp_path: Path) -> None:
    workload = write(tmp_path, LATE)
    assert run_flow("--check", *settings(tmp_path), workload).returncode == 0
    assert results(tmp_path, workload)["summary"]["ops"] == 2
    shutil.rmtree(tmp_path / "b")
    assert run_flow("-q", "--phase=create", *settings(tmp_path), workload).returncode == 0
    assert results(tmp_path, workload, "--phase=run")["summary"]["ops"] == 2


def test_a_command_that_fails_ends_the_program(tmp_path: Path) -> None:
    done = run_flow(*settings(tmp_path), write(tmp_path, 'system "exit 7"\nquit\n'))
    assert done.returncode == 1
    assert 'workload.f:2: system "exit 7": exit status 7' in done.stderr


def test_interrupt_keeps_the_results(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    workload = write(tmp_path, READS.format("run 60"))
    command = [str(FLOW), "--json", str(out), *settings(tmp_path), str(workload)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None and p.stderr is not None
        for line in p.stderr:
            if " s: " in line:  # the first second is over
                break
        p.send_signal(signal.SIGINT)
        assert "IO Summary" in p.stdout.read()
        assert "interrupted" in p.stderr.read()
        assert p.wait(LIMIT) == 1
    result = json.loads(out.read_text())
    assert result["end"] == "interrupted"
    assert 0.9 < result["duration_s"] < 60


def test_interrupt_leaves_no_half_made_tree(tmp_path: Path) -> None:
    values = settings(tmp_path, nfiles=1000000, filesize="64k", runtime=1)
    with subprocess.Popen(
        [str(FLOW), *values, str(WORKLOADS / "read.f")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as p:
        assert p.stderr is not None
        assert re.match(r"userblk-flow: fileset datafiles: \d+ of 1000000 files", p.stderr.readline())
        assert (tmp_path / "datafiles").exists()
        p.send_signal(signal.SIGTERM)
        assert "fileset datafiles: interrupted" in p.stderr.read()
        assert p.wait(LIMIT) == 1
    assert not (tmp_path / "datafiles").exists()


# ---- processes ----


def test_progress_is_on_standard_error(tmp_path: Path) -> None:
    done = run_flow(*settings(tmp_path), write(tmp_path, READS.format("run 2")))
    assert re.search(r"(?m)^userblk-flow: [12] s: \d+ ops/s, [\d.]+ MB/s$", done.stderr)
    assert "userblk-flow" not in done.stdout


def test_a_run_that_ends_early_has_results_and_says_so(tmp_path: Path) -> None:
    """Filebench prints no results here, and exits with 0."""
    text = (
        READS.replace("flowop openfile name=open1,filesetname=f,fd=1", "")
        .replace("flowop readwholefile name=read1,fd=1", "flowop deletefile name=delete1,filesetname=f")
        .replace("flowop closefile name=close1,fd=1", "")
    )
    out = tmp_path / "results.json"
    done = run_flow("-q", "--json", out, *settings(tmp_path), write(tmp_path, text.format("run 60")))
    assert done.returncode == 0
    assert "the run ended early: a thread found no file to take" in done.stderr
    result = json.loads(out.read_text())
    assert result["end"] == "early"
    assert counts(result) == {"delete1": 200}


# ---- original behaviour ----

ROUNDING = """
define fileset name=f,path=$dir,entries=4,dirwidth=20,size=5k
define process name=p { thread name=t {
  flowop createfile name=create1,filesetname=f,fd=1
  flowop writewholefile name=write1,fd=1,srcfd=1,iosize=2k
  flowop closefile name=close1,fd=1
} }
set mode quit alldone
run
"""


def test_whole_files_have_their_size_or_filebenchs(tmp_path: Path) -> None:
    workload = write(tmp_path, ROUNDING)
    first = tmp_path / "f" / "00000001" / "00000001"
    assert results(tmp_path, workload)["summary"]["bytes"] == 4 * 5120
    assert first.stat().st_size == 5120
    assert any(first.read_bytes())
    result = results(tmp_path, workload, "--original")
    assert result["original"] is True
    assert result["summary"]["bytes"] == 4 * 6144
    assert first.read_bytes() == bytes(6144)


SEQUENTIAL = """
define file name=f,path=$dir,size=40k,prealloc
define process name=p { thread name=t,memsize=4k {
  flowop read name=read1,filesetname=f,fd=1,iosize=4k,iters=22
  flowop finishoncount name=finish1,value=1
} }
set mode quit alldone
run
"""


def test_reads_at_the_end_of_a_file(tmp_path: Path) -> None:
    workload = write(tmp_path, SEQUENTIAL)
    ours = results(tmp_path, workload)["summary"]
    assert (ours["ops"], ours["bytes"]) == (23, 22 * 4096)  # 22 reads, and an open on the way
    filebench = results(tmp_path, workload, "--original")["summary"]
    assert (filebench["ops"], filebench["bytes"]) == (23, 20 * 4096)


EMPTY = """
define fileset name=f,path=$dir,entries=2,dirwidth=10,size=0,prealloc
define process name=p { thread name=t {
  flowop openfile name=open1,filesetname=f,fd=1
  flowop writewholefile name=write1,fd=1
  flowop closefile name=close1,fd=1
  flowop finishoncount name=finish1,value=6,target=write1
} }
set mode quit alldone
run
"""


def test_writes_of_empty_files_are_counted(tmp_path: Path) -> None:
    result = results(tmp_path, write(tmp_path, EMPTY))
    assert (counts(result)["write1"], result["summary"]["bytes"]) == (6, 0)


NOTHING = """
define file name=f,path=$dir,size=4k,prealloc
define process name=p { thread name=t {
  flowop read name=read1,filesetname=f,fd=1,iosize=4k
  flowop read name=read2,fd=1,iosize=cvar(type=cvar-gamma,parameters=mean:9;gamma:1,round=1k),iters=5
  flowop finishoncount name=finish1,value=1
} }
set mode quit alldone
run
"""


def test_reads_of_no_bytes_are_counted(tmp_path: Path) -> None:
    result = results(tmp_path, write(tmp_path, NOTHING))
    assert (counts(result)["read2"], result["summary"]["bytes"]) == (5, 4096)


# ---- documentation ----


def documented(text: str) -> set[str]:
    return set(re.findall(r"--[a-z]+", text))


def test_options_are_documented() -> None:
    help_text = run_flow("--help").stdout
    options = documented(help_text)
    assert {"--set", "--phase", "--seed", "--original", "--check"} <= options
    man = (ROOT / "harness" / "flow" / "userblk-flow.1").read_text()
    assert documented(man.replace("Fl -", "--")) == options
    assert documented((ROOT / "docs" / "flow.md").read_text()) <= options


@pytest.fixture
def fio_bins(tmp_path: Path) -> Iterator[dict[str, int]]:
    if subprocess.run(["which", "fio"], capture_output=True, check=False).returncode:
        pytest.skip("fio is not installed; run: apt-get install fio")
    out = tmp_path / "fio.json"
    subprocess.run(
        ["fio", "--name=j", f"--filename={tmp_path}/data", "--rw=randread", "--bs=4k", "--size=4m",
         "--output-format=json+", f"--output={out}"],
        check=True,
        capture_output=True,
    )  # fmt: skip
    yield json.loads(out.read_text())["jobs"][0]["read"]["clat_ns"]["bins"]


def bin_value(ns: int) -> int:
    """The rule of docs/flow.md."""
    if ns < 128:
        return ns
    shift = ns.bit_length() - 7
    return (ns >> shift << shift) + (1 << shift) // 2


def test_histograms_are_fios(tmp_path: Path, fio_bins: dict[str, int]) -> None:
    result = results(tmp_path, write(tmp_path, READS.format("run 1")))
    for bins in (fio_bins, result["summary"]["latency_ns"]["bins"]):
        assert len(bins) > 10
        assert all(bin_value(int(value)) == int(value) for value in bins)
