# SPDX-License-Identifier: BSD-3-Clause
"""userblk explain: from what perf prints to instructions by place, flame graphs and the life of a request."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from made_up import small_plan
from userblk.analysis import flame, stages
from userblk.analysis.explain import Explained, functions, places
from userblk.analysis.explain import stages as stages_report
from userblk.harness.cli.explain import check_kernel, narrowed
from userblk.harness.cli.run import lab_tree
from userblk.harness.model.config import load_suite, load_system
from userblk.harness.model.plan import Plan
from userblk.harness.model.tables import ConfigError
from userblk.harness.observing import perf_script
from userblk.harness.observing.instructions import Place, Profile, Sides, profile, without_delayed
from userblk.harness.running.explain_runner import PASSES, PLAIN, SAMPLED, TRACED, perf_argv
from userblk.lab import Variant, rootfs


def simulated() -> Plan:
    return small_plan(model=MODEL, repetitions=2, workloads=["rand-read-1th-4k", "seq-read-1th-4k"])


MODEL = "cpu-3 sata-2 nvme-2"
SIDES = Sides(application="fio", server=70, device="43,0", backing="252,1")

# As perf 6.12 prints it. 3 of the 11 samples in the window are idle.
SAMPLES = """
fio     50/51      1.000000000: cpu-clock:
\t    7f0000001000 pread64 (/usr/lib/libc.so.6)
\t           12345 [unknown] (/usr/bin/fio)

fio     50/51      1.000010000: cpu-clock:
\tffffffff81000010 copy_page ([kernel.kallsyms])
\tffffffff81000020 vfs_read ([kernel.kallsyms])
\t    7f0000001000 pread64 (/usr/lib/libc.so.6)

fio     50/51      1.000020000: cpu-clock:
\tffffffff81000010 copy_page ([kernel.kallsyms])
\tffffffff81000020 vfs_read ([kernel.kallsyms])

nbdkit  70/71      1.000030000: cpu-clock:      7f0000002000 [unknown] (/usr/sbin/nbdkit)
nbdkit  70/72      1.000040000: cpu-clock:
\tffffffff81000030 tcp_sendmsg ([kernel.kallsyms])

kworker/0:1H-kblockd  33/33 1.000050000: cpu-clock:
\tffffffffc0000030 recv_work ([nbd])

swapper     0/0    1.000060000: cpu-clock:
\tffffffff81000040 handle_softirqs ([kernel.kallsyms])

sh          9/9    1.000070000: cpu-clock:
\tffffffff81000010 copy_page ([kernel.kallsyms])
\t          400000 main (/usr/bin/dash)

swapper     0/0    1.000080000: cpu-clock:
\tffffffff81000050 pv_native_safe_halt ([kernel.kallsyms])
\tffffffff81000060 do_idle ([kernel.kallsyms])

swapper     0/0    1.000090000: cpu-clock:      ffffffff81000050 pv_native_safe_halt ([kernel.kallsyms])
swapper     0/0    1.000100000: cpu-clock:      ffffffff81000050 pv_native_safe_halt ([kernel.kallsyms])
fio     50/51      2.000000000: cpu-clock:      7f0000001000 pread64+0x12 (/usr/lib/libc.so.6)
"""


def of_samples(text: str = SAMPLES) -> Profile:
    return profile("nbdkit", list(perf_script.records(text.splitlines())), SIDES, (1.0, 1.9), 8000)


def test_instructions_by_place() -> None:
    found = of_samples()
    assert found.samples == 11 and found.idle == pytest.approx(3 / 11)
    assert found.places() == {
        Place.APPLICATION: 1000,
        Place.APPLICATION_KERNEL: 2000,
        Place.SERVER: 1000,
        Place.SERVER_KERNEL: 1000,
        Place.KERNEL: 2000,
        Place.OTHERS: 1000,
    }


def test_stacks_are_folded_from_the_outermost_function_on() -> None:
    found = of_samples()
    assert found.paths["kernel, for the application", "fio", "vfs_read", "copy_page"] == 2000
    assert found.paths["application", "fio", "pread64"] == 1000
    assert found.paths["server", "nbdkit", "in nbdkit"] == 1000  # of a program without symbols its file is known
    assert found.functions()["kernel, for the application", "copy_page"] == 2000


def sampled(timer: int, share: float) -> list[perf_script.Record]:
    """One of seven timers' samples, each 70 us over 0.35 s: this share in the application, the others in the kernel."""
    user = perf_script.Frame("get_io_u", "/usr/bin/fio", False)
    kernel = perf_script.Frame("vfs_read", "[kernel.kallsyms]", True)
    records = []
    for number in range(5000):
        stack = (user if int((number + 1) * share) > int(number * share) else kernel,)
        time = 1 + (70 * number + 10 * timer) / 1e6
        records.append(perf_script.Record("fio", 50, 51, time, f"clock{timer}", stack, ""))
    return records


