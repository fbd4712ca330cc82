# SPDX-License-Identifier: BSD-3-Clause
"""run, resume: carry a campaign out and show its results."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from userblk.analysis import costs
from userblk.analysis.suites import reports_of
from userblk.analysis.summaries import read_json

from ..machine import interrupt
from ..machine.blockdev import opened
from ..model.plan import Plan, estimate, read_plan
from ..model.tables import ConfigError
from ..observing import host_load
from ..running import hosts
from ..running.campaign import (
    CAMPAIGN,
    EXTRA_DIRECTORY,
    KERNEL,
    Event,
    RunnerProcess,
    check_model,
    create,
    named_extra,
    note_host,
    prepare_lab,
    runner_argv,
    take_guest,
)
from ..running.guests import Guests
from ..running.runner import EXIT_PARTLY, cannot_keep
from . import progress
from .common import (
    Add,
    add_json,
    add_results,
    find_campaign,
    how_to_resume,
    lab_errors,
    output_fails,
    say,
    write_file,
)
from .plan import (
    JSON_HELP,
    SUBJECTS,
    add_plan_options,
    beside,
    lay_out,
    lay_out_hosts,
    named,
    place_line,
    plan_lines,
    remote_place,
    show_plans,
)
from .results import print_reports, print_tables, tables_of, write_reports, write_tables

if TYPE_CHECKING:
    from userblk.lab.rootfs import Tree

TICK = 0.5  # s
LOAD_LOOK = 1.0  # s, before a campaign
COSTS = "costs.csv"
LOG = "userblk.log"  # of a detached campaign, in its directory


def run_command(args: argparse.Namespace) -> int:
    if args.dry_run:
        return show_plans(args)
    if args.hosts:
        found, plans = lay_out_hosts(args)
        say("\n".join(line for plan in plans for line in plan_lines(plan, remote_place(plan))))
        directory = hosts.create_all(found, plans, args.results.absolute(), sys.argv, named(args))
        return detached(directory) if args.detach else carry_out_hosts(directory, args.json)
    plan, place = lay_out(args)
    say(place_line(place, plan.model) if place.lab else "\n".join(plan_lines(plan, place)))
    prepare(plan)
    directory = create(plan, args.results.absolute(), sys.argv, guest_of(plan), named(args))
    return detached(directory) if args.detach else carry_out(plan, directory, args.json)


def detached(directory: Path) -> int:
    """Let another process carry the campaign out, which a logout does not end."""
    log = directory / LOG
    argv = [sys.executable, os.path.abspath(sys.argv[0]), "resume", str(directory)]
    env = dict(os.environ)
    for variable in (EXTRA_DIRECTORY, KERNEL):  # may be paths from here; the campaign has kept them
        env.pop(variable, None)
    with log.open("wb") as stream:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True, cwd="/", env=env
        )
    say(f"Process {child.pid} runs it, also after a logout, and writes {log}; kill -INT {child.pid} ends it cleanly.")
    say(f"Show its progress with: userblk status {directory}")
    return 0


def resume_command(args: argparse.Namespace) -> int:
    directory = find_campaign(args.campaign, args.results)
    if not os.access(directory, os.W_OK):
        raise ConfigError(f"campaign={directory}: cannot be written; copy it to where it can be, or run as its owner")
    if hosts.is_one(directory):
        return carry_out_hosts(directory, args.json)
    plan = read_plan(directory / "plan.json")
    check_present_model(plan)
    for line in [*take_guest(plan, directory), *note_host(plan, directory)]:
        say(line)
    prepare(plan)
    return carry_out(plan, directory, args.json)


def check_present_model(plan: Plan) -> None:
    """Are a simulated plan's models those that the lab has? Results say which it is. Raises ConfigError."""
    if not plan.model:
        return
    from userblk.lab.models import model_names  # which only a checkout has

    with lab_errors():
        check_model(plan, model_names())


def prepare(plan: Plan) -> None:
    """Build what the campaign needs and what is not there. Raises ConfigError."""
    if plan.emulated:
        prepare_lab(plan)
    SUBJECTS[plan.suite.engine.measures].prepare(plan)


def lab_tree(plan: Plan) -> Tree:
    """The root file system of the lab's guest, with the kernel that LAB_KERNEL names. Raises ConfigError."""
    from userblk.lab import KERNELS, Variant  # which only a checkout has
    from userblk.lab.rootfs import ensure_tree

    with lab_errors():
        return ensure_tree(Variant(Path(plan.build).name, os.environ.get("LAB_KERNEL") or KERNELS[0]))


def guest_of(plan: Plan) -> dict[str, str]:
    """What the lab's guest consists of; {} of another plan. Raises ConfigError."""
    if not plan.emulated:
        return {}
    from userblk.lab.images import guest_identity

    tree = lab_tree(plan)
    with lab_errors():
        return guest_identity(tree, named_extra() or None)


@contextmanager
def only_here(directory: Path) -> Iterator[None]:
    """
    Keep other processes from carrying the same campaign out, as two guests would, which no lock of a machine keeps from
    each other. Raises ConfigError.
    """
    with opened(str(directory), os.O_RDONLY) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"campaign={directory}: another process carries it out; wait for its end") from None
        except OSError:
            pass  # a file system that has no locks
        yield


