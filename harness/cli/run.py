# SPDX-License-Identifier: BSD-3-Clause
"""plan, run, resume."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from userblk.analysis import costs
from userblk.analysis.suites import reports_of

from ..machine import interrupt, paths
from ..machine.blockdev import identify
from ..machine.safety import contents
from ..machine.tuning import cpu_list
from ..model import config
from ..model.config import VIRTUAL, Profile, Suite, Workload
from ..model.hosts import Hosts, load_hosts
from ..model.parts import ENGINES, FILL_BYTES_PER_S
from ..model.plan import COUNTING, SAMPLING, Device, Plan, estimate, make_plan, read_plan
from ..model.tables import ConfigError, NeedsCheckout
from ..observing import environment, host_load, perf
from ..running import hosts
from ..running.campaign import (
    CLOCKS,
    CONTROL,
    LAB_BUILD,
    LAB_CPUS,
    PAPER,
    Event,
    Place,
    RunnerProcess,
    choose_place,
    create,
    host_devices,
    lab_devices,
    missing_modules,
    place_of_counting,
    prepare_lab,
    runner_argv,
)
from ..running.guests import Guests, at_once
from . import progress
from .common import (
    Add,
    add_json,
    add_results,
    count,
    find_campaign,
    how_to_resume,
    list_of,
    print_json,
    say,
    show_bytes,
    write_file,
)
from .results import print_reports, print_tables, tables_of, write_reports, write_tables
from .store import OverStore

TICK = 0.5  # s
LOAD_LOOK = 1.0  # s, before a campaign
BLOCKS_SHOWN = 12
COSTS = "costs.csv"
LOG = "userblk.log"  # of a detached campaign, in its directory
NATIVE = "native"
DEFAULT_PROFILE, PERF = "quick", "perf"
SYSTEMS = f"{NATIVE},nbdkit,tcmu"
FILE_SYSTEMS = "fuse"  # and these by default, where the suite has workloads for them


# ---- plan -----------------------------------------------------------------------


def make_options(args: argparse.Namespace) -> dict[str, Any]:
    """What the options ask for of a plan, wherever it runs; arguments of make_plan(). Raises ConfigError."""
    for word in ("reps", "max_reps", "warm_up", "control", "costs") if args.instructions else ():
        if getattr(args, word) not in (None, False):
            word = word.replace("_", "-")
            raise ConfigError(f"instructions: they are counted once, and nothing else is measured; leave --{word} out")
    named, sampled = asked_profile(args.profile)
    if sampled and args.instructions:
        raise ConfigError(f"profile={args.profile}: perf would be counted with the instructions; leave one of them out")
    suite = config.load_suite(args.suite, named)
    profile = config.load_profile(named)
    SUBJECTS[suite.engine.measures].check(args, suite)
    default = SYSTEMS + f",{FILE_SYSTEMS}" * any(workload.on_files for workload in suite.workloads)
    wanted = list_of(default if args.systems is None else args.systems)
    if args.systems is None and suite.systems:
        wanted = list(suite.systems)
    if args.control:
        wanted = [*(wanted or []), NATIVE, CONTROL]
    return {
        "suite": suite,
        "profile": profile,
        "systems": [config.load_system(name) for name in dict.fromkeys(wanted or [])],
        "repetitions": args.reps,
        "max_repetitions": args.max_reps,
        "warm_up_s": args.warm_up,
        "count_costs": args.costs,
        "sample_stacks": sampled,
        "count_instructions": args.instructions,
        "workloads": list_of(args.workloads),
        "pin": pinned(args.pin),
    }


def asked_profile(text: str) -> tuple[str, bool]:
    """The profile, and whether perf is to look at an extra repetition of each cell. Raises ConfigError."""
    names = text.split(",")
    others = [name for name in names if name != PERF]
    if len(others) > 1:
        raise ConfigError(f"profile={text}: name one profile, and {PERF} beside it if flame graphs are wanted")
    return (others or [DEFAULT_PROFILE])[0], PERF in names


def pinned(text: str | None) -> tuple[str, str]:
    """The CPUs of servers and of workloads in SERVER:CLIENT. Raises ConfigError."""
    if text is None:
        return "", ""
    server, _, client = text.partition(":")
    try:
        cpu_list(server), cpu_list(client)
    except ValueError:
        raise ConfigError(f"pin={text}: must be the CPUs of servers and of workloads, as in 0-3:4-7") from None
    return server, client


def campaign_name(profile: Profile, more: str = "") -> str:
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + f"-{profile.name}{more}"


def chosen_clock(args: argparse.Namespace, place: Place, suite: Suite, profile: str) -> tuple[str, str]:
    """Which clock the guest has, and what is simulated with it, "" in real time. Raises ConfigError.

    Virtual by default where it is known to be right.
    """
    asked = args.clock or os.environ.get("LAB_CLOCK", "")
    if asked and asked not in CLOCKS:
        raise ConfigError(f"LAB_CLOCK={asked}: must be one of {', '.join(CLOCKS)}")
    if not place.lab:
        return "real", ""
    modelled = all(ENGINES[workload.engine].modelled(workload) for workload in suite.workloads)
    clock = asked or (VIRTUAL if modelled and profile != PAPER else "real")
    if clock == "real" or args.instructions:
        return clock, ""
    from userblk.lab.models import model_names  # which only a checkout has

    return clock, model_names()


def lay_out(args: argparse.Namespace) -> tuple[Plan, Place]:
    """The plan that the options ask for, and where it runs. Raises ConfigError, Refused."""
    options = make_options(args)
    return SUBJECTS[options["suite"].engine.measures].lay_out(args, options, campaign_name)


def lay_out_on_devices(
    args: argparse.Namespace, options: dict[str, Any], name: Callable[[Profile, str], str]
) -> tuple[Plan, Place]:
    named = {name: path for name, path in (("sata", args.sata), ("nvme", args.nvme)) if path}
    if args.clock == VIRTUAL and (named or args.where == "host"):
        raise ConfigError("clock=virtual: only the lab's guest has it; use --where lab, or leave --clock out")
    if args.instructions:
        place = place_of_counting(args.where, bool(named))
    else:
        place = choose_place(args.where, bool(named), missing_modules(options["systems"]))
    if place.lab and paths.CHECKOUT is None:
        raise NeedsCheckout(f"where=lab ({place.reason}): the lab needs a checkout of userblk; run bin/userblk there")
    if options["sample_stacks"] and not place.lab and not shutil.which("perf"):
        raise ConfigError(f"profile={args.profile}: perf is not installed; {perf.REMEDY}")
    clock, model = chosen_clock(args, place, options["suite"], options["profile"].name)
    options["profile"] = config.load_profile(options["profile"].name, virtual=bool(model))
    devices = lab_devices(clock, args.instructions) if place.lab else host_devices(named, args.confirm)
    if not any(system.uses_device for system in options["systems"]):
        devices = devices[-1:]  # which is not used: one tells all
    cpus = (1 if args.instructions or model else LAB_CPUS) if place.lab else os.cpu_count() or 1
    if any(options["pin"]) and max(frozenset[int]().union(*map(cpu_list, options["pin"]))) >= cpus:
        raise ConfigError(f"pin={args.pin}: there are CPUs 0 to {cpus - 1}; name some of them")
    fitting = within(options["suite"], options["workloads"], cpus, "--clock real" if model else "")
    if not options["workloads"]:  # one that is asked for by its name is left out when it is its turn
        beyond = [workload for workload in fitting if ENGINES[workload.engine].beyond(workload, cpus)]
        if beyond:
            say(f"Left out: {len(beyond)} of {len(fitting)} workloads, for which {cpus} CPUs are too few.")
        fitting = tuple(workload for workload in fitting if workload not in beyond)
    options["suite"] = dataclasses.replace(options["suite"], workloads=fitting)
    plan = make_plan(
        devices=devices,
        campaign=name(options["profile"], "-lab" * place.lab),
        build=LAB_BUILD if place.lab else str(paths.HOST_BUILD),
        host="lab" if place.lab else None,
        emulated=place.lab,
        model=model,
        seed=args.seed,
        **options,
    )
    for device in devices if not place.lab else ():
        if reason := plan.too_small(device.id, device.path, identify(device.path).size):
            raise ConfigError(reason)
    return plan, place


def within(suite: Suite, asked: Sequence[str] | None, cpus: int, remedy: str) -> tuple[Workload, ...]:
    """The workloads that need no more CPUs than there are; says how many others there were. Raises ConfigError."""
    more = [workload for workload in suite.workloads if workload.cpus > cpus]
    for workload in more:
        if workload.id in (asked or ()):
            use = f"; leave it out, or use {remedy}" if remedy else "; leave it out"
            raise ConfigError(f"workload={workload.id}: needs {workload.cpus} CPUs, here are only {cpus}{use}")
    if more and not asked:
        use = f"; {remedy} has more" if remedy else ""
        say(f"Left out: {len(more)} of {len(suite.workloads)} workloads, which need more CPUs than {cpus}{use}.")
    return tuple(workload for workload in suite.workloads if workload not in more)


def lay_out_hosts(args: argparse.Namespace) -> tuple[Hosts, list[Plan]]:
    """The same for several hosts. Raises ConfigError."""
    if args.sata or args.nvme or args.confirm or args.where != "auto":
        raise ConfigError(f"hosts={args.hosts}: it names the devices; leave --sata, --nvme, --confirm and --where out")
    if args.instructions:
        raise ConfigError(f"hosts={args.hosts}: instructions are counted in the lab; leave --hosts out")
    options = make_options(args)
    found = load_hosts(args.hosts)
    seed = int.from_bytes(os.urandom(4), "big") if args.seed is None else args.seed
    suite, profile, systems = (options.pop(name) for name in ("suite", "profile", "systems"))
    plans = hosts.make_plans(
        found,
        suite=suite,
        profile=profile,
        systems=systems,
        campaign=campaign_name(profile, "-hosts"),
        seed=seed,
        options=options,
    )
    return found, plans


def beside(plan: Plan) -> int:
    """How many runs of it are under way at a time on this machine."""
    return min(at_once(), sum(1 for _ in plan.blocks())) if plan.model else 1


def place_line(place: Place, model: str) -> str:
    where = f"on {place.remote or 'this host'}"
    if place.lab:
        where = "in the lab (EMULATED: a QEMU guest with emulated disks)"
        if model:
            where = f"in the lab (SIMULATED: a QEMU guest in virtual time with modelled disks, {model})"
    return f"Runs {where}: {place.reason}."


class OnDevices:
    """What the commands plan, run and resume do for a suite on block devices; OverStore has the same for a store."""

    def check(self, args: argparse.Namespace, suite: Suite) -> None:
        """Are the options such as it can be planned with? Raises ConfigError."""
        if args.store:
            raise ConfigError(f"store={args.store}: suite {suite.name} is not over a store; leave --store out")

    def lay_out(
        self, args: argparse.Namespace, options: dict[str, Any], name: Callable[[Profile, str], str]
    ) -> tuple[Plan, Place]:
        """The plan that the options ask for; name: of the campaign. Raises ConfigError, Refused."""
        return lay_out_on_devices(args, options, name)

    def run_text(self, plan: Plan) -> str:
        """How long a run is; a second line where there are file systems."""
        profile, files = plan.profile, plan.profile.files
        if rounds := profile.rounds:
            most = rounds["most"]
            text = f"rounds of {profile.runtime_s:g} s until {rounds['window']} are steady, {most} at most, a run"
        else:
            warm_up = "no warm-up beyond that" if profile.fixed_warm_up else "less the warm-up that is found in them"
            text = f"{profile.ramp_s:g} s discarded + {profile.runtime_s:g} s measured a run, {warm_up}"
        if not plan.with_files:
            return text
        return (
            f"{text}\n           on file systems: {files.ramp_s:g} s discarded + {files.runtime_s:g} s (servers"
            f" {files.macro_runtime_s:g} s) measured, {show_bytes(files.memory_bytes)} of memory"
        )

    def device_lines(self, plan: Plan, place: Place, device: Device, most_written: int) -> list[str]:
        """The lines about a device in the plan for people."""
        written = f"at most {show_bytes(most_written)} written"
        if plan.with_files:
            written += f" (file systems: at {FILL_BYTES_PER_S / 1e6:.0f} MB/s)"
        lines = [
            f"device     {device.id} {device.path}: {written},"
            f" all within its first {show_bytes(plan.used_bytes(device.id))}, whose contents are LOST"
        ]
        if not place.lab and not place.remote:
            most = most_written * plan.profile.max_repetitions / plan.profile.repetitions
            found = identify(device.path)
            lines.append(f"           it is {found.identity}; it holds {contents(found) or 'no known signature'}")
            lines.append(f"           {endurance_text(found.disk, most)}")
        return lines

    def prepare(self, plan: Plan) -> None:
        """Build what the campaign needs besides the lab. Raises ConfigError."""


SUBJECTS: dict[str, OnDevices | OverStore] = {"devices": OnDevices(), "store": OverStore()}


def plan_lines(plan: Plan, place: Place) -> list[str]:
    """The plan for people."""
    expected = estimate(plan)
    subject = SUBJECTS[plan.suite.engine.measures]
    lines = [
        place_line(place, plan.model),
        f"suite      {plan.suite.name}: {len(plan.suite.workloads)} workloads",
        f"profile    {plan.profile.name}: {subject.run_text(plan)}",
        f"systems    {', '.join(plan.systems)}",
        f"runs       {expected.runs} ({_how_often(plan)}), seed {plan.seed}",
        f"duration   about {progress.duration(expected.seconds / beside(plan))} (h:mm:ss)"
        + (", and the lab's start" if place.lab else ""),
    ]
    for device in plan.devices.values():
        lines += subject.device_lines(plan, place, device, expected.bytes_written[device.id])
    blocks = list(plan.blocks())
    order = [
        f"{entries[0].device} {entries[0].system}"
        + (f" {entries[0].workload}" if len(entries) == 1 else f" {entries[0].suite}" if plan.with_files else "")
        for _, entries in blocks[:BLOCKS_SHOWN]
    ]
    more = f", and {len(blocks) - BLOCKS_SHOWN} more" if len(blocks) > BLOCKS_SHOWN else ""
    times = "once" if len(blocks) == 1 else f"{len(blocks)} times"
    lines.append(f"order      a system is brought up {times}: {', '.join(order)}{more} (--json: every run)")
    return lines


def _how_often(plan: Plan) -> str:
    profile = plan.profile
    if profile.instructions:
        return "one of each cell, which counts instructions"
    text = f"{profile.repetitions} of each cell"
    if profile.max_repetitions > profile.repetitions:
        text += f", up to {profile.max_repetitions} while a half width is over {profile.half_width:g} %"
    besides = {COUNTING: ", and one that counts costs", SAMPLING: ", and one that perf looks at"}
    found = {entry.repetition for entry in plan.entries}
    return text + "".join(words for repetition, words in besides.items() if repetition in found)


def endurance_text(disk: str, written: float) -> str:
    """What a device tells of its wear, and the share that so many bytes more are."""
    facts = environment.device_facts(disk)
    wear, total = facts.get("wear_percent"), environment.endurance_bytes(facts)
    if total:
        return f"{100 * written / total:.2g} % of its endurance (worn by {wear:.0f} %, judged by what wore it)"
    if wear == 0:
        return "its endurance is not known yet (worn by 0 %)"
    return "its endurance is not known: it does not tell, or neither smartctl nor nvme is installed"


def show_plan(plan: Plan, place: Place, as_json: bool) -> None:
    if not as_json:
        print("\n".join(plan_lines(plan, place)))
        return
    expected = estimate(plan)
    value = {
        "place": "lab" if place.lab else "host",
        "reason": place.reason,
        "runs": expected.runs,
        "seconds": expected.seconds / beside(plan),
        "bytes_written": dict(expected.bytes_written),
        "plan": dataclasses.asdict(plan),
    }
    print_json(value)


def show_plans(args: argparse.Namespace) -> int:
    """What the options ask for, without doing it."""
    if args.hosts:
        _, plans = lay_out_hosts(args)
        for plan in plans:
            show_plan(plan, remote_place(plan), args.json)
    else:
        show_plan(*lay_out(args), args.json)
    return 0


def remote_place(plan: Plan) -> Place:
    return Place(False, "a host of --hosts", plan.host)


def plan_command(args: argparse.Namespace) -> int:
    return show_plans(args)


# ---- run and resume -------------------------------------------------------------


def run_command(args: argparse.Namespace) -> int:
    if args.dry_run:
        return show_plans(args)
    if args.hosts:
        found, plans = lay_out_hosts(args)
        say("\n".join(line for plan in plans for line in plan_lines(plan, remote_place(plan))))
        directory = hosts.create_all(found, plans, args.results.absolute(), sys.argv)
        return detached(directory) if args.detach else carry_out_hosts(directory, args.json)
    plan, place = lay_out(args)
    say(place_line(place, plan.model) if place.lab else "\n".join(plan_lines(plan, place)))
    prepare(plan)
    directory = create(plan, args.results.absolute(), sys.argv)
    return detached(directory) if args.detach else carry_out(plan, directory, args.json)


def detached(directory: Path) -> int:
    """Let another process carry the campaign out, which a logout does not end."""
    log = directory / LOG
    argv = [sys.executable, sys.argv[0], "resume", str(directory)]
    with log.open("wb") as stream:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True, cwd="/"
        )
    say(f"Process {child.pid} runs it, also after a logout, and writes {log}; kill -INT {child.pid} ends it cleanly.")
    say(f"Look at it with: userblk status {directory}")
    return 0


def resume_command(args: argparse.Namespace) -> int:
    directory = find_campaign(args.campaign, args.results)
    if hosts.is_one(directory):
        return carry_out_hosts(directory, args.json)
    plan = read_plan(directory / "plan.json")
    prepare(plan)
    return carry_out(plan, directory, args.json)


def prepare(plan: Plan) -> None:
    """Build what the campaign needs and what is not there. Raises ConfigError."""
    if plan.emulated:
        prepare_lab(plan)
    SUBJECTS[plan.suite.engine.measures].prepare(plan)


def carry_out(plan: Plan, directory: Path, as_json: bool) -> int:
    """Run what is left of a campaign and show it. Returns the runner's exit code."""
    expected = estimate(plan)
    say(f"{expected.runs} runs, about {progress.duration(expected.seconds / beside(plan))} (h:mm:ss), into {directory}")
    console = Console()
    display: progress.Display
    with contextlib.ExitStack() as stack:
        if as_json:
            display = progress.JsonLines()
        elif console.is_terminal and not console.is_dumb_terminal:
            display = screen = progress.Screen(plan, console)
            stack.enter_context(screen.shown())
        else:
            display = progress.Lines(plan)
        code = follow(plan, directory, display)
    show_results(directory, as_json)
    if code:
        say(f"Not every run is done and valid (runner's exit code {code}). {how_to_resume(directory)}")
    return code


