# SPDX-License-Identifier: BSD-3-Clause
"""What happens to a disk's link, to heat and to clock rates during a run, on a made-up machine."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from loops import loop
from runner_process import SIZE, plan_for, summaries
from userblk.harness.machine import tuning
from userblk.harness.observing import environment, hardware
from userblk.harness.observing.environment import changes, condition, distortions
from userblk.harness.observing.hardware import Watcher, full_link, link, link_errors, parse_thermal
from userblk.harness.observing.periodic import Periodic
from userblk.harness.running.runner import Runner

CPU = "sys/devices/system/cpu"
PORT = "sys/devices/pci0000:00/0000:00:04.0"
NVME = f"{PORT}/nvme/nvme0"
GEN3, GEN1 = "8.0 GT/s PCIe", "2.5 GT/s PCIe"
SMART_LOG = {"temperature": 314, "warning_temp_time": 3, "critical_comp_time": 0, "thm_temp1_trans_count": 7}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two CPUs and an NVMe disk on a PCIe link of four lanes; a disk without one."""
    root = tmp_path / "root"
    files = {
        f"{PORT}/current_link_speed": GEN3,
        f"{PORT}/current_link_width": "4",
        f"{PORT}/max_link_speed": "16.0 GT/s PCIe",
        f"{PORT}/max_link_width": "4",
        f"{PORT}/aer_dev_correctable": "RxErr 2\nBadTLP 0\nTOTAL_ERR_COR 2",
        f"{PORT}/aer_dev_fatal": "TOTAL_ERR_FATAL 0",
        f"{NVME}/hwmon3/temp1_input": "41850",
        f"{NVME}/hwmon3/temp1_max": "70000",
        f"{NVME}/nvme0n1/size": "8",
        "sys/devices/ata1/sda/size": "8",
    }
    for cpu in ("cpu0", "cpu1"):
        files |= {
            f"{CPU}/{cpu}/cpufreq/scaling_governor": "performance",
            f"{CPU}/{cpu}/cpufreq/scaling_cur_freq": "3000000",
            f"{CPU}/{cpu}/thermal_throttle/core_throttle_count": "5",
        }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    for disk, device in (("nvme0n1", NVME), ("sda", "sys/devices/ata1")):
        (root / "sys/block" / disk).mkdir(parents=True)
        (root / "sys/block" / disk / "device").symlink_to(root / device)
    return root


def put(path: Path, text: str) -> None:
    """At once, as sysfs does."""
    (path.parent / "new").write_text(f"{text}\n")
    (path.parent / "new").rename(path)


def watched(root: Path, *happens: Callable[[], object], disk: str = "nvme0n1") -> Watcher:
    with Watcher("nvme", disk, root, period=0.01) as watcher:
        for one in happens:
            one()
            time.sleep(0.1)
    return watcher


def test_a_run_in_which_nothing_happens(root: Path) -> None:
    assert (link("nvme0n1", root), full_link("nvme0n1", root)) == (f"{GEN3} x4", "16.0 GT/s PCIe x4")
    assert (link("sda", root), full_link("sda", root), link_errors("nvme0n1", root)) == ("", "", 2)
    watcher = watched(root)
    assert not watcher.problems and not watcher.warnings
    assert watcher.facts == {"link": f"{GEN3} x4", "cpu_mhz": [3000, 3000], "temperature_c": 41.85}
    assert watched(root, disk="sda").facts == {"cpu_mhz": [3000, 3000]}


