# SPDX-License-Identifier: BSD-3-Clause
"""Suite failover, as far as it goes without a kernel that has its disks: its plan, its figures, NBD's netlink."""

from __future__ import annotations

import dataclasses
import json
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from loops import LIMIT
from userblk.harness.engines import WorkloadError
from userblk.harness.engines.base import device_engine
from userblk.harness.engines.failover import Event, Timing, argv, mean_rate, parse, recovery, silence, timing, waits_s
from userblk.harness.machine.blockdev import BlockDevice
from userblk.harness.machine.teardown import has_threads, start_time
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.plan import Device, Plan, estimate, make_plan
from userblk.harness.model.tables import ConfigError
from userblk.harness.observing.netlink import attribute, attributes
from userblk.harness.running.campaign import lab_devices
from userblk.harness.systems import nbd_netlink, nbdkit
from userblk.harness.systems.base import BringUpError, Running, await_up
from userblk.harness.systems.nbd_netlink import connections_attribute, open_export
from waiting import wait_until


def plan_for(profile: str = "quick", systems: tuple[str, ...] = ("tcmu", "ublk-uring")) -> Plan:
    return make_plan(
        suite=load_suite("failover"),
        profile=load_profile(profile),
        systems=[load_system(name) for name in systems],
        devices=[Device("nvme", "/dev/null", "1")],
        campaign="test",
        build="build",
        seed=1,
    )


def test_each_run_has_a_bring_up_of_its_own() -> None:
    plan = plan_for()
    cells = {(entry.system, entry.workload) for entry in plan.entries}
    assert cells == {("tcmu", "kill"), ("ublk-uring", "kill"), ("ublk-uring", "replace")}
    assert [len(entries) for _, entries in plan.blocks()] == [1] * 9
    assert min(estimate(plan).each) > 33
    assert plan.used_bytes("nvme") == plan.profile.area["nvme"]
    # Nothing is discarded, so that the CPU time of a run is that of its load.
    assert device_engine("failover").ramp_s(plan.profile) == 0


def test_the_quick_profile_is_over_in_half_an_hour() -> None:
    suite = load_suite("failover")
    plan = make_plan(
        suite=suite,
        profile=load_profile("quick"),
        systems=[load_system(name) for name in suite.systems],
        devices=lab_devices("real"),
        campaign="test",
        build="build",
    )
    assert len(plan.entries) == 3 * 2 * 6
    assert estimate(plan).seconds < 30 * 60


def test_times_are_shorter_in_virtual_time() -> None:
    """What is simulated costs CPU time, a dead NBD server's 10 s, which nothing happens in, do not."""

    def ends(virtual: bool) -> Timing:
        made = make_plan(
            suite=load_suite("failover"),
            profile=load_profile("quick", virtual=virtual),
            systems=[load_system("nbdkit")],
            devices=lab_devices("virtual" if virtual else "real"),
            campaign="test",
            build="build",
        )
        workload = made.suite.workloads[0]
        assert list(workload.timing) == ["quick", "paper"]
        waits = waits_s(made.profile, load_system("nbdkit"), workload.event)
        assert min(estimate(made).each) > timing(workload, "quick", 1).end_s
        return timing(workload, "quick", 1, waits)

    real, virtual = ends(False), ends(True)
    assert real == Timing(real.event_s, 33, settled_s=1, window_s=1, interval_s=0.1)
    assert virtual == Timing(virtual.event_s, 1.2 + nbdkit.RESEND_S, settled_s=0.1, window_s=0.1, interval_s=0.02)
    assert virtual.end_s > virtual.event_s + nbdkit.RESEND_S + virtual.window_s
    profile = load_profile("quick", virtual=True)
    assert waits_s(profile, load_system("nbdkit"), "replace") == waits_s(profile, load_system("tcmu"), "kill") == 0


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ConfigError, match="system=native: none of the workloads"):
        plan_for(systems=("native",))
    profile = dataclasses.replace(load_profile("quick"), name="other")
    with pytest.raises(ConfigError, match="profile other is missing; add it, or use one of quick, paper"):
        make_plan(
            suite=load_suite("failover"),
            profile=profile,
            systems=[load_system("tcmu")],
            devices=[Device("nvme", "/dev/null", "1")],
            campaign="test",
            build="build",
        )


