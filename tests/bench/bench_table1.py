# SPDX-License-Identifier: BSD-3-Clause
"""Some cells of docs/tables.md's Table 1 once more, in the lab in virtual time: does it give the same today?

Random reads of 4 KiB by 16 threads, which repeat whatever else this machine does (docs/lab.md). It prints, as a JSON
object, native's throughput (kop/s) and latency (us), and by how much nbdkit and TCMU differ from them (%).
    PYTHONPATH=python python3 tests/bench/bench_table1.py [CAMPAIGN.tar.gz]
prints those of a campaign that was exported, such as docs/data/table1.tar.gz.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from userblk.analysis.summaries import read_campaign
from userblk.analysis.table import METRICS
from userblk.analysis.tabulate import make_tables
from userblk.harness.running import archive

WORKLOAD = "rand-read-16th-4k"
OTHERS = ("nbdkit", "tcmu")


def measured(results: Path) -> Path:
    """A new campaign's directory. Raises CalledProcessError."""
    words = ["--where", "lab", "--clock", "virtual", "--suite", "bdus-block", "--workloads", WORKLOAD, "--reps", "1"]
    words += ["--systems", ",".join(("native", *OTHERS)), "--seed", "1", "--results", str(results)]
    subprocess.run([sys.executable, "bin/userblk", "run", *words], check=True, stdout=sys.stderr)
    (directory,) = results.iterdir()
    return directory


def values(directory: Path) -> dict[str, float]:
    campaign = read_campaign(directory)
    table = next(table for table in make_tables(campaign.runs, campaign.seed) if table.number == 1)
    found: dict[str, float] = {}
    for device in dict.fromkeys(device for device, _ in table.rows):
        for metric in METRICS[:2]:
            mean = table.cell(device, WORKLOAD, "native", metric).mean
            assert mean is not None
            found[f"{device}-native-{metric.id}"] = mean.value
            for system in OTHERS:
                difference = table.cell(device, WORKLOAD, system, metric).difference
                assert difference is not None
                found[f"{device}-{system}-{metric.id}-change"] = abs(difference.value)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("campaign", type=Path, nargs="?", help="that was exported, instead of a new one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        directory = archive.unpack(args.campaign, Path(place)) if args.campaign else measured(Path(place))
        print(json.dumps(values(directory), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
