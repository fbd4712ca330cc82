# SPDX-License-Identifier: BSD-3-Clause
"""What the commands plan, run and resume do differently for a suite over a store."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..machine import paths
from ..model.config import VIRTUAL, Profile, Suite, SystemConfig
from ..model.parts import ENGINES
from ..model.plan import Device, Plan, make_plan
from ..model.tables import ConfigError
from ..running.campaign import LAB_BUILD, Place, missing_modules, store_devices
from ..stores.servers import server_program
from ..stores.serving import lacks
from . import doctor
from .common import show_bytes

log = logging.getLogger("userblk")


class OverStore:
    """What OnDevices of run.py is for block devices."""

    def check(self, args: argparse.Namespace, suite: Suite) -> None:
        if args.clock == VIRTUAL:
            raise ConfigError(f"clock={VIRTUAL}: a store answers in real time; leave --clock out")
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
        for word in ("sata", "nvme", "devices", "confirm"):
            if getattr(args, word):
                raise ConfigError(f"suite={suite.name}: it needs no device; leave --{word} out")
        if options["sample_stacks"]:
            raise ConfigError(f"profile={args.profile}: perf does not support suite {suite.name}; leave perf out")
        for word, asked in (("--costs", args.costs), ("--instructions", args.instructions)):
            if asked:
                raise ConfigError(f"suite={suite.name}: its costs are not counted; leave {word} out")
        if args.where == "lab" and args.store:
            raise ConfigError("where=lab: the lab reaches no other machine; leave --store out")
        place = self._place(args, options["systems"])
        devices = store_devices(suite.latencies_ms, args.store)
        needs = doctor.workload_needs(any(workload.on_files for workload in suite.workloads))
        if not place.lab and (reason := doctor.lacks(needs, args.dry_run)):
            raise ConfigError(f"suite={suite.name}: {reason}")
        systems = []
        for system in options["systems"]:
            reason = "" if place.lab else lacks(system)
            if not place.lab and (missing := missing_modules([system])):
                reason = f"this host's kernel has no {', '.join(missing)}; install one that has, or use --where lab"
            if reason and args.systems:
                raise ConfigError(f"system={system.name}: {reason}")
            if reason:
                log.info("Without %s: %s", system.name, reason)
                continue
            if not place.lab and (reason := doctor.lacks(doctor.system_needs(system), args.dry_run)):
                raise ConfigError(f"system={system.name}: {reason}")
            systems.append(system)
        if not systems:
            other = "" if args.store else ", or use --where lab"
            raise ConfigError(f"suite={suite.name}: none of its systems can run here; install what they lack{other}")
        arguments: dict[str, Any] = {**options, "systems": systems}
        plan = make_plan(
            devices=devices,
            campaign=name(options["profile"], f"-{suite.name}" + "-lab" * place.lab),
            build=LAB_BUILD if place.lab else str(paths.HOST_BUILD),
            host="lab" if place.lab else None,
            emulated=place.lab,
            seed=args.seed,
            **arguments,
        )
        return plan, place

    def _place(self, args: argparse.Namespace, systems: Sequence[SystemConfig]) -> Place:
        """This host, unless none of the systems can have its disk here, or the lab is asked for."""
        missing = [missing_modules([system]) for system in systems]
        if args.where == "lab":
            return Place(True, "as asked")
        if args.where == "auto" and not args.store and missing and all(missing):
            return Place(True, f"this host's kernel has no {', '.join(missing[0])}")
        return Place(False, "as asked" if args.where == "host" else "the suite needs no device")

    def device_lines(self, plan: Plan, place: Place, device: Device, most_written: int) -> list[str]:
        """The lines about a device in the plan for people."""
        here = f"a versitygw of its own, {device.latency_ms} ms away"
        return [f"store      {device.id}: {device.path or here}"]

    def run_text(self, plan: Plan) -> str:
        """How long a run is."""
        store, workload = plan.profile.store, plan.suite.workloads[0]
        seconds = ENGINES[workload.engine].duration_s(workload, plan.profile)
        if workload.on_files:
            return f"{seconds:g} s on a new ext4 on a new volume of {show_bytes(store.files_size)} a run"
        return f"{seconds:g} s on a volume of {show_bytes(store.size)} a run"

    def prepare(self, plan: Plan) -> None:
        """Build the store that the campaign starts. Raises ConfigError."""
        if any(not device.path for device in plan.devices.values()):
            server_program()
