# SPDX-License-Identifier: BSD-3-Clause
"""Suite response: the open loop sees a stall, what loads are shares of, and latency over load as a table and figure."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_line import userblk
from loops import LIMIT, MIB, loop, run
from rich.console import Console
from runner_process import SIZE, finish, start
from userblk.analysis import report, response
from userblk.analysis.page import write_report
from userblk.analysis.summaries import read_campaign
from userblk.harness.engines import WorkloadError
from userblk.harness.engines.response import parse_open
from userblk.harness.machine import paths
from userblk.harness.model.config import Suite, Workload, load_profile, load_suite, load_system
from userblk.harness.model.plan import Device, Plan, estimate, make_plan, write_plan
from userblk.harness.observing.histogram import percentile
from waiting import wait_until

PROGRAM = paths.HOST_BUILD / "openloop/userblk-openloop"
SERVER = paths.HOST_BUILD / "fuse-disk/userblk-fuse-disk"
needs_program = pytest.mark.skipif(not PROGRAM.exists(), reason="userblk-openloop is not built: liburing is missing")
RATE, RUNTIME_S, STALL_S, STALLED_AFTER_S = 2500, 4, 1.0, 1.5
# Other tests do not keep what is stalled from serving at once what waited: beside them, that took up to 0.25 s.
AT_ONCE = ("chrt", "--rr", "1")


def open_loop(target: Path, results: Path, *options: str, prefix: Sequence[str] = ()) -> dict[str, Any]:
    words = ["--bs=4096", f"--size={64 * MIB}", f"--json={results}", *options, str(target)]
    subprocess.run([*prefix, PROGRAM, *words], check=True, timeout=LIMIT)
    found: dict[str, Any] = json.loads(results.read_text())
    return found


def bins(part: dict[str, Any]) -> dict[int, int]:
    return {int(name): count for name, count in part["bins"].items()}


@contextlib.contextmanager
def serving(tmp_path: Path, prefix: Sequence[str], *device: str) -> Iterator[tuple[Path, int]]:
    """A file that a server of ours serves, and the server."""
    if os.geteuid() or not SERVER.exists() or not Path("/dev/fuse").exists() or not shutil.which("fio"):
        pytest.skip("needs root, fio, /dev/fuse and userblk-fuse-disk")
    file = tmp_path / "disk"
    file.touch()
    argv = [*prefix, str(SERVER), "--clone-fd", str(file), *device]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        wait_until("the disk is served", lambda: file.stat().st_size == 64 * MIB, process=server)
        try:
            yield file, server.pid
        finally:
            server.send_signal(signal.SIGCONT)
            run("umount", str(file))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    with serving(tmp_path, AT_ONCE, "null", f"size={64 * MIB}") as found:
        yield found


def cpu_seconds(pid: int) -> float:
    """What a process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class Stall(threading.Thread):
    """Stops a process for STALL_S; seconds: how long by the clock."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.pid, self.seconds = pid, 0.0
        self.start()

    def run(self) -> None:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(2))  # this thread's
        time.sleep(STALLED_AFTER_S)
        os.kill(self.pid, signal.SIGSTOP)
        began = time.monotonic()
        time.sleep(STALL_S)
        self.seconds = time.monotonic() - began
        os.kill(self.pid, signal.SIGCONT)


@needs_program
def test_a_stall_is_in_the_tail_as_arithmetic_says(served: tuple[Path, int], tmp_path: Path) -> None:
    """The latencies of a stall's requests are spread evenly from all of it to nothing. A closed loop sees four."""
    file, pid = served
    stalling = Stall(pid)
    options = (f"--rate={RATE}", f"--runtime={RUNTIME_S}")
    found = open_loop(file, tmp_path / "o.json", *options, prefix=AT_ONCE)
    stalling.join()
    assert stalling.seconds == pytest.approx(STALL_S, rel=0.05)
    assert found["issued"] == pytest.approx(RATE * RUNTIME_S, rel=0.05) and found["errors"] == 0
    latencies = bins(found["latency_ns"])
    for percent in (99.9, 90):  # the rest of all requests were due earlier in the stall
        expected = stalling.seconds - (1 - percent / 100) * RUNTIME_S
        assert percentile(latencies, percent) / 1e9 == pytest.approx(expected, rel=0.05)

    argv = ["fio", "--name=closed", f"--filename={file}", "--rw=randread", "--bs=4k", "--direct=1", "--iodepth=4"]
    argv += ["--ioengine=io_uring", f"--size={64 * MIB}", "--time_based=1", f"--runtime={RUNTIME_S}"]
    argv += ["--output-format=json"]
    before = cpu_seconds(pid)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as fio:
        # Beside load fio takes seconds to begin.
        wait_until("fio reads", lambda: cpu_seconds(pid) >= before + 0.05, process=fio)
        stalling = Stall(pid)
        out, _ = fio.communicate(timeout=LIMIT)
    stalling.join()
    latency = json.loads(out)["jobs"][0]["read"]["clat_ns"]
    assert latency["max"] > 0.9 * STALL_S * 1e9 > 5 * latency["percentile"]["99.900000"]


