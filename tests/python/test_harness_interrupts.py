# SPDX-License-Identifier: BSD-3-Clause
"""An interrupt ends a campaign whatever its cleanup meets: nothing is measured after it, and the end says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from interrupted import interrupt_then, interrupts
from loops import LIMIT
from runner_process import plan_for
from userblk.harness.cli import doctor
from userblk.harness.machine import teardown
from userblk.harness.machine.interrupt import Interrupted, outranks
from userblk.harness.machine.subprocesses import CommandError
from userblk.harness.machine.teardown import Teardown, TeardownError
from userblk.harness.model.plan import Plan
from userblk.harness.running import campaign
from userblk.harness.running import runner as runner_module
from userblk.harness.running.campaign import RunnerProcess
from userblk.harness.running.runner import Runner
from userblk.harness.systems import Running
from waiting import wait_until

STAYS = CommandError("fio (pid 1) does not end, even by SIGKILL")


def events_of(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_an_error_does_not_take_the_place_of_an_interrupt() -> None:
    with interrupts():
        with pytest.raises(CommandError), outranks():
            raise STAYS
        with pytest.raises(Interrupted) as caught, outranks():
            interrupt_then(STAYS)
        assert caught.value.number == signal.SIGINT and caught.value.__cause__ is STAYS
        with pytest.raises(Interrupted), outranks():
            raise AssertionError("it goes on all the same")
    with pytest.raises(CommandError), outranks():
        raise STAYS


@pytest.fixture
def plan(device: str, tmp_path: Path) -> Plan:
    return plan_for(device, tmp_path / "c")


@pytest.mark.parametrize("error", [STAYS, OSError(22, "Invalid argument"), subprocess.TimeoutExpired("umount", 60)])
def test_an_interrupt_whose_cleanup_fails_ends_the_campaign(
    error: Exception,
    plan: Plan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is no failed run after which the next one begins, with a ^C that nobody hears any more."""
    monkeypatch.setattr(Runner, "measure", lambda *_: interrupt_then(error))
    with interrupts():
        assert Runner(plan, tmp_path / "c").run() == 128 + signal.SIGINT
    events = events_of(capsys)
    kinds = [event["event"] for event in events if event["event"] != "environment"]
    assert kinds[kinds.index("start") :] == ["start", "entry-start", "note", "end"]
    assert events[-1]["interrupted"] is True and events[-1]["failed"] == 0
    assert str(error) in events[-2]["text"]
    assert not (tmp_path / "c" / plan.directory(plan.entries[0])).exists()


