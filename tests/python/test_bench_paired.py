# SPDX-License-Identifier: BSD-3-Clause
"""The statistics and verdicts of the comparisons in pairs."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from paired import Ratio, is_chosen, paired_ratio, run_fio, write_json  # noqa: E402


def test_ratio_is_geometric_with_a_student_interval() -> None:
    ratio = paired_ratio([(2.0, 1.0), (8.0, 1.0)])
    assert ratio.mean == pytest.approx(4.0)
    half = 12.7062 * math.log(2)  # t(0.975, 1 degree of freedom) x standard error of the logarithms
    assert math.log(ratio.high / ratio.mean) == pytest.approx(half, rel=1e-4)
    assert ratio.low * ratio.high == pytest.approx(16.0)


def test_one_pair_has_no_interval_and_no_verdict() -> None:
    ratio = paired_ratio([(3.0, 2.0)])
    assert ratio.mean == pytest.approx(1.5) and math.isnan(ratio.low) and math.isnan(ratio.high)
    assert ratio.verdict(0.5, slower=2.0) == ""
    assert "one pair" in str(ratio)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.95, 1.2, "ok"), (5, 6, "ok"), (0.94, 1.2, "unclear"), (0.8, 0.949, "slower"), (0.8, 0.95, "unclear")],
)
def test_verdict(low: float, high: float, verdict: str) -> None:
    assert Ratio(1.0, low, high).verdict(0.95, slower=0.95) == verdict


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("io-uring+passthrough", True),
        ("io-uring+passthrough/stat/1", True),
        (".*/stat", True),
        ("io-uring", False),
        ("io-uring.passthrough/sta", False),
    ],
)
def test_cells_are_chosen_by_whole_parts(pattern: str, chosen: bool) -> None:
    assert is_chosen("io-uring+passthrough/stat/1", [pattern]) is chosen
    assert is_chosen("io-uring+passthrough/stat/1", ["other", pattern]) is chosen
    assert is_chosen("io-uring+passthrough/stat/1", [])


def test_a_failed_run_is_an_error_with_its_cell() -> None:
    with pytest.raises(RuntimeError, match="^a/cell: fio --name=x .*: exit 1: .*"):
        run_fio(["fio", "--name=x", "--filename=/does/not/exist", "--rw=wrong"], "a/cell")


def test_results_are_written_whole(tmp_path: Path) -> None:
    write_json(tmp_path / "file", {"a": 1})
    assert (tmp_path / "file").read_text() == '{\n "a": 1\n}\n'
    with pytest.raises(TypeError):
        write_json(tmp_path / "file", {"a": object()})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
