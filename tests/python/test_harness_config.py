# SPDX-License-Identifier: BSD-3-Clause
"""The configs as they are shipped, and what is said about wrong ones."""

from __future__ import annotations

import re
import shutil
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from userblk.harness.engines.base import device_engine
from userblk.harness.machine.paths import CONFIGS
from userblk.harness.model import tables
from userblk.harness.model.config import load_parameters, load_profile, load_suite, load_system
from userblk.harness.model.hosts import load_hosts
from userblk.harness.model.tables import ConfigError, names, parse_block_size, parse_bytes


def test_the_suite_has_the_papers_workloads_in_its_order() -> None:
    suite = load_suite("bdus-block")
    paper = [line.split(",")[1] for line in (CONFIGS / "papers/bdus/table1.csv").read_text().splitlines()[1:17]]
    assert [workload.id for workload in suite.workloads] == paper
    last = suite.workloads[-1]
    assert (last.rw, last.threads, last.block_size, last.writes) == ("randwrite", 16, 128 << 10, True)


def test_bdus_is_both_tables_in_their_order() -> None:
    files = (CONFIGS / "papers/bdus" / name for name in ("table1.csv", "table2.csv"))
    rows = [[line.split(",")[:2] for line in table.read_text().splitlines()[1:]] for table in files]
    paper = [workload for table in rows for device, workload in table if device == "SATA"]
    workloads = load_suite("bdus").workloads
    assert [workload.id for workload in workloads] == paper and len(paper) == 41
    assert [(w.suite, w.engine) for w in workloads] == [("bdus-block", "fio")] * 16 + [("bdus-fs", "flow")] * 25
    assert {w.id: w.files for w in workloads if w.threads == 1 and w.files} == {
        "create-1th": "createfile",
        "read-1th": "openfile",
        "delete-1th": "deletefile",
    }
    assert [w.id for w in workloads if w.macro] == ["file-server", "mail-server", "web-server"]


def test_every_parameter_has_a_reason_a_use_and_a_value_for_each_profile() -> None:
    parameters, choices = load_parameters()
    files = {workload.id: workload.file or workload.id for workload in load_suite("bdus-fs").workloads}
    for parameter in parameters:
        for pattern in parameter.workloads:
            used = [name for name in files if fnmatchcase(name, pattern)]
            assert used, pattern
            for name in used:
                text = (CONFIGS / f"workloads/{files[name]}.f").read_text()
                variable = "filesize" if parameter.variable == "size" else parameter.variable
                assert f"set ${variable}=" in text, (name, variable)
        assert all(parameter.value(p, d) for p in ("quick", "paper") for d in ("sata", "nvme"))  # pts has no files
    assert all(one.reason for one in parameters) and all(one.reason for one in choices)


def test_the_papers_values_are_those_of_the_workload_files() -> None:
    """Full size is what stock Filebench would run from the same file, but for the data workloads' and threads."""
    parameters, _ = load_parameters()
    for workload in load_suite("bdus-fs").workloads:
        text = (CONFIGS / f"workloads/{workload.file or workload.id}.f").read_text()
        found = dict(re.findall(r"^set \$(\w+)=(\w+)", text, re.MULTILINE))
        for parameter in parameters:
            if parameter.variable != "size" and any(fnmatchcase(workload.id, one) for one in parameter.workloads):
                stated = found[parameter.variable]
                assert parameter.value("paper", "sata") == parse_bytes(int(stated) if stated.isdigit() else stated)


def test_threads_have_files_of_their_own_which_they_go_through_once() -> None:
    parameters, _ = load_parameters()
    for workload in load_suite("bdus-fs").workloads:
        planned = device_engine("flow").with_values(workload, load_profile("paper"), parameters, ["sata", "nvme"])
        for device, area in (("sata", 64 << 30), ("nvme", 256 << 30)):
            values = planned.variables[device]
            assert values.get("nthreads", 0) == workload.threads, workload.id
            if workload.rw:
                assert (values["nfiles"], values["iosize"]) == (workload.threads, workload.block_size)
                assert values["filesize"] == values["iters"] * values["iosize"] == area // workload.threads


def test_everything_shipped_loads() -> None:
    assert {load_profile(name).name for name in names("profiles")} == {"quick", "paper", "pts"}
    systems = {name: load_system(name) for name in names("systems")}
    assert {"native", "nbdkit", "tcmu", "nbdkit-null", "tcmu-null"} <= systems.keys()
    without_device = [name for name, system in systems.items() if not system.uses_device]
    assert without_device == [
        "bdus-null", "buse-null", "fuse-null", "nbdkit-null", "nullfs", "nullfs-clone-fd", "nullfs-uring",
        "s3-null", "s3backer",
        "tcmu-null",
        "ublk-null",
        "vduse-null",
    ]  # fmt: skip
    assert systems["nbdkit"].queue["scheduler"] == "none"
    assert (systems["tcmu"].mode, systems["tcmu-threads"].mode) == ("", "handler")
    commands = {name: system for name, system in systems.items() if system.kind == "command"}
    assert {"nbdkit-file", "qemu-nbd", "s3backer", "bdus"} <= commands.keys()
    assert all(system.requires.programs for system in commands.values())
    assert commands["nbdkit-file"].requires.modules == ["nbd"] and commands["bdus"].stop[-1] == "{disk}"
    for name in names("hosts"):
        assert load_hosts(name).hosts


