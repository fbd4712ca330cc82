# SPDX-License-Identifier: BSD-3-Clause
"""plan: what run would do, and the options that plan and run share."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from userblk.analysis.table import DEVICES

from ..engines.base import device_engine
from ..machine import paths, prepare
from ..machine.blockdev import identify
from ..machine.packages import installing
from ..machine.safety import contents
from ..machine.tuning import OWN_CPUS, cpu_list, listed
from ..model import config, tables
from ..model.config import VIRTUAL, Profile, Suite, Workload
from ..model.hosts import Hosts, load_hosts
from ..model.parts import ENGINES, FILL_BYTES_PER_S
from ..model.plan import COUNTING, SAMPLING, Device, Plan, estimate, make_plan
from ..model.tables import ConfigError, NeedsCheckout
from ..observing import environment, perf
from ..running import hosts
from ..running.campaign import (
    CLOCKS,
    CONTROL,
    LAB_BUILD,
    LAB_CPUS,
    PAPER,
    Place,
    check_own_code,
    choose_place,
    guest_mib,
    host_devices,
    lab_devices,
    missing_modules,
    place_of_counting,
)
from ..running.guests import at_once
from ..systems import BringUpError, absent
from ..systems.base import find_program
from . import doctor, progress
from .common import Add, add_json, count, lab_errors, list_of, print_json, say, show_bytes
from .store import OverStore

BLOCKS_SHOWN = 12
MOST_RUNS, MOST_WARM_UP_S, MOST_SEED = 1000, 86400, (1 << 63) - 1
JSON_HELP = "print JSON: the plan, or a line for each event"
NATIVE = "native"
DEFAULT_PROFILE, PERF = "quick", "perf"
SYSTEMS = f"{NATIVE},nbdkit,tcmu"
FILE_SYSTEMS = "fuse"  # and these by default, where the suite has workloads for them


def make_options(args: argparse.Namespace) -> dict[str, Any]:
    """What the options ask for of a plan, wherever it runs; arguments of make_plan(). Raises ConfigError."""
    for word in ("reps", "max_reps", "warm_up", "control", "costs") if args.instructions else ():
        if getattr(args, word) not in (None, False):
            word = word.replace("_", "-")
            raise ConfigError(f"instructions: they are counted once, and nothing else is measured; leave --{word} out")
    named, sampled = asked_profile(args.profile)
    if sampled and args.instructions:
        raise ConfigError(
            f"profile={args.profile}: --instructions would also count those of perf; leave one of them out"
        )
    profile = config.load_profile(named)  # first: suites have sizes by profile
    suite = config.load_suite(args.suite, named)
    SUBJECTS[suite.engine.measures].check(args, suite)
    default = SYSTEMS + f",{FILE_SYSTEMS}" * any(workload.on_files for workload in suite.workloads)
    wanted = list_of("systems", default if args.systems is None else args.systems)
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
        "workloads": list_of("workloads", args.workloads),
        "pin": pinned(args.pin),
    }


def named(args: argparse.Namespace) -> list[str]:
    """The systems and workloads that are asked for by their names. Raises ConfigError."""
    words = (list_of(option, getattr(args, option)) for option in ("systems", "workloads"))
    return [word for found in words for word in found or ()]


def asked_profile(text: str) -> tuple[str, bool]:
    """The profile, and whether perf looks at an extra repetition of each cell. Raises ConfigError."""
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

    with lab_errors():
        return clock, model_names()


def lay_out(args: argparse.Namespace) -> tuple[Plan, Place]:
    """The plan that the options ask for, and where it runs. Raises ConfigError, Refused."""
    options = make_options(args)
    return SUBJECTS[options["suite"].engine.measures].lay_out(args, options, campaign_name)


def chosen_devices(asked: str, devices: Sequence[Device], place: Place) -> list[Device]:
    """Those of the lab's disks that are asked for. Raises ConfigError."""
    if not place.lab:
        raise ConfigError(f"devices={asked}: chooses among the lab's; name your own with --sata and --nvme alone")
    names, known = list_of("devices", asked) or [], [device.id for device in devices]
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"devices={asked}: {unknown[0]} is not there; choose from {','.join(known)}")
    return [device for device in devices if device.id in names]


