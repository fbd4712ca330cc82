# SPDX-License-Identifier: BSD-3-Clause
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "component"))
