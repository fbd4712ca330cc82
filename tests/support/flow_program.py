# SPDX-License-Identifier: BSD-3-Clause
"""userblk-flow as tests run it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from loops import LIMIT

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = ROOT / "configs" / "workloads"
FLOW = ROOT / "build" / "host" / "flow" / "userblk-flow"
READS = """
define fileset name=f,path=$dir,entries=200,dirwidth=20,size=4k,prealloc
define process name=p {{ thread name=t,memsize=4k,instances=2 {{
  flowop openfile name=open1,filesetname=f,fd=1
  flowop readwholefile name=read1,fd=1
  flowop closefile name=close1,fd=1
}} }}
{}
"""


def run_flow(*args: object, timeout: float = LIMIT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(FLOW), *map(str, args)], capture_output=True, text=True, timeout=timeout, check=False)


def settings(directory: Path, **values: object) -> list[str]:
    return [f"--set=dir={directory}", *(f"--set={k}={v}" for k, v in values.items())]


def results(tmp_path: Path, workload: Path, *args: str, **values: object) -> dict[str, Any]:
    """The JSON results of a run that must succeed."""
    out = tmp_path / "results.json"
    done = run_flow("-q", "--json", out, *args, *settings(tmp_path, **values), workload)
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = json.loads(out.read_text())
    return loaded


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "workload.f"
    path.write_text(f"set $dir=/tmp\n{text}")
    return path


def counts(result: dict[str, Any]) -> dict[str, int]:
    return {row["name"]: row["ops"] for row in result["flowops"]}
