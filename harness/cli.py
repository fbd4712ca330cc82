# SPDX-License-Identifier: BSD-3-Clause
"""The command `userblk`: plan, run, resume, table, lab."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from userblk import __version__
from userblk.analysis import failover, render, report, sweep
from userblk.analysis.report import Report
from userblk.analysis.summaries import SummaryError, load_campaign
from userblk.analysis.table import Table, make_tables, paper_table

from . import config, interrupt, load, paths, progress
from .campaign import (
    LAB_BUILD,
    LAB_CPUS,
    Place,
    Runner,
    choose_place,
    create,
    host_devices,
    lab_devices,
    missing_modules,
    prepare_lab,
)
from .config import ConfigError
from .plan import Plan, estimate, make_plan, read_plan
from .safety import Refused

EXIT_USAGE = 2
EXIT_SIGNAL = 128  # and the signal's number: 130 after Ctrl-C
TICK = 0.5  # s
LOAD_LOOK = 1.0  # s, before a campaign
BLOCKS_SHOWN = 12
FORMATS = ("terminal", "markdown", "csv", "csv-long")
FILES = {"table.md": "markdown", "table.csv": "csv", "table-long.csv": "csv-long"}
SYSTEMS = "native,nbdkit,tcmu"
FILE_SYSTEMS = "fuse"  # and these by default, where the suite has workloads for them
PAPER = "paper"
PAPER_TABLES = ("table1.csv", "table2.csv")


# ---- plan -----------------------------------------------------------------------


def _list(text: str | None) -> list[str] | None:
    return None if text is None else [word for word in text.replace(",", " ").split() if word]


def lay_out(args: argparse.Namespace) -> tuple[Plan, Place]:
    """The plan that the options ask for, and where it runs. Raises ConfigError, Refused."""
    suite = config.load_suite(args.suite)
    profile = config.load_profile(args.profile)
    default = SYSTEMS + f",{FILE_SYSTEMS}" * any(workload.engine == "flow" for workload in suite.workloads)
    if suite.systems:
        default = ",".join(suite.systems)
    wanted = _list(default if args.systems is None else args.systems)
    systems = [config.load_system(name) for name in dict.fromkeys(wanted or [])]
    named = {name: path for name, path in (("sata", args.sata), ("nvme", args.nvme)) if path}
    place = choose_place(args.where, bool(named), missing_modules(systems))
    if place.lab and paths.CHECKOUT is None:
        raise ConfigError(f"where=lab ({place.reason}): the lab needs a checkout of userblk; run bin/userblk there")
    devices = lab_devices() if place.lab else host_devices(named, args.confirm)
    if not any(system.backed for system in systems):
        devices = devices[-1:]  # which is not used: one tells all
    cpus = LAB_CPUS if place.lab else os.cpu_count() or 1
    fitting = tuple(workload for workload in suite.workloads if workload.cpus <= cpus)
    plan = make_plan(
        suite=dataclasses.replace(suite, workloads=fitting),
        profile=profile,
        systems=systems,
        devices=devices,
        campaign=time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + f"-{profile.name}" + "-lab" * place.lab,
        build=LAB_BUILD if place.lab else str(paths.HOST_BUILD),
        host="lab" if place.lab else None,
        emulated=place.lab,
        seed=args.seed,
        repetitions=args.reps,
        workloads=_list(args.workloads),
    )
    return plan, place


def place_line(place: Place) -> str:
    where = "in the lab (EMULATED: a QEMU guest with emulated disks)" if place.lab else "on this host"
    return f"Runs {where}: {place.reason}."


def _bytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"


def plan_lines(plan: Plan, place: Place) -> list[str]:
    """The plan for people."""
    expected = estimate(plan)
    profile = plan.profile
    lines = [
        place_line(place),
        f"suite      {plan.suite.name}: {len(plan.suite.workloads)} workloads",
        f"profile    {profile.name}: {profile.ramp_s} s discarded + {profile.runtime_s} s measured a run",
        *_files_lines(plan),
        f"systems    {', '.join(plan.systems)}",
        f"runs       {expected.runs} ({profile.repetitions} of each cell), seed {plan.seed}",
        f"duration   about {progress.duration(expected.seconds)} (h:mm:ss)"
        + (", and the lab's start" if place.lab else ""),
    ]
    for device in plan.devices.values():
        blocks_write = expected.bytes_written[device.id]
        written = f"at most {_bytes(blocks_write)} written" + " by block workloads" * plan.with_files
        if not blocks_write:
            written = "file systems made anew"
        lines.append(
            f"device     {device.id} {device.path}: {written},"
            f" all within its first {_bytes(plan.used_bytes(device.id))}, whose contents are LOST"
        )
    blocks = list(plan.blocks())
    order = [
        f"{entries[0].device} {entries[0].system}"
        + (f" {entries[0].workload}" if len(entries) == 1 else f" {entries[0].suite}" if plan.with_files else "")
        for _, entries in blocks[:BLOCKS_SHOWN]
    ]
    more = f", and {len(blocks) - BLOCKS_SHOWN} more" if len(blocks) > BLOCKS_SHOWN else ""
    lines.append(f"order      {len(blocks)} blocks: {', '.join(order)}{more} (--json: every run)")
    return lines


def _files_lines(plan: Plan) -> list[str]:
    files = plan.profile.files
    if not plan.with_files:
        return []
    return [
        f"           on file systems: {files.ramp_s} s discarded + {files.runtime_s} s (servers"
        f" {files.macro_runtime_s} s) measured, {_bytes(files.memory_bytes)} of memory"
    ]


def show_plan(plan: Plan, place: Place, as_json: bool) -> None:
    if not as_json:
        print("\n".join(plan_lines(plan, place)))
        return
    expected = estimate(plan)
    value = {
        "place": "lab" if place.lab else "host",
        "reason": place.reason,
        "runs": expected.runs,
        "seconds": expected.seconds,
        "bytes_written": dict(expected.bytes_written),
        "plan": dataclasses.asdict(plan),
    }
    print(json.dumps(value, indent=1))


def plan_command(args: argparse.Namespace) -> int:
    plan, place = lay_out(args)
    show_plan(plan, place, args.json)
    return 0


# ---- run and resume -------------------------------------------------------------


def run_command(args: argparse.Namespace) -> int:
    plan, place = lay_out(args)
    if args.dry_run:
        show_plan(plan, place, args.json)
        return 0
    say(place_line(place))
    if place.lab:
        prepare_lab()
    directory = create(plan, args.results.absolute(), sys.argv)
    return carry_out(plan, directory, args.json)


def resume_command(args: argparse.Namespace) -> int:
    directory = find_campaign(args.campaign, args.results)
    plan = read_plan(directory / "plan.json")
    if plan.emulated:
        prepare_lab()
    return carry_out(plan, directory, args.json)


def say(text: str) -> None:
    """To people, whatever standard output is used for."""
    print(text, file=sys.stderr, flush=True)


def carry_out(plan: Plan, directory: Path, as_json: bool) -> int:
    """Run what is left of a campaign and show it. Returns the runner's exit code."""
    expected = estimate(plan)
    say(f"{expected.runs} runs, about {progress.duration(expected.seconds)} (h:mm:ss), into {directory}")
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
    tables, reports = tables_of(directory), reports_of(directory)
    if tables or reports:
        written = write_tables(tables, directory) if tables else []
        written += write_reports(reports, directory)
        if not as_json:
            print_tables(tables, console)
            print_reports(reports, console)
        say(f"Results and tables are in {directory}: {', '.join(written)}")
    if code:
        say(f"Not every run is done and valid (runner's exit code {code}). {how_to_resume(directory)}")
    return code


