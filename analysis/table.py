# SPDX-License-Identifier: BSD-3-Clause
"""The paper's Tables 1 and 2 as data: cells with their values, intervals and marks. tabulate.py makes them of runs."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from userblk.harness.observing.histogram import TAIL, tail_metric

from .statistics import (
    ALPHA,
    Interval,
    clustered_share,
    difference_interval,
    mean_interval,
    ratio_interval,
    welch_p,
)

NATIVE = "native"
CONTROL = "native-control"  # native once more, as if it were a system: what differs there is a false alarm
DEVICES = {"sata": "SATA", "nvme": "NVMe"}
SYSTEMS = {
    NATIVE: "Native",
    CONTROL: "Native (control)",
    "buse": "BUSE",
    "nbdkit-serial": "nbdkit (serial)",
    "nbdkit": "nbdkit",
    "tcmu": "TCMU",
    "tcmu-threads": "TCMU (own threads)",
    "ublk-workers": "ublk (workers)",
    "ublk-uring": "ublk (io_uring)",
    "loop": "loop",
    "dm-linear": "dm-linear",
    "iblock": "LIO iblock",
    "nvme-tcp": "NVMe/TCP",
    "vduse": "VDUSE",
    "bdus": "BDUS",
    "ext4-nojournal": "ext4, no journal",
    "ext4-noreadahead": "ext4, no read-ahead",
    "ext4-data-journal": "ext4, data=journal",
    "ext4-ramdisk": "ext4 on a RAM disk",
    "fuse": "FUSE",
    "stackfs": "StackFS",
    "stackfs-opt": "StackFS opt",
    "rfuse-stackfs": "StackFS (RFUSE)",
    "rfuse-uring": "StackFS io_uring",
    "fuse-clone-fd": "FUSE clone_fd",
    "fuse-uring": "FUSE io_uring",
    "nullfs": "NullFS",
    "nullfs-clone-fd": "NullFS clone_fd",
    "nullfs-uring": "NullFS io_uring",
    "bindfs": "bindfs",
    "mergerfs": "mergerfs",
    "fuse-overlayfs": "fuse-overlayfs",
    "fuse2fs": "fuse2fs",
    "nfs": "NFS",
    "nbdkit-file": "nbdkit file",
    "qemu-nbd": "qemu-nbd",
    "s3backer": "s3backer",
    "buse-null": "BUSE null",
    "bdus-null": "BDUS null",
    "nbdkit-null": "nbdkit null",
    "tcmu-null": "TCMU null",
    "ublk-null": "ublk null",
    "vduse-null": "VDUSE null",
    "fuse-null": "FUSE null",
}

COLUMNS = dict(SYSTEMS)  # in papers' files, whatever a campaign calls its systems


def add_titles(titles: Mapping[str, str]) -> None:
    """What the files of a campaign's systems call them; others than the above are after those, in this order."""
    SYSTEMS.update(titles)


# The paper's order of rows within a device.
WORKLOADS = tuple(
    f"{access}-{threads}th-{size}"
    for access in ("seq-read", "rand-read", "seq-write", "rand-write")
    for threads in (1, 16)
    for size in ("4k", "128k")
)
# Table 2 goes on with these.
FILE_WORKLOADS = (
    *(f"{action}-{threads}th" for action in ("create", "read", "delete") for threads in (1, 16)),
    *("file-server", "mail-server", "web-server"),
)
IMPROVEMENT = 5.0  # %, or points of CPU: beyond it the paper leaves the cell white


class Mark(Enum):
    """What a reader must know of a cell; the value is the sign that tables print."""

    BETTER = "*"
    WIDE = "~"
    SINGLE = "n=1"
    SAME = "="
    INVALID = "!"
    UNSTEADY = "^"


OF_TABLE_1 = " (NVMe writes 10 %)"
MARK_TEXT = {
    Mark.BETTER: "more than 5 % (CPU: 5 points) better than native",
    Mark.WIDE: "interval of the mean wider than the paper's limits: half width over 5 % of the mean"
    f"{OF_TABLE_1}, CPU 5 points",
    Mark.SINGLE: "a single run, so no interval",
    Mark.UNSTEADY: "throughput of one of the runs was not steady after its warm-up",
    Mark.SAME: "no significant difference to native (Welch's test of this cell alone, at 5 %)",
    Mark.INVALID: "invalid runs, shown by their number and left out of the mean",
}


