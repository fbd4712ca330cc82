# SPDX-License-Identifier: BSD-3-Clause
"""Suite fuse45: its workloads are those of the published numbers, its shapes do what they say, its classes."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from synthetic import ENVIRONMENT, make_campaign
from userblk.analysis.paper import compare_with_paper
from userblk.analysis.paper_cells import Verdict
from userblk.analysis.paper_claims import ClaimVerdict
from userblk.analysis.papers import load_paper
from userblk.analysis.summaries import read_campaign
from userblk.analysis.table import graded
from userblk.analysis.tabulate import make_tables
from userblk.harness.engines.flow import argv
from userblk.harness.machine.paths import CONFIGS, HOST_BUILD
from userblk.harness.model import tables
from userblk.harness.model.config import Profile, Workload, load_profile, load_suite, load_system
from userblk.harness.model.plan import Device, Plan, make_plan
from userblk.harness.model.tables import ConfigError, parse_bytes
from userblk.harness.running.campaign import lab_devices

ROOT = Path(__file__).parents[2]
FLOW = HOST_BUILD / "flow/userblk-flow"
FAST17, TERRA = load_paper("fast17", CONFIGS), load_paper("terra", CONFIGS)
SUITES = ("fuse45", "fuse45-terra")


def planned(suite: str, profile: str) -> dict[str, Workload]:
    plan = make_plan(
        suite=load_suite(suite),
        profile=load_profile(profile),
        systems=[load_system("native")],
        devices=[Device("sata", "/dev/null", "1")],
        campaign="c",
        build="b",
    )
    return {workload.id: workload for workload in plan.suite.workloads}


@pytest.mark.parametrize("suite", SUITES)
def test_its_45_workloads_are_those_of_the_published_numbers(suite: str) -> None:
    rows = csv.DictReader((CONFIGS / "papers/fast17/results.csv").open())
    assert [workload.id for workload in load_suite(suite).workloads] == list(
        dict.fromkeys(row["workload"] for row in rows)
    )
    assert len(load_suite(suite).workloads) == 45 and FAST17.numbers == 270
    assert len({workload.file for workload in load_suite(suite).workloads}) == 7 + 3


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("profile", ["quick", "paper"])
def test_every_variable_is_one_of_the_workloads_file(suite: str, profile: str) -> None:
    for workload in planned(suite, profile).values():
        text = (CONFIGS / f"workloads/{workload.file}.f").read_text()
        known = set(re.findall(r"^set \$(\w+)=", text, re.MULTILINE))
        assert set(workload.variables["sata"]) <= known, workload.id
        if workload.block_size:
            assert {"filesize", "iters", "iosize", "nthreads", "nfiles"} <= set(workload.variables["sata"])


def test_full_sizes_are_the_published_ones() -> None:
    fast, terra = planned("fuse45", "paper"), planned("fuse45-terra", "paper")
    gib = 1 << 30
    for name, filesize, each in (
        ("seq-read-1th-1f-4k", 60 * gib, 60 * gib),
        ("seq-read-32th-1f-128k", 60 * gib, 60 * gib),
        ("seq-read-32th-32f-1m", 2 * gib, 15 * gib // 8),
        ("seq-write-32th-32f-32k", 2 * gib, 15 * gib // 8),
        ("rand-read-32th-1f-4k", 60 * gib, 60 * gib // 32),
    ):
        values = fast[name].variables["sata"]
        assert (values["filesize"], values["iters"] * values["iosize"]) == (filesize, each), name
    assert terra["rand-write-1th-1f-4k"].variables["sata"]["filesize"] == 30 * gib
    assert terra["seq-write-32th-32f-1m"].variables["sata"]["filesize"] == gib
    assert fast["delete-32th"].variables["sata"]["nfiles"] == 4_000_000
    assert terra["delete-1th"].variables["sata"]["dirwidth"] == 800_000


def plan_of(suite: str, profile: Profile) -> Plan:
    return make_plan(
        suite=load_suite(suite),
        profile=profile,
        systems=[load_system("native")],
        devices=lab_devices("virtual"),
        campaign="c",
        build="b",
        model="cpu-1" if profile.virtual else "",
    )


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("profile", [load_profile("paper"), load_profile("quick"), load_profile("quick", virtual=True)])
def test_files_are_read_once(suite: str, profile: Profile) -> None:
    """
    Open, read, close. Filebench's 4,000,000 operations on 1,000,000 files have the finishoncount after each among
    them. With as many of ours, a quarter of the files that were opened had been read before: they were cached.
    """
    plan = plan_of(suite, profile)
    for workload in plan.suite.workloads:
        if workload.file == "read":
            for values in workload.variables.values():
                assert values["finish"] == 3 * values["nfiles"], (workload.id, values)


@pytest.mark.parametrize("suite", [*SUITES, "rfuse-fio", "rfuse-macro", "ufs-files"])
def test_files_fit_the_disks_of_virtual_time(suite: str) -> None:
    profile = load_profile("quick", virtual=True)
    plan = plan_of(suite, profile)
    for workload in plan.suite.workloads:
        for device, values in workload.variables.items():
            if "size" not in values:
                text = (CONFIGS / f"workloads/{workload.file}.f").read_text()
                (each,) = re.findall(r"^set \$filesize=(\w+)", text, re.MULTILINE)
                values = {"size": values["nfiles"] * values.get("filesize", parse_bytes(each))}
            assert values["size"] < 0.85 * profile.files.size[device], (workload.id, device)


@pytest.mark.parametrize("name", ["seq-read", "rand-read", "rand-write", "seq-write", "create", "read", "delete"])
@pytest.mark.parametrize("shared", [True, False])
def test_shapes_do_what_their_names_say(name: str, shared: bool, tmp_path: Path) -> None:
    """Four threads on one file or one each, or on twenty small files."""
    values = {"nthreads": 4, "nfiles": 1 if shared and name != "seq-write" else 4, "runtime": 20}
    values |= {"filesize": 65536, "iosize": 4096, "iters": 16}
    data = name not in ("create", "read", "delete")
    if not data:
        values = {"nthreads": 4, "nfiles": 20, "runtime": 20} | ({"finish": 60} if name == "read" else {})
    workload = Workload("w", engine="flow", file=name, variables={"sata": values})
    made = tmp_path / "made"
    made.mkdir()
    for phase in ("create", "run"):
        words = argv(FLOW, workload, "sata", made, tmp_path, 1, phase, f"--json={tmp_path / 'flow.json'}")
        subprocess.run(words, check=True, timeout=60)
    report = json.loads((tmp_path / "flow.json").read_text())
    assert report["end"] == "all-done" and report["threads"] == 4
    counts = {row["type"]: row["ops"] for row in report["flowops"]}
    if data:
        operation = name.split("-")[1]
        assert counts[operation] == 4 * 16 and report["summary"]["bytes"] == 4 * 65536
        files = [path for path in made.rglob("*") if path.is_file()]
        assert len(files) == values["nfiles"]
    else:
        assert counts[{"create": "createfile", "read": "openfile", "delete": "deletefile"}[name]] >= 20


# ---- comparison ---------------------------------------------------------------------------


def test_published_classes() -> None:
    """As counted from the published raw results."""
    (table,) = FAST17.tables.values()
    found: dict[tuple[str, str], Counter[str]] = {}
    for (device, _, system, _), cell in graded(table, FAST17.grades, "").cells.items():
        assert cell.grade is not None
        found.setdefault((device, system), Counter())[cell.grade.name] += 1
    names = [grade.name for grade in FAST17.grades]
    assert {key: [counts[name] for name in names] for key, counts in found.items()} == {
        ("hdd", "stackfs"): [23, 7, 15, 0],
        ("hdd", "stackfs-opt"): [29, 10, 5, 1],
        ("ssd", "stackfs"): [27, 5, 12, 1],
        ("ssd", "stackfs-opt"): [29, 4, 11, 1],
    }


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    speed = {"native": 1.0, "stackfs": 0.5, "stackfs-opt": 0.97}
    place = tmp_path_factory.mktemp("fuse45") / "results"
    return make_campaign(place, repetitions=2, suite="fuse45", systems=list(speed), speed=speed, emulated=False)


def test_a_campaign_beside_the_published_numbers(campaign: Path) -> None:
    read = read_campaign(campaign)
    found = compare_with_paper([read], make_tables(read.runs), FAST17)
    (table,) = found.ours.values()
    names = [workload for _, workload in table.rows]
    assert names[:2] == ["create-1th", "create-32th"]  # and not first what Table 2 has, too
    assert names.index("seq-read-1th-1f-4k") + 1 == names.index("seq-read-1th-1f-32k")
    verdicts = Counter((cell.device, cell.verdict) for cell in found.cells)
    assert verdicts == {("hdd", Verdict.NOT_MEASURED): 135, ("ssd", Verdict.NOT_COMPARABLE): 135}
    reasons = {reason for cell in found.cells if cell.system == "stackfs" for reason in cell.reasons}
    assert "userblk-passthrough with StackFS's options, not StackFS" in reasons
    assert "135 of the paper's 270 numbers are measured, 0 comparable" in found.summary[0]
    claims = {ours.claim.id: ours for ours, _ in compare_with_paper([read], make_tables(read.runs), TERRA).claims}
    assert claims["green-desktop-ssd"].verdict is ClaimVerdict.FAILS  # half of native's everywhere
    assert claims["no-red"].verdict is ClaimVerdict.OPEN and claims["no-red"].missing == 90
    assert claims["green-hdd"].verdict is ClaimVerdict.NOT_MEASURED


def test_a_hard_disk_stands_for_the_hard_disk(campaign: Path, tmp_path: Path) -> None:
    turning = ENVIRONMENT | {"devices": {"sata": {"model": "Made-up", "rotational": True}}}
    for file in campaign.glob("*/*/*/*/*/*/environment.json"):
        file.write_text(json.dumps(turning))
    try:
        read = read_campaign(campaign)
        cells = compare_with_paper([read], make_tables(read.runs), FAST17).cells
        assert {cell.device for cell in cells if cell.shape is not None} == {"hdd"}
    finally:
        for file in campaign.glob("*/*/*/*/*/*/environment.json"):
            file.write_text(json.dumps(ENVIRONMENT))


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ("terminal", " O"),
        ("markdown", " O |"),
        ("csv", "relative_StackFS"),
        ("csv-long", ",orange"),
        ("latex", r"\cellcolor[HTML]{FBCF9D}"),
        ("html", "background:#fbcf9d"),
        ("json", '"marks": "orange"'),
    ],
)
def test_classes_are_shown_in_every_form(campaign: Path, form: str, says: str) -> None:
    words = [str(ROOT / "bin/userblk"), "table", campaign.name, "--classes", "fast17", "--format", form]
    done = subprocess.run(words, cwd=campaign.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout and "create-1th" in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('file = "seq-write"', 'file = "sq-write"', "file=sq-write: configs/workloads/sq-write.f is missing"),
        ('parameters = "fast17"', 'parameters = "fast71"', "parameters=fast71: configs/papers/fast71"),
        ("macro = true", "makro = true", "makro=True: unknown key"),
        ('stands_for = "deletefile"', 'stands_for = "unlink"', "stands_for=unlink: must be one of"),
        ("threads = [32]", "threads = [0]", "threads=0: must be an integer"),
    ],
)
def test_a_wrong_suite_is_named(old: str, new: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs/suites").mkdir(parents=True)
    for part in ("papers", "workloads"):
        (tmp_path / "configs" / part).symlink_to(CONFIGS / part)
    text = (CONFIGS / "suites/fuse45.toml").read_text()
    assert old in text
    (tmp_path / "configs/suites/fuse45.toml").write_text(text.replace(old, new))
    monkeypatch.setattr(tables, "CONFIGS", tmp_path / "configs")
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_suite("fuse45")
