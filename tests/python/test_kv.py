# SPDX-License-Identifier: BSD-3-Clause
"""userblk-kv on each library: what is left behind, what it asks of the kernel, what it says."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_program import results_of, run_program
from loops import LIMIT, small_tmpfs
from userblk.harness.model.parts import ENGINES

ROOT = Path(__file__).resolve().parents[2]
KV = ROOT / "build/host/kv/userblk-kv"
STORES = ("rocksdb", "leveldb", "sqlite")
SMALL = ("--records=500", "--threads=2")


@pytest.fixture(scope="session", autouse=True)
def kv_is_built() -> None:
    done = subprocess.run(["make", "-s", "kv"], cwd=ROOT, capture_output=True, text=True)
    if "left out" in done.stderr:
        pytest.skip("userblk-kv is not built; run: make deps-apps")
    assert done.returncode == 0, done.stderr


def run_kv(*words: object, wrapper: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return run_program(KV, *words, wrapper=wrapper)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    name = str(request.param)
    if name not in run_kv("--version").stdout:
        pytest.skip(f"userblk-kv is built without {name}; run: make deps-apps")
    yield name


def result(tmp_path: Path, *words: object) -> dict[str, Any]:
    return results_of(KV, tmp_path, *words)


def records(store: str, place: Path) -> int:
    """How many it has, after all of them were looked at."""
    done = run_kv(f"--store={store}", "--phase=check", place)
    assert (done.returncode, done.stderr) == (0, "")
    match = re.fullmatch(rf"{store}: (\d+) records, all as they were written\n", done.stdout)
    assert match
    return int(match[1])


@pytest.mark.parametrize("workload", ["a", "b", "c", "d", "e", "f", "fillseq", "fillrandom"])
def test_a_workload_does_what_it_says(tmp_path: Path, store: str, workload: str) -> None:
    fills = workload.startswith("fill")
    found = result(tmp_path, f"--store={store}", f"--workload={workload}", *SMALL, "--count=200", tmp_path)
    done = {kind["name"]: kind for kind in found["flowops"]}
    counts = {name: kind["ops"] for name, kind in done.items() if kind["ops"]}
    kinds = {"a": "read update", "b": "read update", "c": "read", "d": "read insert", "e": "scan insert"}
    expected = "insert" if fills else kinds.get(workload, "read read-modify-write")
    assert set(counts) == set(expected.split())
    assert sum(counts.values()) == found["summary"]["ops"] == 400 and found["end"] == "all-done"
    for kind in done.values():
        assert sum(kind["latency_ns"]["bins"].values()) == kind["ops"]
    assert records(store, tmp_path) == (0 if fills else 500) + counts.get("insert", 0)
    assert found["library"].startswith(f"{store} ") and found["distribution"] in ("zipfian", "latest")


def test_a_series_tells_kinds_apart(tmp_path: Path, store: str) -> None:
    # A thread of a busy machine may wait 0.1 s for a CPU: intervals are longer.
    words = (f"--store={store}", "--workload=a", *SMALL, "--seconds=2.5", "--interval=0.5")
    found = result(tmp_path, *words, tmp_path)
    assert found["end"] == "time" and 4 <= len(found["intervals"]) <= 6
    for kind in found["flowops"]:
        assert sum(one["flowops"][kind["name"]] for one in found["intervals"]) == kind["ops"]


def test_filling_ends_with_the_records(tmp_path: Path, store: str) -> None:
    found = result(tmp_path, f"--store={store}", "--workload=fillseq", *SMALL, "--seconds=0", tmp_path)
    assert found["end"] == "first-done" and found["summary"]["ops"] == 500 == records(store, tmp_path)


def test_the_same_seed_draws_the_same(tmp_path: Path, store: str) -> None:
    words = (f"--store={store}", "--workload=d", "--records=500", "--count=300")
    counts = []
    for seed in (3, 3, 4):
        found = result(tmp_path, *words, f"--seed={seed}", tmp_path)
        counts.append([kind["ops"] for kind in found["flowops"]])
        shutil.rmtree(tmp_path / "kv")
    assert counts[0] == counts[1] != counts[2]


def test_load_then_run(tmp_path: Path, store: str) -> None:
    words = (f"--store={store}", "--workload=e", *SMALL)
    assert run_kv(*words, "--phase=load", tmp_path).returncode == 0
    assert records(store, tmp_path) == 500
    assert result(tmp_path, *words, "--phase=run", "--count=50", tmp_path)["summary"]["ops"] == 100


def test_run_again(tmp_path: Path, store: str) -> None:
    """Its inserts are those of the run before, and more."""
    words = (f"--store={store}", "--workload=d", *SMALL)
    assert run_kv(*words, "--phase=load", tmp_path).returncode == 0
    inserted = []
    for count in ("--count=100", "--count=300"):
        found = result(tmp_path, *words, "--phase=run", count, tmp_path)
        inserted += [kind["ops"] for kind in found["flowops"] if kind["name"] == "insert"]
        assert records(store, tmp_path) == 500 + inserted[-1]
    assert 0 < inserted[0] < inserted[1]


def test_what_is_damaged_is_not_read_as_right(tmp_path: Path, store: str) -> None:
    """Values are stored as they are: if the library accepts a damaged one, its checksum field shows it."""
    words = (f"--store={store}", "--workload=c", "--records=300", "--write-buffer=65536")
    assert run_kv(*words, "--phase=load", tmp_path).returncode == 0
    files = [path for path in (tmp_path / "kv").rglob("*") if path.is_file() and path.stat().st_size > 20000]
    for path in files:
        data = bytearray(path.read_bytes())
        for at in range(5000, len(data), 4096):
            data[at] ^= 0xFF
        path.write_bytes(data)
    done = run_kv(f"--store={store}", "--phase=check", tmp_path)
    lost = done.returncode == 0 and "300 records" not in done.stdout  # a log's end is cut where it is damaged
    assert lost or (done.returncode == 1 and done.stderr.startswith("userblk-kv: ") and done.stderr.count("\n") == 1)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_each_write_is_synced_where_asked(tmp_path: Path, store: str) -> None:
    def syncs(count: int, *more: str) -> int:
        words = (f"--store={store}", "--workload=fillrandom", f"--count={count}", "--seconds=0", *more, tmp_path)
        trace = tmp_path / "strace"
        done = run_kv(*words, wrapper=("strace", "-f", "-e", "trace=fsync,fdatasync,sync_file_range", "-o", str(trace)))
        assert (done.returncode, done.stderr) == (0, "")
        shutil.rmtree(tmp_path / "kv")
        return len(re.findall(r" f(?:data)?sync\(", trace.read_text()))

    assert syncs(60, "--sync") - syncs(20, "--sync") == 40
    assert syncs(60) == syncs(20)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--store is missing"),
        (["--store=mine"], "--store mine: give rocksdb, leveldb or sqlite"),
        (["--store=sqlite", "{}"], "--workload is missing"),
        (["--store=sqlite", "--workload=g", "{}"], "--workload g: no such workload"),
        (["--store=sqlite", "--workload=a"], "DIRECTORY is missing"),
        (["--store=sqlite", "--workload=a", "{}/none"], "{}/none: No such file or directory; DIRECTORY must exist"),
        (["--store=sqlite", "--workload=a", "{}", "b"], "b: one argument too many"),
        (["--store=sqlite", "--workload=a", "--records=1", "{}"], "--records 1: give a whole number from 2"),
        (["--store=sqlite", "--workload=a", "--threads=0", "{}"], "--threads 0: give a whole number from 1 to 1024"),
        (["--store=sqlite", "--workload=a", "--seconds=0", "{}"], "--seconds 0: needs --count; add it"),
        (["--store=sqlite", "--workload=a", "--distribution=even", "{}"], "--distribution even: give zipfian, latest"),
        (["--store=sqlite", "--workload=a", "--phase=half", "{}"], "--phase half: give all, load, run or check"),
        (["--store=sqlite", "--workload=fillseq", "--phase=load", "{}"], "--phase load: fillseq measures the loading"),
        (["--store=sqlite", "--workload=a", "--phase=run", "{}"], "{}/kv: does not exist; create it with --phase load"),
        (["--store=sqlite", "--workload=a", "--write-buffer=1", "{}"], "--write-buffer 1: give a whole number"),
        (["--store=sqlite", "--workload=a", "--quick", "{}"], "--quick: no such option"),
        (["--store=sqlite", "--workload=a", "--count=5", "--json={}", "{}"], "--json {}: not a regular file; name"),
        (["--store"], "--store: needs a value"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_and_status_2(tmp_path: Path, words: list[str], message: str) -> None:
    done = run_kv(*(word.format(tmp_path) for word in words))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"userblk-kv: {message.format(tmp_path)}") and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_figures_show_a_run_over_time(tmp_path: Path, store: str) -> None:
    """They said that nothing was recorded."""
    report = result(tmp_path, f"--store={store}", "--workload=b", *SMALL, "--seconds=0.5", "--interval=0.1", tmp_path)
    (tmp_path / "kv.json").write_text(json.dumps(report))
    history = ENGINES["kv"].history
    assert history is not None and history.files == ("kv.json",)
    assert history.seconds({"files": {"ramp_s": 1, "runtime_s": 2}}) == 3
    intervals, bins = history.read(tmp_path, report["duration_s"], 0.1)
    assert sum(one.operations for one in intervals) == sum(bins.values()) == report["summary"]["ops"] > 0


def test_what_is_there_is_not_touched(tmp_path: Path, store: str) -> None:
    (tmp_path / "kv").mkdir()
    done = run_kv(f"--store={store}", "--workload=a", tmp_path)
    assert done.returncode == 2 and f"{tmp_path}/kv: exists; remove it" in done.stderr
    done = run_kv(f"--store={store}", "--workload=a", "--phase=run", tmp_path)
    assert done.returncode == 1 and done.stderr.startswith(f"userblk-kv: {store}: {tmp_path}/kv: ")


def test_an_interrupted_run_says_so_and_has_results(tmp_path: Path, store: str) -> None:
    out = tmp_path / "kv.json"
    argv = [str(KV), f"--store={store}", "--workload=b", *SMALL, f"--json={out}", str(tmp_path)]
    # A test in the background of a shell would hand down that it is ignored.
    wrapper = ["env", "--default-signal=INT"]
    process = subprocess.Popen([*wrapper, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert errors == "userblk-kv: interrupted; the results are of the time until then\n"
    assert json.loads(out.read_text())["end"] == "interrupted"
    assert records(store, tmp_path) == 500


def test_rocksdb_does_not_log_while_it_works(tmp_path: Path) -> None:
    """With the assertions of Debian's library, lines for LOG that a full file system does not take end the program."""
    if "rocksdb" not in run_kv("--version").stdout:
        pytest.skip("userblk-kv is built without rocksdb; run: make deps-apps")
    words = ("--store=rocksdb", "--workload=fillrandom", "--records=2000", "--write-buffer=1048576")
    result(tmp_path, *words, tmp_path)
    assert list((tmp_path / "kv").glob("*.sst"))  # a flush has happened, of which it says so
    assert not (tmp_path / "kv/LOG").read_text()


def test_a_full_file_system_is_one_line(tmp_path: Path, store: str) -> None:
    with small_tmpfs(tmp_path, "4M") as place:
        words = (f"--store={store}", "--workload=fillrandom", "--records=100000", "--write-buffer=1048576")
        done = run_kv(*words, place)
        assert done.returncode == 1 and done.stderr.startswith(f"userblk-kv: {store} fillrandom: insert: user")
        assert done.stderr.count("\n") == 1
