# SPDX-License-Identifier: BSD-3-Clause
"""Papers as data: configs/papers/NAME/ has a paper's tables, its conditions and claims; docs/extending.md says how."""

from __future__ import annotations

import csv
import math
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .statistics import Interval
from .summaries import SummaryError
from .table import (
    CPU,
    DEVICES,
    METRICS,
    NATIVE,
    RATE,
    SYSTEMS,
    Cell,
    Grade,
    Metric,
    Table,
    make_cell,
    ordered,
    paper_table,
    printed_cell,
)

FILE = "paper.toml"
CLAIMS = "claims.toml"
METRIC_NAMES = {"throughput": METRICS[0], "latency": METRICS[1], "cpu": CPU, "rate": RATE}
RATE_HEADS = ("device", "workload", "system", "below", "above")  # of a table that gives rates with intervals, and
RATE_UNITS = {"gbps": 1e3, "mib_per_s": 1.048576}  # one of these: MB/s, of 10^6 bytes, in its unit
RUNS_HEADS = ("device", "workload", "system", "runs", "ops_per_s", "sd")  # of a table that gives means of runs


@dataclass(frozen=True)
class Claim:
    """A statement of the paper's text as a predicate; docs/extending.md says what the fields mean."""

    id: str
    section: str
    text: str
    tables: tuple[int, ...]
    devices: tuple[str, ...]
    workloads: tuple[str, ...]
    systems: tuple[str, ...]
    metrics: tuple[Metric, ...]
    left_out: tuple[str, ...] = ()
    of: str = "loss"
    least: float = -math.inf
    most: float = math.inf
    than: Mapping[str, Any] | None = None
    margin: float = 0.0
    near: float | None = None
    ratio: bool = False
    half_width: float | None = None
    reciprocal: float | None = None
    share: float = 1.0
    exact: bool = False

    @property
    def of_means(self) -> bool:
        """Is it about absolute values?"""
        return self.of in ("mean", "largest")

    @property
    def relative(self) -> bool:
        """Is it about differences to the system that a table's numbers are relative to?"""
        return not self.of_means and not self.ratio and self.half_width is None


@dataclass(frozen=True)
class PaperDevice:
    """A device of a paper's: title, which of a campaign's stands for it ("": any), and whether that has to turn."""

    title: str
    ours: str
    rotational: bool | None = None


@dataclass(frozen=True)
class Paper:
    """tables: by number, 1 of block devices, others of file systems; suites: of ours, by the same, the first as the
    paper has it.

    grades: of throughput relative to native, the best first. absent: what the paper had and nothing here can be, with
    the reason, by its name there. names: its own, of systems. sections: of its text, that the claims are from.
    """

    name: str
    title: str
    source: str
    sections: str
    tables: Mapping[int, Table]
    suites: Mapping[int, Sequence[str]]
    devices: Mapping[str, PaperDevice]
    environment: Mapping[str, Any]
    claims: Sequence[Claim]
    grades: Sequence[Grade] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def numbers(self) -> int:
        """How many it gives."""
        cells = [(one, key[2], cell) for one in self.tables.values() for key, cell in one.cells.items()]
        return sum(table.printed(system, cell) is not None for table, system, cell in cells)

    @property
    def all_suites(self) -> list[str]:
        """The suites of all tables."""
        return list(dict.fromkeys(suite for suites in self.suites.values() for suite in suites))

    @property
    def systems(self) -> list[str]:
        """The systems in its tables and claims, and those that a claim measures them against."""
        found = [system for table in self.tables.values() for system in table.systems]
        for claim in self.claims:
            found += [*claim.systems, *(claim.than or {}).get("systems", ())]
            found += [self.tables[number].base for number in claim.tables if claim.relative and number in self.tables]
        return list(dict.fromkeys(found))


# ---- files ------------------------------------------------------------------------


