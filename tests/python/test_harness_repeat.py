# SPDX-License-Identifier: BSD-3-Clause
"""How often a cell is measured (the numbers are inputs of the tests)."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.plan import COUNTING, Device, Plan, extend, make_plan
from userblk.harness.model.tables import ConfigError
from userblk.harness.observing.student import half_width
from userblk.harness.running.stopping import another_round, judge, judge_all, summary_line, widest, write

PROFILE = dataclasses.replace(load_profile("paper"), repetitions=5, max_repetitions=8)
NARROW = [100.0, 100.5, 99.5, 100.2, 99.8]
WIDE = [100.0, 150.0, 60.0, 120.0, 80.0]


def metrics(throughput: list[float], cpu: list[float] | None = None) -> dict[str, list[float]]:
    latency = [1e5 / value for value in throughput]
    return {"throughput_kops": throughput, "latency_us": latency, "cpu_percent": cpu or [20.0] * len(throughput)}


def small_plan(**changes: object) -> Plan:
    options: dict[str, object] = {
        "suite": load_suite("bdus-block"),
        "profile": PROFILE,
        "systems": [load_system("native"), load_system("nbdkit")],
        "devices": [Device("sata", "/dev/null", "A"), Device("nvme", "$X", "B")],
        "campaign": "c",
        "build": "build/host",
        "host": "here",
        "seed": 7,
        "workloads": ["rand-read-1th-4k", "rand-write-1th-4k"],
    }
    return make_plan(**(options | changes))  # type: ignore[arg-type]


# ---- one cell ------------------------------------------------------------------------------


def test_narrow_intervals_need_no_more_runs() -> None:
    verdict = judge(PROFILE, metrics(NARROW), 5)
    assert (verdict.again, verdict.valid) == (False, 5) and verdict.reason.startswith("narrow enough: ")


def test_wide_ones_do_until_the_most_are_made() -> None:
    verdict = judge(PROFILE, metrics(WIDE), 5)
    assert verdict.again and "% of the mean" in verdict.reason
    last = judge(PROFILE, metrics(WIDE + WIDE[:3]), 8)
    assert not last.again and last.reason.startswith("the maximum of 8 runs was made: ")


def test_cpu_counts_in_points() -> None:
    """6 points of 90 are more than the limit, though less than 7 % of the mean; of 2 they would be 300 %."""
    busy = judge(PROFILE, metrics(NARROW, [90.0, 95.0, 85.0, 92.0, 88.0]), 5)
    assert not busy.again and busy.width == pytest.approx(4.73, abs=0.01)
    assert judge(PROFILE, metrics(NARROW, [90.0, 97.0, 83.0, 92.0, 88.0]), 5).again
    assert not judge(PROFILE, metrics(NARROW, [2.0, 5.0, 0.5, 2.0, 1.0]), 5).again


def test_a_number_that_was_asked_for_is_kept() -> None:
    fixed = dataclasses.replace(PROFILE, repetitions=2, max_repetitions=2)
    verdict = judge(fixed, metrics(WIDE[:2]), 2)
    assert not verdict.again and verdict.reason.startswith("2 runs were asked for: ")
    once = dataclasses.replace(PROFILE, repetitions=1, max_repetitions=1)
    assert judge(once, metrics(WIDE[:1]), 1).reason == "1 valid of 1: no interval, as asked for"


def test_a_cell_without_valid_runs_is_not_measured_for_ever() -> None:
    assert not judge(PROFILE, {}, 5).again
    assert not judge(PROFILE, metrics([100.0]), 5).again
    assert widest({"throughput_kops": [0.0, 0.0]}) is None  # no share of a mean of 0


# ---- the plan ------------------------------------------------------------------------------


def test_another_round_has_the_wanted_cells_only() -> None:
    plan = small_plan()
    wanted = {
        ("sata", "bdus-block", "native", "rand-read-1th-4k"),
        ("nvme", "bdus-block", "nbdkit", "rand-write-1th-4k"),
    }
    grown = extend(plan, wanted)
    assert grown.entries[: len(plan.entries)] == plan.entries
    added = grown.entries[len(plan.entries) :]
    assert {entry.cell for entry in added} == wanted and {entry.repetition for entry in added} == {6}
    assert [entry.index for entry in grown.entries] == list(range(len(grown.entries)))
    assert added[0].block == plan.entries[-1].block + 1
    assert len({entry.seed for entry in grown.entries}) == len(grown.entries)
    assert extend(plan, wanted) == grown and extend(plan, set()) == plan


def test_a_cells_seed_does_not_hang_on_how_the_rounds_before_went() -> None:
    """The order and the seeds of a round follow from the plan's seed and the round's number."""
    cell = ("sata", "bdus-block", "native", "rand-read-1th-4k")
    plan = small_plan()
    only = extend(extend(plan, {cell}), {cell}).entries[-1]
    assert only.repetition == 7
    assert only.seed == extend(extend(plan, {cell}), {cell}).entries[-1].seed


def test_what_the_options_say() -> None:
    assert small_plan(repetitions=2).profile.max_repetitions == 2
    assert small_plan(max_repetitions=20).profile.max_repetitions == 20
    with pytest.raises(ConfigError, match="max-reps=3: --reps 2 is honoured exactly"):
        small_plan(repetitions=2, max_repetitions=3)
    with pytest.raises(ConfigError, match="max-reps=3: profile paper has at least 5"):
        small_plan(max_repetitions=3)
    fixed = small_plan(warm_up_s=9).profile
    assert (fixed.ramp_s, fixed.files.ramp_s, fixed.fixed_warm_up) == (9, 9, True)


def test_costs_are_counted_first_and_not_judged(tmp_path: Path) -> None:
    plan = small_plan(count_costs=True)
    assert [entry.repetition for entry in plan.entries[:8]] == [COUNTING] * 8
    assert plan.rounds == 5 and len(plan.entries) == 6 * 8
    assert {verdict.runs for verdict in judge_all(plan, tmp_path).values()} == {5}


# ---- a campaign ------------------------------------------------------------------------------


def store(directory: Path, plan: Plan, values: dict[str, list[float]], valid: bool = True) -> None:
    """Summaries of all entries, values by system."""
    for entry in plan.entries:
        place = directory / plan.directory(entry)
        place.mkdir(parents=True)
        value = values[entry.system][entry.repetition - 1]
        metrics = {"throughput_kops": value, "latency_us": 1e5 / value, "cpu_percent": 20.0}
        (place / "summary.json").write_text(json.dumps({"valid": valid, "metrics": metrics}))
        (place / "DONE").touch()


def test_cells_are_judged_by_their_own_runs(tmp_path: Path) -> None:
    plan = small_plan()
    store(tmp_path, plan, {"native": NARROW, "nbdkit": WIDE})
    verdicts = judge_all(plan, tmp_path)
    assert {cell[2]: verdict.again for cell, verdict in verdicts.items()} == {"native": False, "nbdkit": True}
    assert summary_line(verdicts).startswith("4 of 8 cells are measured once more; the widest: ")
    write(verdicts, plan.profile, tmp_path)
    kept = json.loads((tmp_path / "repetitions.json").read_text())
    assert kept["half_width"] == 5 and len(kept["cells"]) == 8
    assert {cell["system"]: cell["again"] for cell in kept["cells"]} == {"native": False, "nbdkit": True}


def test_invalid_and_half_done_runs_do_not_count(tmp_path: Path) -> None:
    plan = small_plan()
    store(tmp_path, plan, {"native": NARROW, "nbdkit": NARROW}, valid=False)
    assert {verdict.valid for verdict in judge_all(plan, tmp_path).values()} == {0}
    for path in tmp_path.rglob("summary.json"):
        path.write_text("half")
    assert not any(verdict.again for verdict in judge_all(plan, tmp_path).values())
    assert summary_line(judge_all(plan, tmp_path)) == ""


# ---- what is compared, and what is too few ---------------------------------------------------


def write_summaries(plan: Plan, directory: Path, wide: str, invalid: int = 0) -> None:
    """Runs of all entries: those of a system are wide, so many of the first cell's are invalid."""
    for entry in plan.entries:
        place = directory / plan.directory(entry)
        place.mkdir(parents=True)
        values = WIDE if entry.system == wide else NARROW
        value = values[(entry.repetition - 1) % len(values)]
        found = {"throughput_kops": value, "latency_us": 1e5 / value, "cpu_percent": 20.0}
        bad = entry.cell == plan.entries[0].cell and entry.repetition <= invalid
        (place / "summary.json").write_text(json.dumps({"valid": not bad, "metrics": found}))
        (place / "DONE").touch()


