# SPDX-License-Identifier: BSD-3-Clause
"""Suite attach, as far as it goes without disks: its workloads, what its program leaves, its table and figure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from threading import Timer

import pytest
from interrupted import interrupts
from userblk.analysis import attach as analysis
from userblk.analysis import drawing
from userblk.analysis.statistics import Interval, quantile_interval
from userblk.analysis.summaries import SummaryError
from userblk.harness.engines import WorkloadError, attach
from userblk.harness.machine.teardown import TeardownError
from userblk.harness.model.config import load_suite, load_system
from userblk.harness.systems import attach as systems
from userblk.harness.systems import lio
from userblk.harness.systems.attach import BLOCK, Framework, Nbd, Tcmu, Vduse, cycle, main
from userblk.harness.systems.base import BringUpError
from waiting import wait_until


def test_vduse_is_added_when_its_server_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node comes before its queues, until when the kernel refuses it."""
    ready = f'for last; do :; done; sleep 0.2; touch "$last" {tmp_path}/is-ready'
    scripts = {
        "qemu-storage-daemon": f"touch {tmp_path}/attach0\n{ready}\nexec sleep 1000",
        "vdpa": f"test -e {tmp_path}/is-ready",
    }
    for name, text in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(systems, "CONTROL", tmp_path / "control")
    monkeypatch.setattr(systems, "vduse_disk", lambda name: f"/dev/{name}")
    (tmp_path / "own").mkdir()
    framework = Vduse("", tmp_path / "own")
    try:
        assert framework.start(0) == "/dev/attach0"
    finally:
        framework.end_server(0)


def test_loop_devices_go_with_their_disks(tmp_path: Path) -> None:
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        pytest.skip("needs root and loop devices")
    before = set(os.listdir("/sys/block"))
    disks = sum(name.startswith("loop") for name in before) + 2  # more than the kernel has
    words = ["--kind=loop", "--build=none", f"--disks={disks}", f"--samples={disks}", f"--output={tmp_path / 'out'}"]
    assert main(words) == 0
    assert len(json.loads((tmp_path / "out").read_text())["gone"]) == disks
    assert set(os.listdir("/sys/block")) <= before


def test_quantiles_between_order_statistics() -> None:
    sample = [[float(value)] for value in range(100, 0, -1)]
    median = quantile_interval(sample, 0.5)
    assert (median.value, median.low, median.high) == (50.0, 40.0, 61.0)  # as tables of the binomial have it
    rare = quantile_interval(sample, 0.99)
    assert (rare.value, rare.low, rare.high) == (99.0, 97.0, None)
    one = quantile_interval([[3.0]], 0.5)
    assert (one.value, one.low, one.high) == (3.0, None, None)
    alike = quantile_interval([[float(value)] * 64 for value in range(10, 0, -1)], 0.5)
    assert alike == quantile_interval([[float(value)] for value in range(10, 0, -1)], 0.5)
    (cycle,) = cycles = [[float(value) for value in range(64)]]
    assert quantile_interval(cycles, 0.5) == Interval(31.0)
    # As many of each cycle are below: three are worth more than three values, yet not as much as 192.
    even = quantile_interval([cycle] * 3, 0.5)
    assert (even.low, even.high) == (20.0, 43.0)


def test_each_system_has_each_number_of_disks() -> None:
    suite = load_suite("attach", "paper")
    assert [(one.id, one.threads, one.depth) for one in suite.workloads] == [
        ("1-disks", 1, 100), ("8-disks", 8, 100), ("64-disks", 64, 100),
    ]  # fmt: skip
    assert all(load_system(name).runs(one) for name in suite.systems for one in suite.workloads)
    assert not load_system("ublk-uring").runs(suite.workloads[0])
    assert not load_system("native").runs(suite.workloads[0])