def test_timers_that_requests_keep_step_with_do_not_count() -> None:
    shares = (0.3, 0.31, 0.95, 0.29, 0.0, 0.3, 0.3)  # the third finds the application only, the fifth never does
    each = (sampled(timer, share) for timer, share in enumerate(shares))
    records = sorted((one for timer in each for one in timer), key=lambda one: one.time)
    found = profile("native", records, SIDES, (1.0, 1.5), 10_000).places()
    assert found[Place.APPLICATION] == pytest.approx(3000, rel=0.01)
    assert sum(found.values()) == pytest.approx(10_000)


def test_a_sample_that_waited_for_another_one_does_not_count() -> None:
    frame = (perf_script.Frame("vfs_read", "[kernel.kallsyms]", True),)
    first = perf_script.Record("fio", 50, 51, 1.0, "clock1", frame, "")
    late = replace(first, time=first.time + 1.1e-6, event="clock2")
    later = replace(first, time=late.time + 1.1e-6, event="clock3")
    elsewhere = replace(later, tid=52)
    apart = replace(elsewhere, time=elsewhere.time + 2e-6)
    assert without_delayed([first, late, later, elsewhere, apart]) == [first, elsewhere, apart]


def test_a_command_may_look_like_an_address() -> None:
    text = "dd  220/220  2.609805424: raw_syscalls:sys_enter: NR 59 (7fffffff8d10, 7fffffffeac0, 0)"
    (found,) = perf_script.records([text])
    assert (found.command, found.tid, found.event) == ("dd", 220, "raw_syscalls:sys_enter")


def trace(events: Iterable[tuple[float, str, str, str]]) -> list[perf_script.Record]:
    """Records of time in us, thread ("fio 50/51"), event and its fields."""
    lines = [f"{thread} {1 + us / 1e6:.9f}: {event}: {text}" for us, thread, event, text in events]
    return list(perf_script.records(lines))


def request(us: float, sector: int = 80) -> list[tuple[float, str, str, str]]:
    """One that goes through a server and is over after 100 us."""
    fio, nbdkit, idle = "fio 50/51", "nbdkit 70/71", "swapper 0/0"
    return [
        (us, fio, "raw_syscalls:sys_enter", "NR 17 (6, 7f, 1000, 0, 0, 0)"),
        (us + 5, fio, "block:block_rq_issue", f"43,0 R 4096 () {sector} + 8 none,0,0 [fio]"),
        (us + 6, fio, "sched:sched_switch", "prev_comm=fio prev_pid=51 prev_prio=120 prev_state=S ==> next_comm=x"),
        (us + 15, nbdkit, "raw_syscalls:sys_exit", "NR 45 = 28"),
        (us + 18, nbdkit, "raw_syscalls:sys_enter", "NR 17 (6, 7f, 1000, 0, 0, 0)"),
        (us + 20, nbdkit, "block:block_rq_issue", f"252,1 R 4096 () {sector} + 8 none,0,0 [nbdkit]"),
        (us + 80, idle, "block:block_rq_complete", f"252,1 R () {sector} + 8 none,0,0 [0]"),
        (us + 85, nbdkit, "raw_syscalls:sys_exit", "NR 17 = 4096"),
        (us + 90, "kworker/0:1H 33/33", "block:block_rq_complete", f"43,0 R () {sector} + 8 none,0,0 [0]"),
        (us + 100, fio, "raw_syscalls:sys_exit", "NR 17 = 4096"),
    ]


