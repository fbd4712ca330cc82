# SPDX-License-Identifier: BSD-3-Clause
"""Reads a campaign: what was asked, and the summary.json of every finished run (docs/results.md)."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from userblk.harness.model.plan import EXTRA as OF_NO_TABLE
from userblk.harness.observing.histogram import TAIL, tail_metric
from userblk.harness.running.runner import CHANGED

from .table import add_titles

SCHEMA = 1
SUMMARY = "summary.json"
TAILS = tuple(map(tail_metric, TAIL))
METRICS = ("throughput_kops", "throughput_mbps", "latency_us", "cpu_percent", "files_kops", *TAILS, "energy_uj_per_op")
# Directories of the repetitions of which no timing is used: in the one costs were counted, at the other perf looked.
COUNTING, SAMPLING = OF_NO_TABLE.values()
EXTRA = (COUNTING, SAMPLING)
DEPTH = 6  # HOST/DEVICE/SUITE/SYSTEM/WORKLOAD/N below the campaign


SIMULATED = "SIMULATED"
EMULATED = "EMULATED (lab)"
REAL = "measured on a host's devices"


class SummaryError(Exception):
    """A result that cannot be read; one line that names the file."""


@dataclass(frozen=True)
class Run:
    """What the tables need of one run. machine: its host, where host names several that are pooled."""

    campaign: str
    host: str
    device: str
    suite: str
    system: str
    workload: str
    repetition: int
    profile: str
    emulated: str  # lab_words(), "" on real devices
    valid: bool
    invalid: tuple[str, ...]
    warnings: tuple[str, ...]
    metrics: Mapping[str, float]  # only those that are finite numbers; none of a run that is not valid
    kernel: str
    engine: str  # what put the load on: fio on the device, flow on a file system
    order: int = 0  # its place in the campaign
    duration_s: float = 0.0  # measured
    steady: bool | None = None  # after its warm-up; None: nothing can be said
    machine: str = ""

    @property
    def cell(self) -> tuple[str, str, str]:
        return self.device, self.workload, self.system

    @property
    def directory(self) -> Path:
        """The directory of its raw files, relative to the campaign's."""
        host = self.machine or self.host
        return Path(host, self.device, self.suite, self.system, self.workload, str(self.repetition))


def lab_words(summary: Mapping[str, Any]) -> str:
    """What a title says of a run in the lab; "" of one on real devices."""
    if not summary["emulated"]:
        return ""
    model = summary.get("model", "")
    return f"{SIMULATED} (lab, virtual time, model {model})" if model else EMULATED


def lab_banner(words: str) -> str:
    """The sentence above such results; "" on real devices."""
    if words.startswith(SIMULATED):
        again = "The same campaign gives the same numbers in the same guest."
        return f"{words}: a modelled CPU and modelled disks. {again}"
    return f"{words}: measured on emulated devices. Systems rank; sizes of overheads are not a real machine's." * bool(
        words
    )


