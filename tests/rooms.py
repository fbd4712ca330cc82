#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks which folders include headers of which: arrows go in one direction, as declared here.

tests/rooms.py [--write] [TOP]: exit status 1 and a line for each #include that goes up, 2 for a folder that is not
declared. docs/architecture.md has a drawing of the folders, C and Python; exit status 1, too, if the code has other
arrows, which --write draws.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

# A folder includes what stands above it in this list, and its own headers.
ORDER = """
backends
backends/s3/base
backends/s3/client
backends/s3/format
backends/s3/state
backends/s3/core
backends/s3/read
backends/s3/log
backends/s3/recovery
backends/s3/keeper
backends/s3/chunked
backends/s3/lifecycle
backends/s3/admin
backends/s3/device
userblk-s3
""".split()
# These know frameworks and no device: they include their own headers and those of backends/ and workers/.
FRAMEWORKS = "plugins tcmu-handlers ublk buse fuse-disk".split()
# Threads for frameworks.
WORKERS = "workers"
DEVICES_ONLY = "backends/device.h"
# What mounts through FUSE, and what that has in common.
FUSE = "fuse-passthrough fuse-nullfs fuse-disk".split()
SESSION = "fuse-session"
# These share nothing with the others.
ALONE = ["lab/preload", "lab/ssd"]
# The programs that put load on a device or files, which share nothing with those: as ORDER.
LOADS = "harness/flow harness/openloop harness/ops harness/kv".split()
# What all programs include.
PROGRAMS = "programs"
# Tests include whatever they test.
TESTS = "tests/"

# A folder of the Python package imports from those above it in this list.
PYTHON_ORDER = """
harness/observing
harness/machine
harness/model
harness/systems
harness/engines
harness/stores
harness/running
analysis
lab
harness/cli
""".split()

# Headers that are for the files of their own folder.
INTERNAL = re.compile(r"(^|_)internal\.h$")
# In quotes, or in brackets what is in this tree.
INCLUDE = re.compile(r"""^\s*#\s*include\s+["<]([^">]+)[">]""")

MAX_LINES = 800
MAX_LINES_UNDER = "backends/s3/"


def may_include(folder: str, other: str) -> bool:
    """May a file in folder include a header in other?"""
    if other in (folder, PROGRAMS):
        return True
    for order in (ORDER, LOADS):
        if folder in order and other in order:
            return order.index(other) < order.index(folder)
    return (folder in FRAMEWORKS and other in ("backends", WORKERS)) or (folder in FUSE and other == SESSION)


def look_at(top: Path, name: str) -> list[str]:
    """What is wrong with a file. A header that is named without a folder is one of its own."""
    wrong = []
    folder = str(PurePosixPath(name).parent)
    lines = (top / name).read_text().splitlines()
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match or ("<" in match[0] and not (top / match[1]).is_file()):
            continue
        other = PurePosixPath(match[1])
        where = f"{name}:{number}: includes {other}"
        if str(other.parent) == ".":
            continue
        if not may_include(folder, str(other.parent)):
            wrong.append(f"{where}: {folder} may not use {other.parent}; see tests/rooms.py")
        elif INTERNAL.search(other.name) and str(other.parent) != folder:
            wrong.append(f"{where}: which is for the files of {other.parent}")
        elif folder in FRAMEWORKS and str(other) == DEVICES_ONLY:
            wrong.append(f"{where}: which is for devices; a framework calls backend_*()")
    if name.startswith(MAX_LINES_UNDER) and len(lines) > MAX_LINES:
        wrong.append(f"{name}: {len(lines)} lines, more than {MAX_LINES}: split it")
    return wrong


Arrows = dict[str, set[str]]  # what each folder uses

PYTHON = ("harness/", "analysis/", "lab/")
DRAWN_IN = "docs/architecture.md"
DRAWING = re.compile(r"(?<=<!-- drawn by tests/rooms.py -->\n).*?(?=<!-- end of the drawing -->)", re.S)


