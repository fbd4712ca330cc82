# SPDX-License-Identifier: BSD-3-Clause
"""A guest in virtual time: its clock, its modelled SSDs, and that neither sees what else this machine does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
LIMIT = 600  # s for a boot and what is run

pytestmark = pytest.mark.skipif(
    not shutil.which("qemu-system-x86_64"), reason="no QEMU; run: apt-get install qemu-system-x86"
)

# What two boots have to agree on: fio's figures in whole operations.
MEASURE = """
for disk in $LAB_SATA $LAB_NVME; do
    fio --name=x --filename=$disk --ioengine=psync --direct=1 --rw=randread --bs=4k --thread --numjobs=$1 --size=64M \
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


def in_guest(script: str, *arguments: str) -> list[str]:
    argv = [sys.executable, str(CHECKOUT / "lab/run"), "--clock", "virtual", "--disk-size", "256M", "--memory", "2048"]
    argv += ["--timeout", str(LIMIT), "--", "sh", "-c", script, "sh", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=2 * LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


def test_the_kernel_boots_without_a_look_at_timers() -> None:
    """The APIC's, which it would not use then, took six sevenths of the CPU time of a boot."""
    (seconds,) = in_guest(r"dmesg | sed -n 's/^\[ *\([0-9.]*\)\] Run \/init .*/\1/p'")
    assert float(seconds) < 1


def test_a_timer_goes_off_when_its_time_is_over_and_not_before() -> None:
    assert 200 <= int(in_guest(SLEEP)[0]) < 500


def test_modelled_disks_keep_data_and_time_is_whole() -> None:
    assert in_guest(USE) == ["MODELSATA", "MODELNVME"]


# 16 threads: a run of 0.2 s ends somewhere in a burst of theirs. No cell of a campaign may differ by more than 3 %.
@pytest.mark.parametrize(("jobs", "apart"), [("1", 0.01), ("16", 0.03)])
def test_boots_agree_beside_other_load(jobs: str, apart: float) -> None:
    alone = [float(word) for word in in_guest(MEASURE, jobs)]
    assert len(alone) == 2 and min(alone) > 1000
    loads = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        loaded = [float(word) for word in in_guest(MEASURE, jobs)]
    finally:
        for load in loads:
            load.kill()
            load.wait()
    for a, b in zip(alone, loaded, strict=True):
        assert b == pytest.approx(a, rel=apart), json.dumps([alone, loaded])
