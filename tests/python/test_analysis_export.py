# SPDX-License-Identifier: BSD-3-Clause
"""A campaign for other programs."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from command_line import userblk
from synthetic import make_campaign
from userblk.analysis import export, render
from userblk.analysis.summaries import Campaign, read_campaign
from userblk.analysis.tabulate import make_tables
from userblk.harness.machine.paths import CONFIGS
from userblk.harness.running import archive

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)+)\} ([-+0-9.e]+)')


def is_a(value: object, kind: str) -> bool:
    if kind in ("integer", "number"):
        return isinstance(value, int if kind == "integer" else (int, float)) and not isinstance(value, bool)
    return isinstance(value, KINDS[kind])


def fits(value: Any, schema: Mapping[str, Any], place: str = "$") -> None:
    """The part of JSON Schema that ours uses."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    assert any(is_a(value, kind) for kind in kinds), f"{place}: {value!r} is no {kinds}"
    assert value in schema.get("enum", [value]), place
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema["additionalProperties"]
        assert set(schema.get("required", ())) <= value.keys(), place
        for name, one in value.items():
            assert name in known or others, f"{place}.{name}: is not in the schema"
            fits(one, known.get(name, others), f"{place}.{name}")
    for number, one in enumerate(value if isinstance(value, list) else ()):
        fits(one, schema["items"], f"{place}[{number}]")


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    changes: dict[int, dict[str, Any]] = {
        0: {"valid": False, "invalid": ['a "quoted" reason']},
        1: {"metrics": {"throughput_kops": 2.0, "latency_us": 500.0, "cpu_percent": 50.0, "latency_p99.9_us": 900.0}},
    }
    directory = make_campaign(
        tmp_path_factory.mktemp("export"), repetitions=2, suite="bdus-block", changes=changes,
        systems=["native", "nbdkit"], workloads=["seq-read-1th-4k"],
    )  # fmt: skip
    return read_campaign(directory)


def test_the_json_is_as_its_schema_says(campaign: Campaign) -> None:
    schema = json.loads((CONFIGS / "export.schema.json").read_text())
    value = json.loads(export.json_text(campaign, make_tables(campaign.runs)))
    fits(value, schema)
    assert len(value["runs"]) == 8 and sum(run["valid"] for run in value["runs"]) == 7
    with pytest.raises(AssertionError):
        fits(value | {"more": 1}, schema)


@pytest.mark.parametrize("name", ["bs3-fs", "ufs-ops", "postgresql"])
def test_tables_of_each_kind_can_be_written(tmp_path: Path, name: str) -> None:
    """Those over a store have MB/s, too. These campaigns are kept with the docs."""
    campaign = read_campaign(archive.unpack(ROOT / f"docs/data/{name}.tar.gz", tmp_path))
    tables = make_tables(campaign.runs)
    assert ("throughput_mbps" in render.csv_long(tables)) is (name == "bs3-fs")
    rates = {cell["metric"] for cell in json.loads(export.json_text(campaign, tables))["cells"]}
    assert ("throughput_mbps" in rates) is (name == "bs3-fs")


def test_an_invalid_run_has_no_figures(campaign: Campaign) -> None:
    """The mean of all runs would be wrong with them; an earlier version kept them in summary.json."""
    invalid, *others = export.as_json(campaign, [])["runs"]
    assert (invalid["valid"], invalid["metrics"]) == (False, {}) and all(one["metrics"] for one in others)


def test_openmetrics(campaign: Campaign) -> None:
    lines = export.openmetrics(campaign).splitlines()
    assert lines[-1] == "# EOF" and "" not in lines
    families: list[str] = []
    values: dict[str, list[float]] = {}
    for line in lines[:-1]:
        if line.startswith("# TYPE "):
            families.append(line.split()[2])
        elif not line.startswith("#"):
            found = SAMPLE.fullmatch(line)
            assert found and found[1] == families[-1], line
            values.setdefault(found[1], []).append(float(found[3]))
    assert len(families) == len(set(families)) == len(values)
    assert sorted(values["userblk_run_valid"]) == [0.0] + [1.0] * 7
    assert len(values["userblk_run_latency_seconds"]) == 7 and 0.0005 in values["userblk_run_latency_seconds"]
    assert values["userblk_run_latency_quantile_seconds"] == [pytest.approx(0.0009)]
    assert any('quantile="0.999"' in line and "EMULATED" not in line for line in lines)


def test_the_command(campaign: Campaign, tmp_path: Path) -> None:
    for form in ("openmetrics", "json"):
        done = userblk("export", str(campaign.directory), "--format", form, cwd=tmp_path)
        assert done.returncode == 0 and (tmp_path / f"made-up.{form}").stat().st_size > 100, done.stderr
    both = userblk("export", str(campaign.directory), "--format", "json", "--tables", cwd=tmp_path)
    assert both.returncode == 2 and "leave --tables out" in both.stderr


def test_an_artefact_tells_how_each_part_is_made(campaign: Campaign, tmp_path: Path) -> None:
    (campaign.directory / "report").mkdir()
    (campaign.directory / "report/old.html").touch()  # of an earlier userblk report
    done = userblk("bundle", str(campaign.directory), "--output", "a.tar.gz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / "a.tar.gz") as packed:
        names = packed.getnames()
        file = packed.extractfile("made-up/README.md")
        assert file is not None
        text = file.read().decode()
    assert len(names) == len(set(names)) and "made-up/report/old.html" not in names
    for name in ("campaign.json", "export.json", "tables/table.md", "tables/bdus.csv", "report/report.html"):
        assert f"made-up/{name}" in names
    assert sum(name.endswith("/summary.json") for name in names) == 8
    assert "EMULATED" in text and "cpu_model: Made-up CPU" in text
    assert text.count("\n| ") > 80 and "userblk compare made-up bdus" in text
    (line,) = [line for line in text.splitlines() if "costs them at most 15.5 %" in line]
    workloads = "seq-read-16th-4k,seq-read-16th-128k"
    assert line.endswith(f"| `--suite bdus-block --systems native,tcmu --workloads {workloads}` |")
    (line,) = [line for line in text.splitlines() if "BDUS frequently takes less CPU" in line]
    assert "`--suite bdus-block --systems native," in line and "`--suite bdus-fs --systems native," in line
    assert "--workloads" not in line
    (line,) = [line for line in text.splitlines() if "of each run" in line]
    assert line.startswith("| `*/*/*/*/*/*/`: environment, summary of each run") and "replay.fio" not in text
    run = campaign.runs[0].directory
    (campaign.directory / run / "replay.fio").touch()
    (campaign.directory / run / "commands.json").write_text("[]")
    assert userblk("bundle", str(campaign.directory), "--output", "b.tar.gz", cwd=tmp_path).returncode == 0
    with tarfile.open(tmp_path / "b.tar.gz") as packed:
        file = packed.extractfile("made-up/README.md")
        assert file is not None
        text = file.read().decode()
    assert "raw output, commands, environment, summary of each run" in text and "`fio replay.fio`" in text
    assert "OVERWRITES the device that you name: `DEVICE=... fio replay.fio`" in text
    assert userblk("import", "a.tar.gz", cwd=tmp_path).returncode == 0
    again = read_campaign(tmp_path / "results/made-up")
    assert again.runs == campaign.runs
