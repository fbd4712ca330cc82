# SPDX-License-Identifier: BSD-3-Clause
"""The command userblk as a user calls it; what needs devices or the lab is tested in tests/lab."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from command_line import USERBLK, userblk, whole
from loops import small_tmpfs
from made_up import small_campaign, small_plan, summary
from userblk.harness.cli import main
from userblk.harness.cli import run as cli_run
from userblk.harness.cli.progress import Display, Lines, Pace, duration
from userblk.harness.engines.flow import values_of
from userblk.harness.machine.safety import Refused
from userblk.harness.model.config import load_parameters, load_profile, load_suite, load_system
from userblk.harness.model.plan import Plan, read_plan
from userblk.harness.model.tables import ConfigError
from userblk.harness.observing import host_load
from userblk.harness.running.campaign import (
    RunnerProcess,
    block_choices,
    choices,
    choose_place,
    create,
    host_devices,
    lab_devices,
    runner_argv,
    store_devices,
)
from userblk.lab import models
from waiting import wait_until

LAB = ["--where", "lab"]


# ---- bad input -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", *LAB, "--dry-run", "--suite", "nosuch"], "nosuch"),
        (["run", *LAB, "--dry-run", "--profile", "nosuch"], "nosuch"),
        (["run", *LAB, "--dry-run", "--systems", "native,nosuch"], "nosuch"),
        (["run", *LAB, "--dry-run", "--workloads", "nosuch"], "nosuch"),
        (["run", *LAB, "--dry-run", "--reps", "0"], "--reps: 0: must be a whole number from 1 to 1000"),
        (["run", *LAB, "--dry-run", "--reps", "-1"], "-1"),
        (["run", *LAB, "--dry-run", "--reps", "99999999999999999999"], "from 1 to 1000; see userblk run --help"),
        (["run", *LAB, "--dry-run", "--systems", ","], "systems=,: names none"),
        (["run", *LAB, "--dry-run", "--workloads", ""], "workloads=: names none"),
        (["plan", "--confirm", "S3Z8NB0K12"], "confirm=S3Z8NB0K12: no device is named; add --sata DEV or --nvme DEV"),
        (["lab"], "userblk lab: the following arguments are required: action; see"),
        pytest.param(["table", "x" * 300], "xxx: File name too long; name a campaign's directory, or a", id="long"),
        (["plan", "--sata", "/dev/nosuch"], "sata=/dev/nosuch: No such file or directory; name a block device"),
        (
            ["plan", "--suite", "s3", "--store", "nosuch"],
            "store=nosuch: No such file or directory; name a readable file",
        ),
        (["run", *LAB, "--dry-run", "--systems", "native,fuse"], "system=fuse: none of the workloads"),
        (["run", *LAB, "--dry-run", "--suite", "bdus-fs", "--systems", "tcmu-null"], "system=tcmu-null: none"),
        (["run", *LAB, "--dry-run", "--suite", "failover", "--systems", "native"], "system=native: none"),
        (["run", *LAB, "--dry-run", "--suite", "failover", "--systems", "buse"], "system=buse: none"),
        (["run", *LAB, "--sata", "/dev/null", "--dry-run"], "where=lab"),
        (["plan", "--sata", "/dev/null"], "sata=/dev/null: not a block device; name one"),
        (["plan", "--where", "host"], "--sata"),
        (["plan", "--instructions", "--where", "host"], "instructions: the lab's emulated CPU counts them"),
        (["plan", "--instructions", "--reps", "2"], "nothing else is measured; leave --reps out"),
        (["plan", "--instructions", "--costs"], "nothing else is measured; leave --costs out"),
        (["plan", "--instructions", "--nvme", "/dev/null"], "instructions: the lab's emulated CPU counts them"),
        (["plan", "--instructions", "--suite", "bdus"], "suite=bdus: instructions are counted of block workloads"),
        (["plan", "--instructions", "--suite", "s3"], "suite=s3: its costs are not counted; leave --instructions out"),
        (["plan", "--instructions", "--hosts", "example"], "instructions are counted in the lab; leave --hosts out"),
        (["resume", "nosuch"], "nosuch"),
        (["table", "nosuch"], "nosuch"),
        (["table", "paper", "--format", "nosuch"], "nosuch"),
        (["table", "paper", "--tails"], "tails: paper has no latency percentiles; name a campaign"),
        (["import", "nosuch"], "nosuch: no such file; name what userblk export wrote"),
        (["import", "/dev"], "/dev: not a file; name what userblk export wrote"),
        (["import", "/etc/hostname"], "/etc/hostname: is packed neither with zstd nor with gzip; name what"),
        (["table", "paper", "--output", "/nosuch/file"], "/nosuch/file"),
        (["nosuch"], "nosuch"),
        ([], "COMMAND"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], says: str, tmp_path: Path) -> None:
    result = userblk(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 and says in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_version_and_help() -> None:
    assert whole("--version").stdout.startswith("userblk 0.")
    text = userblk("--help").stdout
    for command in ("plan", "run", "resume", "table", "lab"):
        assert command in text
        assert userblk(command, "--help").returncode == 0


NOBODY = """
import os, pwd, sys
os.geteuid, pwd.getpwuid = lambda: 54321, lambda uid: {}[uid]
del os.environ["HOME"]
from userblk.harness.cli import main
main()
"""


def test_a_user_without_a_home_is_no_problem() -> None:
    """As in a container that is started as any user: nothing worked, not even --version."""
    done = subprocess.run([sys.executable, "-c", NOBODY, "--version"], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("userblk 0.") and (done.returncode, done.stderr) == (0, "")


# ---- plan and dry run -----------------------------------------------------------------


def test_dry_run_prints_the_plan_and_leaves_nothing(tmp_path: Path) -> None:
    result = userblk("run", *LAB, "--dry-run", "--seed", "7", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for fact in (
        "SIMULATED",
        "as asked",
        "16 workloads",
        "native, nbdkit, tcmu",
        "288 (3 of each cell, up to 8 while a half width is over 3 %), seed 7",
        "sata: a disk of the lab, discarded at the end",
    ):
        assert fact in result.stdout
    assert "LOST" not in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_dry_run_of_both_tables(tmp_path: Path) -> None:
    result = userblk("run", *LAB, "--dry-run", "--suite", "bdus", "--reps", "1", "--seed", "1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    facts = ("41 workloads", "native, nbdkit, tcmu, fuse", "296 (1 of each cell)", "of memory", "sata fuse bdus-fs")
    for fact in facts:
        assert fact in result.stdout
    found = re.search(r"about (\d+):(\d+):\d+ \(h:mm:ss\) with (\d) guests? at a time", result.stdout)
    assert found
    hours, minutes, guests = map(int, found.groups())  # as many as this machine has memory for now
    assert (hours * 60 + minutes) * guests < 100
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("clock", "left", "need", "left_in"), [("virtual", 90, "1 CPU", 15), ("real", 75, "2 CPUs", 30)]
)
def test_what_the_lab_cannot_show_is_left_out_of_the_plan(
    tmp_path: Path, clock: str, left: int, need: str, left_in: int
) -> None:
    words = ("run", *LAB, "--dry-run", "--suite", "fxmark", "--reps", "1", "--systems", "native", "--clock", clock)
    result = userblk(*words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert f"Left out: {left} of 105 workloads, which need more than {need}." in result.stdout + result.stderr
    assert f"fxmark: {left_in} workloads" in result.stdout and f"{2 * left_in} (1 of each cell)" in result.stdout
    named = userblk(*words, "--workloads", "mwcl-40w", cwd=tmp_path)
    assert named.returncode == 2 and named.stderr.startswith("userblk: workload=mwcl-40w: 40 workers ")
    named = userblk(*words, "--workloads", "mwcl-2w", cwd=tmp_path)
    remedy = "leave it out, or use --clock real\n"
    assert named.stderr.endswith(remedy) if clock == "virtual" else named.returncode == 0


def test_plan_as_json_is_the_plan(tmp_path: Path) -> None:
    arguments = ["plan", *LAB, "--json", "--seed", "7", "--reps", "2", "--workloads", "rand-write-16th-4k"]
    value = json.loads(userblk(*arguments).stdout)
    assert value["place"] == "lab" and value["runs"] == len(value["plan"]["entries"]) == 2 * 2 * 3
    assert set(value["bytes_written"]) == {"sata", "nvme"} and min(value["bytes_written"].values()) > 0
    assert {entry["workload"] for entry in value["plan"]["entries"]} == {"rand-write-16th-4k"}
    assert json.loads(userblk(*arguments).stdout)["plan"]["entries"] == value["plan"]["entries"]  # the seed decides


# ---- where -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "named", "missing", "lab", "says"),
    [
        ("auto", True, [], False, "devices are named"),
        ("auto", False, [], True, "no device is named"),
        ("auto", False, ["nbd"], True, "no nbd"),
        ("auto", True, ["nbd"], True, "NOT measured"),
        ("host", True, [], False, "as asked"),
        ("lab", False, ["nbd"], True, "as asked"),
    ],
)
def test_place(where: str, named: bool, missing: list[str], lab: bool, says: str) -> None:
    place = choose_place(where, named, missing)
    assert place.lab is lab and says in place.reason and "\n" not in place.reason


@pytest.mark.parametrize(
    ("where", "named", "missing"), [("host", False, []), ("host", True, ["tcm_loop"]), ("lab", True, [])]
)
def test_impossible_place_is_refused(where: str, named: bool, missing: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"where={where}"):
        choose_place(where, named, missing)


def test_devices_must_be_block_devices(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(4096))
    for path in (str(file), "/dev/nosuch", "/dev/null"):
        with pytest.raises(Refused, match=path):
            host_devices({"sata": path}, "4096")


def test_models_of_a_resumed_campaign_are_those_of_its_runs(tmp_path: Path) -> None:
    """What is measured by another model would stand below the name of the old one."""
    directory = create(small_plan(model="cpu-1 sata-1 nvme-1"), tmp_path, [])
    result = userblk("resume", str(directory))
    assert result.returncode == 2
    assert "was simulated by cpu-1 sata-1 nvme-1; the lab has cpu-" in result.stderr


def test_runner_in_the_lab_gets_disks_that_hold_the_area(tmp_path: Path) -> None:
    argv = runner_argv(small_plan(), tmp_path / "made-up")
    assert argv[argv.index("--disk-size") + 1] == "4G"
    assert float(argv[argv.index("--timeout") + 1]) > 600  # a hang ends
    assert argv[argv.index("--share") + 1] == str(tmp_path / "made-up")
    assert argv[argv.index("--release") + 1] == "trixie"
    old = runner_argv(small_plan(build="build/bullseye"), tmp_path / "made-up")
    assert old[old.index("--release") + 1] == "bullseye"  # also when it is resumed by somebody who does not say so
    assert argv[-1] == "/results/plan.json" and "--sealed" not in argv
    assert "--memory" not in argv
    large = runner_argv(small_plan(profile=load_profile("paper")), tmp_path / "made-up")
    assert large[large.index("--disk-size") + 1] == "256G"
    files = runner_argv(small_plan(suite=load_suite("bdus-fs")), tmp_path / "made-up")
    assert files[files.index("--memory") + 1] == "4096"  # the limit of what workloads on file systems may use


def test_choices_are_those_of_the_workloads_and_kept() -> None:
    assert choices(small_plan()) == []
    lines = choices(small_plan(suite=load_suite("bdus-fs")))  # seq-read-1th-4k
    assert lines[0].startswith("size of seq-read-*, rand-* is 536870912, scaled from the paper profile's (as the area")
    assert not any("nfiles" in line for line in lines) and any(line.startswith("discard: ") for line in lines)
    assert lines[-1].startswith("dirty pages: at most 268435456 bytes, in the background from 134217728 on; FUSE has ")
    for suite, workload, has in (("rfuse-macro", "webserver", False), ("rfuse-fio", "rand-write-1th-4k", True)):
        of_paper = choices(small_plan(suite=load_suite(suite), systems=[load_system("native")], workloads=[workload]))
        assert any(line.startswith("syncing of random writes: ") for line in of_paper) is has
        assert any(line.startswith("the end of a run: ") for line in of_paper)
    native = [load_system("native")]
    lines = choices(small_plan(suite=load_suite("ufs-files"), systems=native, workloads=["smallfile-create-1c"]))
    assert "filesize of smallfile-* is 1024 (as published)" in lines  # as in profile paper
    assert any(line.startswith("nfiles of smallfile-* is 60000, scaled from the paper profile's (") for line in lines)
    full = choices(small_plan(suite=load_suite("bdus-fs"), profile=load_profile("paper")))
    assert full[0].startswith("size of seq-read-*, rand-* is 68719476736 on sata, 274877906944 on nvme (as")
    assert full[-1].startswith("dirty pages: at most 858993459 bytes") and "FUSE" not in full[-1]


@pytest.mark.parametrize("suite", ["bdus-fs", "rfuse-fio", "rfuse-macro", "ufs-files"])
@pytest.mark.parametrize("virtual", [False, True])
def test_the_values_that_are_told_are_those_of_the_runs(suite: str, virtual: bool) -> None:
    """Where a parameter takes the place of another one, that one is not told of the same workload."""
    plan = small_plan(suite=load_suite(suite), profile=load_profile("quick", virtual), workloads=None)
    told = [re.match(r"(\w+) of (.*) is (.*?)(?:, scaled| \()", line) for line in choices(plan)]
    for workload in plan.suite.workloads:
        parameters, _ = load_parameters(workload.parameters)
        for device in plan.devices:
            values = values_of(workload, plan.profile, parameters, device)
            shown = []
            for match in filter(None, told):
                if any(fnmatch(workload.id, pattern) for pattern in match[2].split(", ")):
                    own = re.search(rf"(\d+) on {device}", match[3])
                    shown.append((match[1], int(own[1] if own else match[3])))
            assert sorted(shown) == sorted(values.items())


def test_no_dirty_limit_is_told_where_none_is_set() -> None:
    """The runner of stores leaves the kernel's own."""
    suite = load_suite("bs3-fs")
    devices = store_devices(suite.latencies_ms, None)
    lines = choices(small_plan(suite=suite, systems=[load_system("s3-nbd")], devices=devices, workloads=["oltp"]))
    assert any(line.startswith("the volume: ") for line in lines)
    assert not any(line.startswith("dirty pages: ") for line in lines)


