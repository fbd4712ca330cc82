# SPDX-License-Identifier: BSD-3-Clause
"""userblk-flow: processes of a workload, which end together, and whose counts add up."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from flow_program import FLOW, counts, results, run_flow, settings, write
from loops import LIMIT
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("flow_is_built")

PROCESSES = """
set mode quit timeout
define fileset name=f,path=$dir,entries=60,dirwidth=20,size=5k,prealloc=50
define process name=maker,instances=3 {{ thread name=m,instances=2,memsize=64k {{
  flowop createfile name=create1,filesetname=f,fd=1
  flowop writewholefile name=write1,fd=1,srcfd=1,iosize=2k
  flowop closefile name=close1,fd=1
  flowop deletefile name=delete1,filesetname=f
}} }}
define process name=idler {{ thread name=i,memsize=64k {{
  flowop eventlimit name=limit1
  flowop statfile name=stat1,filesetname=f
}} }}
eventgen rate=20
{}
"""


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextlib.contextmanager
def under_way(tmp_path: Path, text: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A run whose first second is over; it is ended afterwards."""
    command = [str(FLOW), *options, *settings(tmp_path), str(write(tmp_path, text))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert any(" s: " in line for line in process.stderr)
            yield process
        finally:
            process.kill()


def test_processes_are_processes_and_their_counts_add_up(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    with under_way(tmp_path, PROCESSES.format("run 4"), "--json", str(out)) as process:
        found = children(process.pid)
        assert sorted(len(os.listdir(f"/proc/{pid}/task")) for pid in found) == [2, 3, 3, 3]
        assert process.wait(LIMIT) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in found)
    result = json.loads(out.read_text())
    rows = counts(result)
    assert result["threads"] == 7 and result["end"] == "time"
    # Files are of all processes: none is made twice, and none is deleted that was not there.
    left = len([path for path in (tmp_path / "f").rglob("*") if path.is_file()])
    started = result["filesets"][0]["preallocated"]
    assert abs(started + rows["create1"] - rows["delete1"] - left) <= 6
    assert rows["create1"] > 100 and 0 <= rows["create1"] - rows["close1"] <= 6
    assert sum(one["ops"] for one in result["intervals"]) == result["summary"]["ops"]
    assert 20 * 2 < rows["stat1"] <= 20 * 4 + 1
    assert result["summary"]["user_s"] + result["summary"]["system_s"] > 0.05


def test_finishoncount_is_of_each_process(tmp_path: Path) -> None:
    text = """
    set mode quit alldone
    define fileset name=f,path=$dir,entries=60,dirwidth=20,size=5k,prealloc
    define process name=p,instances=3 { thread name=t,instances=2,memsize=64k {
      flowop statfile name=stat1,filesetname=f
      flowop finishoncount name=finish1,value=100
    } }
    run
    """
    result = results(tmp_path, write(tmp_path, text))
    assert (result["end"], result["threads_finished"]) == ("all-done", 6)
    assert 300 <= counts(result)["stat1"] <= 303


def test_a_killed_process_is_named_and_none_is_left(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    with under_way(tmp_path, PROCESSES.format("run 60"), "--json", str(out)) as process:
        found = children(process.pid)
        os.kill(found[1], signal.SIGKILL)
        assert process.stderr is not None
        last = process.stderr.read().splitlines()[-1]
        assert process.wait(LIMIT) == 1
    assert last == (
        f"userblk-flow: process maker: instance 2 of 3 (pid {found[1]}) was killed by signal 9 (Killed);"
        " the run has no results, repeat it"
    )
    assert not out.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in found)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_with_the_program(tmp_path: Path, number: signal.Signals) -> None:
    with under_way(tmp_path, PROCESSES.format("run 60")) as process:
        found = children(process.pid)
        assert len(found) == 4
        process.send_signal(number)
        assert process.wait(LIMIT) == (1 if number == signal.SIGTERM else -number)
        wait_until("its processes end", lambda: not any(Path(f"/proc/{pid}").exists() for pid in found), LIMIT)


def test_an_error_in_a_process_ends_all(tmp_path: Path) -> None:
    text = PROCESSES.replace("flowop statfile name=stat1,filesetname=f", "flowop closefile name=close2,fd=3")
    done = run_flow("-q", *settings(tmp_path), write(tmp_path, text.format("run 60")))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("flowop close2: fd=3 is not open; open it first")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_write_that_fails_after_the_end_leaves_no_results(tmp_path: Path, processes: int) -> None:
    """Nobody waits for these before the end. Half of the file is beyond what the program may write."""
    text = f"""
    set mode quit alldone
    define file name=f,path=$dir,size=1m,prealloc
    define process name=p,instances={processes} {{ thread name=t,memsize=64k {{
      flowop aiowrite name=write1,filesetname=f,iosize=4k,random,iters=50
      flowop finishoncount name=finish1,value=1
    }} }}
    create files
    run
    """
    workload, out = write(tmp_path, text), tmp_path / "results.json"
    assert run_flow("--phase=create", *settings(tmp_path), workload).returncode == 0
    limited = ["bash", "-c", "trap '' XFSZ; ulimit -f 512; exec \"$@\"", "-", str(FLOW), "--phase=run", f"--json={out}"]
    done = subprocess.run(
        [*limited, *settings(tmp_path), str(workload)], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (
        1,
        [f"userblk-flow: {workload}:6: flowop write1: write: File too large"],
    )
    assert not out.exists()
