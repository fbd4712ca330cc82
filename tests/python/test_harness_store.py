# SPDX-License-Identifier: BSD-3-Clause
"""The suite over a store: its plan, its stores, the delay, its figures. Real runs are in tests/s3."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from interrupted import interrupt_then, interrupts
from loops import LIMIT
from userblk.analysis.report import draw
from userblk.analysis.store_figures import Place, parse_workload, reports
from userblk.harness.engines import flow
from userblk.harness.engines import store as load
from userblk.harness.engines.fio import read_report
from userblk.harness.engines.store import StoreResult
from userblk.harness.machine.interrupt import Interrupted
from userblk.harness.machine.paths import CONFIGS, HOST_BUILD, PYTHON_PATH
from userblk.harness.machine.subprocesses import Process, Recorder
from userblk.harness.machine.teardown import TeardownError
from userblk.harness.model import source
from userblk.harness.model.config import Workload, load_profile, load_suite, load_system
from userblk.harness.model.parts import ENGINES
from userblk.harness.model.plan import Plan, estimate, make_plan, read_plan, write_plan
from userblk.harness.model.tables import ConfigError
from userblk.harness.observing import energy
from userblk.harness.running import store_runner
from userblk.harness.running.campaign import store_devices
from userblk.harness.stores import servers
from userblk.harness.stores.latency_proxy import Delays, distribution
from userblk.harness.stores.servers import read_access
from userblk.harness.stores.serving import Served
from userblk.harness.systems.base import BringUpError
from waiting import wait_until

FLOW = HOST_BUILD / "flow/userblk-flow"
SYSTEMS = ("s3", "s3-direct", "s3backer-file", "nbdkit-s3", "s3-null")


def plan_of(profile: str = "quick", systems: tuple[str, ...] = SYSTEMS, suite_name: str = "s3") -> Plan:
    suite = load_suite(suite_name, profile)
    return make_plan(
        suite=suite,
        profile=load_profile(profile),
        systems=[load_system(name) for name in systems],
        devices=store_devices(suite.latencies_ms, None),
        campaign="c",
        build="build/host",
        seed=7,
    )


# ---- its own store ----------------------------------------------------------------


def test_an_installation_builds_the_store_from_the_source_that_it_brings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "CHECKOUT", None)
    monkeypatch.setattr(source, "ARCHIVE", tmp_path / "source.tar.gz")
    monkeypatch.setattr(source, "CACHE", tmp_path / "cache")
    with pytest.raises(ConfigError, match="needs userblk's source, which this installation lacks; run .* by --store$"):
        servers.server_program()
    subprocess.run(["packaging/source-archive", source.ARCHIVE], cwd=CONFIGS.parent, check=True)
    (tmp_path / "bin").mkdir()
    for name in ("dirname", "flock", "gzip", "mkdir", "rm", "tar"):  # no go
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or name)
    with monkeypatch.context() as without:
        without.setenv("PATH", str(tmp_path / "bin"))
        with pytest.raises(ConfigError, match="^store: versitygw cannot be built: .* needs Go; install golang-go$"):
            servers.server_program()
    (place,) = source.CACHE.iterdir()
    if (built := CONFIGS.parent / "build/s3-servers").is_dir():
        shutil.rmtree(place / "build/s3-servers")
        (place / "build/s3-servers").symlink_to(built)
        assert servers.server_program().startswith(f"{place}/build/s3-servers/versitygw-")


# ---- the plan -------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["quick", "paper"])
def test_ids_say_what_a_workload_is(profile: str) -> None:
    suite = load_suite("s3", profile)
    ids = [workload.id for workload in suite.workloads]
    assert len(set(ids)) == len(ids)
    for workload in suite.workloads:
        _, point = parse_workload(workload.id, "")
        assert (point.jobs, point.block_size, point.depth) == (workload.threads, workload.block_size, workload.depth)
    assert {name for figure in suite.figures for name in figure.workloads} == set(ids)
    assert [figure.title.split()[0] for figure in suite.figures] == ["9.1", "9.2", "9.3", "9.4"]


def test_a_block_reads_before_it_writes_and_null_has_no_store() -> None:
    plan = plan_of()
    stores = set()
    for _, entries in plan.blocks():
        writes = [plan.workload(entry).writes for entry in entries]
        assert writes == sorted(writes)
        stores.add((entries[0].device, entries[0].system))
    assert stores == {(f"store-{ms}ms", name) for ms in (0, 20) for name in SYSTEMS} - {("store-20ms", "s3-null")}


def test_quick_takes_half_an_hour_at_most() -> None:
    expected = estimate(plan_of())
    assert expected.seconds <= 1800
    assert len(expected.each) == expected.runs == len(plan_of().entries)


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = plan_of("paper")
    assert plan.profile.repetitions == plan.profile.store.repetitions
    assert read_plan(write_plan(plan, tmp_path)) == plan


def test_figures_lose_the_workloads_that_are_left_out() -> None:
    suite = load_suite("s3")
    arguments = {"profile": load_profile("quick"), "systems": [load_system("s3")], "campaign": "c", "build": "b"}
    plan = make_plan(
        suite=suite,
        devices=store_devices([0], None),
        workloads=["rand-read-1th-4k-d1"],
        **arguments,  # type: ignore[arg-type]
    )
    assert [figure.workloads for figure in plan.suite.figures] == [("rand-read-1th-4k-d1",)]


def test_other_systems_do_not_run_it() -> None:
    with pytest.raises(ConfigError, match="system=native: none of the workloads can run on it"):
        plan_of(systems=("native",))
    suite = load_suite("bdus-block")
    assert not any(load_system("s3").runs(workload) for workload in suite.workloads)


# ---- fio ----------------------------------------------------------------------------


def test_sequential_jobs_have_parts_and_writes_are_flushed(tmp_path: Path) -> None:
    workloads = {w.id: w for w in load_suite("s3").workloads}
    size = 256 << 20
    words = load.argv(workloads["seq-write-4th-64k-d32"], 2, size, ["--ioengine=nbd"], 1, tmp_path)
    assert f"--size={size // 4}" in words and f"--offset_increment={size // 4}" in words
    assert "--end_fsync=1" in words and "--iodepth=32" in words
    words = load.argv(workloads["rand-read-4th-64k-d32"], 2, size, ["--ioengine=nbd"], 1, tmp_path)
    assert f"--size={size}" in words and not any("offset_increment" in word for word in words)
    assert "--end_fsync=1" not in words


# ---- stores -----------------------------------------------------------------------------


def given(directory: Path, text: str, keys: str = "access-key-id=A\nsecret-access-key=B\n") -> Path:
    (directory / "keys").write_text(keys)
    path = directory / "store"
    path.write_text(text)
    return path


def test_a_given_store_is_one_device(tmp_path: Path) -> None:
    path = given(tmp_path, "# mine\nendpoint=https://s3.example\nbucket=b\ncredentials=keys\n")
    access = read_access(path)
    assert (access.endpoint, access.region, access.bucket) == ("https://s3.example", "us-east-1", "b")
    assert (access.access_key, access.secret_key) == ("A", "B")
    (one,), (other,) = (store_devices([0, 20], path) for _ in range(2))
    assert one.id == "store" and one.identity.startswith("userblk-bench-") and one.identity != other.identity


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        ("bucket=b\ncredentials=keys\n", "", "endpoint is missing"),
        ("endpoint=e\nbucket=b\ncredentials=keys\nzone=z\n", "", "zone=z: unknown"),
        ("endpoint=e\nbucket=b\ncredentials=keys\n", "access-key-id=A\n", "has no line secret-access-key=VALUE"),
        ("endpoint=e\nbucket=b\ncredentials=none\n", "", "No such file or directory; name a readable file"),
    ],
)
def test_a_wrong_store_is_refused(tmp_path: Path, text: str, keys: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        store_devices([0], given(tmp_path, text, keys))
    assert "\n" not in str(error.value)


@contextmanager
def echo() -> Iterator[int]:
    """The port of a server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                while data := peer.recv(1 << 16):
                    peer.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@contextmanager
