# SPDX-License-Identifier: BSD-3-Clause
"""One run of a workload: watch it until it ends, and what its summary says."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from pathlib import Path

from ..engines import Result
from ..engines.base import Job
from ..engines.store import StoreResult
from ..machine.blockdev import BlockDevice
from ..machine.durable import write_json
from ..machine.subprocesses import Process
from ..observing import perf
from ..observing.instructions import Sides
from ..observing.samplers import DiskUse, Use
from ..systems import Running

FLUSH_PATIENCE = 300.0  # s that a workload may take beyond ramp and runtime, to write back what it left dirty
STEAL_LIMIT = 1.0  # %
SERVER_PATIENCE = 30  # s that a workload may take to end once its device's server is dead
POLL_S = 0.1
FIRST_IO = 256 << 10  # bytes that fio has moved once its job has begun, for old fio that does not tell the time


def mean_use(use: DiskUse | None) -> dict[str, float | None] | None:
    """A device's part of the summary."""
    if use is None:
        return None
    names = ("read_request_kib", "write_request_kib", "queue_depth", "utilisation_percent")
    values = ((name, getattr(use, name)) for name in names)
    return {name: None if value is None else round(value, 3) for name, value in values}


def metrics_of(result: Result | StoreResult, use: Use | None) -> dict[str, float | None]:
    """What each run measures, whatever its engine: rates in 1,000/s and MB/s, us, percent of one CPU or of all."""
    return {
        "throughput_kops": result.throughput_kops,
        "latency_us": result.latency_us,
        "cpu_percent": use.cpu_percent if use else None,
        "server_cpu_percent": use.server_cpu_percent if use else None,
        "throughput_mbps": result.throughput_mbps,
    }


def energy_of(operations: float, use: Use | None) -> dict[str, float | None]:
    """What an operation took of the whole machine's energy, where that is counted."""
    if use is None or not use.energy_j or not operations:
        return {}
    return {"energy_uj_per_op": round(1e6 * sum(use.energy_j.values()) / operations, 3)}


def traced(number: int) -> str:
    """A device number as trace points print it."""
    return f"{os.major(number)},{os.minor(number)}"


def sides(job: Job, running: Running, device: BlockDevice) -> Sides:
    """Who is who in what perf recorded. device: of the plan."""
    below = running.backing or device
    own = running.used.number != below.number and not running.file
    return Sides(
        application=Path(job.argv[0]).name,
        server=running.server,
        device=traced(running.used.number) if own else "",
        backing=traced(below.number),
    )


def keep_stacks(directory: Path, sampled: str, who: Sides, window: tuple[float, float], operations: float) -> None:
    """What perf recorded of the measured time, folded; the recording itself, which is large, is not kept."""
    data = directory / perf.DATA
    perf.write(directory / perf.FILE, perf.folded(perf.script(data, window), who), operations, sampled)
    data.unlink()


def steal_warnings(use: Use | None) -> list[str]:
    """The warning about CPU time that went to other virtual machines, if it is worth one."""
    if use is None or use.steal_percent <= STEAL_LIMIT:
        return []
    return [f"steal: {use.steal_percent:.1f} % of the CPU time went to other machines"]


def costs(use: Use, operations: float, speed: int = 0) -> dict[str, float]:
    """
    What an operation of the workload cost, as far as the kernel counts it: no timings. speed: the one CPU of this
    machine executes just so many instructions a microsecond.
    """
    if not operations:
        return {}
    if speed:
        return {"machine_instructions_per_op": round((use.duration_s - use.idle_s) * 1e6 * speed / operations)}
    found = {f"server_{name}_per_op": value for name, value in use.counts.items()}
    for prefix, disk in zip(("device", "backing"), use.disks, strict=False):
        found[f"{prefix}_requests_per_op"] = (disk.read_kops + disk.write_kops) * 1e3 * use.duration_s
        found[f"{prefix}_bytes_per_op"] = (disk.read_mbps + disk.write_mbps) * 1e6 * use.duration_s
    return {name: round(value / operations, 6) for name, value in found.items()}


def write_counters(directory: Path) -> None:
    """What the device counted, which servers print when they close it: counters.json in the block's directory."""
    counters: dict[str, int] = {}
    for log in sorted((directory / "commands").glob("*.err")):
        for line in re.findall(r"counters:((?: \w+=\d+)+)", log.read_text(errors="replace")):
            counters |= {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", line)}
    write_json(directory / "counters.json", counters)


def bytes_moved(pid: int) -> int:
    """Bytes that a process has read and written by system calls, 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines[:2])


def watch(process: Process, job: Job, running: Running, origin: float) -> tuple[list[str], float]:
    """
    Wait until the workload ends, its server dies or its time is over, and end it. Returns the problems, and when it had
    done its first I/O (0: never seen). origin: when it was started.
    """
    problems = []
    first_io = 0.0
    limit = time.monotonic() + job.seconds + FLUSH_PATIENCE
    try:
        if job.memory:
            job.memory.add(process.pid)
        while process.poll() is None:
            time.sleep(POLL_S)
            job.disturb(time.monotonic() - origin)
            first_io = first_io or (time.monotonic() if bytes_moved(process.pid) > FIRST_IO else 0.0)
            if running.server_died():
                problems.append("the server died")
                for _ in range(SERVER_PATIENCE):
                    running.fail_io()  # once more: what waited behind the first comes next
                    if process.wait(1.0):
                        break
                break
            if time.monotonic() > limit:
                problems.append(f"the workload did not end within {FLUSH_PATIENCE:.0f} s after its runtime")
                break
    finally:
        process.end()
    return problems, first_io


def used_by(running: Running, area: int) -> dict[str, object]:
    """What the workload opened, for the summary."""
    return {"path": running.target, "size": area} if running.file else dataclasses.asdict(running.used)