def show_results(directory: Path, as_json: bool) -> None:
    """Write a campaign's tables, and print them unless standard output is for programs."""
    tables, reports = tables_of(directory), reports_of(directory)
    if counted := [] if tables or reports else costs.load_costs(directory):
        write_file(directory / COSTS, costs.as_csv(counted))
        if not as_json:
            Console().print("", costs.terminal(counted), sep="\n")
        say(f"Results are in {directory}, costs in {COSTS} there.")
    if tables or reports:
        written = write_tables(tables, directory) if tables else []
        written += write_reports(reports, directory)
        if not as_json:
            print_tables(tables, Console())
            print_reports(reports, Console())
        say(f"Results and tables are in {directory}: {', '.join(written)}")


def carry_out_hosts(directory: Path, as_json: bool) -> int:
    """The same on several hosts. Returns the worst of their runners' exit codes."""

    def show(host: str, event: Event) -> None:
        if as_json:
            print(json.dumps({"host": host, **event}), flush=True)
        elif line := host_line(event, plans.get(host)):
            print(f"{host}: {line}", flush=True)
        if event["event"] == "extend" and host in plans:
            plans[host] = progress.extended(plans[host], event)

    plans = hosts.plans_of(directory)
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
    return max(codes.values(), default=0) if len(failed) < len(codes) else 1


