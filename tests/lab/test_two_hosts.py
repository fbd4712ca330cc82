# SPDX-License-Identifier: BSD-3-Clause
"""
A campaign on two machines over ssh, which are guests of the lab: SATA on one and NVMe on the other, one of which is
lost midway; then two alike as one.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from command_line import USERBLK
from ssh_server import CONFIG, SSHD, await_login, client, reserved_port, write_config

ROOT = Path(__file__).resolve().parents[2]
BOOT_LIMIT, LIMIT = 900.0, 1500.0  # s
DISKS = {"sata": ("/dev/sda", "LABSATA"), "nvme": ("/dev/nvme0n1", "LABNVME")}
CELLS = ["--systems", "native,nbdkit", "--workloads", "rand-write-16th-4k", "--reps", "2", "--seed", "5"]
RUNS = 4  # of each machine
# The guest has no sshd: it gets this machine's, with those of its libraries that are not the C library's.
SETUP = """#!/bin/sh
cp -a /extra/root/. /
mkdir -p /run/sshd
echo 'sshd:x:990:65534::/run/sshd:/usr/sbin/nologin' >>/etc/passwd
ln -sfn /results /var/lib/userblk
"""
OF_THE_C_LIBRARY = ("libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libresolv.so", "ld-linux")

pytestmark = [
    pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="no QEMU; run: apt-get install qemu-system-x86"),
    pytest.mark.skipif(not SSHD, reason="openssh-server is not installed"),
    pytest.mark.timeout(3600),
]


def give_sshd(directory: Path) -> None:
    """What a guest's /extra needs to have a server."""
    assert SSHD
    root, libraries = directory / "root", directory / "lib"
    libraries.mkdir(parents=True)
    helpers = [path for path in Path("/usr/lib/openssh").glob("sshd-*") if path.is_file()]  # of newer versions
    for program in (Path(SSHD), *helpers):
        target = root / program.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(program, target)
        listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
        for word in listed.split():
            if word.startswith("/") and not Path(word).name.startswith(OF_THE_C_LIBRARY):
                shutil.copy(word, libraries)
    (directory / "setup").write_text(SETUP)
    (directory / "setup").chmod(0o755)
    write_config(directory, 22, "0.0.0.0", Path("/extra"))  # the guest's network has this machine alone


class Machines:
    """Guests by name, each with a directory that outlasts it, as the disk of a machine does."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self.stack = stack
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.ports: dict[str, int] = {}
        give_sshd(directory / "extra")
        for name in ("red", "blue"):
            (directory / name).mkdir()
            self.ports[name] = stack.enter_context(reserved_port()).getsockname()[1]
        known = "".join(f"Host {name}\n HostName 127.0.0.1\n Port {port}\n" for name, port in self.ports.items())
        (directory / "ssh_config").write_text(f"{known}Host *\n User root\n ServerAliveInterval 60\n")
        self.ssh = client(directory / "extra", "-F", str(directory / "ssh_config"))

    def boot(self, name: str) -> None:
        """And wait until it can be reached."""
        argv = [str(ROOT / "lab/run"), "--timeout", "0", "--cpus", "1", "--memory", "2048", "--network"]
        argv += ["--forward", f"{self.ports[name]}:22", "--extra", str(self.directory / "extra")]
        argv += ["--share", str(self.directory / name), "--disk-size", "2G"]
        argv += ["--", "env", "LD_LIBRARY_PATH=/extra/lib", str(SSHD), "-D", "-e", "-f", f"/extra/{CONFIG}"]
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.running[name] = process
        self.stack.callback(self.lose, name)
        text = self.directory / f"{name}.log"
        await_login(self.ssh, name, lambda: "" if process.poll() is None else text.read_text(), BOOT_LIMIT)

    def lose(self, name: str) -> None:
        """Its power fails."""
        if process := self.running.pop(name, None):
            process.kill()  # QEMU ends with it
            process.wait()

    def describe(self, devices: dict[str, str]) -> Path:
        """A file of hosts: which device of each machine is measured."""
        name = "-".join(devices.values())
        text = f'name = "{name}"\nhosts = {json.dumps(list(devices))}\nuserblk = "/userblk"\n'
        text += f"ssh = {json.dumps(self.ssh)}\n"
        for machine, kind in devices.items():
            path, serial = DISKS[kind]
            text += f'[{machine}]\n{kind} = "{path}"\nconfirm = {{ {kind} = "{serial}" }}\n'
        file = self.directory / f"{name}.toml"
        file.write_text(text)
        return file


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with ExitStack() as stack:
        found = Machines(tmp_path_factory.mktemp("machines"), stack)
        for name in ("red", "blue"):
            found.boot(name)
        yield found


Seen = Callable[[dict[str, Any]], None]


def userblk(*words: str, cwd: Path, code: int = 0, seen: Seen = lambda event: None) -> str:
    """Its standard output. seen: called with each event of --json."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LAB_CLOCK")}
    argv = [sys.executable, USERBLK, *words]
    lines = []
    with (cwd / "stderr").open("w+") as errors:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=cwd, env=env)
        assert process.stdout
        for line in process.stdout:
            lines.append(line)
            if "--json" in words and line.startswith('{"host"'):
                seen(json.loads(line))
        assert process.wait(LIMIT) == code, "".join(lines) + (cwd / "stderr").read_text()
    return "".join(lines)


