#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""
Runs a command in a User-Mode Linux, as lab/run does in its guest: for long tests on a machine without KVM.

    tests/lab/user_mode_linux.py --linux DIR [--extra DIR] [--share DIR] -- COMMAND...

DIR has the source of Linux 7.0 or newer (in Debian: linux-source-7.3). It is built in build/uml first: six minutes.
The kernel is a process of this machine, on one CPU. What programs compute takes as long as on the machine itself, fork
and exec a tenth of what emulated CPUs take for them, and a system call five times as long (5 us). Other programs on its
CPU slow it down many times, because each system call waits for a turn: `chrt --rr 1` before it keeps the CPU free.

Its root is that of this machine, but what is written there vanishes; /userblk is the checkout, read-only; /results and
/extra are the directories of --share and --extra. LAB_NVME and LAB_SATA are disks in memory with a volatile cache. The
programs are those of build/host, as LAB_RELEASE says. Exit status: the command's; 124: the time ran out; 125: the
kernel ended.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nbdkit_server import ROOT, checked, run

BUILD = ROOT / "build/uml"
FRAGMENT = Path(__file__).with_suffix(".config")
INIT = Path(__file__).with_name("user_mode_linux_init")
INSIDE = "USERBLK_UML_NAMESPACE"
EXIT_TIMEOUT, EXIT_DIED = 124, 125  # as lab/run
COMMAND, RESULT = "uml-command", "uml-exit"  # files in its root
OTHER_MIB = 2048  # of memory, besides a full disk
NEEDED = ("bison", "flex", "gcc", "make", "depmod", "taskset")


def lacking_settings(config: Path) -> list[str]:
    have = set(config.read_text().splitlines())
    return [line for line in FRAGMENT.read_text().splitlines() if line.endswith("=y") and line not in have]


def build(linux: Path) -> Path:
    """The kernel, from its source. Ends the program if it cannot have what FRAGMENT asks for."""
    program, config, made, log = (BUILD / name for name in ("linux", ".config", "made-from", "build.log"))
    made_from = f"{linux}\n{FRAGMENT.read_text()}"
    if program.exists() and made.exists() and made.read_text() == made_from:
        return program
    BUILD.mkdir(parents=True, exist_ok=True)
    made.unlink(missing_ok=True)
    print(f"user_mode_linux.py: building {linux}: see {log}", file=sys.stderr)
    make = ["make", "-C", str(linux), f"O={BUILD}", "ARCH=um"]
    merge = [str(linux / "scripts/kconfig/merge_config.sh"), "-m", "-O", str(BUILD), str(config), str(FRAGMENT)]
    with log.open("w") as output:
        for argv in ([*make, "x86_64_defconfig"], merge, [*make, "olddefconfig"], [*make, f"-j{os.cpu_count()}"]):
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=linux, check=False)
            if done.returncode:
                raise SystemExit(f"user_mode_linux.py: {shlex.join(argv)}: exit code {done.returncode}; see {log}")
            if argv[-1] == "olddefconfig" and (lacking := lacking_settings(config)):
                raise SystemExit(
                    f"user_mode_linux.py: --linux={linux}: cannot have {', '.join(lacking)}; use Linux 7.3"
                )
    made.write_text(made_from)
    return program


