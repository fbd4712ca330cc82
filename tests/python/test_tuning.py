# SPDX-License-Identifier: BSD-3-Clause
"""userblk tune on a made-up machine, and the CPUs that servers and workloads of a campaign are started on."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import userblk
from loops import LIMIT, loop
from runner_process import SIZE, finish, start
from userblk.harness import cli
from userblk.harness.cli import plan as cli_plan
from userblk.harness.cli.tune import shown
from userblk.harness.machine import paths, prepare, teardown, tuning
from userblk.harness.machine.safety import Refused
from userblk.harness.machine.tuning import GOVERNOR, IDLE, INTERRUPTS, TURBO, TuningError, cpu_list
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.plan import Device, make_plan, read_plan, write_plan
from userblk.harness.observing import hardware
from userblk.harness.running import runner as runner_module
from userblk.harness.running.runner import Runner

CPU = "sys/devices/system/cpu"
PCI = "sys/devices/pci0000:00/0000:00:04.0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two CPUs, an NVMe disk on the second node with interrupts on the first, and a SATA disk that tells nothing."""
    root = tmp_path / "root"
    files = {
        f"{CPU}/intel_pstate/no_turbo": "0",
        f"{PCI}/numa_node": "1",
        f"{PCI}/msi_irqs/40": "msix",
        f"{PCI}/nvme/nvme0/numa_node": "-1x",
        f"{PCI}/nvme/nvme0/nvme0n1/size": "8",
        "sys/devices/ata1/sda/size": "8",
        "sys/devices/system/node/node0/cpulist": "0",
        "sys/devices/system/node/node1/cpulist": "1",
        "proc/irq/40/smp_affinity_list": "0-1",
    }
    for cpu in ("cpu0", "cpu1"):
        files |= {
            f"{CPU}/{cpu}/cpufreq/scaling_available_governors": "performance schedutil",
            f"{CPU}/{cpu}/cpufreq/scaling_governor": "schedutil",
        }
        for state, (name, latency, off) in enumerate((("POLL", 0, 0), ("C1", 2, 0), ("C6", 133, 0), ("C8", 200, 1))):
            place = f"{CPU}/{cpu}/cpuidle/state{state}"
            files |= {f"{place}/name": name, f"{place}/latency": str(latency), f"{place}/disable": str(off)}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    for disk, device in (("nvme0n1", f"{PCI}/nvme/nvme0"), ("sda", "sys/devices/ata1")):
        (root / "sys/block" / disk).mkdir(parents=True)
        (root / "sys/block" / disk / "device").symlink_to(root / device)
    (root / f"{PCI}/nvme/nvme0/numa_node").unlink()
    return root


def contents(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text().strip() for path in root.rglob("*") if path.is_file()}


def test_what_is_set_is_put_back(root: Path, tmp_path: Path) -> None:
    state = tmp_path / "run/tuned.json"
    before = contents(root)
    disks = tuning.hardware_disks(root)
    assert disks == ["nvme0n1", "sda"]
    assert (hardware.numa_nodes("nvme0n1", root), hardware.numa_nodes("sda", root)) == ([1], [])
    assert tuning.tune(disks, root, state) == []
    after = contents(root)
    changed = {name: value for name, value in after.items() if before[name] != value}
    assert changed == {
        f"{CPU}/cpu0/cpufreq/scaling_governor": "performance",
        f"{CPU}/cpu1/cpufreq/scaling_governor": "performance",
        f"{CPU}/intel_pstate/no_turbo": "1",
        f"{CPU}/cpu0/cpuidle/state2/disable": "1",
        f"{CPU}/cpu1/cpuidle/state2/disable": "1",
        "proc/irq/40/smp_affinity_list": "1",
    }
    assert not any(one.differs for one in tuning.settings(disks, root))
    assert tuning.tune(disks, root, state) == []  # once more: what was before is still known
    assert tuning.restore(root, state) == 6
    assert contents(root) == before and not state.exists()
    assert tuning.restore(root, state) == 0


