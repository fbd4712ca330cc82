# SPDX-License-Identifier: BSD-3-Clause
"""sysbench's OLTP on a PostgreSQL server of our own, whose data lie on the file system under test.

The server is an unprivileged user's, listens on a socket in a private directory only, and ends with the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pwd
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..machine.filesystem import Memory
from ..machine.packages import installing
from ..machine.subprocesses import CommandError, Process, Recorder, end_in_words
from ..model.config import Parameter, Profile, Suite, SystemConfig, Workload
from ..model.parts import ENGINES, FILL_BYTES_PER_S, KINDS, Kind
from ..model.tables import Table
from ..observing import warmup
from ..observing.histogram import tails
from ..observing.warmup import Interval
from ..systems.base import await_up, find_program, scratch
from . import Result, WorkloadError
from .base import OF_APPLICATIONS, Run, sizes_of, with_fixed_values
from .flow import CREATE_LIMIT, Flow, duration_s, prepare_by

USERS = ("postgres", "nobody")  # whose server it is: the first that exists
PROGRAMS = Path("/usr/lib/postgresql")  # where Debian has them, by release
SCRIPT = "oltp_read_write"
SIZES = ("tables", "rows", "threads")
ROW_SIZE = 300  # bytes of a row with its indexes
PORT = 5432  # in the socket's name, whatever PGPORT says
READY_LINE = 7  # of postmaster.pid
SHUTDOWN_LIMIT = 600.0  # s, for the checkpoint
SQL = "pgsql"

INTERVAL = re.compile(r"^\[ (\d+)s \] thds: (\d+) tps: ([\d.]+) ", re.M)
BIN = re.compile(r"^ *([\d.]+) \|\**.* (\d+)$", re.M)


def server_program(name: str) -> str:
    """A program of the newest release that is installed, "" if none is."""
    found = sorted(PROGRAMS.glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    return str(found[-1]) if found else find_program(name) or ""


def user() -> pwd.struct_passwd:
    """Whose server it is. Raises CommandError."""
    for name in USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise CommandError(f"this machine has none of the users {', '.join(USERS)}, and PostgreSQL does not run as root")


def as_user(argv: Sequence[str]) -> list[str]:
    """A command of the user's; asks again to end with its parent, which a change of the user undoes."""
    who = user()
    ids = f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--clear-groups"
    return ["setpriv", *ids, "--pdeathsig=INT", "--", *argv]


@dataclasses.dataclass(frozen=True)
class Server:
    """Where a server's data and socket are."""

    data: Path
    socket: Path
    fsync: bool

    def start(self, recorder: Recorder, memory: Memory, run: Run) -> Process:
        """It takes connections when this returns. Raises CommandError, BringUpError."""
        argv = [server_program("postgres"), "-D", str(self.data), "-k", str(self.socket), "-p", str(PORT)]
        for setting in ("listen_addresses=", "unix_socket_permissions=0700", f"fsync={'on' if self.fsync else 'off'}"):
            argv += ["-c", setting]
        server = recorder.spawn(as_user(argv), teardown=run.teardown, first=memory.joined)
        await_up("the PostgreSQL server is not ready", self.ready, server)
        return server

    def ready(self) -> bool:
        with contextlib.suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return len(lines) > READY_LINE and lines[READY_LINE].strip() == "ready"
        return False

    def sysbench(self, workload: Workload, *words: str) -> list[str]:
        fixed = workload.fixed
        return [
            "sysbench",
            SCRIPT,
            f"--db-driver={SQL}",
            f"--{SQL}-host={self.socket}",
            f"--{SQL}-port={PORT}",
            f"--{SQL}-user=postgres",
            f"--{SQL}-db=postgres",
            f"--tables={fixed['tables']}",
            f"--table-size={fixed['rows']}",
            f"--threads={fixed['threads']}",
            *words,
        ]


