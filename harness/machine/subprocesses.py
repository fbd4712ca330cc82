# SPDX-License-Identifier: BSD-3-Clause
"""External commands, of which argv, output, exit code and duration are always kept."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from .interrupt import held
from .teardown import Teardown, group_lives, holds_within, start_time

# How the names of variables begin that users set for themselves, and that change what programs do that are measured or
# make what is: of PostgreSQL and its clients, make, tar, mke2fs.
NOT_PASSED_ON = ("PG", "MAKE", "MFLAGS", "TAR_OPTIONS", "MKE2FS")


# Before a command: it gets SIGTERM when the process that started it dies, even by SIGKILL.
WITH_PARENT = ("setpriv", "--pdeathsig", "TERM", "--")


class CommandError(Exception):
    """A command failed; one line with its own last line."""


def now() -> str:
    """ISO 8601 with zone, to the millisecond."""
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def passed_on() -> dict[str, str]:
    """The environment of commands."""
    return {name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED_ON)}


def last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no message")


def end_in_words(code: int) -> str:
    """How a child has ended, which the number is negative for if it was a signal."""
    if code >= 0:
        return f"exit code {code}"
    named = {number.value: number.name for number in signal.Signals}
    return f"ended by {named.get(-code, f'signal {-code}')}"


class Process:
    """A running command: a server, or a workload that is waited for."""

    def __init__(self, record: dict[str, object], child: subprocess.Popen[bytes], errors: Path) -> None:
        self.record = record
        self.child = child
        self.errors = errors
        self.began = time.monotonic()
        self.pid = child.pid
        self.started = start_time(child.pid)

    def poll(self) -> int | None:
        code = self.child.poll()
        if code is not None and self.record["exit_code"] is None:
            self.record["exit_code"] = code
            self.record["duration_s"] = round(time.monotonic() - self.began, 3)
        return code

    def wait(self, patience: float) -> bool:
        """Has it ended within patience seconds?"""
        try:
            self.child.wait(patience)
        except subprocess.TimeoutExpired:
            return False
        self.poll()
        return True

    def ended(self, patience: float) -> bool:
        """Has it ended within patience seconds? Until poll() or wait(), its clock is there."""
        if self.child.returncode is not None:
            return True
        end = os.pidfd_open(self.pid)
        try:
            poll = select.poll()
            poll.register(end, select.POLLIN)
            return bool(poll.poll(1e3 * patience))
        finally:
            os.close(end)

    def fate(self) -> str:
        """Its name, how it has ended and what it said last."""
        code = self.poll()
        assert code is not None
        return f"{self.record['name']}: {end_in_words(code)}: {last_line(self.errors)}"

    def end(self) -> None:
        """SIGTERM to its process group, wait for all of that; SIGKILL only if that does not help: a killed fio leaves
        I/O behind. What one that has ended by itself has left in its group is meant to stay.
        """
        with held():
            if self.poll() is not None:
                return
            for number, patience in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 20.0)):
                with suppress(ProcessLookupError):  # none is left
                    os.killpg(self.pid, number)
                if holds_within(patience, lambda: self.poll() is not None and not group_lives(self.pid)):
                    return
        raise CommandError(f"{self.record['name']} (pid {self.pid}) does not end, even by SIGKILL")


class Recorder:
    """
    Runs commands and keeps DIRECTORY/commands.json and DIRECTORY/commands/NN-NAME.{out,err}.

    teardown: has each of them noted, so that one that outlives a killed runner is ended before the next campaign.
    """

    def __init__(self, directory: Path, teardown: Teardown | None = None) -> None:
        self.directory = directory
        self.teardown = teardown
        self.records: list[dict[str, object]] = []
        self.processes: list[Process] = []
        (directory / "commands").mkdir(parents=True, exist_ok=True)

    def spawn(
        self,
        argv: Sequence[str],
        *,
        teardown: Teardown | None = None,
        environment: Mapping[str, str] | None = None,
        first: Sequence[str] = (),
    ) -> Process:
        """Start a command in its own process group; it gets SIGTERM when this process dies, even by SIGKILL.

        teardown: note there that it has to be ended; None: as for all commands of this recorder. environment: beside
        what there is; it is not recorded. first: words of what becomes the command once it has done something. If this
        raises, also Interrupted, nothing runs: a caller that ends the command takes it inside held().
        """
        full = [*WITH_PARENT, *first, *argv]
        record, out, err = self._record(Path(argv[0]).name, full)
        process: Process | None = None
        try:
            with held(), out.open("wb") as stdout, err.open("wb") as stderr:
                try:
                    child = subprocess.Popen(
                        full,
                        stdin=subprocess.DEVNULL,
                        stdout=stdout,
                        stderr=stderr,
                        start_new_session=True,
                        env={**passed_on(), "LC_ALL": "C.UTF-8", **(environment or {})},
                    )
                except OSError as error:
                    raise CommandError(f"{argv[0]}: {error.strerror}; install it") from None
                process = Process(record, child, err)
                self.processes.append(process)
                if teardown := teardown or self.teardown:
                    teardown.push("end_process", pid=process.pid, started=process.started, name=str(record["name"]))
        except BaseException:
            if process:
                with suppress(CommandError):
                    process.end()
            raise
        return process

    def adopt(self, argv: Sequence[str], child: subprocess.Popen[bytes]) -> Process:
        """Record a command that was started elsewhere."""
        record, _, err = self._record(Path(argv[0]).name, argv)
        process = Process(record, child, err)
        self.processes.append(process)
        return process

    def _record(self, name: str, argv: Sequence[str]) -> tuple[dict[str, object], Path, Path]:
        """A command's record and the files of its output."""
        base = self.directory / "commands" / f"{len(self.records):02d}-{name}"
        out, err = base.with_suffix(".out"), base.with_suffix(".err")
        record: dict[str, object] = {"name": name, "argv": list(argv), "start": now(), "exit_code": None}
        record |= {"duration_s": None, "stdout": f"commands/{out.name}", "stderr": f"commands/{err.name}"}
        self.records.append(record)
        return record, out, err

    def run(self, argv: Sequence[str], *, timeout: float) -> str:
        """Run a command to its end and return its standard output. Raises CommandError."""
        process: Process | None = None
        try:
            with held():
                process = self.spawn(argv)
            if not process.wait(timeout):
                raise CommandError(f"{' '.join(argv)}: has not ended within {timeout:.0f} s")
        finally:
            if process:
                process.end()
        code = process.poll()
        if code:
            raise CommandError(f"{' '.join(argv)}: {end_in_words(code)}: {last_line(process.errors)}")
        return (self.directory / str(process.record["stdout"])).read_text(errors="replace")

    def save(self) -> None:
        """Write commands.json; once more, when commands have ended since."""
        for process in self.processes:
            process.poll()
        file = self.directory / "commands.json"
        try:
            file.write_text(json.dumps(self.records, indent=1) + "\n")
        except OSError:
            with suppress(OSError):
                file.unlink()  # half of it
            raise