def say_what_to_confirm(answer: str) -> None:
    if answer:
        say(f'Not confirmed: read what would be LOST; then repeat the command with --confirm "{answer}".')


def lay_out_on_devices(
    args: argparse.Namespace, options: dict[str, Any], name: Callable[[Profile, str], str]
) -> tuple[Plan, Place]:
    named = {name: path for name, path in (("sata", args.sata), ("nvme", args.nvme)) if path}
    for option, path in named.items():
        if not os.path.exists(path):
            raise ConfigError(f"{option}={path}: No such file or directory; name a block device")
    if args.confirm and not named:
        raise ConfigError(f"confirm={args.confirm}: no device is named; add --sata DEV or --nvme DEV")
    if args.clock == VIRTUAL and (named or args.where == "host"):
        raise ConfigError("clock=virtual: only the lab's guest has it; use --where lab, or leave --clock out")
    if args.instructions:
        place = place_of_counting(args.where, bool(named))
    else:
        place = choose_place(args.where, bool(named), missing_modules(options["systems"]))
    if place.lab and paths.CHECKOUT is None:
        raise NeedsCheckout(f"where=lab ({place.reason}): the lab needs a checkout of userblk; run bin/userblk there")
    if place.lab:
        for option, path in named.items():  # a host's are looked at when they are identified
            if not Path(path).is_block_device():
                raise ConfigError(f"{option}={path}: not a block device; name one")
        check_own_code(options["suite"], options["systems"], "in the lab's guest")
    if options["sample_stacks"] and not place.lab and not shutil.which("perf"):
        raise ConfigError(f"profile={args.profile}: perf is not installed; run: {installing(perf.PACKAGE)}")
    clock, model = chosen_clock(args, place, options["suite"], options["profile"].name)
    options["profile"] = config.load_profile(options["profile"].name, virtual=bool(model))
    if place.lab:
        devices = lab_devices(clock, args.instructions)
    else:
        devices = host_devices(named, args.confirm, say_what_to_confirm if args.dry_run else None)
    if args.devices:
        devices = chosen_devices(args.devices, devices, place)
    if not any(system.uses_device for system in options["systems"]):
        devices = devices[-1:]  # which is not used: one tells all
    if place.lab:
        cpus = 1 if args.instructions or model else LAB_CPUS
        on_line = usable = set(range(cpus))
    else:
        to_come = prepare.cpus_to_come()
        cpus = (os.cpu_count() or 1) + len(to_come)
        on_line = prepare.cpus_on_line() | to_come
        usable = os.sched_getaffinity(0) | (to_come & OWN_CPUS)
    if any(options["pin"]) and not usable.issuperset(frozenset[int]().union(*map(cpu_list, options["pin"]))):
        raise ConfigError(f"pin={args.pin}: name some of the CPUs that can be used: {listed(usable)}")
    fitting = within(options["suite"], options["workloads"], cpus, "--clock real" if model else "")
    able = len(usable)
    beyond = [one for one in fitting if ENGINES[one.engine].beyond(one, able)]
    for workload in beyond:
        if workload.id in (options["workloads"] or ()):
            engine = ENGINES[workload.engine]
            more = ", or use --clock real" if model and not engine.beyond(workload, LAB_CPUS) else ""
            raise ConfigError(f"workload={workload.id}: {engine.beyond(workload, able)}; leave it out{more}")
    if beyond and not options["workloads"]:
        more = f"more than {able} CPU{'s' * (able > 1)}"
        say(f"Left out: {len(beyond)} of {len(fitting)} workloads, which need {more}.")
    fitting = tuple(workload for workload in fitting if workload not in beyond)
    asked = [one for one in fitting if not options["workloads"] or one.id in options["workloads"]]
    refuse_pins_off_line(args.pin, options["pin"], asked, on_line)
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
    if not place.lab:
        for device in devices:
            if reason := plan.too_small(device.id, device.path, identify(device.path).size):
                raise ConfigError(reason)
        check_needs(plan, options["workloads"] or (), args.dry_run)
    return plan, place


