# SPDX-License-Identifier: BSD-3-Clause
"""Suites of RFUSE: fio on a file system, and the comparison of what is relative to another system than native."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import runner_process as runner
from loops import MIB, loop_for_fuse
from synthetic import make_campaign
from userblk.analysis.drawing import SETTINGS
from userblk.analysis.figures import Row, SystemRow, details, heat_map, scatter, whiskers
from userblk.analysis.paper import PaperComparison, compare_with_paper
from userblk.analysis.paper_cells import Verdict
from userblk.analysis.paper_claims import ClaimVerdict
from userblk.analysis.papers import load_claims, load_paper
from userblk.analysis.statistics import Interval
from userblk.analysis.summaries import SummaryError, read_campaign
from userblk.analysis.tabulate import make_tables
from userblk.harness.engines import fio, fio_files, flow
from userblk.harness.engines.base import Run, device_engine
from userblk.harness.machine.blockdev import BlockDevice
from userblk.harness.machine.filesystem import Memory
from userblk.harness.machine.paths import CONFIGS
from userblk.harness.machine.subprocesses import Recorder
from userblk.harness.machine.teardown import Teardown
from userblk.harness.model import tables
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.plan import Device, Plan, make_plan, write_plan
from userblk.harness.model.tables import ConfigError
from userblk.harness.systems import Running

RFUSE = load_paper("rfuse", CONFIGS)
SIZE = 256 * MIB
FROM_THE_BEGINNING = {"ramp_s": 0, "runtime_s": 1}  # as in profile paper
SPEED = {"native": 2.0, "rfuse-stackfs": 1.0, "rfuse-uring": 1.3}


def plan_for(device: str, profile: str, workloads: list[str], size: int = SIZE) -> Plan:
    found = load_profile(profile)
    files = dataclasses.replace(found.files, runtime_s=1, memory_bytes=runner.MEMORY, size={"nvme": size})
    return make_plan(
        suite=load_suite("rfuse-fio"),
        profile=dataclasses.replace(found, area={"nvme": size}, repetitions=1, max_repetitions=1, files=files),
        systems=[load_system("rfuse-stackfs")],
        devices=[Device("nvme", device, str(size))],
        campaign="test",
        build="build/host",
        host="here",
        workloads=workloads,
    )


# ---- fio on a file system -----------------------------------------------------------------


def test_its_workloads_are_those_of_the_figures() -> None:
    rows = RFUSE.tables[3].rows
    assert [("nvme", workload.id) for workload in load_suite("rfuse-fio").workloads] == list(rows)
    assert len(rows) == 24 and RFUSE.numbers == 28


def test_the_papers_runs_are_measured_from_their_beginning() -> None:
    """A disk of 7 GB/s has read all within the 20 s that are discarded elsewhere."""
    paper = load_profile("paper")
    for workload in load_suite("rfuse-fio", "paper").workloads:
        files = device_engine(workload.engine).timed(paper, workload).files
        assert (files.ramp_s, files.runtime_s) == (0, paper.files.runtime_s) and paper.files.ramp_s


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    with loop_for_fuse(tmp_path / "image", SIZE) as path:
        yield path


def test_from_plan_to_summaries(device: str, tmp_path: Path) -> None:
    """A mode that reads and one that writes; each thread has its part of the size."""
    plan = plan_for(device, "quick", ["rand-read-2th-4k", "rand-write-1th-4k"])
    small = [
        dataclasses.replace(one, variables={"nvme": {"size": 128 * MIB}}, timing={"quick": FROM_THE_BEGINNING})
        for one in plan.suite.workloads
    ]
    plan = dataclasses.replace(plan, suite=dataclasses.replace(plan.suite, workloads=tuple(small)))
    (tmp_path / "c").mkdir()
    write_plan(plan, tmp_path / "c")
    code, events, err = runner.finish(runner.start(tmp_path / "c"))
    assert (code, err) == (0, ""), events
    found = 0
    for entry in plan.entries:
        directory = tmp_path / "c" / plan.directory(entry)
        summary = json.loads((directory / "summary.json").read_text())
        assert summary["valid"] and summary["engine"] == "fio-files", summary["invalid"]
        report = json.loads((directory / "fio.json").read_text())
        options = report["jobs"][0]["job options"]
        assert options["ioengine"] == "psync" and options["direct"] == "0"
        assert options["ramp_time"].startswith("0")
        made = [
            path.read_text() for path in (directory / "preparation").glob("commands.json") if "fio" in path.read_text()
        ]
        reads = entry.workload.startswith("rand-read")
        assert bool(made) is reads
        assert options["size"] == str((64 if reads else 128) * MIB)
        assert options.get("fdatasync") == (None if reads else "1") and options["allow_file_create"] == str(
            int(not reads)
        )
        each = summary["metrics"]["latency_us"] * summary["metrics"]["throughput_kops"] / 1e3
        assert reads or each == pytest.approx(1)  # with its sync
        assert any(name.startswith("latency_p") for name in summary["metrics"]) is reads
        found += 1
    assert found == 2


@pytest.mark.parametrize(
    ("name", "virtual", "times", "one_window"),
    [
        ("seq-write-2th-128k", True, (0, 0.6), True),  # the ramp of 0.2 s is cut from logs that end before fio does
        ("rand-write-2th-4k", True, (0, 0.6), True),
        ("seq-read-2th-128k", True, (0, 0.3), False),
        ("seq-write-2th-128k", False, (0, 3), False),
    ],
)
def test_writers_in_virtual_time_are_measured_in_one_window(
    name: str, virtual: bool, times: tuple[float, float], one_window: bool
) -> None:
    workload = next(one for one in load_suite("rfuse-fio").workloads if one.id == name)
    profile = load_profile("quick", virtual=virtual).of(workload, "nvme")
    timed = fio_files.as_on_a_device(profile, workload)
    assert fio.fio_times(workload, timed) == pytest.approx(times)
    assert (timed.ramp_s, timed.runtime_s) == (profile.files.ramp_s, profile.files.runtime_s)
    assert fio.cuts_ramp(workload, timed) is timed.fixed_warm_up is one_window


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize(
    ("name", "model", "told"),
    [("seq-write-2th-128k", "m", True), ("seq-write-2th-128k", "", False), ("seq-read-2th-128k", "m", False)],
)
def test_writers_to_a_modelled_disk_find_write_back_steady(
    name: str, model: str, told: bool, over: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The estimates of the disk and of a file system over its ext4 are set when both are there, before the workload."""
    plan = dataclasses.replace(plan_for("/dev/x", "quick", [name]), model=model)
    disk = BlockDevice("/dev/x", "x", "labnvme", 1, SIZE, 512, False, "")
    lower, upper = tmp_path / "ext4", tmp_path / "over"
    steps: list[object] = []

    def step(what: object, found: Any = None) -> Any:
        steps.append(what)
        return found

    for function in ("recheck", "flush_cache", "mount_ext4"):
        monkeypatch.setattr(flow, function, lambda *_: None)
    for function in ("discard_area", "make_ext4", "drop_caches"):
        monkeypatch.setattr(flow, function, lambda *_: {})
    monkeypatch.setattr(flow, "mount_points", lambda _: (lower, upper))
    monkeypatch.setattr(flow, "limit_memory", lambda *_: Memory(None, SIZE))
    monkeypatch.setattr(flow, "unscale_dirty_share", lambda *_: step("share", {"dirty_share_percent": 12}))
    monkeypatch.setattr(flow, "forget_writes", lambda: step("forget"))
    monkeypatch.setattr(flow, "make_known_to_write_back", lambda device, area: step(area))
    monkeypatch.setattr(flow, "settle_write_back", lambda paths, name, writers: step((*paths, name, writers), {}))
    monkeypatch.setattr(Recorder, "run", lambda *_, **__: None)
    monkeypatch.setattr(fio_files.FioFiles, "make", lambda *_: step("files", {}))
    running = Running(used=disk, serve=(lambda *_: step("mount", Running(used=disk))) if over else None)
    entry, workload = plan.entries[0], plan.suite.workloads[0]
    run = Run(plan, entry, workload, plan.profile, disk, running, False, tmp_path, Teardown())
    (tmp_path / "preparation").mkdir()
    fio_files.FioFiles().prepare(run)
    mounted = ["mount", "share", *(["forget"] if model else [])] if over else []
    paths = "/dev/x", str(upper if over else lower)
    expected = [SIZE, "files", *mounted, (*paths, "labnvme", 2)] if told else ["files", *mounted]
    assert steps == expected


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('parameters = "rfuse"', 'parameters = "efuse"', "parameters=efuse: configs/papers/efuse"),
        ("fdatasync = 1", "fsync = 1", "modes.rand-write.fsync=1: unknown key"),
        ('block_size = "128k"', 'block_size = "1000"', "block_size=1000"),
        ("threads = [1,", "threads = [0,", "threads=0: must be an integer"),
        ('rw = "randwrite"', 'rw = "trim"', "rw=trim: must be one of"),
    ],
)
def test_a_wrong_suite_is_named(old: str, new: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs/suites").mkdir(parents=True)
    (tmp_path / "configs/papers").symlink_to(CONFIGS / "papers")
    text = (CONFIGS / "suites/rfuse-fio.toml").read_text()
    assert old in text
    (tmp_path / "configs/suites/rfuse-fio.toml").write_text(text.replace(old, new))
    monkeypatch.setattr(tables, "CONFIGS", tmp_path / "configs")
    with pytest.raises(ConfigError) as caught:
        load_suite("rfuse-fio")
    assert says in str(caught.value) and "\n" not in str(caught.value)


# ---- comparison ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> PaperComparison:
    place = tmp_path_factory.mktemp("rfuse") / "results"
    names = ["mwul-1w", "mwul-2w", "mrph-1w"]
    made = make_campaign(
        place, repetitions=12, suite="fxmark", workloads=names, systems=list(SPEED), speed=SPEED, emulated=False
    )
    campaign = read_campaign(made)
    return compare_with_paper([campaign], make_tables(campaign.runs), RFUSE)


def test_numbers_are_relative_to_the_papers_base(comparison: PaperComparison) -> None:
    cells = {(cell.workload, cell.system): cell for cell in comparison.cells}
    base, ours = cells["mwul-1w", "rfuse-stackfs"], cells["mwul-1w", "rfuse-uring"]
    assert base.absolute and base.paper == 31.06 and base.ours is not None and base.ours.value > 20
    assert not ours.absolute and ours.paper == pytest.approx(24.68, abs=0.01)
    assert ours.ours is not None and ours.ours.value == pytest.approx(30, abs=8)
    assert Counter(cell.verdict for cell in comparison.cells) == {Verdict.NOT_COMPARABLE: 4, Verdict.NOT_MEASURED: 24}
    assert ours.shape is Verdict.AGREES
    assert any(reason == "another NVMe SSD device" for reason in base.reasons)
    assert "FUSE over io_uring, not RFUSE" in ours.reasons


def test_the_figure_says_what_they_are_relative_to(comparison: PaperComparison) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    cells = [cell for cell in comparison.cells if cell.ours and not cell.absolute]
    figure = scatter(cells, "Suite", "")
    assert any("difference to StackFS (RFUSE)" in text.get_text() for text in figure.texts)
    assert [axes.get_title() for axes in figure.axes] == ["Throughput (%)"]  # no empty ones: the paper has no others


@pytest.mark.parametrize("suite", ["s", "a-suite-with-a-rather-long-name"])
def test_the_titles_of_figures_are_whole(suite: str, comparison: PaperComparison) -> None:
    """What is simulated says so at the end of a title."""
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    table = comparison.ours[2]
    table = dataclasses.replace(table, suite=suite, emulated="SIMULATED (lab, virtual time, model cpu-6 sata-2 nvme-2)")
    for figure in (whiskers(table, "nvme"), heat_map(table)):
        (title,) = [text for text in figure.texts if "SIMULATED" in text.get_text()]
        assert title.get_window_extent().x1 <= figure.bbox.width
        assert (title.get_fontsize() == 8) is (suite == "s")


@pytest.mark.parametrize(
    ("systems", "slanted"),
    [
        (("nbdkit", "tcmu", "fuse"), False),
        (("ublk-workers", "fuse") * 2, True),
        (("ext4-nojournal", "ext4-noreadahead"), True),
    ],
)
def test_names_in_a_heat_map_do_not_overlap(
    systems: tuple[str, ...], slanted: bool, comparison: PaperComparison
) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="figures need matplotlib")
    with matplotlib.rc_context(SETTINGS):
        figure = heat_map(dataclasses.replace(comparison.ours[2], systems=("native", *systems)))
        figure.canvas.draw()
    (head,) = figure.texts
    for axes in figure.axes:
        labels = axes.get_xticklabels()
        assert [bool(label.get_rotation()) for label in labels] == [slanted] * len(systems)
        title = axes.title.get_window_extent()
        assert title.y1 < head.get_window_extent().y0
        for label in labels:
            assert label.get_window_extent().y1 < title.y0 and label.get_window_extent().x1 < figure.bbox.width