PAPERS = frozenset({"throughput_kops", "latency_us", "cpu_percent"})  # metrics of its tables
CellKey = tuple[str, str, str, str]  # device, workload, system, metric id


@dataclass(frozen=True)
class Metric:
    """One group of columns. points: differences are absolute; sign: +1 if more is better."""

    id: str
    column: str  # in the wide CSV, the paper's
    title: str
    unit: str
    points: bool
    sign: int


CPU = Metric("cpu_percent", "cpu", "CPU", "%", True, -1)
METRICS = (
    Metric("throughput_kops", "tput_kops", "Throughput", "kop/s", False, 1),
    Metric("latency_us", "lat_us", "Latency", "us", False, -1),
    CPU,
)


# Not in the paper's tables: where an operation is a flowop, files per second are in the long CSV.
FILES = Metric("files_kops", "files_kops", "Files", "kfile/s", False, 1)


# What a system leaves of native's throughput: of tables in a paper's classes.
RELATIVE = Metric("relative_percent", "relative", "Throughput relative to native", "%", False, 1)


# Nor are the percentiles of latency: each is the mean over runs of the percentile of a run.
TAILS = tuple(
    Metric(tail_metric(percent), f"p{percent:g}_us", f"Latency p{percent:g}", "us", False, -1) for percent in TAIL
)
# Nor is the energy of the machine's CPUs and memory, where it counts it.
ENERGY = Metric("energy_uj_per_op", "energy_uj", "Energy of an operation", "uJ", False, -1)
ALL_METRICS = (*METRICS, FILES, *TAILS, ENERGY)


# What some papers print instead of operations.
RATE = Metric("throughput_mbps", "mbps", "Throughput", "MB/s", False, 1)


# All that tables can have, by id.
METRICS_BY_ID = {metric.id: metric for metric in (*ALL_METRICS, RATE, RELATIVE)}


@dataclass(frozen=True)
class Grade:
    """A class of a paper's for what a system leaves of native's throughput: over so many %. sign: in tables."""

    name: str
    sign: str
    over: float
    colour: str


@dataclass(frozen=True)
class Cell:
    """One metric of one system under one workload.

    mean is None without a valid run; difference to native (%, or points of CPU) is None for native
    itself and where native has no valid run. p: of Welch's test against native, None where it cannot be made;
    p_holm: corrected over the table. absent: valid runs without this metric, as percentiles beyond which there are too
    few operations.
    """

    n: int
    invalid: int
    mean: Interval | None
    difference: Interval | None
    marks: frozenset[Mark]
    p: float | None = None
    p_holm: float | None = None
    grade: Grade | None = None  # of a table in a paper's classes
    absent: int = 0

    @property
    def significant(self) -> bool:
        """Is the difference to native shown?"""
        return self.p_holm is not None and self.p_holm <= ALPHA


EMPTY = Cell(0, 0, None, None, frozenset())


@dataclass(frozen=True)
class Table:
    """title and notes say where it was measured. number: which of the paper's tables it is laid out as.

    cells: by (device, workload, system, metric id). metrics: those that are shown as groups of columns.
    base: the system that the others are shown relative to; "": all are absolute. tests: a note on significance.
    """

    number: int
    title: str
    notes: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]
    systems: tuple[str, ...]
    cells: Mapping[CellKey, Cell] = field(repr=False)
    emulated: str = ""  # as Run.emulated
    decimals_cpu: int = 1
    host: str = ""
    suite: str = ""
    metrics: tuple[Metric, ...] = METRICS
    base: str = NATIVE
    tests: str = ""

    def absolute(self, system: str) -> bool:
        """Are a system's numbers means, and not differences to those of another?"""
        return self.base in ("", system)

    def printed(self, system: str, cell: Cell) -> Interval | None:
        """What is shown of one of a system's cells."""
        return cell.mean if self.absolute(system) else cell.difference

    @property
    def label(self) -> str:
        """What figures call it: by its number where it has the rows of Tables 1 and 2."""
        known = {workload for _, workload in self.rows} <= {*WORKLOADS, *FILE_WORKLOADS}
        return f"Table {self.number}" if known else f"Suite {self.suite}"

    @property
    def single(self) -> bool:
        """Has no cell more than one run?"""
        return max((cell.n for cell in self.cells.values()), default=0) == 1

    def cell(self, device: str, workload: str, system: str, metric: Metric) -> Cell:
        return self.cells.get((device, workload, system, metric.id), EMPTY)