def refuse_pins_off_line(
    text: str, pin: Sequence[str], workloads: Sequence[Workload], on_line: Collection[int]
) -> None:
    """
    A workload that takes CPUs off line has the first ones. text: as the user gave it. Raises ConfigError if others are
    pinned.
    """
    for workload in workloads:
        left = sorted(on_line)[: workload.cpus] if workload.cpus and any(pin) else on_line
        if not frozenset[int]().union(*map(cpu_list, filter(None, pin))).issubset(left):
            raise ConfigError(
                f"pin={text}: workload {workload.id} has CPUs {listed(left)} alone on line; name other --workloads, or"
                " leave --pin out"
            )


def is_built(engine: str, build: str) -> bool:
    """Are the programs there that make builds for its workloads?"""
    try:
        return bool(device_engine(engine).programs(build))
    except BringUpError:
        return False


def check_needs(plan: Plan, named: Collection[str], only_planned: bool) -> None:
    """
    Raises ConfigError if this machine lacks what the plan needs. Workloads that are not named and third-party systems
    are left out later, when it is their turn, and a line says so now. only_planned: make may have to build it all.
    """
    none_can = all(absent(system) for system in plan.systems.values())
    for name, system in plan.systems.items():
        reasons = absent(system)
        if (none_can or not reasons) and (reason := doctor.lacks(doctor.system_needs(system), only_planned)):
            raise ConfigError(f"system={name}: {reason}")
        if none_can and reasons:
            raise ConfigError(f"system={name}: {'; '.join(reasons)}; name another one, or use --where lab")
        if reasons:
            say(f"Left out: system {name}: {'; '.join(reasons)}.")
    judged = [one for one in plan.suite.workloads if not only_planned or is_built(one.engine, plan.build)]
    reasons_of = [ENGINES[one.engine].lacks(one, plan.build) for one in judged]
    for workload, reason in zip(judged, reasons_of, strict=True):
        if reason and workload.id in named:
            raise ConfigError(f"workload={workload.id}: {reason}")
    lacking = Counter(filter(None, reasons_of))
    if lacking.total() == len(plan.suite.workloads):
        raise ConfigError(f"suite={plan.suite.name}: {next(iter(lacking))}")
    for reason, number in lacking.items():
        say(f"Left out: {number} of {len(plan.suite.workloads)} workloads: {reason}.")
    engines = dict.fromkeys(one.engine for one, reason in zip(judged, reasons_of, strict=True) if not reason)
    try:
        programs = [program for engine in engines for program in device_engine(engine).programs(plan.build)]
    except BringUpError as error:
        raise ConfigError(str(error)) from None
    for program in (*programs, *doctor.ON_FILES) if plan.with_files else programs:
        if not find_program(program):
            package = doctor.ON_FILES.get(program, program)
            raise ConfigError(f"program {program} is not installed; run: {installing(package)}")


def within(suite: Suite, asked: Sequence[str] | None, cpus: int, remedy: str) -> tuple[Workload, ...]:
    """The workloads that need no more CPUs than there are; says how many others there were. Raises ConfigError."""
    more = [workload for workload in suite.workloads if workload.cpus > cpus]
    for workload in more:
        if workload.id in (asked or ()):
            use = f"; leave it out, or use {remedy}" if remedy else "; leave it out"
            raise ConfigError(f"workload={workload.id}: needs {workload.cpus} CPUs, but only {cpus} can be used{use}")
    if more and not asked:
        use = f"; {remedy} has more" if remedy else ""
        say(f"Left out: {len(more)} of {len(suite.workloads)} workloads, which need more CPUs than {cpus}{use}.")
    return tuple(workload for workload in suite.workloads if workload not in more)


