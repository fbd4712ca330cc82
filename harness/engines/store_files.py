# SPDX-License-Identifier: BSD-3-Clause
"""Workload files for userblk-flow on an ext4 on a volume over a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..model.config import Parameter, Profile, Suite, SystemConfig, Workload
from ..model.parts import ENGINES, Kind
from ..model.tables import Table
from .base import times, with_times
from .flow import shaped, values_of, with_text
from .store import OverStore, latencies_of

KERNEL = "kernel"  # the client that makes a disk, which alone can hold a file system


class StoreFiles(OverStore):
    """Each run has a volume of its own, with a new ext4 and the workload's files. Its times are the suite's."""

    name = "store-files"
    has_ramp = True
    own_report = False
    beside_native = False
    tables_so_far = True
    on_files = True
    parameters = True

    def suite(self, name: str, table: Table, profile: str, systems: tuple[str, ...]) -> Suite:
        latencies, timing = latencies_of(table), times(table)
        workloads = shaped(name, table, self.name, ("latencies_ms", "timing"))
        return Suite(name, tuple(replace(one, timing=timing) for one in workloads), systems, latencies)

    def fits(self, workload: Workload, system: SystemConfig, kind: Kind) -> bool:
        return kind.of_store and system.client == KERNEL

    def with_values(
        self, workload: Workload, profile: Profile, parameters: Sequence[Parameter], devices: Sequence[str]
    ) -> Workload:
        seconds = int(self.duration_s(workload, profile))
        values = {
            device: {**workload.fixed, **values_of(workload, profile, parameters, device), "runtime": seconds}
            for device in devices
        }
        return with_text(replace(workload, variables=values))

    def timed(self, workload: Workload, profile: Profile) -> Profile:
        """With the times of the suite, and nothing cut beyond them: Filebench cuts nothing."""
        own = workload.timing.get(profile.name) or next(iter(workload.timing.values()))
        return replace(with_times(profile, own), fixed_warm_up=True)

    def start_s(self, profile: Profile) -> float:
        return profile.bring_up_s

    def duration_s(self, workload: Workload, profile: Profile) -> float:
        files = self.timed(workload, profile).files
        return float(files.ramp_s + files.seconds(workload))

    def overhead_s(self, profile: Profile) -> float:
        return profile.files.overhead_s


ENGINES.add(StoreFiles())