def test_what_stays_after_an_interrupt_is_told_beside_it(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unwind = Teardown.unwind

    def leaves(teardown: Teardown, mark: int = 0) -> None:
        unwind(teardown, mark)
        if not mark:
            raise TeardownError("unmount /run/userblk/m: target is busy")

    monkeypatch.setattr(Runner, "measure", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    monkeypatch.setattr(Teardown, "unwind", leaves)
    with interrupts():
        assert Runner(plan, tmp_path / "c").run() == 128 + signal.SIGINT
    assert "target is busy" in events_of(capsys)[-2]["text"]


def test_a_disk_that_cannot_be_failed_is_torn_down(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what the run itself had set up."""
    runner, undone = Runner(plan, tmp_path / "c"), tmp_path / "undone"
    undone.mkdir()

    def fail_io() -> NoReturn:
        raise OSError(22, "Invalid argument")

    def measure(*_: object) -> NoReturn:
        runner.teardown.push("remove_tree", path=str(undone))
        raise CommandError("fio failed")

    running = Running(runner_module.check(*_named(plan)), ended=lambda: True, fail_io=fail_io)
    runner.devices["sata"] = running.used
    monkeypatch.setattr(Runner, "measure", measure)
    monkeypatch.setattr(runner_module, "device_engine", lambda _: SimpleNamespace(prepare=lambda _: (None, {})))
    monkeypatch.setattr(runner, "profile_of", lambda _: plan.profile)
    assert runner.run_entry(plan.entries[0], running, "0.1", False) is False
    assert not undone.exists() and runner.teardown.steps == []


def _named(plan: Plan) -> tuple[str, str]:
    return plan.devices["sata"].path, plan.devices["sata"].confirm


# ---- from outside ---------------------------------------------------------------------

TEARS_DOWN = """
import json, sys, time
from pathlib import Path
from userblk.harness.machine import interrupt, teardown
teardown.RUN = Path(sys.argv[1])
interrupt.install()
stack, seconds = teardown.Teardown(), [float(word) for word in sys.argv[2:]]

@teardown.undo
def takes(s: float) -> None:
    time.sleep(s)

for s in seconds:
    stack.push("takes", s=s)
try:
    print(json.dumps({"event": "start"}), flush=True)
    time.sleep(60)
finally:
    stack.unwind()
    print(json.dumps({"event": "note", "text": "all is torn down"}), flush=True)
"""


# The same, but all of it is in the journal of a runner that was killed.
RECOVERS = TEARS_DOWN.replace(
    "try:\n",
    "gone = teardown.RUN / 'journal-1-1.json'\n"
    "stack.journal.rename(gone)\n"
    "with interrupt.held():\n"
    "    print(json.dumps({'event': 'note', 'text': 'recovers'}), flush=True)\n"
    "    teardown.recover()\n"
    "try:\n",
)


def stopped(
    directory: Path, monkeypatch: pytest.MonkeyPatch, *seconds: float, program: str = TEARS_DOWN
) -> tuple[int, list[str]]:
    """The exit code of a runner that tears down in so many seconds each, and what the user sees meanwhile."""
    monkeypatch.setattr(teardown, "RUN", directory)
    monkeypatch.setattr(campaign, "STOP_LIMIT", 0.5)
    monkeypatch.setattr(campaign, "STEP_LIMIT", 5.0)
    monkeypatch.setattr(campaign, "TELL_S", 1.0)
    words = [sys.executable, "-c", program, str(directory), *map(str, seconds)]
    runner, said = RunnerProcess(words), list[str]()
    next(event for event in runner.events(LIMIT) if event)
    runner.stop(said.append)
    return runner.wait(), said


def test_who_tears_down_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it gets on: an umount alone may take minutes."""
    code, said = stopped(tmp_path, monkeypatch, 1.5, 2.5, 2.5)
    assert code == 1 and "all is torn down" in said, said  # by Interrupted, which nobody catches there
    assert "Still tearing down, 3 things to go: takes 2.5" in said


def test_who_tears_down_what_others_left_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, said = stopped(tmp_path, monkeypatch, 1.5, 2.5, 2.5, program=RECOVERS)
    assert "Still tearing down, 3 things to go: takes 2.5" in said and "got no further" not in " ".join(said)
    assert not list(tmp_path.glob("journal-*"))


def test_what_is_left_of_earlier_runners_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = stopped(tmp_path, monkeypatch, 1.0, 600.0, program=RECOVERS)
    assert code == 128 + signal.SIGKILL
    assert said[-1] == (f"{tmp_path} notes what is left: takes 600.0; takes 1.0. userblk resume tears that down first.")


def test_what_a_killed_runner_leaves_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = stopped(tmp_path, monkeypatch, 1.0, 600.0)
    (journal,) = tmp_path.glob("journal-*.json")
    assert code == 128 + signal.SIGKILL
    assert said[-1] == f"{journal} notes what it left: takes 600.0; takes 1.0. userblk resume tears that down first."
    (found,) = [one for one in doctor.examine() if one.kind == "journal"]
    assert str(journal) in found.name and [need.what for need in found.missing] == ["takes 600.0", "takes 1.0"]
    journal.write_text("")
    (need,) = doctor.left_needs(journal)
    assert not need.met and "remove it" in need.fix


def test_a_runner_that_does_not_listen_yet_ends_without_a_word(tmp_path: Path) -> None:
    """A traceback of its imports would be shown."""
    code = "import sys, time; from pathlib import Path; Path(sys.argv[1]).touch(); time.sleep(60)"
    runner, said = RunnerProcess([sys.executable, "-c", code, str(tmp_path / "began")]), list[str]()
    wait_until("it has begun", (tmp_path / "began").exists, LIMIT)
    runner.stop(said.append)
    assert said == [] and runner.wait() == 128 + signal.SIGTERM


@pytest.mark.parametrize("code", ["pass", 'print(\'{"event": "note", "text": "x"}\'); input()'])
def test_events_come_to_their_end_after_a_stop(code: str) -> None:
    """The thread that iterates them may come back to them only then."""
    runner, said = RunnerProcess([sys.executable, "-c", code], until_eof=True), list[str]()
    runner.stop(said.append)
    for number, event in enumerate(runner.events(0.01)):
        assert event is None and number < 100, "they have no end"


def test_what_a_runner_says_at_its_end_is_left_to_the_thread_that_reads() -> None:
    code = "import json, sys; sys.stdin.read(); print(json.dumps({'event': 'note', 'text': 'x'}))"
    runner, said = RunnerProcess([sys.executable, "-c", code], until_eof=True), list[str]()
    runner.end(said.append)
    assert said == [] and [event and event["text"] for event in runner.events(0.0)] == ["x"]


def test_a_process_that_holds_the_streams_open_does_not_keep_the_events() -> None:
    """As ssh's connection that others share does."""
    code = "import subprocess; subprocess.Popen(['sleep', '20'], start_new_session=True)"
    runner, said = RunnerProcess([sys.executable, "-c", code], until_eof=True), list[str]()
    runner.end(said.append)
    for number, _ in enumerate(runner.events(0.01)):
        assert number < 100, "they have no end"
