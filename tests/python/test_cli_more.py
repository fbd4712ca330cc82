# SPDX-License-Identifier: BSD-3-Clause
"""The commands that run no campaign: doctor, systems, workloads, status, export, import, completion; and their JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from command_line import USERBLK, userblk
from loops import LIMIT, MIB, loop
from made_up import small_campaign, small_plan
from runner_process import SIZE, plan_for
from userblk.analysis.summaries import NOT_MEASURED, campaign_warnings, missing_of
from userblk.harness.cli import completion, doctor, make_parser, run
from userblk.harness.cli.common import write_file
from userblk.harness.cli.plan import endurance_text
from userblk.harness.cli.run import detached
from userblk.harness.machine import paths
from userblk.harness.machine.tuning import hardware_disks
from userblk.harness.model import config, tables
from userblk.harness.model.config import Requires, SystemConfig, load_suite, load_system
from userblk.harness.model.tables import ConfigError
from userblk.harness.running import archive, campaign
from userblk.harness.running.campaign import LAB_KERNELS, create, take_guest
from userblk.lab import KERNELS
from waiting import wait_until


def value_of(*arguments: str, cwd: Path | None = None, code: int = 0) -> Any:
    done = userblk(*arguments, "--json", cwd=cwd)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


# ---- doctor ------------------------------------------------------------------------------


def test_doctor_tells_of_every_system(tmp_path: Path) -> None:
    text = userblk("doctor", cwd=tmp_path)
    assert text.returncode in (0, 3) and "Traceback" not in text.stderr
    found = json.loads(userblk("doctor", "--json", cwd=tmp_path).stdout)
    assert [one["name"] for one in found if one["kind"] == "system"] == tables.names("systems")
    for one in found:
        assert one["ready"] == all(need["met"] for need in one["needs"])
        assert all(need["fix"] or need["met"] for need in one["needs"])
        assert one["name"] in text.stdout
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_mended_by_a_command() -> None:
    needs = Requires(["sh", "no-such-program"], ["no_such_module"], ["NO_SUCH_NAME"], ["no-package", "other"])
    system = SystemConfig("x", "command", requires=needs)
    missing = {need.what: need.fix for need in doctor.system_needs(system) if not need.met}
    assert missing["program no-such-program"] == "apt-get install no-package other"
    assert "--where lab" in missing["kernel module no_such_module"]
    assert missing["environment variable NO_SUCH_NAME"].startswith("export NO_SUCH_NAME=")
    hint = SystemConfig("x", "command", requires=Requires(["no-such-program"], hint="build it"))
    assert [need.fix for need in doctor.system_needs(hint)] == ["build it"]
    assert doctor.system_needs(config.load_system("native")) == []
    over_stores = (("s3-weak-nbd", "s3.so", ["nbdkit", "nbd-client"]), ("s3-null", "null.so", ["nbdkit"]))
    for name, file, programs in over_stores:
        found = [need.what for need in doctor.system_needs(config.load_system(name))]
        assert f"file {paths.HOST_BUILD}/plugins/{file}" in found
        assert [what for what in found if what.startswith("program ")] == [f"program {one}" for one in programs]
    assert [need.what for need in doctor.system_needs(config.load_system("s3backer-file"))] == ["program s3backer"]
    found = [need.what for need in doctor.system_needs(config.load_system("vduse"))]
    assert found[:2] == ["program qemu-storage-daemon", "program vdpa"] and "kernel module vduse" in found


def test_a_disk_that_may_not_be_overwritten() -> None:
    for disk in hardware_disks():
        for need in doctor.device_needs(disk):
            assert need.met or need.fix
    (need,) = doctor.device_needs("no-such-disk")
    assert not need.met and "No such file" in need.fix


# ---- lists ------------------------------------------------------------------------------


def test_systems_and_workloads() -> None:
    found = value_of("systems")
    assert isinstance(found, list) and [row["name"] for row in found] == tables.names("systems")
    assert all(row["about"] for row in found)
    workloads = value_of("workloads", "--suite", "bdus")
    assert isinstance(workloads, list) and len(workloads) == 41
    assert "rand-read-16th-4k" in userblk("workloads").stdout
    assert userblk("workloads", "--suite", "nosuch").returncode == 2


def test_status(tmp_path: Path) -> None:
    assert "no campaign in results" in userblk("status", cwd=tmp_path).stdout
    directory = small_campaign(tmp_path / "results")
    first = next(iter(directory.rglob("DONE")))
    (one,) = value_of("status", cwd=tmp_path)  # type: ignore[misc]
    assert (one["runs"], one["valid"], one["missing"], one["invalid"]) == (4, 4, 0, 0)
    first.unlink()
    assert "3 of 4 runs valid, 0 invalid, 1 missing" in userblk("status", directory.name, cwd=tmp_path).stdout
    assert userblk("status", "nosuch", cwd=tmp_path).returncode == 2


def test_table_as_json(tmp_path: Path) -> None:
    directory = small_campaign(tmp_path / "results")
    rows = value_of("table", directory.name, cwd=tmp_path)
    assert isinstance(rows, list) and {row["system"] for row in rows} == {"native", "nbdkit"}
    assert len(value_of("table", "paper")) > 1000  # type: ignore[arg-type]


# ---- export and import ------------------------------------------------------------------------


def test_a_campaign_travels(tmp_path: Path) -> None:
    directory = small_campaign(tmp_path / "results")
    next(directory.rglob("DONE")).with_name("fio.json").write_text("{}")
    packed = value_of("export", directory.name, "--output", "a.tar.gz", cwd=tmp_path)
    assert isinstance(packed, dict) and Path(packed["file"]).stat().st_size == packed["bytes"]
    table = userblk("table", directory.name, "--format", "csv", cwd=tmp_path).stdout
    again = userblk("import", "a.tar.gz", cwd=tmp_path)
    assert again.returncode == 2 and "exists" in again.stderr
    assert userblk("import", "a.tar.gz", "--results", "other", cwd=tmp_path).returncode == 0
    assert userblk("table", directory.name, "--format", "csv", "--results", "other", cwd=tmp_path).stdout == table
    small = value_of("export", directory.name, "--tables", "--output", "b.tar.gz", cwd=tmp_path)
    assert isinstance(small, dict) and small["bytes"] < packed["bytes"]
    assert userblk("import", "b.tar.gz", "--results", "small", cwd=tmp_path).returncode == 0
    assert userblk("table", directory.name, "--format", "csv", "--results", "small", cwd=tmp_path).stdout == table
    assert {path.name for path in (tmp_path / "small").rglob("*") if path.is_file()} <= set(archive.OF_TABLES)


# ---- completion and log level ------------------------------------------------------------------


def complete(script: Path, *words: str, cwd: Path) -> set[str]:
    """What bash would offer for the last word."""
    line = " ".join(f"'{word}'" for word in words)
    program = f'. {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _userblk; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, cwd=cwd, timeout=LIMIT)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_completion(tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(userblk("completion", "bash").stdout)
    small_campaign(tmp_path / "results")
    assert {"run", "doctor", "export"} <= complete(script, "userblk", "", cwd=tmp_path)
    assert complete(script, "userblk", "doc", cwd=tmp_path) == {"doctor"}
    assert {"--suite", "--max-reps"} <= complete(script, "userblk", "run", "--", cwd=tmp_path)
    assert complete(script, "userblk", "run", "--suite", "bdus-", cwd=tmp_path) >= {"bdus-block", "bdus-fs"}
    assert complete(script, "userblk", "run", "--where", "", cwd=tmp_path) == {"auto", "host", "lab"}
    assert "made-up" in complete(script, "userblk", "table", "", cwd=tmp_path)
    assert complete(script, "userblk", "lab", "s", cwd=tmp_path) == {"shell"}


def test_log_level(tmp_path: Path) -> None:
    small_campaign(tmp_path / "results")
    (tmp_path / "results/old").mkdir()
    (tmp_path / "results/old/plan.json").write_text('{"schema": 1}')
    assert "another schema" in userblk("status", cwd=tmp_path).stderr
    quiet = userblk("--log-level", "error", "status", cwd=tmp_path)
    assert quiet.returncode == 0 and quiet.stderr == "" and "made-up" in quiet.stdout
    assert userblk("--log-level", "loud", "status").returncode == 2


def test_the_manual_names_every_command_and_option() -> None:
    """The synopsis, too, which has those of plan and run in a list below."""
    assert paths.CHECKOUT is not None
    text = (paths.CHECKOUT / "bin/userblk.1").read_text()
    synopsis = text[text.index(".Sh SYNOPSIS") : text.index(".Sh DESCRIPTION")].split(".Nm\n")
    commands = dict(completion._commands(make_parser()))
    for name, parser in commands.items():
        assert f".It Cm {name}" in text, name
        (usage,) = (part for part in synopsis if name in part.partition("\n")[0].replace("|", " ").split()[1:])
        if "Ar options" in usage:
            usage = text
        for flag in completion._flags(parser):
            assert flag == "--help" or f"Fl {flag[1:]}" in usage, (name, flag)


# ---- wear -------------------------------------------------------------------------------------


def test_the_share_of_a_devices_endurance(monkeypatch: pytest.MonkeyPatch) -> None:
    facts: dict[str, object] = {"wear_percent": 4.0, "written_bytes": 40e12}
    monkeypatch.setattr("userblk.harness.observing.environment.device_facts", lambda disk: facts)
    assert endurance_text("sda", 1e12).startswith("0.1 % of its endurance (worn by 4 %")
    facts["wear_percent"] = 0.0
    assert "is not known yet" in endurance_text("sda", 1e12)
    facts.clear()
    assert "not known" in endurance_text("sda", 1e12)


# ---- a campaign that nobody watches -------------------------------------------------------------


def test_a_detached_campaign_runs_by_itself(tmp_path: Path) -> None:
    if not shutil.which("fio"):
        pytest.skip("fio is not installed")
    (tmp_path / "image").mkdir()
    size = 2048 * MIB  # as much as the profile uses
    with loop(tmp_path / "image", size) as device:
        where = ["--where", "host", "--sata", device, "--confirm", str(size)]
        what = ["--systems", "native", "--workloads", "seq-write-1th-128k", "--reps", "1"]
        begun = userblk("run", "--detach", *where, *what, cwd=tmp_path)
        assert begun.returncode == 0 and begun.stdout == "", begun.stderr
        assert "at most 2.1 GB written" in begun.stderr and "endurance" in begun.stderr  # before anything is
        (directory,) = (tmp_path / "results").iterdir()
        wait_until("the campaign is done; see userblk.log", (directory / "table.md").exists)
        found = value_of("status", str(directory))
        assert isinstance(found, list) and found[0]["valid"] == 1
        asked = json.loads((directory / "campaign.json").read_text())
        assert asked["control"] is False and asked["max_repetitions"] == 1 and "version" in asked["userblk"]


# ---- files that are written -----------------------------------------------------------------------


def test_what_is_no_regular_file_stays_what_it_is(tmp_path: Path) -> None:
    """--output /dev/null, as root: the device must not become a file."""
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    target.write_text("before")
    link.symlink_to(target)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_file(pipe, "text")
        assert os.read(reader, 10) == b"text" and pipe.is_fifo()
    finally:
        os.close(reader)
    write_file(link, "text")
    assert link.is_symlink() and target.read_text() == "text"
    for wrong in (Path("/"), Path("."), tmp_path):
        with pytest.raises(ConfigError, match="name a file that can be written"):
            write_file(wrong, "text")
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "link", "target"}


def test_a_campaign_that_cannot_be_written_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    with loop(tmp_path / "image", SIZE) as device:
        directory = tmp_path / "c"
        plan_for(device, directory)
        script = f'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && {sys.executable} {USERBLK} resume "$0"'
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(directory)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert f"campaign={directory}: cannot be written" in done.stderr


def test_a_detached_campaign_is_carried_out_by_the_same_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it was started by a path that is not absolute, as bin/userblk is."""
    directory = small_campaign(tmp_path / "results")
    shutil.rmtree(directory / "lab")
    (directory / "plan.json").write_text("{}")
    monkeypatch.chdir(Path(USERBLK).parents[1])
    monkeypatch.setattr(sys, "argv", ["bin/userblk", "run"])
    assert detached(directory) == 0
    wait_until("it has ended", lambda: (directory / "userblk.log").read_text().endswith("\n"))
    assert "not a plan" in (directory / "userblk.log").read_text()


