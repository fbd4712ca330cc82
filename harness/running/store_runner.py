# SPDX-License-Identifier: BSD-3-Clause
"""Runs the plan of a suite over a store: python3 -m userblk.harness.running.store_runner results/CAMPAIGN/plan.json

As runner.py, of which it is a kind, with a store in place of a block device: a block is a store with a volume that
one system has filled; every run starts that system again over the volume as it was filled.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ..engines import WorkloadError, replay
from ..engines import store as load
from ..machine import interrupt
from ..machine.subprocesses import CommandError, Recorder, last_line, now
from ..machine.tuning import on_cpus
from ..model.config import SystemConfig, Workload
from ..model.parts import KINDS
from ..model.plan import Entry
from ..model.tables import ConfigError
from ..observing.host_load import OtherPrograms
from ..observing.samplers import Sampler
from ..stores.servers import Access, GivenStore, LocalStore, Store
from ..stores.serving import Served, serve
from ..systems import BringUpError
from .measuring import FLUSH_PATIENCE, POLL_S, metrics_of, steal_warnings, write_counters
from .runner import Runner, main

NO_STORE = Access("", "", "", "", "", Path())  # of what needs none


class StoreRunner(Runner):
    """One execution of a plan over stores."""

    def check_devices(self, stack: ExitStack) -> None:
        """There are none."""

    def programs(self, pending: list[Entry]) -> list[str]:
        return ["fio"] if pending else []

    def run_block(self, number: int, pending: list[Entry]) -> None:
        """A store with a filled volume, and the runs over it."""
        if not pending:
            return
        attempt = 1
        while (directory := self.directory / f"blocks/{number}.{attempt}").exists():
            attempt += 1
        system = self.plan.systems[pending[0].system]
        recorder = Recorder(directory)
        mark = self.teardown.mark()
        left = list(pending)
        store: Store | None = None
        try:
            store = self.bring_up(pending[0], system, recorder)
            filled = False
            while left:
                if store and not filled:
                    self.fill(system, store, recorder)
                    store.keep()
                dirty = self.run_one(left[0], system, store, directory.name)
                left.pop(0)
                filled = not dirty or (store is not None and bool(left) and store.reset())
        except (ConfigError, BringUpError, CommandError, OSError) as error:
            for entry in left:
                self.failed(entry, f"{system.name} over {entry.device}: {error}")
        finally:
            self.teardown.unwind(mark)
            if isinstance(store, GivenStore):
                self.clean(store)
            recorder.save()
            write_counters(directory)

    def bring_up(self, first: Entry, system: SystemConfig, recorder: Recorder) -> Store | None:
        """The store of a block. Raises BringUpError, CommandError."""
        if not KINDS[system.kind].needs_store(system):
            return None
        device = self.plan.devices[first.device]
        if device.path:
            given = GivenStore(Path(device.path))
            given.reset()
            return given
        return LocalStore(self.plan.profile.store.size, device.latency_ms, recorder, self.teardown)

    def clean(self, store: GivenStore) -> None:
        """Nothing of ours stays in a store of the user's."""
        try:
            store.reset()
        except BringUpError as error:
            self.emit("note", text=f"objects below {store.access.prefix} may be left: {error}")

    def start(self, system: SystemConfig, store: Store | None, create: bool, recorder: Recorder) -> Served:
        access = store.access if store else NO_STORE
        size = self.plan.profile.store.size
        with on_cpus(self.plan.pin_server):
            return serve(system, access, size, create, self.plan.build, recorder, self.teardown)

    def fill(self, system: SystemConfig, store: Store, recorder: Recorder) -> None:
        served = self.start(system, store, True, recorder)
        recorder.run(load.fill_argv(served.target, self.plan.profile.store.size), timeout=load.FILL_LIMIT)
        served.stop()

    # ---- one run ------------------------------------------------------------------

    def run_one(self, entry: Entry, system: SystemConfig, store: Store | None, block: str) -> bool:
        """One run in its directory. May the volume have changed?"""
        workload = self.plan.workload(entry)
        directory = self.begin(entry)
        mark = self.teardown.mark()
        try:
            try:
                summary = self.measure_one(entry, workload, system, store, block, directory)
            finally:
                self.teardown.unwind(mark)
        except (CommandError, WorkloadError, BringUpError, OSError) as error:
            self.failed(entry, str(error))
            return True
        except interrupt.Interrupted:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        self.finish(entry, directory, summary)
        return workload.writes

    def measure_one(
        self, entry: Entry, workload: Workload, system: SystemConfig, store: Store | None, block: str, directory: Path
    ) -> dict[str, object]:
        """Serve the volume, run the workload and return the summary."""
        profile = self.plan.profile
        warnings = self.busy_warnings()
        problems: list[str] = []
        recorder = Recorder(directory)
        served = self.start(system, store, False, recorder)
        started = now()
        argv = load.argv(workload, profile.store.runtime_s, profile.store.size, served.target, entry.seed, directory)
        comments = (
            f"{entry.workload} on {entry.system} over {entry.device}, campaign {self.plan.campaign}.",
            f"For a volume of {profile.store.size} bytes, all written, that {' '.join(served.target)} reaches.",
        )
        (directory / replay.FILE).write_text(replay.job_file(argv, comments))
        try:
            with Sampler([], served.server.pid, profile.interval_ms / 1e3) as sampler:
                others = OtherPrograms({os.getpid(), served.server.pid})
                origin = time.monotonic()
                with on_cpus(self.plan.pin_client):
                    process = recorder.spawn(argv)
                try:
                    while process.poll() is None and served.server.poll() is None:
                        time.sleep(POLL_S / 10)
                        if time.monotonic() > origin + profile.store.runtime_s + FLUSH_PATIENCE:
                            problems.append(f"the workload did not end within {FLUSH_PATIENCE:.0f} s after its runtime")
                            break
                finally:
                    process.end()
                ended = time.monotonic()
            if served.server.poll() is not None:
                problems.append("the server died")
            served.stop()
            if served.flush_by_end:
                ended = time.monotonic()
        finally:
            recorder.save()
        if process.poll():
            problems.append(f"fio: exit code {process.poll()}: {last_line(process.errors)}")
        sampler.write_csv(directory / "samples.csv", origin)
        metrics: dict[str, float | None] = {}
        duration = 0.0
        version = ""
        try:
            result = load.parse(directory / "fio.json", workload, ended - origin)
        except WorkloadError as error:
            if not problems:
                raise
            problems.append(str(error))
        else:
            problems += result.problems
            duration, version = result.duration_s, result.version
            use = sampler.use(origin, ended)
            warnings += steal_warnings(use)
            metrics = metrics_of(result, use)
        settings = served.settings | (store.settings if store else {}) | {"volume_bytes": profile.store.size}
        settings |= {"jobs": workload.threads, "depth": workload.depth, "block_size": workload.block_size}
        return {
            **self.identity(entry, workload, block),
            "started": started,
            "duration_s": duration,
            "valid": not problems,
            "invalid": problems,
            "warnings": warnings + self.busy_warnings(others),
            "metrics": metrics,
            "device_io": None,
            "backing_io": None,
            "settings": settings | {"fio": {"version": version}},
            "device_used": {"path": served.target[-1], "size": profile.store.size},
        }


def run(arguments: Sequence[str] | None = None) -> int:
    return main(arguments, StoreRunner)


if __name__ == "__main__":
    sys.exit(run())
