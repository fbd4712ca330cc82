# SPDX-License-Identifier: BSD-3-Clause
"""The systems of somebody else's that are commands only, in one short campaign; and one that is not installed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from guest import BUILD, MIB, address
from guest_campaign import events, runner, summaries
from servers import ACCESS_KEY, BUCKET, SECRET_KEY
from userblk.harness.model import plan
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.systems import absent

PEERS = ("nbdkit-file", "qemu-nbd", "s3backer")
WORKLOADS = ("rand-read-16th-4k", "rand-write-16th-4k")
AREA = 64 * MIB
END_LIMIT = 1200.0  # s; the machine may be busy


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """s3backer uses the store on the host, whose bucket also has the volumes of other tests."""
    passwords = tmp_path / ".s3backer_passwd"
    passwords.write_text(f"{ACCESS_KEY}:{SECRET_KEY}\n")
    passwords.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("S3BACKER_URL", f"http://{address('LAB_STORE')}/")
    monkeypatch.setenv("S3BACKER_BUCKET", BUCKET)


@pytest.mark.long
def test_each_is_measured_and_bdus_is_left_out(store: None, tmp_path: Path) -> None:
    directory = tmp_path / "campaign"
    directory.mkdir()
    systems = [load_system(name) for name in (*PEERS, "bdus")]
    assert [absent(system) for system in systems[:-1]] == [[]] * len(PEERS)
    made = plan.make_plan(
        suite=load_suite("bdus-block"),
        profile=dataclasses.replace(load_profile("quick"), area={"nvme": AREA}),
        systems=systems,
        devices=[plan.Device("nvme", "$LAB_NVME", "LABNVME")],
        campaign=directory.name,
        host="lab",
        emulated=True,
        build=BUILD,
        workloads=list(WORKLOADS),
        repetitions=1,
        seed=1,
    )
    plan.write_plan(made, directory)
    with runner(directory) as process:
        assert process.wait(END_LIMIT) == 0, (directory / "runner.log").read_text()
    found = summaries(directory)
    assert {(s["system"], s["workload"]) for s in found} == {(p, w) for p in PEERS for w in WORKLOADS}
    assert [(s["system"], s["invalid"]) for s in found if not s["valid"]] == []
    assert all(s["metrics"]["throughput_kops"] > 0 for s in found), json.dumps(found)
    reasons = {event["reason"] for event in events(directory) if event["event"] == "entry-left-out"}
    assert reasons == {"bdus: bdus-loop is not installed; bdus is not installed; the kernel has no kbdus"}