def test_what_the_program_leaves_is_read(tmp_path: Path) -> None:
    (workload, *_) = load_suite("attach").workloads
    with pytest.raises(WorkloadError, match="cannot be read"):
        attach.parse(tmp_path, workload)
    few = {name: [0.5] for name in attach.MEASURES}
    (tmp_path / attach.SAMPLES).write_text(json.dumps(few))
    with pytest.raises(WorkloadError, match="fewer than 16 samples"):
        attach.parse(tmp_path, workload)
    (tmp_path / attach.SAMPLES).write_text(json.dumps({name: values * 16 for name, values in few.items()}))
    result = attach.parse(tmp_path, workload)
    assert (result.latency_us, result.operations, result.duration_s) == (5e5, 16.0, 16.0)
    # Two cycles of 8 disks: each lasts as long as its slowest disk.
    two = {"there": [0.1] * 16, "read": [0.1] * 7 + [0.5] + [0.2] * 8, "gone": [0.1] * 15 + [0.3]}
    (tmp_path / attach.SAMPLES).write_text(json.dumps(two))
    result = attach.parse(tmp_path, load_suite("attach").workloads[1])
    assert result.duration_s == pytest.approx(0.5 + 0.2 + 0.1 + 0.3)
    assert result.throughput_kops == pytest.approx(16 / 1.1 / 1e3)