@needs_program
def test_requests_arrive_as_a_poisson_process(tmp_path: Path) -> None:
    """The number N of requests scatters by the root of N; seeds repeat."""
    (tmp_path / "disk").write_bytes(bytes(64 * MIB))
    options = ("--rate=20000", "--runtime=0.3", "--ramp=0.1", "--threads=2")
    found = [open_loop(tmp_path / "disk", tmp_path / "o.json", *options, f"--seed={n}") for n in (1, 1, 2, 3)]
    counts = [one["issued"] for one in found]
    assert counts[0] == counts[1] and len(set(counts)) == 3
    assert all(abs(count - 6000) < 5 * 6000**0.5 for count in counts)


@needs_program
def test_mistakes_of_its_command_line_are_told(tmp_path: Path) -> None:
    mistakes: list[tuple[list[str], str]] = [
        (["--rate=0"], "--rate=0: must be a number from 0.001 to 100000000"),
        (["--json=none/r"], "--json=none/r: No such file or directory; name a file that can be written"),
        (["--rw=read"], "--rw=read: must be randread or randwrite"),
        ([], "FILE: missing"),
        (["--bs=4096", "--size=512", "--rate=1", "--runtime=1", "--json=x", "f"], "--size=512: is less than --bs=4096"),
    ]
    for words, text in mistakes:
        done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=LIMIT, cwd=tmp_path)
        assert done.returncode == 2 and text in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@needs_program
