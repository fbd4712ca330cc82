# SPDX-License-Identifier: BSD-3-Clause
"""What the FUSE daemon granted decides whether a run counts."""

from __future__ import annotations

import pytest
from userblk.harness.config import load_system
from userblk.harness.systems import fuse

LINE = (
    "userblk-passthrough: ready libfuse=3.17.2 protocol=7.41 writeback=on timeout=86400 splice=on clone-fd=off"
    " max-threads=1000 passthrough=off io-uring=off killpriv-v2=off acl=on handles=on ownership=caller\n"
)
WANTED = load_system("fuse").negotiated


def test_the_status_line_is_found_among_others() -> None:
    found = fuse.status("a warning\n" + LINE)
    assert (found["libfuse"], found["writeback"], found["max-threads"]) == ("3.17.2", "on", "1000")
    assert fuse.status("") == fuse.status("userblk-passthrough: not yet\n") == {}


def test_what_was_asked_for_and_granted_is_no_fallback() -> None:
    assert fuse.fallbacks(fuse.status(LINE), WANTED) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("writeback=on", "writeback=refused", "writeback was refused"),
        ("splice=on", "splice=off", "splice is off instead of on"),
        ("passthrough=off", "passthrough=on", "passthrough is on instead of off"),
        (" timeout=86400", "", "does not tell timeout"),
        ("acl=on", "acl=refused", "acl was refused"),
    ],
)
def test_a_fallback_is_told(old: str, new: str, says: str) -> None:
    (line,) = fuse.fallbacks(fuse.status(LINE.replace(old, new)), WANTED)
    assert says in line
