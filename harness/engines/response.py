# SPDX-License-Identifier: BSD-3-Clause
"""Latency over offered load: how much a system can do, by a closed loop of fio's, and an open loop at shares of that.

fio has no open loop to use: with rate_iops it waits for all requests under way before it sleeps until the next one, so
that nothing arrives during a stall, and its latencies begin when a request is issued; with io_submit_mode=offload it
hangs before fio 3.42. userblk-openloop begins requests at the times of a Poisson process and measures from these.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from ..machine.durable import write_json
from ..machine.prepare import drop_caches
from ..model.config import Suite, Workload
from ..model.parts import ENGINES
from ..model.tables import Table, block_size, counts
from ..observing.histogram import percentile, tails
from ..observing.warmup import FIXED, WarmUp
from ..systems.base import built
from . import Result, WorkloadError
from .base import Job, Run, times
from .fio import Direct, argv, make_area, parse, subrange

MODES = ("randread", "randwrite")  # sequential requests would wait for one another
CAPACITY = "capacity"
FILE, RESULTS = "capacity.json", "openloop.json"
MOST_LOAD = 100  # %
SUSTAINED = 0.95  # of what is offered that must be completed in the measured time
LAG_SHARE = 0.1  # of the median latency that half of the requests may be issued late by


def _workloads(suite: str, table: Table) -> Iterator[Workload]:
    """Workloads from the rest of a suite's table: for each mode, the capacity and one workload a load."""
    size = block_size(table, "block_size", table.text("block_size"))
    loads, modes, capacity = counts(table, "loads"), table.table("modes"), table.table(CAPACITY)
    for load in loads:
        if load > MOST_LOAD:
            raise table.error("loads", load, f"must be at most {MOST_LOAD}, % of the capacity")
    jobs, depth = capacity.integer("jobs", 1), capacity.integer("depth", 1)
    capacity.end(("jobs", "depth"))
    timing = times(table)
    table.end(("name", "engine", "systems", "block_size", "loads", "modes", CAPACITY, "timing"))
    for mode in list(modes.values):
        rw = modes.text(mode, MODES)
        for load in (0, *loads):
            name = f"{mode}-{f'{load}load' if load else CAPACITY}"
            yield Workload(name, rw, jobs, size, suite, "response", depth=depth, timing=timing, load=load)


def capacity_kops(run: Run) -> float:
    """
    For the run's system, device and mode: the mean of what valid runs of this campaign found, kept from the first time
    on, so that all repetitions of a load are offered the same. Raises WorkloadError.
    """
    mode = run.workload.id.removesuffix(f"-{run.workload.load}load")
    place = run.directory.parent.parent / f"{mode}-{CAPACITY}"
    file = place / FILE
    try:
        return float(json.loads(file.read_text())["throughput_kops"])
    except FileNotFoundError:
        pass
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WorkloadError(f"{file}: cannot be read: {error}; remove it") from None
    found = []
    for done in sorted(place.glob("*/DONE")):
        summary = json.loads(done.with_name("summary.json").read_text())
        if summary["valid"] and summary["repetition"] and summary["metrics"].get("throughput_kops"):
            found.append(float(summary["metrics"]["throughput_kops"]))
    if not found:
        raise WorkloadError(f"its capacity is not known: no run of {place.name} is valid; resume to try that again")
    write_json(file, {"throughput_kops": fmean(found), "runs": len(found)})
    return fmean(found)


def open_argv(program: Path, run: Run, rate: float) -> list[str]:
    """The command line of the open loop. rate: requests a second."""
    workload = run.workload
    return [
        str(program),
        f"--rw={workload.rw}",
        f"--bs={workload.block_size}",
        f"--size={subrange(workload, run.area) * workload.threads}",
        f"--rate={rate:.3f}",
        f"--ramp={run.profile.ramp_s:g}",
        f"--runtime={run.profile.runtime_s:g}",
        f"--threads={workload.threads}",
        f"--seed={run.entry.seed}",
        f"--json={run.directory / RESULTS}",
        run.running.target,
    ]


