# SPDX-License-Identifier: BSD-3-Clause
"""What works in a checkout only is done by the source that an installation brings along."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ..model import source
from ..model.tables import NeedsCheckout


def start_again(need: NeedsCheckout) -> NoReturn:
    """Run the same command by the unpacked source. Raises ConfigError: need, if no source was installed."""
    place = source.unpack()
    if place is None:
        raise need
    os.execv(sys.executable, [sys.executable, str(place / "bin/userblk"), *sys.argv[1:]])