def test_it_is_put_back_after_a_crash(root: Path, tmp_path: Path) -> None:
    """Killed at the third change: everything had been noted."""
    state = tmp_path / "tuned.json"
    before = contents(root)
    program = f"""
import os, signal
from pathlib import Path
from userblk.harness.machine import paths, teardown, tuning
from userblk.harness.machine.safety import Refused
count = [0]
real = tuning._set
def killed(*words):
    count[0] += 1
    if count[0] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*words)
tuning._set = killed
tuning.tune(["nvme0n1"], Path({str(root)!r}), Path({str(state)!r}))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=LIMIT, check=False).returncode == -9
    assert contents(root) != before and len(tuning.noted(state)) == 6
    tuning.restore(root, state)
    assert contents(root) == before


def test_what_the_kernel_refuses_is_told(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupts of NVMe queues often stay where they are."""
    state = tmp_path / "tuned.json"
    real = Path.write_text

    def write(path: Path, text: str, *rest: str, **named: str) -> int:
        if path.name == "smp_affinity_list":
            raise OSError(5, "Input/output error")
        return real(path, text, *rest, **named)

    monkeypatch.setattr(Path, "write_text", write)
    assert tuning.tune(["nvme0n1"], root, state) == [
        "interrupts of nvme0n1 40: /proc/irq/40/smp_affinity_list=1: Input/output error"
    ]
    assert tuning.restore(root, state) == 6

    def stubborn(path: Path, text: str, *rest: str, **named: str) -> int:
        return 0 if path.name == "scaling_governor" else real(path, text, *rest, **named)

    monkeypatch.setattr(Path, "write_text", stubborn)
    (root / f"{CPU}/cpu0/cpufreq/scaling_governor").open("w").write("performance")
    state.write_text(json.dumps([[f"{CPU}/cpu0/cpufreq/scaling_governor", "schedutil"]]))
    with pytest.raises(TuningError, match="scaling_governor=schedutil: it stays performance"):
        tuning.restore(root, state)
    assert state.exists()


def test_what_was_set_before_a_restart_is_not_put_back(root: Path, tmp_path: Path) -> None:
    """The machine has done that; what it has since must not be lost."""
    disks, state = ["nvme0n1"], tmp_path / "tuned.json"
    tuning.tune(disks, root, state)
    note = json.loads(state.read_text())
    state.write_text(json.dumps(note | {"boot": "another"}))
    governor = root / CPU / "cpu0/cpufreq/scaling_governor"
    governor.write_text("powersave")
    assert tuning.noted(state) == [] and not tuning.facts(disks, root, state)["by_userblk"]
    assert tuning.tune(disks, root, state) == [] and governor.read_text() == "performance"
    tuning.restore(root, state)
    assert governor.read_text() == "powersave"


def test_a_note_that_is_none_is_named_with_its_remedy(root: Path, tmp_path: Path) -> None:
    state = tmp_path / "tuned.json"
    for text in ("", "5", '{"boot": "b"}'):
        state.write_text(text)
        with pytest.raises(TuningError, match=f"^{state}: cannot be read: .*, and remove it$"):
            tuning.noted(state)
        assert tuning.facts([], root, state)["by_userblk"]


def test_warnings_tell_what_was_not_done(root: Path, tmp_path: Path) -> None:
    state = tmp_path / "tuned.json"
    disks = ["nvme0n1", "sda"]
    found = tuning.facts(disks, root, state)
    assert found["differs"] == {GOVERNOR: 2, TURBO: 1, IDLE: 2, INTERRUPTS: 1} and found["by_userblk"] is False
    places = found["disks"]
    assert isinstance(places, dict) and places["nvme0n1"] == {"numa_node": 1, "interrupts": {"40": "0-1"}}
    assert [line.split(":")[1] for line in tuning.warnings(found)] == [f" {IDLE}", f" {INTERRUPTS}"]
    lines = shown(tuning.settings(disks, root), [])
    assert lines[0] == "governor     schedutil (cpu0, cpu1): should be performance: clock rates follow the load"
    assert "idle states  1 (cpu0 C8, cpu1 C8): as it should be" in lines
    tuning.tune(disks, root, state)
    found = tuning.facts(disks, root, state)
    assert found["by_userblk"] is True and tuning.warnings(found) == []


def test_the_command(tmp_path: Path) -> None:
    """Shows this machine's, whatever it has; nothing is changed."""
    done = userblk("tune", "--json", cwd=tmp_path)
    assert done.returncode == 0 and {"settings", "set", "differs"} <= set(json.loads(done.stdout))
    assert userblk("tune", cwd=tmp_path).returncode == 0
    done = userblk("tune", "--device", "/dev/no-such-disk", cwd=tmp_path)
    assert done.returncode == 2 and "name a block device" in done.stderr and done.stderr.count("\n") == 1


# ---- pinned runs --------------------------------------------------------------------------