def write_run(campaign: Path, system: str, disks: int, valid: bool = True) -> Path:
    directory = campaign / "lab/nvme/attach" / system / f"{disks}-disks" / "1"
    directory.mkdir(parents=True)
    summary = {
        "schema": 1, "campaign": "c", "host": "lab", "device": "nvme", "suite": "attach", "engine": "attach",
        "system": system, "workload": f"{disks}-disks", "repetition": 1, "profile": "quick", "emulated": True,
        "kernel": "6.12", "valid": valid, "invalid": [] if valid else ["no"], "warnings": [], "metrics": {},
        "settings": {"attach": {"disks": disks}},
    }  # fmt: skip
    (directory / "summary.json").write_text(json.dumps(summary))
    count = -(-100 // disks) * disks  # whole cycles
    samples = {name: [number * 0.001 * disks for number in range(1, count + 1)] for name in attach.MEASURES}
    (directory / attach.SAMPLES).write_text(json.dumps(samples))
    (directory / "DONE").touch()
    return directory


def test_the_table_and_the_figure(tmp_path: Path) -> None:
    directory = write_run(tmp_path, "ublk-null", 8)
    for system in ("ublk-null", "loop"):
        write_run(tmp_path, system, 1)
    broken = write_run(tmp_path, "nbdkit-null", 1, valid=False)
    (one,) = analysis.reports(tmp_path)
    assert [row[:4] for row in one.rows] == [
        ("loop", "1", "100", "100"), ("ublk null", "1", "100", "100"), ("ublk null", "8", "13", "104"),
    ]  # fmt: skip
    assert one.rows[0][4:6] == ("50.0 [40.0, 61.0]", "99.0 [97.0, -]")
    # Each cycle was slower than the one before: it counts as a single sample.
    assert one.rows[2][4] == "416.0 [136.0, 704.0]"
    assert len(one.records) == 18 and {len(record) for record in one.records} == {len(one.heads)}
    paths = [tmp_path / "attach.png", tmp_path / "attach.svg"]
    drawing.write(one.figures["attach"], paths)
    assert paths[0].read_bytes()[1:4] == b"PNG" and "<svg" in paths[1].read_text()
    (directory / attach.SAMPLES).write_text(json.dumps({name: [0.1] * 15 for name in attach.MEASURES}))
    with pytest.raises(SummaryError, match="15 samples are no whole number of cycles of 8 disks"):
        analysis.reports(tmp_path)
    (broken / "summary.json").write_text("{}")
    with pytest.raises(SummaryError):
        analysis.reports(tmp_path)
    assert analysis.reports(tmp_path / "none") == []


class Half(Framework):
    """Two disks have a server each, and the first disk does not go."""

    def start(self, number: int) -> str:
        self.spawn(number, "sleep", "600")
        self.disks[number] = str(self.directory / str(number))
        Path(self.disks[number]).write_bytes(bytes(BLOCK))
        return self.disks[number]

    def stop(self, number: int) -> None:
        if number == 0 and self.disks.pop(number, ""):
            raise BringUpError("it does not go")
        self.end_server(number)


def test_a_disk_that_does_not_go_leaves_no_server(tmp_path: Path) -> None:
    framework = Half("none", tmp_path)
    servers = []
    spawn = framework.spawn
    framework.spawn = lambda *words, **more: servers.append(spawn(*words, **more)) or servers[-1]  # type: ignore
    with pytest.raises(BringUpError, match="it does not go"):
        cycle(framework, 2, {name: [] for name in attach.MEASURES})
    try:
        assert [server.poll() is not None for server in servers] == [True, True]
    finally:
        for server in servers:
            server.kill()
            server.wait()


NBDKIT = """#!/bin/sh
touch "$5" # -f -U SOCKET -P PIDFILE
exec sleep 600
"""
NBD_CLIENT = """#!/bin/sh
echo "$@" >>"$CALLS"
exit 1
"""


def test_a_disk_of_another_program_is_left_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is connected is not taken; nor is one disconnected that another program has taken first."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/null.so").touch()
    for name, text in (("nbdkit", NBDKIT), ("nbd-client", NBD_CLIENT)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    calls = tmp_path / "calls"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.setattr(systems, "free_devices", lambda: iter(["/dev/nbd3"]))
    samples: dict[str, list[float]] = {name: [] for name in attach.MEASURES}
    with pytest.raises(BringUpError, match="nbd-client: exit code 1"):
        cycle(Nbd(str(tmp_path), tmp_path), 1, samples)
    assert calls.read_text() == f"-unix {tmp_path / '0'} /dev/nbd3 -b 512\n"
    calls.unlink()
    (tmp_path / "0.pid").unlink()
    monkeypatch.setattr(systems, "free_devices", lambda: iter(()))
    with pytest.raises(BringUpError, match="no free /dev/nbdN"):
        cycle(Nbd(str(tmp_path), tmp_path), 1, samples)
    assert not calls.exists()


def disks_of_attach() -> list[str]:
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # just detached
            found += [path.parts[3]] * ("/attach-" in path.read_text())
    return found


def test_it_is_ended_once_only(tmp_path: Path) -> None:
    """A second signal must not end the removal of its disks."""
    words = ["--kind=loop", "--build=none", "--disks=1", "--samples=1000000", f"--output={tmp_path / 'out'}"]
    if os.geteuid() != 0 or not Path("/dev/loop-control").exists():
        pytest.skip("needs root and loop devices")
    argv = [sys.executable, "-m", "userblk.harness.systems.attach", *words]
    for _ in range(5):
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as program:
            wait_until("it has a disk", lambda: bool(disks_of_attach()))
            for _ in range(200):
                program.terminate()
                time.sleep(0.0005)
            program.wait(60)
            assert program.stderr is not None and "Traceback" not in program.stderr.read()
        assert not disks_of_attach() and not list(Path("/dev/shm").glob("attach-*"))


class NeverThere(Framework):
    """Its disks do not come, as on a host that hangs."""

    def start(self, number: int) -> str:
        if number:
            return self.disk_named(number, "sleep", "1000")
        systems.appears("it does not appear", lambda: False, self.spawn(number, "sleep", "1000"))
        return ""

    def stop(self, number: int) -> None:
        self.end_server(number)


# Its disk is the file, which it removes on SIGTERM; one that comes while it starts waits.
STARTS = 'trap ended=yes TERM; touch "$0"; sleep 1; while [ -z "$ended" ]; do sleep 0.1; done; rm "$0"'


class Starts(Framework):
    """Servers that have made their disks, and have not named them yet."""

    def start(self, number: int) -> str:
        return self.disk_named(number, "sh", "-c", STARTS, self.directory / f"disk{number}")


def attach_interrupted(
    monkeypatch: pytest.MonkeyPatch, kind: type[Framework], output: Path, number: int, seconds: float
) -> tuple[int, Framework]:
    """The exit code of an attach of three such disks that gets a signal meanwhile, and what it had."""
    made: list[Framework] = []

    def make(build: str, directory: Path) -> Framework:
        made.append(kind(build, directory))
        return made[0]

    monkeypatch.setitem(vars(systems)["FRAMEWORKS"], "loop", make)
    monkeypatch.setattr(systems.Ended, "number", 0)
    timer = Timer(seconds, os.kill, (os.getpid(), number))
    with interrupts():  # puts the handlers back
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup(1) may have started the tests
        timer.start()
        try:
            return main(["--kind=loop", "--build=none", "--disks=3", f"--output={output}"]), made[0]
        finally:
            timer.cancel()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_end_does_not_wait_for_disks_that_do_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    """Or the campaign would kill the program, and nobody would remove the other disks and their servers."""
    began = time.monotonic()
    code, framework = attach_interrupted(monkeypatch, NeverThere, tmp_path / "out", number, 2.0)
    assert code == 128 + number and time.monotonic() < began + 15
    assert "interrupted" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert not framework.servers


def test_a_server_that_still_starts_removes_its_disk_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody else can, as it has not named it."""
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda **_: nullcontext(str(tmp_path)))
    code, framework = attach_interrupted(monkeypatch, Starts, tmp_path / "out", signal.SIGTERM, 0.5)
    assert code == 128 + signal.SIGTERM and not framework.servers
    assert "names no disk: interrupted" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


class Refused(Half):
    """The kernel refuses to remove the first disk, and the last one does not come."""

    def start(self, number: int) -> str:
        if number == 2:
            raise BringUpError("it does not come")
        return super().start(number)

    def stop(self, number: int) -> None:
        self.disks.pop(number)
        if number == 0:
            raise TeardownError("vDPA device attach0 was not removed")
        self.end_server(number)


def test_a_disk_that_the_kernel_keeps_leaves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, framework = attach_interrupted(monkeypatch, Refused, tmp_path / "out", signal.SIGTERM, 60.0)
    try:
        assert code == 1 and not framework.servers
        assert "it does not come" in capsys.readouterr().err
    finally:
        for server in framework.servers.values():
            server.kill()
            server.wait()


class Deaf(Half):
    """Servers that do not end when they are asked to."""

    def start(self, number: int) -> str:
        self.spawn(number, "sh", "-c", 'trap "" TERM; exec sleep 600')
        wait_until("it is deaf", lambda: ignores_terminate(self.servers[number].pid))
        self.disks[number] = str(self.directory / str(number))
        Path(self.disks[number]).write_bytes(bytes(BLOCK))
        return self.disks[number]

    def stop(self, number: int) -> None:
        self.disks.pop(number)
        self.end_server(number)


def ignores_terminate(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    ignored = next(line.split()[1] for line in lines if line.startswith("SigIgn:"))
    return bool(int(ignored, 16) & 1 << signal.SIGTERM - 1)


def test_a_server_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "PATIENCE_S", 1.0)
    framework = Deaf("none", tmp_path)
    servers: list[subprocess.Popen[bytes]] = []
    spawn = framework.spawn
    framework.spawn = lambda *words, **more: servers.append(spawn(*words, **more)) or servers[-1]  # type: ignore
    with pytest.raises(BringUpError, match="does not end within 1 s"):
        cycle(framework, 2, {name: [] for name in attach.MEASURES})
    try:
        assert [server.poll() for server in servers] == [-signal.SIGKILL] * 2
    finally:
        for server in servers:
            server.kill()
            server.wait()


class Leaves:
    """A disk's or a daemon's context."""

    def __init__(self, left: list[str], name: str) -> None:
        self.left, self.name = left, name

    def __exit__(self, *reason: object) -> None:
        self.left.append(self.name)


def test_the_daemon_of_tcmu_ends_with_its_last_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start is a part of what is measured, too."""
    monkeypatch.setattr(lio, "load_modules", lambda: None)
    monkeypatch.setattr(lio, "POLL", lio.POLL)
    framework, left = Tcmu("none", tmp_path), list[str]()
    framework.luns = {number: Leaves(left, f"disk {number}") for number in range(2)}  # type: ignore[misc]
    framework.runner = Leaves(left, "daemon")  # type: ignore[assignment]
    for number in (1, 0):
        framework.stop(number)
    assert left == ["disk 1", "disk 0", "daemon"]
    framework.end()
    assert len(left) == 3


class HalfBegun(Half):
    """What all disks share is there, and then something fails."""

    shared = False

    def begin(self) -> None:
        self.shared = True
        raise OSError("no space left")

    def end(self) -> None:
        self.shared = False


def test_what_disks_share_goes_when_it_comes_in_part(tmp_path: Path) -> None:
    framework = HalfBegun("none", tmp_path)
    with pytest.raises(OSError, match="no space left"):
        cycle(framework, 1, {name: [] for name in attach.MEASURES})
    assert not framework.shared


def test_commands_do_not_get_the_signals_of_a_terminal() -> None:
    """^C goes to all of its foreground's processes: one that removes a disk must not end by it."""
    assert systems.command(sys.executable, "-c", "import os; print(os.getpgrp() == os.getpid())") == "True\n"