def test_a_campaign_goes_on_with_the_directory_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LAB_EXTRA of the shell that began it: guests without it would have other programs, or none to measure."""
    mine, other, plan = tmp_path / "mine", tmp_path / "other", small_plan()
    mine.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAB_EXTRA", "mine")
    directory = create(plan, tmp_path / "results", ["userblk", "run"])
    assert take_guest(plan, directory) == []
    monkeypatch.setenv("LAB_EXTRA", str(other))
    assert take_guest(plan, directory) == [f"LAB_EXTRA is {other}; the campaign began with {mine}."]
    monkeypatch.delenv("LAB_EXTRA")
    monkeypatch.chdir("/")
    assert take_guest(plan, directory) == [f"LAB_EXTRA is {mine}, as when the campaign began."]
    assert os.environ["LAB_EXTRA"] == str(mine)
    monkeypatch.delenv("LAB_EXTRA")
    mine.rmdir()
    gone = userblk("resume", str(directory))
    line = f"userblk: LAB_EXTRA is not set, and {mine} of the campaign is gone; set it to where that is\n"
    assert (gone.returncode, gone.stderr) == (2, line)
    file = directory / "campaign.json"
    asked = json.loads(file.read_text())
    file.write_text(json.dumps(asked | {"extra": ""}))
    refused = userblk("resume", str(directory), LAB_EXTRA="/mine")
    line = "userblk: LAB_EXTRA=/mine: the campaign began without it; leave it out\n"
    assert (refused.returncode, refused.stderr) == (2, line)
    del asked["extra"]  # as by an older version
    file.write_text(json.dumps(asked | {"guest": {"extra_image": "x"}}))
    older = userblk("resume", str(directory))
    line = "userblk: LAB_EXTRA is not set, but the campaign began with it; set it as it was then\n"
    assert (older.returncode, older.stderr) == (2, line)


def test_a_campaign_goes_on_with_the_kernel_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, plan = tmp_path / "mine", small_plan()
    mine.mkdir()
    monkeypatch.chdir(tmp_path)
    assert LAB_KERNELS == KERNELS
    for named, kept in (("backports", "backports"), ("mine", str(mine))):
        monkeypatch.setenv("LAB_KERNEL", named)
        directory = create(plan, tmp_path / f"results-{named}", ["userblk", "run"])
        assert take_guest(plan, directory) == []
        monkeypatch.setenv("LAB_KERNEL", "stable")
        with pytest.raises(ConfigError, match=f"LAB_KERNEL=stable: the campaign began with {kept}; leave it out"):
            take_guest(plan, directory)
        monkeypatch.delenv("LAB_KERNEL")
        assert take_guest(plan, directory) == [f"LAB_KERNEL is {kept}, as when the campaign began."]
        assert os.environ["LAB_KERNEL"] == kept
    moved = mine.rename(tmp_path / "moved")
    monkeypatch.setenv("LAB_KERNEL", str(moved))
    assert take_guest(plan, directory) == [f"LAB_KERNEL is {moved}; the campaign began with {mine}."]
    monkeypatch.delenv("LAB_KERNEL")
    with pytest.raises(ConfigError, match=f"LAB_KERNEL is not set, and {mine} of the campaign is gone"):
        take_guest(plan, directory)
    assert take_guest(plan, create(plan, tmp_path / "results", ["userblk", "run"])) == []


def test_a_lab_campaign_that_is_resumed_on_another_host_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its guest sees nothing of that. In virtual time it does not matter."""
    host = {"cpu_model": "A", "cpus": 8, "memory_bytes": (16 << 30) - 5000}
    monkeypatch.setattr(campaign.environment, "snapshot", lambda: host)
    directory = create(small_plan(), tmp_path / "real", ["userblk", "run"])
    simulated = create(small_plan(model="m"), tmp_path / "virtual", ["userblk", "run"])
    monkeypatch.setattr(run, "prepare", lambda plan: None)
    monkeypatch.setattr(run, "check_present_model", lambda plan: None)
    monkeypatch.setattr(run, "carry_out", lambda *given: 0)

    def warnings(directory: Path) -> list[str]:
        args = make_parser().parse_args(["resume", str(directory)])
        assert args.command(args) == 0
        return campaign_warnings(directory)

    host |= {"memory_bytes": (16 << 30) + 5000}  # another kernel's share of the same
    assert warnings(directory) == []
    (directory / "environment.json").write_text(json.dumps({"kernel": "k", "warnings": ["turbo is on"]}))
    host |= {"cpu_model": "B", "memory_bytes": 32 << 30}
    lines = [
        "differs from the beginning: lab's host: cpu_model is B instead of A",
        "differs from the beginning: lab's host: memory_gib is 32 instead of 16",
    ]
    for _ in range(2):
        assert warnings(directory) == ["turbo is on", *lines]
    assert json.loads((directory / "environment.json").read_text())["kernel"] == "k"
    assert warnings(simulated) == []