def test_lists_of_cpus() -> None:
    assert cpu_list("0-2,5") == {0, 1, 2, 5}
    for text in ("0-2,5", "7", "0,2,4-5", "1-255"):
        assert tuning.listed(cpu_list(text)) == text
    for wrong in ("", "a", "3-1", "1-"):
        with pytest.raises(ValueError):
            cpu_list(wrong)


@pytest.mark.parametrize("text", ["0", "0:", ":0", "0:x", "0:99999"])
def test_wrong_pins_are_refused(text: str, tmp_path: Path) -> None:
    done = userblk("plan", "--where", "lab", "--clock", "real", "--pin", text, cwd=tmp_path)
    assert done.returncode == 2 and f"pin={text}: " in done.stderr and done.stderr.count("\n") == 1


def test_only_cpus_that_can_be_used_are_pinned(tmp_path: Path) -> None:
    """As in a container, or where every other CPU is off line: how many there are tells nothing of their numbers."""
    own = os.sched_getaffinity(0)
    last = max(own)
    other = last - 1 if last else 1
    words = ("run", "--dry-run", "--where", "host", "--systems", "native", "--workloads", "rand-read-1th-4k", "--sata")
    with loop(tmp_path, 64 << 30) as device:
        os.sched_setaffinity(0, {last})
        try:
            refused = userblk(*words, device, "--pin", f"{other}:{last}", cwd=tmp_path)
            planned = userblk(*words, device, "--pin", f"{last}:{last}", cwd=tmp_path)
        finally:
            os.sched_setaffinity(0, own)
    assert refused.returncode == 2 and refused.stderr.endswith(f"name some of the CPUs that can be used: {last}\n")
    assert planned.returncode == 0, planned.stderr


def test_workloads_and_servers_are_started_on_their_cpus(tmp_path: Path) -> None:
    needed = shutil.which("fio") and (paths.HOST_BUILD / "fuse-disk/userblk-fuse-disk").exists()
    if (os.cpu_count() or 1) < 2 or not needed:
        pytest.skip("needs two CPUs, fio and userblk-fuse-disk")
    (tmp_path / "image").mkdir()
    (tmp_path / "c").mkdir()
    with loop(tmp_path / "image", SIZE) as device:
        plan = make_plan(
            suite=load_suite("buse-null"), profile=load_profile("quick"), systems=[load_system("fuse-null")],
            devices=[Device("sata", device, str(SIZE))], campaign="t", build="build/host", host="here",
            pin=("0", "1"), workloads=["read-1j-1d-4k"], repetitions=1,
        )  # fmt: skip
        profile = dataclasses.replace(plan.profile, area={"sata": SIZE})
        write_plan(dataclasses.replace(plan, profile=profile), tmp_path / "c")
        assert read_plan(tmp_path / "c/plan.json").pin_client == "1"
        found: dict[str, str] = {}
        runner = start(tmp_path / "c")
        while runner.poll() is None:
            for file in Path("/proc").glob("[0-9]*/status"):
                with contextlib.suppress(OSError):
                    status = dict(line.split(":\t", 1) for line in file.read_text().splitlines() if ":\t" in line)
                    if status["PPid"] == str(runner.pid):
                        found[status["Name"]] = status["Cpus_allowed_list"]
        assert finish(runner)[0] == 0
    assert (found["fio"], found["userblk-fuse-di"]) == ("1", "0")
    environment = json.loads((tmp_path / "c/environment.json").read_text())
    assert environment["tuning"]["pin"] == {"server": "0", "client": "1"}
    assert not [line for line in environment["warnings"] if line.startswith("not pinned")]
    before = os.sched_getaffinity(0)
    with tuning.on_cpus("0"):
        assert os.sched_getaffinity(0) == {0}
    assert os.sched_getaffinity(0) == before
    with pytest.raises(OSError, match="CPUs 1000 cannot be used"), tuning.on_cpus("1000"):
        pass


