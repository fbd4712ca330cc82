# SPDX-License-Identifier: BSD-3-Clause
"""A server ends under load and another takes its place: no request fails, and nothing that was acknowledged is lost."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest
from guest import AREA, LIMIT, Up, config
from guest_campaign import END_LIMIT, make_campaign, runner, summaries
from userblk.harness.machine.teardown import start_time
from userblk.harness.model.config import load_profile
from waiting import wait_until

CHANGES = [
    ("ublk", "uring", "replace"),
    *(pytest.param(*change, marks=pytest.mark.long)
      for change in (("nbdkit", "", "kill"), ("tcmu", "", "kill"), ("tcmu", "handler", "kill"),
                     ("ublk", "workers", "kill"), ("ublk", "workers", "replace"), ("ublk", "uring", "kill"))),
]  # fmt: skip


def requests(stat: Path) -> int:
    return sum(map(int, stat.read_text().split()[0:5:4]))


@pytest.mark.parametrize(("kind", "mode", "event"), CHANGES)
def test_no_request_fails(up: Up, kind: str, mode: str, event: str) -> None:
    with up(config(kind, timeout_s=5, mode=mode), outlives=True) as running:
        load = subprocess.Popen(
            ["fio", "--name=verify", f"--filename={running.used.path}", "--rw=randwrite", "--bs=4k", "--direct=1",
             "--ioengine=libaio", "--iodepth=16", "--size=128M", "--io_size=64M", "--rate_iops=1000",
             "--verify=crc32c", "--verify_fatal=1"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            stat = running.used.queue.parent / "stat"
            before = requests(stat)
            wait_until("fio does I/O", lambda: requests(stat) >= before + 200, LIMIT, process=load)
            old = running.server
            running.change_server(event)
            assert running.server != old and not start_time(old)
            assert not running.server_died() and running.problems() == []
            assert load.poll() is None, "over before the server changed"
            output, _ = load.communicate(timeout=LIMIT)
            assert load.returncode == 0, output
        finally:
            if load.poll() is None:
                running.fail_io()
                load.kill()
                load.wait(LIMIT)


@pytest.mark.long
@pytest.mark.parametrize("system", ["nbdkit", "tcmu", "tcmu-threads", "ublk-workers", "ublk-uring"])
def test_a_campaign_measures_it(system: str, tmp_path: Path) -> None:
    directory = tmp_path / "campaign"
    make_campaign(directory, "failover", dataclasses.replace(load_profile("quick"), area={"nvme": AREA}), system)
    with runner(directory) as process:
        assert process.wait(3 * END_LIMIT) == 0, (directory / "runner.log").read_text()
    found = summaries(directory)
    assert {one["workload"] for one in found} == ({"kill", "replace"} if "ublk" in system else {"kill"})
    for one in found:
        print(json.dumps(one["metrics"]))
        assert one["valid"], one["invalid"]
        assert one["metrics"]["failed_requests"] == one["metrics"]["lost_blocks"] == 0
        assert one["settings"]["failover"]["before_kops"] > 0
