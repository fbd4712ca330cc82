# SPDX-License-Identifier: BSD-3-Clause
"""What the commands plan, run and resume do differently for a suite over a store."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..machine import paths
from ..model.config import Profile, Suite
from ..model.plan import Device, Plan, make_plan
from ..model.tables import ConfigError
from ..running.campaign import LAB_BUILD, Place, missing_modules, store_devices
from ..stores.servers import server_program
from ..stores.serving import lacks

log = logging.getLogger("userblk")


class OverStore:
    """What OnDevices of run.py is for block devices."""

    def check(self, args: argparse.Namespace, suite: Suite) -> None:
        if args.hosts:
            raise ConfigError(f"hosts={args.hosts}: suite {args.suite} needs no devices; run it on each host")

    def lay_out(
        self, args: argparse.Namespace, options: Mapping[str, Any], name: Callable[[Profile, str], str]
    ) -> tuple[Plan, Place]:
        """
        The plan that the options ask for; name: of the campaign. What is not installed is left out, unless asked for.
        Raises ConfigError.
        """
        suite = options["suite"]
        for word, value in (("--sata", args.sata), ("--nvme", args.nvme)):
            if value:
                raise ConfigError(f"suite={suite.name}: it needs no device; leave {word} out")
        if options["sample_stacks"]:
            raise ConfigError(f"profile={args.profile}: perf does not look at suite {suite.name}; leave perf out")
        for word, asked in (("--costs", args.costs), ("--instructions", args.instructions)):
            if asked:
                raise ConfigError(f"suite={suite.name}: its costs are not counted; leave {word} out")
        if args.where == "lab" and args.store:
            raise ConfigError("where=lab: the lab reaches no other machine; leave --store out")
        place = Place(args.where == "lab", "as asked" if args.where == "lab" else "the suite needs no kernel module")
        systems = []
        for system in options["systems"]:
            reason = "" if place.lab else lacks(system)
            if not place.lab and (missing := missing_modules([system])):
                reason = f"this host's kernel has no {', '.join(missing)}; install one that has, or use --where lab"
            if reason and args.systems:
                raise ConfigError(f"system={system.name}: {reason}")
            if reason:
                log.info("Without %s: %s", system.name, reason)
            else:
                systems.append(system)
        arguments: dict[str, Any] = {**options, "systems": systems}
        plan = make_plan(
            devices=store_devices(suite.latencies_ms, args.store),
            campaign=name(options["profile"], f"-{suite.name}" + "-lab" * place.lab),
            build=LAB_BUILD if place.lab else str(paths.HOST_BUILD),
            host="lab" if place.lab else None,
            emulated=place.lab,
            seed=args.seed,
            **arguments,
        )
        return plan, place

    def device_lines(self, plan: Plan, place: Place, device: Device, most_written: int) -> list[str]:
        """The lines about a device in the plan for people."""
        here = f"a versitygw of its own, {device.latency_ms} ms away"
        return [f"store      {device.id}: {device.path or here}"]

    def run_text(self, profile: Profile) -> str:
        return f"{profile.store.runtime_s} s on a volume of {profile.store.size / 1e9:,.1f} GB a run"

    def prepare(self, plan: Plan) -> None:
        """Build the store that the campaign starts. Raises ConfigError."""
        if any(not device.path for device in plan.devices.values()):
            server_program()
