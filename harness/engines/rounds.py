# SPDX-License-Identifier: BSD-3-Clause
"""Rounds of a workload until it is steady, as SNIA's Performance Test Specification 2.0.2 has them.

As a program: python3 -m userblk.harness.engines.rounds --most=N --window=N --output=FILE -- fio ..., where {round} in
fio's words is the directory of a round. It repeats fio until the window of the last rounds is steady, and writes what
each completed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ..machine.blockdev import flush_cache
from ..machine.durable import write_json
from ..machine.prepare import discard_area, drop_caches
from ..machine.safety import recheck
from ..machine.subprocesses import WITH_PARENT, Recorder
from ..model.config import Profile, Workload
from ..observing.histogram import merged, tails
from ..observing.warmup import WarmUp, settled
from . import Result, WorkloadError, replay
from .base import Job, Run
from .fio import argv, read_report

FILE = "rounds.json"
ROUND = "{round}"
SEED = "--randseed="
WRITE_LIMIT = 1e5  # s that writing all of the area may take
BETWEEN_S = 5.0  # s that a round may take beyond its runtime


# ---- the program -----------------------------------------------------------------------------


def words_of(words: Sequence[str], number: int, directory: Path) -> list[str]:
    """fio's command line of a round; no two ask for the same blocks."""
    found = []
    for word in words:
        if word.startswith(SEED):
            word = f"{SEED}{int(word.removeprefix(SEED)) + number}"
        found.append(word.replace(ROUND, str(directory)))
    return found


def side_of(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """What fio did, which is only reads or only writes."""
    (job,) = report["jobs"]
    if job["error"]:
        raise ValueError(f"fio reports error {job['error']}")
    side: Mapping[str, Any] = job["write" if job["write"]["total_ios"] else "read"]
    if not side["total_ios"] or not side["runtime"]:
        raise ValueError("fio completed no operation")
    return side


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="userblk.harness.engines.rounds", description="Repeat fio until steady.")
    parser.add_argument("--most", type=int, required=True, help="rounds at most")
    parser.add_argument("--window", type=int, required=True, help="rounds that must be steady")
    parser.add_argument("--output", type=Path, required=True, help="file for the results")
    parser.add_argument("words", nargs="+", help="fio's command line")
    args = parser.parse_args(arguments)
    done: list[dict[str, Any]] = []
    steady = False
    child: subprocess.Popen[bytes] | None = None
    ended = 0

    def end(number: int, frame: object) -> None:
        """The round first: the runner waits for this program, and means its I/O."""
        nonlocal ended
        ended = number
        if child:
            child.send_signal(number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    while len(done) < args.most and not steady:
        directory = args.output.parent / f"round-{len(done) + 1}"
        directory.mkdir()
        began = time.monotonic()
        words = words_of(args.words, len(done), directory)
        child = subprocess.Popen([*WITH_PARENT, *words])
        if ended:  # as it started
            child.send_signal(ended)
        code = child.wait()
        if code or ended:
            return code or 128 + ended
        side = side_of(read_report(directory / "fio.json"))
        kops = side["total_ios"] / side["runtime"]
        done.append({"began": began, "ended": time.monotonic(), "kops": kops})
        window = [one["kops"] for one in done[-args.window :]]
        steady = len(window) == args.window and settled(window)[2]
    write_json(args.output, {"window": args.window, "steady": steady, "rounds": done})
    return 0


# ---- for the runner ------------------------------------------------------------------------


def precondition(run: Run) -> dict[str, object]:
    """Purge the area, and write all of it sequentially, below the system. What was done."""
    if not run.plan.systems[run.entry.system].uses_device:
        return {}
    recheck(run.device, run.confirm, run.running.server, run.running.used.name)
    for used in run.devices():
        flush_cache(used.path)
    found = discard_area(run.device, run.plan.used_bytes(run.entry.device), run.entry.seed)
    passes = run.profile.rounds["passes"]
    words = ["fio", "--name=precondition", f"--filename={run.device.path}", "--rw=write", "--bs=131072"]
    words += ["--ioengine=io_uring", "--iodepth=32", "--direct=1", "--allow_file_create=0", f"--size={run.area}"]
    words += [f"--loops={passes}", "--end_fsync=1", "--eta=never"]
    recorder = Recorder(run.directory / "preparation", run.teardown)
    try:
        recorder.run(words, timeout=WRITE_LIMIT)
    finally:
        recorder.save()
    return found | {"preconditioned_passes": passes}


def parse(path: Path, workload: Workload, profile: Profile) -> Result:
    """The result of the window; what comes before it is warm-up. Raises WorkloadError."""
    try:
        report = json.loads(path.read_text())
        rounds, size = report["rounds"], int(report["window"])
        kops = [float(one["kops"]) for one in rounds]
        first = max(0, len(rounds) - size)
        fio = [read_report(path.parent / f"round-{n}/fio.json") for n in range(first + 1, len(rounds) + 1)]
        sides = [side_of(one) for one in fio]
        operations = sum(side["total_ios"] for side in sides)
        waited = sum(side["lat_ns"]["mean"] * side["total_ios"] for side in sides)
        bins = merged(side["clat_ns"].get("bins", {}) for side in sides)
        origin, begin, end = (float(rounds[at][name]) for at, name in ((0, "began"), (first, "began"), (-1, "ended")))
        version, steady = str(fio[0].get("fio version", "")), bool(report["steady"])
        latency = waited / operations / 1e3
    except (OSError, ValueError, LookupError, TypeError, ZeroDivisionError) as error:
        raise WorkloadError(f"{path.name} cannot be read: {error}") from None
    window = kops[first:]
    slope, between, _ = settled(window)
    reason = f"after {len(kops)} rounds the line changes by {slope:+.0f} % and rounds differ by {between:.0f} %"
    return Result(
        throughput_kops=fmean(window),
        throughput_mbps=fmean(window) * workload.block_size / 1e3,
        latency_us=latency,
        duration_s=end - begin,
        measured_from=origin,
        operations=float(operations),
        warm_up=WarmUp("SNIA PTS", begin - origin, steady, "" if steady else reason, slope, len(kops)),
        version=version,
        problems=(),
        warnings=(),
        metrics=tails(bins),
        ramp_s=0.0,
        settings={"rounds_kops": kops, "window": len(window), "slope_percent": slope, "excursion_percent": between},
    )


def prepare(run: Run) -> tuple[Job, dict[str, object]]:
    profile, workload = run.profile, run.workload
    found = precondition(run) | drop_caches(run.devices(), run.area)
    most, window = profile.rounds["most"], profile.rounds["window"]
    output = run.directory / FILE
    words = [sys.executable, "-m", "userblk.harness.engines.rounds", f"--most={most}", f"--window={window}"]
    words += [f"--output={output}", "--"]
    job_words = argv(workload, profile, run.area, run.running.target, run.entry.seed, Path(ROUND))
    words += job_words
    comments = (
        f"A round of {workload.id} on {run.entry.system} over {run.entry.device}, campaign {run.plan.campaign}.",
        f"{'WRITES to' if workload.writes else 'Reads'} {run.running.target}, whose area of {run.area} bytes was purged"
        f" and written {profile.rounds['passes']} times before the first round.",
    )
    (run.directory / replay.FILE).write_text(replay.job_file(job_words, comments))
    job = Job(
        argv=words,
        seconds=most * (profile.ramp_s + profile.runtime_s + BETWEEN_S),
        parse=lambda: parse(output, workload, profile),
        synced=(run.running.target,),
        sync=os.fsync,
        area=run.area,
    )
    return job, found


if __name__ == "__main__":
    sys.exit(main())
