# SPDX-License-Identifier: BSD-3-Clause
"""
Random lives of a ublk disk: servers that are killed, recovered, replaced and ended at once, at random moments, while a
program writes. Nobody hangs, no acknowledged write is lost, the last replacement serves, and nothing stays.
"""

from __future__ import annotations

import json
import mmap
import os
import platform
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from guest import NVME, leftovers, mapped, run
from guest_ublk import NEEDS_UBLK, UBLK, Add, disks, info, mode_options, ublk
from stamps import BLOCK, ZEROES, number_of, stamped
from waiting import wait_until

SECONDS = float(os.environ.get("UBLK_LIVES_SECONDS", "10"))  # of each mode
SEED = int(os.environ.get("UBLK_LIVES_SEED", str(time.time_ns() % (1 << 40))))
DEADLINE = 120.0  # s: what takes longer hangs; a full queue before Linux 6.16 takes 40
STANDING_S = 3.0
BLOCKS = 64  # of each kind that the program writes
KINDS = ("buffered", "direct")
PROGRAM = "userblk-ublk"
# Before, a server that is killed while it takes the queues over leaves a disk forever (CAVEATS).
MAY_KILL_REPLACEMENTS = tuple(map(int, platform.release().split(".")[:2])) >= (6, 16)

pytestmark = [NEEDS_UBLK, pytest.mark.timeout(SECONDS + 1200)]


@dataclass(frozen=True)
class Plan:
    """A life. bursts: what is done at once, and how long after the one before."""

    options: tuple[str, ...]
    bursts: tuple[tuple[tuple[str, float], ...], ...]
    end: str
    quiet: bool  # the program has stopped before the end
    pauses: bool  # processes of ours stand still for moments


COMMANDS = ("replace one", "replace two", "replace bad", "recover", "kill server", "kill replacement", "list")
ENDS = ("delete", "delete --force", "term", "kill and delete")


def draw(rng: random.Random) -> Plan:
    def pause() -> float:
        return rng.choice([0.0, rng.random() * 0.01, rng.random() * 0.2])

    commands = [name for name in COMMANDS if MAY_KILL_REPLACEMENTS or name != "kill replacement"]
    queues: tuple[str, ...] = rng.choice([("--queues=1", "--depth=1"), ("--queues=1", "--depth=4"), ()])
    recovery = rng.choice(["reissue", "reissue", "reissue", "fail", "none"])
    return Plan(
        options=(f"--recovery={recovery}", *queues),
        bursts=tuple(
            tuple((rng.choice(commands), pause()) for _ in range(rng.choice([1, 1, 2, 2, 3])))
            for _ in range(rng.choice([1, 2, 3, 4]))
        ),
        end=rng.choice(ENDS),
        quiet=rng.random() < 0.7,
        pauses=rng.random() < 0.5,
    )


def write(disk: str, number: int) -> None:
    """
    The program: writes stamped blocks through the page cache and past it until its input ends. It prints what is sure
    to stay of each kind and block, what it wrote last, and the first error.
    """
    rng = random.Random(number)
    files = {"buffered": os.open(disk, os.O_RDWR), "direct": os.open(disk, os.O_RDWR | os.O_DIRECT)}
    memory = mmap.mmap(-1, BLOCK)
    sure = {kind: [0] * BLOCKS for kind in KINDS}
    last = {kind: [0] * BLOCKS for kind in KINDS}
    count, error, doing = 0, "", ""
    while not error and not select.select([sys.stdin], [], [], 0)[0]:
        kind, block = rng.choice(KINDS), rng.randrange(BLOCKS)
        place = KINDS.index(kind) * BLOCKS + block
        count += 1
        try:
            if rng.random() < 0.02:
                doing, before = "fsync", list(last["buffered"])
                os.fsync(files["buffered"])
                sure["buffered"] = before
            elif kind == "buffered":
                doing, last[kind][block] = "write", count
                os.pwrite(files[kind], stamped(number, place, count), place * BLOCK)
            else:
                doing, last[kind][block] = "direct write", count
                memory[:] = stamped(number, place, count)
                os.pwritev(files[kind], [memory], place * BLOCK)
                sure[kind][block] = count
                doing = "direct read"
                os.preadv(files[kind], [memory], place * BLOCK)
                assert memory[:] == stamped(number, place, count), f"block {place}: not what was just written"
        except OSError as failure:
            error = f"{doing}: {failure.strerror}"
        if count == 20:
            print("ready", flush=True)
    print(json.dumps({"sure": sure, "last": last, "error": error, "count": count}), flush=True)