def test_what_table_1_chose_is_kept() -> None:
    lines = block_choices(small_plan(profile=load_profile("paper"), emulated=False))
    assert lines[0].startswith("memory: 4294967296 bytes") and "858993459 bytes" in lines[1]
    assert [line.partition(":")[0].split(" ")[0] for line in lines] == [
        "memory", "dirty", "discarded", "fio", "queue", "threads"
    ]  # fmt: skip
    assert "threads: nbdkit " in lines[-1] and "psync, buffered, no fsync" in lines[3]
    assert block_choices(small_plan(suite=load_suite("bdus-fs"))) == []


# ---- campaigns ---------------------------------------------------------------------------


def test_campaign_directory_holds_what_was_asked(tmp_path: Path) -> None:
    directory = create(small_plan(), tmp_path / "results", ["userblk", "run"])
    asked = json.loads((directory / "campaign.json").read_text())
    assert asked["seed"] == 1 and asked["emulated"] is True and asked["devices"]["sata"] == "$LAB_SATA"
    noted = [(one["name"], one.get("device", one.get("system", ""))) for one in asked["parameters"]["block_choices"]]
    assert ("dirty pages", "nvme") in noted and ("threads", "nbdkit") in noted and ("memory", "") in noted
    assert read_plan(directory / "plan.json") == small_plan()
    with pytest.raises(ConfigError, match="exists"):
        create(small_plan(), tmp_path / "results", [])