def test_a_table_tells_that_its_campaign_was_resumed_with_something_else(tmp_path: Path) -> None:
    """Its means are of two kernels, say; what may distort all runs alike is in the report."""
    directory = small_campaign(tmp_path / "results")
    line = "differs from the beginning: kernel is 6.12 instead of 6.1"
    (directory / "environment.json").write_text(json.dumps({"warnings": ["turbo is on", line]}))
    done = userblk("table", str(directory))
    assert line in done.stdout and "turbo" not in done.stdout
    value_of("export", str(directory), "--format", "json", "--output", "a.json", cwd=tmp_path)
    assert json.loads((tmp_path / "a.json").read_text())["changes"] == [line]
    shutil.copytree(directory, tmp_path / "results/other")
    (tmp_path / "results/other/environment.json").write_text(json.dumps({"warnings": []}))
    named = f"made-up: {line}"
    for other in ("other", "bdus"):
        words = ["compare", "made-up", other]
        assert value_of(*words, cwd=tmp_path)["changes"] == [named]
        assert named in " ".join(userblk(*words, cwd=tmp_path).stdout.split())
    assert named in userblk("history", "made-up", "other", cwd=tmp_path).stdout


def test_what_has_no_run_is_named(tmp_path: Path) -> None:
    """A system or workload whose runs all failed is in no table; table, report, export and bundle did not tell."""
    directory = small_campaign(tmp_path / "results")
    assert missing_of(directory) == () and "NOT measured" not in userblk("table", str(directory)).stdout
    for done in directory.glob("lab/*/*/nbdkit/*/*/DONE"):
        done.unlink()
    line = f"{NOT_MEASURED} nbdkit (2 runs)."
    assert f"- {line}" in userblk("table", str(directory), "--format", "markdown").stdout.splitlines()
    value_of("export", str(directory), "--format", "json", "--output", "a.json", cwd=tmp_path)
    assert json.loads((tmp_path / "a.json").read_text())["missing"] == [line]
    assert userblk("report", str(directory), "--output", "r", cwd=tmp_path).returncode == 0
    assert line in (tmp_path / "r/report.html").read_text()
    assert userblk("bundle", str(directory), "--output", "a.tar.gz", cwd=tmp_path).returncode == 0
    with tarfile.open(tmp_path / "a.tar.gz") as packed:
        for name in ("README.md", "tables/table.md"):
            file = packed.extractfile(f"made-up/{name}")
            assert file is not None and line in file.read().decode()


