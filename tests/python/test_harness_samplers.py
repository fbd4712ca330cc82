# SPDX-License-Identifier: BSD-3-Clause
"""Figures from counters, and counters from this machine."""

from __future__ import annotations

import csv
import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from loops import LIMIT
from userblk.harness.observing import samplers
from userblk.harness.observing.host_load import OtherPrograms
from userblk.harness.observing.samplers import TICKS, Sample, Sampler, at, use_between
from userblk.harness.running.measuring import costs

DISK = [0.0] * 17


def sample(when: float, busy: float, idle: float, server: float | None, **disk: float) -> Sample:
    fields = list(DISK)
    for name, value in disk.items():
        fields[{"reads": 0, "read_sectors": 2, "busy_ms": 9, "queue_ms": 10}[name]] = value
    return Sample(when, (busy, 0, 0, idle, 0, 0, 0, 0), server, (tuple(fields),))


def test_use_between_two_samples() -> None:
    a = sample(10, 100, 100, 5)
    b = sample(12, 150, 250, 6, reads=1000, read_sectors=8000, busy_ms=1000, queue_ms=5000)
    use = use_between(a, b)
    assert use.cpu_percent == 25
    assert use.server_cpu_percent == 50  # one CPU second in two
    disk = use.disks[0]
    assert (disk.read_kops, disk.read_mbps, disk.read_request_kib) == (0.5, 2.048, 4)
    assert disk.write_request_kib is None  # no request has no size, not size 0
    assert (disk.queue_depth, disk.utilisation_percent) == (2.5, 50)


