# SPDX-License-Identifier: BSD-3-Clause
"""A campaign in virtual time: each block of the plan in a guest of its own, several of them side by side.

Each guest is sealed (lab/run --sealed), knows its own block only and runs it from its beginning: the same block with
the same programs gives the same results, whatever else there is on this machine or in the campaign.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

from ..machine import interrupt
from ..machine.durable import append, sync_tree, write_json
from ..machine.filesystem import left_by_groups
from ..model.plan import CellId, Entry, Plan, write_plan
from ..observing.environment import meminfo
from .campaign import CAMPAIGN, Event, RunnerProcess, guest_mib, runner_argv
from .measuring import ENVIRONMENT
from .runner import (
    EVENTS,
    EXIT_DONE,
    EXIT_NOTHING,
    EXIT_PARTLY,
    EXIT_USAGE,
    clear,
    differences,
    exit_code,
    mark_done,
    no_space,
    of_session,
    valid_summary,
)
from .stopping import another_round

MIB = 1 << 20


def at_once(plan: Plan) -> int:
    """How many guests of a campaign in virtual time this machine has CPUs and memory for."""
    memory = meminfo()["MemAvailable"]
    if (left := left_by_groups()) is not None:
        memory = min(memory, left)
    return max(1, min(len(os.sched_getaffinity(0)), memory // (guest_mib(plan) * MIB)))


def _guest_at_the_beginning(directory: Path) -> Mapping[str, str]:
    """What the guests of a campaign consisted of when it was made; {} if it does not say."""
    path = directory / CAMPAIGN
    return json.loads(path.read_text()).get("guest") or {} if path.exists() else {}


class Guests:
    """As campaign.RunnerProcess, of which there is one for each block: events() of all together, wait() and stop().

    module: that runs in the guests, if it is not the suite's own. guest: what a guest would consist of now.
    """

    def __init__(
        self, plan: Plan, directory: Path, module: str = "", guest: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._module = module
        self._guest = guest
        self._began = _guest_at_the_beginning(directory)
        self._others: list[str] = []  # what guests consisted of instead: a warning each
        self._at_once = at_once(plan)
        self._lines: queue.SimpleQueue[tuple[int, Event | None]] = queue.SimpleQueue()
        self._running: dict[int, RunnerProcess] = {}
        self._listeners: list[threading.Thread] = []
        self._counts = {"done": 0, "invalid": 0, "failed": 0, "full": 0, "left_out": 0}
        self._skipped = 0
        self._odd = 0  # exit code of a guest that did not come to its end
        self._absent: set[CellId] = set()
        self._environment_seen = False

    def events(self, tick: float) -> Iterator[Event | None]:
        """What they say, and None at least every tick seconds."""
        entries = [entry for _, block in self._plan.blocks() if not all(map(self._valid, block)) for entry in block]
        self._skipped = len(self._plan.entries) - len(entries)
        yield self._keep("start", campaign=self._plan.campaign, entries=len(entries), skipped=self._skipped)
        while True:
            yield from self._blocks([block for block, _ in groupby(entries, key=lambda entry: entry.block)], tick)
            if self._odd:
                break
            self._plan, entries, event = another_round(
                self._plan, self._directory, lambda cell: cell not in self._absent
            )
            if not entries:
                break
            yield self._keep("extend", **event)
        yield self._keep("end", **self._counts, interrupted=False)

    def wait(self) -> int:
        """The exit code that one runner of all would have, or that of a guest which died."""
        if self._odd:
            return self._odd
        code = exit_code(self._counts, self._skipped)
        known = ("done", "invalid", "failed", "left_out")  # "full" is one of those that failed
        lost = len(self._plan.entries) - self._skipped - sum(self._counts[name] for name in known)
        return EXIT_PARTLY if code == EXIT_DONE and lost else code  # of guests that stopped before them

    def stop(self, tell: Callable[[str], None]) -> None:
        """End all guests; what they brought up ends with them."""
        for runner in self._running.values():
            runner.end(tell)
        for listener in self._listeners:
            listener.join(1.0)
        while not self._lines.empty():  # such as what could not be torn down; nobody else reads here
            _, event = self._lines.get()
            if event and event["event"] == "note":
                tell(event["text"])

    def _valid(self, entry: Entry) -> bool:
        return valid_summary(self._directory / self._plan.directory(entry))

    def _blocks(self, waiting: list[int], tick: float) -> Iterator[Event | None]:
        """Guests for these blocks, as many at a time as there is room for."""
        while waiting or self._running:
            while waiting and len(self._running) < self._at_once:
                if lacks := no_space(self._directory, 0):
                    yield self._keep("note", text=f"the campaign stops: {lacks}")
                    waiting, self._odd = [], EXIT_USAGE
                    break
                yield from self._changes()
                self._start(waiting.pop(0))
            if not self._running:
                break
            try:
                block, event = self._lines.get(timeout=tick)
            except queue.Empty:
                yield None
                continue
            if event is not None:
                if event["event"] == "start":  # it has its images: those of the look before it, if they still are
                    yield from self._changes()
                if (shown := self._heard(event)) is not None:
                    yield shown
                continue
            code = self._running.pop(block).wait()
            for brought_up in self._brought_up(block):
                sync_tree(brought_up)
            if code not in (EXIT_DONE, EXIT_NOTHING, EXIT_PARTLY):
                self._odd = self._odd or code

    def _brought_up(self, block: int) -> Iterator[Path]:
        return (self._directory / "blocks").glob(f"{block}.*")

    def _changes(self) -> Iterator[Event]:
        """What guests consist of that the campaign did not begin with: told once, and a warning of the campaign."""
        now = self._guest()
        lines = [line for line in differences(self._began, now, list(now)) if line not in self._others]
        for line in lines:
            yield self._keep("note", text=line)
        self._others += lines
        path = self._directory / ENVIRONMENT
        if lines and path.exists():
            environment = json.loads(path.read_text())
            environment["warnings"] = [*dict.fromkeys([*environment["warnings"], *lines])]
            write_json(path, environment)

    def _start(self, block: int) -> None:
        """From its beginning: with some of its runs left out the others would find another machine."""
        plan = self._plan.of_block(block)
        for old in (*self._brought_up(block), *(self._directory / plan.directory(entry) for entry in plan.entries)):
            clear(old)
        blocks = self._directory / "blocks"
        blocks.mkdir(exist_ok=True)
        given = write_plan(plan, blocks, f"{block}.json")
        with interrupt.held():
            runner = self._running[block] = RunnerProcess(runner_argv(plan, self._directory, given, self._module))

        def listen() -> None:
            for event in runner.events(60.0):
                if event is not None:
                    self._lines.put((block, event))
            self._lines.put((block, None))

        self._listeners = [one for one in self._listeners if one.is_alive()]
        self._listeners.append(threading.Thread(target=listen, daemon=True))
        self._listeners[-1].start()

    def _heard(self, event: Event) -> Event | None:
        """What to show of an event of one guest: one of them speaks for all about the machine."""
        kind = event["event"]
        if kind == "start":
            return None
        if kind == "end":
            for name in self._counts:
                self._counts[name] += event[name]
            return None
        if kind == "environment":
            found = event.pop("found")
            if self._environment_seen:
                return None
            self._environment_seen = True
            found = of_session(self._directory, found, event["warnings"])
            found["warnings"] = event["warnings"] = [*dict.fromkeys([*found["warnings"], *self._others])]
            write_json(self._directory / ENVIRONMENT, found)
        if kind == "entry-done":
            directory = self._directory / self._plan.directory(self._plan.entries[event["index"]])
            event["summary"]["campaign"] = self._plan.campaign  # which its guest did not know
            write_json(directory / "summary.json", event["summary"])
            mark_done(directory)
        if kind == "entry-left-out":
            self._absent.add(self._plan.entries[event["index"]].cell)
        self._write(event)
        return event

    def _keep(self, kind: str, **values: object) -> Event:
        event: Event = {"event": kind, "time": round(time.time(), 3), **values}
        self._write(event)
        return event

    def _write(self, event: Event) -> None:
        append(self._directory / EVENTS, json.dumps(event))