def lay_out_hosts(args: argparse.Namespace) -> tuple[Hosts, list[Plan]]:
    """The same for several hosts. Raises ConfigError."""
    if args.sata or args.nvme or args.devices or args.confirm or args.where != "auto":
        others = "--sata, --nvme, --devices, --confirm and --where"
        raise ConfigError(f"hosts={args.hosts}: it names the devices; leave {others} out")
    if args.clock == VIRTUAL:
        raise ConfigError(f"clock={VIRTUAL}: only the lab's guest has it; leave --clock out")
    if args.instructions:
        raise ConfigError(f"hosts={args.hosts}: instructions are counted in the lab; leave --hosts out")
    options = make_options(args)
    found = load_hosts(args.hosts)
    seed = int.from_bytes(os.urandom(4), "big") if args.seed is None else args.seed
    suite, profile, systems = (options.pop(name) for name in ("suite", "profile", "systems"))
    check_own_code(suite, systems, "on other hosts")
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
    return min(at_once(plan), sum(1 for _ in plan.blocks())) if plan.model else 1


def pace(plan: Plan) -> str:
    """How many guests share this machine, which the estimate depends on."""
    if not plan.model:
        return ""
    guests = beside(plan)
    each = show_bytes(guest_mib(plan) << 20)
    return f" with {guests} guest{'s' * (guests > 1)} at a time ({each} of memory each)"


def place_line(place: Place, model: str) -> str:
    where = f"on {place.remote or 'this host'}"
    if place.lab:
        where = "in the lab (EMULATED: a QEMU guest with emulated disks)"
        if model:
            where = f"in the lab (SIMULATED: a QEMU guest in virtual time with modelled disks, {model})"
    return f"Runs {where}: {place.reason}."


def times_of_blocks(plan: Plan) -> list[str]:
    """How long runs on block devices are, if there are any; which of them, if not all are as long."""
    kinds: dict[tuple[float, float, bool], list[str]] = {}
    texts: list[str] = []
    for workload in plan.suite.workloads:
        engine = device_engine(workload.engine)
        if workload.on_files:
            continue
        if text := engine.run_text(workload, plan.profile):
            texts.append(text)
            continue
        for device in plan.devices:
            times = engine.timed(plan.profile.of(workload, device), workload)
            runs = kinds.setdefault((times.ramp_s, times.runtime_s, times.fixed_warm_up), [])
            kind = f"writes to {DEVICES.get(device, device)}" if workload.writes else "reads"
            if kind not in runs:
                runs.append(kind)
    lines = []
    for (ramp_s, runtime_s, fixed), runs in kinds.items():
        warm_up = "no warm-up beyond that" if fixed else "less the warm-up found in the data"
        which = f" ({', '.join(runs)})" if len(kinds) > 1 else ""
        lines.append(f"{ramp_s:g} s discarded + {runtime_s:g} s measured per run{which}, {warm_up}")
    return [*dict.fromkeys(texts), *lines]


def times_of_files(plan: Plan) -> list[str]:
    """How long runs on file systems are, and which of them."""
    kinds: dict[tuple[float, float], list[str]] = {}
    texts: dict[str, list[str]] = {}
    for workload in plan.suite.workloads:
        if workload.on_files and (text := device_engine(workload.engine).run_text(workload, plan.profile)):
            texts.setdefault(text, []).append(workload.id)
            continue
        for device in plan.devices if workload.on_files else ():
            usual, own = plan.profile.files, plan.profile.of(workload, device)
            files = device_engine(workload.engine).timed(own, workload).files
            run = "servers" if workload.macro else workload.suite if workload.timing else "others"
            if own.files != usual:
                run = f"{workload.id if workload.macro else 'writes'} on {DEVICES.get(device, device)}"
            runs = kinds.setdefault((files.ramp_s, files.seconds(workload)), [])
            if run not in runs:
                runs.append(run)
    for (ramp_s, runtime_s), runs in sorted(kinds.items(), key=lambda item: "others" in item[1]):
        texts.setdefault(f"{ramp_s:g} s discarded + {runtime_s:g} s measured per run", []).extend(runs)
    if list(texts.values()) == [["others"]]:
        return list(texts)  # there are no others
    return [f"{text} ({', '.join(runs)})" for text, runs in texts.items()]


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
        """How long a run is: a line for each kind of run that has times of its own, and one for file systems."""
        profile, files = plan.profile, plan.profile.files
        lines = times_of_blocks(plan)
        if rounds := profile.rounds:
            most = rounds["most"]
            lines = [f"rounds of {profile.runtime_s:g} s until {rounds['window']} are steady, {most} at most, a run"]
        if plan.with_files:
            lines += [f"on file systems, in {show_bytes(files.memory_bytes)} of memory:", *times_of_files(plan)]
        return "\n           ".join(lines)

    def device_lines(self, plan: Plan, place: Place, device: Device, most_written: int) -> list[str]:
        """The lines about a device in the plan for people."""
        written = f"at most {show_bytes(most_written)} written"
        if plan.with_files:
            written += f" (file systems: at {FILL_BYTES_PER_S / 1e6:.0f} MB/s)"
        if place.lab:
            return [f"device     {device.id}: a disk of the lab, discarded at the end; {written}"]
        lines = [
            f"device     {device.id} {device.path}: {written},"
            f" all within its first {show_bytes(plan.used_bytes(device.id))}, whose contents are LOST"
        ]
        if not place.remote:
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
        + (f"{pace(plan)}, and the lab's start" if place.lab else ""),
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
    return "its endurance is not known: it does not report it, or neither smartctl nor nvme is installed"


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
    """Print what the options ask for, without doing it. Returns the exit code 0."""
    if args.hosts:
        _, plans = lay_out_hosts(args)
        for plan in plans:
            show_plan(plan, remote_place(plan), args.json)
    else:
        show_plan(*lay_out(args), args.json)
    return 0


