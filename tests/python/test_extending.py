# SPDX-License-Identifier: BSD-3-Clause
"""A kind of system and an engine from outside the tree, a file each: found, planned, run and torn down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from command_line import userblk
from loops import LIMIT, MIB, loop
from userblk.harness.machine.paths import CONFIGS, PYTHON_PATH

KIND = """
from userblk.harness.machine.blockdev import identify
from userblk.harness.model.parts import KINDS
from userblk.harness.systems.base import Context, Layer, Running


class Twice(Layer):
    name = "twice"
    needs = ("loop",)
    packages = {"losetup": "mount"}

    def up(self, context: Context) -> Running:
        argv = ["losetup", "--find", "--show", context.device.path]
        path = context.recorder.run(argv, timeout=60).strip()
        context.teardown.push("detach_loop", device=path)
        return Running(used=identify(path), backing=context.device)


KINDS.add(Twice())
"""

ENGINE = """
import os
import time

from userblk.harness.engines import Result
from userblk.harness.engines.base import DeviceEngine, Job, Run
from userblk.harness.model.config import Suite, Workload
from userblk.harness.model.parts import ENGINES
from userblk.harness.observing.warmup import WarmUp


class Dd(DeviceEngine):
    name = "dd"

    def suite(self, name, table, profile, systems):
        count = table.integer("count", 1)
        table.end(("name", "engine", "count"))
        return Suite(name, (Workload("read", "read", threads=count, suite=name, engine="dd"),), systems)

    def programs(self, build):
        return ["dd"]

    def prepare(self, run: Run):
        argv = ["dd", f"if={run.running.target}", "of=/dev/null", "bs=4096", f"count={run.workload.threads}"]
        begin = time.monotonic()

        def parse() -> Result:
            warm_up = WarmUp("none", 0, None, "")
            return Result(1.0, 4.096, 1.0, time.monotonic() - begin, begin, 1.0, warm_up, "9", (), ())

        return Job(["sh", "-c", "sleep 0.3; exec " + " ".join(argv)], 1.0, parse, (), os.fsync, run.area), {}


ENGINES.add(Dd())
"""

CAMPAIGN = """
import dataclasses, sys
from pathlib import Path
from userblk.harness.model import tables
from userblk.harness.model.config import load_profile, load_suite, load_system
from userblk.harness.model.plan import Device, make_plan
from userblk.harness.running.campaign import create

directory = Path(sys.argv[1])
profile = dataclasses.replace(load_profile("quick"), area={"sata": 16 << 20}, ramp_s=0, dirty_bytes=0)
tables.CONFIGS = directory / "configs"
plan = make_plan(
    suite=load_suite("copies"), profile=profile, systems=[load_system("twice")], campaign="c", build="build/host",
    devices=[Device("sata", sys.argv[2], sys.argv[3])], repetitions=1, seed=1,
)
create(plan, directory / "results", ["by hand"])
"""


WITHOUT_A_DEVICE = """
import sys
from pathlib import Path
from userblk.harness import cli
from userblk.harness.model import tables

tables.CONFIGS = Path("configs")
sys.exit(cli.main())
"""


def test_a_kind_and_an_engine_from_elsewhere(tmp_path: Path) -> None:
    for name, text in {
        "more/userblk/harness/systems/twice.py": KIND,
        "more/userblk/harness/engines/dd.py": ENGINE,
        "configs/systems/twice.toml": 'name = "twice"\nkind = "twice"\ntitle = "loop over loop"\n',
        "configs/suites/copies.toml": 'name = "copies"\nengine = "dd"\ncount = 16\n',
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in ("workloads", "profiles", "systems/native.toml"):
        (tmp_path / "configs" / name).symlink_to(CONFIGS / name)
    env = dict(os.environ, PYTHONPATH=f"{PYTHON_PATH}:{tmp_path}/more")
    for word, code in (("suite=copies", "engines/dd.py"), ("system=twice", "systems/twice.py")):
        systems = "twice" if word == "system=twice" else "native"
        argv = ["plan", "--where", "lab", "--suite", "copies", "--systems", systems, "--seed", "1"]
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_A_DEVICE, *argv], env=env, cwd=tmp_path, capture_output=True, text=True
        )
        says = f"userblk: {word}: {tmp_path}/more/userblk/harness/{code} is not there in the lab's guest; copy it into "
        assert done.returncode == 2 and done.stderr.startswith(says) and done.stderr.count("\n") == 1, done
    (tmp_path / "image").mkdir()
    with loop(tmp_path / "image", 64 * MIB) as device:
        plan = [sys.executable, "-c", CAMPAIGN, str(tmp_path), device, str(64 * MIB)]
        subprocess.run(plan, env=env, check=True, timeout=LIMIT)
        argv = [sys.executable, "-m", "userblk.harness.running.runner", str(tmp_path / "results/c/plan.json")]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=LIMIT)
        files = [path.read_text().strip() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (tmp_path / "results/c").rglob("summary.json")
    summary = json.loads(file.read_text())
    assert summary["valid"], summary["invalid"]
    assert (summary["system"], summary["engine"], device in files) == ("twice", "dd", False)
    table = userblk("table", "c", cwd=tmp_path, COLUMNS="200").stdout
    assert "loop over loop" in table and "twice" not in table, table
