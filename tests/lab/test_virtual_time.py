# SPDX-License-Identifier: BSD-3-Clause
"""A guest in virtual time: its clock, its modelled SSDs, and that neither sees what else this machine does."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from userblk.lab.models import disk_models

CHECKOUT = Path(__file__).resolve().parents[2]
LIMIT = 600  # s for a boot and what is run

pytestmark = pytest.mark.skipif(
    not shutil.which("qemu-system-x86_64"), reason="no QEMU; run: apt-get install qemu-system-x86"
)

# What two boots have to agree on: fio's figures in whole operations.
MEASURE = """
for disk in $LAB_SATA $LAB_NVME; do
    fio --name=x --filename=$disk --ioengine=psync --direct=1 --rw=randread --bs=4k --thread --size=64M \
        --runtime=200ms --randrepeat=0 --randseed=7 --group_reporting --output-format=json --output=/tmp/fio.json
    python3 -c "import json; print(json.load(open('/tmp/fio.json'))['jobs'][0]['read']['iops'])"
done
"""
# Interrupts of timers while 200 sleeps of 1 ms pass.
SLEEP = """python3 -c "
import time
def interrupts():
    lines = open('/proc/interrupts').read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.endswith(('timer', 'clock')))
began = interrupts()
for _ in range(200):
    time.sleep(1e-3)
print(interrupts() - began)"
"""
# The share of idle time while a program works for 3 ms of 10, 20 times.
IDLE = """python3 -c "
import time
def idle():
    return int(open('/sys/module/userblk_clock/parameters/idle_us').read())
began, idle_before = time.monotonic(), idle()
for _ in range(20):
    ended = time.monotonic() + 3e-3
    while time.monotonic() < ended:
        pass
    time.sleep(7e-3)
print((idle() - idle_before) * 1e-6 / (time.monotonic() - began))"
"""
# Data and a file system on a disk whose requests complete out of order.
USE = """set -e
fio --name=x --filename=$LAB_NVME --ioengine=libaio --direct=1 --iodepth=32 --rw=randwrite --bsrange=512-256k \
    --blockalign=512 --size=48M --verify=crc32c --verify_fatal=1 --output=/tmp/verify >&2