def half_width_limit(metric: Metric, device: str, workload: str, mean: float, files: bool = False) -> float:
    """The paper's limit on the half width of the interval of a mean, in the metric's unit. files: of Table 2."""
    if metric.points:
        return 5.0
    return abs(mean) * (0.10 if device == "nvme" and "write" in workload and not files else 0.05)


def _marks(
    metric: Metric,
    device: str,
    workload: str,
    n: int,
    invalid: int,
    mean: Interval | None,
    difference: Interval | None,
    files: bool = False,
) -> frozenset[Mark]:
    marks = set()
    if invalid:
        marks.add(Mark.INVALID)
    if n == 1:
        marks.add(Mark.SINGLE)
    if mean is not None and mean.half is not None:
        if mean.half > half_width_limit(metric, device, workload, mean.value, files):
            marks.add(Mark.WIDE)
    if difference is not None and metric.sign * difference.value > IMPROVEMENT:
        marks.add(Mark.BETTER)
    return frozenset(marks)


def make_cell(
    metric: Metric,
    device: str,
    workload: str,
    sample: Sequence[float],
    native: Sequence[float] | None,
    invalid: int,
    files: bool = False,
) -> Cell:
    """The cell of a sample of runs. native: the sample to compare with, None for native itself. files: of Table 2."""
    if not sample:
        return Cell(0, invalid, None, None, _marks(metric, device, workload, 0, invalid, None, None))
    mean = mean_interval(sample)
    difference = p = None
    if native:
        p = welch_p(sample, native)
        if metric.points:
            difference = difference_interval(sample, native)
        elif ratio := ratio_interval(sample, native):
            difference = ratio.scaled(100.0, -100.0)
    marks = _marks(metric, device, workload, len(sample), invalid, mean, difference, files)
    if p is not None and p > ALPHA:
        marks |= {Mark.SAME}
    return Cell(len(sample), invalid, mean, difference, marks, p)


@dataclass(frozen=True)
class Control:
    """Native measured against native: how many of the tests found a difference, before and after Holm's correction.

    cells: tests and alarms of each workload, whose throughput, latency and CPU rise and fall together.
    """

    tests: int
    alarms: int
    alarms_holm: int
    cells: tuple[tuple[int, int], ...]

    @property
    def text(self) -> str:
        rate = clustered_share(self.cells).scaled(100, 0)
        return (
            f"A/A control: native differs from native in {self.alarms} of {self.tests} tests, {rate.value:.1f} %"
            f" [{rate.low:.1f}, {rate.high:.1f}], where {100 * ALPHA:.0f} % are expected;"
            f" after Holm's correction in {self.alarms_holm}."
        )


def control(tables: Iterable[Table]) -> Control | None:
    """What the control of a campaign says; None without one that can be tested."""
    tested: dict[tuple[str, str, str, str], list[Cell]] = defaultdict(list)
    for table in tables:
        for key, cell in table.cells.items():
            if key[2] == CONTROL and cell.p_holm is not None and cell.p is not None:
                tested[table.host, table.suite, key[0], key[1]].append(cell)
    if not tested:
        return None
    counts = tuple(
        (len(cells), sum(cell.p is not None and cell.p <= ALPHA for cell in cells)) for cells in tested.values()
    )
    significant = sum(cell.significant for cells in tested.values() for cell in cells)
    return Control(sum(n for n, _ in counts), sum(alarms for _, alarms in counts), significant, counts)


SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20}


def natural(name: str) -> list[object]:
    """What ids are sorted by: 4k before 128k before 1m, 1th before 32th."""
    key: list[object] = []
    for text, number, unit, plain in re.findall(r"(\D*)(?:(\d+)([km]?)(?![a-z0-9])|(\d+))?", name):
        key += [text, int(number) * SIZES[unit] if number else int(plain or 0)]
    return key


