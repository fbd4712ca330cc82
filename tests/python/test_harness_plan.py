# SPDX-License-Identifier: BSD-3-Clause
"""What is run, in which order."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from userblk.harness.config import ConfigError, load_profile, load_suite, load_system
from userblk.harness.plan import Device, Plan, estimate, make_plan, read_plan, write_plan

DEVICES = [Device("sata", "/dev/null", "A"), Device("nvme", "$X", "B")]
SYSTEMS = [load_system(name) for name in ("native", "nbdkit", "tcmu")]


def plan_of(profile: str, seed: int | None = 7, **options: object) -> Plan:
    arguments = {"systems": SYSTEMS, "devices": DEVICES, "campaign": "c", "build": "build/host"} | options
    suite = load_suite("bdus-block")
    return make_plan(suite=suite, profile=load_profile(profile), seed=seed, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(("profile", "rounds"), [("quick", 3), ("paper", 5)])
def test_a_round_is_every_cell_once(profile: str, rounds: int) -> None:
    plan = plan_of(profile)
    assert len(plan.entries) == 16 * 2 * 3 * rounds
    assert [entry.index for entry in plan.entries] == list(range(len(plan.entries)))
    for number in range(rounds):
        cells = Counter((e.device, e.system, e.workload) for e in plan.entries[number * 96 : number * 96 + 96])
        assert len(cells) == 96 and set(cells.values()) == {1}
        assert {e.repetition for e in plan.entries[number * 96 : number * 96 + 96]} == {number + 1}
    assert len({entry.seed for entry in plan.entries}) == len(plan.entries)


def test_quick_blocks_share_a_bring_up_and_read_first() -> None:
    orders = set()
    blocks = list(plan_of("quick").blocks())
    assert len(blocks) == 18
    for _, entries in blocks:
        assert len({(e.device, e.system, e.repetition) for e in entries}) == 1
        kinds = ["write" in e.workload for e in entries]
        assert kinds == [False] * 8 + [True] * 8
        orders.add(tuple(e.workload for e in entries))
    assert len(orders) == 18  # each is shuffled for itself
    rounds = [[(e[0].device, e[0].system) for _, e in blocks[i : i + 6]] for i in (0, 6, 12)]
    assert not rounds[0] == rounds[1] == rounds[2]


def test_paper_brings_up_for_every_run() -> None:
    plan = plan_of("paper")
    assert [len(entries) for _, entries in plan.blocks()] == [1] * len(plan.entries)


def test_the_seed_decides_and_is_recorded() -> None:
    assert plan_of("quick", 7) == plan_of("quick", 7)
    assert plan_of("quick", 7).entries != plan_of("quick", 8).entries
    free = plan_of("quick", None)
    assert plan_of("quick", free.seed) == free


def test_subsets_and_repetitions() -> None:
    plan = plan_of("quick", workloads=["rand-write-16th-4k", "seq-read-1th-4k"], repetitions=1)
    assert len(plan.entries) == 12
    with pytest.raises(ConfigError, match="workload=randread: unknown; use one of seq-read-1th-4k,"):
        plan_of("quick", workloads=["randread"])
    with pytest.raises(ConfigError, match="repetitions=0: must be at least 1"):
        plan_of("quick", repetitions=0)
    with pytest.raises(ConfigError, match="device=hdd: profile quick has no area"):
        plan_of("quick", devices=[Device("hdd", "/dev/x", "")])
    with pytest.raises(ConfigError, match=r"campaign=\.\./x: use lower case"):
        plan_of("quick", campaign="../x")


def test_estimate_counts_what_may_be_written() -> None:
    plan = plan_of("quick", systems=[load_system("native"), load_system("tcmu-null")])
    area = plan.profile.area["sata"]
    # 3 rounds x (8 writes and a zero-fill); the null device lies on nothing
    assert estimate(plan).bytes_written == {"sata": 27 * area, "nvme": 27 * area}
    assert estimate(plan_of("paper")).seconds > 480 * 900
    assert estimate(plan_of("quick")).seconds < 30 * 60


def test_plan_json_keeps_everything(tmp_path: Path) -> None:
    plan = plan_of("quick")
    path = write_plan(plan, tmp_path)
    assert read_plan(path) == plan
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    assert plan.directory(plan.entries[0]).parts[-1] == "1"
    value = json.loads(path.read_text())
    path.write_text(json.dumps(value | {"schema": 2}))
    with pytest.raises(ConfigError, match="another schema than 1"):
        read_plan(path)
    path.write_text(json.dumps({"schema": 1, "suite": 5}))
    with pytest.raises(ConfigError, match="not a plan"):
        read_plan(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_plan(tmp_path / "none.json")
