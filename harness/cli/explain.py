# SPDX-License-Identifier: BSD-3-Clause
"""explain: where the time of a simulated campaign's cell goes."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from userblk.analysis import flame, stages
from userblk.analysis.explain import Explained, functions, places
from userblk.analysis.explain import stages as stages_report
from userblk.analysis.report import Report, as_csv
from userblk.analysis.summaries import lab_words
from userblk.analysis.table import DEVICES

from ..model.plan import Entry, Plan, read_plan, write_plan
from ..model.tables import ConfigError
from ..observing import instructions, perf_script
from ..running import explain_runner
from ..running.campaign import check_model, prepare_lab, take_guest
from ..running.explain_runner import DATA, KALLSYMS, PASSES, PLAIN, SAMPLED, SIDES, TRACED
from ..running.runner import valid_summary
from . import progress
from .common import Add, add_json, add_results, find_campaign, lab_errors, list_of, say
from .results import print_reports, write_reports
from .run import follow, lab_tree

NATIVE = "native"
UNIT = "instructions a request"
DIRECTORY = "explain"  # in the campaign's
EXIT_NOTHING = 1


def _check(plan: Plan) -> None:
    """Does its guest measure what explain needs? Raises ConfigError."""
    from userblk.lab.rootfs import OLD_RELEASES

    if Path(plan.build).name in OLD_RELEASES:
        raise ConfigError(
            f"campaign={plan.campaign}: its fio does not report when it measured; run one with a later LAB_RELEASE"
        )


def check_kernel(campaign: Path, release: str) -> None:
    """Is release, of the kernel that the lab has, what the campaign ran on, but for its fixes? Raises ConfigError."""
    summaries = map(_summary, (path.parent for path in campaign.glob("lab/*/*/*/*/*/summary.json")))
    ran_on = next((str(one["kernel"]) for one in summaries if one.get("kernel")), release)
    if ran_on.split(".")[:2] != release.split(".")[:2]:
        raise ConfigError(
            f"campaign={campaign.name}: ran on Linux {ran_on}, and the lab has {release};"
            " name the campaign's kernel with LAB_KERNEL, such as LAB_KERNEL=backports"
        )


def narrowed(
    plan: Plan, model: str, device: str, workload: str, systems: Sequence[str] | None, suite: str | None = None
) -> Plan:
    """
    The plan of what explains a cell: each pass of each system with the seed of the campaign's first run of it, native
    beside what is asked for. model: the present one. suite: the workload's; None: the only one that has it. Raises
    ConfigError.
    """
    if not plan.model:
        raise ConfigError(f"campaign={plan.campaign}: was not simulated; run one in the lab with --clock virtual")
    check_model(plan, model)
    known = {"device": plan.devices, "workload": dict.fromkeys(one.id for one in plan.suite.workloads)}
    for name, value in (("device", device), ("workload", workload)):
        if value not in known[name]:
            raise ConfigError(f"{name}={value}: the campaign has no such value; use one of {', '.join(known[name])}")
    for system in systems or ():
        if system not in plan.systems:
            raise ConfigError(f"system={system}: not in the campaign; use one of {', '.join(plan.systems)}")
    of_id = {one.suite: one for one in plan.suite.workloads if one.id == workload}
    if suite is None and len(of_id) > 1:
        raise ConfigError(f"workload={workload}: is of {' and '.join(of_id)}; name one: --suite")
    if suite not in (None, *of_id):
        raise ConfigError(f"suite={suite}: has no {workload} in the campaign; use one of {', '.join(of_id)}")
    chosen = of_id[suite or next(iter(of_id))]
    wanted = [name for name in plan.systems if systems is None or name in systems or name == NATIVE]
    cells = (chosen.id, chosen.suite)
    of_workload = [one for one in plan.entries if (one.workload, one.suite) == cells and one.repetition == 1]
    entries: list[Entry] = []
    for block, system in enumerate(wanted):
        of_system = [entry for entry in of_workload if entry.system == system]
        # To what has no device below, all are the same.
        first = next((entry for entry in of_system if entry.device == device), next(iter(of_system), None))
        if first is None:
            if systems and system in systems:
                raise ConfigError(f"system={system}: cannot run {workload}; leave it out")
            continue
        for repetition in PASSES:
            entries.append(dataclasses.replace(first, index=len(entries), block=block, repetition=repetition))
    profile = dataclasses.replace(plan.profile, repetitions=len(PASSES), max_repetitions=len(PASSES))
    used = {entry.system for entry in entries}
    return dataclasses.replace(
        plan,
        entries=tuple(entries),
        profile=profile,
        suite=dataclasses.replace(plan.suite, workloads=(chosen,), figures=()),
        systems={name: system for name, system in plan.systems.items() if name in used},
    )


def _script(plan: Plan, run: Path, fields: str, window: tuple[float, float]) -> Iterator[perf_script.Record]:
    """What perf recorded in a window of time, by the guest's own perf, which knows its programs. Raises ConfigError."""
    from userblk.lab.rootfs import die_with_parent, in_root

    tree = lab_tree(plan)
    files = ("--input", f"/extra/{DATA}", "--kallsyms", f"/extra/{KALLSYMS}")
    time = f"{window[0]:.9f},{window[1]:.9f}"
    argv = in_root(tree, ["perf", "script", "--force", "--ns", "--time", time, *files, "--fields", fields])
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "LAB_EXTRA": str(run)}
    errors = run / "perf-script.err"
    with errors.open("wb") as stream, subprocess.Popen(
        argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stream, text=True,
        errors="replace", preexec_fn=die_with_parent,
    ) as process:  # fmt: skip
        assert process.stdout
        yield from perf_script.records(process.stdout)
    if process.returncode:
        raise ConfigError(f"{run / DATA}: perf script ended with exit code {process.returncode}, see {errors}")


