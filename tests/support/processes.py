# SPDX-License-Identifier: BSD-3-Clause
"""The processes that make the calls of a sequence in a directory, and what it looks like after each."""

from __future__ import annotations

import gc
import os
import stat
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Any

from views import Births, attributes, look, names_below, order, tree
from world import USER, Call, World

PROCESSES = 2
CLOCK_REALTIME_COARSE = 5  # of which files get their times
TICK_S = 0.0005
MOST_DESCRIPTORS = 4096  # that were open before


@dataclass
class Answer:
    """What a process answers."""

    value: Any = None
    files: dict[int, int] = field(default_factory=dict)  # its slots, as the view shows them
    used: list[str] = field(default_factory=list)
    stored: Counter[int] = field(default_factory=Counter)
    kept: bool = False


@dataclass
class MountKind:
    """The mount that this is, or is compared with."""

    write_back: bool = True
    births: bool = True  # statx(2) has the times of birth


def serve(pipe: Connection) -> None:
    """Makes the calls that come through the pipe, until it ends."""
    world = World("/", native=False)
    while True:
        try:
            kind, argument = pipe.recv()
        except EOFError:
            return
        answer = Answer()
        if kind == "begin":
            world.leave()
            world = World(*argument)
        elif kind == "leave":
            world.leave()
        else:
            answer.value = world.do(argument)
        answer.files, answer.used, answer.stored = world.files, world.used_slots(), world.stored
        answer.kept = world.kept
        pipe.send(answer)


class Process:
    """A process that makes calls."""

    def __init__(self) -> None:
        gc.collect()  # what would be closed by number below
        self.pipe, other = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            gc.freeze()
            os.closerange(3, other.fileno())
            os.closerange(other.fileno() + 1, MOST_DESCRIPTORS)
            try:
                serve(other)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        other.close()
        self.last = Answer()

    def ask(self, kind: str, argument: Any = None) -> Any:
        self.pipe.send((kind, argument))
        self.last = self.pipe.recv()
        return self.last.value

    def end(self) -> None:
        self.pipe.close()
        os.waitpid(self.pid, 0)


class Processes:
    """
    Calls in a directory, each by one of the processes: ("process", NUMBER) says by which from now on. The second
    one begins as another user. With ("look", True), the calls from now on are looked at more closely.
    """

    def __init__(self, native: bool, mount: MountKind, remounts: Callable[[], None] = lambda: None) -> None:
        self.native = native
        self.mount = mount
        self.remounts = remounts
        self.processes = [Process() for _ in range(PROCESSES)]

    def begin(self, root: str) -> None:
        self.root = root
        self.by = 0
        self.looking = self.ticked = False
        self.births = Births(time.clock_gettime_ns(CLOCK_REALTIME_COARSE), self.mount.births)
        self.times: dict[int, tuple[int, int]] = {}  # of each inode: of change, and of modification
        self.held: set[int] = set()  # inodes that are open
        self.unlike: set[int] = set()  # inodes whose time of change the kernel has otherwise than the source
        self.over = Counter[int]()  # how often mappings had stored to the last inode of a number that is gone
        for process in self.processes:
            process.ask("begin", (root, self.native))
        self.processes[1].ask("call", ("user", USER))

    def leave(self) -> None:
        for process in self.processes:
            process.ask("leave")

    def end(self) -> None:
        for process in self.processes:
            process.end()

    def do(self, call: Call) -> Any:
        """What the call answers."""
        self.last = call
        self.names = [argument for argument in call[1:] if isinstance(argument, str)]
        if call[0] == "process":
            self.by = call[1]
        elif call[0] == "look":
            self.looking = call[1]
        elif call[0] == "remount":
            self.leave()
            self.remounts()
        elif call[0] == "tree":
            return tree(self.root)
        else:
            self._tick()
            return self.processes[self.by].ask("call", call)
        return None

    def _tick(self) -> None:
        """Waits until a change has another time than those before, if it is looked at."""
        newest = max((time for times in self.times.values() for time in times), default=0)
        while self.looking and time.clock_gettime_ns(CLOCK_REALTIME_COARSE) <= newest:
            time.sleep(TICK_S)
        self.ticked = self.looking

    def view(self) -> dict[str, Any]:
        """The attributes of all names, and of what is open; and a look at what the last call used."""
        places = {name: (f"{self.root}/{name}", False) for name in names_below(self.root)}
        for number, process in enumerate(self.processes):
            for slot, file in process.last.files.items():
                places[f"slot {slot} of {number}"] = f"/proc/{process.pid}/fd/{file}", True
        self._note_unlike()
        held = {os.stat(path).st_ino for path, follow in places.values() if follow}
        throughout, self.held = held & self.held, held
        stored = sum((process.last.stored for process in self.processes), Counter[int]())
        found, times = dict[str, Any](), dict[int, tuple[int, int]]()
        for name, (path, follow) in places.items():
            st = os.stat(path, follow_symlinks=follow)
            # The kernel writes to fifos by itself, and leaves their times to the server, which does not see it. When
            # a page that is stored to becomes dirty, and the time changes, is a matter of the file system.
            timed = not stat.S_ISFIFO(st.st_mode) and stored[st.st_ino] == self.over[st.st_ino]
            times[st.st_ino] = now = (st.st_ctime_ns, st.st_mtime_ns)
            found[name] = attributes(st, timed)
            if self.ticked and timed and st.st_ino in self.times:
                kept = st.st_ino in throughout or name in self.names
                found[f"times of {name}"] = self._order(st, now, kept)
        self.over.update({number: stored[number] - self.over[number] for number in stored.keys() - times.keys()})
        self.times = times
        self.unlike &= times.keys()
        self.births.forget_but(times)
        if self.ticked:
            found |= self._looks(set(places))
        return found

    def _order(self, st: os.stat_result, now: tuple[int, int], kept: bool) -> list[str]:
        """How the times of change and of modification went on. kept: the kernel knew the file, or was asked for it."""
        changed, modified = [order(*pair) for pair in zip(self.times[st.st_ino], now, strict=True)]
        if not (self.mount.write_back and stat.S_ISREG(st.st_mode)):
            return [changed, modified]
        # The kernel keeps them. When it has forgotten the file (if others drop its caches: any that is not open), the
        # time of change is that at which it wrote the time of modification, which it may have done before the data.
        if self.last[0] == "remount":
            return []
        return [changed, modified] if kept and st.st_ino not in self.unlike else [modified]

    def _note_unlike(self) -> None:
        """
        With write-back, the kernel does not see chattr(1), and takes for a change the removal of an ACL that is not
        there, and an attribute's value that it has. It shows the source's time when it has dropped the inode.
        """
        if (
            self.last[0] in ("write_while_it_may_only_grow", "set_inode_flag")
            or (self.last[0] in ("removexattr", "fremovexattr") and "acl" in self.last[2])
            or self.processes[self.by].last.kept
        ):
            paths = [f"{self.root}/{name}" for name in self.names] + self.processes[self.by].last.used
            self.unlike |= {os.stat(path).st_ino for path in paths if os.path.exists(path)}

    def _looks(self, known: set[str]) -> dict[str, Any]:
        looks = {}
        for name in known & set(self.names):
            looks[f"look at {name}"] = look(f"{self.root}/{name}", False, self.births, self.native)
        for number, path in enumerate(self.processes[self.by].last.used):
            looks[f"look at used file {number + 1}"] = look(path, True, self.births, self.native)
        return looks
