# SPDX-License-Identifier: BSD-3-Clause
"""Agreement with the paper as a whole, on cells whose answer is known."""

from dataclasses import replace

import pytest
from userblk.analysis.agreement import agreements, as_json
from userblk.analysis.paper_cells import PaperCell, Verdict
from userblk.analysis.statistics import Interval
from userblk.analysis.table import METRICS, NATIVE


def cell(number: int, paper: float, ours: float | None, system: str = "nbdkit", metric: int = 0) -> PaperCell:
    interval = None if ours is None else Interval(ours)
    place = (1, "bdus-block", "h", "sata", f"w{number}", system, METRICS[metric])
    return PaperCell(*place, paper, 1.0, 2.0, interval, 1, Verdict.SAME, Verdict.SAME, ())


def test_the_same_order_is_one_and_the_opposite_is_minus_one() -> None:
    paper = [-50.0, -20.0, -10.0, 0.0]
    same = [cell(n, value, 2 * value) for n, value in enumerate(paper)]
    opposite = [cell(n, value, -value) for n, value in enumerate(paper)]
    assert agreements(same)[0].rho == pytest.approx(1)
    assert agreements(opposite)[0].rho == pytest.approx(-1)


def test_distances_are_points_of_percent_and_name_the_worst_cell() -> None:
    found = agreements([cell(0, -50, -40), cell(1, -20, -19), cell(2, -10, -40)])[0]
    assert (found.distance, found.largest, found.worst) == (10, 30, "SATA w2")


def test_native_values_are_compared_in_percent_and_have_no_sign() -> None:
    found = agreements([cell(n, 100, ours, NATIVE) for n, ours in enumerate((110, 95, 100))])[0]
    assert found.distance == pytest.approx(5)
    assert found.same_sign is None
    assert found.rho is None  # the paper's are all equal: no order


def test_signs() -> None:
    found = agreements([cell(0, -5, -1), cell(1, -5, 1), cell(2, 5, 3), cell(3, 5, 1)])[0]
    assert found.same_sign is not None and found.same_sign.value == 0.75


def test_what_the_paper_prints_as_0_has_no_sign() -> None:
    """A number of ours is never exactly 0: it would count as another sign."""
    found = agreements([cell(0, -5, -1), cell(1, 0, 0.03)])[0]
    assert found.same_sign is not None and (found.same_sign.value, found.n) == (1.0, 2)
    only = agreements([cell(0, 0, 0.03)])[0]
    assert only.same_sign is None and only.in_points


def test_what_was_not_measured_is_left_out() -> None:
    cells = [cell(0, -5, -1), cell(1, -5, None), replace(cell(2, -5, None), system="buse")]
    (found,) = agreements(cells)
    assert found.n == 1
    assert as_json([found])[0]["cells"] == 1
    assert agreements([cell(1, -5, None)]) == []
