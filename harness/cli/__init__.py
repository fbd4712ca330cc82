# SPDX-License-Identifier: BSD-3-Clause
"""The command `userblk`. Its commands are in the modules of this package, a function add_commands() in each."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from userblk import __version__
from userblk.analysis.summaries import SummaryError

from ..machine import interrupt
from ..machine.safety import Refused
from ..model.tables import ConfigError, NeedsCheckout
from . import bundle, explain, host, plan, report, results, run, tune
from .common import EXIT_SIGNAL, EXIT_USAGE, output_fails
from .source import start_again

MODULES = (plan, run, results, report, explain, bundle, host, tune)
LOG_LEVELS = ("debug", "info", "warning", "error")


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message.removeprefix('argument ')}; see {self.prog} --help\n")


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="userblk",
        description="Measure what it costs to serve a block device or a file system from user space: the 16 block and"
        " 25 file-system workloads of the BDUS paper, on the native device and behind nbdkit, tcmu-runner, ublk and"
        " FUSE. Prints the paper's Tables 1 and 2 with confidence intervals.",
        epilog="Exit codes: 0 done; 3 some runs are missing or invalid; 1 all are; 2 wrong usage, a refused device"
        " or a full file system; 130 interrupted (everything was torn down; continue with userblk resume).",
    )
    parser.add_argument("--version", action="version", version=f"userblk {__version__}")
    parser.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default="info",
        help="minimum severity of messages on standard error (default: info)",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, text: str, command: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        sub.set_defaults(command=command, parser=make_parser)
        return sub

    for module in MODULES:
        module.add_commands(add)
    return parser


def _prepare_streams() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the caller has closed it
            setattr(sys, name, open(os.devnull, "w"))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _carry_out() -> int:
    try:
        args = make_parser().parse_args()
        logging.basicConfig(level=args.log_level.upper(), format="%(message)s")
        code: int = args.command(args)
    except NeedsCheckout as need:
        start_again(need)
    except SystemExit:  # of --help
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return code


def main() -> int:
    _prepare_streams()
    interrupt.install()
    try:
        return _carry_out()
    except (ConfigError, Refused, SummaryError) as error:
        print(f"userblk: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_SIGNAL + signal.SIGPIPE
    except OSError:
        if not (reason := output_fails()):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        with suppress(OSError):  # of a terminal that is closed
            print(f"userblk: standard output: {reason}", file=sys.stderr)
        return EXIT_USAGE
    except interrupt.Interrupted as stop:
        print(f"userblk: ended by {stop}", file=sys.stderr)
        return EXIT_SIGNAL + stop.number
