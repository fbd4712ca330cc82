#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""
Runs clang-tidy, with the checks of .clang-tidy, over the C programs as build/host has them (make all).

    tests/analyze.py [FILE...]

Exit status: 0, or 1 if there is a finding that is not in FALSE, or one of FALSE is found no more.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parents[1]
BUILD = TOP / "build/host"
FINDING = re.compile(r"(?P<path>/?[^:\s]+):(?P<line>\d+):\d+: (error|warning): (?P<text>.*) \[(?P<check>[^],]+)[^]]*\]")


class Finding(NamedTuple):
    path: str
    check: str
    source: str  # the line


REFUSES = "what refuses returns the error it was given, never 0"
MALLOC = "clang-analyzer-unix.Malloc"
NULL = "clang-analyzer-core.NullDereference"
GARBAGE = "clang-analyzer-core.UndefinedBinaryOperatorResult"
# False findings, and why they are false. Where a line of code can say so itself, it does: NOLINT(check): why.
FALSE = {
    Finding("backends/s3/recovery/roll_forward.c", MALLOC, "free(data);"): REFUSES,
    Finding("backends/s3/recovery/roots.c", MALLOC, "free(base_data);"): REFUSES,
    Finding(
        "backends/s3/keeper/snapshot.c", GARBAGE, "if (v->snapshots[v->n_snapshots - 1].seq == snapshot->seq)"
    ): REFUSES,
    Finding(
        "backends/s3/base/localfile.c", "clang-analyzer-core.NonNullParamChecker", "unlink(f->path);"
    ): "made is set by open_path() alone, which has a path",
    Finding("backends/s3/log/write.c", MALLOC, "free(w);"): "on_heap is set in copies on the heap alone",
    Finding("backends/s3/recovery/replay.c", MALLOC, "stored = e->memory + used;"): "forget() frees it",
    Finding("backends/s3/state/object_table.c", NULL, "free(o->chunks[i]);"): "n_chunks is 0 until there are chunks",
    Finding(
        "backends/s3/state/map.c", GARBAGE, "return run.slot == S3_NO_SLOT && run.count >= count;"
    ): "of one block or more there is a run",
    Finding(
        "ublk/server.c", GARBAGE, "r = open_device(&s, params, old.basic.dev_sectors << UBLK_SECTOR_SHIFT, RELEASE_MS);"
    ): "the driver's commands return 0 or an error",
    Finding("ublk/show.c", NULL, "print_string(record->argv[i]);"): "without words there are 0 of them",
    Finding("ublk/main.c", MALLOC, 'warnx("%s", error.text);'): "the process ends here",
    Finding(
        "userblk-s3/options.c", NULL, "if (words + 1 >= argc || argv[words + 1][0] == '-') {"
    ): "before argv[argc] there is no null pointer",
    Finding(
        "harness/flow/crew.c",
        "clang-analyzer-optin.portability.UnixAPI",
        "c->members = calloc(c->threads, sizeof *c->members);",
    ): "there is a process, and a thread in each: wml.c, workload.c and main.c refuse others",
}


def sources() -> list[str]:
    """What programs are made of; tests and benchmarks are not looked at."""
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    found = {os.path.relpath(os.path.join(one["directory"], one["file"]), TOP) for one in commands}
    return sorted(path for path in found if not path.startswith("tests/"))


def analyze(source: str) -> tuple[str, dict[Finding, str]]:
    """What clang-tidy prints of a file, and its findings: where and what."""
    argv = ["clang-tidy", "-p", str(BUILD), "--quiet", source]
    result = subprocess.run(argv, cwd=TOP, capture_output=True, text=True, check=False)
    found = {}
    for match in map(FINDING.match, result.stdout.splitlines()):
        if match:
            path = os.path.relpath(os.path.join(BUILD, match["path"]), TOP)
            line = (TOP / path).read_text().splitlines()[int(match["line"]) - 1].strip()
            found[Finding(path, match["check"], line)] = f"{path}:{match['line']}: {match['text']} [{match['check']}]"
    if result.returncode and not found:
        found[Finding(source, "clang-tidy", "")] = f"{source}: clang-tidy failed: {result.stderr.strip()}"
    return result.stdout, found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Look for defects in the C programs with clang-tidy.")
    parser.add_argument("files", metavar="FILE", nargs="*", help="these alone")
    files = parser.parse_args(arguments).files or sources()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(analyze, files))
    true = 0
    seen: set[Finding] = set()
    for printed, found in results:
        seen.update(found)
        wrong = [reported for finding, reported in found.items() if finding not in FALSE]
        if wrong:
            print(printed, *wrong, sep="\n")
        true += len(wrong)
    gone = [finding for finding in FALSE if finding.path in files and finding not in seen]
    for finding in gone:
        print(f"{finding.path}: {finding.check} is found no more; take it out of tests/analyze.py: {finding.source}")
    print(f"analyze: {len(files)} files, {true} findings, {len(seen & FALSE.keys())} known to be false")
    return 1 if true or gone else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
