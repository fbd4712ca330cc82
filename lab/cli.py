# SPDX-License-Identifier: BSD-3-Clause
"""The commands lab/build, lab/run and lab/make-in-root."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from . import KERNELS, RELEASE, RELEASES, LabError, Variant
from .guest import CLOCKS, EXIT_DIED, EXIT_TIMEOUT, Options, parse_size, run
from .rootfs import die_with_parent, ensure_tree, in_root, locked

HEADERS = "tcmu-headers"  # the only target that fetches something
# What runs in a guest.
RUNNERS = [f"userblk.harness.running.{name}" for name in ("runner", "store_runner", "explain_runner")]


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def size_argument(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1M, a multiple of 4096, as in 4G") from None


def directory_argument(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: not a directory")
    return path.resolve()


def given_argument(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not name or name.startswith("/") or ".." in name.split("/"):
        raise argparse.ArgumentTypeError(f"{text}: must be NAME=FILE, with a name below /results")
    if not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"{text}: {path or 'nothing'} is no file")
    return name, Path(path)


def forward_argument(text: str) -> tuple[int, int]:
    numbers = [int(word) if word.isdecimal() else 0 for word in text.split(":")]
    if len(numbers) != 2 or not all(0 < number < 1 << 16 for number in numbers):
        raise argparse.ArgumentTypeError(f"{text}: must be PORT:PORT, this machine's first, as in 2222:22")
    return numbers[0], numbers[1]


def add_release(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--release",
        choices=RELEASES,
        default=os.environ.get("LAB_RELEASE") or RELEASE,
        help=f"which Debian is in the guest (default: $LAB_RELEASE, or {RELEASE})",
    )


def add_extra(parser: argparse.ArgumentParser, use: str) -> None:
    parser.add_argument(
        "--extra",
        type=directory_argument,
        default=os.environ.get("LAB_EXTRA") or None,
        metavar="DIR",
        help=f"directory of your own, at /extra; {use} (default: $LAB_EXTRA, or none)",
    )


def add_kernel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kernel",
        default=os.environ.get("LAB_KERNEL") or KERNELS[0],
        metavar="stable|backports|DIR",
        help=f"the release's kernel, the newer one of {RELEASE}'s backports, or one of your own: DIR/vmlinuz and"
        f" DIR/lib/modules/VERSION (default: $LAB_KERNEL, or {KERNELS[0]})",
    )


def build_main(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="lab/build",
        description="Build the lab's root file system in build/lab/, unless it is there and current.",
    )
    add_release(parser)
    add_kernel(parser)
    args = parser.parse_args(arguments)
    tree = ensure_tree(Variant(args.release, args.kernel))
    print(tree.root)
    return 0


def run_main(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="lab/run",
        description="Boot the lab's guest and run one command in it, as root, in /userblk (this checkout,"
        " read-only). Its standard output, standard error and exit code are this command's own.",
        epilog="The command finds LAB=1, LAB_SATA and LAB_NVME (two empty emulated SSDs), LAB_RELEASE, LAB_KERNEL"
        ", LAB_CLOCK and LAB_ACCEL (tcg, kvm or icount) in its environment. In virtual time the SSDs are modelled,"
        " LAB_RAM is a disk in memory and LAB_INSTRUCTIONS_PER_US the speed of the CPU."
        " Everything it leaves outside /results is lost."
        f" Exit code {EXIT_TIMEOUT}: the command was ended by --timeout; {EXIT_DIED}: the guest did not boot, or"
        " died; 2: wrong usage or the lab could not be built.",
    )
    add_release(parser)
    add_kernel(parser)
    add_extra(parser, "read-only, and its program setup runs before the command")
    parser.add_argument("--memory", type=int, default=Options.memory, metavar="MIB", help="default: %(default)s")
    parser.add_argument("--cpus", type=int, metavar="N", help=f"default: {Options.cpus}")
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default=os.environ.get("LAB_CLOCK") or CLOCKS[0],
        help="virtual: one emulated CPU whose clock advances by a fixed time for each instruction and skips idle time,"
        " and modelled SSDs: results do not depend on other load of this machine (default: $LAB_CLOCK, or real)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=Options.seed,
        metavar="N",
        help="in virtual time: seed of the guest's random numbers; another N is another boot (default: %(default)s)",
    )
    parser.add_argument(
        "--network", action="store_true", help="give the guest a network, on which this machine is $LAB_HOST"
    )
    parser.add_argument(
        "--forward",
        action="append",
        default=[],
        type=forward_argument,
        metavar="PORT:PORT",
        help="with --network: let a port of this machine's 127.0.0.1 lead to one of the guest's (may be repeated)",
    )
    parser.add_argument(
        "--share", type=directory_argument, metavar="DIR", help="directory to mount read-write at /results"
    )
    parser.add_argument(
        "--sealed",
        action="store_true",
        help="in virtual time: let nothing of this machine reach the guest while it is up, so that it does the same in"
        " each run, to the instruction. It has copies of the checkout's programs and of the files of --given; what the"
        " command leaves in /results comes to --share when it ends",
    )
    parser.add_argument(
        "--given",
        action="append",
        default=[],
        type=given_argument,
        metavar="NAME=FILE",
        help="let a sealed guest have a copy of a file, as /results/NAME (may be repeated)",
    )
    parser.add_argument(
        "--disk-size", type=size_argument, default="4G", metavar="SIZE", help="size of each disk (default: %(default)s)"
    )
    parser.add_argument(
        "--disk-dir",
        type=Path,
        metavar="DIR",
        help="directory of the disks' sparse, nameless files (default: /dev/shm if it has room, else build/lab)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=Options.timeout,
        metavar="S",
        help="end the command after this many seconds; 0: never (default: %(default)g)",
    )
    parser.add_argument("-t", "--tty", action="store_true", help="give the command this terminal")
    parser.add_argument("-v", "--verbose", action="store_true", help="print how long the boot took")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND [ARG...]")
    args = parser.parse_args(arguments)
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("COMMAND is missing: name a program in the guest, as in `lab/run lsblk`")
    if args.memory < 512:
        parser.error(f"--memory={args.memory}: must be at least 512 (MiB)")
    if args.clock not in CLOCKS:
        parser.error(f"LAB_CLOCK={args.clock}: must be one of {', '.join(CLOCKS)}")
    virtual = args.clock == "virtual"
    if virtual and args.cpus not in (None, 1):
        parser.error(f"--cpus={args.cpus}: virtual time has one CPU; leave it out, or use --clock real")
    if not 0 <= args.seed < 1 << 32:
        parser.error(f"--seed={args.seed}: must be from 0 to {(1 << 32) - 1}")
    if args.cpus is not None and args.cpus < 1:
        parser.error(f"--cpus={args.cpus}: must be at least 1")
    if args.sealed and (not virtual or args.tty or args.network):
        other = "--clock real" if not virtual else "--tty" if args.tty else "--network"
        parser.error(f"--sealed: does not go with {other}, which lets this machine reach the guest; leave one out")
    if args.forward and not args.network:
        parser.error("--forward: needs --network; add it, or leave it out")
    if args.given and not args.sealed:
        parser.error("--given: needs --sealed; add it, or leave it out")
    tree = ensure_tree(Variant(args.release, args.kernel))
    options = Options(
        command=tuple(command),
        memory=args.memory,
        cpus=args.cpus or (1 if virtual else Options.cpus),
        share=args.share,
        extra=args.extra,
        disk_size=args.disk_size,
        disk_dir=args.disk_dir,
        timeout=args.timeout,
        tty=args.tty,
        verbose=args.verbose,
        network=args.network,
        forward=tuple(args.forward),
        clock=args.clock,
        seed=args.seed,
        sealed=args.sealed,
        given=tuple(args.given),
    )
    return run(tree, options)


def make_main(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="lab/make-in-root",
        description="Run `make TARGET=RELEASE` in the lab's root file system, by chroot: programs for the guest are"
        " compiled against its libraries, into build/RELEASE/.",
    )
    add_release(parser)
    add_kernel(parser)
    add_extra(parser, "its program build runs first, beside the headers of that kernel")
    parser.add_argument("target", nargs="*", help="targets and VARIABLE=value of the makefile")
    args = parser.parse_args(arguments)
    if os.geteuid() != 0:
        raise LabError("lab/make-in-root needs root for chroot")
    tree, variant = ensure_tree(Variant(args.release)), Variant(args.release, args.kernel)
    jobs = len(os.sched_getaffinity(0))
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    env |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    make = ["make", "-C", "/userblk", f"TARGET={args.release}"]
    commands = [(tree, [*make, HEADERS]), (tree, [*make, f"-j{jobs}", *args.target])]
    if args.extra:
        env |= {"LAB_EXTRA": str(args.extra), "LAB_RELEASE": args.release}
        if os.access(args.extra / "build", os.X_OK):
            commands.insert(0, (ensure_tree(variant), ["/extra/build"]))
    pycache = f"PYTHONPYCACHEPREFIX=/userblk/build/{args.release}/pycache"
    path = f"PATH=/usr/local/bin:{env['PATH']}"  # where it is not the release's own
    python = ["python3", "-m", "userblk.lab.compile_python", *RUNNERS]
    commands.append((tree, ["env", path, pycache, "PYTHONPATH=/userblk/python", *python]))
    with locked(f"make-{args.release}"):
        for root, inside in commands:
            code = subprocess.run(in_root(root, inside), env=env, preexec_fn=die_with_parent).returncode
            if code and inside[-1] != HEADERS:  # without those the build says what it leaves out
                return code
    return 0


def terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def main(command: Callable[[Sequence[str]], int]) -> None:
    """Run one of the commands above and exit; everything is torn down on the way out."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, terminate)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, commands that failed would leave no status
    try:
        code = command(sys.argv[1:])
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        code = 2
    except BrokenPipeError:
        code = 128 + signal.SIGPIPE
    sys.exit(code)
