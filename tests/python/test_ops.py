# SPDX-License-Identifier: BSD-3-Clause
"""userblk-ops: what its operations ask of the kernel, what they leave behind, and what it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from engine_program import results_of, run_program
from loops import LIMIT

ROOT = Path(__file__).resolve().parents[2]
OPS = ROOT / "build/host/ops/userblk-ops"
WORKERS = 2
FEW, MANY = 24, 60  # operations of a worker
FILES_CALLS = (
    "openat close read write pread64 pwrite64 unlink rename newfstatat getdents64 lseek fdatasync fsync mkdir".split()
)
# What each needs in small.
SMALL = {
    "files": {"MRDL": 10, "MRDM": 10, "MWUL": 100, "MWUM": 100, "UMP": 100, "UMS": 100, "RMP": 100, "RMS": 100}
    | {name: 5 for name in ("SaMP", "SaMS", "LsMP", "LsMS")}
    | {"MRDL-code": 10, "MRDM-code": 10}
}


@pytest.fixture(scope="session", autouse=True)
def ops_is_built() -> None:
    subprocess.run(["make", "-s", "ops"], cwd=ROOT, check=True)


def run_ops(*words: object, wrapper: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return run_program(OPS, *words, wrapper=wrapper)


def names() -> list[str]:
    said = run_ops("--help").stdout
    return re.findall(r"^    (\S+) ", said[said.index("Operations:") :], re.M)


def options(name: str) -> list[str]:
    words = [f"--op={name}", f"--workers={WORKERS}", "--fan-out=2"]
    if re.fullmatch(r"[RWA][MD][PS][RS]|A[MD][PS]S", name):
        words.append(f"--size={100 * 4096}")
    if name in SMALL["files"]:
        words.append(f"--files={SMALL['files'][name]}")
    return words


def result(tmp_path: Path, *words: object) -> dict[str, Any]:
    return results_of(OPS, tmp_path, *words)


def test_there_are_those_of_both_papers() -> None:
    found = names()
    assert len(found) == len(set(found)) == 47
    assert sum("-code" in name for name in found) == 6
    assert sum(bool(re.match(r"M[WR]", name)) for name in found) == 15  # FxMark's nine, and the six


def test_each_counts_what_it_does(tmp_path: Path) -> None:
    for index, name in enumerate(names()):
        threads = ["--threads"] * (index % 2)
        found = result(tmp_path, *options(name), *threads, "--count=20", tmp_path)
        assert found["end"] == "all-done", name
        assert found["summary"]["ops"] == 20 * WORKERS, name
        assert sum(found["summary"]["latency_ns"]["bins"].values()) == 20 * WORKERS, name
        assert found["processes"] is not bool(threads)
        behind = found.get("left_behind", {"expected": 0, "found": 0})
        assert behind["expected"] == behind["found"], name
        shutil.rmtree(tmp_path / "ops")


def calls(tmp_path: Path, name: str, count: int) -> dict[str, int]:
    """How often each system call on files was made, by strace."""
    table = tmp_path / "strace"
    wrapper = ("strace", "-c", "-f", "-o", str(table))
    done = run_ops(*options(name), f"--count={count}", "--seconds=0", tmp_path, wrapper=wrapper)
    assert (done.returncode, done.stderr) == (0, "")
    shutil.rmtree(tmp_path / "ops")
    rows = [line.split() for line in table.read_text().splitlines()]
    return {row[-1]: int(row[3]) for row in rows if len(row) >= 5 and row[-1] in FILES_CALLS}


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("MWCL", {"openat": 1.0, "close": 1.0}),
        ("MWCM-code", {"openat": 1.0, "write": 1.0, "close": 1.0}),
        ("MRDL", {"getdents64": 2 / 12, "lseek": 1 / 12}),  # 10 names, . and .. : to the end, and back
        ("MRDL-code", {"getdents64": 1.0}),
        ("MWUL", {"unlink": 1.0}),
        ("MRPL", {"openat": 1.0, "close": 1.0}),
        ("MRPH-code", {"newfstatat": 1.0}),
        ("RMSR", {"pread64": 1.0}),
        ("RDPS", {"read": 1.0}),
        ("WMPR", {"pwrite64": 1.0}),
        ("AMSS", {"write": 1.0}),
        ("ADPS", {"write": 1.0, "fdatasync": 1 / 4}),
        ("SaMP", {"newfstatat": 5.0}),
        ("LsMP", {"openat": 1.0, "newfstatat": 1.0, "getdents64": 2.0, "close": 1.0}),
        ("RMS", {"rename": 1.0}),
    ],
)
def test_an_operation_makes_these_calls(tmp_path: Path, name: str, each: dict[str, float]) -> None:
    few, many = (calls(tmp_path, name, count) for count in (FEW, MANY))
    made = {call: many.get(call, 0) - few.get(call, 0) for call in FILES_CALLS}
    # What the program itself looks at, to see what is left behind: a directory, once.
    assert {call: n for call, n in made.items() if n} == {
        call: round(n * WORKERS * (MANY - FEW)) for call, n in each.items()
    }


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_workers_share_the_reads_of_a_shared_file(tmp_path: Path) -> None:
    """What one has read is in memory: another that read it again would not measure the disk."""
    trace = tmp_path / "strace"
    wrapper = ("strace", "-f", "-e", "trace=pread64", "-o", str(trace))
    done = run_ops("--op=RDSR", "--workers=4", "--size=65536", "--count=4", "--seconds=0", tmp_path, wrapper=wrapper)
    assert (done.returncode, done.stderr) == (0, "")
    offsets = [int(at) for at in re.findall(r"4096, (\d+)\) *= 4096$", trace.read_text(), re.M)]
    assert sorted(offsets) == list(range(0, 65536, 4096)) and offsets != sorted(offsets)


def test_all_end_with_the_first_that_has_nothing_left(tmp_path: Path) -> None:
    found = result(tmp_path, "--op=MWUL", "--files=50", "--workers=2", tmp_path)
    assert (found["end"], found["variables"]["files"]) == ("first-done", 50)
    assert 1 <= found["threads_without_file"] <= 2
    left = sum(len(os.listdir(tmp_path / f"ops/w{index}/files")) for index in range(2))
    assert found["left_behind"] == {"expected": left, "found": left}
    assert found["summary"]["ops"] == 100 - left


def test_one_that_could_go_on_ends_with_it(tmp_path: Path) -> None:
    words = ["--op=RDPS", "--size=8192", "--workers=2", tmp_path]
    assert run_ops("--phase=prepare", *words).returncode == 0
    os.truncate(tmp_path / "ops/w0/data", 1 << 35)  # 8 million reads, of a hole
    found = result(tmp_path, "--phase=run", *words)
    assert (found["end"], found["threads_without_file"]) == ("first-done", 1)
    assert found["duration_s"] < 1


def test_a_series_adds_up_to_the_whole(tmp_path: Path) -> None:
    # A process of a busy machine may wait 0.1 s for a CPU: intervals are longer.
    found = result(tmp_path, "--op=MRPL", "--seconds=2.5", "--interval=0.5", "--workers=2", tmp_path)
    assert found["end"] == "time" and 4 <= len(found["intervals"]) <= 6
    assert sum(one["ops"] for one in found["intervals"]) == found["summary"]["ops"]
    assert all(one["ops"] for one in found["intervals"])
    ends = [one["end_s"] for one in found["intervals"]]
    assert [one["start_s"] for one in found["intervals"]] == [0, *ends[:-1]]


def test_files_can_be_made_before(tmp_path: Path) -> None:
    words = ["--op=RMP", "--files=20", "--workers=2", tmp_path]
    assert run_ops("--phase=prepare", *words).returncode == 0
    assert result(tmp_path, "--phase=run", *words)["summary"]["ops"] >= 20


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--op is missing"),
        (["--op=MWCX"], "--op MWCX: no such operation"),
        (["--op=MWCL"], "DIRECTORY is missing"),
        (["--op=MWCL", "{}", "more"], "more: one argument too many"),
        (["--op=MWCL", "{}/none"], "{}/none: No such file or directory; DIRECTORY must exist"),
        (["--op=MWCL", "/etc/passwd"], "/etc/passwd: not a directory; name one"),
        (["--op=MWCL", "--workers=0", "{}"], "--workers 0: give a whole number from 1 to 1024"),
        (["--op=MWCL", "--workers=x", "{}"], "--workers x: give a whole number"),
        (["--op=MWCL", "--seconds=nan", "{}"], "--seconds nan: give seconds from 0 to 86400"),
        (["--op=MWCL", "--seconds=0", "{}"], "--seconds 0: needs --count; add it"),
        (["--op=MRPL", "--files=5", "{}"], "--files: MRPL has none; leave it out"),
        (["--op=MWUL", "--size=4096", "{}"], "--size: MWUL has no data; leave it out"),
        (["--op=MWUL", "--phase=both", "{}"], "--phase both: give all, prepare or run"),
        (["--op=MWUL", "--phase=run", "{}"], "{}/ops: does not exist; create it with --phase prepare"),
        (["--op=MWUL", "--fast", "{}"], "--fast: no such option"),
        (["--op=MRPL", "--count=5", "--json={}/none/r", "{}"], "--json {}/none/r: No such file or directory; name a"),
        (["--op"], "--op: needs a value"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(tmp_path: Path, words: list[str], message: str) -> None:
    done = run_ops(*(word.format(tmp_path) for word in words))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"userblk-ops: {message.format(tmp_path)}") and done.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_what_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    done = run_ops("--op=MWCL", tmp_path)
    assert done.returncode == 2 and f"{tmp_path}/ops: exists; remove it" in done.stderr


def test_an_interrupted_run_says_so_and_has_results(tmp_path: Path) -> None:
    out = tmp_path / "ops.json"
    argv = [str(OPS), "--op=MRPL", "--workers=2", f"--json={out}", str(tmp_path)]
    # A test in the background of a shell would hand down that it is ignored.
    wrapper = ["env", "--default-signal=INT"]
    process = subprocess.Popen([*wrapper, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert errors == "userblk-ops: interrupted; the results are of the time until then\n"
    assert json.loads(out.read_text())["end"] == "interrupted"


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount needs root")
def test_a_full_file_system_is_one_line(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "userblk-test", str(tmp_path)], check=True)
    try:
        done = run_ops("--op=AMPS", "--workers=2", tmp_path)
        assert done.returncode == 1 and done.stderr.count("\n") == 1
        assert "/data: No space left on device" in done.stderr
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
