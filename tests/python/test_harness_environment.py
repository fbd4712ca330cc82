# SPDX-License-Identifier: BSD-3-Clause
"""What is reported of the machine and its devices; the tools' reports are made up after what they print."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

import pytest
from userblk.harness.observing import environment
from userblk.harness.observing.environment import (
    changes,
    condition,
    distortions,
    endurance_bytes,
    failing,
    parse_nvme,
    parse_smartctl,
    programs,
    snapshot,
    source,
    throttling,
)

NVME = {
    "firmware_version": "1.2.3",
    "logical_block_size": 512,
    "smart_status": {"passed": True},
    "temperature": {"current": 41},
    "nvme_smart_health_information_log": {
        "critical_warning": 0,
        "temperature": 41,
        "percentage_used": 4,
        "data_units_written": 100_000_000,
    },
}
SATA = {
    "firmware_version": "EMT0",
    "logical_block_size": 512,
    "smart_status": {"passed": True},
    "temperature": {"current": 33},
    "ata_smart_attributes": {
        "table": [
            {"id": 177, "name": "Wear_Leveling_Count", "value": 98, "raw": {"value": 70}},
            {"id": 241, "name": "Total_LBAs_Written", "value": 99, "raw": {"value": 2_000_000_000}},
        ]
    },
}


def test_smartctl_of_nvme() -> None:
    facts = parse_smartctl(json.dumps(NVME))
    assert facts["wear_percent"] == 4 and facts["temperature_c"] == 41 and facts["healthy"] is True
    assert facts["written_bytes"] == 100_000_000 * 512_000  # a unit is 1000 blocks of 512 bytes
    assert endurance_bytes(facts) == pytest.approx(25 * 51.2e12)
    assert failing(facts) == ""


def test_smartctl_of_sata() -> None:
    facts = parse_smartctl(json.dumps(SATA))
    assert facts["wear_percent"] == 2 and facts["written_bytes"] == 2_000_000_000 * 512
    assert endurance_bytes(facts) == pytest.approx(50 * 1.024e12)


def test_nvme_smart_log() -> None:
    log = {"critical_warning": {"value": 4}, "temperature": 314, "percent_used": 7, "data_units_written": 10}
    facts = parse_nvme(json.dumps(log))
    assert (facts["temperature_c"], facts["wear_percent"], facts["written_bytes"]) == (41, 7, 5_120_000)
    assert "critical warning 4" in failing(facts)
    assert "critical_warning" not in parse_nvme(json.dumps({"temperature": 300}))


def test_a_disk_that_fails_its_own_check() -> None:
    assert "health check" in failing(parse_smartctl(json.dumps(SATA | {"smart_status": {"passed": False}})))


def test_a_disk_that_is_too_hot() -> None:
    assert "let it cool down" in throttling({"temperature_c": 70.0, "temperature_limit_c": 70.0})
    cases: list[dict[str, object]] = [{}, {"temperature_c": 99.0}, {"temperature_c": 65.0, "temperature_limit_c": 70.0}]
    for facts in cases:
        assert throttling(facts) == ""


@pytest.mark.parametrize("text", ["", "no device", "[]", "{}", '{"ata_smart_attributes": {"table": [5]}}'])
def test_nothing_is_made_up(text: str) -> None:
    assert parse_smartctl(text) == {} and parse_nvme(text) == {}
    assert endurance_bytes({}) is None and endurance_bytes({"wear_percent": 0.0, "written_bytes": 5.0}) is None


def test_this_machine() -> None:
    found = snapshot()
    assert found["kernel"] == os.uname().release and found["cpus"] == os.cpu_count()
    for key in ("command_line", "mitigations", "governor", "turbo", "smt", "numa_nodes", "virtual", "packages"):
        assert key in found
    json.dumps(found)
    now = condition()
    json.dumps(now)
    # Throttling, swapping and heat may come at any moment.
    assert not [line for line in changes(now, condition()) if line.startswith("changed")]


def test_what_changed_is_told() -> None:
    before = condition()
    now = before | {
        "governor": "powersave",
        "throttled": int(str(before["throttled"])) + 3,
        "swap_used_bytes": int(str(before["swap_used_bytes"])) + (5 << 20),
        "disks": {"nvme": (69.0, 70.0), "sata": (30.0, 70.0), "other": (None, None)},
    }
    lines = changes(before | {"governor": "performance"}, now)
    kinds = [line.split(":")[0] for line in lines]
    assert kinds == ["changed", "throttled", "swap", "hot"]
    assert lines[0] == "changed: governor is powersave instead of performance"
    assert "3 times" in lines[1] and "nvme has 69" in lines[3]


def test_cpus_that_the_run_takes_away_are_no_change() -> None:
    now = condition()
    before = now | {"cpus_online": "more of them", "smt": "on"}
    assert [line.split()[1] for line in changes(before, now)] == ["smt", "cpus_online"]
    assert changes(before, now, fewer_cpus=True) == []
    assert len(changes(before | {"turbo": "other"}, now, fewer_cpus=True)) == 1


def test_what_distorts_is_told_once() -> None:
    bad = {"governor": "ondemand", "turbo": "on", "smt": "1", "virtual": "kvm"}
    assert len(distortions(bad, condition() | {"load": 100.0})) == 5
    good = {"governor": "performance", "turbo": "off", "smt": "0", "virtual": ""}
    assert distortions(good, condition() | {"load": 0.0}) == []


def repository(directory: Path) -> str:
    """A new one with a file; its commit."""
    directory.mkdir()
    (directory / "file").touch()
    git = ["git", "-C", str(directory), "-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=m"]):
        subprocess.run([*git, *words], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def test_git_state(tmp_path: Path) -> None:
    assert source(None) == {} and source(tmp_path) == {}
    commit = repository(tmp_path / "r")
    assert source(tmp_path / "r") == {"commit": commit, "modified": False}
    (tmp_path / "r/file").write_text("changed")
    assert source(tmp_path / "r") == {"commit": commit, "modified": True}


def test_a_source_archive_is_not_of_the_repository_that_it_lies_in(tmp_path: Path) -> None:
    repository(tmp_path / "r")
    (tmp_path / "r/userblk-0.2").mkdir()
    assert source(tmp_path / "r/userblk-0.2") == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a repository to somebody else needs root")
def test_the_repository_may_be_somebody_elses(tmp_path: Path) -> None:
    """As root with a checkout of a user's."""
    commit = repository(tmp_path / "r")
    for path in (tmp_path / "r", *(tmp_path / "r").rglob("*")):
        os.chown(path, 12345, 12345)
    assert source(tmp_path / "r") == {"commit": commit, "modified": False}