def run_from_summary(summary: Mapping[str, Any], source: str) -> Run:
    """The run that a summary describes. source names it in errors. Raises SummaryError."""
    if not isinstance(summary, dict):
        raise SummaryError(f"{source}: not a summary: {type(summary).__name__}")
    if summary.get("schema") != SCHEMA:
        raise SummaryError(f"{source}: schema={summary.get('schema')}: this version reads schema {SCHEMA}")
    try:
        values = {name: summary["metrics"].get(name) for name in METRICS if summary["valid"]}
        return Run(
            campaign=summary["campaign"],
            host=summary["host"],
            device=summary["device"],
            suite=summary["suite"],
            system=summary["system"],
            workload=summary["workload"],
            repetition=int(summary["repetition"]),
            profile=summary["profile"],
            emulated=lab_words(summary),
            valid=bool(summary["valid"]),
            invalid=tuple(summary["invalid"]),
            warnings=tuple(summary["warnings"]),
            metrics={k: float(v) for k, v in values.items() if v is not None and math.isfinite(v)},
            kernel=str(summary.get("kernel", "")),
            engine=str(summary.get("engine", "fio")),
            order=int(summary.get("order", 0)),
            duration_s=float(summary.get("duration_s", 0.0)),
            steady=(summary.get("warm_up") or {}).get("steady"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SummaryError(f"{source}: not a summary: {type(error).__name__} {error}") from None


def warnings_note(warnings: Iterable[Sequence[str]], runs: int) -> str:
    """How many of the runs have warnings, and of which kinds; "" without any. warnings: those of each valid run."""
    warned = [lines for lines in warnings if lines]
    if not warned:
        return ""
    kinds = Counter(kind for lines in warned for kind in {line.split(":", 1)[0] for line in lines})
    common = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    listed = "; ".join(f"{kind} ({count})" for kind, count in common[:3])
    more = f"; {len(common) - 3} more kinds" if len(common) > 3 else ""
    return f"{len(warned)} of {runs} runs have warnings: {listed}{more}."


def _run_directories(directory: str, depth: int) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        raise SummaryError(f"{directory}: {error.strerror}") from None
    for entry in entries:
        if entry.is_dir():
            if depth > 1:
                yield from _run_directories(entry.path, depth - 1)
            elif entry.name not in EXTRA and os.path.exists(os.path.join(entry.path, "DONE")):
                yield entry.path


@dataclass(frozen=True)
class Campaign:
    """What was asked, and what is done of it. choices: where the paper is silent, a line each; block_choices: how
    Table 1 is measured."""

    directory: Path
    name: str
    created: str
    seed: int
    choices: tuple[str, ...]
    block_choices: tuple[str, ...]
    asked: Mapping[str, Any]
    runs: tuple[Run, ...]


def read_json(file: Path) -> Any:
    """Raises SummaryError."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SummaryError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise SummaryError(f"{file}: not JSON: {error}") from None


def read_campaign(directory: Path) -> Campaign:
    """Raises SummaryError."""
    file = directory / "campaign.json"
    asked = read_json(file)
    try:
        name, created, seed = str(asked["campaign"]), str(asked["created"]), int(asked["seed"])
        choices, of_blocks = (tuple(str(line) for line in asked.get(name, [])) for name in ("choices", "block_choices"))
        add_titles({str(system): str(title) for system, title in asked.get("titles", {}).items()})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SummaryError(f"{file}: not the request of a campaign: {type(error).__name__} {error}") from None
    runs = tuple(pooled(directory, load_campaign(directory)))
    return Campaign(directory, name, created, seed, choices, of_blocks, asked, runs)


PARAMETERS = ("warm_up", "choices", "block_choices")  # of campaign.json: what measures something else if changed
CONCERNED = ("device", "system", "workload")  # what a record of `parameters` may name


def asked_otherwise(campaigns: Sequence[Campaign]) -> dict[str, tuple[str, ...]]:
    """
    The parameters that not all campaigns have alike: of each campaign what differs, as one line. Only what concerns
    devices, systems and workloads of several campaigns; those that do not say a parameter do not differ in it.
    """
    found = {}
    for name in PARAMETERS:
        known = [at for at, campaign in enumerate(campaigns) if name in campaign.asked]
        saying = [campaigns[at] for at in known]
        if all(isinstance(one.asked.get("parameters"), Mapping) for one in saying) and name != "warm_up":
            own = _records_otherwise(saying, name)
        else:  # older ones have text alone
            own = _lines_otherwise([campaign.asked[name] for campaign in saying])
        if any(own):
            each = dict(zip(known, own, strict=True))
            found[name] = tuple(each.get(at, "") for at in range(len(campaigns)))
    return found


def _lines_otherwise(asked: Sequence[Any]) -> list[str]:
    """The lines of each that not all have."""
    lines = [list(map(str, value)) if isinstance(value, list) else [str(value)] for value in asked]
    common = set.intersection(*[set(one) for one in lines]) if lines else set()
    return ["; ".join(line for line in one if line not in common) for one in lines]


def _records_otherwise(campaigns: Sequence[Campaign], name: str) -> list[str]:
    """The values of each that are others elsewhere, with what they concern."""
    records: list[dict[tuple[str, ...], str]] = []
    for campaign in campaigns:
        values = [value for value in campaign.asked["parameters"].get(name, ()) if isinstance(value, Mapping)]
        keys = [tuple(str(value.get(part, "")) for part in ("name", *CONCERNED)) for value in values]
        records.append({key: str(value.get("value", "")) for key, value in zip(keys, values, strict=True)})
    measured = [[{"", *(getattr(run, part) for run in one.runs)} for part in CONCERNED] for one in campaigns]
    own: list[dict[tuple[str, str], list[str]]] = [{} for _ in campaigns]
    for key in dict.fromkeys(key for one in records for key in one):
        what, *concerned = key
        having = [at for at, sets in enumerate(measured) if all(c in s for c, s in zip(concerned, sets, strict=True))]
        if len({records[at].get(key, "") for at in having}) > 1:
            for at in having:
                if value := records[at].get(key, ""):
                    own[at].setdefault((what, value), []).append(" on ".join(filter(None, reversed(concerned))))
    return ["; ".join(_record_text(*pair, of) for pair, of in one.items()) for one in own]


def _record_text(what: str, value: str, concerned: Sequence[str]) -> str:
    listed = ", ".join(filter(None, concerned[:LISTED]))
    more = f" and {len(concerned) - LISTED} more" * (len(concerned) > LISTED)
    return f"{what}{' of ' * bool(listed)}{listed}{more}: {value}"


def campaign_warnings(directory: Path) -> list[str]:
    """What may distort all runs, as found when they began or went on; of several hosts each is named."""
    lines = []
    for file in sorted([*directory.glob("environment.json"), *directory.glob("hosts/*/environment.json")]):
        host = "" if file.parent == directory else f"{file.parent.name}: "
        with suppress(SummaryError, AttributeError, TypeError):
            lines += [f"{host}{line}" for line in read_json(file).get("warnings", [])]
    return lines


def changes_of(directory: Path) -> tuple[str, ...]:
    """What tells runs apart that a table takes for repetitions of each other: lines for below it."""
    return tuple(line for line in campaign_warnings(directory) if CHANGED in line)


NOT_MEASURED = "NOT measured, as runs failed, were left out or are still missing:"
LISTED = 8  # of what has no run; the rest is counted
# What all runs of may be missing, the largest first: each names no part of one before.
CELL = ("host", "device", "suite", "system", "workload")
# What may have no run at all, as places in CELL; the largest part is named, and none of its own parts.
PARTS = ((0,), (0, 2), (0, 2, 1), (0, 2, 3), (0, 2, 4), (0, 2, 1, 4), (0, 2, 1, 4, 3))


def missing_of(directory: Path) -> tuple[str, ...]:
    """
    A line with what was planned and has no finished run, so that no table shows it; () without any. Hosts and suites
    are named where a campaign has several.
    """
    left: Counter[tuple[str, ...]] = Counter()
    done: set[tuple[str, ...]] = set()
    for file in sorted(directory.glob("hosts/*/plan.json")) or [directory / "plan.json"]:
        with suppress(SummaryError, LookupError, TypeError):
            plan = read_json(file)
            for entry in plan["entries"]:
                cell = tuple(str({**entry, "host": plan["host"]}[name]) for name in CELL)
                if entry["repetition"] not in OF_NO_TABLE:
                    left[cell] += 1
                    if directory.joinpath(*cell, str(entry["repetition"]), "DONE").exists():
                        done.add(cell)
    several = [at for at in range(len(CELL)) if CELL[at] not in ("host", "suite") or len({one[at] for one in left}) > 1]
    for cell in done:
        del left[cell]
    named = []
    for part in PARTS:
        measured = {tuple(cell[at] for at in part) for cell in done}
        runs: Counter[tuple[str, ...]] = Counter()
        for cell in [cell for cell in left if tuple(cell[at] for at in part) not in measured]:
            runs[tuple(cell[at] for at in part if at in several or at == part[-1])] += left.pop(cell)
        named += [f"{' '.join(names)} ({count} run{'s' * (count > 1)})" for names, count in sorted(runs.items())]
    more = f" and {len(named) - LISTED} more" * (len(named) > LISTED)
    return (f"{NOT_MEASURED} {', '.join(named[:LISTED])}{more}.",) if named else ()


def lost_of(directory: Path) -> tuple[str, ...]:
    """A line with the runs that are marked as done and have no summary, so that no table has them; () without any."""
    lost = []
    for path in map(Path, _run_directories(str(directory), DEPTH)):
        # Looked at again: what is made again meanwhile loses DONE first.
        if not (path / SUMMARY).exists() and (path / "DONE").exists():
            lost.append(str(path.relative_to(directory)))
    more = f" and {len(lost) - LISTED} more" * (len(lost) > LISTED)
    named = f"{', '.join(lost[:LISTED])}{more}"
    return (f"LOST: summary.json of {named}; repeat it with: userblk resume",) if lost else ()


def notes_of(directory: Path) -> tuple[str, ...]:
    """Notes of a campaign, for below each of its tables."""
    return (*missing_of(directory), *lost_of(directory), *changes_of(directory))


def changes_of_all(campaigns: Iterable[Campaign]) -> tuple[str, ...]:
    """The same of several, each line with its campaign's name."""
    return tuple(f"{one.name}: {line}" for one in campaigns for line in changes_of(one.directory))


# ---- several hosts --------------------------------------------------------------------

SAME = ("kernel", "cpu_model", "cpus", "governor", "turbo", "smt", "virtual", "packages", "distribution")


def first_environments(directory: Path, runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """environment.json of the first run on each machine; {} where it cannot be read."""
    first: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: run.order):
        first.setdefault(run.machine or run.host, run)
    found = {}
    for machine, run in sorted(first.items()):
        try:
            value = read_json(directory / run.directory / "environment.json")
            found[machine] = value if isinstance(value, dict) else {}
        except SummaryError:
            found[machine] = {}
    return found


def _kind(environment: Mapping[str, Any]) -> str:
    """What machines have to have in common to be pooled; "" if that is not known."""
    try:
        devices = {name: (one["model"], one.get("firmware")) for name, one in environment["devices"].items()}
        memory = round(environment["memory_bytes"] / 2**30)
        if not environment["packages"]:  # of a package manager that userblk does not know
            return ""
        same = [*(environment[name] for name in SAME), environment.get("userblk")]
        return json.dumps([memory, devices, *same], sort_keys=True)
    except (LookupError, TypeError, AttributeError):
        return ""


def pooled(directory: Path, runs: Sequence[Run]) -> list[Run]:
    """The same runs, those on identical machines as if they were of one host, which is called "a+b".

    Identical: kernel, CPUs, memory, packages, userblk, the devices' models and firmware, by their first
    environment.json.
    """
    if len({run.host for run in runs}) < 2:
        return list(runs)
    kinds: dict[str, list[str]] = {}
    for machine, environment in first_environments(directory, runs).items():
        kinds.setdefault(_kind(environment) or machine, []).append(machine)
    names = {machine: "+".join(machines) for machines in kinds.values() for machine in machines if machines[1:]}
    return [replace(run, host=names[run.host], machine=run.host) if run.host in names else run for run in runs]


def load_campaign(directory: Path) -> list[Run]:
    """The finished runs of a campaign directory. Raises SummaryError."""
    runs = []
    for path in _run_directories(str(directory), DEPTH):
        file = os.path.join(path, SUMMARY)
        try:
            with open(file, encoding="utf-8") as stream:
                summary = json.load(stream)
        except FileNotFoundError:
            continue  # it is being made again, or lost_of() names it
        except OSError as error:
            raise SummaryError(f"{file}: {error.strerror}") from None
        except ValueError as error:
            raise SummaryError(f"{file}: not JSON: {error}") from None
        runs.append(run_from_summary(summary, file))
    return runs