def follow(plan: Plan, directory: Path, display: progress.Display) -> int:
    """Start the runner, show its events, and end it whatever happens here."""
    others = load.OtherLoad()
    runner = None
    try:
        time.sleep(LOAD_LOOK)
        busy = others.percent()
        if busy > load.BUSY:
            say(f"Other programs take {busy:.0f} % of a CPU: results are worth little, runs made so get a warning.")
        if plan.emulated:
            load.write(directory, busy)
        with interrupt.held():
            runner = Runner(plan, directory)
        for event in runner.events(TICK):
            if event is None:
                display.tick()
            else:
                display.event(event)
            if plan.emulated and others.due():
                load.write(directory, others.percent())
        return runner.wait()
    except BaseException:
        if runner:
            say("Stopping; what was brought up is torn down.")
            with interrupt.held():
                runner.stop()
        say(how_to_resume(directory))
        raise


def how_to_resume(directory: Path) -> str:
    return f"Go on with: userblk resume {directory}"


# ---- table ----------------------------------------------------------------------


def find_campaign(name: str, results: Path) -> Path:
    """The directory of a campaign, given as a path or by name below results. Raises ConfigError."""
    for directory in (Path(name), results / name):
        if (directory / "plan.json").is_file():
            return directory.absolute()
    raise ConfigError(f"campaign={name}: no plan.json in it, nor in {results / name}; name a campaign's directory")


