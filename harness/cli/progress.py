# SPDX-License-Identifier: BSD-3-Clause
"""What the user sees while a campaign runs: the table growing and a bar, or plain lines, or JSON lines."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text
from userblk.analysis.render import grids
from userblk.analysis.summaries import Run, SummaryError, run_from_summary
from userblk.analysis.tabulate import make_tables

from ..model.plan import COUNTING, EXTRA, SAMPLING, Entry, Plan, estimate

ENDS = ("entry-done", "entry-failed", "entry-left-out")
WARMUP = 5  # runs until the pace measured replaces the estimate
Event = dict[str, Any]


def duration(seconds: float) -> str:
    """1:02:03"""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


class Pace:
    """How far a campaign is, and how long the rest takes at the pace so far."""

    def __init__(self, plan: Plan) -> None:
        self.total = len(plan.entries)
        self.skipped = 0
        self.ended = 0
        self._each = estimate(plan).each
        self._planned = 0.0  # s of the runs that have ended
        self._left = sum(self._each)
        self._began = time.monotonic()

    def start(self, skipped: int) -> None:
        """The runner is up: booting a guest is no part of the pace."""
        self.skipped = skipped
        self._left *= 1 - skipped / self.total
        self._began = time.monotonic()

    def extend(self, plan: Plan) -> None:
        """Runs were added to the plan's end."""
        each = estimate(plan).each
        self._left += sum(each[len(self._each) :])
        self._each = each
        self.total = len(each)

    def end(self, index: int) -> None:
        """One run more has ended."""
        self.ended += 1
        self._planned += self._each[index]
        self._left -= self._each[index]

    @property
    def done(self) -> int:
        return self.skipped + self.ended

    def left(self) -> float:
        """Seconds."""
        if self.done == self.total:
            return 0.0
        pace = (time.monotonic() - self._began) / self._planned if self.ended >= WARMUP else 1.0
        return pace * max(0.0, self._left)


class Display(Protocol):
    """Shows events as they come, and time passing between them."""

    def event(self, event: Event) -> None: ...

    def tick(self) -> None: ...


class LeftOut:
    """Counts what is left out, by the reason, and has another display show it all."""

    def __init__(self, display: Display) -> None:
        self.reasons: Counter[str] = Counter()
        self._display = display

    def event(self, event: Event) -> None:
        if event["event"] == "entry-left-out":
            self.reasons[event["reason"]] += 1
        self._display.event(event)

    def tick(self) -> None:
        self._display.tick()


class JsonLines:
    """The runner's own events, for programs."""

    def event(self, event: Event) -> None:
        print(json.dumps(event), flush=True)

    def tick(self) -> None:
        pass


def mixed(plan: Plan) -> bool:
    """Has the plan several suites, of which workloads may have the same id?"""
    return len({entry.suite for entry in plan.entries}) > 1


def _ids(event: Event, named: bool) -> str:
    """Which run an event or an entry is about; named: with its suite."""
    suite = f" {event['suite']}" if named else ""
    return f"{event['device']} {event['system']}{suite} {event['workload']} {number(event['repetition'])}"


def number(repetition: int) -> str:
    """A repetition as progress shows it."""
    return f"#{EXTRA[repetition]}" if repetition == SAMPLING else f"#{repetition}"


def extended(plan: Plan, event: Event) -> Plan:
    """The plan with the entries that the runner has added to it."""
    return dataclasses.replace(plan, entries=plan.entries + tuple(Entry(**entry) for entry in event["entries"]))


class Lines:
    """
    One line for each run, and the table so far after each round: where standard output is no terminal. tables: no
    tables where repetitions are not of the same kind.
    """

    def __init__(self, plan: Plan, tables: bool = True) -> None:
        self._pace = Pace(plan)
        self._plan = plan
        self._tables = tables
        self._mixed = mixed(plan)
        self._runs: list[Run] = []
        self._left = Counter(entry.repetition for entry in plan.entries)

    def event(self, event: Event) -> None:
        kind = event["event"]
        if kind == "start":
            self._pace.start(event["skipped"])
            if event["skipped"]:
                self._left.clear()  # of what was done before there are no events: the table at the end has all
                print(f"{event['skipped']} of {self._pace.total} runs were done before", flush=True)
        elif kind == "environment":
            for line in event["warnings"]:
                print(f"Environment: {line}", flush=True)
        elif kind == "extend":
            self._plan = extended(self._plan, event)
            self._pace.extend(self._plan)
            self._left.update(entry["repetition"] for entry in event["entries"])
            print(event["reason"], flush=True)
        elif kind in ENDS:
            self._pace.end(event["index"])
            entry = self._plan.entries[event["index"]]
            place = f"[{self._pace.done}/{self._pace.total}] {_ids(dataclasses.asdict(entry), self._mixed)}"
            print(f"{place}: {outcome(event)} (left: {duration(self._pace.left())})", flush=True)
            if self._tables:
                self._table_so_far(entry, event)
        elif kind == "note":
            print(event["text"], flush=True)

    def _table_so_far(self, entry: Entry, event: Event) -> None:
        """Shown when all runs of a round have ended, but for the last round's, which the caller shows with all else."""
        if event["event"] == "entry-done" and entry.repetition not in EXTRA:
            with suppress(SummaryError):  # the final table reports it
                self._runs.append(run_from_summary(event["summary"], f"entry {entry.index}"))
        self._left[entry.repetition] -= 1
        if self._left[entry.repetition] or self._pace.done == self._pace.total:
            return
        if not self._plan.suite.engine.tables_so_far:
            return
        console = Console()
        for table in make_tables(self._runs):
            console.print("", Text(f"{table.title}, so far"), grids(table, console), "", sep="\n")

    def tick(self) -> None:
        pass


