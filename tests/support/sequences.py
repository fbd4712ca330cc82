# SPDX-License-Identifier: BSD-3-Clause
"""Sequences of calls: drawn at random, replayed in two worlds, shrunk, and printed as a program."""

from __future__ import annotations

import os
import random
import re
import resource
import shlex
import stat
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from processes import PROCESSES, Processes
from views import LATEST_NS, tree
from world import (
    CAPABILITY,
    FALLOCATE_MODES,
    FALLOCATE_REFUSED,
    GROUP,
    INODE_FLAGS,
    LOCK_KINDS,
    RENAME_FLAGS,
    SET_LOCK,
    USER,
    Call,
)

DIRECTORIES = ("d", "e", "d/g")
NAMES = ("a", "b", "c", "l", "d/a", "d/b", "e/a", "d/g/a", *DIRECTORIES)
ATTRIBUTES = (
    "user.one", "user.two", "trusted.one", CAPABILITY, "system.posix_acl_access", "system.posix_acl_default",
)  # fmt: skip
TMPFILE_FLAGS = (
    os.O_RDWR, os.O_RDWR, os.O_WRONLY, os.O_RDONLY,
    os.O_RDWR | os.O_EXCL, os.O_RDWR | os.O_APPEND, os.O_RDWR | os.O_DIRECT, os.O_ACCMODE,
)  # fmt: skip
WRITE_FLAGS = (os.RWF_DSYNC, os.RWF_SYNC, os.RWF_APPEND, os.RWF_APPEND | os.RWF_DSYNC)
NODES = (stat.S_IFREG, stat.S_IFREG, stat.S_IFSOCK, stat.S_IFCHR)
OWNERS = ((0, 0), (USER, USER), (USER, -1), (-1, USER), (0, -1), (-1, 0), (-1, GROUP))
SLOTS = 3
PAGE = 4096
LARGEST = 10 * PAGE

T = TypeVar("T", int, str)
LIKELY = 0.9  # is a call of what those before it may have opened or made
MAKERS = {"open", "mkdir", "link", "link_open", "symlink", "mkfifo", "mknod", "rename", "renameat2"}


