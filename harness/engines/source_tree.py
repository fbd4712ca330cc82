# SPDX-License-Identifier: BSD-3-Clause
"""A source tree that is unpacked and built: copies of this checkout's own files, as an archive in memory.

A run has no ramp: it is as long as its work, with the sync at its end.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from userblk import __version__

from ..machine import paths
from ..machine.durable import write_json
from ..machine.filesystem import Memory
from ..machine.packages import installing
from ..machine.subprocesses import Recorder, end_in_words
from ..model.config import Parameter, Profile, Suite, Workload
from ..model.parts import ENGINES
from ..model.tables import Table
from ..observing import timed
from ..observing.warmup import WarmUp
from ..systems.base import scratch
from . import Result, WorkloadError
from .base import OF_APPLICATIONS, Run, sizes_of, with_fixed_values
from .flow import CREATE_LIMIT, Flow, prepare_by

UNPACK, BUILD = "unpack", "build"
ROOMS = ("analysis", "configs", "harness", "lab", "programs")  # which the lab's guests have in virtual time, too
SUFFIXES = {".c", ".h", ".py", ".md", ".toml", ".csv", ".build", ".f", ".1", ".8", ".sh", ".mk"}
BUILT = "harness/flow"  # whose program needs the C library only
PROGRAM = "userblk-flow"
TOP, TREE = "tree", "tree.json"
COPY_BYTES = 16 << 20  # at most, of one copy and what is built of it
PROGRAMS = {"tar": "tar", "make": "make", "gcc": "gcc"}


def makefile(copies: Sequence[str], sources: Sequence[str]) -> str:
    """Each object of each copy by a compiler of its own, and a program of each copy."""
    lines = [f"CFLAGS = -O0 -std=c17 -pthread -D_GNU_SOURCE -DUSERBLK_VERSION='\"{__version__}\"'"]
    lines.append("programs: " + " ".join(f"{copy}/{PROGRAM}" for copy in copies))
    for copy in copies:
        objects = [f"{copy}/{source}".replace(".c", ".o") for source in sources]
        lines += [f"{copy}/{PROGRAM}: {' '.join(objects)}", "\tgcc -pthread -o $@ $^ -lm"]
        for source, one in zip(sources, objects, strict=True):
            lines += [f"{one}: {copy}/{source}", f"\tgcc $(CFLAGS) -I{copy} -c -o $@ $<"]
    return "\n".join(lines) + "\n"


def files_of(checkout: Path) -> list[str]:
    """What a copy has: the text files of the rooms."""
    return sorted(
        str(path.relative_to(checkout))
        for room in ROOMS
        for path in (checkout / room).rglob("*")
        if path.suffix in SUFFIXES and path.is_file() and not path.is_symlink()
    )


@dataclasses.dataclass(frozen=True)
class Tree:
    """How many files an archive has, and how many of them are compiled, with their bytes."""

    files: int
    bytes: int
    sources: int
    source_bytes: int


def copy_name(number: int) -> str:
    return f"copy-{number:04d}"


def write_archive(checkout: Path, copies: int, path: Path) -> Tree:
    """The tree as an archive."""
    names = files_of(checkout)
    sources = [name for name in names if Path(name).parent == Path(BUILT) and name.endswith(".c")]
    copied = [copy_name(number) for number in range(copies)]
    contents = {name: (checkout / name).read_bytes() for name in names}
    rules = makefile(copied, sources).encode()
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:

        def add(name: str, content: bytes) -> None:
            member = tarfile.TarInfo(f"{TOP}/{name}")
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))

        add("Makefile", rules)
        for copy in copied:
            for name, content in contents.items():
                add(f"{copy}/{name}", content)
    size = sum(map(len, contents.values()))
    of_sources = sum(len(contents[name]) for name in sources)
    return Tree(1 + copies * len(names), len(rules) + copies * size, copies * len(sources), copies * of_sources)


def parse(path: Path, tree: Mapping[str, int]) -> Result:
    """What the timed command did to the tree's files and bytes. Raises WorkloadError."""
    operations, size = tree["files"], tree["bytes"]
    try:
        found = json.loads(path.read_text())
        seconds, begin, code = float(found["end"]) - float(found["begin"]), float(found["begin"]), int(found["code"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WorkloadError(f"{path.name} cannot be read: {type(error).__name__} {error}") from None
    if code:
        raise WorkloadError(f"{found['program']} has not done its work: {end_in_words(code)}")
    return Result(
        throughput_kops=operations / seconds / 1e3,
        throughput_mbps=size / seconds / 1e6,
        latency_us=seconds / operations * 1e6,
        duration_s=seconds,
        operations=operations,
        measured_from=begin,
        warm_up=WarmUp("none", 0.0, None, "a run is as long as its work"),
        version=str(found["program"]),
        problems=(),
        warnings=(),
        ramp_s=0.0,
        metrics={"files_kops": operations / seconds / 1e3},
        settings={"files": operations, "bytes": size},
    )


def _workloads(suite: str, table: Table, profile: str) -> Iterator[Workload]:
    sizes = sizes_of(table, profile)
    copies = {name: sizes.integer(name, 1) for name in (UNPACK, BUILD)}
    sizes.end((UNPACK, BUILD))
    table.end(("name", "engine", "systems", "sizes"))
    for name, count in copies.items():
        yield Workload(name, suite=suite, engine="source-tree", files="createfile", fixed={"copies": count})


class SourceTree(Flow):
    """tar and make on a new ext4, or on a file system over it."""

    name = "source-tree"
    parameters = False
    operation = OF_APPLICATIONS
    has_ramp = False
    history = None
    bytes_per_inode = 8192  # many small files

    def suite(self, name: str, table: Table, profile: str, systems: tuple[str, ...]) -> Suite:
        return Suite(name, tuple(_workloads(name, table, profile)), systems)

    def lacks(self, workload: Workload, build: str) -> str:
        if paths.CHECKOUT is None or not (paths.CHECKOUT / BUILT).is_dir():
            return "the tree is made of a checkout's files; run bin/userblk in one"
        for program, package in PROGRAMS.items():
            if not shutil.which(program):
                return f"{program} is not installed; {installing(package)}"
        return ""

    def with_values(
        self, workload: Workload, profile: Profile, parameters: Sequence[Parameter], devices: Sequence[str]
    ) -> Workload:
        copies = workload.fixed["copies"]
        return with_fixed_values(workload, profile, devices, workload.id, copies, copies * COPY_BYTES)

    def run_text(self, workload: Workload, profile: Profile) -> str:
        return "until its work is done"

    def written(self, workload: Workload, profile: Profile, device: str) -> int:
        return self.new_bytes(profile, device) + workload.fixed["copies"] * COPY_BYTES

    def programs(self, build: str) -> list[str]:
        return [found for program in PROGRAMS if (found := shutil.which(program))]

    def make(self, run: Run, directory: Path, recorder: Recorder, memory: Memory) -> dict[str, object]:
        if run.workload.id == BUILD:
            archive, _ = self.archive(run)
            argv = ["tar", "-xf", str(archive), "-C", str(directory)]
            prepare_by(argv, recorder, memory, run.running, CREATE_LIMIT)
        return {}

    def archive(self, run: Run) -> tuple[Path, Tree]:
        assert paths.CHECKOUT is not None
        path = scratch(run.teardown) / "tree.tar"
        return path, write_archive(paths.CHECKOUT, run.workload.fixed["copies"], path)

    def begin(
        self, run: Run, mounted: Sequence[Path], recorder: Recorder, memory: Memory
    ) -> tuple[list[str], Callable[[], list[str]]]:
        directory = mounted[0]
        archive, tree = self.archive(run)
        work = ["tar", "-xf", str(archive), "-C", str(directory)]
        files, size = tree.files, tree.bytes
        if run.workload.id == BUILD:
            jobs = len(os.sched_getaffinity(0))
            work = ["make", "-s", f"-j{jobs}", "-C", str(directory / TOP)]
            files, size = tree.sources, tree.source_bytes
        write_json(run.directory / TREE, {"files": files, "bytes": size})
        results = self.place_of_results(run)

        def problems() -> list[str]:
            return [problem for argv, said in checks(run.workload, archive, directory) if (problem := look(argv, said))]

        return [sys.executable, timed.__file__, str(results), *map(str, mounted), "--", *work], problems

    def read_results(self, run: Run, results: Path) -> Result:
        return parse(results, json.loads((run.directory / TREE).read_text()))


def checks(workload: Workload, archive: Path, directory: Path) -> Iterator[tuple[list[str], str]]:
    """Commands that look at what was made, and the expected output of each."""
    if workload.id == UNPACK:
        yield ["tar", "--compare", "-f", str(archive), "-C", str(directory)], ""
    else:
        for number in range(workload.fixed["copies"]):
            yield [str(directory / TOP / copy_name(number) / PROGRAM), "--version"], f"{PROGRAM} {__version__}\n"


def look(argv: Sequence[str], said: str) -> str:
    """What is wrong with what a command prints, "" if nothing is."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=CREATE_LIMIT, check=False)
    except OSError as error:
        return f"{argv[0]}: {error.strerror}"
    if (done.returncode, done.stdout) == (0, said):
        return ""
    lines = (done.stdout + done.stderr).splitlines()
    return f"{Path(argv[0]).name}: {lines[0] if lines else f'exit code {done.returncode}'}"


ENGINES.add(SourceTree())