def test_native_is_measured_again_beside_a_wide_cell(tmp_path: Path) -> None:
    plan = small_plan()
    write_summaries(plan, tmp_path, "nbdkit")
    _, added, _ = another_round(plan, tmp_path, lambda cell: True)
    assert {(entry.device, entry.workload, entry.system) for entry in added} == {
        (device, workload, system)
        for device in ("sata", "nvme")
        for workload in ("rand-read-1th-4k", "rand-write-1th-4k")
        for system in ("native", "nbdkit")
    }


def test_valid_runs_count(tmp_path: Path) -> None:
    plan = small_plan()
    write_summaries(plan, tmp_path, "none", invalid=2)
    _, added, _ = another_round(plan, tmp_path, lambda cell: True)
    assert plan.entries[0].cell in {entry.cell for entry in added}
    assert judge(PROFILE, metrics(NARROW[:3]), 5).reason.startswith("3 valid of 5, fewer than 5: ")


def test_intervals_of_adaptive_repetition_are_hardly_too_narrow() -> None:
    """From 5 to 15 runs until the half width is 5 %: docs/statistics.md has the figures."""
    profile = load_profile("paper")
    covered = []
    for deviation in (2.0, 6.0, 10.0):
        rng, hits = random.Random(3), 0
        for _ in range(3000):
            sample = [rng.gauss(100.0, deviation) for _ in range(profile.repetitions)]
            while judge(profile, {"throughput_kops": sample}, len(sample)).again:
                sample.append(rng.gauss(100.0, deviation))
            hits += abs(sum(sample) / len(sample) - 100.0) <= half_width(sample)
        covered.append(round(100 * hits / 3000))
    assert covered == [95, 94, 93]