def tables_of(directory: Path) -> list[Table]:
    """Raises SummaryError, ConfigError."""
    try:
        asked = json.loads((directory / "campaign.json").read_text())
        seed, choices = int(asked["seed"]), [str(line) for line in asked.get("choices", [])]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{directory / 'campaign.json'}: cannot be read: {error}") from None
    return make_tables(load_campaign(directory), seed, choices)


def reports_of(directory: Path) -> list[Report]:
    """Of the suites that are not in the tables. Raises SummaryError."""
    return [one for module in (failover, sweep) for one in module.reports(directory)]


def print_reports(reports: Sequence[Report], console: Console) -> None:
    for one in reports:
        console.print("", report.terminal(one), sep="\n")


def write_reports(reports: Sequence[Report], directory: Path) -> list[str]:
    """Their files and figures; returns the names."""
    files = report.files_of(reports)
    for name, text in files.items():
        write_file(directory / name, text)
    try:
        return [*files, *report.draw(reports, directory)]
    except ImportError:
        say("Figures need matplotlib; run: apt-get install python3-matplotlib")
        return list(files)


def formatted(tables: Sequence[Table], reports: Sequence[Report], form: str) -> str:
    if reports:
        rest = report.markdown(reports) if form == "markdown" else "\n".join(map(report.as_csv, reports))
        return (formatted(tables, [], form) + "\n" if tables else "") + rest
    if form == "markdown":
        return render.markdown(tables)
    return render.csv_wide(tables) if form == "csv" else render.csv_long(tables)


def print_tables(tables: Sequence[Table], console: Console) -> None:
    for number, table in enumerate(tables):
        console.print(*[""] * bool(number), render.terminal(table, console), sep="\n")


def write_file(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".new")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.rename(path)
    except OSError as error:
        raise ConfigError(f"output={path}: {error.strerror}; name a file that can be written") from None


def write_tables(tables: Sequence[Table], directory: Path) -> list[str]:
    """table.md, table.csv and table-long.csv; returns their names."""
    for name, form in FILES.items():
        write_file(directory / name, formatted(tables, [], form))
    return list(FILES)


def table_command(args: argparse.Namespace) -> int:
    reports: list[Report] = []
    if args.campaign == PAPER:
        tables = [paper_table(paths.CONFIGS / "paper" / name) for name in PAPER_TABLES]
    else:
        directory = find_campaign(args.campaign, args.results)
        tables, reports = tables_of(directory), reports_of(directory)
        if not tables and not reports:
            raise ConfigError(f"{directory}: no run is done yet. {how_to_resume(directory)}")
    if args.format != "terminal":
        text = formatted(tables, reports, args.format)
    elif args.output:
        console = Console(file=open(os.devnull, "w"), record=True, width=Console().width)  # noqa: SIM115
        print_tables(tables, console)
        print_reports(reports, console)
        text = console.export_text()
    else:
        print_tables(tables, Console())
        print_reports(reports, Console())
        return 0
    if args.output:
        write_file(args.output, text)
    else:
        sys.stdout.write(text)
    return 0


# ---- lab ------------------------------------------------------------------------