def test_the_event_comes_at_a_random_moment_that_its_seed_repeats() -> None:
    workload = load_suite("failover").workloads[0]
    times = [timing(workload, "quick", seed) for seed in range(50)]
    assert times[7] == timing(workload, "quick", 7)
    assert all(5 <= one.event_s <= 8 and one.end_s == 33 for one in times)
    assert max(one.event_s for one in times) - min(one.event_s for one in times) > 2


def test_the_jobs_do_not_touch_each_other() -> None:
    words = argv("/dev/x", 1 << 30, 33, 1, Path("/r"))
    load, verify = words.index("--name=load"), words.index("--name=verify")
    half = 1 << 29
    assert {f"--offset={half}", f"--size={half}"} <= set(words[load:verify])
    assert {"--offset=0", f"--size={33 * 128 * 4096}"} <= set(words[verify:])
    assert "--runtime=33" in words and "--runtime=1200ms" in argv("/dev/x", 1 << 30, 1.2, 1, Path("/r"))
    small = argv("/dev/x", 16 << 20, 33, 1, Path("/r"))
    assert f"--size={8 << 20}" in small[small.index("--name=verify") :]


def series(rates: list[float]) -> list[tuple[float, float]]:
    return [((number + 1) / 10, rate) for number, rate in enumerate(rates)]


def test_recovery_is_the_time_until_throughput_is_back() -> None:
    steady, stall, times = [10.0] * 50, [0.0] * 30, Timing(5.0, 13)
    assert mean_rate(series(steady), 1.0, 5.0) == pytest.approx(10)
    # Gone for 3 s, then slow for 1 s, then as before.
    back = recovery(series(steady + stall + [5.0] * 10 + [10.0] * 40), 10.0, 5.0, 13.0, times)
    assert back is not None and 3.6 <= back <= 4.1
    assert recovery(series(steady + [9.5] * 50), 10.0, 5.0, 10.0, times) == 0
    assert recovery(series(steady + [8.5] * 50), 10.0, 5.0, 10.0, times) is None
    assert recovery(series(steady + stall), 10.0, 5.0, 8.0, times) is None
    # A moment of speed, as of what had waited, is not yet throughput.
    back = recovery(series(steady + stall + [20.0] * 2 + [0.0] * 20 + [10.0] * 30), 10.0, 5.0, 13.0, times)
    assert back is not None and back > 4.5


def test_a_short_stall_shows_in_a_short_window() -> None:
    """As the 60 ms of ublk in virtual time: a mean of 1 s is over 90 % from the event on."""
    rates = [10.0] * 100 + [0.0] * 3 + [10.0] * 100
    found = [((number + 1) / 50, rate) for number, rate in enumerate(rates)]
    assert recovery(found, 10.0, 2.0, 4.0, Timing(2.0, 4)) == 0
    short = Timing(2.0, 4, window_s=0.1, interval_s=0.02)
    assert recovery(found, 10.0, 2.0, 4.0, short) == pytest.approx(0.06)


def test_silence_is_what_the_longest_of_waiting_requests_took_at_least() -> None:
    assert silence(series([10.0] * 20 + [0.0] * 30 + [0.1] + [0.0] * 5 + [10.0]), 1.0, 9.0) == pytest.approx(3)
    assert silence(series([10.0] * 20), 1.0, 2.0) == 0
    # Before the load and after it nobody waits.
    assert silence(series([0.0] * 20 + [10.0] * 10 + [0.0] * 50), 2.0, 3.0) == 0
    assert silence(series([5.0] + [0.0] * 20 + [10.0] * 10), 2.0, 3.0) == 0
    # What is read back after the load; and a stall that is longer than it.
    assert silence(series([10.0] * 30 + [0.0] * 20 + [1.0]), 0.5, 2.9) == 0
    assert silence(series([10.0] * 20 + [0.0] * 30 + [1.0]), 0.5, 2.9) == pytest.approx(3)


def result(directory: Path, *, errors: str = "", failed: int = 0, verified: int = 100) -> None:
    def side(operations: int, longest: float) -> dict[str, object]:
        return {
            "runtime": 10000,
            "total_ios": operations,
            "io_bytes": operations * 4096,
            "lat_ns": {"N": operations, "mean": 1e6, "max": longest},
        }

    jobs = [
        {"write": side(100000, 2.5e9), "read": side(0, 0), "total_err": failed, "error": 0},
        {"write": side(100, 1e6), "read": side(verified, 1e6), "total_err": 0, "error": 0},
    ]
    # fio's errors go there too.
    (directory / "fio.json").write_text(errors + json.dumps({"fio version": "fio-3", "jobs": jobs}))
    (directory / "commands").mkdir()
    (directory / "commands/00-fio.err").write_text(errors)
    rows = ["time_s,read_kops,write_kops", *(f"{time},0,{rate}" for time, rate in series([10.0] * 100))]
    (directory / "samples.csv").write_text("\n".join(rows) + "\n")