def carry_out(plan: Plan, directory: Path, as_json: bool) -> int:
    """Run what is left of a campaign and show it. Returns the runner's exit code."""
    expected = estimate(plan)
    say(f"{expected.runs} runs, about {progress.duration(expected.seconds / beside(plan))} (h:mm:ss), into {directory}")
    console = Console()
    display: progress.Display
    with ExitStack() as stack:
        stack.enter_context(only_here(directory))
        if as_json:
            display = progress.JsonLines()
        elif console.is_terminal and not console.is_dumb_terminal:
            display = screen = progress.Screen(plan, console)
            stack.enter_context(screen.shown())
        else:
            display = progress.Lines(plan)
        left_out = progress.LeftOut(display)
        code = follow(plan, directory, left_out)
    if code and not directory.exists():
        return code  # which has been said
    with suppress(*(ConfigError,) * bool(code)):  # where the campaign was stopped by what keeps this from being written
        show_results(directory, as_json)
    if code:
        say(f"Not every run is done and valid (runner's exit code {code}). {how_to_resume(directory)}")
    return all_that_was_named(directory, left_out.reasons, code)


def all_that_was_named(directory: Path, left_out: Mapping[str, int], code: int) -> int:
    """
    Say what was left out: how many runs, by the reason, which begins with the name. Returns the exit code, of which the
    runner's is code: not 0 if something was named.
    """
    asked = read_json(directory / CAMPAIGN).get("named", ()) if left_out else ()
    for reason, runs in left_out.items():
        missed = reason.partition(":")[0] in asked
        code = code or EXIT_PARTLY * missed
        what = "NOT measured, although it was named" if missed else "Left out"
        say(f"{what}: {reason} ({runs} run{'s' * (runs > 1)}).")
    return code


def show_results(directory: Path, as_json: bool) -> None:
    """Print a campaign's tables, unless standard output is for programs, and write them."""
    tables, reports = tables_of(directory), reports_of(directory)
    if counted := [] if tables or reports else costs.load_costs(directory):
        write_file(directory / COSTS, costs.as_csv(counted))
        if not as_json:
            Console().print("", costs.terminal(counted), sep="\n")
        say(f"Results are in {directory}, costs in {COSTS} there.")
    if tables or reports:
        if not as_json:
            print_tables(tables, Console())
            print_reports(reports, Console())
        written = write_tables(tables, directory) if tables else []
        written += write_reports(reports, directory)
        say(f"Results and tables are in {directory}: {', '.join(written)}")


def carry_out_hosts(directory: Path, as_json: bool) -> int:
    """The same on several hosts. Returns the exit code of all their runners together."""

    def show(host: str, event: Event) -> None:
        if as_json:
            print(json.dumps({"host": host, **event}), flush=True)
        elif line := host_line(event, plans.get(host)):
            print(f"{host}: {line}", flush=True)
        if event["event"] == "extend" and host in plans:
            plans[host] = progress.extended(plans[host], event)
        if event["event"] == "entry-left-out":
            left_out[event["reason"]] += 1

    plans, left_out = hosts.plans_of(directory), Counter[str]()
    with only_here(directory):
        try:
            codes = hosts.MultiHostCampaign(hosts.read_hosts(directory), directory, show).run()
        except BaseException:
            say(how_to_resume(directory))
            raise
    show_results(directory, as_json)
    failed = {host: code for host, code in codes.items() if code}
    if failed:
        listed = ", ".join(f"{host} (exit code {code})" for host, code in failed.items())
        say(f"Not every run is done and valid: {listed}. {how_to_resume(directory)}")
    return all_that_was_named(directory, left_out, hosts.exit_code_of_all(codes.values()))


def host_line(event: Event, plan: Plan | None) -> str:
    """An event for people; "" if they need not see it."""
    if event["event"] in progress.ENDS and plan:
        entry = plan.entries[event["index"]]
        cell = f"{entry.device} {entry.system} {entry.workload}"
        return f"{cell} {progress.number(entry.repetition)}: {progress.outcome(event)}"
    return str(event.get("reason", event.get("text", "; ".join(event.get("warnings", ())))))


def follow(plan: Plan, directory: Path, display: progress.Display, module: str = "") -> int:
    """Start the runner, show its events, and end it whatever happens here. module: as Guests'."""
    others = host_load.OtherLoad()
    runner: RunnerProcess | Guests | None = None
    try:
        time.sleep(LOAD_LOOK)
        busy = others.percent()
        if busy > host_load.BUSY and not (plan.profile.instructions or plan.model):
            say(f"Other programs take {busy:.0f} % of a CPU: results are unreliable, and these runs get a warning.")
        if plan.emulated:
            host_load.write(directory, busy)
        with interrupt.held():
            if plan.model:
                runner = Guests(plan, directory, module, lambda: guest_of(plan))
            else:
                runner = RunnerProcess(runner_argv(plan, directory))
        for event in runner.events(TICK):
            if event is None:
                display.tick()
            else:
                display.event(event)
            if plan.emulated and others.due():
                host_load.write(directory, others.percent())
        return runner.wait()
    except BaseException as error:
        reason = cannot_keep(error, directory)
        if reason and output_fails():
            reason = None
        if runner:
            if not reason:
                say("Stopping, and tearing down the systems.")
            with interrupt.held():
                runner.stop(say)
        if reason:
            raise ConfigError(str(reason)) from None
        if not module:
            say(how_to_resume(directory))
        raise


# ---- the command line -----------------------------------------------------------


def add_commands(add: Add) -> None:
    run = add("run", "run a campaign and print its table", run_command)
    resume = add("resume", "run what is missing or invalid in a campaign", resume_command)
    add_plan_options(run)
    run.add_argument("--dry-run", action="store_true", help="print the plan and stop, like userblk plan")
    run.add_argument("--detach", action="store_true", help="continue in the background; a logout does not end it")
    resume.add_argument("campaign", metavar="CAMPAIGN", help="directory of the campaign, or its name below --results")
    for sub in (run, resume):
        add_json(sub, JSON_HELP)
        add_results(sub)