def ordered(found: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Known ids in their order, then the others by name."""
    found, known = set(found), list(known)
    return tuple([name for name in known if name in found] + sorted(found - set(known), key=natural))


def row_order(device: str, workload: str, system: str) -> tuple[object, ...]:
    """What rows are sorted by: the paper's order, then what it does not know, by name."""
    known = tuple(list(names) for names in (DEVICES, WORKLOADS + FILE_WORKLOADS, SYSTEMS))
    place = (device, workload, system)
    return tuple(
        part
        for name, names in zip(place, known, strict=True)
        for part in (names.index(name) if name in names else len(names), natural(name))
    )


def grade_of(share: float, grades: Sequence[Grade]) -> Grade:
    """The class of what is left of native's throughput, in %."""
    return next((one for one in grades if share > one.over), grades[-1])


def graded(table: Table, grades: Sequence[Grade], source: str) -> Table:
    """What each system of a table leaves of native's throughput, in a paper's classes."""
    throughput = METRICS[0]
    cells, counts = {}, defaultdict[tuple[str, str], Counter[Grade]](Counter)
    for (device, workload, system, name), cell in table.cells.items():
        if name != throughput.id or system == NATIVE:
            continue
        marks = cell.marks & {Mark.INVALID, Mark.SINGLE}
        share = cell.difference.scaled(1, 100) if cell.difference else None
        grade = None
        if share:
            grade = grade_of(share.value, grades)
            counts[device, system][grade] += 1
        cells[device, workload, system, RELATIVE.id] = replace(
            cell, mean=None, difference=share, marks=marks, p=None, p_holm=None, grade=grade
        )
    *known, worst = [f"{one.sign} {one.name}" for one in grades]
    classes = ", ".join(f"{text} over {one.over:g} %" for text, one in zip(known, grades, strict=False))
    notes = [f"Throughput in % of native's, in the classes of {source}: {classes}, {worst} less."]
    for (device, system), found in counts.items():
        listed = ", ".join(f"{found[one]} {one.name}" for one in grades)
        notes.append(f"{DEVICES.get(device, device)}, {SYSTEMS.get(system, system)}: {listed}.")
    systems = tuple(system for system in table.systems if system != NATIVE)
    return replace(table, notes=(*table.notes, *notes), systems=systems, cells=cells, metrics=(RELATIVE,), tests="")


def column_name(metric: Metric, system: str, titles: Mapping[str, str] = SYSTEMS) -> str:
    """In the wide CSV, as in the paper's: native in lower case, the others as they write themselves."""
    return f"{metric.column}_{system if system == NATIVE else titles.get(system, system)}"


def printed_cell(metric: Metric, device: str, workload: str, mean: Interval | None, other: Interval | None) -> Cell:
    """A cell of a paper that does not report its runs. other: the difference."""
    return Cell(0, 0, mean, other, _marks(metric, device, workload, 0, 0, mean, other))


def paper_table(path: Path, number: int, title: str, notes: tuple[str, ...] = (), decimals_cpu: int = 1) -> Table:
    """One of a paper's own tables, from its CSV: means only, and native's where they are absolute."""
    devices = {title: name for name, title in DEVICES.items()}
    columns = {column_name(metric, system, COLUMNS): (metric, system) for metric in METRICS for system in COLUMNS}
    rows, systems, cells = [], [], {}
    with path.open(newline="", encoding="utf-8") as stream:
        for record in csv.DictReader(stream):
            named, workload = record.pop("device"), record.pop("workload")
            device = devices.get(named, named)
            rows.append((device, workload))
            for column, text in record.items():
                metric, system = columns[column]
                if system not in systems:
                    systems.append(system)
                if not text:
                    continue  # left out by the paper
                value = Interval(float(text))
                mean, difference = (value, None) if system == NATIVE else (None, value)
                cells[device, workload, system, metric.id] = printed_cell(metric, device, workload, mean, difference)
    return Table(number, title, notes, tuple(rows), tuple(systems), cells, decimals_cpu=decimals_cpu)