def mount_root(place: Path, shown: dict[str, Path]) -> Path:
    """The root of the kernel, below place, in which directories are shown by their names."""
    root, upper, work = (place / name for name in ("root", "upper", "work"))
    for directory in (root, upper, work, *(upper / name for name in shown)):
        directory.mkdir()
    checked(["mount", "-t", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", "overlay", str(root)])
    for name, directory in shown.items():
        checked(["mount", "-o", "bind" if name == "results" else "bind,ro", str(directory), str(root / name)])
    # modprobe reads there that all is built in.
    release = (BUILD / "include/config/kernel.release").read_text().strip()
    modules = root / "lib/modules" / release
    modules.mkdir(parents=True)
    for name in ("modules.builtin", "modules.builtin.modinfo"):
        shutil.copy(BUILD / name, modules)
    (modules / "modules.order").touch()
    checked(["depmod", "--basedir", str(root), release])
    return root


def write_files(root: Path, args: argparse.Namespace) -> None:
    """What the kernel's first process needs, and the command."""
    settings = {
        "LAB": "1",
        "LAB_ACCEL": "uml",
        "LAB_CLOCK": "real",
        "LAB_KERNEL": str(args.linux),
        "LAB_NVME": "/dev/nullb0",
        "LAB_RELEASE": "host",
        "LAB_SATA": "/dev/nullb1",
        "PYTHONPYCACHEPREFIX": "/tmp/pycache",
    }
    lines = [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]
    (root / COMMAND).write_text("\n".join([*lines, "cd /userblk", f"exec {shlex.join(args.command)}"]) + "\n")
    shutil.copy(INIT, root)


def run_kernel(program: Path, root: Path, args: argparse.Namespace) -> str:
    """Why it ended."""
    memory = args.disk_gib * 1024 + OTHER_MIB
    # On two CPUs each of its system calls would wake the other one up: 56 us instead of 5.
    argv = ["taskset", "--cpu-list", str(args.cpu), str(program), f"mem={memory}M", "ncpus=1", "seccomp=on"]
    argv += ["root=/dev/root", "rootfstype=hostfs", f"rootflags={root}", "rw", f"init=/{INIT.name}"]
    argv += [f"uml_dir={root.parent}"]  # not in the user's home
    disks = {"nr_devices": 2, "memory_backed": 1, "discard": 1, "bs": 512, "cache_size": 64, "gb": args.disk_gib}
    argv += [f"null_blk.{name}={value}" for name, value in disks.items()]
    argv += ["nbd.nbds_max=64"]  # as the harness has it
    console = BUILD / f"console-{args.cpu}.log"
    with console.open("w") as log:
        number = log.fileno()
        argv += [f"con0=null,fd:{number}", "con1=null,fd:1", "con=null"]
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stderr=log, pass_fds=(number,), start_new_session=True
        )
        try:
            return f"status {process.wait(args.timeout or None)}; see {console}"
        except subprocess.TimeoutExpired:
            return ""
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def mounts_below(place: Path) -> list[str]:
    """Those of this mount namespace, the last one first."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in reversed(points) if point.startswith(f"{place}/")]


@contextmanager
def temporary_place() -> Iterator[Path]:
    """A directory that goes at the end with all that is mounted in it, but never with what a mount shows."""
    place = Path(tempfile.mkdtemp(prefix="userblk-uml-", dir="/var/tmp"))
    try:
        yield place
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        for point in mounts_below(place):
            run(["umount", "--lazy", point])
        if left := mounts_below(place):
            print(f"user_mode_linux.py: {left[0]}: cannot be unmounted; {place} stays", file=sys.stderr)
        else:
            shutil.rmtree(place)


def run_in(program: Path, args: argparse.Namespace) -> int:
    """The exit status."""
    shown = {"userblk": ROOT, "results": args.share, "extra": args.extra}
    with temporary_place() as place:
        root = mount_root(place, {name: directory for name, directory in shown.items() if directory})
        write_files(root, args)
        why = run_kernel(program, root, args)
        result = root / RESULT
        if result.exists():
            return int(result.read_text())
    print(f"user_mode_linux.py: {why or f'ended after {args.timeout:g} s'}", file=sys.stderr)
    return EXIT_DIED if why else EXIT_TIMEOUT


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0].strip())
    parser.add_argument("--linux", type=Path, required=True, help="a source tree of Linux 7.0 or newer")
    parser.add_argument("--share", type=Path, help="this directory is /results, and can be written to")
    parser.add_argument("--extra", type=Path, help="this directory is /extra")
    parser.add_argument("--disk-gib", type=int, default=4, metavar="GIB", help="of each disk (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=0.0, metavar="S", help="0: none (default: %(default)g)")
    cpus = sorted(os.sched_getaffinity(0))
    parser.add_argument("--cpu", type=int, choices=cpus, default=cpus[-1], help="default: %(default)s")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    if not (args.linux / "arch/um/Kconfig").exists():
        parser.error(f"--linux={args.linux}: no source of Linux; unpack Debian's /usr/src/linux-source-*.tar.xz")
    for option in ("share", "extra"):
        if (directory := getattr(args, option)) and not directory.is_dir():
            parser.error(f"--{option}={directory}: is no directory; make it first")
        setattr(args, option, directory and directory.resolve())
    if os.geteuid() != 0:
        parser.error("needs root")
    if lacking := [name for name in NEEDED if not shutil.which(name)]:
        parser.error(f"needs {', '.join(lacking)}: run apt-get install bison flex gcc make kmod util-linux")
    if os.environ.get(INSIDE) != "1":
        argv = ["unshare", "--mount", "--propagation", "slave", sys.executable, *sys.argv]
        os.execvpe(argv[0], argv, os.environ | {INSIDE: "1"})
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    return run_in(build(args.linux.resolve()), args)


if __name__ == "__main__":
    sys.exit(main())