@pytest.fixture
def multipath(root: Path) -> Path:
    """The same machine with native NVMe multipath: the disk is its subsystem's, and each path to it a hidden one."""
    subsystem, block = root / "sys/devices/virtual/nvme-subsystem/nvme-subsys0", root / "sys/block"
    (subsystem / "nvme0n1").mkdir(parents=True)
    (subsystem / "nvme0").symlink_to(root / NVME)
    (block / "nvme0n1/device").unlink()
    (block / "nvme0n1/device").symlink_to(subsystem)
    (block / "nvme0c0n1").mkdir()
    (block / "nvme0c0n1/hidden").write_text("1\n")
    (block / "nvme0c0n1/device").symlink_to(root / NVME)
    (root / PORT / "numa_node").write_text("1\n")
    (root / PORT / "msi_irqs").mkdir()
    (root / PORT / "msi_irqs/77").write_text("msix\n")
    return root


def test_a_disk_of_several_paths_has_the_links_and_interrupts_of_its_controllers(multipath: Path) -> None:
    root = multipath
    assert (link("nvme0n1", root), full_link("nvme0n1", root)) == (f"{GEN3} x4", "16.0 GT/s PCIe x4")
    assert link_errors("nvme0n1", root) == 2
    assert hardware.temperature("nvme0n1", root) == (41.85, 70.0)
    assert hardware.numa_nodes("nvme0n1", root) == [1] and tuning.interrupts("nvme0n1", root) == [77]
    assert tuning.hardware_disks(root) == ["nvme0n1", "sda"]
    other = "sys/devices/pci0000:80/0000:81:00.0"
    for name, text in {"current_link_speed": GEN1, "current_link_width": "4", "msi_irqs/80": "msix"}.items():
        (root / other / name).parent.mkdir(parents=True, exist_ok=True)
        (root / other / name).write_text(f"{text}\n")
    (root / other / "nvme/nvme1").mkdir(parents=True)
    (root / "sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme1").symlink_to(root / other / "nvme/nvme1")
    assert link("nvme0n1", root) == f"{GEN3} x4, {GEN1} x4" and tuning.interrupts("nvme0n1", root) == [77, 80]
    (root / other / "numa_node").write_text("0\n")
    for path, text in {f"devices/system/node/node{n}/cpulist": str(n) for n in (0, 1)}.items():
        (root / "sys" / path).parent.mkdir(parents=True)
        (root / "sys" / path).write_text(f"{text}\n")
    for number in (77, 80):
        (root / f"proc/irq/{number}").mkdir(parents=True)
        (root / f"proc/irq/{number}/smp_affinity_list").write_text("0-1\n")
    found = {one.about: one.wanted for one in tuning.settings(["nvme0n1"], root) if one.kind == tuning.INTERRUPTS}
    assert found == {"nvme0n1 77": "1", "nvme0n1 80": "0"}  # each near its own controller
    facts = tuning.facts(["nvme0n1"], root, root / "tuned")["disks"]
    assert isinstance(facts, dict) and facts["nvme0n1"]["numa_node"] == [0, 1]
    assert environment.device_facts("nvme0n1", root)["numa_node"] == "0, 1"


def test_a_link_that_changes_makes_the_run_invalid_even_if_it_comes_back(root: Path) -> None:
    speed, width = root / PORT / "current_link_speed", root / PORT / "current_link_width"
    watcher = watched(root, lambda: put(speed, GEN1), lambda: put(speed, GEN3))
    assert watcher.problems == [f"link: the PCIe link of nvme changed during the run: {GEN3} x4, {GEN1} x4, {GEN3} x4"]
    assert watched(root, lambda: put(width, "1")).problems[0].endswith(f": {GEN3} x4, {GEN3} x1")
    (line,) = watched(root, lambda: shutil.rmtree(root / PORT)).problems
    assert line.endswith(f": {GEN3} x1, none")