def whole_seconds(workload: Workload, profile: Profile) -> int:
    """How long its clients run: sysbench has whole seconds only."""
    return math.ceil(duration_s(workload, profile))


def fatal_error(output: Path) -> list[str]:
    """What sysbench printed of why it cannot go on: after that, its prepare with several threads still exits with 0."""
    found = re.search(r"^FATAL: .*", output.read_text(errors="replace"), re.M)
    return [f"sysbench: {found[0]}"] if found else []


def parse(text: str, workload: Workload, profile: Profile) -> Result:
    """What sysbench printed. Its clients wait for each other in no way: n of them do n / rate seconds each.

    Raises WorkloadError.
    """
    version = re.match(r"(sysbench [\d.]+)", text)
    total = re.search(r"^ *transactions: +(\d+) ", text, re.M)
    if not version or not total:
        raise WorkloadError("sysbench's output has no count of transactions")
    ramp, threads = profile.files.ramp_s, workload.fixed["threads"]
    series, before = [], 0
    for end, _, rate in INTERVAL.findall(text):
        seconds = int(end) - before
        if before >= ramp:
            done = round(float(rate) * seconds)
            series.append(Interval(before - ramp, int(end) - ramp, done, threads * seconds * 1e6))
        before = int(end)
    warm_up = warmup.find(series, profile.fixed_warm_up)
    measured = [one for one in series if one.start >= warm_up.cut_s]
    length = sum(one.end - one.start for one in measured)
    operations = sum(one.operations for one in measured)
    errors = re.search(r"ignored errors: +(\d+) ", text)
    problems = [] if operations else ["no transaction was completed after the ramp"]
    conflicts = int(errors[1]) if errors else 0
    warnings = [f"conflicts: {conflicts} (transactions that collided with another and were repeated)"] * (conflicts > 0)
    whole = ramp == 0 and warm_up.cut_s == 0  # sysbench's histogram is
    bins = {round(float(ms) * 1e6): int(count) for ms, count in BIN.findall(text)}
    per_s = operations / (length or 1)
    return Result(
        throughput_kops=per_s / 1e3,
        throughput_mbps=0.0,
        latency_us=threads / per_s * 1e6 if per_s else 0.0,
        duration_s=length,
        operations=operations,
        measured_from=0,
        warm_up=warm_up,
        version=version[1],
        problems=tuple(problems),
        warnings=tuple(warnings),
        metrics=tails(bins) if whole else {},
        settings={"threads": threads, "transactions": int(total[1]), "conflicts": conflicts},
    )


def _workloads(suite: str, table: Table, profile: str) -> Iterator[Workload]:
    workloads, size = table.table("workloads"), sizes_of(table, profile)
    fixed = {name: size.integer(name, 1) for name in SIZES}
    size.end(SIZES)
    for name in list(workloads.values):
        one = workloads.table(name)
        fsync = one.boolean("fsync")
        one.end(("fsync",))
        yield Workload(
            name, threads=fixed["threads"], suite=suite, engine="postgresql", fixed={**fixed, "fsync": int(fsync)}
        )
    table.end(("name", "engine", "systems", "workloads", "sizes"))