def test_a_request_s_stages() -> None:
    events = [event for number in range(3) for event in request(200.0 * number, sector=8 * number)]
    found = stages.life("nbdkit", trace(events), SIDES, (1.0, 1.1))
    assert (found.requests, found.left_out) == (3, 0)
    assert [round(time, 3) for _, time in found.stages] == [5, 10, 5, 60, 10, 10]
    assert found.stages[1][0] == "request to its server" and found.total == pytest.approx(100)
    assert (found.switches, found.calls) == (1, 1)


def test_native_and_null_devices_have_fewer_stages() -> None:
    native = Sides("fio", 0, "", "252,1")
    of_device = [event for event in request(0) if "43,0" not in event[3] and not event[1].startswith("nbdkit 7")]
    issue = (20.0, "fio 50/51", "block:block_rq_issue", "252,1 R 4096 () 80 + 8 none,0,0 [fio]")
    events = sorted([*of_device, issue])
    found = stages.life("native", trace(events), native, (1.0, 1.1))
    assert [(name, round(time, 3)) for name, time in found.stages] == [
        ("system call to the device's request", 20),
        ("device", 60),
        ("device's answer to the application", 20),
    ]
    null = stages.life("null", trace(e for e in request(0) if "252,1" not in e[3]), SIDES, (1.0, 1.1))
    assert [round(time, 3) for _, time in null.stages] == [5, 10, 75, 10]


def over_fuse(number: str, events: Iterable[tuple[float, str, str, str]]) -> list[tuple[float, str, str, str]]:
    """The same with FUSE's trace points in place of the disk's. number: of requests as they are sent."""
    return [
        (time, thread, "fuse:fuse_request_send", f"connection 44 req {number} opcode 15 (FUSE_READ) len 80")
        if event.endswith("issue") and "43,0" in text
        else (time, thread, "fuse:fuse_request_end", "connection 44 req 6 len 4112 error 0")
        if event.endswith("complete") and "43,0" in text
        else (time, thread, event, text)
        for time, thread, event, text in events
    ]


@pytest.mark.parametrize("number", ["6", "0"])
def test_requests_of_fuse_are_known_by_their_numbers(number: str) -> None:
    """Linux 6.12 sends them without one: each answer is that of the oldest request, also of those that move no data."""
    opened = [
        (-9.0, "fio 50/51", "fuse:fuse_request_send", f"connection 44 req {number} opcode 14 (FUSE_OPEN) len 48"),
        (-8.0, "nbdkit 7/8", "fuse:fuse_request_end", "connection 44 req 4 len 32 error 0"),
        (-7.0, "fio 50/51", "fuse:fuse_request_send", "connection 44 req 0 opcode 2 (FUSE_FORGET) len 48"),
    ]
    two = [*opened, *over_fuse(number, request(0)), *over_fuse(number, request(200))]
    found = stages.life("fuse", trace(two), replace(SIDES, device=""), (0.9, 1.1))
    assert [round(time, 3) for _, time in found.stages] == [5, 10, 5, 60, 10, 10]
    assert (found.requests, found.left_out) == (2, 0)


def test_requests_that_change_names_are_followed_where_no_data_is_moved() -> None:
    named = [
        (time, thread, event, text.replace("15 (FUSE_READ)", "35 (FUSE_CREATE)"))
        for time, thread, event, text in over_fuse("6", request(0))
        if "252,1" not in text
    ]
    found = stages.life("nullfs", trace(named), replace(SIDES, device=""), (1.0, 1.1))
    assert [round(time, 3) for _, time in found.stages] == [5, 10, 75, 10]
    found = stages.life("fuse", trace([*named, *over_fuse("6", request(200))]), replace(SIDES, device=""), (1.0, 1.1))
    assert (found.requests, found.left_out) == (1, 0)
    assert [round(time, 3) for _, time in found.stages] == [5, 10, 5, 60, 10, 10]