def remote_place(plan: Plan) -> Place:
    return Place(False, "a host of --hosts", plan.host)


# ---- the command line -----------------------------------------------------------


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--suite", default="bdus-block", help=f"one of {', '.join(tables.names('suites'))} (default: %(default)s)"
    )
    parser.add_argument(
        "--profile",
        default=DEFAULT_PROFILE,
        help="a profile of configs/profiles: quick, paper or pts; perf, or perf after another as in paper,perf,"
        " adds a repetition of each cell under perf, for flame graphs in the report (default: %(default)s)",
    )
    parser.add_argument(
        "--reps",
        type=count(1, MOST_RUNS),
        metavar="N",
        help="run each cell N times (default: as the profile says, more often where intervals are too wide)",
    )
    parser.add_argument(
        "--max-reps",
        type=count(1, MOST_RUNS),
        metavar="N",
        help="stop after N runs of a cell whose intervals are too wide (default: as the profile says)",
    )
    parser.add_argument(
        "--warm-up",
        type=count(0, MOST_WARM_UP_S),
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
    parser.add_argument("--devices", metavar="LIST", help="disks of the lab to measure, sata or nvme (default: both)")
    parser.add_argument(
        "--store",
        type=Path,
        metavar="FILE",
        help="suites s3 and bs3-fs: file with your store's endpoint=, region=, bucket=, credentials= (default: a local"
        " store)",
    )
    parser.add_argument(
        "--pin",
        metavar="SERVER:CLIENT",
        help="CPUs to start servers and workloads on, for example 0-3:4-7 (default: any)",
    )
    parser.add_argument("--sata", metavar="DEV", help="block device to measure as SATA; its contents are LOST")
    parser.add_argument("--nvme", metavar="DEV", help="block device to measure as NVMe; its contents are LOST")
    parser.add_argument(
        "--confirm",
        default="",
        metavar='"SERIAL SERIAL"',
        help="serial number of each named device, SATA first; if it has none, its size in bytes and its contents",
    )
    parser.add_argument(
        "--hosts", metavar="NAME", help="run on several machines: a name in configs/hosts, or a file that ends in .toml"
    )
    parser.add_argument(
        "--seed", type=count(0, MOST_SEED), metavar="N", help="seed of the order and of every run (default: random)"
    )
    parser.add_argument(
        "--where",
        choices=("auto", "host", "lab"),
        default="auto",
        help="where to measure; auto: on this host if devices are named and its kernel has the drivers, else in the lab"
        " (default)",
    )


def add_commands(add: Add) -> None:
    plan = add("plan", "print what would run, how long it takes and how much it writes", show_plans)
    plan.set_defaults(dry_run=True)
    add_plan_options(plan)
    add_json(plan, JSON_HELP)