def test_a_figure_says_what_was_not_recorded() -> None:
    """A run that is as long as its work has no series."""
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    row = Row("r", "here", "nvme", "unpack", "", (SystemRow("native", Interval(2.0), (2.0,), None),))
    bars, *others = details(row).axes
    assert bars.axison and bars.patches
    for axes in others:
        assert not axes.axison and [text.get_text() for text in axes.texts] == ["not recorded"]


def test_a_claim_of_one_system_over_another(comparison: PaperComparison) -> None:
    claims = {ours.claim.id: (ours, theirs) for ours, theirs in comparison.claims}
    ours, theirs = claims["meta-rfuse-unlink"]
    assert (ours.true, ours.missing, theirs.true) == (2, 12, 14)
    assert (ours.verdict, theirs.verdict) == (ClaimVerdict.OPEN, ClaimVerdict.HOLDS)
    alike, printed = claims["meta-open-alike"]
    assert alike.verdict is ClaimVerdict.FAILS and printed.verdict is ClaimVerdict.NOT_MEASURED
    assert alike.against[0].endswith("times") and alike.against[0].startswith("NVMe mrph-1w StackFS io_uring")
    assert claims["meta-open-ext4"][0].false == 1
    assert claims["servers-rfuse"][0].verdict is ClaimVerdict.NOT_MEASURED


@pytest.mark.parametrize(
    "change", [("ratio = true", "ratio = true\nnear = 1"), ("ratio = true\nthan", "ratio = true\n#")]
)
def test_a_ratio_needs_what_it_is_to(change: tuple[str, str], tmp_path: Path) -> None:
    text = (CONFIGS / "papers/rfuse/claims.toml").read_text()
    (tmp_path / "claims.toml").write_text(
        text.replace(*change) if change[0] != "ratio = true" else text.replace("most = ", "near = ")
    )
    with pytest.raises(SummaryError, match="predicate: must be one of"):
        load_claims(tmp_path / "claims.toml")