class Draw(random.Random):
    """Random numbers, and what the calls that were drawn have opened, mapped and made, if they did not fail."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.by = 0
        self.made: set[str] = set()
        self.forget_slots()

    def forget_slots(self) -> None:
        self.open: list[set[int]] = [set() for _ in range(PROCESSES)]
        self.mapped: list[set[int]] = [set() for _ in range(PROCESSES)]

    def note(self, call: Call) -> None:
        kind = call[0]
        if kind == "process":
            self.by = call[1]
        elif kind == "remount":
            self.forget_slots()
        elif kind in ("open", "tmpfile", "reopen"):
            self.open[self.by].add(call[1])
        elif kind == "map":
            self.mapped[self.by].add(call[1])
        elif kind in ("close", "store_alone"):
            self.open[self.by].discard(call[1])
        elif kind == "unmap":
            self.mapped[self.by].discard(call[1])
        if kind in MAKERS:
            self.made.update(name for name in self.reachable() if name in call)

    def reachable(self) -> set[str]:
        """Names in directories that have been made."""
        return {name for name in NAMES if os.path.dirname(name) in self.made | {""}}

    def likely(self, these: set[T], all_of_them: Sequence[T]) -> T:
        return self.choice(sorted(these) if these and self.random() < LIKELY else all_of_them)


Make = Callable[[Draw], Call]


def _name(rng: Draw) -> str:
    return rng.likely(rng.made, NAMES)


def _new_name(rng: Draw) -> str:
    return rng.likely(rng.reachable(), NAMES)


def _slot(rng: Draw) -> int:
    return rng.likely(rng.open[rng.by], range(SLOTS))


def _new_slot(rng: Draw) -> int:
    return rng.randrange(SLOTS)


def _map(rng: Draw) -> int:
    return rng.likely(rng.mapped[rng.by], range(SLOTS))


def _byte(rng: Draw) -> str:
    return chr(rng.randrange(ord("A"), ord("Z") + 1))


def _offset(rng: Draw) -> int:
    """At pages, beside them, and anywhere."""
    page = rng.randrange(LARGEST // PAGE) * PAGE
    return max(0, rng.choice([0, page, page + rng.choice([-1, 1, 100]), rng.randrange(LARGEST)]))


def _size(rng: Draw) -> int:
    return rng.choice([1, 10, PAGE, PAGE + 1, rng.randrange(1, 3 * PAGE)])


def _aligned(rng: Draw) -> tuple[int, int]:
    """Size and offset that direct I/O takes."""
    return rng.choice([512, PAGE, 3 * PAGE]), rng.randrange(LARGEST // 512) * 512


def _locked(rng: Draw) -> tuple[int, int, str]:
    """A range (0: to the end), and whose lock it is."""
    return _offset(rng), rng.choice([0, _size(rng)]), rng.choice(list(SET_LOCK))


def _mode(rng: Draw) -> int:
    return rng.choice([0o644, 0o600, 0o666, 0o755, 0o777, 0o4755, 0o2755, 0o6777, 0o2644, 0o1777, 0o000])


def _flags(rng: Draw) -> int:
    """O_ACCMODE: for neither reading nor writing, see open(2)."""
    flags = rng.choice([*[os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR, os.O_RDWR] * 5, os.O_ACCMODE])
    for flag, chance in (
        (os.O_CREAT, 0.85), (os.O_EXCL, 0.1), (os.O_TRUNC, 0.15), (os.O_APPEND, 0.3), (os.O_NOFOLLOW, 0.1),
        (os.O_SYNC, 0.05), (os.O_DSYNC, 0.05), (os.O_DIRECT, 0.15), (os.O_NOATIME, 0.03), (os.O_DIRECTORY, 0.02),
    ):  # fmt: skip
        if rng.random() < chance:
            flags |= flag
    return flags | os.O_NONBLOCK  # a fifo would wait for its other end


def _acl(rng: Draw) -> bytes:
    """As acl(5) lies in an extended attribute: user, a named user, group, mask, others."""

    def entry(tag: int, permissions: int, identity: int = 0xFFFFFFFF) -> bytes:
        return tag.to_bytes(2, "little") + permissions.to_bytes(2, "little") + identity.to_bytes(4, "little")

    bits = [rng.randrange(8) for _ in range(5)]
    named = entry(2, bits[1], USER)
    return (
        (2).to_bytes(4, "little")
        + entry(1, bits[0])
        + named
        + entry(4, bits[2])
        + entry(16, bits[3])
        + entry(32, bits[4])
    )  # noqa: E501


def _attribute(rng: Draw) -> tuple[str, bytes, int]:
    """An extended attribute, its value, and how it is set."""
    attribute = rng.choice(ATTRIBUTES)
    value = _byte(rng).encode() * rng.choice([0, 1, 100])
    if "acl" in attribute:
        value = _acl(rng)
    elif attribute == CAPABILITY:
        value = struct.pack("<5I", 0x02000001, rng.randrange(1 << 32), 0, 0, 0)  # one of setcap(8), with +ep
    return attribute, value, rng.choice([0, 0, 1, 2])


def _open(rng: Draw) -> Call:
    name = _new_name(rng)
    while name in DIRECTORIES and rng.random() < LIKELY:
        name = _new_name(rng)
    return ("open", _new_slot(rng), name, _flags(rng), _mode(rng))


CALLS: tuple[tuple[int, Make], ...] = (
    (12, _open),
    (3, lambda r: ("close", _slot(r))),
    (4, lambda r: ("set_flags", _slot(r), os.O_NONBLOCK | r.choice([0, os.O_APPEND]))),
    (1, lambda r: ("set_cached", _slot(r))),
    (1, lambda r: ("get_flags", _slot(r))),
    (3, lambda r: ("read", _slot(r), _size(r))),
    (6, lambda r: ("write", _slot(r), _byte(r), _size(r))),
    (1, lambda r: ("write_while_it_may_only_grow", _slot(r), _byte(r), _size(r))),
    (4, lambda r: ("pread", _slot(r), _size(r), _offset(r))),
    (8, lambda r: ("pwrite", _slot(r), _byte(r), _size(r), _offset(r))),
    (2, lambda r: ("pwrite", _slot(r), _byte(r), _size(r), _offset(r), r.choice(WRITE_FLAGS))),
    (3, lambda r: ("pwrite", _slot(r), _byte(r), *_aligned(r))),
    (2, lambda r: ("pread", _slot(r), *_aligned(r))),
    (1, lambda r: ("sendfile", _slot(r), _slot(r), _offset(r), _size(r))),
    (2, lambda r: ("lseek", _slot(r), _offset(r), r.choice([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END]))),
    (3, lambda r: ("ftruncate", _slot(r), _offset(r))),
    (3, lambda r: ("fallocate", _slot(r), r.choice(list(FALLOCATE_MODES)), _offset(r), _size(r))),
    (1, lambda r: ("fallocate_refused", _slot(r), r.choice(list(FALLOCATE_REFUSED)), _offset(r) // PAGE * PAGE, PAGE)),
    (2, lambda r: ("copy_file_range", _slot(r), _offset(r), _slot(r), _offset(r), _size(r))),
    (1, lambda r: ("splice", _slot(r), _offset(r), _slot(r), _offset(r), _size(r))),
    (1, lambda r: ("seek", _slot(r), _offset(r), r.choice([os.SEEK_DATA, os.SEEK_HOLE]))),
    (1, lambda r: ("fsync", _slot(r))),
    (1, lambda r: ("fdatasync", _slot(r))),
    (2, lambda r: ("drop_cached", _slot(r))),
    (1, lambda r: ("flock", _slot(r), r.choice([1, 2, 8]))),
    (4, lambda r: ("lock", _slot(r), r.choice(list(LOCK_KINDS)), *_locked(r))),
    (2, lambda r: ("get_lock", _slot(r), r.choice(["read", "write"]), *_locked(r))),
    (1, lambda r: ("fchmod", _slot(r), _mode(r))),
    (1, lambda r: ("fchown", _slot(r), *r.choice(OWNERS))),
    (1, lambda r: ("futime", _slot(r), r.randrange(LATEST_NS), r.randrange(LATEST_NS))),
    (1, lambda r: ("fsetxattr", _slot(r), *_attribute(r))),
    (1, lambda r: ("fgetxattr", _slot(r), r.choice(ATTRIBUTES))),
    (1, lambda r: ("flistxattr", _slot(r))),
    (1, lambda r: ("fremovexattr", _slot(r), r.choice(ATTRIBUTES))),
    (1, lambda r: ("set_inode_flag", _slot(r), r.choice(list(INODE_FLAGS)), r.random() < 0.5)),
    (2, lambda r: ("reopen", _new_slot(r), _slot(r), _flags(r) & ~(os.O_CREAT | os.O_EXCL | os.O_DIRECTORY))),
    (2, lambda r: ("tmpfile", _new_slot(r), r.choice([".", *DIRECTORIES]), r.choice(TMPFILE_FLAGS), _mode(r))),
    (2, lambda r: ("link_open", _slot(r), _new_name(r))),
    (4, lambda r: ("map", _new_slot(r), _slot(r), r.choice([1, PAGE, _size(r)]), r.random() < 0.8, r.random() < 0.7)),
    (1, lambda r: ("unmap", _map(r))),
    (2, lambda r: ("load", _map(r), _size(r), _offset(r))),
    (4, lambda r: ("store", _map(r), _byte(r), _size(r), r.choice([0, _offset(r) % (2 * PAGE)]))),
    (1, lambda r: ("msync", _map(r))),
    (1, lambda r: ("store_alone", _slot(r), _byte(r))),
    (2, lambda r: ("truncate", _name(r), _offset(r))),
    (2, lambda r: ("mkdir", r.choice(DIRECTORIES), _mode(r) | 0o100)),
    (1, lambda r: ("rmdir", r.choice(DIRECTORIES))),
    (2, lambda r: ("unlink", _name(r))),
    (2, lambda r: ("link", _name(r), _new_name(r))),
    (1, lambda r: ("symlink", r.choice(["a", "d", "nowhere"]), _new_name(r))),
    (1, lambda r: ("readlink", _name(r))),
    (1, lambda r: ("mkfifo", _new_name(r), _mode(r))),
    (1, lambda r: ("mknod", _new_name(r), r.choice(NODES), _mode(r))),
    (2, lambda r: ("rename", _name(r), _new_name(r))),
    (2, lambda r: ("renameat2", _name(r), _new_name(r), r.choice(list(RENAME_FLAGS)))),
    (1, lambda r: ("listdir", r.choice([".", *DIRECTORIES]))),
    (1, lambda r: ("access", _name(r), r.randrange(8))),
    (3, lambda r: ("chmod", _name(r), _mode(r))),
    # Not -1 twice, which only takes set-id bits away: the kernel tells no FUSE server of it.
    (2, lambda r: ("chown", _name(r), *r.choice(OWNERS))),
    (2, lambda r: ("utime", _name(r), r.randrange(LATEST_NS), r.randrange(LATEST_NS))),
    (1, lambda r: ("touch", _name(r))),
    (3, lambda r: ("setxattr", _name(r), *_attribute(r))),
    (1, lambda r: ("getxattr", _name(r), r.choice(ATTRIBUTES))),
    (1, lambda r: ("listxattr", _name(r))),
    (1, lambda r: ("removexattr", _name(r), r.choice(ATTRIBUTES))),
    (3, lambda r: ("user", *r.choice([(0,), (0,), (USER,), (USER, GROUP)]))),
    (1, lambda r: ("umask", r.choice([0o022, 0o022, 0o077, 0]))),
    (1, lambda r: ("limit", r.choice([_offset(r), *[resource.RLIM_INFINITY] * 2]))),
    (2, lambda r: ("tree",)),
    (8, lambda r: ("process", r.randrange(PROCESSES))),
    (1, lambda r: ("look", r.random() < LOOK_CHANCE)),
)
WITH_MODE = {"open", "tmpfile", "mkdir", "mkfifo", "mknod", "chmod", "fchmod"}  # their last argument
OF_MAPPINGS = {"unmap", "load", "store", "msync"}
REMOUNT_CHANCE = 0.003
LOOK_CHANCE = 0.3  # of a sequence from its beginning: looks take time, and open files


def draw(seed: int, length: int, modes: int = 0o7777, left_out: Sequence[str] = ()) -> list[Call]:
    """Calls, of which none is left out nor sets other bits of the mode than those. Each process opens a file first."""
    rng = Draw(seed)
    drawn: list[Call] = [("look", rng.random() < LOOK_CHANCE)]
    for number in reversed(range(PROCESSES)):
        drawn += [("process", number), _open(rng)]
    calls: list[Call] = []
    while len(calls) < length:
        if drawn:
            call = drawn.pop(0)
        elif rng.random() < REMOUNT_CHANCE:
            call = ("remount",)
        else:
            (make,) = rng.choices([make for _, make in CALLS], [weight for weight, _ in CALLS])
            call = make(rng)
            if call[0] in OF_MAPPINGS and not rng.mapped[rng.by] and rng.random() < LIKELY:
                continue
        if call[0] not in left_out:
            calls.append((*call[:-1], call[-1] & modes) if call[0] in WITH_MODE else call)
            rng.note(call)
    return calls


@dataclass
class Difference:
    at: int  # the number of the call, or of all: only the source shows it
    native: Any
    other: Any


def replay(calls: Sequence[Call], native: Processes, other: Processes, settle: Callable[[], Path]) -> Difference | None:
    """
    The same calls in both, up to the first that answers otherwise or leaves other attributes. settle(): when
    all is closed, the directory below the other one, with all that was written.
    """
    try:
        for at, call in enumerate(calls):
            answers = [world.do(call) for world in (native, other)]
            if answers[0] != answers[1]:
                return Difference(at, *answers)
            views = [world.view() for world in (native, other)]
            if views[0] != views[1]:
                return Difference(at, *_unlike(*views))
    finally:
        native.leave()
        other.leave()
    trees = [tree(root) for root in (native.root, str(settle()))]
    return Difference(len(calls), *_unlike(*trees)) if trees[0] != trees[1] else None


def _unlike(*views: dict[str, Any]) -> list[dict[str, Any]]:
    keys = [key for key in views[0].keys() | views[1].keys() if views[0].get(key) != views[1].get(key)]
    return [{key: view.get(key) for key in keys} for view in views]


def _sources() -> str:
    """Our files that make the calls, as one."""
    parts = [Path(__file__).with_name(f"{name}.py").read_text() for name in ("world", "views", "processes")]
    ours = re.compile(r"^from (?:__future__|world|views) import .*\n", re.MULTILINE)
    return "\n\n".join([parts[0], *[ours.sub("", part) for part in parts[1:]]])


def program(calls: Sequence[Call], options: Sequence[str]) -> str:
    """Python that makes the calls in the directory it is given and prints what they answer."""
    body = "".join(f"    {call!r},\n" for call in calls)
    return (
        f"{_sources()}\n\n"
        f"# Differs between an ext4 and userblk-passthrough {shlex.join(options)}. As root, in an empty directory\n"
        "# that all may write to: python3 THIS DIRECTORY [native]. Where it remounts, it only closes what is open.\n"
        f"CALLS: list[Call] = [\n{body}]\n\n"
        'if __name__ == "__main__":\n'
        "    import sys\n\n"
        "    os.umask(0o022)\n"
        "    os.setgroups([])\n"
        "    world = Processes(sys.argv[2:] == ['native'], MountKind())\n"
        "    world.begin(os.path.abspath(sys.argv[1]))\n"
        "    for call in CALLS:\n"
        "        print(call, world.do(call), world.view(), sep='\\n    ')\n"
        "    world.leave()\n"
        "    print(tree(world.root))\n"
        "    world.end()\n"
    )