class Program:
    def __init__(self, disk: str, number: int) -> None:
        environment = os.environ | {"PYTHONPATH": ":".join(map(os.path.abspath, sys.path))}
        self.number = number
        self.process = subprocess.Popen(
            [sys.executable, __file__, disk, str(number)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout and self.process.stdout.readline() == "ready\n"

    def stop(self) -> dict[str, Any]:
        output, _ = self.process.communicate(timeout=DEADLINE)
        assert self.process.returncode == 0, output
        result: dict[str, Any] = json.loads(output)
        return result


def ours() -> list[int]:
    """Processes of the program under test."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (entry / "comm").read_text().strip() == PROGRAM[:15]:
                found.append(int(entry.name))
    return found


@contextmanager
def standing_still(rng: random.Random, wanted: bool) -> Iterator[None]:
    """Processes of ours are stopped for moments in the block, which must end by itself afterwards."""
    ended, end = threading.Event(), time.monotonic() + STANDING_S

    def work() -> None:
        while not ended.wait(rng.random() * 0.02) and time.monotonic() < end:
            if found := ours():
                process = rng.choice(found)
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGSTOP)
                    time.sleep(rng.random() * 0.05)
                    os.kill(process, signal.SIGCONT)

    thread = threading.Thread(target=work)
    if wanted:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if wanted:
            thread.join()


class Life:
    def __init__(self, plan: Plan, mode: list[str], devices: dict[str, str], seed: int) -> None:
        self.plan, self.mode, self.devices, self.rng = plan, mode, devices, random.Random(seed)
        self.serves = "one"
        self.disk = ublk("add", *mode, *plan.options, *self.words("one")).strip()
        self.program = Program(self.disk, seed)
        self.told: list[str] = []
        self.killed: list[int] = []
        self.may_fail = False

    def words(self, device: str) -> tuple[str, str]:
        return "passthrough", f"file={self.devices[device]}"

    def exists(self) -> bool:
        return disks() != []

    def state(self) -> str:
        return str(info(self.disk)["state"]) if self.exists() else "gone"

    def command(self, words: tuple[str, ...]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [UBLK, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def finish(self, name: str, command: subprocess.Popen[str]) -> int:
        try:
            output, _ = command.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            stuck = leftovers()
            command.kill()
            raise AssertionError(f"{name} hangs: {stuck}") from None
        self.told.append(f"{name}: {command.returncode}: {output.strip()}")
        assert command.returncode in (0, 1, 2, -signal.SIGKILL), self.told
        assert command.returncode <= 0 or output.strip(), f"{name} failed and says nothing"
        return command.returncode

    def kill_server(self) -> None:
        if self.exists():
            with suppress(ProcessLookupError, AssertionError):
                pid = info(self.disk)["pid"]
                if pid > 0:
                    os.kill(pid, signal.SIGKILL)
                    self.killed.append(pid)

    def settled(self) -> bool:
        """The kernel has noticed who was killed: until then, the disk is live, and its process the one that ends."""
        if any(Path(f"/proc/{pid}").exists() for pid in self.killed):
            return False
        state = self.state()
        return state == "waiting" or (state == "live" and info(self.disk)["pid"] not in self.killed)

    def burst(self, steps: tuple[tuple[str, float], ...]) -> None:
        running: list[tuple[str, subprocess.Popen[str]]] = []
        killed = False
        with standing_still(self.rng, self.plan.pauses):
            for name, pause in steps:
                time.sleep(pause)
                match name.split():
                    case ["replace", "bad"]:
                        running.append((name, self.command(("replace", self.disk, "null", "size=1M"))))
                    case ["replace", device]:
                        words = ("replace", self.mode[0], self.disk, *self.words(device))
                        running.append((name, self.command(words)))
                    case ["recover"]:
                        running.append((name, self.command(("recover", self.disk))))
                    case ["list"]:
                        running.append((name, self.command(("list", "--json"))))
                    case ["kill", "server"]:
                        killed = True
                        self.kill_server()
                    case ["kill", "replacement"]:
                        for other, process in running:
                            if other.startswith("replace"):
                                process.kill()
            codes = [(name, self.finish(name, process)) for name, process in running]
        if "--recovery=reissue" not in self.plan.options and (killed or any("replace" in name for name, _ in codes)):
            self.may_fail = True
        self.look(codes, killed)

    def look(self, codes: list[tuple[str, int]], killed: bool) -> None:
        """After a burst: the disk has a server, unless that was killed, and the device is that of the last one."""
        if "--recovery=none" in self.plan.options and killed:
            return
        if not killed:
            wait_until(f"the disk is served after {self.told}", lambda: self.state() == "live", DEADLINE)
        else:
            wait_until("the kernel notices", self.settled, DEADLINE)
        replaced = {name.split()[1] for name, code in codes if name.startswith("replace") and code == 0}
        unknown = {name.split()[1] for name, code in codes if name.startswith("replace") and code < 0}
        assert "bad" not in replaced, self.told
        allowed = (replaced or {self.serves}) | (unknown - {"bad"})
        if self.state() == "waiting":
            self.finish("recover", self.command(("recover", self.disk)))
            wait_until(f"the disk is served after {self.told}", lambda: self.state() == "live", DEADLINE)
        found = info(self.disk)
        recorded = [name for name in self.devices if f"file={self.devices[name]}" in found["arguments"]]
        open_now = {os.readlink(file) for file in Path(f"/proc/{found['pid']}/fd").iterdir()}
        serving = [name for name in self.devices if self.devices[name] in open_now]
        assert serving == recorded and serving[0] in allowed, (self.told, serving, recorded, allowed)
        self.serves = serving[0]

    def end(self) -> None:
        result = self.program.stop() if self.plan.quiet else None
        orderly = False
        with standing_still(self.rng, self.plan.pauses):
            match self.plan.end.split():
                case ["term"]:
                    found = info(self.disk) if self.exists() else {"state": "gone"}
                    if found["state"] == "live":
                        os.kill(found["pid"], signal.SIGTERM)
                        wait_until("it ends", lambda: not Path(f"/proc/{found['pid']}").exists(), DEADLINE)
                        orderly = True
                case ["kill", "and", "delete"]:
                    self.kill_server()
                    self.finish("delete", self.command(("delete", self.disk)))
                case _:
                    was_live = self.state() == "live"
                    code = self.finish(self.plan.end, self.command((*self.plan.end.split(), self.disk)))
                    orderly = was_live and code == 0
        if self.exists():  # one that a server without recovery has left
            self.finish("delete --force", self.command(("delete", "--force", self.disk)))
        ended = not self.plan.quiet
        result = result or self.program.stop()
        if result["error"]:
            assert self.may_fail or ended, (result["error"], self.told)
        self.compare(result, orderly and self.plan.quiet and not result["error"])
        wait_until("nothing of it is left", lambda: not self.left(), DEADLINE)

    def left(self) -> list[str]:
        return [
            *map(str, ours()),
            *map(str, Path("/dev").glob("ublk[bc][0-9]*")),
            *map(str, Path("/run/userblk-ublk").glob("*")),
        ]

    def compare(self, result: dict[str, Any], all_stays: bool) -> None:
        """What the device has, read past the page cache."""
        memory = mmap.mmap(-1, BLOCK * BLOCKS * len(KINDS))
        device = os.open(NVME, os.O_RDONLY | os.O_DIRECT)
        try:
            assert os.preadv(device, [memory], 0) == len(memory)
        finally:
            os.close(device)
        for index, kind in enumerate(KINDS):
            for block in range(BLOCKS):
                place = index * BLOCKS + block
                number = number_of(memory[place * BLOCK : (place + 1) * BLOCK], self.program.number, place)
                last = result["last"][kind][block]
                least = last if all_stays else result["sure"][kind][block]
                assert least <= number <= last, (
                    f"{kind} block {block} has write {number} of {last}; {least} was sure: {self.told}"
                )

    def kill(self) -> None:
        """After a failure: nobody waits for anything of it."""
        self.program.process.kill()


def live(plan: Plan, mode: list[str], devices: dict[str, str], seed: int) -> None:
    with open(NVME, "r+b", buffering=0) as device:
        for _ in range(BLOCKS * len(KINDS)):
            device.write(ZEROES)
        os.fsync(device.fileno())
    life = Life(plan, mode, devices, seed)
    try:
        for steps in plan.bursts:
            if life.state() not in ("gone", "dead"):
                life.burst(steps)
        life.end()
    except BaseException:
        life.kill()
        raise


@pytest.mark.parametrize("mode", [pytest.param("workers", marks=pytest.mark.long), "uring", "zero-copy"])
def test_lives(add: Add, mode: str) -> None:
    options = mode_options(mode)
    run(["modprobe", "dm-mod"])
    sectors = Path("/sys/block", Path(NVME).name, "size").read_text().strip()
    seed, count, end = SEED, 0, time.monotonic() + SECONDS
    with mapped("one", f"0 {sectors} linear {NVME} 0") as one, mapped("two", f"0 {sectors} linear {NVME} 0") as two:
        while time.monotonic() < end or not count:
            plan = draw(random.Random(seed))
            try:
                live(plan, options, {"one": one, "two": two}, seed)
            except BaseException as failure:
                failure.add_note(f"UBLK_LIVES_SEED={seed} repeats it: {plan}")
                raise
            seed, count = seed + 1, count + 1
    print(f"{mode}: {count} lives from seed {SEED}")


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]))
