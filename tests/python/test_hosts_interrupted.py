# SPDX-License-Identifier: BSD-3-Clause
"""The end of a campaign on several hosts from outside, by hosts that are this machine, reached by a shell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from userblk.harness.running import hosts

LIMIT = 30.0  # s
# Standard input of what would be ssh is the connection.
SHELL = (
    'echo "$3" >> {log}; test ! -e {slow} || { touch {waits}; sleep 1; }; case $3 in tar*) sleep 1;; esac; eval "$3"'
)
RUNNER = """
import json, os, sys, time
from pathlib import Path
print(json.dumps({"event": "start"}), flush=True)
while os.read(0, 4096):
    pass
time.sleep(SLEEP)
(Path(sys.argv[-1]).parent / "kept").touch()
print(json.dumps({"event": "note", "text": "all is torn down"}), flush=True)
sys.exit(130)
"""
# It gets SIGINT once the file is there or the event has come.
CAMPAIGN = """
import os, signal, sys, threading, time
from pathlib import Path
from userblk.harness.machine import interrupt
from userblk.harness.running import campaign, hosts
directory, file, campaign.STOP_LIMIT = Path(sys.argv[1]), Path(sys.argv[2]), 0.5

def show(host, event):
    print(host, event["event"], event.get("text", ""), flush=True)
    if event["event"] == "start":
        file.touch()

def signals():
    while not file.exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)

interrupt.install()
threading.Thread(target=signals, daemon=True).start()
try:
    hosts.MultiHostCampaign(hosts.read_hosts(directory), directory, show).run()
except interrupt.Interrupted as reason:
    print(reason)
"""


def interrupted(tmp_path: Path, *, slow: bool = False, tears_down: float = 0.0) -> tuple[list[str], list[str]]:
    """
    What a campaign on a host has shown, and the commands there. slow: SIGINT comes during the first of them, else when
    the runner has started, which then takes so long to end.
    """
    directory, package = tmp_path / "c", tmp_path / "python/userblk/harness/running"
    (directory / "hosts/red").mkdir(parents=True)
    (directory / "hosts/red/plan.json").write_text("{}")
    package.mkdir(parents=True)
    (package / "runner.py").write_text(RUNNER.replace("SLEEP", str(tears_down)))
    log, file = tmp_path / "log", tmp_path / "file"
    shell = SHELL.replace("{log}", str(log)).replace("{slow}", str(tmp_path / "slow")).replace("{waits}", str(file))
    value: dict[str, Any] = {"schema": hosts.SCHEMA, "name": "one", "userblk": str(tmp_path)}
    value |= {"directory": str(tmp_path / "there"), "ssh": ["sh", "-c", shell]}
    value["hosts"] = [{"id": "red", "address": "red", "devices": {}, "confirm": {}}]
    (directory / hosts.FILE).write_text(json.dumps(value))
    if slow:
        (tmp_path / "slow").touch()
    argv = [sys.executable, "-c", CAMPAIGN, str(directory), str(file)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.splitlines(), log.read_text().splitlines()


def test_an_interrupt_in_the_first_commands_ends_the_campaign(tmp_path: Path) -> None:
    """It starts no runner then, which nobody would wait for."""
    shown, commands = interrupted(tmp_path, slow=True)
    assert shown == ["SIGINT"] and not [line for line in commands if "runner" in line]


def test_an_interrupt_has_the_runner_tear_down_and_fetches_what_there_is(tmp_path: Path) -> None:
    shown, _ = interrupted(tmp_path, tears_down=0.2)
    assert shown == ["red start ", "red note all is torn down", "SIGINT"]
    assert (tmp_path / "c/hosts/red/kept").exists()


def test_what_a_runner_still_writes_is_not_fetched(tmp_path: Path) -> None:
    """Its connection was closed, and it tears down without it."""
    shown, commands = interrupted(tmp_path, tears_down=20)
    says = "the connection was closed; the runner there goes on tearing down, and its results are not fetched"
    assert shown == ["red start ", f"red note {says}", "SIGINT"]
    assert not [line for line in commands if line.startswith("tar ")]