def read_toml(path: Path) -> dict[str, Any]:
    """Raises SummaryError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SummaryError(f"{path}: cannot be read: {error}") from None


def paper_names(configs: Path) -> list[str]:
    """The names of all papers."""
    return sorted(file.parent.name for file in (configs / "papers").glob(f"*/{FILE}"))


PAPER_KEYS = {"name", "title", "source", "sections", "table", "devices", "environment", "class", "absent", "names"}
TABLE_KEYS = {"number", "title", "notes", "file", "suite", "decimals_cpu", "base", "rates"}
ENVIRONMENT_KEYS = {"profile", "kernel", "kernel_same", "framework", "instead", "cpus", "device"}


def _keys(path: Path, value: Mapping[str, Any], known: Collection[str], needed: Iterable[str], prefix: str) -> None:
    for key in value.keys() - known:
        raise SummaryError(f"{path}: {prefix}{key}: unknown key; known are {', '.join(sorted(known))}")
    for key in needed:
        if key not in value:
            raise SummaryError(f"{path}: {prefix}{key}: is missing; add it")


def load_paper(name: str, configs: Path) -> Paper:
    """Raises SummaryError, which names the file and the key."""
    path = configs / "papers" / name / FILE
    if name not in paper_names(configs):
        raise SummaryError(f"paper={name}: unknown; use one of {', '.join(paper_names(configs))}")
    value = read_toml(path)
    _keys(path, value, PAPER_KEYS, ("name", "title", "source", "sections", "environment"), "")
    if value["name"] != name:
        raise SummaryError(f"{path}: name={value['name']}: must be the directory's name, {name}")
    _keys(path, value["environment"], ENVIRONMENT_KEYS, ENVIRONMENT_KEYS, "environment.")
    tables, suites = {}, {}
    for one in value.get("table", []):
        _keys(path, one, TABLE_KEYS, TABLE_KEYS - {"decimals_cpu", "base", "rates"}, "table: ")
        number = one["number"]
        if not isinstance(number, int) or number < 1 or number in tables:
            raise SummaryError(
                f"{path}: table: number={number}: must be 1 (block devices) or a larger one (file systems), once"
            )
        place = (path.parent / one["file"], number, one["title"], tuple(one["notes"]))
        tables[number] = _read_table(*place, one.get("decimals_cpu", 1), one.get("base", NATIVE))
        if one.get("rates"):
            tables[number] = replace(tables[number], metrics=(RATE,), base=one.get("base", NATIVE))
        suites[number] = (one["suite"],) if isinstance(one["suite"], str) else tuple(one["suite"])
    grades = tuple(Grade(**one) for one in value.get("class", []))
    devices = {key: PaperDevice(**one) for key, one in value.get("devices", {}).items()}
    claims = path.with_name(CLAIMS)
    return Paper(
        name=name,
        title=value["title"],
        source=value["source"],
        sections=value["sections"],
        tables=tables,
        suites=suites,
        devices=devices or {name: PaperDevice(title, name) for name, title in DEVICES.items()},
        environment=value["environment"],
        claims=load_claims(claims, dict.fromkeys(device for one in tables.values() for device, _ in one.rows))
        if claims.exists()
        else (),
        grades=grades,
        absent=value.get("absent", {}),
        names=value.get("names", {}),
    )


def load_papers(configs: Path) -> list[Paper]:
    """All of them; those with most numbers first. Raises SummaryError."""
    papers = [load_paper(name, configs) for name in paper_names(configs)]
    return sorted(papers, key=lambda paper: (-paper.numbers, paper.name))


def papers_of(suites: Collection[str], configs: Path) -> list[Paper]:
    """Those that have a table of one of these suites, in the order of load_papers(). Raises SummaryError."""
    return [paper for paper in load_papers(configs) if set(suites) & set(paper.all_suites)]


# ---- tables -----------------------------------------------------------------------


def _read_table(path: Path, number: int, title: str, notes: tuple[str, ...], decimals_cpu: int, base: str) -> Table:
    """One of a paper's, in the layout that the heads of its CSV tell. base: as the table's. Raises SummaryError."""
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            heads = csv.DictReader(stream).fieldnames or []
        if set(RUNS_HEADS) <= set(heads):
            return _table_of_means(path, number, title, notes, base)
        if units := [unit for unit in RATE_UNITS if {*RATE_HEADS, unit} <= set(heads)]:
            return _table_of_rates(path, number, title, notes, base, units[0])
        return paper_table(path, number, title, notes, decimals_cpu)
    except (OSError, ValueError, LookupError) as error:
        raise SummaryError(f"{path}: cannot be read: {type(error).__name__} {error}") from None


def sample_of(runs: int, mean: float, deviation: float) -> list[float]:
    """Some values with this mean and standard deviation: what intervals are made of is no more than these."""
    if runs < 2:
        return [mean] * runs
    away = deviation * math.sqrt((runs - 1) / 2)
    return [mean - away, mean + away, *([mean] * (runs - 2))]


def _table_of_means(path: Path, number: int, title: str, notes: tuple[str, ...], base: str) -> Table:
    """Table of a paper that gives each system's mean and standard deviation over runs, absolute."""
    samples: dict[tuple[str, str], dict[str, list[float]]] = {}
    with path.open(newline="", encoding="utf-8") as stream:
        for record in csv.DictReader(stream):
            numbers = (float(record["ops_per_s"]) / 1e3, float(record["sd"]) / 1e3)
            row = samples.setdefault((record["device"], record["workload"]), {})
            row[record["system"]] = sample_of(int(record["runs"]), *numbers)
    cells = {}
    throughput = METRICS[0]
    for (device, workload), row in samples.items():
        for system, sample in row.items():
            native = None if base in ("", system) else row[base]
            cells[device, workload, system, throughput.id] = make_cell(
                throughput, device, workload, sample, native, 0, files=number > 1
            )
    systems = dict.fromkeys(system for row in samples.values() for system in row)
    return Table(
        number,
        title,
        notes,
        tuple(samples),
        tuple(sorted(systems, key=lambda name: (list(SYSTEMS).index(name) if name in SYSTEMS else len(SYSTEMS), name))),
        cells,
        metrics=(throughput,),
        base=base,
    )


