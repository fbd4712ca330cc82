# SPDX-License-Identifier: BSD-3-Clause
"""The BUSE thesis's numbers beside a campaign: rates with intervals, relative to another system than native."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from synthetic import make_campaign
from userblk.analysis.paper import compare_with_paper
from userblk.analysis.paper_cells import Verdict
from userblk.analysis.paper_claims import ClaimVerdict
from userblk.analysis.papers import load_paper
from userblk.analysis.summaries import read_campaign
from userblk.analysis.table import RATE
from userblk.analysis.tabulate import make_tables
from userblk.harness.machine.paths import CONFIGS
from userblk.harness.model.config import load_suite

THESIS = load_paper("thesis", CONFIGS)
SPEED = {"nbdkit-null": 1.0, "tcmu-null": 1.43, "ublk-null": 5.0}


def test_its_numbers_with_their_intervals() -> None:
    assert THESIS.numbers == 44 + 36 + 9
    scaling = THESIS.tables[1]
    nbd = scaling.cell("null", "write-48cpu", "nbdkit-null", RATE)
    assert nbd.mean is not None and (nbd.mean.value, nbd.mean.low, nbd.mean.high) == pytest.approx(
        (14020, 13740, 14290)
    )
    buse = scaling.cell("null", "write-48cpu", "ublk-null", RATE).difference
    assert buse is not None and buse.low is not None and buse.high is not None
    assert buse.value == pytest.approx(100 * (114.35 / 14.02 - 1))
    assert 695 < buse.low < 705 and 731 < buse.high < 737
    store = THESIS.tables[2].cell("store", "rand-write-24th-64k-d4", "s3", RATE).mean
    assert store is not None and store.value == 9220
    files = THESIS.tables[3].cell("store", "varmail", "s3-weak-nbd", RATE)
    assert files.mean is not None and files.mean.value == pytest.approx(263.31 * 2**20 / 1e6)
    assert files.difference is not None and files.difference.value == pytest.approx(100 * (263.31 / 7.61 - 1))


def test_an_interval_that_is_printed_as_nothing_is_rounded() -> None:
    """0.06 ± 0.00 is not exact: it is between 0.055 and 0.065."""
    mean = THESIS.tables[2].cell("store", "rand-write-2th-64k-d4", "s3-direct", RATE).mean
    assert mean and mean.low and mean.high
    assert (mean.low / mean.value, mean.high / mean.value) == pytest.approx((55 / 60, 65 / 60))


def test_its_rows_are_workloads_of_the_suites() -> None:
    for number, suite in ((1, "buse-null"), (2, "s3"), (3, "bs3-fs")):
        known = {workload.id for workload in load_suite(suite, "paper").workloads}
        assert {workload for _, workload in THESIS.tables[number].rows} <= known


def test_a_campaign_beside_it(tmp_path: Path) -> None:
    names = ["read-2cpu", "write-2cpu"]
    made = make_campaign(
        tmp_path / "results", repetitions=8, suite="buse-null", workloads=names, systems=list(SPEED), speed=SPEED,
        emulated=False,
    )  # fmt: skip
    for file in made.rglob("summary.json"):
        summary = json.loads(file.read_text())
        summary["metrics"]["throughput_mbps"] = summary["metrics"]["throughput_kops"] * 65.536
        file.write_text(json.dumps(summary))
    campaign = read_campaign(made)
    assert not make_tables(campaign.runs)  # whose engine has reports of its own
    found = compare_with_paper([campaign], [], THESIS)
    verdicts = Counter(cell.verdict for cell in found.cells)
    assert verdicts == {Verdict.NOT_COMPARABLE: 6, Verdict.NOT_MEASURED: 74 + 9}
    cells = {(cell.workload, cell.system): cell for cell in found.cells}
    assert cells["read-2cpu", "tcmu-null"].shape is Verdict.AGREES
    assert cells["read-2cpu", "ublk-null"].shape is Verdict.SAME
    assert cells["read-2cpu", "nbdkit-null"].absolute
    claims = {ours.claim.id: (ours.verdict, theirs.verdict) for ours, theirs in found.claims}
    assert claims["write-2"] == (ClaimVerdict.FAILS, ClaimVerdict.FAILS)  # 5 times; the table: 2.77 times
    assert claims["bdus-write-19"] == (ClaimVerdict.NOT_MEASURED, ClaimVerdict.HOLDS)
    fails = {theirs.claim.id for _, theirs in found.claims if theirs.verdict is ClaimVerdict.FAILS}
    assert fails == {
        "figure-5.4", "figure-5.5", "write-2", "bdus-read-19", "bdus-nbd", "bdus-not-better", "bdus-alike", "reads-24",
        "bs3-reads-3",
    }  # fmt: skip


def test_points_of_its_figures_are_judged_by_their_rates(tmp_path: Path) -> None:
    """Figures 5.2 and 5.3 give no numbers; their text speaks of bytes, not of operations."""
    names = ["read-1j-1d-4k", "write-1j-1d-4k"]
    made = make_campaign(
        tmp_path / "results", repetitions=3, suite="buse-null", workloads=names, systems=list(SPEED), speed=SPEED,
        emulated=False,
    )  # fmt: skip
    for file in made.rglob("summary.json"):
        summary = json.loads(file.read_text())
        rate = 11000 * (1 + 0.001 * summary["repetition"])
        summary["metrics"] |= {"throughput_mbps": rate, "throughput_kops": rate / 4.096}
        file.write_text(json.dumps(summary))
    found = compare_with_paper([read_campaign(made)], [], THESIS)
    reads, writes = (
        next(ours for ours, _ in found.claims if ours.claim.id == name) for name in ("one-job-reads", "one-job-writes")
    )
    assert (reads.true, reads.verdict) == (3, ClaimVerdict.OPEN)  # of 45 cells
    assert (writes.false, writes.verdict) == (3, ClaimVerdict.FAILS)
