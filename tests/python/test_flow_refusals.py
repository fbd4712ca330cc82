# SPDX-License-Identifier: BSD-3-Clause
"""userblk-flow: what it refuses, and what it leaves when it fails."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from flow_program import READS, WORKLOADS, run_flow, settings, write

pytestmark = pytest.mark.usefixtures("flow_is_built")

SIZES = {"": 1, ",round=4k,min=4k": 0}


@pytest.mark.parametrize("more", SIZES)
def test_direct_reads_of_sizes_that_no_device_takes(more: str, tmp_path: Path) -> None:
    workload = tmp_path / "w.f"
    gamma = f"cvar(type=cvar-gamma,parameters=mean:8192;gamma:1.5{more})"
    workload.write_text(f"""set $dir=/none
define fileset name=set1,path=$dir,size=1m,entries=1,dirwidth=20,prealloc=100
define process name=p1,instances=1 {{
  thread name=t1,memsize=10m,instances=1 {{
    flowop read name=read1,filesetname=set1,iosize={gamma},random,directio,iters=50
    flowop finishoncount name=end,value=50
  }}
}}
run 5
""")
    done = run_flow("-q", *settings(tmp_path), workload)
    assert done.returncode == SIZES[more], done.stderr
    assert ("w.f:5: flowop read1: read of " in done.stderr) == bool(SIZES[more])
    assert ("give iosize" in done.stderr and "round=4k" in done.stderr) == bool(SIZES[more])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "expected one workload file, found 0"),
        (["a.f", "b.f"], "expected one workload file, found 2"),
        (["/nonexistent.f"], "/nonexistent.f: No such file or directory; name a workload file"),
        (["--seed=x", "a.f"], "--seed x: write a number below 2^64"),
        (["--interval=0", "a.f"], "--interval 0: write seconds from 0.01 to 86400"),
        (["--seconds=1m", "a.f"], "--seconds 1m: write seconds from 0.01 to 86400"),
        (["--phase=x", "a.f"], "--phase x: write all, create or run"),
        (["/"], "/: "),
    ],
)
def test_usage_errors(args: list[str], message: str) -> None:
    done = run_flow(*args)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_a_mistake_at_the_end_is_found_before_anything_is_touched(tmp_path: Path) -> None:
    workload = write(tmp_path, READS.format("set $n=word\nrun $n"))
    done = run_flow(*settings(tmp_path), workload)
    assert done.returncode == 2
    message = r"workload\.f:\d+: expected a number from 0 to \d+ for the run time, found 'word'"
    assert re.search(message, done.stderr)
    assert not (tmp_path / "f").exists()


def test_a_full_file_system_leaves_nothing_half_done(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "small", mount], check=True)
    try:
        values = settings(mount, nfiles=100, nthreads=1, runtime=1)
        done = run_flow("-q", *values, WORKLOADS / "file-server.f")
        assert done.returncode == 1
        assert "No space left on device; its files take" in done.stderr
        assert list(mount.iterdir()) == []
        # In the run it is an error as well, and there are no results.
        out = tmp_path / "results.json"
        values = settings(mount, nfiles=100, nthreads=1, runtime=5)
        done = run_flow("-q", "--json", out, *values, WORKLOADS / "create.f")
        assert done.returncode == 0
        values = settings(mount, nfiles=1000, nthreads=1, runtime=5)
        out.unlink()
        done = run_flow("-q", "--json", out, *values, WORKLOADS / "create.f")
        assert done.returncode == 1
        assert re.search(r"create\.f:\d+: flowop write1: write: No space left", done.stderr)
        assert not out.exists()
    finally:
        subprocess.run(["umount", mount], check=True)


def test_results_that_cannot_be_written_are_an_error_before_the_run(tmp_path: Path) -> None:
    """Something else's name is not taken away from it, as that of /dev/null was."""
    workload = write(tmp_path, READS.format("run 1"))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "target").write_text("there")
    (tmp_path / "link").symlink_to("target")  # as /dev/stdout is one
    cases = {"none/r.json": "No such file or directory"} | dict.fromkeys(("pipe", "link", ""), "not a regular file")
    for name, why in cases.items():
        done = run_flow("-q", "--json", tmp_path / name, *settings(tmp_path), workload)
        line = f"userblk-flow: --json {tmp_path / name}: {why}; name a file that can be written\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", line)
    assert {path.name for path in tmp_path.iterdir()} == {"workload.f", "pipe", "target", "link"}
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "there"
    done = run_flow("--json=", "a.f")
    assert (done.returncode, "--json : No such file or directory" in done.stderr) == (2, True)
