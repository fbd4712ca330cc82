# SPDX-License-Identifier: BSD-3-Clause
"""doctor, systems, workloads, papers, lab, completion: about this machine and the configuration, no campaign."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from typing import Any

from userblk.analysis import papers

from ..machine import paths
from ..model import config, tables
from ..model.tables import NeedsCheckout
from . import completion, doctor
from .common import Add, add_json, print_json

EXIT_MISSING = 3  # doctor: something is missing for what was asked about


def _verdict(found: list[doctor.Finding]) -> str:
    """Where campaigns can run, for those who do not want to count the lines."""
    here, lab = (next(one.ready for one in found if one.kind == kind) for kind in ("base", "lab"))
    systems = [one.ready for one in found if one.kind == "system"]
    answer = f"yes, with {sum(systems)} of {len(systems)} systems" if here else "no"
    return f"Can campaigns run on this machine? {answer}. In the lab? {'yes' if lab else 'no'}."


def doctor_command(args: argparse.Namespace) -> int:
    """Returns EXIT_MISSING if neither this machine nor the lab can measure."""
    found = doctor.examine()
    if args.json:
        print_json([{"ready": one.ready, **dataclasses.asdict(one)} for one in found])
    else:
        for one in found:
            print(f"{'ready  ' if one.ready else 'MISSING'}  {one.kind:8} {one.name}")
            for need in one.missing:
                print(f"                    {need.what}: {need.fix}")
            for need in one.needs:
                if need.met and need.told:
                    print(f"                    {need.what}")
        print(_verdict(found))
    return 0 if any(one.ready for one in found if one.kind in ("base", "lab")) else EXIT_MISSING


def systems_command(args: argparse.Namespace) -> int:
    rows = []
    for name in tables.names("systems"):
        system = config.load_system(name)
        missing = [need.what for need in doctor.system_needs(system) if not need.met]
        about = tables.description("systems", name)
        rows.append({"name": name, "kind": system.kind, "about": about, "missing_here": missing})
    if args.json:
        print_json(rows)
        return 0
    width = max(len(str(row["name"])) for row in rows)
    for row in rows:
        print(f"{row['name']:{width}}  {row['kind']:9} {row['about']}")
        if row["missing_here"]:
            print(f"{'':{width}}  not on this machine: {', '.join(map(str, row['missing_here']))}")
    return 0


def workloads_command(args: argparse.Namespace) -> int:
    """List the workloads of one suite, or of those that are made of no others."""
    suites = [args.suite] if args.suite else tables.names("suites")
    found = {
        (workload.suite, workload.id): workload for name in suites for workload in config.load_suite(name).workloads
    }
    rows = [
        {
            "suite": workload.suite,
            "id": workload.id,
            "engine": workload.engine,
            "rw": workload.rw,
            "threads": workload.threads,
            "block_size": workload.block_size,
        }
        for workload in found.values()
    ]
    if args.json:
        print_json(rows)
        return 0
    for row in rows:
        print(f"{row['suite']:12} {row['id']:24} {row['engine']}")
    return 0


def papers_command(args: argparse.Namespace) -> int:
    """The results to compare with, and which of them this machine can measure."""
    rows: list[dict[str, Any]] = []
    for paper in papers.load_papers(paths.CONFIGS):
        missing = {}
        for name in paper.systems:
            if name not in tables.names("systems"):
                missing[name] = "no such system here"
                continue
            if lacks := doctor.lacks(doctor.system_needs(config.load_system(name))):
                missing[name] = lacks
        rows.append(
            {
                "name": paper.name,
                "title": paper.title,
                "source": paper.source,
                "suites": paper.all_suites,
                "numbers": paper.numbers,
                "claims": len(paper.claims),
                "systems": paper.systems,
                "missing_here": missing,
                "stand_ins": dict(paper.environment["instead"]),
                "absent": dict(paper.absent),
            }
        )
    if args.json:
        print_json(rows)
        return 0
    for row in rows:
        print(f"{row['name']}: {row['title']} ({row['source']})")
        print(f"  compare    {row['numbers']:,} numbers, {row['claims']} claims; suites {', '.join(row['suites'])}")
        ready = [name for name in row["systems"] if name not in row["missing_here"]]
        print(f"  runs here  {', '.join(ready) or 'none of its systems'}")
        for head, what in (("not here", "missing_here"), ("stand-in", "stand_ins"), ("nowhere", "absent")):
            for name, reason in row[what].items():
                print(f"  {head:10} {name}: {reason}")
    return 0


def completion_command(args: argparse.Namespace) -> int:
    sys.stdout.write(completion.bash(args.parser()))
    return 0


def lab_command(args: argparse.Namespace) -> int:
    """Becomes lab/build or lab/run."""
    if paths.CHECKOUT is None:
        raise NeedsCheckout("lab: needs a checkout of userblk; run bin/userblk there")
    program = {"build": "build", "run": "run", "shell": "run"}[args.action]
    words = [*args.arguments, "--tty", "--timeout", "0", "bash"] if args.action == "shell" else args.arguments
    path = str(paths.CHECKOUT / "lab" / program)
    os.execv(path, [path, *words])


def add_commands(add: Add) -> None:
    about = add("doctor", "show what this machine can run, what is missing, and how to install it", doctor_command)
    add_json(about)
    systems = add("systems", "list the systems that can be measured", systems_command)
    add_json(systems)
    workloads = add("workloads", "list the workloads", workloads_command)
    workloads.add_argument("--suite", metavar="NAME", help="list those of one suite only (default: all)")
    add_json(workloads)
    known = add("papers", "list the papers to compare campaigns with, and what of each can run here", papers_command)
    add_json(known)
    lab = add("lab", "build the lab, run a command in it, or get a shell in it", lab_command)
    lab.add_argument("action", choices=("build", "shell", "run"), help="what to do with the lab")
    rest = lab.add_argument("arguments", nargs=argparse.REMAINDER, help="see lab/build --help, lab/run --help")
    rest.required = False  # argparse would name them beside the action where that is missing
    shell = add("completion", "print the completion of userblk for a shell", completion_command)
    shell.add_argument("shell", choices=("bash",), help='load it with: eval "$(userblk completion bash)"')