def test_heat_errors_and_slow_clocks_are_told(root: Path) -> None:
    watcher = watched(
        root,
        lambda: put(root / PORT / "aer_dev_correctable", "RxErr 9\nTOTAL_ERR_COR 9"),
        lambda: put(root / CPU / "cpu1/thermal_throttle/core_throttle_count", "8"),
        lambda: put(root / NVME / "hwmon3/temp1_input", "71000"),
        lambda: put(root / CPU / "cpu0/cpufreq/scaling_cur_freq", "1200000"),
        lambda: put(root / CPU / "cpu1/cpufreq/scaling_cur_freq", "1200000"),
    )
    assert not watcher.problems
    assert watcher.warnings == [
        "link: PCIe reported 7 errors of nvme during the run",
        "throttled: CPUs were slowed down 3 times during the run, because they were too hot",
        "hot: nvme has 71 degrees C after the run and throttles at 70",
        "frequency: the fastest CPU ran at 1200 to 3000 MHz during the run",
    ]
    assert watcher.facts["link_errors"] == 7 and watcher.facts["cpu_mhz"] == [1200, 3000]


def test_one_idle_cpu_that_slows_down_is_no_warning(root: Path) -> None:
    assert not watched(root, lambda: put(root / CPU / "cpu1/cpufreq/scaling_cur_freq", "800000")).warnings


def test_cpus_of_one_clock_are_asked_once(root: Path) -> None:
    shutil.rmtree(root / CPU / "cpu1/cpufreq")
    (root / CPU / "cpu1/cpufreq").symlink_to(root / CPU / "cpu0/cpufreq")
    assert hardware.frequencies(root) == [3000]


def test_a_slow_look_is_not_made_up_for() -> None:
    """Looks without a pause take the CPU time that is measured."""
    times: list[float] = []

    class Slow(Periodic):
        def look(self) -> None:
            times.append(time.monotonic())
            if len(times) == 2:
                time.sleep(0.6)

    with Slow(0.05):
        time.sleep(1.0)
    pauses = [later - sooner for sooner, later in pairwise(times[1:-1])]
    assert sum(pause < 0.01 for pause in pauses) <= 1, pauses


def test_counts_of_heat(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_thermal(json.dumps(SMART_LOG)) == {name: SMART_LOG[name] for name in list(SMART_LOG)[1:]}
    smartctl = {"nvme_smart_health_information_log": {"warning_temp_time": 2, "critical_comp_time": True}}
    assert parse_thermal(json.dumps(smartctl)) == {"warning_temp_time": 2}
    assert parse_thermal("no device") == parse_thermal("[]") == {}
    counts = iter([{"thm_temp1_trans_count": 7}, {"thm_temp1_trans_count": 9}])
    monkeypatch.setattr(hardware, "thermal_counts", lambda disk: next(counts))
    with Watcher("nvme", "no-such-disk") as watcher:
        pass
    assert "throttled: nvme was too hot during the run (thm_temp1_trans_count +2)" in watcher.warnings


def test_a_link_that_is_not_what_it_was_or_can_be_is_told() -> None:
    before = condition()
    lines = changes(before | {"links": {"nvme": "a x4", "sata": ""}}, before | {"links": {"nvme": "a x2", "sata": ""}})
    assert "changed: the PCIe link of nvme is a x2 instead of a x4" in lines
    slow: dict[str, object] = {"devices": {"nvme": {"link": "a x2", "link_can_be": "a x4"}, "sata": {"link": "b x1"}}}
    (line,) = distortions(slow, before | {"load": 0.0})
    assert line == "the PCIe link of nvme is a x2, and the device can do a x4; use another slot"


def test_the_runner_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shutil.which("fio"):
        pytest.skip("fio is not installed")
    links = iter([f"{GEN3} x4"])
    with loop(tmp_path, SIZE) as device:
        plan = plan_for(device, tmp_path / "c", workloads=["rand-read-1th-4k"])
        monkeypatch.setattr(hardware, "link", lambda disk, root: next(links, f"{GEN1} x4"))
        assert Runner(plan, tmp_path / "c").run() == 1
    (summary,) = summaries(tmp_path / "c").values()
    assert summary["invalid"] == [f"link: the PCIe link of sata changed during the run: {GEN3} x4, {GEN1} x4"]
    assert summary["hardware"]["link"] == f"{GEN3} x4"  # type: ignore[index]