mkfs.ext4 -q $LAB_SATA
mount $LAB_SATA /mnt
cp -r /usr/lib/python3 /mnt
rm -r /mnt/python3/dist-packages
fstrim /mnt
umount /mnt
fsck.ext4 -fn $LAB_SATA >&2
cat /sys/block/${LAB_SATA#/dev/}/serial /sys/block/${LAB_NVME#/dev/}/serial
python3 -c "
import time
began = time.monotonic(); time.sleep(0.5); slept = time.monotonic() - began
assert 0.5 <= slept < 0.502, slept"
"""
# What write-back knows of a disk with something dirty: kB/s, as the kernel shows it.
WRITE_BACK = """set -e
set_estimate() { echo "$*" >/sys/module/userblk_writeback/parameters/estimate; }
tell() {
    stats=/sys/kernel/debug/bdi/$(cat /sys/block/${1#/dev/}/dev)/stats
    sed -n 's/^BdiWriteBandwidth: *\\([0-9]*\\) kBps$/\\1/p' $stats
}
cat /sys/block/${LAB_NVME#/dev/}/write_bytes_per_s
dd if=/dev/zero of=$LAB_NVME bs=4k count=1 2>/dev/null
exec 4<>$LAB_NVME
printf dirty >&4
tell $LAB_NVME
set_estimate $LAB_NVME 1724137931 16
tell $LAB_NVME
for wrong in "$LAB_NVME 1724137931" "$LAB_NVME 1724137931 0" "$LAB_NVME 4096 2" "/dev/nothing 1724137931 1"; do
    if set_estimate $wrong 2>/dev/null; then echo taken; else echo refused; fi
done
tell $LAB_NVME
exec 4>&-
sync
set_estimate $LAB_NVME 1724137931 1
printf dirty >$LAB_NVME
dmesg | grep -c WARNING || true
"""

# How long a byte to another process and back takes, after pauses in us: alone; beside a busy process; without the
# module.
WAKE_UP = """echo labnvme >/sys/module/userblk_wakeup/parameters/machine
python3 -c "
import os, statistics, subprocess, time
def trips(*pauses):
    (server, request), (answer, client) = os.pipe(), os.pipe()
    if not os.fork():
        os.close(request)
        while os.read(server, 1):
            os.write(client, b'x')
        os._exit(0)
    for pause in pauses:
        times = []
        for _ in range(1000):
            ended = time.monotonic_ns() + pause * 1000
            if pause >= 100:
                time.sleep(pause * 1e-6)
            while (began := time.monotonic_ns()) < ended:
                pass
            os.write(request, b'x')
            os.read(answer, 1)
            times.append(time.monotonic_ns() - began)
        print(statistics.median(times) / 1000)
    os.close(request)
    os.wait()
trips(5, 100, 1000)
busy = subprocess.Popen(['sh', '-c', 'while :; do :; done'])
trips(5)
busy.kill()
subprocess.run(['rmmod', 'userblk_wakeup'], check=True)
trips(5, 100, 1000)"
dmesg | grep -c WARNING || true
"""

# The same with 24 processes in turn, each of which sleeps for a millisecond and more, on both machines: median of each.
IN_TURN = """for machine in labnvme labsata; do
    echo $machine >/sys/module/userblk_wakeup/parameters/machine
    cat /sys/module/userblk_wakeup/parameters/machine
    python3 -c "
import os, statistics, time
servers = []
for _ in range(24):
    (server, request), (answer, client) = os.pipe(), os.pipe()
    if not os.fork():
        os.close(request)
        for _, other in servers:
            os.close(other)
        while os.read(server, 1):
            os.write(client, b'x')
        os._exit(0)
    servers.append((answer, request))
times = []
for number in range(2400):
    ended = time.monotonic_ns() + 30000
    while (began := time.monotonic_ns()) < ended:
        pass
    answer, request = servers[number % 24]
    os.write(request, b'x')
    os.read(answer, 1)
    times.append(time.monotonic_ns() - began)
print(*(statistics.median(times[server::24]) / 1000 for server in range(24)))"
done
echo nobody >/sys/module/userblk_wakeup/parameters/machine || echo refused
"""

# All that a sealed guest tells, in which chance or this machine could show. The timers of its loop go off while the CPU
# runs, which wakes QEMU's main loop, and the CPU is halted soon after that, sooner or later.
TELL = """
fio --name=x --filename=$LAB_NVME --ioengine=psync --rw=randwrite --bs=4k --thread --numjobs=16 --size=64M \
    --runtime=200ms --time_based --group_reporting --output-format=json --output=/results/a/fio.json
python3 -c "
import random, signal, time
signal.signal(signal.SIGALRM, lambda *_: None)
for n in range(10000):
    signal.setitimer(signal.ITIMER_REAL, 2e-5)
    for _ in range(250 + n % 250):
        pass
    time.sleep(1e-5)
print(time.time_ns(), random.random())"
cat /proc/interrupts /proc/stat /proc/vmstat
cp /results/given /results/a/copy
echo changed >/results/given
date +%s.%N >&2
exit 3
"""


def start(options: list[str], script: str, *arguments: str) -> subprocess.Popen[str]:
    argv = [sys.executable, str(CHECKOUT / "lab/run"), "--clock", "virtual", "--disk-size", "256M", "--memory", "2048"]
    argv += [*options, "--timeout", str(LIMIT), "--", "sh", "-c", script, "sh", *arguments]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def in_guest(script: str, *arguments: str) -> list[str]:
    with start([], script, *arguments) as process:
        output, errors = process.communicate(timeout=2 * LIMIT)
    assert process.returncode == 0, output + errors
    return output.split()


def test_idle_time_is_told_by_the_microsecond() -> None:
    """/proc/stat would tell 0.65, 0.7 or 0.75, and nothing of a program that begins and ends with the ticks."""
    (share,) = in_guest(IDLE)
    assert float(share) == pytest.approx(0.7, abs=0.01)


def test_the_kernel_boots_without_a_look_at_timers() -> None:
    """The APIC's, which it would not use then, took six sevenths of the CPU time of a boot."""
    (seconds,) = in_guest(r"dmesg | sed -n 's/^\[ *\([0-9.]*\)\] Run \/init .*/\1/p'")
    assert float(seconds) < 1


def test_a_timer_goes_off_when_its_time_is_over_and_not_before() -> None:
    assert 200 <= int(in_guest(SLEEP)[0]) < 500


def test_modelled_disks_keep_data_and_time_is_whole() -> None:
    assert in_guest(USE) == ["MODELSATA", "MODELNVME"]


def test_a_guest_that_is_not_sealed_sees_little_of_other_load() -> None:
    alone = [float(word) for word in in_guest(MEASURE)]
    assert len(alone) == 2 and min(alone) > 1000
    with other_load():
        loaded = [float(word) for word in in_guest(MEASURE)]
    assert loaded == pytest.approx(alone, rel=0.01)


def test_write_back_knows_a_disk_without_having_written_to_it() -> None:
    """The kernel begins with a guess, and shows whole pages a second."""
    rate, at_first, reported, *refused, still, warnings = in_guest(WRITE_BACK)
    assert (rate, refused) == ("1724137931", ["refused"] * 4)
    assert int(at_first) == 100 << 10 and warnings == "0"
    assert int(reported) == int(still) == pytest.approx(1724137931 / 1024, rel=1e-4)


def test_a_thread_that_another_one_wakes_up_starts_when_an_idle_cpu_would() -> None:
    """Both ways: the server has slept for the pause, the client for as long as the server took."""
    nvme = disk_models()[1]
    assert (nvme.residency_us, nvme.exit_us) == ((2, 20, 600), (2, 10, 133))
    *times, warnings = in_guest(WAKE_UP)
    at_once, soon, late, beside_another, *without = map(float, times)
    assert warnings == "0"
    assert [at_once - without[0], soon - without[1], late - without[2]] == pytest.approx(
        [2 + 2, 10 + 2, 133 + 10], abs=1
    )
    assert beside_another - without[0] == pytest.approx(2 + 2, abs=1)


def test_threads_of_a_machine_with_few_cpus_keep_them_from_deep_sleep() -> None:
    """
    24 servers have a CPU each on the machine with 72, which sleeps for a millisecond and wakes up in 133 us. One of
    four CPUs is the client's. Its core is awake: 2 us; the other core sleeps for less than 100 us: 10 us. So does the
    client, for less than 20 us: 2 us. The rest, some 3 us, is the pipes' work.
    """
    words = in_guest(IN_TURN)
    assert (words[0], words[25], words[50:]) == ("labnvme", "labsata", ["refused"])
    with_many, with_few = [float(word) for word in words[1:25]], [float(word) for word in words[26:50]]
    assert statistics.median(with_many) == pytest.approx(133 + 10, abs=15)
    on_its_core, on_the_other = 2 + 2 + 3, 10 + 2 + 3
    nearest = [min((on_its_core, on_the_other), key=lambda expected: abs(expected - us)) for us in with_few]
    assert with_few == pytest.approx(nearest, abs=1.5)
    assert 4 <= nearest.count(on_its_core) <= 12


@contextmanager
def other_load() -> Iterator[None]:
    loads = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for load in loads:
            load.kill()
            load.wait()


def test_sealed_guests_do_the_same_to_the_instruction(tmp_path: Path) -> None:
    """Beside one another and other load: all that they say, and the files that they leave."""
    (tmp_path / "given").write_text("for the guest\n")
    reported = []
    with other_load():
        guests = []
        for name in ("one", "another"):
            (tmp_path / name).mkdir()
            given = ["--given", f"given={tmp_path / 'given'}"]
            script = "mkdir /results/a\n" + TELL
            guests.append(start(["--sealed", "--seed", "5", *given, "--share", str(tmp_path / name)], script))
        for guest in guests:
            output, errors = guest.communicate(timeout=2 * LIMIT)
            assert guest.returncode == 3, output + errors
            reported.append((output, errors))
    one, another = (tmp_path / name for name in ("one", "another"))
    assert reported[0][1] and reported[0] == reported[1]
    assert sorted(path.name for path in one.rglob("*")) == ["a", "copy", "fio.json"]  # what was given is not kept
    assert (one / "a/copy").read_text() == "for the guest\n"
    iops = json.loads((one / "a/fio.json").read_text())["jobs"][0]["write"]["iops"]
    assert iops > 1000 and (one / "a/fio.json").read_bytes() == (another / "a/fio.json").read_bytes()