def outcome(event: Event) -> str:
    """What came of an entry, in a few words."""
    if event["event"] == "entry-failed":
        return f"FAILED: {event['reason']}"
    if event["event"] == "entry-left-out":
        return f"left out: {event['reason']}"
    summary = event["summary"]
    if not summary["valid"]:
        return "INVALID: " + "; ".join(summary["invalid"])
    if summary["repetition"] == SAMPLING:
        return "sampled by perf"
    if summary["repetition"] == COUNTING:
        return "costs: " + (", ".join(f"{name} {value:g}" for name, value in summary["costs"].items()) or "none known")
    metrics = summary["metrics"]
    parts = (("throughput_kops", ".2f", "kop/s"), ("latency_us", ".1f", "us"), ("cpu_percent", ".0f", "% CPU"))
    text = ", ".join(f"{metrics[name]:{form}} {unit}" for name, form, unit in parts if metrics.get(name) is not None)
    return text + "".join(f"; {warning}" for warning in summary["warnings"])


class Screen:
    """The table as far as it is, above a bar; notes and failures scroll by above both."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._console = console
        self._plan = plan
        self._mixed = mixed(plan)
        self._pace = Pace(plan)
        self._runs: list[Run] = []
        self._now = "starting"
        self._device = self._suite = ""
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("left {task.fields[left]}"),
            console=console,
            expand=True,
        )
        self._task = self._bar.add_task(self._now, total=self._pace.total, left=duration(self._pace.left()))
        self._table: RenderableType = Text("")
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    @contextmanager
    def shown(self) -> Iterator[None]:
        with self._live:
            yield
        # What scrolls away is the bar; the finished table is printed by the caller.

    def event(self, event: Event) -> None:
        kind = event["event"]
        if kind == "start":
            self._pace.start(event["skipped"])
        elif kind == "entry-start":
            self._now, self._device, self._suite = _ids(event, self._mixed), event["device"], event["suite"]
        elif kind == "environment":
            for line in event["warnings"]:
                self._console.print(Text(f"Environment: {line}"))
        elif kind == "extend":
            self._plan = extended(self._plan, event)
            self._pace.extend(self._plan)
            self._bar.update(self._task, total=self._pace.total)
            self._console.print(Text(event["reason"]))
        elif kind in ENDS:
            self._pace.end(event["index"])
            self._ended(event)
        elif kind == "note":
            self._console.print(Text(event["text"]))
        self.tick()

    def _ended(self, event: Event) -> None:
        entry = self._plan.entries[event["index"]]
        failed = event["event"] != "entry-done" or not event["summary"]["valid"]
        if failed:
            place = _ids(dataclasses.asdict(entry), self._mixed)
            self._console.print(Text(f"{place}: {outcome(event)}", style="bold red"))
        if event["event"] == "entry-done" and entry.repetition not in EXTRA:
            try:
                self._runs.append(run_from_summary(event["summary"], f"entry {event['index']}"))
            except SummaryError as error:
                self._console.print(Text(str(error), style="bold red"))
            self._redraw()

    def _redraw(self) -> None:
        runs = [run for run in self._runs if run.suite == self._suite]
        if not runs or not self._plan.suite.engine.tables_so_far:
            return
        tables = make_tables(runs)
        if not tables:
            return  # a suite with a report of its own, which is for the end
        table = tables[0]
        # The device being measured first; from its end, as many rows as there is room for.
        rows = [row for row in table.rows if row[0] == self._device] or list(table.rows)
        if len(table.rows) + 8 <= self._console.height:
            rows = list(table.rows)
        room = max(1, self._console.height - 8)
        title = Text(table.title, style="bold", no_wrap=True, overflow="ellipsis")
        self._table = Group(title, grids(table, self._console, rows[-room:], narrow_metrics=1), "")

    def tick(self) -> None:
        left = duration(self._pace.left())
        self._bar.update(self._task, completed=self._pace.done, description=self._now, left=left)
        self._live.update(Group(self._table, self._bar), refresh=True)
