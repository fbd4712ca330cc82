# SPDX-License-Identifier: BSD-3-Clause
"""userblk-kv: YCSB's workloads on libraries of keys and values. Results are read as userblk-flow's."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..machine import paths
from ..model.config import Parameter, Profile, Suite, Workload
from ..model.parts import ENGINES, FILL_BYTES_PER_S
from ..model.tables import ConfigError, Table
from ..observing.histogram import tails
from . import Result, WorkloadError
from .base import OF_APPLICATIONS, Run, sizes_of
from .fio import logged_s
from .flow import Flow, history_in, run_options

STORES = {"rocksdb": "librocksdb-dev", "leveldb": "libleveldb-dev", "sqlite": "libsqlite3-dev"}  # and their packages
FILLS = ("fillseq", "fillrandom")  # which make their records themselves
WORKLOADS = ("a", "b", "c", "d", "e", "f", *FILLS)
SIZES = ("records", "fills", "threads", "write-buffer")
RECORD_SIZE = 1024  # bytes of a record with its key
AMPLIFICATION = 4  # times as many bytes as are loaded may be in use, while tables are merged


def argv(program: Path, workload: Workload, device: str, seed: int, phase: str, directory: Path) -> list[str]:
    """The command line of one phase."""
    words = [f"--{name}={value}" for name, value in workload.variables[device].items() if value]
    store, _, name = workload.file.partition(" ")
    words += [f"--store={store}", f"--workload={name}", f"--seed={seed}", f"--phase={phase}"]
    return [str(program), *words, str(directory)]


def _workloads(suite: str, table: Table, profile: str) -> Iterator[Workload]:
    """Workloads from the rest of a suite's table: those of each store."""
    stores, size = table.table("stores"), sizes_of(table, profile)
    fixed = {name: size.integer(name, 0) for name in SIZES}
    size.end(SIZES)
    fills = fixed.pop("fills")
    chosen = {store: stores.texts(store) for store in STORES if store in stores.values}
    stores.end(tuple(STORES))
    table.end(("name", "engine", "systems", "stores", "sizes"))
    for store, names in chosen.items():
        for name in names:
            if name not in WORKLOADS:
                raise table.error(f"stores.{store}", name, f"must be of {', '.join(WORKLOADS)}")
            yield Workload(
                f"{store}-{name}",
                threads=fixed["threads"],
                suite=suite,
                engine="kv",
                file=f"{store} {name}",
                fixed={**fixed, "records": fills} if name in FILLS else fixed,
            )


class Kv(Flow):
    """A library's files on a new ext4, or on a file system over it."""

    name = "kv"
    parameters = False
    operation = OF_APPLICATIONS
    history = history_in("kv.json", lambda profile: logged_s(profile["files"]))

    def suite(self, name: str, table: Table, profile: str, systems: tuple[str, ...]) -> Suite:
        return Suite(name, tuple(_workloads(name, table, profile)), systems)

    def lacks(self, workload: Workload, build: str) -> str:
        store = workload.file.partition(" ")[0]
        for program in self.programs(build):
            done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
            if any(line.split()[0] == store for line in done.stdout.splitlines()):
                return ""
        return f"userblk-kv is built without {store}; install {STORES[store]} and build it again"

    def with_values(
        self, workload: Workload, profile: Profile, parameters: Sequence[Parameter], devices: Sequence[str]
    ) -> Workload:
        for device in devices:
            if (needed := workload.fixed["records"] * RECORD_SIZE * AMPLIFICATION) > profile.files.size[device]:
                raise ConfigError(
                    f"records={workload.fixed['records']}: {workload.id} may need {needed} bytes, but the file system"
                    f" of profile {profile.name} on {device} has {profile.files.size[device]}; use fewer"
                )
        return dataclasses.replace(workload, variables={device: workload.fixed for device in devices})

    def written(self, workload: Workload, profile: Profile, device: str) -> int:
        """The records, several times as tables are merged, and what is written as long as it runs."""
        loaded = self.new_bytes(profile, device) + AMPLIFICATION * RECORD_SIZE * workload.fixed["records"]
        reads = workload.file.endswith(" c")
        return loaded + (0 if reads else int(self.duration_s(workload, profile) * FILL_BYTES_PER_S))

    def programs(self, build: str) -> list[str]:
        program = (paths.CHECKOUT or Path()) / build / "kv/userblk-kv"
        return [str(program)] if program.exists() else []

    def create(self, run: Run, program: Path, directory: Path) -> list[str]:
        if run.workload.file.endswith(FILLS):
            return []
        return argv(program, run.workload, run.entry.device, run.entry.seed, "load", directory)

    def measured(self, run: Run, program: Path, directory: Path, results: Path) -> list[str]:
        words = argv(program, run.workload, run.entry.device, run.entry.seed, "run", directory)
        return [*words, *run_options(run.workload, run.profile, results)]

    def read_results(self, run: Run, results: Path) -> Result:
        result = super().read_results(run, results)
        try:
            report = json.loads(results.read_text())
            kinds = {
                kind["name"]: {
                    "operations": kind["ops"],
                    "latency_us": kind["latency_ns"]["mean"] / 1e3,
                    **tails({int(name): count for name, count in kind["latency_ns"]["bins"].items()}),
                }
                for kind in report["flowops"]
                if kind["ops"]
            }
            more = {"library": report["library"], "distribution": report["distribution"], "whole_run": kinds}
        except (LookupError, TypeError) as error:
            raise WorkloadError(f"{results.name} cannot be read: {type(error).__name__} {error}") from None
        return dataclasses.replace(result, settings={**result.settings, **more})


ENGINES.add(Kv())
