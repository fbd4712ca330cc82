# SPDX-License-Identifier: BSD-3-Clause
"""What a run asked of fio as a job file: `fio replay.fio` asks the same again, without userblk.

It neither brings a system up nor prepares a device: what it wants of both is in the comments at its head. It may be
run elsewhere, so it names no device that it would write to: fio refuses it until $DEVICE does.
"""

from __future__ import annotations

from collections.abc import Sequence

FILE = "replay.fio"
LOGS = ("write_bw_log", "write_iops_log", "write_lat_log")
READS = ("--rw=read", "--rw=randread")
NAMED = "filename=${DEVICE}"  # fio expands environment variables
WRITES = f"# WRITES; name a device that may be LOST: DEVICE=/dev/... fio {FILE}"
ON_COMMAND_LINES = ("output", "output-format", "eta")  # which job files do not know


def job_file(argv: Sequence[str], comments: Sequence[str]) -> str:
    """A job file from fio's command line, whose options are all of the form --name=value or --name."""
    writes = any(word.startswith("--rw=") and word not in READS for word in argv)
    head = [f"# {' '.join(comment.split())}" for comment in comments]
    lines: list[str] = []
    for word in argv[1:]:
        name, given, value = word.removeprefix("--").partition("=")
        if name in ON_COMMAND_LINES:
            continue
        if name == "name":
            lines += ["", f"[{value}]"]
        elif name in LOGS:
            lines.append(f"{name}=replay")  # beside where it is started, not over the run's own
        elif name == "filename" and writes:
            lines.append(NAMED)
        else:
            lines.append(f"{name}{given}{value}")
    if lines and lines[0]:
        lines = ["", "[global]", *lines]
    licence = "# SPDX-License-Identifier: BSD-3-Clause"
    return "\n".join([licence, *[WRITES] * (NAMED in lines), *head, *lines]) + "\n"