def only(directory: Path) -> Path:
    (found,) = (directory / "results").iterdir()
    return found


def status(directory: Path) -> dict[str, Any]:
    (found,) = json.loads(userblk("status", str(directory), "--json", cwd=directory))
    return {part["host"]: part for part in found["hosts"]}


def test_one_is_lost_and_the_campaign_resumed(machines: Machines, tmp_path: Path) -> None:
    hosts = machines.describe({"red": "sata", "blue": "nvme"})
    ended: list[str] = []

    def seen(event: dict[str, Any]) -> None:
        if event["event"] == "entry-done":
            ended.append(event["host"])
        if event["event"] == "entry-start" and event["host"] == "blue" and ended.count("blue") == 1:
            machines.lose("blue")

    text = userblk("run", "--hosts", str(hosts), *CELLS, "--json", cwd=tmp_path, code=3, seen=seen)
    directory = only(tmp_path)
    assert "the connection was lost" in text
    assert ended.count("red") == RUNS and ended.count("blue") < RUNS
    before = status(directory)
    assert (before["red"]["valid"], before["red"]["missing"]) == (RUNS, 0)
    assert before["blue"]["missing"] == RUNS  # what it has of them will be fetched

    machines.boot("blue")
    events = [json.loads(line) for line in userblk("resume", str(directory), "--json", cwd=tmp_path).splitlines()
              if line.startswith('{"host"')]  # fmt: skip
    # The runs that were whole before the power failed are not made again.
    assert {one["host"]: one["skipped"] for one in events if one["event"] == "start"} == {"red": RUNS, "blue": 1}
    assert [one["host"] for one in events if one["event"] == "entry-done"] == ["blue"] * (RUNS - 1)
    for part in status(directory).values():
        assert (part["valid"], part["missing"], part["invalid"]) == (RUNS, 0, 0), part

    # One table, with both; one comparison with the paper, of which each cell is there once; the warnings of both.
    rows = list(csv.DictReader(userblk("table", str(directory), "--format", "csv-long", cwd=tmp_path).splitlines()))
    (title,) = {row["measured"] for row in rows}
    assert "host blue, red" in title
    assert {(row["device"], row["system"]) for row in rows} == set(product(("sata", "nvme"), ("native", "nbdkit")))
    assert all(row["n"] == "2" and row["invalid"] == "0" for row in rows)
    compared = userblk("compare", str(directory), "bdus", "--json", cwd=tmp_path)
    cells = [cell for cell in json.loads(compared)["cells"] if cell.get("host")]
    assert len(cells) == len({(c["device"], c["workload"], c["system"], c["metric"]) for c in cells}) > 0
    assert {(cell["host"], cell["device"]) for cell in cells} == {("red", "sata"), ("blue", "nvme")}
    userblk("report", str(directory), cwd=tmp_path)
    page = (directory / "report/report.html").read_text()
    assert "red: " in page and "blue: " in page


def test_two_alike_are_one(machines: Machines, tmp_path: Path) -> None:
    hosts = machines.describe({"red": "nvme", "blue": "nvme"})
    userblk("run", "--hosts", str(hosts), *CELLS, "--json", cwd=tmp_path)
    directory = only(tmp_path)
    rows = list(csv.DictReader(userblk("table", str(directory), "--format", "csv-long", cwd=tmp_path).splitlines()))
    (title,) = {row["measured"] for row in rows}
    assert "host blue+red" in title
    assert rows and all(row["n"] == "4" for row in rows)
    assert {name: part["valid"] for name, part in status(directory).items()} == {"red": RUNS, "blue": RUNS}