def test_a_missing_tool_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert environment._run("no-such-tool-anywhere") == ""
    assert environment.device_facts("no-such-disk") == {"disk": "no-such-disk"}


def test_programs_are_known_by_their_contents(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    plugin = tmp_path / "plugins" / "null.so"
    plugin.write_bytes(b"a")
    first = programs(tmp_path)
    (tmp_path / "build.log").write_text("begun at another time")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "driver.so").touch()
    assert programs(tmp_path) == first
    plugin.write_bytes(b"b")
    assert programs(tmp_path) != first
    plugin.write_bytes(b"a")
    plugin.rename(tmp_path / "plugins" / "s3.so")
    assert programs(tmp_path) != first
    assert programs(tmp_path / "nothing") == programs(tmp_path / "plugins" / "none")


def test_a_machine_without_os_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """As small containers and self-made systems are."""
    monkeypatch.setattr(platform, "_os_release_candidates", ("/nowhere/os-release",))
    monkeypatch.setattr(platform, "_os_release_cache", None)
    assert environment.snapshot()["distribution"] == ""


@pytest.mark.parametrize(
    ("manager", "script", "found"),
    [
        (
            "rpm",
            'case $3 in "%{NAME} %{VERSION}-%{RELEASE}\\n") ;; *) exit 2 ;; esac\n'
            "echo fio 3.36-1.fc40; echo package tcmu-runner is not installed; exit 1",
            {"fio": "3.36-1.fc40"},
        ),
        ("pacman", 'echo fio 3.38-1; echo "error: package was not found" >&2; exit 1', {"fio": "3.38-1"}),
    ],
    ids=["rpm", "pacman"],
)
def test_packages_of_machines_without_dpkg(
    manager: str, script: str, found: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed campaign said nothing of their upgrades."""
    program = tmp_path / manager
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert snapshot()["packages"] == found