def test_what_is_missing_is_named_once(tmp_path: Path) -> None:
    """The whole of a suite or of a device, else a system or a workload, else a cell; of several suites each one's."""
    systems = [load_system(name) for name in ("native", "nbdkit", "fuse")]
    plan = small_plan(suite=load_suite("bdus"), systems=systems, workloads=["seq-read-1th-4k", "rand-read-1th-4k"])
    directory = create(plan, tmp_path, ["userblk", "run"])

    def missing(*wanted: dict[str, str]) -> str:
        """Where entries with such values have not ended."""
        for entry in plan.entries:
            target = directory / plan.directory(entry)
            target.mkdir(parents=True, exist_ok=True)
            (target / "DONE").touch()
            if any(all(getattr(entry, key) == value for key, value in one.items()) for one in wanted):
                (target / "DONE").unlink()
        found = missing_of(directory)
        assert len(found) < 2
        return "".join(found).removeprefix(f"{NOT_MEASURED} ").removesuffix(".")

    assert missing() == ""
    assert missing({"suite": "bdus-fs"}) == "bdus-fs (12 runs)"
    assert missing({"device": "sata"}) == "bdus-block sata (4 runs), bdus-fs sata (6 runs)"
    assert missing({"system": "nbdkit", "suite": "bdus-block"}) == "bdus-block nbdkit (4 runs)"
    assert missing({"workload": "rand-read-1th-4k", "suite": "bdus-fs"}) == "bdus-fs rand-read-1th-4k (6 runs)"
    one = {"suite": "bdus-fs", "device": "nvme", "workload": "rand-read-1th-4k"}
    assert missing(one) == "bdus-fs nvme rand-read-1th-4k (3 runs)"
    assert missing(one | {"system": "fuse"}) == "bdus-fs nvme rand-read-1th-4k fuse (1 run)"
    (directory / "plan.json").unlink()
    assert missing_of(directory) == ()