@pytest.mark.parametrize(
    ("named", "code", "says"),
    [
        (["native", "bdus"], 3, "NOT measured, although it was named: bdus: bdus-loop is not installed (2 runs)."),
        (["seq-read-1th-4k"], 0, "Left out: bdus: bdus-loop is not installed (2 runs)."),
    ],
)
def test_what_was_left_out_is_told_at_the_end(
    named: list[str],
    code: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With exit code 0 a job of CI took a table without a system that it had named for complete."""

    def follow(plan: Plan, directory: Path, display: Display) -> int:
        for index in range(2):
            display.event({"event": "entry-left-out", "index": index, "reason": "bdus: bdus-loop is not installed"})
        return 0

    monkeypatch.setattr(cli_run, "follow", follow)
    monkeypatch.setattr(cli_run, "show_results", lambda directory, as_json: None)
    directory = create(small_plan(), tmp_path, [], named=named)
    with caplog.at_level("INFO"):
        assert cli_run.carry_out(small_plan(), directory, True) == code
    assert caplog.messages[-1] == says


def test_a_campaign_is_carried_out_by_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two guests know nothing of each other; each removed what the other was about to write."""
    monkeypatch.setattr(cli_run, "follow", lambda *arguments: 0)
    monkeypatch.setattr(cli_run, "show_results", lambda *arguments: None)
    directory = create(small_plan(), tmp_path, [])
    with cli_run.only_here(directory):
        with pytest.raises(ConfigError, match=f"^campaign={directory}: another process carries it out; wait for its"):
            cli_run.carry_out(small_plan(), directory, True)
    assert cli_run.carry_out(small_plan(), directory, True) == 0


def test_a_campaign_that_does_not_fit_is_not_begun(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path, "64k") as small:
        (small / "of others").write_bytes(bytes(60 << 10))
        with pytest.raises(ConfigError, match="^results=.*: No space left on device; name a directory with room$"):
            create(small_plan(), small / "results", [])
        assert list((small / "results").iterdir()) == []
    with pytest.raises(ConfigError, match="its name is not UTF-8; name another directory$"):
        create(small_plan(), tmp_path / os.fsdecode(b"\xff"), [])
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="^results=.*/file: Not a directory; name a directory that can be written$"):
        create(small_plan(), tmp_path / "file", [])


