# SPDX-License-Identifier: BSD-3-Clause
"""What a perfect replication of the paper comes to."""

from __future__ import annotations

from bench_claims import markdown, simulate
from paper_claims import CONTRADICTED, OMITTED, PARTLY_OMITTED
from userblk.analysis.paper_cells import Verdict


def test_a_perfect_replication_agrees_and_satisfies_what_the_tables_bear_out() -> None:
    """With a quarter of the scatter that the paper allows."""
    found = simulate(0.25, replications=2)
    assert found.cells.get(Verdict.AGREES, 0) > 0.99 and Verdict.DIFFERS not in found.cells
    never = {name for name, share in found.holds.items() if share < 1}
    assert never == CONTRADICTED | OMITTED | PARTLY_OMITTED
    assert markdown([0.25], [found]).count("\n") == 5 + len(found.holds)


def test_imprecision_is_no_agreement() -> None:
    """With four times the scatter that the paper allows, most is open, and hardly anything agrees."""
    found = simulate(4.0, replications=1)
    assert found.cells[Verdict.UNDECIDED] > 0.9 and found.cells.get(Verdict.AGREES, 0) < 0.05
    one_run = simulate(1.0, replications=1, runs=1)
    assert one_run.cells == {Verdict.UNDECIDED: 1.0} and not any(one_run.holds.values())