def test_what_fio_saw_is_counted(tmp_path: Path) -> None:
    lost = "verify: bad magic header 0, wanted acca at file /dev/x offset 0, length 4096 (requested block: offset=0)\n"
    result(tmp_path, errors=2 * lost, failed=5)
    found = parse(tmp_path, Timing(5.0, 10), Event(0.5, 5.0, 6.0))
    assert found.problems == ()
    assert found.metrics == {"failed_requests": 3, "lost_blocks": 2, "stall_s": 2.5, "recovery_s": 0.0}
    assert found.throughput_kops == 10 and found.settings["blocks_verified"] == 100


def test_runs_that_say_nothing_are_invalid(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="fio.json cannot be read"):
        parse(tmp_path, Timing(5.0, 10), Event(0.5, 5.0, 6.0))
    result(tmp_path, verified=40)
    problems = parse(tmp_path, Timing(5.0, 10), Event()).problems
    assert problems == ("the load ended before the event", "fio verified 40 of 100 blocks")
    late = parse(tmp_path, Timing(5.0, 10), Event(9.5, 10.0, 11.0)).problems
    assert late[0] == "nothing was written before the event"


def test_failures_of_the_load_do_not_stand_for_blocks_that_were_not_verified(tmp_path: Path) -> None:
    result(tmp_path, failed=60, verified=40)
    assert parse(tmp_path, Timing(5.0, 10), Event(0.5, 5.0, 6.0)).problems == ("fio verified 40 of 100 blocks",)


def load_a_server_that_fails(directory: Path, error: str, share: str = "60%", after_s: int = 0) -> None:
    """After a second so many of the writes fail, after_s seconds late, of both jobs, which come as fio's NBD client."""
    path, pidfile, now, log = directory / "s", directory / "pid", directory / "now", directory / "log"
    served = ["nbdkit", "-f", "-U", str(path), "-P", str(pidfile)]
    served += ["--filter=retry-request"] * bool(after_s) + ["--filter=error", "--filter=log", "memory", "64M"]
    served += [f"error={error}", f"error-pwrite-rate={share}", "error-pread-rate=0"]
    served += [f"error-file={now}", f"logfile={log}"]
    served += ["retry-request-retries=1", f"retry-request-delay={after_s}"] * bool(after_s)
    words = []
    area = 64 << 20 if not after_s else 512 << 10  # so that what is verified is written by then
    for word in argv("/dev/x", area, 3, 1, directory):
        client = ["--ioengine=nbd", f"--uri=nbd+unix:///?socket={path}"]
        of_disk = word.startswith(("--filename=", "--direct=", "--allow_file_create="))
        words += client if word == "--ioengine=libaio" else [] if of_disk else [word]
    server = subprocess.Popen(served, stdin=subprocess.DEVNULL)
    try:
        wait_until("nbdkit listens", pidfile.exists, LIMIT, process=server)
        (directory / "commands").mkdir()
        with (directory / "commands/00-fio.err").open("w") as err:
            load = subprocess.Popen(words, stderr=err)
        wait_until("fio writes", lambda: log.exists() and " Write " in log.read_text(), LIMIT, process=load)
        time.sleep(1)
        now.touch()
        assert load.wait(LIMIT) in (0, 1, 2)
    finally:
        server.terminate()
        server.wait()
    # A disk counts what it has failed, too.
    rates = [10.0] * 10 + [0.0] * 10 * after_s + [10.0] * 20
    rows = ["time_s,read_kops,write_kops", *(f"{time},0,{rate}" for time, rate in series(rates))]
    (directory / "samples.csv").write_text("\n".join(rows) + "\n")


def test_requests_that_fail_are_neither_throughput_nor_recovery(tmp_path: Path) -> None:
    load_a_server_that_fails(tmp_path, "EIO")
    found = parse(tmp_path, Timing(1.5, 3), Event(0.0, 1.5, 1.6))
    assert found.problems == () and found.operations
    assert found.throughput_kops == pytest.approx(found.throughput_mbps * 1e3 / 4096, rel=1e-3)
    failed = found.metrics["failed_requests"]
    assert failed and failed > 100 and found.metrics["recovery_s"] is None
    assert found.warnings == (
        f"failed requests: {failed:.0f}, which the disk counts as done: when it was back is not known",
    )


