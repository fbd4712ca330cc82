# SPDX-License-Identifier: BSD-3-Clause
"""Costs of operations (the numbers are inputs of the tests)."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from made_up import summary
from rich.console import Console
from userblk.analysis.costs import as_csv, load_costs, rows, terminal
from userblk.analysis.summaries import SummaryError


def store(directory: Path, system: str, repetition: int, *, valid: bool = True, **costs: float) -> None:
    place = directory / f"nowhere/sata/bdus-block/{system}/seq-read-1th-4k/{repetition}"
    place.mkdir(parents=True)
    value = summary(system=system, repetition=repetition, costs=costs, valid=valid)
    (place / "summary.json").write_text(json.dumps(value))
    (place / "DONE").touch()


def test_means_of_the_runs_that_counted(tmp_path: Path) -> None:
    store(tmp_path, "nbdkit", 0, server_syscalls_per_op=4.0, device_bytes_per_op=4096.0)
    store(tmp_path, "nbdkit", 1, device_bytes_per_op=4096.0)
    store(tmp_path, "nbdkit", 2, device_bytes_per_op=8192.0)
    store(tmp_path, "nbdkit", 3, valid=False, device_bytes_per_op=1e9)
    store(tmp_path, "native", 1, device_bytes_per_op=4096.0)
    found = {(one.system, one.cost): (one.n, one.mean) for one in load_costs(tmp_path)}
    assert found == {
        ("nbdkit", "server_syscalls_per_op"): (1, 4.0),
        ("nbdkit", "device_bytes_per_op"): (3, pytest.approx(16384 / 3)),
        ("native", "device_bytes_per_op"): (1, 4096.0),
    }
    read = list(csv.DictReader(io.StringIO(as_csv(load_costs(tmp_path)))))
    assert len(read) == len(rows(load_costs(tmp_path))) == 3 and read[0]["cost"] == "server_syscalls_per_op"
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(terminal(load_costs(tmp_path)))
    text = console.export_text()
    assert "Syscalls of the server, per operation" in text and "5,461" in text
    assert text.index("Native") < text.index("5,461")


def test_no_costs_and_no_summary(tmp_path: Path) -> None:
    store(tmp_path, "native", 1)
    assert load_costs(tmp_path) == []
    (tmp_path / "nowhere/sata/bdus-block/native/seq-read-1th-4k/1/summary.json").write_text("[]")
    with pytest.raises(SummaryError, match="not a summary"):
        load_costs(tmp_path)