def _over(one: Interval, other: Interval) -> Interval:
    """How far one is from the other, in %; their intervals are taken as independent."""
    ratio = one.value / other.value
    (below, above), (other_below, other_above) = (
        ((x.value - (x.low or 0)) / x.value, ((x.high or 0) - x.value) / x.value) for x in (one, other)
    )
    low, high = ratio * (1 - math.hypot(below, other_above)), ratio * (1 + math.hypot(above, other_below))
    return Interval(ratio, low, high).scaled(100.0, -100.0)


def _table_of_rates(path: Path, number: int, title: str, notes: tuple[str, ...], base: str, unit: str) -> Table:
    """Table of a paper that gives each system's rate and the distances to the ends of its interval, absolute."""
    means: dict[tuple[str, str], dict[str, Interval]] = {}
    with path.open(newline="", encoding="utf-8") as stream:
        for record in csv.DictReader(stream):
            value, below, above = (RATE_UNITS[unit] * float(record[head]) for head in (unit, "below", "above"))
            if not below and not above:  # what is printed as 0.00 is less than half of the last digit
                below = above = RATE_UNITS[unit] * 0.5 * 10.0 ** -len(record[unit].partition(".")[2])
            row = means.setdefault((record["device"], record["workload"]), {})
            row[record["system"]] = Interval(value, value - below, value + above)
    cells: dict[tuple[str, str, str, str], Cell] = {}
    for (device, workload), row in means.items():
        for system, mean in row.items():
            other = None if base in ("", system) else _over(mean, row[base])
            cells[device, workload, system, RATE.id] = printed_cell(RATE, device, workload, mean, other)
    systems = ordered({system for row in means.values() for system in row}, SYSTEMS)
    return Table(number, title, notes, tuple(means), systems, cells, metrics=(RATE,), base=base)


# ---- claims -----------------------------------------------------------------------

CLAIM_KEYS = {
    "id", "section", "text", "tables", "devices", "workloads", "systems", "metrics", "except", "of", "least", "most",
    "than", "margin", "near", "ratio", "half_width", "reciprocal", "share", "exact",
}  # fmt: skip
QUANTITIES = ("loss", "size", "mean", "largest")
WILDCARD = re.compile(r"(\*|\?|\[[^]]+\])")  # in a pattern of workloads


def load_claims(path: Path, devices: Iterable[str] = ()) -> list[Claim]:
    """devices: of the paper's tables. Raises SummaryError, which names the claim and the key."""
    claims = []
    for number, one in enumerate(read_toml(path).get("claim", []), 1):
        name = one.get("id", number)

        def wrong(key: str, text: str, name: object = name) -> SummaryError:
            return SummaryError(f"{path}: claim {name}: {key}: {text}")

        for key in one.keys() - CLAIM_KEYS:
            raise wrong(key, f"unknown key; known are {', '.join(sorted(CLAIM_KEYS))}")
        for key in ("id", "section", "text", "tables", "devices", "workloads", "systems", "metrics"):
            if not one.get(key, key == "devices"):
                raise wrong(key, "is missing; add it")
        if bad := set(one["metrics"]) - METRIC_NAMES.keys():
            raise wrong("metrics", f"{', '.join(sorted(bad))} is none of {', '.join(METRIC_NAMES)}")
        if one.get("of", "loss") not in QUANTITIES:
            raise wrong("of", f"must be one of {', '.join(QUANTITIES)}")
        values = {key: value for key, value in one.items() if key not in ("except", "devices")}
        values["left_out"] = tuple(one.get("except", ()))
        values["devices"] = tuple(one.get("devices", tuple(devices) or DEVICES))
        values["metrics"] = tuple(METRIC_NAMES[metric] for metric in one["metrics"])
        for key in ("tables", "workloads", "systems"):
            values[key] = tuple(values[key])
        claim = Claim(**values)
        bounded = math.isfinite(claim.least) or math.isfinite(claim.most)
        than = claim.than is not None
        alone = sum((bounded, than and not claim.ratio, claim.half_width is not None, claim.reciprocal is not None))
        named = (claim.than or {}).get("workload", "")
        if len(WILDCARD.findall(named)) > min(len(WILDCARD.findall(pattern)) for pattern in claim.workloads):
            raise wrong("than", f"workload={named}: has more wildcards than a pattern of workloads")
        misfit = claim.of == "largest" and not bounded
        if alone != 1 or misfit or (not than and (claim.near is not None or claim.ratio)):
            text = "least/most, than (with margin or near; with ratio and least/most), half_width, reciprocal"
            raise wrong("predicate", f"must be one of {text}")
        claims.append(claim)
    return claims
