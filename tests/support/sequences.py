# SPDX-License-Identifier: BSD-3-Clause
"""Sequences of calls: drawn at random, replayed in two worlds, shrunk, and printed as a program."""

from __future__ import annotations

import os
import random
import re
import resource
import shlex
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import PROCESSES, Processes
from views import LATEST_NS, tree
from world import FALLOCATE_MODES, GROUP, LOCK_KINDS, RENAME_FLAGS, USER, Call

DIRECTORIES = ("d", "e", "d/g")
NAMES = ("a", "b", "c", "l", "d/a", "d/b", "e/a", "d/g/a", *DIRECTORIES)
ATTRIBUTES = ("user.one", "user.two", "trusted.one", "system.posix_acl_access", "system.posix_acl_default")
TMPFILE_FLAGS = (
    os.O_RDWR, os.O_RDWR, os.O_WRONLY, os.O_RDONLY,
    os.O_RDWR | os.O_EXCL, os.O_RDWR | os.O_APPEND, os.O_RDWR | os.O_DIRECT,
)  # fmt: skip
WRITE_FLAGS = (os.RWF_DSYNC, os.RWF_SYNC, os.RWF_APPEND, os.RWF_APPEND | os.RWF_DSYNC)
NODES = (stat.S_IFREG, stat.S_IFREG, stat.S_IFSOCK, stat.S_IFCHR)
OWNERS = ((0, 0), (USER, USER), (USER, -1), (-1, USER), (0, -1), (-1, 0), (-1, GROUP))
SLOTS = 4
PAGE = 4096
LARGEST = 10 * PAGE

Make = Callable[[random.Random], Call]


def _name(rng: random.Random) -> str:
    return rng.choice(NAMES)


def _slot(rng: random.Random) -> int:
    return rng.randrange(SLOTS)


def _byte(rng: random.Random) -> str:
    return chr(rng.randrange(ord("A"), ord("Z") + 1))


def _offset(rng: random.Random) -> int:
    """At pages, beside them, and anywhere."""
    page = rng.randrange(LARGEST // PAGE) * PAGE
    return max(0, rng.choice([0, page, page + rng.choice([-1, 1, 100]), rng.randrange(LARGEST)]))


def _size(rng: random.Random) -> int:
    return rng.choice([1, 10, PAGE, PAGE + 1, rng.randrange(1, 3 * PAGE)])


def _aligned(rng: random.Random) -> tuple[int, int]:
    """Size and offset that direct I/O takes."""
    return rng.choice([512, PAGE, 3 * PAGE]), rng.randrange(LARGEST // 512) * 512


def _mode(rng: random.Random) -> int:
    return rng.choice([0o644, 0o600, 0o666, 0o755, 0o777, 0o4755, 0o2755, 0o6777, 0o2644, 0o1777, 0o000])


def _flags(rng: random.Random) -> int:
    flags = rng.choice([os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR, os.O_RDWR])
    for flag, chance in (
        (os.O_CREAT, 0.7), (os.O_EXCL, 0.1), (os.O_TRUNC, 0.15), (os.O_APPEND, 0.3), (os.O_NOFOLLOW, 0.1),
        (os.O_SYNC, 0.05), (os.O_DSYNC, 0.05), (os.O_DIRECT, 0.15), (os.O_NOATIME, 0.03), (os.O_DIRECTORY, 0.03),
    ):  # fmt: skip
        if rng.random() < chance:
            flags |= flag
    return flags | os.O_NONBLOCK  # a fifo would wait for its other end


def _acl(rng: random.Random) -> bytes:
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


def _setxattr(rng: random.Random) -> Call:
    attribute = rng.choice(ATTRIBUTES)
    value = _acl(rng) if "acl" in attribute else _byte(rng).encode() * rng.choice([0, 1, 100])
    return ("setxattr", _name(rng), attribute, value, rng.choice([0, 0, 1, 2]))


CALLS: tuple[tuple[int, Make], ...] = (
    (12, lambda r: ("open", _slot(r), _name(r), _flags(r), _mode(r))),
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
    (2, lambda r: ("copy_file_range", _slot(r), _offset(r), _slot(r), _offset(r), _size(r))),
    (1, lambda r: ("fsync", _slot(r))),
    (1, lambda r: ("flock", _slot(r), r.choice([1, 2, 8]))),
    (2, lambda r: ("lock", _slot(r), r.choice(list(LOCK_KINDS)), _offset(r), r.choice([0, _size(r)]))),
    (1, lambda r: ("get_lock", _slot(r), r.choice(["read", "write"]), _offset(r), r.choice([0, _size(r)]))),
    (1, lambda r: ("fchmod", _slot(r), _mode(r))),
    (2, lambda r: ("tmpfile", _slot(r), r.choice([".", *DIRECTORIES]), r.choice(TMPFILE_FLAGS), _mode(r))),
    (2, lambda r: ("link_open", _slot(r), _name(r))),
    (3, lambda r: ("map", _slot(r), _slot(r), _size(r), r.random() < 0.8)),
    (1, lambda r: ("unmap", _slot(r))),
    (2, lambda r: ("load", _slot(r), _size(r), _offset(r))),
    (4, lambda r: ("store", _slot(r), _byte(r), _size(r), r.choice([0, _offset(r) % (2 * PAGE)]))),
    (1, lambda r: ("msync", _slot(r))),
    (1, lambda r: ("store_alone", _slot(r), _byte(r))),
    (2, lambda r: ("truncate", _name(r), _offset(r))),
    (3, lambda r: ("mkdir", r.choice(DIRECTORIES), _mode(r) | 0o100)),
    (1, lambda r: ("rmdir", r.choice(DIRECTORIES))),
    (2, lambda r: ("unlink", _name(r))),
    (2, lambda r: ("link", _name(r), _name(r))),
    (1, lambda r: ("symlink", r.choice(["a", "d", "nowhere"]), _name(r))),
    (1, lambda r: ("readlink", _name(r))),
    (1, lambda r: ("mkfifo", _name(r), _mode(r))),
    (1, lambda r: ("mknod", _name(r), r.choice(NODES), _mode(r))),
    (2, lambda r: ("rename", _name(r), _name(r))),
    (2, lambda r: ("renameat2", _name(r), _name(r), r.choice(list(RENAME_FLAGS)))),
    (1, lambda r: ("listdir", r.choice([".", *DIRECTORIES]))),
    (1, lambda r: ("access", _name(r), r.randrange(8))),
    (3, lambda r: ("chmod", _name(r), _mode(r))),
    # Not -1 twice, which only takes set-id bits away: the kernel tells no FUSE server of it.
    (2, lambda r: ("chown", _name(r), *r.choice(OWNERS))),
    (2, lambda r: ("utime", _name(r), r.randrange(LATEST_NS), r.randrange(LATEST_NS))),
    (1, lambda r: ("touch", _name(r))),
    (2, _setxattr),
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
REMOUNT_CHANCE = 0.003
LOOK_CHANCE = 0.3  # of a sequence from its beginning: looks take time, and open files


def draw(rng: random.Random, length: int, modes: int = 0o7777, left_out: Sequence[str] = ()) -> list[Call]:
    """Calls, of which none is left out nor sets other bits of the mode than those."""
    calls: list[Call] = [("look", rng.random() < LOOK_CHANCE)]
    while len(calls) < length:
        (make,) = rng.choices([make for _, make in CALLS], [weight for weight, _ in CALLS])
        call = ("remount",) if rng.random() < REMOUNT_CHANCE else make(rng)
        if call[0] not in left_out:
            calls.append((*call[:-1], call[-1] & modes) if call[0] in WITH_MODE else call)
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