def test_output_that_is_not_taken_is_one_line() -> None:
    argv = [sys.executable, USERBLK, "table", "paper"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "userblk: standard output: No space left on device\n")


def test_help_that_is_not_taken_is_no_traceback() -> None:
    """By a reader that has ended, by a full disk."""
    argv = [sys.executable, USERBLK, "run", "--help"]
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe, open("/dev/full", "w") as full:
        for file, code, says in ((pipe, 141, ""), (full, 2, "userblk: standard output: No space left on device\n")):
            done = subprocess.run(argv, stdout=file, stderr=subprocess.PIPE, text=True, check=False)
            assert (done.returncode, done.stderr) == (code, says)


@pytest.mark.parametrize(("closed", "arguments", "code"), [("1", "table paper", 0), ("2", "table nosuch", 2)])
def test_output_that_is_closed_is_not_written(closed: str, arguments: str, code: int) -> None:
    argv = ["sh", "-c", f'exec "$0" "$1" {arguments} {closed}>&-', sys.executable, USERBLK]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_an_interrupt_while_it_is_loaded_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    argv = ["env", "--default-signal=INT", sys.executable, USERBLK, "systems"]  # what starts the tests may ignore it
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("form", ["terminal", "markdown", "csv", "csv-long"])
def test_table_of_a_campaign(form: str, tmp_path: Path) -> None:
    directory = small_campaign(tmp_path / "results")
    printed = userblk("table", directory.name, "--format", form, cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    assert "EMULATED (lab)" in printed.stdout and "seq-read-1th-4k" in printed.stdout
    written = userblk("table", str(directory), "--format", form, "--output", "out", cwd=tmp_path)
    assert written.returncode == 0 and written.stdout == ""
    # The last column of a line may be blanks.
    assert [line.rstrip() for line in (tmp_path / "out").read_text().splitlines()] == [
        line.rstrip() for line in printed.stdout.splitlines()
    ]


def test_table_without_a_run_says_how_to_go_on(tmp_path: Path) -> None:
    directory = create(small_plan(), tmp_path, [])
    result = userblk("table", str(directory))
    assert result.returncode == 2 and f"userblk resume {directory}" in result.stderr


# ---- progress and load -----------------------------------------------------------------


def test_duration() -> None:
    assert [duration(s) for s in (0, 59.6, 3723, -5)] == ["0:00:00", "0:01:00", "1:02:03", "0:00:00"]


def test_pace_counts_what_was_done_before() -> None:
    plan = small_plan(repetitions=5)
    pace = Pace(plan)
    pace.start(skipped=10)
    assert pace.total == 20 and pace.done == 10 and pace.left() > 0
    pace.ended = 10
    assert pace.left() == 0


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    display = Lines(small_plan())
    display.event({"event": "start", "entries": 4, "skipped": 0})
    bad = summary(valid=False, invalid=["fio: exit code 1"])
    display.event({"event": "entry-done", "index": 0, "summary": summary(warnings=["load: much"])})
    display.event({"event": "entry-done", "index": 1, "summary": bad})
    display.event({"event": "entry-failed", "index": 2, "reason": "no server"})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(f"[{i}/4]" in line for i, line in enumerate(lines, 1))
    assert "10.00 kop/s, 100.0 us, 20 % CPU; load: much" in lines[0]
    assert "INVALID: fio: exit code 1" in lines[1] and "FAILED: no server" in lines[2]


@pytest.mark.parametrize("tables", [True, False])
def test_each_round_but_the_last_ends_with_the_table_so_far(tables: bool, capsys: pytest.CaptureFixture[str]) -> None:
    plan = small_plan(repetitions=2)
    display = Lines(plan, tables)
    display.event({"event": "start", "entries": len(plan.entries), "skipped": 0})
    shown = []
    for entry in plan.entries:
        ids = {name: getattr(entry, name) for name in ("device", "suite", "system", "workload", "repetition")}
        display.event({"event": "entry-done", "index": entry.index, "summary": summary(**ids)})
        shown.append("so far" in capsys.readouterr().out)
    assert [number for number, now in enumerate(shown, 1) if now] == [len(plan.entries) // 2] * tables


def test_the_exit_code_of_a_killed_runner() -> None:
    """As of a shell: a negative one became 247 at the exit of userblk, which nothing explains."""
    assert RunnerProcess([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]).wait() == 137
    assert RunnerProcess([sys.executable, "-c", "raise SystemExit(3)"]).wait() == 3


def spin() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "while True: pass"])


