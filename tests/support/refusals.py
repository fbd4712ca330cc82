# SPDX-License-Identifier: BSD-3-Clause
"""The error for a user who names a device that must not be overwritten."""

from __future__ import annotations

import re

from userblk.harness.machine.blockdev import identify
from userblk.harness.machine.safety import Refused, claimed
from userblk.harness.running.campaign import host_devices


def refusal(path: str, confirm: str | None = None) -> str:
    """The line. confirm: what the user repeats of the device; None: what is asked for. Fails if it is accepted."""
    given = confirm or ""
    while True:
        try:
            (found,) = host_devices({"sata": path}, given)
            with claimed(identify(found.path)):
                pass
        except Refused as refused:
            text = str(refused)
        else:
            raise AssertionError(f"{path}: accepted, confirmed by {given!r}")
        asked = re.search(r"confirm it with .*, (\S+)$", text)
        if confirm is not None or asked is None or given == asked[1]:
            assert text.startswith(f"{path}: ") and "; " in text and "\n" not in text, text
            return text
        given = asked[1]  # what a user would do next