def test_the_paper_profile_is_the_papers() -> None:
    paper = load_profile("paper")
    assert (paper.ramp_s + paper.runtime_s, paper.repetitions, paper.reuse_system) == (900, 5, False)
    assert paper.max_repetitions > 5 and paper.half_width == 5
    assert paper.area == {"sata": 64 << 30, "nvme": 256 << 30}
    files = paper.files
    assert (files.ramp_s + files.runtime_s, files.ramp_s + files.macro_runtime_s) == (900, 3600)
    # The kernel's defaults are 20 and 10 % of what is there.
    both: list[Any] = [paper, files]
    for limits in both:
        assert limits.memory_bytes == 4 << 30
        assert (limits.dirty_bytes, limits.dirty_background_bytes) == ((4 << 30) // 5, (4 << 30) // 10)
    assert all(files.size[name] > paper.area[name] for name in paper.area)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("profiles/quick", "repetitions = 3", "repetitions = 0", "repetitions=0: must be an integer of at least 1"),
        ("profiles/quick", "repetitions = 3", "", "repetitions is missing"),
        ("profiles/quick", "repetitions = 3", "repetitions = 3\nrepetition = 4", "repetition=4: unknown key"),
        ("profiles/quick", "reuse_system = true", "reuse_system = 1", "reuse_system=1: must be true or false"),
        ("profiles/quick", 'sata = "2g"', "sata = 1147483648", "area.sata=1147483648: must be a multiple"),
        ("profiles/quick", 'sata = "2g"', 'sata = "2 GiB"', 'area.sata=2 GiB: must be bytes, as 4096, "4k"'),
        ("profiles/quick", 'sata = "2g"', "sata = true", "area.sata=True: must be bytes, as 4096"),
        ("profiles/quick", 'sata = "2g"', 'sata = "512k"', "area.sata=512k: must be at least 1048576 bytes"),
        ("profiles/quick", 'name = "quick"', 'name = "fast"', "name=fast: must be the file's name, quick"),
        ("profiles/quick", "ramp_s = 1", "ramp_s = ", "not valid TOML"),
        ("profiles/quick", "max_repetitions = 3", "max_repetitions = 2", "max_repetitions=2: must be at least 3"),
        ("profiles/quick", "half_width = 5", "half_width = -1", "half_width=-1: must be a number of at least 0"),
        ("profiles/quick", "half_width = 5", "half_width = nan", "half_width=nan: must be a number of at least 0"),
        ("profiles/quick", "runtime_s = 2", "runtime_s = inf", "runtime_s=inf: must be a number of at least 0.1"),
        ("profiles/quick", "half_width = 5", "half_width = 5\nfixed_warm_up = true", "fixed_warm_up=True: unknown key"),
        ("systems/nbdkit-file", '"{device}"', '"{disc}"', "server={disc}: {disc} is unknown; use one of {device},"),
        ("systems/nbdkit-file", '"{device}"', '"{device"', "server={device: expected '}'"),
        ("systems/nbdkit-file", '"{socket}"', '"/s"', "disk=nbd needs {socket} in it"),
        ("systems/nbdkit-file", 'disk = "nbd"', 'disk = "usb"', "disk=usb: must be one of nbd, output, loop"),
        ("systems/nbdkit-file", 'modules = ["nbd"]', "modules = [5]", "requires.modules=5: must be a list of strings"),
        ("systems/nbdkit-file", "uses_device = true", "", "uses_device is missing"),
        ("systems/nbdkit-file", "timeout_s = 120", "timeout = 120", "timeout_s is missing"),
        ("systems/bdus", 'disk = "output"', 'disk = "output"\nfile = "x"', "file=x: unknown key; known are name,"),
        (
            "hosts/example",
            '"/var/lib/userblk"',
            '"~/parts"',
            "directory=~/parts: must begin with /, as a path on each host",
        ),
        ("hosts/example", '"/opt/userblk"', '"userblk"', "userblk=userblk: must begin with /, as a path on each host"),
        ("hosts/example", '"root@nvme.example"]\n\n#', '"root@other"]\n\n#', "root@other is missing"),
        ("hosts/example", 'sata = "/dev/sdb"', "", "root@sata.example: names no device"),
        ("hosts/example", "{ nvme =", "{ sata =", "root@nvme.example.confirm.nvme is missing"),
        ("hosts/example", 'id = "fast"', 'id = "sata.example"', "two have the same id"),
        ("hosts/example", 'directory = "/var', 'directories = "/var', "directories=/var/lib/userblk: unknown key"),
        ("suites/bdus-block", '"4k"', '"5k"', "block_sizes=5k: must be a power of two"),
        ("suites/bdus-block", '"read"', '"reed"', "modes.seq-read=reed: must be one of read,"),
        ("suites/bdus-block", "[1, 16]", "[]", "must be a list with at least one value"),
        ("systems/nbdkit", '"passthrough"', '"pass"', "device=pass: must be one of passthrough, null"),
        ("systems/nbdkit", 'scheduler = "none"', 'sheduler = "none"', "queue.sheduler=none: unknown key"),
        ("systems/tcmu", "threads = 16", 'threads = "16"', "threads=16: must be an integer"),
        ("systems/tcmu-threads", '"handler"', '"mine"', "mode=mine: must be one of handler"),
        ("systems/fuse", "options = []", "options = []\nthreads = 5", "threads=5: unknown key"),
        ("systems/fuse", "[negotiated]", "[agreed]", "negotiated is missing"),
        ("profiles/quick", "macro_runtime_s = 3", "macro_runtime_s = 0", "files.macro_runtime_s=0: must be"),
        (
            "profiles/quick",
            '[files.size]\nsata = "2g"',
            "[files.size]\nsata = 1147483648",
            "files.size.sata=1147483648:",
        ),
        ("profiles/quick", 'dirty_bytes = "256m"', "dirty_bytes = 0", "files.dirty_bytes=0: set both"),
        ("suites/bdus-fs", '"createfile"', '"makefile"', "metadata.create=makefile: must be one of createfile,"),
        ("suites/bdus-fs", "[macro]", "[macros]", "macro is missing"),
        ("suites/s3", 'x = "block_size"', 'x = "size"', "figure 1: x=size: must be one of block_size, jobs"),
        ("suites/s3", "[0, 20]", "[-1]", "latencies_ms=-1: must be a whole number of milliseconds"),
        ("suites/s3", "depths = [1, 32]", "depths = [0]", "figure 1: quick.depths=0: must be an integer"),
        ("suites/s3", '"4k", "64k"', '"4k", "5k"', "figure 1: quick.block_sizes=5k: must be a power of two"),
        ("suites/s3", "[figure.quick]", "[figure.fast]", "figure 1: quick is missing"),
        ("systems/s3-null", 'client = "fio"', 'client = "file"', 'client=file: must be "file" for s3backer'),
        ("systems/s3", 'device = "s3"', 'device = "s4"', "device=s4: must be one of s3,"),
        ("profiles/quick", 'size = "512m"', "size = 536870913", "store.size=536870913: must be a multiple"),
        ("systems/loop", 'kind = "loop"', 'kind = "loop"\ndevice = "null"', "device=null: unknown key"),
        ("suites/bdus", '"bdus-fs"]', '"bdus-fs"]\nengine = "fio"', "engine=fio: unknown key"),
    ],
)
def test_a_wrong_key_is_named(
    file: str, old: str, new: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(CONFIGS, tmp_path / "configs")
    path = tmp_path / f"configs/{file}.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    monkeypatch.setattr(tables, "CONFIGS", tmp_path / "configs")
    kind, name = file.split("/")
    load: Any = {"profiles": load_profile, "suites": load_suite, "systems": load_system, "hosts": load_hosts}[kind]
    with pytest.raises(ConfigError) as error:
        load(name)
    assert str(error.value).startswith(f"configs/{file}.toml: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value).rstrip("\n")


def test_a_wrong_parameter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(CONFIGS, tmp_path / "configs")
    monkeypatch.setattr(tables, "CONFIGS", tmp_path / "configs")
    path = tmp_path / "configs/workloads/parameters.toml"
    text = path.read_text()
    for old, new, message in (
        ("quick = 12000", "quick = 0", "parameter 3: quick=0: must be a whole number"),
        ('quick = "512m"', 'quick = "512x"', "parameter 1: quick=512x: must be"),
        ('workloads = ["file-server"]', "workloads = []", "workloads=[]: must be a list"),
        ('what = "discard"', "", "what is missing"),
    ):
        assert old in text
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(ConfigError) as error:
            load_parameters()
        assert str(error.value).startswith("configs/workloads/parameters.toml: ") and message in str(error.value)


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="system=nbd: unknown; use one of bdus, bdus-null, bindfs, buse, buse-null,"):
        load_system("nbd")
    with pytest.raises(ConfigError, match=r"profile=\.\./x: unknown"):
        load_profile("../x")


def test_block_sizes() -> None:
    assert [parse_block_size(text) for text in ("512", "4k", "128k", "1m")] == [512, 4096, 131072, 1048576]
    for text in ("", "0", "3k", "256", "4K", "-4k"):
        with pytest.raises(ValueError):
            parse_block_size(text)