def test_results_that_can_no_longer_be_written_leave_the_former(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(bytes(MIB))
    out = tmp_path / "o.json"
    out.write_text("former")
    words = ["--bs=4096", f"--size={MIB}", "--rate=100", "--runtime=0.1", f"--json={out}", str(tmp_path / "disk")]
    limited = ["bash", "-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "-", str(PROGRAM), *words]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (1, f"userblk-openloop: {out}: File too large\n")
    assert out.read_text() == "former" and {path.name for path in tmp_path.iterdir()} == {"disk", "o.json"}


@needs_program
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_request_that_fails_for_lack_of_memory_is_one_of_many(tmp_path: Path) -> None:
    """The program took it for its own lack of memory, and ended."""
    image, out = tmp_path / "image", tmp_path / "o.json"
    image.touch()
    os.truncate(image, 64 * MIB)
    reads = ("-P", str(image), "-e", "trace=pread64", "-e", "inject=pread64:error=ENOMEM:when=3")
    with serving(tmp_path, ("strace", "-f", "-qq", *reads, "-o", os.devnull), "passthrough", str(image)) as (file, _):
        words = ["--bs=4096", f"--size={64 * MIB}", "--rate=200", "--runtime=1", f"--json={out}", str(file)]
        done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (1, f"userblk-openloop: {file}: Cannot allocate memory\n")
    found = json.loads(out.read_text())
    assert found["errors"] >= 1 and abs(found["issued"] - 200) < 5 * 200**0.5
    assert sum(bins(found["latency_ns"]).values()) == found["issued"]


# ---- the suite ------------------------------------------------------------------------


def suite_of(timing: dict[str, int], *ids: str) -> Suite:
    suite = load_suite("response")
    found = [dataclasses.replace(w, timing={"quick": timing}) for w in suite.workloads if w.id in ids]
    return dataclasses.replace(suite, workloads=tuple(found))


def plan_of(suite: Suite, device: str = "/dev/null", **changes: object) -> Plan:
    profile = dataclasses.replace(load_profile("quick"), area={"sata": SIZE}, **changes)  # type: ignore[arg-type]
    return make_plan(
        suite=suite,
        profile=profile,
        systems=[load_system("native")],
        devices=[Device("sata", device, str(SIZE))],
        campaign="test",
        build="build/host",
        host="here",
        repetitions=1,
    )


@pytest.mark.parametrize("reuse_system", [True, False])
def test_the_capacity_comes_first(reuse_system: bool) -> None:
    plan = plan_of(load_suite("response"), reuse_system=reuse_system)
    assert len(plan.entries) == 2 * (1 + 10)
    for mode in ("rand-read", "rand-write"):
        names = [entry.workload for entry in plan.entries if entry.workload.startswith(mode)]
        assert names[0] == f"{mode}-capacity" and names[1:] != sorted(names[1:])
    expected = estimate(plan)
    assert expected.seconds > 22 * 6 and expected.bytes_written["sata"] > 11 * 6 * 100_000_000


@needs_program
def test_loads_are_shares_of_what_was_found(tmp_path: Path) -> None:
    """On a loop device, and resumed: a capacity is kept."""
    if not shutil.which("fio"):
        pytest.skip("fio is not installed")
    (tmp_path / "image").mkdir()
    campaign = tmp_path / "c"
    campaign.mkdir()
    suite = suite_of({"ramp_s": 0, "runtime_s": 1}, "rand-read-capacity", "rand-read-20load")
    with loop(tmp_path / "image", SIZE) as device:
        plan = plan_of(suite, device)
        write_plan(plan, campaign)
        code, events, err = finish(start(campaign))
        assert (code, err) == (0, ""), events
        cells = {file.parts[-3]: json.loads(file.read_text()) for file in campaign.rglob("summary.json")}
        capacity = cells["rand-read-capacity"]["metrics"]["throughput_kops"]
        one = cells["rand-read-20load"]
        assert one["valid"], one["invalid"]
        assert one["settings"]["response"]["offered_kops"] == pytest.approx(capacity / 5, rel=1e-3)
        assert one["metrics"]["latency_p50_us"] > 0 and one["duration_s"] == 1
        (campaign / plan.directory(plan.entries[-1]) / "DONE").unlink()
        place = campaign / plan.directory(plan.entries[0])
        summary = json.loads((place / "summary.json").read_text())
        summary["metrics"]["throughput_kops"] = 9 * capacity
        (place / "summary.json").write_text(json.dumps(summary))
        assert finish(start(campaign))[0] == 0
    one = json.loads((campaign / plan.directory(plan.entries[-1]) / "summary.json").read_text())
    assert one["settings"]["response"]["capacity_kops"] == pytest.approx(capacity)


def test_no_load_without_a_capacity(tmp_path: Path) -> None:
    if not PROGRAM.exists():
        pytest.skip("userblk-openloop is not built: liburing is missing")
    (tmp_path / "image").mkdir()
    (tmp_path / "c").mkdir()
    with loop(tmp_path / "image", SIZE) as device:
        write_plan(plan_of(suite_of({"ramp_s": 0, "runtime_s": 1}, "rand-read-10load"), device), tmp_path / "c")
        code, events, _ = finish(start(tmp_path / "c"))
    assert code == 1
    assert [e["reason"] for e in events if e["event"] == "entry-failed"] == [
        "its capacity is not known: no run of rand-read-capacity is valid; resume to try that again"
    ]


LOAD = Workload("rand-read-95load", "randread", 1, 4096, "response", "response", load=95)


def results(**changes: object) -> dict[str, object]:
    value: dict[str, object] = {
        "version": "1", "rate": 1000.0, "runtime_s": 10.0, "measured_from": 5.0, "issued": 10000, "completed": 10000,
        "left": 0, "errors": 0, "most_in_flight": 3,
        "latency_ns": {"mean": 100000.0, "max": 200000, "bins": {"100000": 10000}},
        "lag_ns": {"mean": 100.0, "max": 900, "bins": {"100": 10000}},
    }  # fmt: skip
    return value | changes


def test_what_it_wrote_is_judged(tmp_path: Path) -> None:
    file = tmp_path / "openloop.json"

    def parsed(**changes: object) -> Any:
        file.write_text(json.dumps(results(**changes)))
        return parse_open(file, LOAD, 1.05)

    good = parsed()
    assert (good.problems, good.warnings, good.throughput_kops, good.latency_us) == ((), (), 1.0, 100.0)
    assert good.metrics["latency_p99.9_us"] == 100 and good.settings["load_percent"] == 95
    assert parsed(errors=2).problems == ("2 requests failed",)
    assert "not sustained: 1.000 kop/s were offered, 0.900 done" in parsed(completed=9000, left=1000).warnings[0]
    late = {"mean": 2e4, "max": 2e4, "bins": {"20000": 10000}}
    assert "20.0 of 100.0 us" in parsed(lag_ns=late).warnings[0]
    assert "no request" in parsed(latency_ns={"mean": 0.0, "max": 0, "bins": {}}, completed=0, issued=0).problems[0]
    file.write_text("{}")
    with pytest.raises(WorkloadError, match="openloop.json cannot be read"):
        parse_open(file, LOAD, 1.05)


# ---- as a table and curves -------------------------------------------------------------


def test_a_percentile_that_some_runs_lack_says_so(tmp_path: Path) -> None:
    for number, p99 in enumerate((100.0, 110.0, None), 1):
        write_run(tmp_path, "native", 50, number, p99, [])
    (one,) = response.reports(tmp_path)
    assert one.rows[0][7] == "105.0 ±63.5 (not in 1)" and one.rows[0][8] == "-"


def write_run(campaign: Path, system: str, load: int, number: int, p99: float | None, warnings: list[str]) -> None:
    directory = campaign / "here/nvme/response" / system / f"rand-read-{load}load" / str(number)
    directory.mkdir(parents=True)
    summary = {
        "schema": 1, "campaign": "c", "host": "here", "device": "nvme", "system": system, "profile": "quick",
        "suite": "response", "engine": "response", "repetition": number, "invalid": [],
        "workload": f"rand-read-{load}load", "emulated": False, "kernel": "6", "valid": True, "warnings": warnings,
        "metrics": {"throughput_kops": load, "latency_p50_us": (p99 or 0) / 4, "latency_p99_us": p99},
        "settings": {"response": {"offered_kops": float(load)}},
    }  # fmt: skip
    (directory / "summary.json").write_text(json.dumps(summary))
    (directory / "DONE").touch()


def test_latency_over_load(tmp_path: Path) -> None:
    assert response.reports(tmp_path) == []
    for system, factor in (("native", 1.0), ("nbdkit", 2.0)):
        for load in (10, 50, 95):
            for number in (1, 2):
                lines = ["not sustained: x"] if (system, load) == ("nbdkit", 95) else []
                write_run(tmp_path, system, load, number, factor * 100 / (1 - load / 100) + number, lines)
    (one,) = response.reports(tmp_path)
    assert [row[2:4] for row in one.rows[:3]] == [("Native", "10"), ("Native", "50"), ("Native", "95")]
    assert one.rows[-1][3] == "95*" and one.rows[-1][-1] == "-"
    assert one.rows[1][4:8] == ("50.000", "50.000 ±0.000", "50.4 ±1.6", "201.5 ±6.4")
    assert report.as_csv(one).splitlines()[1].startswith("nvme,rand-read,native,10,offered,2,10.0,")
    asked = {"campaign": "c", "created": "now", "seed": 1, "suite": "response", "systems": ["native", "nbdkit"]}
    (tmp_path / "plan.json").write_text(json.dumps({"profile": dataclasses.asdict(load_profile("quick"))}))
    (tmp_path / "campaign.json").write_text(json.dumps(asked))
    page, figures = write_report(read_campaign(tmp_path), tmp_path / "report", paths.CONFIGS)
    assert (figures / "response-nvme-rand-read.png").read_bytes()[1:4] == b"PNG"
    assert "<svg" in (figures / "response-nvme-rand-read.svg").read_text()
    text = page.read_text()
    assert "figures/response-nvme-rand-read.png" in text and "figures/response-nvme-rand-read.svg" in text
    assert "Latency over offered load" in text
    assert "<script" not in text

    # An artefact has them, too, without Tables 1 and 2.
    file = tmp_path.parent / f"{tmp_path.name}.tar.gz"
    done = userblk("bundle", str(tmp_path), "--output", str(file))
    assert done.returncode == 0, done.stderr
    with tarfile.open(file) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
        readme = packed.extractfile(f"{tmp_path.name}/README.md")
        assert readme is not None
        text = readme.read().decode()
    wanted = {f"tables/{name}" for name in ("response.md", "response.csv", "response-nvme-rand-read.png")}
    assert wanted <= names and "tables/table.md" not in names
    assert "`tables/response.md`" in text and "Latency over offered load" in text and "table-long" not in text


def test_wide_intervals_hide_neither_curves_nor_digits(tmp_path: Path) -> None:
    """Two runs that differ much have an interval far beyond both, and below 0."""
    for load, latencies in ((10, (200.0, 300.0)), (50, (400.0, 900_000.0))):
        for number, latency in enumerate(latencies, 1):
            write_run(tmp_path, "native", load, number, latency, [])
    (one,) = response.reports(tmp_path)
    figure = one.figures["response-nvme-rand-read"]()
    for axis in figure.axes:
        low, high = axis.get_ylim()
        for line in axis.get_lines():
            if line.get_marker() == "o":
                assert all(low <= value <= high for value in line.get_ydata()), (low, high)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(report.terminal(one))
    text = console.export_text()
    assert "…" not in text and "Device: NVMe, Mode: rand-read" in text
    for word in " ".join(" ".join(row[2:]) for row in one.rows).split():
        assert word in text, word