def _summary(run: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def _window(summary: Mapping[str, Any]) -> tuple[float, float]:
    begin = float(summary["measured_from_s"])
    return begin, begin + float(summary["duration_s"])


def _model() -> tuple[str, int]:
    """Names of the models, and the CPU's instructions a microsecond. Raises ConfigError."""
    from userblk.lab.models import cpu_model, model_names

    with lab_errors():
        return model_names(), cpu_model().instructions_per_us


def explained(plan: Plan, directory: Path, system: str, speed: int) -> Explained:
    """What the passes of a system show. speed: instructions a microsecond. Raises ConfigError."""
    runs = {e.repetition: directory / plan.directory(e) for e in plan.entries if e.system == system}
    summaries = {repetition: _summary(run) for repetition, run in runs.items()}
    metrics = summaries[PLAIN]["metrics"]
    each = metrics["cpu_percent"] / 100 * speed * 1e3 / metrics["throughput_kops"]
    found: dict[int, list[perf_script.Record]] = {}
    sides: dict[int, instructions.Sides] = {}
    for repetition, fields in ((SAMPLED, perf_script.SAMPLE_FIELDS), (TRACED, perf_script.TRACE_FIELDS)):
        found[repetition] = list(_script(plan, runs[repetition], fields, _window(summaries[repetition])))
        sides[repetition] = instructions.Sides(**json.loads((runs[repetition] / SIDES).read_text()))
    profile = instructions.profile(system, found[SAMPLED], sides[SAMPLED], _window(summaries[SAMPLED]), each)
    for repetition, records in found.items():
        if not records:
            raise ConfigError(
                f"{runs[repetition] / DATA}: contains no samples of the measured time; run the command again"
            )
    life = stages.life(system, found[TRACED], sides[TRACED], _window(summaries[TRACED]))
    slowed = 100 * (metrics["throughput_kops"] / summaries[TRACED]["metrics"]["throughput_kops"] - 1)
    return Explained(system, profile, life, slowed)


def explain_command(args: argparse.Namespace) -> int:
    campaign = find_campaign(args.campaign, args.results)
    model, speed = _model()
    whole = read_plan(campaign / "plan.json")
    plan = narrowed(whole, model, args.device, args.workload, list_of("system", args.system), args.suite)
    suite = plan.suite.workloads[0].suite
    _check(plan)
    for line in take_guest(whole, campaign):
        say(line)
    check_kernel(campaign, lab_tree(plan).release)
    directory = campaign / DIRECTORY / f"{args.device}-{suite}-{args.workload}"
    prepare_lab(plan)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    write_plan(plan, directory)
    say(f"Simulates {len(plan.systems)} systems, each three times: as it is, sampled, traced; into {directory}")
    display: progress.Display = progress.Lines(plan, tables=False)
    if args.json:
        display = progress.JsonLines()
    follow(plan, directory, display, explain_runner.__name__)
    done = {name: all(valid_summary(directory / plan.directory(e)) for e in plan.entries if e.system == name)
            for name in plan.systems}  # fmt: skip
    for name in [name for name, valid in done.items() if not valid]:
        say(f"{name}: a run of it is missing or invalid, so it is left out")
    found = [explained(plan, directory, name, speed) for name, valid in done.items() if valid]
    if not found:
        return EXIT_NOTHING
    title = f"{DEVICES.get(args.device, args.device)} {suite} {args.workload}"
    words = lab_words({"emulated": True, "model": plan.model})
    graphs = {one.system: one.profile.paths for one in found}
    reports: list[Report] = [make(title, words, found) for make in (places, functions, stages_report)]
    names = [*write_reports(reports, directory), *flame.draw(directory, f"{title}, {words}", graphs, UNIT)]
    if args.json:
        rows = {one.name: list(csv.DictReader(io.StringIO(as_csv(one)))) for one in reports}
        print(json.dumps({"event": "explained", **rows, "files": names}))
    else:
        print_reports(reports, Console())
        say(f"Written to {directory}: {', '.join(names)}")
    return 0 if all(done.values()) else 3


def add_commands(add: Add) -> None:
    sub = add(
        "explain",
        "show where the time of a simulated campaign's cell goes, by instructions and stages",
        explain_command,
    )
    sub.add_argument("campaign", metavar="CAMPAIGN", help="directory of the campaign, or its name below --results")
    sub.add_argument("--device", required=True, metavar="DEVICE", help="device of the cell, for example nvme")
    sub.add_argument(
        "--workload", required=True, metavar="WORKLOAD", help="workload of the cell, for example rand-read-1th-4k"
    )
    sub.add_argument("--suite", metavar="SUITE", help="suite of the workload, where several have it")
    sub.add_argument(
        "--system",
        metavar="LIST",
        help="systems, separated by commas, which are shown beside native (default: all of the campaign)",
    )
    add_json(sub, "print events as JSON, one per line; the last one contains all tables")
    add_results(sub)
