# SPDX-License-Identifier: BSD-3-Clause
"""What a plan has to know of engines, which make workloads, and of kinds of systems. Each is one object that registers
itself: ENGINES.add() in a file of harness/engines/, KINDS.add() in one of harness/systems/."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..observing.histogram import Bins
from ..observing.warmup import Interval
from .registry import Registry
from .tables import ConfigError, Table

if TYPE_CHECKING:
    from .config import Parameter, Profile, Suite, SystemConfig, Workload

FILL_BYTES_PER_S = 500_000_000  # of a zero-fill, and of what writes to files: for the estimate only


class Kind:
    """A way to offer a device to workloads.

    blocks: workloads on a device run on it. of_store: it is over a store. bare: nothing is between a workload and the
    device. own_files: it is a file system of its own, with nothing below. in_paper: the paper says how many threads it
    has. events: what can be done to its server. resend_s: how long what a killed one had waits for the next.
    for_others: options with which users other than root may use what it mounts; None: there are none.
    """

    name = ""
    blocks = True
    of_store = False
    own_files = False
    bare = False
    in_paper = False
    events: tuple[str, ...] = ()
    resend_s = 0.0
    for_others: tuple[str, ...] | None = ()

    def read(self, name: str, table: Table) -> SystemConfig:
        """A system, of the rest of its file. Raises ConfigError."""
        raise NotImplementedError

    def attaches(self, system: SystemConfig) -> bool:
        """Can its disks come and go as a workload?"""
        return False

    def needs_store(self, system: SystemConfig) -> bool:
        """Or does it not matter which device it has?"""
        return True


@dataclass(frozen=True)
class History:
    """What figures show of a run over time, from raw files.

    files: their names in the run's directory. read: the run's intervals from the start of its logs, and the latencies
    of what was measured; of its directory, how long was measured, at the end, and how far lines of the logs are apart.
    seconds: how long the logs are at most, by the profile of a plan.json, which may be of an earlier version.
    """

    files: tuple[str, ...]
    read: Callable[[Path, float, float], tuple[Sequence[Interval], Bins]]
    seconds: Callable[[Mapping[str, Any]], float]


class Engine:
    """What makes the workloads of a suite and runs them.

    on_files: on a file system. parameters: a parameters.toml has sizes or choices of its workloads. counted: of which
    instructions can be counted. buffered: on a device, through the page cache.
    in_rounds: it can repeat a workload until it is steady. uses_device: its workloads use the device, or the store, of
    the plan's entry. has_ramp: what its runs do first is discarded, for as long as --warm-up says.

    For a whole suite, whose first workload's engine decides: measures: what the commands plan it with (SUBJECTS of
    harness/cli/plan.py). runner: the module that runs it. lab_mib: memory of the lab's guest, 0: as much as its
    workloads need. tables_so_far: are its tables meaningful before all runs are done? table_files: what they are made
    of, in the directory of a run, beside the files of every run. history: what figures show of its runs over time;
    None: nothing. own_report: no table holds its runs. beside_native: what it measures on native is what others are
    compared with. operation: what an operation is, below its tables.
    """

    name = ""
    measures = "devices"
    runner = "userblk.harness.running.runner"
    lab_mib = 0
    tables_so_far = True
    table_files: tuple[str, ...] = ()
    history: History | None = None
    own_report = False
    beside_native = True
    operation = ""
    on_files = False
    parameters = False
    counted = False
    buffered = False
    in_rounds = False
    uses_device = True
    has_ramp = True

    def suite(self, name: str, table: Table, profile: str, systems: tuple[str, ...]) -> Suite:
        """The suite that the rest of its file describes. Raises ConfigError."""
        raise NotImplementedError

    def check_device(self, profile: Profile, device: str) -> None:
        """Raises ConfigError if the profile does not have what the plan measures on it."""
        if device not in profile.area:
            known = ", ".join(profile.area)
            raise ConfigError(f"device={device}: profile {profile.name} has no area for it, only for {known}")

    def repetitions(self, profile: Profile) -> int | None:
        """Just so many, where no number is asked for; None: as the profile's intervals want it."""
        return None

    def fits(self, workload: Workload, system: SystemConfig, kind: Kind) -> bool:
        """Does the workload run on the system?"""
        return kind.blocks and not kind.of_store

    def beyond(self, workload: Workload, cpus: int) -> str:
        """Why a machine with so many CPUs cannot show it, "" if it can: it is then left out."""
        return ""

    def lacks(self, workload: Workload, build: str) -> str:
        """What a machine lacks for it, with the remedy; "" if nothing: it is then left out. build: as the plan's."""
        return ""

    def with_values(
        self, workload: Workload, profile: Profile, parameters: Sequence[Parameter], devices: Sequence[str]
    ) -> Workload:
        """The workload with what depends on profile and devices. Raises ConfigError."""
        return workload

    def modelled(self, workload: Workload) -> bool:
        """Is the lab's virtual time known to be right for it?"""
        return False

    def fills(self, workload: Workload) -> bool:
        """Does it want a zero-filled area, and leave it so?"""
        return False

    def comes_first(self, workload: Workload) -> bool:
        """In its block, before those that need a discard."""
        return not workload.writes

    def rank(self, workload: Workload) -> int:
        """In a round, what has a lower one runs before, on the same system and device."""
        return 0

    # For the estimate.

    busy = False  # no CPU is ever idle, whatever the device

    def used_bytes(self, profile: Profile, device: str) -> int:
        """At the start of a device."""
        return profile.area[device]

    def start_s(self, profile: Profile) -> float:
        """Until a block's system is up."""
        return profile.bring_up_s

    def duration_s(self, workload: Workload, profile: Profile) -> float:
        """How long the workload itself takes, with the times of the profile."""
        return profile.ramp_s + profile.runtime_s

    def overhead_s(self, profile: Profile) -> float:
        """What each run takes besides."""
        return profile.overhead_s

    def written(self, workload: Workload, profile: Profile, device: str) -> int:
        """At most, in bytes, on a system whose data lie on the device."""
        return profile.area[device] if workload.writes else 0


ENGINES = Registry[Engine]("userblk.harness.engines")
KINDS = Registry[Kind]("userblk.harness.systems", "userblk.harness.stores")
