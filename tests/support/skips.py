# SPDX-License-Identifier: BSD-3-Clause
"""Which skipped tests would run after an installation or with other variables."""

from __future__ import annotations

import re

# How the reasons of skips begin that stay skips: what the running kernel, the libfuse of the
# release, or a sanitizer lacks, and what a guest's old release is too old for. Anything else was to
# be installed.
UNMENDABLE = ("kernel: ", "libfuse: ", "release: ", "sanitizer: ")
# As pytest, the unit tests and recipes print them.
LINE = re.compile(r"SKIPPED \[\d+\] (?:\S+\.py(?::\d+)?: )?(.*)")


def mendable(log: str) -> bool:
    """Whether a line of a log tells of a skip that need not stay one."""
    reasons = (line[1] for line in map(LINE.match, log.splitlines()) if line)
    return any(not reason.startswith(UNMENDABLE) for reason in reasons)
