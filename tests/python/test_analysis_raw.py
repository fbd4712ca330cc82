# SPDX-License-Identifier: BSD-3-Clause
"""What figures are made of: series and histograms from raw files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from synthetic import make_campaign
from userblk.analysis import raw
from userblk.analysis.raw import cell_details, read_details
from userblk.analysis.summaries import Campaign, Run, SummaryError, read_campaign
from userblk.harness.model.parts import ENGINES, Engine, History
from userblk.harness.observing.histogram import percentile
from userblk.harness.observing.warmup import Interval
from userblk.harness.running.archive import CACHE

WORKLOADS = ["seq-read-16th-4k", "create-1th"]


def campaign_of(directory: Path, repetitions: int = 2) -> Campaign:
    return read_campaign(make_campaign(directory, repetitions=repetitions, workloads=WORKLOADS))


def a_run(engine: str, duration_s: float) -> Run:
    return Run("c", "h", "sata", "s", "native", "w", 1, "quick", "", True, (), (), {}, "", engine, 0, duration_s)


def write_fio(directory: Path, iops: str, operations: int, mean_ns: float, runtime_ms: int) -> None:
    read: dict[str, Any] = {"clat_ns": {"bins": {"100": 3, "200": 1}}, "lat_ns": {"mean": mean_ns}}
    none: dict[str, Any] = {"clat_ns": {}, "lat_ns": {"mean": 0.0}, "total_ios": 0, "runtime": 0}
    sides = {"read": {**read, "total_ios": operations, "runtime": runtime_ms}, "write": none}
    (directory / "fio.json").write_text(json.dumps({"jobs": [sides]}))
    (directory / "fio_iops.log").write_text(iops)


def test_threads_of_fios_logs_add_up(tmp_path: Path) -> None:
    # Two threads, one after the other in the file.
    iops = "500, 1000, 0, 0, 0\n1000, 2000, 0, 0, 0\n500, 3000, 0, 0, 0\n1000, 500, 0, 0, 0\n"
    write_fio(tmp_path, iops, 3250, 600_000.0, 1000)  # so 1.95 requests are under way at a time
    details = read_details(tmp_path, a_run("fio", 1.5), 0.5, 1)
    assert details.problem == ""
    assert details.kops == pytest.approx([4.0, 2.5])
    assert details.latency_us == pytest.approx([1.95 * 0.5e6 / 2000, 1.95 * 0.5e6 / 1250])
    assert details.bins == {100: 3, 200: 1}


def test_steps_of_several_intervals_are_means(tmp_path: Path) -> None:
    iops = "".join(f"{500 * step}, {1000 * step}, 0, 0, 0\n" for step in range(1, 6))
    write_fio(tmp_path, iops, 7500, 1e6 / 3, 2500)
    details = read_details(tmp_path, a_run("fio", 2.5), 0.5, 2)
    assert details.kops == [1.5, 3.5, 5.0]  # the last of one interval only
    assert details.latency_us == pytest.approx([1e3 / 1.5, 1e3 / 3.5, 1e3 / 5.0])


def test_a_step_without_operations_has_no_latency(tmp_path: Path) -> None:
    logs = "500, 10, 0, 0, 0\n1000, 0, 0, 0, 0\n1500, 10, 0, 0, 0\n"
    write_fio(tmp_path, logs, 10, 150e6, 1500)
    details = read_details(tmp_path, a_run("fio", 1.5), 0.5, 1)
    assert details.kops == [0.01, 0.0, 0.01] and details.latency_us == [100_000.0, None, 100_000.0]
    # A step with an interval in which all waited counts the wait.
    assert read_details(tmp_path, a_run("fio", 1.5), 0.5, 2).latency_us == [200_000.0, 100_000.0]


def test_flow_counts_what_was_measured_only(tmp_path: Path) -> None:
    """The histogram is of the measured end, the series of everything."""
    intervals = [
        {
            "start_s": at,
            "end_s": at + 1,
            "ops": 1000 * (at + 1),
            "latency_ns": {"sum": 2_000_000 * (at + 1), "bins": {str(at): 7}},
        }
        for at in range(4)
    ]
    (tmp_path / "flow.json").write_text(json.dumps({"intervals": intervals}))
    details = read_details(tmp_path, a_run("flow", 2.0), 1.0, 1)
    assert details.kops == [1.0, 2.0, 3.0, 4.0] and details.latency_us == [2.0] * 4
    assert details.bins == {2: 7, 3: 7}


@pytest.mark.parametrize("text", ["", "not JSON", "{}", '{"jobs": []}', '{"jobs": [{"read": 5}]}'])
def test_unreadable_raw_files_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "fio.json").write_text(text)
    details = read_details(tmp_path, a_run("fio", 1.0), 0.5, 1)
    assert str(tmp_path) in details.problem and not details.bins


def test_details_of_cells(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path)
    cells, problems = cell_details(campaign)
    assert problems == []
    assert len(cells) == 2 * (3 + 4 + 4)  # devices; systems on blocks, and with FUSE on two workloads on files
    cell = cells["nowhere", "bdus-block", "nvme", "seq-read-16th-4k", "native"]
    assert cell.step_s == 0.1 and len(cell.kops.mean) == 20
    for mean, low, high in zip(cell.kops.mean, cell.kops.low, cell.kops.high, strict=True):
        assert mean is not None and low is not None and high is not None
        assert low < mean < high
    own = Path("nowhere/nvme/bdus-block/native/seq-read-16th-4k")
    runs = [run for run in campaign.runs if run.directory.parent == own]
    throughput = sum(run.metrics["throughput_kops"] for run in runs) / len(runs)
    assert sum(cell.kops.mean) / 20 == pytest.approx(throughput, rel=0.05)  # type: ignore[arg-type]
    one = [read_details(campaign.directory / run.directory, run, 0.1, 1).bins for run in runs]
    assert sum(cell.bins.values()) == sum(sum(bins.values()) for bins in one)
    assert percentile(cell.bins, 50) > 0


class Strange(Engine):
    """One whose name nothing here knows, with a log of its own: operations in each interval."""

    name = "strange"

    def read(self, directory: Path, duration_s: float, interval_s: float) -> tuple[list[Interval], dict[int, int]]:
        counts = [int(line) for line in (directory / "strange.log").read_text().split()]
        intervals = [Interval(i * interval_s, (i + 1) * interval_s, n, 100.0 * n) for i, n in enumerate(counts)]
        return intervals, {round(duration_s): sum(counts)}

    def __init__(self) -> None:
        self.history = History(("strange.log",), self.read, lambda profile: float(profile["runtime_s"]))


def test_an_engine_says_itself_what_figures_are_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES._all(), "strange", Strange())
    campaign = campaign_of(tmp_path, repetitions=1)
    run = next(run for run in campaign.runs if run.engine == "fio")
    summary = campaign.directory / run.directory / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"engine": "strange", "duration_s": 4.0}))
    log = campaign.directory / run.directory / "strange.log"
    log.write_text("100 200 300")
    campaign = read_campaign(campaign.directory)
    key = (run.host, run.suite, run.device, run.workload, run.system)
    cells, problems = cell_details(campaign)
    assert problems == [] and cells[key].kops.mean == [1.0, 2.0, 3.0] and cells[key].bins == {4: 600}
    assert cells[key].latency_us.mean == [100.0] * 3
    log.write_text("100 200 400")  # its files are looked at when the details are read again
    os.utime(log, ns=(1, 1))
    assert cell_details(campaign)[0][key].kops.mean == [1.0, 2.0, 4.0]
    log.unlink()
    assert len(cell_details(campaign)[1]) == 1


def test_invalid_runs_are_not_in_the_details(tmp_path: Path) -> None:
    bad = {0: {"valid": False, "invalid": ["fio failed"]}}
    campaign = read_campaign(make_campaign(tmp_path, repetitions=1, workloads=WORKLOADS, changes=bad))
    run = next(run for run in campaign.runs if not run.valid)
    cells, _ = cell_details(campaign)
    assert (run.host, run.suite, run.device, run.workload, run.system) not in cells


# ---- what is kept ----------------------------------------------------------------------


def test_what_was_read_is_kept_and_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = campaign_of(tmp_path)
    first = cell_details(campaign)
    assert len(list((campaign.directory / CACHE).iterdir())) == len(campaign.runs)
    monkeypatch.setattr(raw, "read_details", None)  # must not be needed
    assert cell_details(campaign) == first


def test_a_changed_raw_file_is_read_again(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path, repetitions=1)
    before, _ = cell_details(campaign)
    run = next(run for run in campaign.runs if run.engine == "fio")
    log = campaign.directory / run.directory / "fio_iops.log"
    status = log.stat()
    log.write_text("".join(line.replace(", 0, 0, 0", "0, 0, 0, 0") for line in log.read_text().splitlines(True)))
    os.utime(log, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    after, _ = cell_details(campaign)
    key = (run.host, run.suite, run.device, run.workload, run.system)
    assert after[key].kops.mean[0] == pytest.approx(10 * before[key].kops.mean[0])  # type: ignore[operator]
    assert {k for k in after if after[k] != before[k]} == {key}


def test_a_broken_cache_is_no_harm(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path, repetitions=1)
    first = cell_details(campaign)
    for file in (campaign.directory / CACHE).iterdir():
        file.write_text('{"stamp": [')
    assert cell_details(campaign) == first


def test_many_runs_are_read_by_several_processes_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = campaign_of(tmp_path)
    alone = cell_details(campaign)
    for file in (campaign.directory / CACHE).iterdir():
        file.unlink()
    monkeypatch.setattr(raw, "PARALLEL", 1)
    assert cell_details(campaign) == alone


def test_long_series_are_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = campaign_of(tmp_path, repetitions=1)
    monkeypatch.setattr(raw, "POINTS", 3)
    cells, _ = cell_details(campaign)
    assert {(cell.step_s, len(cell.kops.mean)) for cell in cells.values()} == {(1.0, 2), (1.0, 3)}


def test_without_a_plan_it_says_so(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path, repetitions=1)
    (campaign.directory / "plan.json").write_text("{}")
    with pytest.raises(SummaryError, match="plan.json"):
        cell_details(campaign)


def test_the_interval_of_a_campaign_before_schema_4(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path)
    now, _ = cell_details(campaign)
    file = campaign.directory / "plan.json"
    plan = json.loads(file.read_text())
    plan["profile"]["series_ms"] = 2 * plan["profile"].pop("workload_interval_ms")
    file.write_text(json.dumps(plan))
    before, _ = cell_details(campaign)
    assert {key: one.step_s for key, one in before.items()} == {key: 2 * one.step_s for key, one in now.items()}