class Postgresql(Flow):
    """Transactions of a server on a new ext4, or on a file system over it."""

    name = "postgresql"
    parameters = False
    operation = OF_APPLICATIONS
    history = None

    def suite(self, name: str, table: Table, profile: str, systems: tuple[str, ...]) -> Suite:
        return Suite(name, tuple(_workloads(name, table, profile)), systems)

    def fits(self, workload: Workload, system: SystemConfig, kind: Kind) -> bool:
        """The server is not root."""
        return super().fits(workload, system, kind) and kind.for_others is not None

    def system(self, system: SystemConfig) -> SystemConfig:
        return dataclasses.replace(system, options=[*system.options, *(KINDS[system.kind].for_others or ())])

    def run_text(self, workload: Workload, profile: Profile) -> str:
        ramp = profile.files.ramp_s
        return f"{ramp:g} s discarded + {whole_seconds(workload, profile) - ramp:g} s measured per run"

    def lacks(self, workload: Workload, build: str) -> str:
        if not server_program("initdb"):
            return f"PostgreSQL is not installed; {installing('postgresql')}"
        return "" if shutil.which("sysbench") else f"sysbench is not installed; {installing('sysbench')}"

    def with_values(
        self, workload: Workload, profile: Profile, parameters: Sequence[Parameter], devices: Sequence[str]
    ) -> Workload:
        needed = 2 * ROW_SIZE * workload.fixed["tables"] * workload.fixed["rows"] + (1 << 30)  # and its log
        return with_fixed_values(workload, profile, devices, "rows", workload.fixed["rows"], needed)

    def written(self, workload: Workload, profile: Profile, device: str) -> int:
        rows = workload.fixed["tables"] * workload.fixed["rows"]
        loaded = self.new_bytes(profile, device) + 2 * ROW_SIZE * rows
        return loaded + int(self.duration_s(workload, profile) * FILL_BYTES_PER_S)

    def programs(self, build: str) -> list[str]:
        return [program for program in (server_program("postgres"), shutil.which("sysbench") or "") if program]

    def make(self, run: Run, directory: Path, recorder: Recorder, memory: Memory) -> dict[str, object]:
        """The tables, by a server that ends again."""
        who = user()
        directory.parent.chmod(0o711)  # ours alone until now; the server passes it
        server = self.server(run, directory)
        server.data.mkdir(mode=0o700)
        os.chown(server.data, who.pw_uid, who.pw_gid)
        version = recorder.run([server_program("postgres"), "--version"], timeout=SHUTDOWN_LIMIT).strip()
        words = ["--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8", "--locale=C"]
        initdb = as_user([server_program("initdb"), "-D", str(server.data), *words])
        prepare_by(initdb, recorder, memory, run.running, CREATE_LIMIT)
        process = server.start(recorder, memory, run)
        filling = server.sysbench(run.workload, "prepare")
        prepare = prepare_by(filling, recorder, memory, run.running, CREATE_LIMIT)
        if fatal := fatal_error(recorder.directory / str(prepare.record["stdout"])):
            raise CommandError(fatal[0])
        os.kill(process.pid, signal.SIGINT)
        if not process.wait(SHUTDOWN_LIMIT):
            process.end()
            raise CommandError(f"the PostgreSQL server has not ended within {SHUTDOWN_LIMIT:.0f} s")
        return {"server": version}

    def server(self, run: Run, directory: Path) -> Server:
        who = user()
        socket = scratch(run.teardown)
        os.chown(socket, who.pw_uid, who.pw_gid)
        return Server(directory / "postgresql", socket, bool(run.workload.fixed["fsync"]))

    def begin(
        self, run: Run, mounted: Sequence[Path], recorder: Recorder, memory: Memory
    ) -> tuple[list[str], Callable[[], list[str]]]:
        server = self.server(run, mounted[0])
        process = server.start(recorder, memory, run)
        seconds = whole_seconds(run.workload, run.profile)
        words = (f"--time={seconds}", "--report-interval=1", "--histogram", f"--rand-seed={run.entry.seed}", "run")

        def problems() -> list[str]:
            code = process.poll()
            ended = [] if code is None else [f"the PostgreSQL server: {end_in_words(code)}"]
            return ended + fatal_error(self.output(run))

        return server.sysbench(run.workload, *words), problems

    def output(self, run: Run) -> Path:
        """What the measured sysbench has printed."""
        (found,) = run.directory.glob("commands/*-sysbench.out")
        return found

    def read_results(self, run: Run, results: Path) -> Result:
        return parse(self.output(run).read_text(errors="replace"), run.workload, run.profile)


ENGINES.add(Postgresql())