def test_requests_that_hang_and_then_fail_are_a_stall(tmp_path: Path) -> None:
    load_a_server_that_fails(tmp_path, "EIO", "100%", after_s=2)
    found = parse(tmp_path, Timing(1.0, 3), Event(0.0, 1.0, 1.1))
    assert found.metrics["failed_requests"] and found.metrics["stall_s"] == pytest.approx(2)


def test_a_load_that_an_error_ends_is_invalid(tmp_path: Path) -> None:
    """fio goes on after EIO alone."""
    load_a_server_that_fails(tmp_path, "ENOSPC")
    (problem, *_) = parse(tmp_path, Timing(1.5, 3), Event(0.0, 1.5, 1.6)).problems
    assert problem.startswith("the load ended after 1.") and problem.endswith(" s of 3 s: No space left on device")


# ---- servers and NBD ------------------------------------------------------------------


def test_a_process_has_ended_with_its_last_thread() -> None:
    """It holds its device until then: on one CPU the next server found that in use."""
    first_ends = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start();"
        " ctypes.CDLL(None).pthread_exit(None)"
    )
    process = subprocess.Popen([sys.executable, "-c", first_ends])
    try:
        await_up("its first thread does not end", lambda: start_time(process.pid) == 0)
        assert has_threads(process.pid)
        process.kill()
        await_up("its other thread does not end", lambda: not has_threads(process.pid))
    finally:
        process.kill()
        process.wait(LIMIT)
    assert not has_threads(process.pid)


def test_a_killed_server_is_no_dead_one_once_another_serves() -> None:
    servers = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        disk = BlockDevice("/dev/x", "x", "x", 0, 0, 512, False, "")
        running = Running(used=disk, server=servers[0].pid, server_started=start_time(servers[0].pid))
        running.restart = lambda: servers[1].pid
        with pytest.raises(BringUpError, match="/dev/x: its framework does not support replace"):
            running.change_server("replace")
        assert servers[0].poll() is None
        running.change_server("kill")
        assert running.server == servers[1].pid and not running.server_died()
        assert servers[0].wait(LIMIT) == -9
        servers[1].kill()
        servers[1].wait()
        assert running.server_died()
        # One that had ended before its start could be read.
        assert Running(used=disk, server=servers[1].pid, server_started=0).server_died()
    finally:
        for server in servers:
            server.kill()
            server.wait()


def test_netlink_attributes_are_padded_and_nested() -> None:
    packed = attribute(2, b"nbd\0") + attribute(1, struct.pack("=H", 7)) + attribute(3, b"12345")
    assert len(packed) % 4 == 0
    assert attributes(packed) == {2: b"nbd\0", 1: struct.pack("=H", 7), 3: b"12345"}
    with socket.socket(socket.AF_UNIX) as one:
        (items,) = attributes(connections_attribute([one])).values()
        (item,) = attributes(items).values()
        assert attributes(item) == {1: struct.pack("=I", one.fileno())}


def test_the_handshake_with_a_real_server(tmp_path: Path) -> None:
    path, pidfile = tmp_path / "s", tmp_path / "pid"
    argv = ["nbdkit", "-f", "-U", str(path), "-P", str(pidfile), "memory", "1M"]
    server = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    try:
        wait_until("nbdkit listens", pidfile.exists, LIMIT, process=server)
        connection, size, flags = open_export(path)
        assert size == 1 << 20 and flags & 1
        # NBD_CMD_READ of the first block.
        connection.sendall(struct.pack(">IIQQI", 0x25609513, 0, 1, 0, 512))
        reply = connection.recv(16 + 512, socket.MSG_WAITALL)
        assert struct.unpack(">IIQ", reply[:16]) == (0x67446698, 0, 1) and not any(reply[16:])
        connection.close()
    finally:
        server.terminate()
        server.wait()


def test_what_is_no_server_is_refused(tmp_path: Path) -> None:
    ours, theirs = socket.socket(socket.AF_UNIX), tmp_path / "s"
    ours.bind(str(theirs))
    ours.listen()

    def answer() -> None:
        with ours.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n")

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(BringUpError, match="is not a newstyle NBD server"):
        nbd_netlink.open_export(theirs)
    thread.join()
    ours.close()
