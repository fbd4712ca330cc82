# SPDX-License-Identifier: BSD-3-Clause
"""Where the checkout is. A program that imports it first finds the package and tests/support, also when run by hand."""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(CHECKOUT / "python"), str(CHECKOUT / "tests/support")]
