# SPDX-License-Identifier: BSD-3-Clause
"""fio's command line, and which of its reports are believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from userblk.harness.config import Workload, load_profile
from userblk.harness.workloads import fio

READ = Workload("rand-read-16th-4k", "randread", 16, 4096)
QUICK = load_profile("quick")


def report(**side: Any) -> dict[str, Any]:
    none = {"runtime": 0, "total_ios": 0, "io_bytes": 0, "lat_ns": {"N": 0, "mean": 0.0}}
    done = {"runtime": 2000, "total_ios": 4000, "io_bytes": 16_384_000, "lat_ns": {"N": 4000, "mean": 250_000.0}}
    return {"fio version": "fio-3.33", "jobs": [{"error": 0, "read": done | side, "write": none}]}


def parse(tmp_path: Path, value: object) -> fio.Result:
    (tmp_path / "fio.json").write_text(json.dumps(value))
    return fio.parse(tmp_path / "fio.json", READ, QUICK)


def test_figures(tmp_path: Path) -> None:
    result = parse(tmp_path, report())
    assert (result.throughput_kops, result.throughput_mbps, result.latency_us) == (2, 8.192, 250)
    assert (result.problems, result.warnings) == ((), ())


def test_threads_have_their_own_parts() -> None:
    argv = fio.argv(READ, QUICK, 1 << 30, "/dev/x", 5, Path("/r"))
    assert {"--size=67108864", "--offset_increment=67108864", "--numjobs=16", "--randseed=5"} <= set(argv)
    assert {"--direct=0", "--ioengine=psync", "--iodepth=1", "--invalidate=1", "--thread=1"} <= set(argv)
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
    assert parse(tmp_path, value).problems == ("fio reports error 5",)
    value = report()
    value["jobs"][0]["write"]["total_ios"] = 3
    assert "other direction" in parse(tmp_path, value).problems[0]


def test_an_early_end_is_a_warning(tmp_path: Path) -> None:
    result = parse(tmp_path, report(runtime=1000))
    assert result.problems == ()
    assert "its area was done" in result.warnings[0]


def test_an_unreadable_report(tmp_path: Path) -> None:
    for value in ({}, {"jobs": []}, []):
        with pytest.raises(fio.WorkloadError, match="cannot be read"):
            parse(tmp_path, value)
