# SPDX-License-Identifier: BSD-3-Clause
"""doctor, systems, workloads, lab, completion: about this machine and the configuration, not about a campaign."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys

from .. import completion, config, doctor, paths
from ..config import ConfigError
from .common import Add, add_json, print_json

EXIT_MISSING = 3  # doctor: something is missing for what was asked about


def doctor_command(args: argparse.Namespace) -> int:
    """Returns EXIT_MISSING if neither this machine nor the lab can measure."""
    found = doctor.examine()
    if args.json:
        print_json([{"ready": one.ready, **dataclasses.asdict(one)} for one in found])
    else:
        for one in found:
            print(f"{'ready  ' if one.ready else 'MISSING'}  {one.kind:8} {one.name}")
            for need in one.missing:
                print(f"                    {need.what}: {need.mend}")
            for need in one.needs if one.kind == "device" else ():
                if need.met:
                    print(f"                    {need.what}")
    return 0 if any(one.ready for one in found if one.kind in ("base", "lab")) else EXIT_MISSING


def systems_command(args: argparse.Namespace) -> int:
    rows = []
    for name in config.names("systems"):
        system = config.load_system(name)
        missing = [need.what for need in doctor.system_needs(system) if not need.met]
        about = config.description("systems", name)
        rows.append({"name": name, "kind": system.kind, "about": about, "missing_here": missing})
    if args.json:
        print_json(rows)
        return 0
    width = max(len(str(row["name"])) for row in rows)
    for row in rows:
        print(f"{row['name']:{width}}  {row['kind']:8} {row['about']}")
        if row["missing_here"]:
            print(f"{'':{width}}  not on this machine: {', '.join(map(str, row['missing_here']))}")
    return 0


def workloads_command(args: argparse.Namespace) -> int:
    """Of one suite, or of those that are made of no others."""
    suites = [args.suite] if args.suite else config.names("suites")
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


def completion_command(args: argparse.Namespace) -> int:
    sys.stdout.write(completion.bash(args.parser()))
    return 0


def lab_command(args: argparse.Namespace) -> int:
    """Becomes lab/build or lab/run."""
    if paths.CHECKOUT is None:
        raise ConfigError("lab: needs a checkout of userblk; run bin/userblk there")
    program = {"build": "build", "run": "run", "shell": "run"}[args.action]
    words = [*args.arguments, "--tty", "--timeout", "0", "bash"] if args.action == "shell" else args.arguments
    path = str(paths.CHECKOUT / "lab" / program)
    os.execv(path, [path, *words])


def add_commands(add: Add) -> None:
    about = add("doctor", "what this machine can run, what is missing, and the command that mends it", doctor_command)
    add_json(about)
    systems = add("systems", "list the systems that can be measured", systems_command)
    add_json(systems)
    workloads = add("workloads", "list the workloads", workloads_command)
    workloads.add_argument("--suite", metavar="NAME", help="list those of one suite only (default: all)")
    add_json(workloads)
    lab = add("lab", "build the lab, run a command in it, or get a shell in it", lab_command)
    lab.add_argument("action", choices=("build", "shell", "run"))
    lab.add_argument("arguments", nargs=argparse.REMAINDER, help="see lab/build --help, lab/run --help")
    shell = add("completion", "print the completion of userblk for a shell", completion_command)
    shell.add_argument("shell", choices=("bash",))
