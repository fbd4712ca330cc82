# SPDX-License-Identifier: BSD-3-Clause
"""Where things are: in a checkout, or below a prefix after `make install`."""

from __future__ import annotations

from pathlib import Path

_HARNESS = Path(__file__).resolve().parent


def _checkout() -> Path | None:
    root = _HARNESS.parent
    return root if (root / "Makefile").is_file() and (root / "lab").is_dir() else None


CHECKOUT = _checkout()  # None: installed
# PREFIX/lib/python3/dist-packages/userblk/harness
_PREFIX = _HARNESS.parents[4] if CHECKOUT is None else CHECKOUT
SHARE = _PREFIX / "share/userblk" if CHECKOUT is None else CHECKOUT
CONFIGS = SHARE / "configs"
# The directory of plugins/ and tcmu-handlers/ for this machine.
HOST_BUILD = _PREFIX / "lib/userblk" if CHECKOUT is None else CHECKOUT / "build/host"
PYTHON_PATH = _HARNESS.parents[1] if CHECKOUT is None else CHECKOUT / "python"
