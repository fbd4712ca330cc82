# SPDX-License-Identifier: BSD-3-Clause
"""What this machine can run, what is missing for the rest, and what fixes it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..machine import paths
from ..machine.blockdev import identify
from ..machine.packages import installing
from ..machine.safety import Refused, check, confirmation, contents, first_confirmation
from ..machine.teardown import TeardownError, in_words, noted, stale
from ..machine.tuning import hardware_disks
from ..model import config, source, tables
from ..model.config import SystemConfig
from ..model.parts import ENGINES
from ..observing import environment
from ..systems.base import Failure, find_program, kind_of, module_there

FIO = "fio"
ON_FILES = {"mkfs.ext4": "e2fsprogs", "mount": "mount", "umount": "mount", "setpriv": "util-linux"}  # and packages
# What an installation needs; a checkout says itself what its lab does.
LAB = {"qemu-system-x86_64": "qemu-system-x86", "mmdebstrap": "mmdebstrap", "busybox": "busybox-static"}
APPLICATIONS = ("kv", "postgresql", "source-tree")  # suites
ADVICE = {"smartctl": "smartmontools", "nvme": "nvme-cli"}
INSTALL = "install the programs in C: make install in a checkout, or the Debian packages (make deb)"


@dataclass(frozen=True)
class Need:
    """
    One thing, whether it is there, and the command (or advice) that brings it. made: make builds it; told: one says so
    even if it is there.
    """

    what: str
    met: bool
    fix: str
    made: bool = False
    told: bool = False


@dataclass(frozen=True)
class Finding:
    """What needs of one thing that userblk can do are met."""

    name: str
    kind: str
    needs: Sequence[Need]

    @property
    def ready(self) -> bool:
        return all(need.met for need in self.needs)

    @property
    def missing(self) -> list[Need]:
        return [need for need in self.needs if not need.met]


def program(name: str, package: str) -> Need:
    fix = installing(package) if package else f"install {name}"
    return Need(f"program {name}", bool(find_program(name)), fix)


def module(name: str, hint: str = "") -> Need:
    fix = hint or "boot a kernel that has it, such as Debian's linux-image-amd64, or run in the lab (--where lab)"
    return Need(f"kernel module {name}", module_there(name), fix)


def kernel(failure: Failure) -> Need:
    """Another one than that which a system was seen to fail with."""
    release = os.uname().release
    if failure.here:
        return Need(f"a kernel other than Linux {release}", False, f"{failure.why}; {failure.remedy}")
    return Need(f"fails with Linux {failure.kernel}: {failure.why}; not tried with {release}", True, "", told=True)


def lacks(needs: Sequence[Need], only_planned: bool = False) -> str:
    """What is missing, in one line: each remedy once. only_planned: what make builds may be missing."""
    remedies: dict[str, list[str]] = {}
    for need in needs:
        if not need.met and not (only_planned and need.made):
            remedies.setdefault(need.fix, []).append(need.what)
    return "; ".join(f"{', '.join(whats)}: {fix}" for fix, whats in remedies.items())


def system_needs(system: SystemConfig) -> list[Need]:
    """What one system needs beside a device and root."""
    kind, asked, found = kind_of(system), system.requires, []
    for name, package in kind.programs(system).items():
        need = program(name, package)
        found.append(Need(need.what, need.met, asked.hint or need.fix))
    if made := kind.makes(system):
        target, file = made
        path = paths.HOST_BUILD / file
        fix = f"make {target}" if paths.CHECKOUT else INSTALL
        found.append(Need(f"file {path}", path.exists(), fix, made=True))
    found += [module(name, asked.hint) for name in kind.modules(system)]
    if failure := kind.failure(system):
        found.append(kernel(failure))
    for name in asked.environment:
        found.append(Need(f"environment variable {name}", bool(os.environ.get(name)), f"export {name}=..."))
    return found


def lab_needs() -> list[Need]:
    if paths.CHECKOUT is None and not source.ARCHIVE.is_file():
        return [Need("a checkout of userblk", False, "git clone userblk, and run bin/userblk in it")]
    if paths.CHECKOUT is None:  # the first run there builds it
        return [program(name, package) for name, package in LAB.items()]
    from userblk.lab import CACHE, Variant, rootfs

    tree = rootfs.find_tree(Variant())
    tools = rootfs.RUN_TOOLS if tree else rootfs.BUILD_TOOLS | rootfs.RUN_TOOLS
    lacking = rootfs.lacking(tools)
    found = [Need(f"program {tool}", tool not in lacking, installing(tools[tool])) for tool in tools]
    return [*found, Need(f"root file system in {CACHE}", tree is not None, "lab/build")]


def workload_needs(on_files: bool) -> list[Need]:
    """What makes the workloads on devices, or those on files."""
    if not on_files:
        return [program(FIO, FIO)]
    flow = paths.HOST_BUILD / "flow/userblk-flow"
    found = [program(name, package) for name, package in ON_FILES.items()]
    return [*found, Need(f"file {flow}", flow.exists(), "make flow" if paths.CHECKOUT else INSTALL, made=True)]


def base_needs() -> list[Need]:
    """What every measurement on this machine needs."""
    root = Need("root", os.geteuid() == 0, "sudo userblk ...")
    return [root, *workload_needs(on_files=False), *workload_needs(on_files=True)]


def suite_needs(name: str) -> list[Need]:
    """What workloads of a suite lack; each thing once."""
    workloads = config.load_suite(name).workloads
    lacking = (ENGINES[workload.engine].lacks(workload, str(paths.HOST_BUILD)) for workload in workloads)
    reasons = [reason.partition("; ") for reason in dict.fromkeys(lacking) if reason]
    return [Need(what, False, fix) for what, _, fix in reasons]


def device_needs(disk: str) -> list[Need]:
    """May this disk be named to --sata or --nvme? Asked without touching it."""
    path = f"/dev/{disk}"
    try:
        device = identify(path)
        check(path, confirmation(device)[0])
    except OSError as error:
        return [Need("free to be overwritten", False, f"{error.strerror}")]
    except Refused as error:
        return [Need("free to be overwritten", False, str(error).removeprefix(f"{path}: "))]
    held = contents(device)
    state = f"unused, but it holds {held}, which is lost" if held else "free to be overwritten"
    needs = [Need(f"{state}, once you confirm it with --confirm {first_confirmation(device)[0]}", True, "", told=True)]
    if reason := environment.failing(environment.device_facts(disk)):
        needs.append(Need("healthy", False, reason))
    return needs


def left_needs(journal: Path) -> list[Need]:
    """What a killed runner has left, which has to go first."""
    try:
        steps = noted(journal)[1]
    except FileNotFoundError:
        return []
    except TeardownError as error:
        return [Need("a journal that can be read", False, str(error))]
    fix = "userblk run, or resume, tears it down before anything else"
    return [Need(in_words(step), False, fix) for step in reversed(steps)]


def examine() -> list[Finding]:
    """Everything; the machine itself first, advice last."""
    found = [Finding("measuring on this machine", "base", base_needs()), Finding("lab", "lab", lab_needs())]
    for name in tables.names("systems"):
        found.append(Finding(name, "system", system_needs(config.load_system(name))))
    found += [Finding(f"suite {name}", "suite", suite_needs(name)) for name in APPLICATIONS]
    found += [Finding(disk, "device", device_needs(disk)) for disk in hardware_disks()]
    found += [Finding(f"left by a killed campaign: {one}", "journal", left_needs(one)) for one in stale()]
    return [*found, Finding("wear and temperature of devices", "advice", [program(*one) for one in ADVICE.items()])]