def test_what_perf_wrote_twice_is_one_event() -> None:
    """Parts of a recording come twice, each event beside its like."""
    twice = [event for event in over_fuse("0", request(0)) for _ in range(2)]
    events = [*twice, *over_fuse("0", request(200))]
    found = stages.life("fuse", trace(events), replace(SIDES, device=""), (1.0, 1.1))
    assert [round(time, 3) for _, time in found.stages] == [5, 10, 5, 60, 10, 10]
    assert (found.requests, found.left_out, found.switches, found.calls) == (2, 0, 1, 1)


def test_what_is_not_followed_to_its_end_is_counted() -> None:
    odd = [event for event in request(400, 88) if "252,1" not in event[3]]
    found = stages.life("nbdkit", trace([*request(0), *request(200), *odd]), SIDES, (1.0, 1.1))
    assert (found.requests, found.left_out) == (2, 1)


def test_a_flame_graph_is_an_image_with_every_part() -> None:
    paths = {("server", "a", "f<int>"): 600.0, ("server", "a", "g"): 300.0, ("application", "x"): 100.0}
    root = ET.fromstring(flame.svg("A & B", paths, "ns"))
    titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["all: 1,000", "server: 900", "a: 900", "f<int>: 600", "g: 300", "application: 100", "x: 100"]
    widths = [float(element.attrib["width"]) for element in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert widths[1] == pytest.approx(0.9 * widths[0])


def test_a_differential_one_tells_what_is_more_and_what_is_less() -> None:
    text = flame.svg("t", {("k", "f"): 600.0, ("k", "g"): 100.0}, "ns", {("k", "f"): 100.0, ("k", "g"): 400.0})
    assert "f: 600, +500" in text and "g: 100, -300" in text and "k: 700, +200" in text
    fills = {
        title.split(":")[0]: rest.split('fill="')[1][:7]
        for title, rest in (one.split("</title>") for one in text.split("<title>")[1:])
    }
    red, blue = (
        (int(fills["f"][1:3], 16), int(fills["f"][5:7], 16)),
        (int(fills["g"][1:3], 16), int(fills["g"][5:7], 16)),
    )
    assert red[0] > red[1] and blue[1] > blue[0]


def test_the_tables() -> None:
    life = stages.life("nbdkit", trace(request(0)), SIDES, (1.0, 1.1))
    one = Explained("nbdkit", of_samples(), life, 7.0)
    by_place, by_function, by_stage = (
        make("NVMe w", "SIMULATED", [one]) for make in (places, functions, stages_report)
    )
    assert ("kernel, for the application", "", "2,000") in by_place.rows and ("all", "", "8,000") in by_place.rows
    assert by_function.rows[0][:3] == ("nbdkit", "copy_page (kernel, for the application)", "2,000")
    assert ("device", "us", "60.0") in by_stage.rows and ("all", "us", "100.0") in by_stage.rows
    assert "nbdkit 7 %" in by_stage.notes[-1]


def test_a_run_is_looked_at_in_a_way_for_each_pass() -> None:
    assert perf_argv(PLAIN, True) == []
    timers = [word for word in perf_argv(SAMPLED, True) if word.startswith("--event=cpu-clock/")]
    assert len({word.rpartition("name=")[2] for word in timers}) == 7  # a name tells which timer took a sample
    traced = next(word for word in perf_argv(TRACED, True) if word.startswith("--event="))
    assert "fuse:fuse_request_send" in traced and "fuse" not in " ".join(perf_argv(TRACED, False))


def test_the_cell_s_plan() -> None:
    plan = simulated()
    cell = narrowed(plan, MODEL, "nvme", "rand-read-1th-4k", ["nbdkit"])
    assert [(e.system, e.repetition) for e in cell.entries] == [(s, p) for s in ("native", "nbdkit") for p in PASSES]
    assert {entry.device for entry in cell.entries} == {"nvme"} and len({entry.seed for entry in cell.entries}) == 2
    assert len(list(cell.blocks())) == 2 and list(cell.systems) == ["native", "nbdkit"]


@pytest.mark.parametrize(
    ("device", "workload", "systems", "said"),
    [
        ("sda", "rand-read-1th-4k", None, "device=sda: the campaign has no such value; use one of sata, nvme"),
        ("nvme", "read", None, "workload=read: the campaign has no such value"),
        ("nvme", "rand-read-1th-4k", ["ublk"], "system=ublk: not in the campaign; use one of native, nbdkit"),
    ],
)
def test_what_the_campaign_has_not_is_refused(device: str, workload: str, systems: list[str] | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        narrowed(simulated(), MODEL, device, workload, systems)


def test_a_workload_of_two_suites_needs_one_to_be_named() -> None:
    """With SUITE=bdus systems on the device were shown beside those on a file system."""
    systems = [load_system(name) for name in ("native", "nbdkit", "fuse")]
    plan = small_plan(suite=load_suite("bdus"), model=MODEL, systems=systems, workloads=["rand-read-1th-4k"])
    with pytest.raises(ConfigError, match="workload=rand-read-1th-4k: is of bdus-block and bdus-fs; name one: --suite"):
        narrowed(plan, MODEL, "nvme", "rand-read-1th-4k", None)
    for suite, shown in (("bdus-block", ["native", "nbdkit"]), ("bdus-fs", ["native", "nbdkit", "fuse"])):
        cell = narrowed(plan, MODEL, "nvme", "rand-read-1th-4k", None, suite)
        assert ({entry.suite for entry in cell.entries}, list(cell.systems)) == ({suite}, shown)
        assert [workload.suite for workload in cell.suite.workloads] == [suite]
    with pytest.raises(ConfigError, match="system=fuse: cannot run rand-read-1th-4k; leave it out"):
        narrowed(plan, MODEL, "nvme", "rand-read-1th-4k", ["fuse"], "bdus-block")
    with pytest.raises(
        ConfigError, match="suite=ufs: has no rand-read-1th-4k in the campaign; use one of bdus-block, b"
    ):
        narrowed(plan, MODEL, "nvme", "rand-read-1th-4k", None, "ufs")


def test_a_campaign_in_real_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="was not simulated"):
        narrowed(replace(simulated(), model=""), MODEL, "nvme", "rand-read-1th-4k", None)


def test_a_campaign_of_other_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="was simulated by cpu-3 sata-2 nvme-2; the lab has cpu-4"):
        narrowed(simulated(), "cpu-4", "nvme", "rand-read-1th-4k", None)


@pytest.mark.parametrize("kernel", ["stable", "backports"])
def test_the_guest_of_a_plan_has_the_kernel_that_is_named(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its perf reads what it recorded, and another kernel's may not."""
    asked = list[Variant]()
    monkeypatch.setenv("LAB_KERNEL", kernel)
    monkeypatch.setattr(rootfs, "ensure_tree", asked.append)
    lab_tree(replace(simulated(), build="build/trixie"))
    assert asked == [Variant("trixie", kernel)]


def test_a_campaign_of_another_kernel_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "c/lab/nvme/s/native/w/1"
    run.mkdir(parents=True)
    check_kernel(tmp_path / "c", "6.12.118+deb13-amd64")  # it has no run
    (run / "summary.json").write_text(json.dumps({"kernel": "7.3.4+deb13-amd64"}))
    check_kernel(tmp_path / "c", "7.3.9+deb13-amd64")
    with pytest.raises(ConfigError, match=r"ran on Linux 7.3.4\+.*the lab has 6.12.118.*LAB_KERNEL=backports"):
        check_kernel(tmp_path / "c", "6.12.118+deb13-amd64")