def host_line(event: Event, plan: Plan | None) -> str:
    """An event for people; "" if it is none for them."""
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
            runner = Guests(plan, directory, module) if plan.model else RunnerProcess(runner_argv(plan, directory))
        for event in runner.events(TICK):
            if event is None:
                display.tick()
            else:
                display.event(event)
            if plan.emulated and others.due():
                host_load.write(directory, others.percent())
        return runner.wait()
    except BaseException:
        if runner:
            say("Stopping; what was brought up is torn down.")
            with interrupt.held():
                runner.stop()
        if not module:
            say(how_to_resume(directory))
        raise


# ---- the command line -----------------------------------------------------------


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", default="bdus-block", help="a suite of configs/suites (default: %(default)s)")
    parser.add_argument(
        "--profile",
        default=DEFAULT_PROFILE,
        help="a profile of configs/profiles: quick, paper or pts; and perf, alone or as in paper,perf: one more"
        " repetition of each cell, which perf looks at, for flame graphs in the report (default: %(default)s)",
    )
    parser.add_argument(
        "--reps",
        type=count,
        metavar="N",
        help="run each cell N times (default: as the profile says, more often where intervals are too wide)",
    )
    parser.add_argument(
        "--max-reps",
        type=count,
        metavar="N",
        help="stop after N runs of a cell whose intervals are too wide (default: as the profile says)",
    )
    parser.add_argument(
        "--warm-up",
        type=count,
        metavar="SECONDS",
        help="fixed warm-up to discard from each run (default: found in the run's own data)",
    )
    parser.add_argument(
        "--control", action="store_true", help="also measure native against native, to show false alarms"
    )
    parser.add_argument(
        "--costs",
        action="store_true",
        help="also count system calls and context switches per operation, in an extra run of each cell",
    )
    parser.add_argument(
        "--instructions",
        action="store_true",
        help="count instructions per operation instead of time: in the lab, over a disk in memory; other load on this"
        " machine does not matter",
    )
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        help="clock of the lab. virtual: the clock counts instructions and the SSDs are modelled, so that a campaign"
        " gives the same numbers on any machine; real: emulated SSDs in real time (default: $LAB_CLOCK; else virtual"
        " where it has been tried, see docs/lab.md)",
    )
    parser.add_argument(
        "--systems",
        metavar="LIST",
        help=f"systems of configs/systems to measure (default: those that the suite names; else {SYSTEMS}, and"
        f" {FILE_SYSTEMS} for file systems)",
    )
    parser.add_argument(
        "--workloads", metavar="LIST", help="workloads of the suite, for example seq-read-1th-4k (default: all)"
    )
    parser.add_argument(
        "--store",
        type=Path,
        metavar="FILE",
        help="suite s3: file with your store's endpoint=, region=, bucket=, credentials= (default: a local store)",
    )
    parser.add_argument(
        "--pin",
        metavar="SERVER:CLIENT",
        help="CPUs on which servers and workloads are started, for example 0-3:4-7 (default: any)",
    )
    parser.add_argument("--sata", metavar="DEV", help="block device to measure as SATA; its contents are LOST")
    parser.add_argument("--nvme", metavar="DEV", help="block device to measure as NVMe; its contents are LOST")
    parser.add_argument(
        "--confirm",
        default="",
        metavar='"SERIAL SERIAL"',
        help="repeat the serial of each named device, SATA first; without a serial, its size in bytes and its contents",
    )
    parser.add_argument(
        "--hosts", metavar="NAME", help="run on several machines: a name in configs/hosts, or a file that ends in .toml"
    )
    parser.add_argument(
        "--seed", type=count, metavar="N", help="random seed of the order and of every run (default: a new one)"
    )
    parser.add_argument(
        "--where",
        choices=("auto", "host", "lab"),
        default="auto",
        help="where to measure; auto: on this host if devices are named and its kernel can, else in the lab (default)",
    )


def add_commands(add: Add) -> None:
    plan = add("plan", "print what would run, how long it takes and how much it writes", plan_command)
    run = add("run", "run a campaign and print its table", run_command)
    resume = add("resume", "run what is missing or invalid in a campaign", resume_command)
    for sub in (plan, run):
        add_plan_options(sub)
    run.add_argument("--dry-run", action="store_true", help="print the plan and stop, like userblk plan")
    run.add_argument("--detach", action="store_true", help="continue in the background; a logout does not end it")
    resume.add_argument("campaign", metavar="CAMPAIGN", help="directory of the campaign, or its name below --results")
    for sub in (plan, run, resume):
        add_json(sub, "print JSON: the plan, or a line for each event")
    for sub in (run, resume):
        add_results(sub)
