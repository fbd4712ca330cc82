# SPDX-License-Identifier: BSD-3-Clause
"""A campaign on several machines side by side, over ssh, and its results in one directory.

Each host has a plan of its own: the same cells, its devices, its seed. Its runner is started by ssh, says what it does
on standard output, and ends when its standard input does: a lost connection leaves nothing running. What it has
written is fetched when it ends: its runs to CAMPAIGN/HOST/, where the tables look for them and compare each with the
native of its own host, everything else to CAMPAIGN/hosts/HOST/. Resuming goes on on every host.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

from ..machine import interrupt
from ..machine.durable import write_json
from ..model.config import Profile, Suite, SystemConfig
from ..model.hosts import Host, Hosts
from ..model.plan import Device, Plan, make_plan, read_plan, write_plan
from ..model.tables import ConfigError
from . import archive
from .campaign import Event, RunnerProcess, create
from .runner import EXIT_DONE, EXIT_NOTHING, EXIT_PARTLY, mark_done

FILE = "hosts.json"
DONE = "DONE"  # in a run's directory that is complete
SCHEMA = 1
DIRECTORY = "hosts"  # of what is not a run, below the campaign's
PATIENCE = 60.0  # s for a command that does no work
SSH_FAILED = 255


def _ssh(hosts: Hosts, host: Host, *words: str) -> list[str]:
    """ssh hands one string to a shell there."""
    return [*hosts.ssh, "-o", "BatchMode=yes", host.address, shlex.join(words)]


def _run(hosts: Hosts, host: Host, *words: str, given: bytes = b"") -> int:
    """Exit code of a short command there. Raises ConfigError if the host cannot be reached."""
    argv = _ssh(hosts, host, *words)
    try:
        done = subprocess.run(argv, input=given, capture_output=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{hosts.name}: {host.address}: cannot be reached: {error}") from None
    if done.returncode == SSH_FAILED:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise ConfigError(f"{hosts.name}: {host.address}: cannot be reached: {reason}")
    return done.returncode


def _is_checkout(hosts: Hosts, host: Host) -> bool:
    """Or an installation? Raises ConfigError if neither."""
    if not _run(hosts, host, "test", "-d", f"{hosts.userblk}/python/userblk"):
        return True
    if not _run(hosts, host, "test", "-d", f"{hosts.userblk}/lib/python3/dist-packages/userblk"):
        return False
    raise ConfigError(
        f"{hosts.name}: userblk={hosts.userblk}: on {host.address}, this is neither a checkout nor a prefix below which"
        " userblk is installed; correct it, or install userblk there"
    )


def make_plans(
    hosts: Hosts,
    *,
    suite: Suite,
    profile: Profile,
    systems: Sequence[SystemConfig],
    campaign: str,
    seed: int,
    options: Mapping[str, object],
) -> list[Plan]:
    """A plan for each host. options: of make_plan(). Raises ConfigError."""
    plans = []
    for number, host in enumerate(hosts.hosts):
        build = "build/host" if _is_checkout(hosts, host) else f"{hosts.userblk}/lib/userblk"
        devices = [Device(name, path, host.confirm[name]) for name, path in host.devices.items()]
        arguments = {"suite": suite, "profile": profile, "systems": systems, "devices": devices} | dict(options)
        plan = make_plan(
            campaign=campaign,
            build=build,
            host=host.id,
            seed=(seed + number) % (1 << 32),
            **arguments,  # type: ignore[arg-type]
        )
        plans.append(plan)
    return plans


def create_all(
    hosts: Hosts, plans: Sequence[Plan], results: Path, command: Sequence[str], named: Sequence[str] = ()
) -> Path:
    """The campaign's directory here, with all that is needed to resume it. named: as create()'s. Raises ConfigError."""

    def write(directory: Path) -> None:
        write_json(directory / FILE, {"schema": SCHEMA, **dataclasses.asdict(hosts)})
        for plan in plans:
            (directory / DIRECTORY / plan.host).mkdir(parents=True)
            write_plan(plan, directory / DIRECTORY / plan.host)

    return create(plans[0], results, command, named=named, before=write)


def read_hosts(directory: Path) -> Hosts:
    """Raises ConfigError."""
    file = directory / FILE
    try:
        value = json.loads(file.read_text())
        if value.pop("schema") != SCHEMA:
            raise ConfigError(f"{file}: another schema than {SCHEMA}; start a new campaign")
        return Hosts(**value | {"hosts": [Host(**host) for host in value["hosts"]]})
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None


@dataclass
class _Part:
    """
    A host's part of a campaign while it runs. code: the runner's, or that of what failed around it. over: nothing goes
    on any more. Not join(), which Python up to 3.12 takes for done once a signal handler has raised in it.
    """

    host: Host
    runner: RunnerProcess | None = None
    code: int = 1
    over: threading.Event = field(default_factory=threading.Event)


class MultiHostCampaign:
    """A campaign on several hosts. show(): called with the host's id and each event, from one thread at a time."""

    def __init__(self, hosts: Hosts, directory: Path, show: Callable[[str, Event], None]) -> None:
        self.hosts = hosts
        self.directory = directory
        self._show = show
        self._showing = threading.Lock()
        self._parts = [_Part(host) for host in hosts.hosts]
        self._starting = threading.Lock()  # a runner, or the end of all
        self._stopping = False

    def run(self) -> dict[str, int]:
        """What is not done yet, on all hosts at once. The runners' exit codes by host."""
        try:
            with interrupt.held():
                for part in self._parts:
                    threading.Thread(target=self._guarded, args=(part,), daemon=True).start()
            for part in self._parts:
                while not part.over.wait(0.2):  # so that signals are seen
                    pass
        except BaseException:
            self._stop()
            for part in self._parts:
                part.over.wait()
            raise
        return {part.host.id: part.code for part in self._parts}

    def _stop(self) -> None:
        with self._starting:
            self._stopping = True
        for part in self._parts:
            if part.runner:
                part.runner.end(partial(self._tell, part.host))  # its thread shows what it says

    def _tell(self, host: Host, text: str) -> None:
        with self._showing:
            self._show(host.id, {"event": "note", "text": text})

    def _guarded(self, part: _Part) -> None:
        try:
            part.code = self._carry_out(part)
        except ConfigError as error:
            self._tell(part.host, str(error))
        except (OSError, tarfile.TarError) as error:
            self._tell(part.host, f"its results cannot be fetched: {error}")
        finally:
            part.over.set()

    def _carry_out(self, part: _Part) -> int:
        hosts, host = self.hosts, part.host
        there = f"{hosts.directory}/{self.directory.name}/{host.id}"  # which hosts may share
        plan = (self.directory / DIRECTORY / host.id / "plan.json").read_bytes()
        # One that is there already may have more rounds than ours.
        script = f"mkdir -p {shlex.quote(there)} && cd {shlex.quote(there)} && "
        script += "{ test -e plan.json || { cat > plan.json.new && mv plan.json.new plan.json; }; }"
        if _run(hosts, host, "sh", "-c", script, given=plan):
            raise ConfigError(f"{hosts.name}: directory={hosts.directory}: cannot be written on {host.address}")
        python = "python" if _is_checkout(hosts, host) else "lib/python3/dist-packages"
        words = ["env", f"PYTHONPATH={hosts.userblk}/{python}", "python3", "-m", "userblk.harness.running.runner"]
        argv = _ssh(hosts, host, *words, "--until-eof", f"{there}/plan.json")
        with self._starting:
            if self._stopping:
                return EXIT_NOTHING
            part.runner = RunnerProcess(argv, until_eof=True)
        for event in part.runner.events(1.0):
            if event:
                with self._showing:
                    self._show(host.id, event)
        code = part.runner.wait()
        if code == SSH_FAILED:
            self._tell(host, "the connection was lost; the runs there end by themselves")
            return EXIT_PARTLY
        if part.runner.killed:
            return EXIT_PARTLY  # as was said; the runner there still writes
        self._fetch(host, there)
        return code

    def _fetch(self, host: Host, there: str) -> None:
        """Everything that the host has of the campaign. Raises ConfigError, OSError, tarfile.TarError."""
        argv = _ssh(self.hosts, host, "tar", "-C", there, "-cf", "-", ".")
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            assert process.stdout
            done = []
            with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
                for member in tar:
                    if member.name in (".", "./"):
                        continue
                    path = archive.checked(host.address, member)
                    target = self.directory / self._place(host, path)
                    if path.name == DONE:
                        done.append(target)
                        continue
                    if member.isdir():
                        (target / DONE).unlink(missing_ok=True)  # of an earlier fetch: half of a run must not count
                    archive.take_out(tar, member, target)
                while process.stdout.read(1 << 20):
                    pass
            if process.wait():
                raise ConfigError(f"{self.hosts.name}: {host.address}: its results were not fetched as a whole")
            for mark in done:  # when the rest of the run is here
                mark_done(mark.parent)

    @staticmethod
    def _place(host: Host, path: PurePosixPath) -> Path:
        """Runs where the analysis looks for them, the rest beside that of the other hosts."""
        return Path(path) if path.parts[0] == host.id else Path(DIRECTORY, host.id, path)


def exit_code_of_all(codes: Iterable[int]) -> int:
    """
    The exit code of several runners: their own if they agree, that of one that was ended, or else whether any run was
    done.
    """
    found = set(codes)
    if len(found) < 2 or max(found) > EXIT_PARTLY:
        return max(found, default=EXIT_DONE)
    return EXIT_PARTLY if found & {EXIT_DONE, EXIT_PARTLY} else EXIT_NOTHING


def is_one(directory: Path) -> bool:
    """Is it a campaign on several hosts?"""
    return (directory / FILE).exists()


def plans_of(directory: Path) -> dict[str, Plan]:
    """As far as they are known here."""
    return {path.parent.name: read_plan(path) for path in sorted(directory.glob(f"{DIRECTORY}/*/plan.json"))}