def delayed(port: int, ms: int, directory: Path) -> Iterator[int]:
    """The port of the delay before another."""
    port_file = directory / "port"
    argv = [sys.executable, "-m", "userblk.harness.stores.latency_proxy", "--to", f"127.0.0.1:{port}", "--ms", str(ms)]
    env = dict(os.environ, PYTHONPATH=str(PYTHON_PATH))
    with subprocess.Popen([*argv, "--port-file", str(port_file)], env=env) as process:
        try:
            wait_until("the delay listens", port_file.exists, process=process)
            yield int(port_file.read_text())
        finally:
            process.terminate()


def test_the_delay_delays_and_changes_nothing(tmp_path: Path) -> None:
    body = os.urandom(3 << 20)
    got = bytearray()
    with echo() as port, delayed(port, 60, tmp_path) as near:
        with socket.create_connection(("127.0.0.1", near), 120) as peer:
            for _ in range(2):
                began = time.monotonic()
                peer.sendall(b"x")
                assert peer.recv(1) == b"x"
                assert time.monotonic() - began >= 0.06
            thread = threading.Thread(target=peer.sendall, args=(body,))
            thread.start()
            while len(got) < len(body):
                got += peer.recv(1 << 20)
            thread.join()
    assert got == body


def test_delays_are_of_a_seeded_distribution() -> None:
    draws = [distribution(20, 0.5, 0.01, 1000, seed) for seed in (7, 7, 8)]
    same, again, other = ([draw() for _ in range(20_000)] for draw in draws)
    assert same == again != other
    late = [delay for delay in same if delay == 1.0]
    assert 0.008 < len(late) / len(same) < 0.012
    body = sorted(delay for delay in same if delay != 1.0)
    assert 0.019 < body[len(body) // 2] < 0.021
    # One standard deviation is a factor of exp(0.5).
    assert 1.55 < body[len(body) * 8413 // 10000] / body[len(body) // 2] < 1.75


def test_a_request_has_one_delay() -> None:
    delays = Delays(iter([1.0, 2.0, 3.0]).__next__)
    now = time.monotonic()
    due = [delays.due(), delays.due()]
    delays.answered()
    delays.answered()
    due.append(delays.due())
    assert [round(at - now) for at in due] == [1, 1, 2]


# ---- figures ----------------------------------------------------------------------------------

NAMES = ["seq-write-1th-4k-d1", "rand-write-1th-4k-d1", "seq-write-1th-1m-d1", "seq-write-4th-4k-d1"]
JOBS = "seq-write-2th-64k-d4"
RUNS = [
    ("s3", NAMES[0], 100.0, "store-0ms"),
    ("s3", NAMES[0], 110.0, "store-0ms"),
    ("s3", NAMES[1], 90.0, "store-0ms"),
    ("s3backer-file", NAMES[1], 5.0, "store-0ms"),
    ("s3", NAMES[2], 400.0, "store-0ms"),
    ("s3", NAMES[3], 300.0, "store-0ms"),
    ("s3", NAMES[3], 0.0, "store-0ms"),  # invalid
    ("s3", NAMES[0], 50.0, "store-20ms"),
    ("s3", JOBS, 700.0, "store-0ms"),
]


def campaign(directory: Path) -> Path:
    figures = [
        {"title": "9.1 By size", "x": "block_size", "workloads": NAMES},
        {"title": "9.3 By jobs", "x": "jobs", "workloads": [JOBS]},
        {"title": "9.4 Nothing", "x": "jobs", "workloads": ["rand-read-1th-4k-d1"]},
    ]
    (directory / "plan.json").write_text(json.dumps({"suite": {"figures": figures}}))
    for number, (system, workload, rate, store) in enumerate(RUNS, 1):
        run = directory / "host" / store / "s3" / system / workload / str(number)
        run.mkdir(parents=True)
        summary = {"schema": 1, "system": system, "workload": workload, "device": store, "metrics": {}}
        summary |= {"campaign": "c", "host": "host", "profile": "quick", "kernel": "6", "emulated": False}
        summary |= {"suite": "s3", "repetition": number, "invalid": []}
        summary |= {"valid": bool(rate), "warnings": [], "metrics": {"throughput_mbps": rate}}
        summary |= {"settings": {"store": "versitygw", "store_directory": "/dev/shm"}}
        (run / "summary.json").write_text(json.dumps(summary))
        (run / "DONE").touch()
    return directory


def test_a_figure_has_a_row_for_each_point(tmp_path: Path) -> None:
    first, second = reports(campaign(tmp_path))
    assert (first.name, second.name) == ("s3-9.1", "s3-9.3")
    assert first.columns[4:] == ("userblk s3 seq", "userblk s3 rand", "s3backer rand")
    assert first.rows == (
        ("store-0ms", "1", "1", "4k", "105 ±64", "90.0", "5.00"),
        ("store-0ms", "1", "1", "1m", "400", "-", "-"),
        ("store-0ms", "1", "4", "4k", "300", "-", "-"),
        ("store-20ms", "1", "1", "4k", "50.0", "-", "-"),
    )
    assert first.records[0][:8] == ("store-0ms", "1", "1", "4096", "s3", "seq-write", "2", "105.0")
    assert len(first.records) == 6
    assert any("1 of 9 runs are invalid" in note for note in first.notes)
    assert first.title.endswith("host host") and "store: versitygw in /dev/shm of the same machine" in first.notes
    assert list(first.figures) == ["s3-9.1-store-0ms", "s3-9.1-store-20ms"]
    assert second.rows == (("store-0ms", "4", "2", "64k", "700"),)


def test_a_campaign_without_a_run_has_no_figure(tmp_path: Path) -> None:
    assert reports(tmp_path) == []


def test_figures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    names = draw(reports(campaign(tmp_path)), tmp_path)
    assert "s3-9.1-store-20ms.svg" in names and len(names) == 6
    assert all((tmp_path / name).stat().st_size > 1000 for name in names)


def test_a_foreign_workload_is_no_point() -> None:
    with pytest.raises(ValueError):
        parse_workload("seq-read-1th-4k", "store")
    assert parse_workload("rand-read-12th-1m-d32", "store") == ("rand-read", Place("store", 32, 12, 1 << 20))


def test_writes_last_until_their_flush_not_until_fio_has_ended(tmp_path: Path) -> None:
    """fio takes its time to start, and to end: as long as a run of profile quick where the machine is busy."""
    path, pidfile = tmp_path / "s", tmp_path / "pid"
    served = ["nbdkit", "-f", "-U", str(path), "-P", str(pidfile), "eval", "get_size=echo 64M", "can_write=exit 0"]
    served += ["can_flush=exit 0", "pread=head -c $3 /dev/zero", "pwrite=cat >/dev/null", "flush=sleep 1"]
    workload = Workload("seq-write-1th-64k-d1", "write", 1, 65536, depth=1)
    words = load.argv(workload, 1, 64 << 20, ["--ioengine=nbd", f"--uri=nbd+unix:///?socket={path}"], 1, tmp_path)
    late = ["sh", "-c", 'sleep 1; "$@"; sleep 1', "-", *words]
    server = subprocess.Popen(served, stdin=subprocess.DEVNULL)
    try:
        wait_until("nbdkit listens", pidfile.exists, LIMIT, process=server)
        began = time.monotonic()
        subprocess.run(late, check=True, timeout=LIMIT)
        ended = time.monotonic()
    finally:
        server.terminate()
        server.wait()
    (side,) = (job["write"] for job in read_report(tmp_path / "fio.json")["jobs"])
    found = load.parse(tmp_path / "fio.json", workload, 0.0)
    assert found.problems == () and 2 <= found.duration_s < ended - began - 2
    assert found.throughput_kops == pytest.approx(side["total_ios"] / found.duration_s / 1e3)
    # Where only the server's end says that all is stored, that is a second later.
    assert load.parse(tmp_path / "fio.json", workload, 1.0).duration_s == pytest.approx(found.duration_s + 1)


UPLOADS = """
import pathlib, signal, sys, time
def end(*_):
    begin = time.process_time()
    while time.process_time() < begin + 1: pass
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1]).touch()
while True: signal.pause()
"""


def test_cpu_time_until_all_is_stored_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As throughput does: what s3backer takes for its uploads after fio's end, also if no sample is taken meanwhile."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    plan = plan_of(systems=("s3backer-file",))
    plan = replace(plan, profile=replace(plan.profile, interval_ms=60_000))
    write_plan(plan, tmp_path)
    runner = store_runner.StoreRunner(plan, tmp_path)

    def start(*_: object) -> Served:
        mark, ready = runner.teardown.mark(), tmp_path / "ready"
        argv = [sys.executable, "-c", UPLOADS, str(ready)]
        server = Recorder(tmp_path / "server").spawn(argv, teardown=runner.teardown)
        wait_until("the server is ready", ready.exists, LIMIT)
        return Served(["disk"], server, runner.teardown, mark, flush_by_end=True)

    def parse(later: float) -> StoreResult:
        return StoreResult(1.0, 4.0, 5.0, 0.1 + later, "1", ())

    monkeypatch.setattr(runner, "start", start)
    monkeypatch.setattr(runner, "on_device", lambda *_: store_runner.Load("fio", ["true"], 0.0, parse))
    zone = tmp_path / "powercap/intel-rapl:0"
    zone.mkdir(parents=True)
    for name, text in {"name": "package-0", "max_energy_range_uj": "1000", "energy_uj": "7"}.items():
        (zone / name).write_text(text)
    monkeypatch.setattr(energy, "ROOT", zone.parent)
    runner.run_one(plan.entries[0], plan.systems["s3backer-file"], None, "0.1")
    summary = json.loads((tmp_path / plan.directory(plan.entries[0]) / "summary.json").read_text())
    assert summary["valid"], summary["invalid"]
    # Less its part in the time of fio, which samples this far apart do not tell.
    assert 0.8 < summary["metrics"]["server_cpu_percent"] * summary["duration_s"] / 100 < 1.5
    assert summary["energy_j"] == {"package-0": 0.0}  # as of all runs, where the machine counts it


# ---- on a file system -------------------------------------------------------------------


def files_plan(profile: str = "quick", systems: tuple[str, ...] = ("s3-nbd", "s3-weak-nbd", "s3-direct-nbd")) -> Plan:
    return plan_of(profile, systems, "bs3-fs")


def test_the_thesis_file_systems_are_planned_with_its_sizes(tmp_path: Path) -> None:
    plan = files_plan("paper")
    assert read_plan(write_plan(plan, tmp_path)) == plan
    assert len(plan.entries) == 3 * 3 * 2 * plan.profile.store.repetitions
    values = {workload.id: workload.variables["store-20ms"] for workload in plan.suite.workloads}
    assert values["fileserver"]["nfiles"] == 960000 and values["fileserver"]["nthreads"] == 96
    assert values["varmail"]["filesize"] == 32768 and values["varmail"]["nthreads"] == 256
    assert (values["oltp"]["nshadows"], values["oltp"]["ndbwriters"], values["oltp"]["nfiles"]) == (500, 30, 500)
    assert {one["runtime"] for one in values.values()} == {60}
    assert plan.profile.store.files_size == 2**40


def test_all_variables_of_the_file_systems_are_the_workload_files(tmp_path: Path) -> None:
    for profile in ("quick", "paper"):
        for workload in files_plan(profile).suite.workloads:
            argv = flow.argv(FLOW, workload, "store-0ms", tmp_path, tmp_path, 1, "create", "--check")
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), (profile, workload.id)


def test_a_file_system_needs_a_disk_of_the_kernel() -> None:
    with pytest.raises(ConfigError, match="system=s3: none of the workloads can run on it; leave it out"):
        files_plan(systems=("s3",))
    with pytest.raises(ConfigError, match="system=fuse: none of the workloads can run on it; leave it out"):
        files_plan(systems=("fuse",))


def test_it_fits_a_coffee_break() -> None:
    assert estimate(files_plan()).seconds <= 1200


# ---- a store that fails -----------------------------------------------------------------------


def test_a_copy_that_cannot_be_kept_is_told(tmp_path: Path) -> None:
    """As where the disk is full: the block's runs fail, and the campaign goes on."""
    store = servers.LocalStore.__new__(servers.LocalStore)
    store._objects, store._kept = tmp_path / "data", tmp_path / "none/kept"
    store._objects.mkdir()
    with pytest.raises(BringUpError, match=r"objects cannot be copied: .*No such file or directory"):
        store.keep()
    with pytest.raises(BringUpError, match="objects cannot be copied"):
        store.reset()


class Refusing(BaseHTTPRequestHandler):
    """A store with one object, which may not be deleted; it says so in an answer that is a success."""

    def answer(self, text: str) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = f'<?xml version="1.0"?>{text}'.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer(
            "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>k</Key></Contents></ListBucketResult>"
        )

    def do_POST(self) -> None:
        error = "<Error><Key>k</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
        self.answer(f"<DeleteResult>{error}</DeleteResult>")

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_objects_that_a_store_does_not_delete_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("boto3")
    (tmp_path / "keys").write_text("access-key-id=a\nsecret-access-key=b\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        (tmp_path / "store").write_text(f"endpoint={endpoint}\nbucket=b\ncredentials=keys\n")
        with pytest.raises(BringUpError, match="1 objects cannot be deleted, such as k: AccessDenied"):
            servers.remove_all(read_access(tmp_path / "store"))
        servers.remove_objects(str(tmp_path / "store"), "p-1")  # which holds up nobody else
        server.shutdown()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"userblk: objects below p-1 may be left in the store of {tmp_path}/store: ")
    assert line.endswith("1 objects cannot be deleted, such as k: AccessDenied")


WAITS = """
trap "exit 0" TERM
touch $0
while :; do sleep 0.1; done
"""


def series(rates: list[int]) -> dict[str, Any]:
    """What userblk-flow writes of a run with so many operations in each interval of profile quick."""
    latency = {"sum": 0, "mean": 0.0, "bins": {}}
    intervals = [
        {"start_s": i / 10, "end_s": (i + 1) / 10, "ops": ops, "bytes": 0, "flowops": {}, "latency_ns": latency}
        for i, ops in enumerate(rates)
    ]
    return {
        "schema": 1, "program": "userblk-flow 1", "original": False, "threads": 4, "threads_without_file": 0,
        "started_monotonic_s": time.monotonic(), "duration_s": len(rates) / 10, "end": "time", "variables": {},
        "filesets": [], "flowops": [], "intervals": intervals,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rates", "steady"), [([100] * 50 + [200] * 50, False), ([50] * 20 + [200] * 80, False), ([200] * 100, True)]
)
def test_nothing_beyond_the_ramp_is_cut_on_a_file_system(
    rates: list[int], steady: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Filebench does it. A run that is not steady says so; MSER cut up to half of it, without a word."""
    plan = files_plan(systems=("s3-nbd",))
    write_plan(plan, tmp_path)
    runner = store_runner.StoreRunner(plan, tmp_path)
    entry, workload = plan.entries[0], plan.suite.workloads[0]

    def start(*_: object) -> Served:
        mark, ready = runner.teardown.mark(), tmp_path / "ready"
        server = Recorder(tmp_path / "server").spawn(["sh", "-c", WAITS, str(ready)], teardown=runner.teardown)
        wait_until("the server is ready", ready.exists, LIMIT)
        return Served(["disk"], server, runner.teardown, mark)

    def on_files(*_: object) -> store_runner.Load:
        (tmp_path / "flow.json").write_text(json.dumps(series(rates)))
        profile = ENGINES["store-files"].timed(workload, plan.profile)  # type: ignore[attr-defined]
        return store_runner.Load("flow", ["true"], 0.0, lambda _: flow.parse(tmp_path / "flow.json", workload, profile))

    monkeypatch.setattr(runner, "start", start)
    monkeypatch.setattr(runner, "on_files", on_files)
    runner.run_one(entry, plan.systems["s3-nbd"], None, "0.1")
    summary = json.loads((tmp_path / plan.directory(entry) / "summary.json").read_text())
    assert summary["duration_s"] == pytest.approx(9)
    found = summary["warm_up"]
    assert (found["rule"], found["ramp_s"], found["cut_s"], found["steady"]) == ("fixed", 1, 0, steady)
    assert sum(line.startswith("not steady: throughput ") for line in summary["warnings"]) == (not steady)


@pytest.mark.parametrize(("given", "ramp"), [(None, 1), (3, 3)])
def test_a_warm_up_that_is_asked_for_holds_on_a_file_system(given: int | None, ramp: int) -> None:
    suite, systems = load_suite("bs3-fs"), [load_system("s3-nbd")]
    devices, profile = store_devices(suite.latencies_ms, None), load_profile("quick")
    plan = make_plan(
        suite=suite, profile=profile, systems=systems, devices=devices, campaign="c", build="b", warm_up_s=given
    )
    workload = plan.suite.workloads[0]
    timed = ENGINES["store-files"].timed(workload, plan.profile)  # type: ignore[attr-defined]
    assert flow.run_options(workload, timed, Path("x"))[:2] == [f"--seconds={ramp + 9}", "--interval=0.1"]


REFUSES = """
trap "echo s3: 3 MiB are not in the store: No space left on device >&2; exit 1" TERM
touch $0
while :; do sleep 0.1; done
"""


@pytest.mark.parametrize("hangs", [False, True])
def test_a_store_that_is_full_is_the_reason(hangs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The file system gets errors, or waits for a store that answers no request. The run failed without a summary, or
    named what followed from that.
    """
    if os.geteuid() != 0:
        pytest.skip("needs root")
    plan, hung_up = files_plan(systems=("s3-nbd",)), tmp_path / "hung up"
    write_plan(plan, tmp_path)
    runner = store_runner.StoreRunner(plan, tmp_path)
    servers_of_runs: list[Process] = []

    def start(*_: object) -> Served:
        mark, ready = runner.teardown.mark(), tmp_path / "ready"
        argv = ["sh", "-c", REFUSES, str(ready)]
        servers_of_runs.append(Recorder(tmp_path / "server").spawn(argv, teardown=runner.teardown))
        wait_until("the server is ready", ready.exists, LIMIT)
        served = Served(["disk"], servers_of_runs[0], runner.teardown, mark)
        monkeypatch.setattr(served, "fail_io", hung_up.touch)
        return served

    def on_files(*_: object) -> store_runner.Load:
        ends = "echo write: Input/output error >&2; exit 1"
        script = f"while ! test -e '{hung_up}'; do sleep 0.1; done; {ends}" if hangs else ends
        closing = ["/run/m: writing back failed: Input/output error", "ext4 found 3 errors"]
        return store_runner.Load("flow", ["sh", "-c", script], 0.0, lambda later: parse(), lambda: closing)

    def parse() -> StoreResult:
        return StoreResult(1.0, 4.0, 5.0, 6.0, "1", ("interrupted",))

    monkeypatch.setattr(runner, "start", start)
    monkeypatch.setattr(runner, "on_files", on_files)
    monkeypatch.setattr(store_runner, "FLUSH_PATIENCE", 0.5 if hangs else LIMIT)
    runner.run_one(plan.entries[0], plan.systems["s3-nbd"], None, "0.1")
    summary = json.loads((tmp_path / plan.directory(plan.entries[0]) / "summary.json").read_text())
    assert summary["invalid"] == ["sh: exit code 1: s3: 3 MiB are not in the store: No space left on device"]
    assert summary["valid"] is False and summary["metrics"] == {} and summary["duration_s"] == 6.0
    assert runner.counts["invalid"] == 1 and hung_up.exists() is hangs
    assert servers_of_runs[0].poll() == 1 and runner.teardown.steps == []


def test_an_interrupt_ends_the_runs_over_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where neither the disk can be hung up, nor the workload be ended: none of that is a failed run."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    plan = files_plan(systems=("s3-nbd",))
    runner = store_runner.StoreRunner(plan, tmp_path)
    started: list[Process] = []

    def start(*_: object) -> Served:
        started.append(Recorder(tmp_path / "server").spawn(["true"]))
        served = Served(["disk"], started[0], runner.teardown, runner.teardown.mark())
        monkeypatch.setattr(served, "fail_io", lambda: interrupt_then(subprocess.TimeoutExpired("nbd-client", 60)))
        return served

    monkeypatch.setattr(runner, "start", start)
    monkeypatch.setattr(
        runner,
        "on_files",
        lambda *_: store_runner.Load("flow", ["sleep", "600"], 0.0, lambda _: StoreResult(1.0, 4.0, 5.0, 6.0, "1", ())),
    )
    spawn = Recorder.spawn

    def keep(recorder: Recorder, argv: Sequence[str], **options: Any) -> Process:
        started.append(spawn(recorder, argv, **options))
        return started[-1]

    monkeypatch.setattr(Recorder, "spawn", keep)
    with interrupts(), pytest.raises(Interrupted):
        runner.run_one(plan.entries[0], plan.systems["s3-nbd"], None, "0.1")
    assert started[-1].record["name"] == "sleep" and started[-1].poll() == -signal.SIGTERM
    assert runner.counts["failed"] == 0 and not (tmp_path / plan.directory(plan.entries[0])).exists()


def test_what_was_run_is_kept_of_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose files cannot be made, and a block whose teardown fails."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    plan = files_plan(systems=("s3-nbd",))
    write_plan(plan, tmp_path)
    runner = store_runner.StoreRunner(plan, tmp_path)

    def start(system: object, store: object, size: int, create: bool, recorder: Recorder) -> Served:
        recorder.run(["true"], timeout=LIMIT)
        return Served(["disk"], recorder.spawn(["true"]), runner.teardown, runner.teardown.mark())

    def fails(*_: object) -> None:
        raise TeardownError("something stays")

    monkeypatch.setattr(runner, "start", start)
    monkeypatch.setattr(runner, "on_files", lambda *_: Recorder(tmp_path / "p").run(["false"], timeout=LIMIT))
    runner.run_one(plan.entries[0], plan.systems["s3-nbd"], None, "0.1")
    assert runner.counts["failed"] == 1

    def kept(directory: Path) -> list[str]:
        return [record["name"] for record in json.loads((directory / "commands.json").read_text())]

    assert kept(tmp_path / plan.directory(plan.entries[0])) == ["true", "true"]
    monkeypatch.setattr(runner, "bring_up", lambda first, system, recorder: recorder.run(["false"], timeout=LIMIT))
    monkeypatch.setattr(runner.teardown, "unwind", fails)
    with pytest.raises(TeardownError, match="something stays"):
        runner.run_block(0, [plan.entries[0]])
    assert kept(tmp_path / "blocks/0.1") == ["false"] and (tmp_path / "blocks/0.1/counters.json").exists()
