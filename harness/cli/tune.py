# SPDX-License-Identifier: BSD-3-Clause
"""tune: what a measurement wants of the machine's clocks, idle states and interrupts."""

from __future__ import annotations

import argparse
import dataclasses

from ..machine import tuning
from ..machine.blockdev import identify
from ..model.tables import ConfigError
from ..observing.hardware import numa_nodes
from .common import Add, add_json, print_json, say

SHOW, SET, RESTORE = "show", "set", "restore"
SHOWN = 3  # CPUs or interrupts that a line names


def shown(found: list[tuning.Setting], disks: list[str]) -> list[str]:
    """For people: a line for each kind of setting and what it holds, then the disks."""
    lines = []
    for kind in dict.fromkeys(one.kind for one in found):
        for now, wanted in dict.fromkeys((one.now, one.wanted) for one in found if one.kind == kind):
            about = [one.about for one in found if (one.kind, one.now, one.wanted) == (kind, now, wanted)]
            differs = next(one.differs for one in found if (one.kind, one.now, one.wanted) == (kind, now, wanted))
            which = ", ".join(about[:SHOWN]) + f" and {len(about) - SHOWN} more" * (len(about) > SHOWN)
            verdict = f"should be {wanted}: {tuning.WHY[kind]}" if differs else "as it should be"
            lines.append(f"{kind:12} {now} ({which}): {verdict}")
    if not found:
        lines.append("On this machine, neither clock rates nor idle states nor interrupts can be set.")
    for disk in disks:
        nodes = numa_nodes(disk)
        where = f"on NUMA node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}"
        lines.append(f"{disk:12} {where if nodes else 'no NUMA node of its own'}")
    if tuning.STATE.exists():
        lines.append(f"{len(tuning.noted())} settings are userblk's; put them back with: userblk tune restore")
    return lines


def command(args: argparse.Namespace) -> int:
    try:
        disks = [identify(path).disk for path in args.device] or tuning.hardware_disks()
    except OSError as error:
        raise ConfigError(f"device={error.filename or args.device}: {error.strerror}; name a block device") from None
    try:
        refused: list[str] = []
        if args.action == SET:
            refused = tuning.tune(disks)
        elif args.action == RESTORE:
            say(f"{tuning.restore()} settings were restored.")
        found = tuning.settings(disks)
        if args.json:
            value = [dataclasses.asdict(one) | {"differs": one.differs} for one in found]
            print_json({"settings": value, "refused": refused, "set": tuning.noted(), **tuning.facts(disks)})
        elif args.action != RESTORE:
            print("\n".join(shown(found, disks)))
        for line in refused:
            say(f"refused: {line}")
    except tuning.TuningError as error:
        raise ConfigError(str(error)) from None
    return int(bool(refused))


def add_commands(add: Add) -> None:
    sub = add("tune", "show, set or restore CPU governor, turbo, idle states and interrupts for a measurement", command)
    sub.add_argument(
        "action",
        nargs="?",
        choices=(SHOW, SET, RESTORE),
        default=SHOW,
        help="show what there is; set it for a measurement; restore what was before (default: show)",
    )
    sub.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="DEV",
        help="disk whose interrupts move to the CPUs of its NUMA node (default: all disks)",
    )
    add_json(sub)