def test_own_work_is_no_load(tmp_path: Path) -> None:
    """A child's CPU time is ours; seen from the child, ours is another's."""
    worker = spin()
    try:
        others = host_load.OtherLoad()
        before = host_load._own_ticks(host_load._process_ticks(), os.getpid())
        wait_until(
            "the child used the CPU",
            lambda: host_load._own_ticks(host_load._process_ticks(), os.getpid()) >= before + 10,
        )
        percent = others.percent()
        assert 0 <= percent <= 100 * (os.cpu_count() or 1)
        assert host_load._own_ticks(host_load._process_ticks(), worker.pid) > 0
    finally:
        worker.kill()
        worker.wait()
    host_load.write(tmp_path, percent)
    assert json.loads((tmp_path / host_load.FILE).read_text())["other_cpu_percent"] == round(percent, 1)
    sizes = set()
    for percent in (0.0, 7.25, 100.0 * 1024):
        host_load.write(tmp_path, percent)
        sizes.add((tmp_path / host_load.FILE).stat().st_size)
    assert sizes == {host_load.BYTES}  # a guest may read the new one with the size of the old


def test_a_suite_may_name_its_systems(tmp_path: Path) -> None:
    result = userblk("plan", *LAB, "--suite", "frameworks", "--json", cwd=tmp_path)
    plan = json.loads(result.stdout)["plan"]
    assert list(plan["systems"]) == [
        "native", "buse", "nbdkit-serial", "nbdkit", "tcmu", "ublk-workers", "ublk-uring",
    ]  # fmt: skip
    result = userblk("plan", *LAB, "--suite", "frameworks", "--systems", "native,buse", "--json", cwd=tmp_path)
    assert list(json.loads(result.stdout)["plan"]["systems"]) == ["native", "buse"]
    # Null devices touch no disk, so that one of the lab's stands for both; and it has 2 CPUs.
    result = userblk("plan", *LAB, "--suite", "buse-null", "--clock", "real", "--json", cwd=tmp_path)
    plan = json.loads(result.stdout)["plan"]
    assert len(plan["devices"]) == 1
    assert {w["cpus"] for w in plan["suite"]["workloads"]} == {0, 1, 2}
    assert "Left out: 10 of 46 workloads, which need more CPUs than 2." in result.stderr
    # In virtual time it has one.
    result = userblk("plan", *LAB, "--suite", "buse-null", "--json", cwd=tmp_path)
    plan = json.loads(result.stdout)["plan"]
    assert plan["model"] and {w["cpus"] for w in plan["suite"]["workloads"]} == {0, 1}
    assert "Left out: 12 of 46 workloads, which need more CPUs than 1; --clock real has more." in result.stderr
    result = userblk("plan", *LAB, "--suite", "buse-null", "--workloads", "read-1cpu,read-2cpu", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (
        2,
        "userblk: workload=read-2cpu: needs 2 CPUs, but only 1 can be used; leave it out, or use --clock real\n",
    )


def test_one_of_the_labs_disks_can_be_chosen(tmp_path: Path) -> None:
    chosen = userblk("plan", *LAB, "--devices", "nvme", "--json", cwd=tmp_path)
    assert list(json.loads(chosen.stdout)["plan"]["devices"]) == ["nvme"]
    both = userblk("plan", *LAB, "--devices", "nvme,sata", "--json", cwd=tmp_path)
    assert list(json.loads(both.stdout)["plan"]["devices"]) == ["sata", "nvme"]
    for words, says in (
        ((*LAB, "--devices", "nvme,ram"), "devices=nvme,ram: ram is not there; choose from sata,nvme"),
        ((*LAB, "--suite", "s3", "--devices", "nvme"), "suite=s3: it needs no device; leave --devices out"),
    ):
        refused = userblk("plan", *words, cwd=tmp_path)
        assert (refused.returncode, refused.stderr) == (2, f"userblk: {says}\n")


# ---- instructions --------------------------------------------------------------------------


def test_counting_instructions_is_one_round_over_memory(tmp_path: Path) -> None:
    done = userblk("plan", "--instructions", "--workloads", "seq-read-1th-4k", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)["plan"]
    assert [device["path"] for device in plan["devices"].values()] == ["$LAB_RAM"]
    assert {(entry["device"], entry["repetition"]) for entry in plan["entries"]} == {("ram", 0)}
    assert len(plan["entries"]) == 3
    made = small_plan(count_instructions=True, devices=lab_devices("virtual", True))
    assert clock_of(runner_argv(made, tmp_path)) == "virtual" and made.profile.ramp_s == 0


# ---- virtual time ---------------------------------------------------------------------------


def clock_of(argv: list[str]) -> str:
    return argv[argv.index("--clock") + 1]


def test_the_lab_has_virtual_time_unless_real_is_asked_for(tmp_path: Path) -> None:
    cases: list[tuple[list[str], dict[str, str], bool]] = [
        ([], {}, True),
        (["--clock", "real"], {}, False),
        ([], {"LAB_CLOCK": "real"}, False),
        (["--clock", "virtual"], {"LAB_CLOCK": "real"}, True),
        (["--profile", "paper"], {}, False),  # a run of 15 minutes has no place in it
        (["--suite", "bdus", "--systems", "native,fuse"], {}, True),
        (["--suite", "fuse45", "--systems", "native"], {}, True),
        (["--suite", "fuse45-terra", "--systems", "native"], {}, True),
        (["--suite", "rfuse", "--systems", "native"], {}, True),
        (["--suite", "ufs", "--systems", "native"], {}, True),
        (["--suite", "source-tree", "--systems", "native"], {}, True),
        (["--suite", "kv", "--systems", "native"], {}, True),
        (["--suite", "postgresql", "--systems", "native"], {}, True),
        (["--suite", "frameworks"], {}, True),
        (["--suite", "buse-null"], {}, True),
        (["--suite", "failover"], {}, False),
        (["--suite", "depth-jobs"], {}, False),  # times of its own
        (["--suite", "apps", "--systems", "native"], {}, True),
    ]
    for clock, environment, model in cases:
        done = userblk("plan", *LAB, *clock, "--json", cwd=tmp_path, **environment)
        assert done.returncode == 0, done.stderr
        plan = json.loads(done.stdout)["plan"]
        assert bool(re.fullmatch(r"cpu-\d+ sata-\d+ nvme-\d+", plan["model"])) is model
        assert {device["confirm"] for device in plan["devices"].values()} <= (
            {"MODELSATA", "MODELNVME"} if model else {"LABSATA", "LABNVME"}
        )
        assert (plan["profile"]["runtime_s"] < 1) is model


def test_the_plan_says_how_long_each_kind_of_run_is(tmp_path: Path) -> None:
    """Writers are measured for longer than readers, and on the slow disk for longest."""

    def runs(*arguments: str) -> list[tuple[str, str]]:
        done = userblk("plan", *LAB, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return re.findall(r"s measured per run(?: \((.*)\))?, (\w+)", done.stdout)

    assert runs() == [("reads", "less"), ("writes to SATA", "no"), ("writes to NVMe", "no")]
    assert runs("--workloads", "seq-read-1th-4k") == [("", "less")]
    assert runs("--clock", "real") == [("", "less")] and runs("--clock", "real", "--warm-up", "1") == [("", "no")]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["failover", "--clock", "virtual"], ["1.2 s of load per run, in which the server ends"]),
        (["failover"], ["33 s of load per run, in which the server ends"]),
        (["attach"], [f"{name}-disks: {all_of_them} disks come and go per run" for name, all_of_them in
                      ((1, 16), (8, 16), (64, 64))]),
        (["response"], ["1 s discarded + 5 s measured per run, less the warm-up found in the data"]),
        (["fuse45", "--clock", "real"], ["on file systems, in 4.3 GB of memory:",
                                         "0 s discarded + 3 s measured per run (others, servers)"]),
        (["source-tree", "--clock", "real"], ["on file systems, in 4.3 GB of memory:",
                                              "until its work is done (unpack, build)"]),
        (["kv", "--clock", "virtual"], ["on file systems, in 4.3 GB of memory:",
                                        "0 s discarded + 0.3 s measured per run"]),
        (["postgresql", "--clock", "virtual"], ["on file systems, in 4.3 GB of memory:",
                                                "0 s discarded + 1 s measured per run (oltp, oltp-no-fsync)"]),
    ],
)  # fmt: skip
def test_the_plan_has_the_times_of_its_suite(arguments: list[str], says: list[str], tmp_path: Path) -> None:
    """They were given as those of fio's workloads on devices."""
    done = userblk("plan", *LAB, "--suite", *arguments, cwd=tmp_path)
    lines = [line.strip() for line in done.stdout.splitlines()]
    at = next(number for number, line in enumerate(lines) if line.startswith("profile "))
    assert [lines[at].partition(": ")[2], *lines[at + 1 : at + len(says)]] == says
    assert lines[at + len(says)].startswith("systems ")


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        (["--clock", "virtual", "--where", "host", "--sata", "/dev/null"], {}, "clock=virtual: only the lab's guest"),
        (["--clock", "virtual", "--profile", "paper", *LAB], {}, "profile=paper: has no times for virtual time"),
        (LAB, {"LAB_CLOCK": "fast"}, "LAB_CLOCK=fast: must be one of virtual, real"),
    ],
)
def test_what_virtual_time_cannot_have_gets_one_line(
    arguments: list[str], environment: dict[str, str], says: str, tmp_path: Path
) -> None:
    done = userblk("plan", *arguments, cwd=tmp_path, **environment)
    assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1


