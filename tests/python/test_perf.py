# SPDX-License-Identifier: BSD-3-Clause
"""--profile perf: a repetition that perf looks at and no table has, and its flame graphs in the report."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import userblk
from loops import loop
from made_up import small_plan
from runner_process import SIZE, finish, plan_for, start
from synthetic import make_campaign
from userblk.analysis.flame import FLAMES, write_flames
from userblk.analysis.page import write_report
from userblk.analysis.summaries import load_campaign, read_campaign
from userblk.harness import cli
from userblk.harness.machine import packages
from userblk.harness.machine.paths import CONFIGS
from userblk.harness.machine.subprocesses import Recorder
from userblk.harness.machine.teardown import noted, start_time
from userblk.harness.model.plan import COUNTING, EXTRA, SAMPLING, extend
from userblk.harness.observing import perf
from userblk.harness.observing.instructions import Place, Sides
from userblk.harness.observing.perf_script import Frame, Record, records
from userblk.harness.running.recording import recording
from userblk.harness.running.stopping import judge_all
from waiting import wait_until

SIDES = Sides(application="fio", server=20, device="43,0", backing="7,0")
TEXT = """
fio    10/11    5.000000100:    1000000 cpu-clock:pppH:
ffffffff81000001 submit_bio ([kernel.kallsyms])
ffffffff81000002 do_syscall_64 ([kernel.kallsyms])
1234 __libc_pread (/usr/lib/libc.so.6)

nbdkit 20/21    5.000000200:    3000000 cpu-clock:pppH:
4321 passthrough_read (/usr/lib/passthrough.so)

swapper 0/0     5.000000300:    9000000 cpu-clock:pppH:
ffffffff81000003 intel_idle ([kernel.kallsyms])

