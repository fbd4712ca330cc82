#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks which folders include headers of which: arrows go in one direction, as declared here.

tests/rooms.py [TOP]: exit status 1 and a line for each #include that goes up, 2 for a folder that is not declared.
"""

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
# These know frameworks and no device: they include their own headers and those of backends/.
FRAMEWORKS = "plugins tcmu-handlers ublk buse fuse-disk".split()
DEVICES_ONLY = "backends/device.h"
# These share nothing with the others.
ALONE = "fuse-passthrough harness/flow lab/ssd".split()
# Tests include whatever they test.
TESTS = "tests/"

# Headers that are for the files of their own folder.
INTERNAL = re.compile(r"(^|_)internal\.h$")
# In quotes, or in brackets what is in this tree.
INCLUDE = re.compile(r"""^\s*#\s*include\s+["<]([^">]+)[">]""")

MAX_LINES = 800
MAX_LINES_UNDER = "backends/s3/"


def may_include(folder: str, other: str) -> bool:
    """May a file in folder include a header in other?"""
    if folder == other:
        return True
    if folder in ORDER and other in ORDER:
        return ORDER.index(other) < ORDER.index(folder)
    return folder in FRAMEWORKS and other == "backends"


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


def main() -> int:
    top = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    listed = subprocess.run(
        ["git", "-C", str(top), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.c", "*.h"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    names = [n for n in listed.split("\0") if n and not n.startswith(TESTS) and (top / n).is_file()]
    folders = {str(PurePosixPath(n).parent) for n in names}
    unknown = sorted(folders.difference(ORDER, FRAMEWORKS, ALONE))
    if unknown or not names:
        print("rooms: not declared in tests/rooms.py:", *unknown, file=sys.stderr)
        return 2
    wrong = [line for name in names for line in look_at(top, name)]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
