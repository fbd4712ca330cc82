# SPDX-License-Identifier: BSD-3-Clause
"""The statistics and verdicts of the comparisons in pairs."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from paired import (
    Ratio,
    is_chosen,
    line_of,
    paired_ratio,
    run_cells,
    run_fio,
    signed_rank_quantile,
    write_json,
)


@dataclass
class Cell:
    name: str = "a/cell"
    limit: float = 0.95
    pairs: list[tuple[float, float]] = field(default_factory=list)


def test_ratio_and_interval_are_those_of_the_signed_rank_test() -> None:
    # Depression scores of Hollander, Wolfe and Chicken: 9 pairs, between the 6th smallest and largest of 45 averages.
    logs = [0.952, -0.147, 1.022, 0.430, 0.620, 0.590, 0.490, -0.080, 0.010]
    averages = sorted((a + b) / 2 for i, a in enumerate(logs) for b in logs[i:])
    ratio = paired_ratio([(math.exp(x), 1.0) for x in logs])
    assert math.log(ratio.low) == pytest.approx(averages[5]) == pytest.approx(0.010)
    assert math.log(ratio.high) == pytest.approx(averages[-6]) == pytest.approx(0.786)
    assert math.log(ratio.middle) == pytest.approx(0.46)


def test_quantiles_of_the_signed_rank_statistic() -> None:
    # Published table of two-sided 5 %: the largest value that is still significant is one below.
    assert [signed_rank_quantile(n, 0.025) for n in (5, 6, 8, 10, 20, 30)] == [0, 1, 4, 9, 53, 138]


def test_interval_covers_in_95_percent_of_noisy_series() -> None:
    rng = random.Random(4)
    covered = 0
    for _ in range(600):
        # One pair in ten is far off: bursts of other load.
        logs = [rng.gauss(0, 1.0 if rng.random() < 0.1 else 0.05) for _ in range(20)]
        ratio = paired_ratio([(math.exp(0.1 + x), 1.0) for x in logs])
        covered += ratio.low <= math.exp(0.1) <= ratio.high
    assert 0.93 <= covered / 600 <= 0.98


@pytest.mark.parametrize("n", [1, 5])
def test_few_pairs_have_no_interval_and_no_verdict(n: int) -> None:
    ratio = paired_ratio([(3.0, 2.0)] * n)
    assert ratio.middle == pytest.approx(1.5) and math.isnan(ratio.low) and math.isnan(ratio.high)
    assert ratio.verdict(0.5, slower=2.0) == ""
    assert "few pairs" in str(ratio)


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


def test_a_row_has_the_means_and_the_verdict() -> None:
    words = line_of(Cell(pairs=[(110.0, 100.0), (120.0, 100.0)] * 4)).split()
    assert words[:4] == ["a/cell", "8", "115", "100"] and words[-2:] == ["0.95", "ok"]


@pytest.mark.parametrize(
    ("error", "code", "shown"), [(RuntimeError("a/cell: no"), 1, 0), (KeyboardInterrupt(), 0, 1), (None, 0, 2)]
)
def test_what_is_shown_of_runs_that_ended_early(
    error: BaseException | None, code: int, shown: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(cells: list[Cell]) -> None:
        cells[1].pairs.append((1.0, 1.0))
        if error:
            raise error

    cells = [Cell(), Cell("another")]
    found, rest = run_cells("bench", cells, measure)
    assert (found, rest) == (code, cells[2 - shown :] if shown else [])
    assert capsys.readouterr().err == ("bench: a/cell: no\n" if code else "")


def test_nothing_is_shown_of_runs_that_never_began() -> None:
    def measure(cells: list[Cell]) -> None:
        raise KeyboardInterrupt

    assert run_cells("bench", [Cell()], measure) == (130, [])


def test_a_failed_run_is_an_error_with_its_cell() -> None:
    with pytest.raises(RuntimeError, match="^a/cell: fio --name=x .*: exit 1: .*"):
        run_fio(["fio", "--name=x", "--filename=/does/not/exist", "--rw=wrong"], "a/cell")


def test_results_are_written_whole(tmp_path: Path) -> None:
    write_json(tmp_path / "file", {"a": 1})
    assert (tmp_path / "file").read_text() == '{\n "a": 1\n}\n'
    with pytest.raises(TypeError):
        write_json(tmp_path / "file", {"a": object()})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