"""


def test_stacks_are_folded_by_what_samples_stand_for(tmp_path: Path) -> None:
    stacks = perf.folded(list(records(TEXT.splitlines())), SIDES)
    read = Place.APPLICATION_KERNEL.value, "fio", "do_syscall_64", "submit_bio"
    served = Place.SERVER.value, "nbdkit", "passthrough_read"
    assert stacks == {read: 1_000_000, served: 3_000_000}  # an idle CPU costs nothing
    perf.write(tmp_path / "stacks.txt", stacks, 1000, "cpu-clock")
    found, unit = perf.read(tmp_path / "stacks.txt")
    assert found == {read: 1000, served: 3000} and unit == "ns of CPU time"


def test_a_name_with_a_separator_is_one_part(tmp_path: Path) -> None:
    record = Record("a;b", 1, 1, 0.0, "cycles", (Frame("f(x; y)", "a.so", False),), "", 7)
    perf.write(tmp_path / "stacks.txt", perf.folded([record], SIDES), 1, "cycles")
    assert list(perf.read(tmp_path / "stacks.txt")[0]) == [(Place.OTHERS.value, "a:b", "f(x: y)")]


def test_what_is_sampled_and_how_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf, "COUNTERS", tmp_path)
    assert perf.event() == "cpu-clock"
    (tmp_path / "cpu_core").mkdir()
    assert perf.event() == "cycles"
    monkeypatch.setattr(os, "cpu_count", lambda: 72)
    often = [int(perf.argv(tmp_path, seconds, "cycles")[6].removeprefix("--freq=")) for seconds in (1, 100, 900, 1e6)]
    assert often == [997, 13, 1, 1]  # so that an hour on a large machine does not fill the disk


def test_what_perf_records_here(tmp_path: Path) -> None:
    """The real one."""
    if not shutil.which("perf"):
        pytest.skip("perf is not installed")
    code = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass"
    recorder = Recorder(tmp_path)
    with recording(recorder, tmp_path / "perf.data", 1, 60, "") as sampled:
        begin = time.monotonic()
        busy = subprocess.Popen([sys.executable, "-c", code])
        assert busy.wait(60) == 0
        end = time.monotonic()
    sides = replace(SIDES, application="none", server=busy.pid)
    stacks = perf.folded(perf.script(tmp_path / "perf.data", (begin, end)), sides)
    own = sum(value for path, value in stacks.items() if path[0] in (Place.SERVER.value, Place.SERVER_KERNEL.value))
    assert own > 0
    if sampled == "cpu-clock":  # ns: a CPU did nothing else for a second, less what others took
        assert 1e7 < own < 2e9
    with pytest.raises(perf.PerfError, match="finds no sample of the measured time"):
        perf.script(tmp_path / "perf.data", (begin - 100, begin - 99))


@pytest.mark.parametrize("event", ["cycles", "cycles:P", "cpu_core/cycles/", "cpu_core/cycles/P", "cpu_atom/cycles/P"])
def test_a_cpu_of_two_kinds_has_events_of_its_own(event: str) -> None:
    (one,) = records(TEXT.split("\n\n")[0].replace("cpu-clock:pppH", event).splitlines())
    assert (one.event, one.period, len(one.stack)) == (event, 1_000_000, 3)


def test_what_perf_prints_of_others_is_no_flame_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "perf").write_text("#!/bin/sh\necho ' fio [of another form]'\n")
    (tmp_path / "perf").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(perf.PerfError, match="cannot read, such as 'fio .of another form.'"):
        perf.script(tmp_path / "data", (1.0, 2.0))


def test_perf_that_is_not_there_or_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "perf"
    program.write_text("#!/bin/sh\necho 'no permission' >&2\nexit 1\n")
    program.chmod(0o755)
    remedy, recorder = "apt-get install linux-perf", Recorder(tmp_path)
    for name in ("setpriv", "timeout"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(perf.PerfError, match="no permission"), recording(recorder, tmp_path / "data", 1, 9, ""):
        pass
    program.unlink()
    with pytest.raises(perf.PerfError, match=remedy), recording(recorder, tmp_path / "data", 1, 9, remedy):
        pass


RECORDS = """#!/bin/sh
for word; do case $word in --output=*) output=${word#--output=};; esac; done
echo $$ > "$output"
while :; do sleep 0.1; done
"""
KILLED = """
import os, signal, sys
from pathlib import Path
from userblk.harness.machine import teardown
from userblk.harness.machine.subprocesses import Recorder
from userblk.harness.running.recording import recording
place = Path(sys.argv[1])
teardown.RUN = place / "run"
with recording(Recorder(place, teardown.Teardown()), place / "data", 1, 600, ""):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_perf_does_not_outlive_who_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would record all CPUs until the disk is full. Nor longer than it was given, by words of its own."""
    (tmp_path / "perf").write_text(RECORDS)
    (tmp_path / "perf").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    pid = int((tmp_path / "data").read_text())
    wait_until("perf has ended", lambda: not start_time(pid), 60)
    (journal,) = (tmp_path / "run").glob("journal-*.json")
    ((step, arguments),) = noted(journal)[1]
    assert (step, arguments["name"]) == ("end_process", "perf")
    with recording(recorder := Recorder(tmp_path), tmp_path / "other", 1, 600, ""):
        (process,) = recorder.processes
    argv = process.record["argv"]
    assert isinstance(argv, list) and process.poll() == -signal.SIGINT
    assert argv[argv.index("timeout") :][:4] == ["timeout", "--signal=INT", "600", "perf"]


# As uutils' timeout(1): a signal ends it alone.
PASSES_NOTHING_ON = """#!/bin/sh
shift 2
trap - INT
"$@" &
wait
"""
WRITES_AT_ITS_END = f"""#!{sys.executable}
import os, signal, sys, time
output = next(word.partition("=")[2] for word in sys.argv if word.startswith("--output="))

def end(*_):
    time.sleep(0.5)
    with open(output, "a") as file:
        file.write("whole")
    sys.exit(0)

signal.signal(signal.SIGINT, end)
with open(output, "w") as file:
    file.write(f"{{os.getpid()}} ")
time.sleep(60)
"""


def test_perf_ends_where_timeout_passes_no_signal_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("timeout", PASSES_NOTHING_ON), ("perf", WRITES_AT_ITS_END)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with recording(Recorder(tmp_path), tmp_path / "data", 1, 600, ""):
        pass
    pid, whole = (tmp_path / "data").read_text().split()
    assert whole == "whole" and not start_time(int(pid))


def test_who_has_no_perf_is_told_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By this distribution's name."""
    monkeypatch.setattr(packages, "distribution", lambda: "fedora")
    monkeypatch.setattr(shutil, "which", lambda program, **_: None)
    words = ["--profile", "perf", "--where", "host", "--systems", "native", "--sata", "/dev/null"]
    monkeypatch.setattr(sys, "argv", ["userblk", "plan", *words])
    assert cli.main() == 2
    assert capsys.readouterr().err.endswith("perf is not installed; run: dnf install perf\n")


# ---- the plan ---------------------------------------------------------------------------------


def test_the_extra_repetition_is_not_judged(tmp_path: Path) -> None:
    plan = small_plan(count_costs=True, sample_stacks=True)
    assert [entry.repetition for entry in plan.entries] == [COUNTING] * 4 + [SAMPLING] * 4 + [1] * 4
    assert plan.rounds == 1 and extend(plan).entries[-1].repetition == 2
    assert {plan.directory(entry).name for entry in plan.entries} == {*EXTRA.values(), "1"}
    assert {verdict.runs for verdict in judge_all(plan, tmp_path).values()} == {1}


@pytest.mark.parametrize(
    ("asked", "profile", "says"),
    [
        ("perf", "quick", ""),
        ("paper,perf", "paper", ""),
        ("perf,quick", "quick", ""),
        ("quick,paper", "", "name one profile, and perf beside it"),
        ("nosuch,perf", "", "nosuch"),
    ],
)
def test_what_the_option_says(asked: str, profile: str, says: str) -> None:
    done = userblk("plan", "--where", "lab", "--profile", asked, "--json")
    if says:
        assert done.returncode == 2 and says in done.stderr and len(done.stderr.splitlines()) == 1
        return
    plan = json.loads(done.stdout)["plan"]
    assert plan["profile"]["name"] == profile
    assert sum(entry["repetition"] == SAMPLING for entry in plan["entries"]) == 16 * 2 * 3
    assert "and one that perf looks at" in userblk("plan", "--where", "lab", "--profile", asked).stdout


@pytest.mark.parametrize("words", [("--instructions",), ("--suite", "s3")])
def test_where_perf_does_not_look(words: tuple[str, ...]) -> None:
    done = userblk("plan", "--profile", "perf", *words)
    assert done.returncode == 2 and "leave" in done.stderr and len(done.stderr.splitlines()) == 1


# ---- a campaign -------------------------------------------------------------------------------


def test_a_run_that_perf_looks_at(tmp_path: Path) -> None:
    """Real fio and perf on a loop device."""
    if not shutil.which("perf") or not shutil.which("fio"):
        pytest.skip("perf or fio is not installed")
    (tmp_path / "image").mkdir()
    with loop(tmp_path / "image", SIZE) as device:
        plan = plan_for(device, tmp_path / "c", workloads=["rand-write-16th-4k"], sample_stacks=True)
        code, events, err = finish(start(tmp_path / "c"))
    assert (code, err) == (0, ""), events
    looked, plain = (tmp_path / "c" / plan.directory(entry) for entry in plan.entries)
    summary = json.loads((looked / "summary.json").read_text())
    assert summary["valid"] and summary["repetition"] == SAMPLING and summary["metrics"] == {}
    assert json.loads((plain / "summary.json").read_text())["metrics"]["throughput_kops"] > 0
    assert not (looked / perf.DATA).exists() and not (plain / perf.FILE).exists()
    found, _ = perf.read(looked / perf.FILE)
    assert {Place.APPLICATION.value, Place.APPLICATION_KERNEL.value} <= {path[0] for path in found}
    assert any("vfs_write" in path for path in found)
    assert [run.repetition for run in load_campaign(tmp_path / "c")] == [1]
    (cell,) = write_flames(tmp_path / "c", tmp_path / "figures", "")
    ((label, name),) = cell.graphs
    assert label == "Native" and "rand-write-16th-4k" in cell.title
    titles = [one.text or "" for one in ET.parse(tmp_path / "figures" / name).iter("{http://www.w3.org/2000/svg}title")]
    assert any(one.startswith("vfs_write") for one in titles) and not any(Place.OTHERS.value in one for one in titles)


def test_the_report_has_the_graphs(tmp_path: Path) -> None:
    directory = make_campaign(tmp_path, systems=["native", "nbdkit"], workloads=["seq-read-1th-4k"], suite="bdus-block")
    before = len(load_campaign(directory))
    kernel, server, others = Place.APPLICATION_KERNEL.value, Place.SERVER.value, Place.OTHERS.value
    made: dict[str, perf.Stacks] = {
        "native": {(kernel, "fio", "submit_bio"): 100.0, (others, "cc1", "main"): 900.0},
        "nbdkit": {(kernel, "fio", "submit_bio"): 150.0, (server, "nbdkit", "read"): 50.0},
    }
    for system, stacks in made.items():
        place = directory / f"nowhere/sata/bdus-block/{system}/seq-read-1th-4k"
        shutil.copytree(place / "1", place / "perf")
        perf.write(place / "perf/stacks.txt", stacks, 10, "cycles")
    assert len(load_campaign(directory)) == before  # no table has them
    page, figures = write_report(read_campaign(directory), tmp_path / "report", CONFIGS)
    text = page.read_text()
    assert 'id="flames"' in text and "SATA seq-read-1th-4k, bdus-block, host nowhere" in text
    names = {path.name for path in (figures / FLAMES / "nowhere-sata-bdus-block-seq-read-1th-4k").iterdir()}
    assert names == {"native.svg", "nbdkit.svg", "nbdkit-against-native.svg"}
    for name in names:
        assert f"{FLAMES}/nowhere-sata-bdus-block-seq-read-1th-4k/{name}" in text
    drawn = next(figures.glob(f"{FLAMES}/*/nbdkit.svg")).read_text()
    assert "cycles an operation" in drawn and "<title>submit_bio: 15</title>" in drawn
    assert "cc1" not in next(figures.glob(f"{FLAMES}/*/native.svg")).read_text()
    # An invalid one shows nothing, nor does one that cannot be read.
    place = directory / "nowhere/sata/bdus-block"
    summary = place / "native/seq-read-1th-4k/perf/summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"valid": False}))
    (place / "nbdkit/seq-read-1th-4k/perf/stacks.txt").write_text("rubbish\n")
    assert write_flames(directory, tmp_path / "again", "") == []