@pytest.mark.parametrize("hit", [0, 1])
def test_one_cpu_is_busy_when_it_is_not_idle(hit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If each tick finds it at work, and if none does."""
    a, b = sample(0, 0, 0, 0), sample(1, hit * TICKS, 0.6 * TICKS, 0)
    monkeypatch.setattr(samplers, "CPUS", 1)
    assert use_between(a, b).cpu_percent == pytest.approx(40)
    monkeypatch.setattr(samplers, "CPUS", 2)
    assert use_between(a, b).cpu_percent == pytest.approx(100 * hit / (hit + 0.6))


def test_a_guest_in_virtual_time_is_idle_by_the_microsecond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc/stat knows of a run of 10 ms that it was busy, or that it was not."""
    monkeypatch.setattr(samplers, "CPUS", 1)
    monkeypatch.setattr(samplers, "IDLE_US", idle := tmp_path / "idle_us")
    idle.write_text("3000000\n")
    a = samplers.read_sample([], None)
    idle.write_text("3007300\n")
    b = samplers.read_sample([], None)
    use = use_between(dataclasses.replace(a, time=1), dataclasses.replace(b, time=1.01))
    assert (use.cpu_percent, use.idle_s) == (pytest.approx(27), pytest.approx(0.0073))


def test_counters_between_samples_lie_on_a_line() -> None:
    samples = [sample(0, 0, 0, 0), sample(10, 100, 0, 10, reads=10), sample(20, 100, 100, 10, reads=10)]
    assert at(samples, 5).cpu[0] == 50
    assert at(samples, 15).cpu == (100, 0, 0, 50, 0, 0, 0, 0)
    assert at(samples, 5).disks[0][0] == 5
    assert at(samples, -1) == samples[0]
    assert at(samples, 99) == samples[2]


def test_sampling_this_process(tmp_path: Path) -> None:
    disk = next((p.name for p in Path("/sys/block").iterdir()), None)
    if not disk:
        pytest.skip("kernel: this machine has no block device to sample")
    with Sampler([disk], os.getpid(), 0.05) as sampler:
        began, used = time.monotonic(), time.process_time()
        while time.process_time() < used + 0.5 or len(sampler.samples) < 4:
            pass
        ended, used = time.monotonic(), time.process_time() - used
    use = sampler.use(began, ended)
    assert use is not None and use.server_cpu_percent is not None
    # Other work may take most of the time away; the kernel counts in ticks.
    assert use.server_cpu_percent == pytest.approx(100 * used / (ended - began), rel=0.3, abs=5)
    assert sampler.errors == []
    sampler.write_csv(tmp_path / "samples.csv", began)
    with (tmp_path / "samples.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 3
    assert all(None not in row and None not in row.values() for row in rows)


def test_a_disk_that_goes_is_told_once() -> None:
    """As that of a dead server: the run would have a line for each sample."""
    with Sampler(["no-such-disk"], None, 0.01) as sampler:
        time.sleep(0.2)
    (line,) = sampler.errors
    assert "no-such-disk" in line and sampler.use(0.0, 1.0) is None


def test_a_few_milliseconds_of_a_server_count() -> None:
    """A tick of /proc/PID/stat is 10 ms long."""
    before, began = samplers.read_server(os.getpid()), time.process_time()
    while time.process_time() < began + 0.003:
        pass
    used, after = time.process_time() - began, samplers.read_server(os.getpid())
    assert before is not None and after is not None and after - before == pytest.approx(used, abs=0.001)


def test_a_server_that_is_gone_has_no_share() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert samplers.read_server(process.pid) is None
    assert use_between(sample(0, 0, 0, 3), sample(1, 1, 1, None)).server_cpu_percent is None


def test_where_an_instruction_takes_a_nanosecond() -> None:
    """What of 2 s the one CPU was not idle, through 1000 operations."""
    use = use_between(sample(10, 0, 0, None), sample(12, 1.5 * TICKS, 0.5 * TICKS, None))
    assert use.idle_s == 0.5
    assert costs(use, 1000, speed=3000) == {"machine_instructions_per_op": 4.5e6}
    assert "machine_instructions_per_op" not in costs(use, 1000)


def test_what_other_programs_take_during_a_run() -> None:
    """A program that is not ours counts, ours do not, nor what they start."""
    spin = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(spin) as program:
        try:
            strange, own, began = OtherPrograms([1 << 22]), OtherPrograms([os.getpid()]), time.monotonic()
            while not (used := samplers.read_server(program.pid)) or used < 0.5:
                time.sleep(0.1)
            ours, others, took = own.percent(), strange.percent(), time.monotonic() - began
        finally:
            program.kill()
    assert others - ours > 50 * used / took  # half of what it took, on a machine that others use as well


IN_A_CONTAINER = """
import os, time
from userblk.harness.observing.host_load import OtherPrograms
from userblk.harness.observing.samplers import read_server
assert open("/proc/2/cmdline").read().startswith("sh\\0")
others, began, before = OtherPrograms([os.getpid()]), time.monotonic(), read_server(2)
while read_server(2) < before + 0.5:
    time.sleep(0.1)
print(others.percent() / 100 * (time.monotonic() - began))
"""


def test_the_second_program_of_a_container_counts() -> None:
    """Elsewhere the process of that number is the parent of the kernel's threads."""
    spins = f'sh -c "while :; do :; done" & {sys.executable} -c "$0"; exit $?'
    argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", spins, IN_A_CONTAINER]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.stderr.startswith("unshare"):
        pytest.skip("needs root")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.25


def test_milliseconds_of_a_disk_that_begin_again() -> None:
    """The kernel shows them in 32 bits: those of the queue begin again after three busy days at depth 16."""
    busy, queue = samplers.BUSY_MS, samplers.QUEUE_MS

    def counters(busy_ms: float, queue_ms: float) -> tuple[float, ...]:
        values = [0.0] * 11
        values[busy], values[queue] = busy_ms, queue_ms
        return tuple(values)

    last = counters(4_294_967_000.0, 4_294_966_000.0)
    for now, wanted in (
        (counters(4_294_967_100.0, 500.0), (100.0, 1796.0)),
        (counters(704.0, 100.0), (1000.0, 4_294_968_692.0)),  # and once more
    ):
        found = samplers.unwrapped(last, now)
        assert found[busy] - 4_294_967_000.0 == wanted[0] and found[queue] - 4_294_966_000.0 == wanted[1]
        last = found
