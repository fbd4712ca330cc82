# SPDX-License-Identifier: BSD-3-Clause
"""The suite over a store as a user runs it: real servers, real runs, figures; nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from loops import LIMIT
from servers import BUCKET, ROOT, Store
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.plan import make_plan
from userblk.harness.running.campaign import create, store_devices
from waiting import wait_until

WORKLOADS = "rand-read-1th-4k-d1,rand-write-4th-64k-d32"


SMALL_DISK = "mount -t tmpfs -o size=1m store /dev/shm && mount -t tmpfs -o size=24m store /var/tmp"
LEFT = "ls /dev/shm /var/tmp >&2"


def userblk(*words: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """before: the words of a command that runs it."""
    env = dict(os.environ, PYTHONPATH=str(ROOT / "python"))
    argv = [*before, sys.executable, str(ROOT / "bin/userblk"), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=1200, check=False, env=env)


def leftovers() -> set[str]:
    return {str(path) for path in (*Path("/dev/shm").glob("userblk-store-*"), *Path("/run/userblk").glob("s-*"))}


def summaries(results: Path) -> dict[tuple[str, str, str], dict[str, object]]:
    found = [json.loads(path.read_text()) for path in results.glob("*/*/*/*/*/*/*/summary.json")]
    return {(s["device"], s["system"], s["workload"]): s for s in found}


def test_campaign(tmp_path: Path) -> None:
    before = leftovers()
    words = ["run", "--suite", "s3", "--systems", "s3-direct,s3-null", "--workloads", WORKLOADS]
    result = userblk(*words, "--results", str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    found = summaries(tmp_path)
    assert len(found) == 6 and all(summary["valid"] for summary in found.values())
    far = found["store-20ms", "s3-direct", "rand-read-1th-4k-d1"]["metrics"]
    assert isinstance(far, dict) and far["latency_us"] >= 20_000  # every read is a GET
    # That not every one of the near store's is late is all that can be said of a busy machine.
    (near,) = tmp_path.glob("*/*/store-0ms/*/s3-direct/rand-read-1th-4k-d1/*/fio.json")
    assert "ioengine=nbd" in near.with_name("replay.fio").read_text()
    assert json.loads(near.read_text())["jobs"][0]["read"]["lat_ns"]["min"] < 20_000_000
    (campaign,) = tmp_path.iterdir()
    assert "userblk s3, direct rand" in (campaign / "s3-9.2.md").read_text()
    assert leftovers() <= before
    again = userblk("table", str(campaign))
    assert again.returncode == 0 and "9.2 Read throughput" in again.stdout


def test_campaign_on_a_given_store(store: Store, tmp_path: Path) -> None:
    """It leaves nothing in the bucket."""
    file = tmp_path / "store"
    file.write_text(f"endpoint={store.url}\nbucket={BUCKET}\ncredentials={store.credentials}\n")
    words = ["run", "--suite", "s3", "--systems", "s3", "--workloads", "rand-write-4th-64k-d32", "--store", str(file)]
    result = userblk(*words, "--results", str(tmp_path / "results"))
    assert result.returncode == 0, result.stdout + result.stderr
    assert list(summaries(tmp_path / "results")) == [("store", "s3", "rand-write-4th-64k-d32")]
    keys = [o["Key"] for o in store.client().list_objects_v2(Bucket=BUCKET, Prefix="userblk-bench").get("Contents", [])]
    assert keys == []


def keys_below(store: Store, prefix: str) -> list[str]:
    found = store.client().list_objects_v2(Bucket=BUCKET, Prefix=prefix)
    return [one["Key"] for one in found.get("Contents", [])]


def test_what_a_killed_campaign_left_is_removed(store: Store, tmp_path: Path) -> None:
    """By the next campaign, from below its own prefix; and when it is resumed, after the machine has started again."""
    file = tmp_path / "store"
    file.write_text(f"endpoint={store.url}\nbucket={BUCKET}\ncredentials={store.credentials}\n")
    suite = load_suite("s3")
    plan = make_plan(
        suite=suite,
        profile=load_profile("quick"),
        systems=[load_system("nbdkit-s3")],
        devices=store_devices(suite.latencies_ms, file),
        campaign="c",
        build="build/host",
        workloads=["rand-write-1th-4k-d1"],
        repetitions=1,
    )
    directory = create(plan, tmp_path / "results", ["by hand"])
    prefix = plan.devices["store"].identity
    env = dict(os.environ, PYTHONPATH=str(ROOT / "python"))
    argv = [sys.executable, "-m", "userblk.harness.running.store_runner", str(directory / "plan.json")]
    other = "userblk-bench-0/other"
    store.client().put_object(Bucket=BUCKET, Key=other, Body=b"")
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL) as killed:
        wait_until("it fills its volume", lambda: keys_below(store, prefix), LIMIT, process=killed)
        killed.kill()
    next_one = "from userblk.harness.systems import recover; print(*recover())"
    done = subprocess.run([sys.executable, "-c", next_one], env=env, capture_output=True, text=True, check=True)
    assert f"runner {killed.pid} had left" in done.stdout and done.stderr == ""
    assert keys_below(store, prefix) == [] and keys_below(store, "userblk-bench-0") == [other]
    store.client().put_object(Bucket=BUCKET, Key=f"{prefix}/old", Body=b"")
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL) as resumed:
        wait_until("that is gone", lambda: f"{prefix}/old" not in keys_below(store, prefix), LIMIT, process=resumed)
        resumed.send_signal(signal.SIGINT)
    assert keys_below(store, prefix) == []


def test_plugin_of_large_objects_takes_small_requests(store: Store, tmp_path: Path) -> None:
    """nbdkit's own S3 plugin wants whole objects, which the suite's smallest requests are not."""
    file = tmp_path / "store"
    file.write_text(f"endpoint={store.url}\nbucket={BUCKET}\ncredentials={store.credentials}\n")
    words = ["run", "--suite", "s3", "--systems", "nbdkit-s3", "--workloads", "rand-write-1th-4k-d1"]
    result = userblk(*words, "--store", str(file), "--results", str(tmp_path / "results"))
    assert result.returncode == 0, result.stdout + result.stderr
    (summary,) = summaries(tmp_path / "results").values()
    assert summary["valid"]


def test_a_full_store_is_told(tmp_path: Path) -> None:
    """Where the store keeps its objects there is no room for the volume; nothing stays there."""
    before = leftovers()
    words = ["run", "--suite", "s3", "--systems", "s3", "--workloads", "rand-write-1th-64k-d1", "--json"]
    script = f'{SMALL_DISK} || exit 9; "$@"; code=$?; {LEFT}; exit $code'
    result = userblk(
        *words, "--results", str(tmp_path),
        before=["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"],
    )  # fmt: skip
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stderr.splitlines()[-3:] == ["/dev/shm:", "", "/var/tmp:"]
    failed = [one for one in map(json.loads, result.stdout.splitlines()) if one["event"] == "entry-failed"]
    assert len(failed) == 2 and not summaries(tmp_path)
    assert all("No space left on device" in one["reason"] and "\n" not in one["reason"] for one in failed), failed
    assert leftovers() <= before


def test_plan_and_refusals() -> None:
    plan = userblk("plan", "--suite", "s3", "--systems", "s3,s3-null")
    assert plan.returncode == 0 and "store-20ms: a versitygw of its own, 20 ms away" in plan.stdout
    for words, message in (
        (["--sata", "/dev/null"], "leave --sata out"),
        (["--systems", "native"], "none of the workloads can run on it"),
        (["--store", "/nonexistent"], "No such file or directory; name a readable file"),
        (["--store", "/nonexistent", "--where", "lab"], "leave --store out"),
    ):
        result = userblk("plan", "--suite", "s3", "--systems", "s3", *words)
        assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
        assert message in result.stderr
