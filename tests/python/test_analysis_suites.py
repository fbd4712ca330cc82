# SPDX-License-Identifier: BSD-3-Clause
"""Summaries that suites with tables of their own cannot read: of another version, or damaged."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import made_up
import pytest
from userblk.analysis import attach, depth_jobs, failover, pts, response, store_figures, sweep
from userblk.analysis.summaries import SummaryError

WORKLOADS = {
    attach.SUITE: "8-disks",
    depth_jobs.SUITE: "rand-read-1j-1d-4k",
    failover.SUITE: "kill",
    response.SUITE: "rand-read-10load",
    sweep.SUITE: "read-1cpu",
}


def write(campaign: Path, suite: str, summary: object) -> Path:
    directory = campaign / f"nowhere/sata/{suite}/native/workload/1"
    directory.mkdir(parents=True)
    (directory / "summary.json").write_text(json.dumps(summary))
    (directory / "environment.json").write_text("{}")
    (directory / "DONE").touch()
    return directory


@pytest.mark.parametrize(
    ("module", "changes"),
    [
        (attach, {"settings": {}}),
        (attach, {"settings": {"attach": {"disks": None}}}),
        (depth_jobs, {}),
        (failover, {"settings": {"failover": {}}}),
        (failover, {}),
        (pts, {}),
        (pts, {"settings": {"sweep": {"rounds_kops": [1.0]}}}),
        (response, {"settings": {"response": {"offered_kops": None}}}),
        (response, {"settings": {"response": {"offered_kops": 1.0}}, "workload": "rand-read-fewload"}),
        (store_figures, {"settings": None}),
    ],
)
def test_what_a_summary_lacks_is_said_of_the_file(module: ModuleType, changes: dict[str, Any], tmp_path: Path) -> None:
    suite = module.SUITE
    ids = {"suite": suite, "workload": WORKLOADS.get(suite, "seq-read-1th-4k")}
    directory = write(tmp_path, suite, made_up.summary(**ids | changes))
    said = rf"{re.escape(str(directory))}/(summary|environment)\.json: not of a run of suite {suite}: .*; remove DONE"
    with pytest.raises(SummaryError, match=said):
        module.reports(tmp_path)


@pytest.mark.parametrize("module", [attach, depth_jobs, failover, pts, response, store_figures, sweep])
@pytest.mark.parametrize("summary", [[], {"schema": 1}, {"schema": 1, "valid": True, "metrics": None}])
def test_what_no_summary_is(module: ModuleType, summary: object, tmp_path: Path) -> None:
    directory = write(tmp_path, module.SUITE, summary)
    with pytest.raises(SummaryError, match=rf"{re.escape(str(directory / 'summary.json'))}: not a summary: "):
        module.reports(tmp_path)