def test_a_bad_model_gets_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Models that are not there, as an example."""
    monkeypatch.setattr(models, "MODELS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["userblk", "run", *LAB, "--clock", "virtual", "--dry-run"])
    assert main() == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{tmp_path}/cpu.toml: " in said


def test_a_guest_in_virtual_time_holds_what_its_disks_do(tmp_path: Path) -> None:
    made = small_plan(model="cpu-1 sata-1 nvme-1", devices=lab_devices("virtual"))
    argv = runner_argv(made, tmp_path)
    assert clock_of(argv) == "virtual"
    assert int(argv[argv.index("--memory") + 1]) << 20 > 2 * made.used_bytes("sata")
    assert clock_of(runner_argv(small_plan(), tmp_path)) == "real"


def test_a_sealed_guest_has_its_plan_as_a_copy_and_hands_its_runs_over(tmp_path: Path) -> None:
    made = small_plan(model="cpu-1 sata-1 nvme-1", devices=lab_devices("virtual")).of_block(1)
    argv = runner_argv(made, tmp_path / "made-up", tmp_path / "made-up/blocks/1.json")
    given = argv[argv.index("--given") + 1]
    assert "--sealed" in argv and given == f"plan.json={tmp_path}/made-up/blocks/1.json"
    assert argv[argv.index("--seed") + 1] == str(made.entries[0].seed)
    assert argv[-3:] == ["--hand-over", "/run/lab/files", "/results/plan.json"]