def lab_command(args: argparse.Namespace) -> int:
    """Becomes lab/build or lab/run."""
    if paths.CHECKOUT is None:
        raise ConfigError("lab: needs a checkout of userblk; run bin/userblk there")
    program = {"build": "build", "run": "run", "shell": "run"}[args.action]
    words = [*args.arguments, "--tty", "--timeout", "0", "bash"] if args.action == "shell" else args.arguments
    path = str(paths.CHECKOUT / "lab" / program)
    os.execv(path, [path, *words])


# ---- the command line -----------------------------------------------------------


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number, 0 or more")
    return int(text)


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", default="bdus-block", help="one of configs/suites (default: %(default)s)")
    parser.add_argument(
        "--profile", default="quick", help="quick or paper; see configs/profiles (default: %(default)s)"
    )
    parser.add_argument("--reps", type=_count, metavar="N", help="runs of each cell (default: the profile's)")
    parser.add_argument(
        "--systems",
        metavar="LIST",
        help=f"of configs/systems (default: those that the suite names; else {SYSTEMS}, and {FILE_SYSTEMS} where it has"
        " file systems)",
    )
    parser.add_argument("--workloads", metavar="LIST", help="of the suite, as in seq-read-1th-4k (default: all)")
    parser.add_argument("--sata", metavar="DEV", help="block device to measure as SATA; its contents are LOST")
    parser.add_argument("--nvme", metavar="DEV", help="block device to measure as NVMe; its contents are LOST")
    parser.add_argument(
        "--confirm",
        default="",
        metavar='"SERIAL SERIAL"',
        help="repeat the serial of each named device, SATA first; the size in bytes of one that has none",
    )
    parser.add_argument("--seed", type=_count, metavar="N", help="of the order and of every run (default: a new one)")
    parser.add_argument(
        "--where",
        choices=("auto", "host", "lab"),
        default="auto",
        help="auto: this host if its kernel has what is needed and devices are named, else the lab (default)",
    )


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="userblk",
        description="Measures what it costs to serve a block device or a file system from user space: the 16 block and"
        " 25 file-system workloads of the BDUS paper on the native device, nbdkit, tcmu-runner and FUSE, and the"
        " paper's Tables 1 and 2 with confidence intervals.",
        epilog="Exit codes: 0 done; 3 some runs are missing or invalid; 1 all are; 2 wrong usage or a refused device;"
        " 130 interrupted (everything is torn down; userblk resume goes on).",
    )
    parser.add_argument("--version", action="version", version=f"userblk {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        sub.set_defaults(command=globals()[f"{name}_command"])
        return sub

    plan = add("plan", "print what would run, how long it takes and what it writes")
    run = add("run", "run a campaign and print its table")
    resume = add("resume", "run what is missing or invalid in a campaign")
    table = add("table", "print the tables of a campaign")
    lab = add("lab", "build the lab, run a command in it, or get a shell in it")

    for sub in (plan, run):
        add_plan_options(sub)
    run.add_argument("--dry-run", action="store_true", help="as userblk plan")
    resume.add_argument("campaign", metavar="CAMPAIGN", help="directory of the campaign, or its name below --results")
    table.add_argument(
        "campaign", metavar="CAMPAIGN", help=f"as for resume; `{PAPER}`: the paper's own tables, to compare with"
    )
    table.add_argument("--format", choices=FORMATS, default="terminal", help="default: %(default)s")
    table.add_argument("--output", type=Path, metavar="FILE", help="write it to FILE")
    for sub in (plan, run, resume):
        sub.add_argument("--json", action="store_true", help="JSON on standard output: the plan, or a line per event")
    for sub in (run, resume, table):
        sub.add_argument(
            "--results", type=Path, default=Path("results"), metavar="DIR", help="of all campaigns (default: results)"
        )
    lab.add_argument("action", choices=("build", "shell", "run"))
    lab.add_argument("arguments", nargs=argparse.REMAINDER, help="see lab/build --help, lab/run --help")
    return parser


def main() -> int:
    args = make_parser().parse_args()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    interrupt.install()
    try:
        code: int = args.command(args)
        return code
    except (ConfigError, Refused, SummaryError) as error:
        print(f"userblk: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_SIGNAL + signal.SIGPIPE
    except interrupt.Interrupted as stop:
        print(f"userblk: ended by {stop}", file=sys.stderr)
        return EXIT_SIGNAL + stop.number