def test_cpus_that_are_not_all_there_are_no_pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on another host, or after some went off line: the kernel takes what is left of them."""
    before = os.sched_getaffinity(0)
    with pytest.raises(OSError, match="CPUs 0,1000 cannot be used: only 0 of them"), tuning.on_cpus("0,1000"):
        pass
    assert os.sched_getaffinity(0) == before
    plan = make_plan(
        suite=load_suite("buse-null"), profile=load_profile("quick"), systems=[load_system("fuse-null")],
        devices=[Device("sata", str(tmp_path / "none"), "1")], campaign="t", build="b", pin=("0", "0,1000"),
    )  # fmt: skip
    monkeypatch.setattr(teardown, "RUN", tmp_path / "run")
    with pytest.raises(Refused, match="^pin=0:0,1000: CPUs 0,1000 cannot be used: only 0 of them; start a new"):
        Runner(plan, tmp_path).run()


def test_pins_are_checked_once_a_killed_campaign_is_torn_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have left the CPUs off line, for a workload with few."""
    plan = make_plan(
        suite=load_suite("buse-null"), profile=load_profile("quick"), systems=[load_system("fuse-null")],
        devices=[Device("sata", str(tmp_path / "none"), "1")], campaign="t", build="b", pin=("0", "1"),
    )  # fmt: skip
    recovered: list[str] = []

    @contextlib.contextmanager
    def on_cpus(cpus: str) -> Iterator[None]:
        if not recovered:
            raise OSError(errno.EINVAL, f"CPUs {cpus} cannot be used")
        yield

    monkeypatch.setattr(teardown, "RUN", tmp_path / "run")
    monkeypatch.setattr(runner_module, "on_cpus", on_cpus)

    def recover() -> list[str]:
        recovered.append("tore down 1 things that runner 1 had left")
        return recovered

    monkeypatch.setattr(runner_module, "recover", recover)
    with pytest.raises(Refused, match="none"):  # which is about the device
        Runner(plan, tmp_path).run()


def test_a_plan_counts_cpus_that_the_campaign_puts_on_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = tmp_path / "cpu"
    for number, online in ((1, "1"), (2, "0"), (3, "0")):
        (cpus / f"cpu{number}").mkdir(parents=True)
        (cpus / f"cpu{number}/online").write_text(online)
    (cpus / "cpu0").mkdir()
    monkeypatch.setattr(teardown, "RUN", tmp_path / "run")
    monkeypatch.setattr(prepare, "CPUS", cpus)
    assert prepare.cpus_on_line() == {0, 1} and prepare.cpus_to_come() == set()
    stack = teardown.Teardown()
    stack.push("restore_setting", path=str(cpus / "cpu3/online"), value="1")
    stack.push("restore_setting", path=str(cpus / "cpu1/online"), value="1")
    stack.push("restore_setting", path=str(tmp_path / "cpu2/online"), value="1")
    assert prepare.cpus_to_come() == {3}
    stack.journal.write_text("[")
    assert prepare.cpus_to_come() == set()


def test_a_plan_takes_the_pins_that_come_on_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(cli_plan, "OWN_CPUS", frozenset({0, 1}))
    words = ["plan", "--where", "host", "--systems", "native", "--workloads", "rand-read-1th-4k", "--pin", "0:1"]
    with loop(tmp_path, 64 << 30) as device:
        monkeypatch.setattr(sys, "argv", ["userblk", *words, "--sata", device])
        for to_come, code in (set[int](), 2), ({1}, 0):
            monkeypatch.setattr(prepare, "cpus_to_come", lambda come=to_come: come)
            assert cli.main() == code, capsys.readouterr().err


def test_a_pin_that_a_workload_takes_off_line_is_refused(tmp_path: Path) -> None:
    """Each block of it would fail."""
    words = ("plan", "--where", "lab", "--clock", "real", "--suite", "buse-null", "--systems", "fuse-null", "--pin")
    refused = userblk(*words, "0:1", cwd=tmp_path)
    remedy = "name other --workloads, or leave --pin out"
    told = f"userblk: pin=0:1: workload read-1cpu has CPUs 0 alone on line; {remedy}"
    assert refused.returncode == 2 and refused.stderr.splitlines()[-1] == told
    for pin, workloads in (("0:1", "read-1j-1d-4k"), ("0:0", "")):
        more = ["--workloads", workloads] if workloads else []
        planned = userblk(*words, pin, *more, cwd=tmp_path)
        assert planned.returncode == 0, planned.stderr


def test_what_cannot_be_noted_is_an_error_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another user than root, who may write neither the settings nor the note."""
    state = tmp_path / "tuned.json"
    state.write_text("[]")

    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(TuningError, match="tuned.json: Permission denied; run as root"):
        tuning.restore(tmp_path, state)


def test_who_had_few_cpus_once_is_not_kept_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """While CPUs are off line for a workload, the kernel tells of the others only."""
    own = os.sched_getaffinity(0)
    asked: list[frozenset[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: asked.append(cpus))
    with tuning.on_cpus(""):
        pass
    with tuning.on_cpus("0"):
        pass
    first, then = asked
    assert first == {0} and then >= own