def c_arrows(top: Path, names: list[str]) -> Arrows:
    arrows: Arrows = {}
    for name in names:
        folder = str(PurePosixPath(name).parent)
        used = arrows.setdefault(folder, set())
        for match in map(INCLUDE.match, (top / name).read_text().splitlines()):
            if match and "/" in match[1] and (top / match[1]).is_file():
                used.add(str(PurePosixPath(match[1]).parent))
        used.discard(folder)
    return arrows


def python_arrows(top: Path, names: list[str]) -> Arrows:
    """Imports between the folders of the package userblk, whose links lead to the folders of the same names."""
    arrows: Arrows = {}
    for name in names:
        package = PurePosixPath(name).parent
        used = arrows.setdefault(str(package), set())
        for node in ast.walk(ast.parse((top / name).read_text())):
            if not isinstance(node, ast.ImportFrom):
                continue
            module = PurePosixPath(*(node.module or "").split("."))
            if node.level:
                module = PurePosixPath(*package.parts[: len(package.parts) - node.level + 1]) / module
            elif module.parts[:1] == ("userblk",):
                module = PurePosixPath(*module.parts[1:])
            else:
                continue
            for target in (module / alias.name for alias in node.names):
                places = [place for place in (target, *target.parents) if (top / place).is_dir() and place.parts]
                if places:
                    used.add(str(places[0]))
        used.discard(str(package))
    return arrows


def without_detours(arrows: Arrows) -> Arrows:
    """The arrows that no way over other folders stands for; all of them where there is a circle."""

    def reached(start: str, leave_out: str) -> set[str]:
        seen: set[str] = set()
        left = [folder for folder in arrows.get(start, set()) if folder != leave_out]
        while left:
            folder = left.pop()
            if folder not in seen:
                seen.add(folder)
                left += arrows.get(folder, set())
        return seen

    return {one: {other for other in used if other not in reached(one, other)} for one, used in arrows.items()}


def circles(arrows: Arrows) -> list[str]:
    """Imports that go up in PYTHON_ORDER, a line each."""
    place = {folder: number for number, folder in enumerate(PYTHON_ORDER)}
    return [
        f"{one} imports from {other}, which is not above it in tests/rooms.py"
        for one, used in sorted(arrows.items())
        for other in sorted(used)
        if place.get(other, len(place)) >= place.get(one, -1)
    ]


def drawing(arrows: Arrows) -> str:
    lines = ["```mermaid", "flowchart TD"]
    name = {
        folder: re.sub(r"\W", "_", folder) for folder in {*arrows, *(one for used in arrows.values() for one in used)}
    }
    lines += [f"    {name[folder]}[{folder}/]" for folder in sorted(name)]
    lines += [f"    {name[folder]} --> {name[other]}" for folder in sorted(arrows) for other in sorted(arrows[folder])]
    return "\n".join([*lines, "```", ""])


def tracked(top: Path, *patterns: str) -> list[str]:
    listed = subprocess.run(
        ["git", "-C", str(top), "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return [n for n in listed.split("\0") if n and not n.startswith(TESTS) and (top / n).is_file()]


def main() -> int:
    write = "--write" in sys.argv[1:]
    places = [word for word in sys.argv[1:] if word != "--write"]
    top = Path(places[0] if places else ".")
    names = tracked(top, "*.c", "*.h")
    folders = {str(PurePosixPath(n).parent) for n in names}
    unknown = sorted(folders.difference(ORDER, FRAMEWORKS, FUSE, [SESSION, PROGRAMS, WORKERS], ALONE, LOADS))
    if unknown or not names:
        print("rooms: not declared in tests/rooms.py:", *unknown, file=sys.stderr)
        return 2
    wrong = [line for name in names for line in look_at(top, name)]
    python = [name for name in tracked(top, "*.py") if name.startswith(PYTHON)]
    imports = python_arrows(top, python)
    wrong += circles(imports)
    drawn = drawing(without_detours(c_arrows(top, names))) + "\n" + drawing(without_detours(imports))
    page = top / DRAWN_IN
    text = page.read_text() if page.exists() else ""
    if write:
        page.write_text(DRAWING.sub(lambda _: drawn, text))
    elif (found := DRAWING.search(text)) is None or found[0] != drawn:
        wrong.append(f"{DRAWN_IN}: the code has other arrows than its drawing; run tests/rooms.py --write, look at it")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
