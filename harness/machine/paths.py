# SPDX-License-Identifier: BSD-3-Clause
"""Where things are: in a checkout, or below a prefix after `make install` or `pip install`."""

from __future__ import annotations

from pathlib import Path

_HARNESS = Path(__file__).resolve().parents[1]


def _checkout() -> Path | None:
    root = _HARNESS.parent
    return root if (root / "Makefile").is_file() and (root / "lab").is_dir() else None


CHECKOUT = _checkout()  # None: installed
# PREFIX/lib/python3/dist-packages/userblk/harness
_PREFIX = _HARNESS.parents[4] if CHECKOUT is None else CHECKOUT
SHARE = _PREFIX / "share/userblk" if CHECKOUT is None else CHECKOUT
CONFIGS = SHARE / "configs"


def _programs() -> Path:
    """The directory of plugins/, tcmu-handlers/, flow/... for this machine; pip installs none of them."""
    if CHECKOUT is not None:
        return CHECKOUT / "build/host"
    places = [prefix / "lib/userblk" for prefix in (_PREFIX, Path("/usr/local"), Path("/usr"))]
    return next((place for place in places if place.is_dir()), places[0])


HOST_BUILD = _programs()
PYTHON_PATH = _HARNESS.parents[1] if CHECKOUT is None else CHECKOUT / "python"