def _bins(part: Mapping[str, Any]) -> dict[int, int]:
    return {int(name): count for name, count in part["bins"].items()}


def parse_open(path: Path, workload: Workload, capacity: float) -> Result:
    """What userblk-openloop wrote. capacity: kop/s. Raises WorkloadError."""
    try:
        report = json.loads(path.read_text())
        seconds, offered, done = float(report["runtime_s"]), float(report["rate"]), int(report["completed"])
        latency, lag = report["latency_ns"], report["lag_ns"]
        bins, lags = _bins(latency), _bins(lag)
        errors, left, issued = int(report["errors"]), int(report["left"]), int(report["issued"])
        settings = {
            "load_percent": workload.load,
            "capacity_kops": capacity,
            "offered_kops": offered / 1e3,
            "issued": issued,
            "left": left,
            "most_in_flight": int(report["most_in_flight"]),
            "latency_max_us": latency["max"] / 1e3,
            "lag_p50_us": percentile(lags, 50) / 1e3,
            "lag_max_us": lag["max"] / 1e3,
        }
        mean, begin, version = float(latency["mean"]), float(report["measured_from"]), str(report["version"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WorkloadError(f"{path.name} cannot be read: {error}") from None
    problems = [f"{errors} requests failed"] if errors else []
    if not bins:
        problems.append("no request was due in the measured time; offer more, or measure for longer")
    warnings = []
    if done < SUSTAINED * issued:
        rate = done / seconds / 1e3
        warnings.append(f"not sustained: {offered / 1e3:.3f} kop/s were offered, {rate:.3f} done; {left} were left")
    elif percentile(lags, 50) > LAG_SHARE * percentile(bins, 50):
        share = f"{percentile(lags, 50) / 1e3:.1f} of {percentile(bins, 50) / 1e3:.1f} us"
        warnings.append(f"late: half of the requests were issued late, by at least {share} of latency")
    return Result(
        throughput_kops=done / seconds / 1e3,
        throughput_mbps=done * workload.block_size / seconds / 1e6,
        latency_us=mean / 1e3,
        duration_s=seconds,
        measured_from=begin,
        operations=float(done),
        warm_up=WarmUp(FIXED, 0.0, None, "the load is given, and has no warm-up beyond the ramp"),
        version=version,
        problems=tuple(problems),
        warnings=tuple(warnings),
        metrics=tails(bins),
        settings=settings,
    )


class Response(Direct):
    """The capacity by fio, then loads by userblk-openloop."""

    name = "response"
    own_report = True

    def suite(self, name: str, table: Table, profile: str, systems: tuple[str, ...]) -> Suite:
        return Suite(name, tuple(_workloads(name, table)), systems)

    def rank(self, workload: Workload) -> int:
        return int(workload.load > 0)

    def programs(self, build: str) -> list[str]:
        return ["fio", str(built(build, "openloop", "userblk-openloop"))]

    def prepare(self, run: Run) -> tuple[Job, dict[str, object]]:
        workload, profile, directory = run.workload, run.profile, run.directory
        found = make_area(run) | drop_caches(run.devices(), run.area)
        if workload.load:
            capacity = capacity_kops(run)
            words = open_argv(Path(self.programs(run.plan.build)[1]), run, capacity * 1e3 * workload.load / 100)
            read = partial(parse_open, directory / RESULTS, workload, capacity)
        else:
            words = argv(workload, profile, run.area, run.running.target, run.entry.seed, directory)
            read = partial(parse, directory / "fio.json", workload, profile)
        job = Job(
            argv=words,
            seconds=profile.ramp_s + profile.runtime_s,
            parse=read,
            synced=(run.running.target,),
            sync=os.fsync,
            area=run.area,
        )
        return job, found


ENGINES.add(Response())
