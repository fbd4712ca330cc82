#!/usr/bin/python3
# SPDX-License-Identifier: BSD-3-Clause
"""Kills servers of the S3 device in the middle of their work, and judges what is left.

A volume goes through a number of crashes. Each time many requests are in flight over several
connections: stamped writes of random sizes, trims, zeroes, flushes, FUA, reads whose content is checked.
Then the server gets kill -9 after a random number of replies, or ends itself at a named point of the
device (USERBLK_S3_FAILPOINT); a volume with a write-back log is also killed while its store answers
nothing. In some cases the newest objects or one in the middle are then taken from the store, as if their
uploads had never ended. If another object shows that one had been stored, the volume must be refused until
they are back. The volume is opened again, read as a whole and must hold a prefix of what was
written, with every durable flush unless objects were taken: history.py. Snapshots, clones and changes of the size
are cut short at named points as well: orders.py.

By hand, after make plugins s3-server s3-volume-driver: tests/support/crash.py --points 100
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import math
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from crash_load import Load, Mix, NoReply, read_volume
from crash_results import CRASHES_PER_VOLUME, Record, Result, crashes_wanted, never_reached, points_done, summary
from device import PREFIX, feature_settings, parameters, volume_directory
from fault_proxy import FaultProxy
from history import History, Inconsistent
from nbdkit_server import STOP_TIMEOUT_S, NbdError, Nbdkit, plugin_path
from orders import ORDER_POINTS, REKEY_POINTS, Failure, Orders, opened
from servers import BUCKET, KINDS, ROOT, Store, Versitygw, memory_directory, started
from stamps import BLOCK, DamagedBlock
from volume_driver import DRIVER

BLOCKS = 1024
INCOMPLETE = 3  # exit status: nothing failed, and there are crashes left
FAILPOINT = "USERBLK_S3_FAILPOINT"
IO_POINTS = (
    "log-put-before",
    "log-put-after",
    "fence-put-before",
    "fence-put-after",
    "ckpt-region-after",
    "ckpt-root-before",
    "ckpt-root-after",
    "relocate-put-after",
    "relocate-log-after",
    "delete-before",
    "delete-after",
)
# What a crash at the first leaves is deleted at the second.
ORPHAN_POINTS = ("relocate-put-after", "orphan-delete-before")
# Those of a write-back log. What is replayed was left by a crash.
REPLAY_POINTS = ("wb-replay-put-before", "wb-replay-put-after")
WRITE_BACK_POINTS = (
    "wb-mark-before",
    "wb-mark-after",
    "wb-append-after",
    "wb-sync-after",
    "wb-free-before",
    "wb-free-after",
    *REPLAY_POINTS,
    "wb-empty-after",
)
FAILPOINTS = (*IO_POINTS, *ORDER_POINTS, ORPHAN_POINTS[1], *WRITE_BACK_POINTS)
STALLED_BLOCKS = 200  # that a server has memory for in an outage, besides what it received before
STALLED_PATIENCE_S = 10.0
OBJECT_HEAD = struct.Struct("<40xQQ24xQ")  # of a log object: its number, its writer's epoch, frontier
REACH_S = 8.0  # for which the load goes on, that a point may be reached


def objects_in(directory: Path) -> set[Path]:
    """
    Not what the store is still writing, under a name with a dot. A deletion under way when its client was killed
    may take files and directories meanwhile: os.walk() passes over those.
    """
    return {Path(top, name) for top, _, names in os.walk(directory) for name in names if not name.startswith(".")}


@dataclass(frozen=True)
class Taken:
    """Objects that were moved away from a volume."""

    what: str = ""  # "": none
    moved: tuple[tuple[Path, Path], ...] = ()  # whence and where to

    def put_back(self) -> None:
        for whence, where in self.moved:
            shutil.move(where, whence)


NOTHING = Taken()


def take_objects(directory: Path, before: set[Path], rng: random.Random, aside: Path) -> Taken:
    """
    Takes objects away that may as well never have been stored: log objects that are newer than the
    newest object of another kind. before: those that were there when the server had opened the volume;
    its fence among them was stored before anything after it.
    """
    stored: list[tuple[int, Path]] = []
    for path in objects_in(directory) - before:
        with suppress(FileNotFoundError):  # a deletion under way when its client was killed may end after that
            stored.append((path.stat().st_mtime_ns, path))
    newest: list[Path] = []
    for _, path in sorted(stored, reverse=True):
        if path.relative_to(directory).parts[0] != "log":
            break
        newest.append(path)
    if not newest:
        return NOTHING
    if rng.random() < 0.5:
        chosen = newest[: rng.randint(1, min(len(newest), 6))]
        what = f"the last {len(chosen)} of {len(newest)}"
    else:
        chosen = [newest[rng.randrange(min(len(newest), 6))]]
        what = f"{chosen[0].name}, one of {len(newest)}"
    aside.mkdir(exist_ok=True)
    moved = tuple((path, aside / path.name) for path in chosen)
    for whence, where in moved:
        shutil.move(whence, where)
    return Taken(what, moved)


def has_a_witness(directory: Path) -> bool:
    """Does an object behind the first gap of the log say that what is missing there had been stored?"""
    heads = []
    for path in objects_in(directory / "log"):
        with suppress(FileNotFoundError):
            heads.append(OBJECT_HEAD.unpack_from(path.read_bytes()))
    epoch = max(head[1] for head in heads)
    frontiers = {number: frontier for number, its_epoch, frontier in heads if its_epoch == epoch}
    # Up to the newest root objects may be gone, and those before the first of this epoch count by their own.
    roots = [int(path.parent.name, 16) for path in (directory / "ckpt").glob("*/root")]
    gap = max([min(frontiers) - 1, *roots]) + 1
    while gap in frontiers:
        gap += 1
    return any(number > gap and frontier >= gap for number, frontier in frontiers.items())


Serve = Callable[[Path, Sequence[str]], Nbdkit]


@dataclass
class Volume:
    """A volume on its way through crashes. serve(directory, wrapper) starts a server over it."""

    serve: Serve
    work: Path
    rng: random.Random
    run: int
    objects: Path | None = None  # where its objects are, if some may be taken
    flush_is_durable: bool = True
    failpoints: Sequence[str] = IO_POINTS
    at_failpoints: float = 0.6  # the share of crashes there; the others come after a random number of replies
    orders: Orders | None = None
    stall: Callable[[], AbstractContextManager[None]] | None = None  # the store, for a time
    starts: int = 0

    def start(self, failpoint: str | None = None) -> Nbdkit:
        wrapper = ("env", f"{FAILPOINT}={failpoint}") if failpoint else ()

        def attempt() -> Nbdkit:
            self.starts += 1
            directory = self.work / f"s{self.starts}"
            directory.mkdir()
            return self.serve(directory, wrapper)

        return opened(attempt)

    def live(self, crashes: int, result: Result) -> None:
        """Raises what it finds wrong."""
        history = History(BLOCKS)
        before: set[Path] = set()
        points = itertools.cycle(self.failpoints)
        server: Nbdkit | None = self.start()
        orphan = False  # something to sweep was left
        try:
            while result.crashes < crashes or orphan:
                kind, durable = "kill", True
                failpoint = None
                if self.failpoints and (orphan or self.rng.random() < self.at_failpoints):
                    name = ORPHAN_POINTS[1] if orphan else next(points)
                    if self.orders and name in ORDER_POINTS:
                        assert server is not None
                        server.stop()
                        server = None
                        self.orders.crash(name, history)
                        kind = name
                        server = self._judge(history, kind, True, result)
                        continue
                    once = name.startswith(("fence", "wb-mark", "wb-free", "wb-empty"))
                    most = 1 if orphan or once else 6 if name.startswith("log") else 2
                    failpoint = f"{name}:{self.rng.randint(1, most)}"
                    orphan = False
                assert server is not None
                if failpoint:
                    if failpoint.startswith(REPLAY_POINTS):
                        failpoint = failpoint.partition(":")[0]
                        self._crash_stalled(server, history)
                    else:
                        server.stop()
                    try:
                        server = self.start(failpoint)
                    except AssertionError as error:
                        if "killed by SIGKILL" not in str(error):
                            raise
                        server = None
                        kind = failpoint.partition(":")[0]
                if server is not None and failpoint in REPLAY_POINTS:
                    # There was nothing to replay, and the history does not know yet what is lost.
                    server.kill()
                    server = None
                    kind = "kill: stalled"
                if server is not None:
                    before = objects_in(self.objects) if self.objects else set()
                    kind = self._load_and_crash(server, history, failpoint)
                taken = NOTHING
                orphan = kind == ORPHAN_POINTS[0]
                # A write-back log would tell.
                takes = self.objects and not self.stall and not orphan
                if server is not None and self.objects and takes and self.rng.random() < 0.25:
                    taken = take_objects(self.objects, before, self.rng, self.work / "taken")
                if taken.what:
                    durable = False
                    kind = "taken: middle" if "one of" in taken.what else "taken: last"
                server = None
                server = self._judge(history, kind, durable, result, taken)
                if server is None:
                    return
            assert server is not None
            server.stop()
        finally:
            if server is not None:
                server.kill()

    def _judge(
        self, history: History, kind: str, durable: bool, result: Result, taken: Taken = NOTHING
    ) -> Nbdkit | None:
        """Opens the volume after a crash. None: it does not go on, since objects were taken."""
        if self.orders and durable:
            self.orders.verify()
        result.crashes += 1
        missed = self.objects is not None and bool(taken.what) and has_a_witness(self.objects)
        try:
            server = self.start()
        except AssertionError as error:
            if durable:
                raise Failure(f"the volume can no longer be opened: {error}") from error
            if "is missing, although" not in str(error):
                result.kinds["refused: " + kind] += 1
                return None
            # A PUT that was under way when its client was killed may end after that.
            if not self.objects or not has_a_witness(self.objects):
                raise Failure(f"an end of the log is taken for damage: {error}") from error
            taken.put_back()
            kind, durable, missed = "taken: stored", True, False
            server = self.start()
        if missed:
            server.kill()
            raise Failure(f"it opens without {taken.what}, which had been stored")
        try:
            found = read_volume(server, self.run, BLOCKS, tolerant=not durable)
            cut = history.settle(found, durable)
        except BaseException:
            server.kill()
            raise
        result.kinds[kind] += 1
        result.writes = len(history.writes) - 1
        result.lost += cut.lost
        if None in found:
            result.kinds["unreadable blocks: " + kind] += 1
            server.kill()
            return None
        return server

    def _load_and_crash(self, server: Nbdkit, history: History, failpoint: str | None) -> str:
        connections = self.rng.choice((1, 1, 2, 4))
        try:
            handles = [server.connect() for _ in range(connections)]
        except NbdError as error:
            if failpoint and ended(server) == -signal.SIGKILL:
                return failpoint.partition(":")[0]  # it was faster
            raise Failure(f"{error}\n{server.output()}") from error
        load = Load(history, self.run, handles, self.flush_is_durable)
        if failpoint is None and self.stall and self.rng.random() < 0.5:
            self._crash_stalled(server, history)
            return "kill: stalled"
        if failpoint is None:
            scale = self.rng.expovariate(1.0)
            load.run(self.rng, Mix.choose(self.rng), int(scale * 300), int(scale * 4096))
            if load.failed:
                raise Failure(f"{load.failed[0]}\n{server.output()}")
            server.kill()
            return "kill"
        # The point must be reached: by garbage collection, which takes its time, or at the end.
        end = time.monotonic() + REACH_S
        replies = blocks = 0
        while not load.failed and (replies == 0 or time.monotonic() < end):
            replies, blocks = replies + 200, blocks + 2048
            load.run(self.rng, Mix.choose(self.rng), replies, blocks)
        load.finish()
        if not load.failed:
            for handle in handles:  # nbdkit ends after its clients
                with suppress(NbdError):
                    handle.shutdown()
            os.kill(server.pid, signal.SIGTERM)
        # It dies at its failpoint; anything else must not fail.
        status = ended(server)
        if status == -signal.SIGKILL:
            return failpoint.partition(":")[0]
        if load.failed or status != 0:
            raise Failure(f"{(load.failed or [f'exit status {status}'])[0]}\n{server.output()}")
        return "stopped"

    def _crash_stalled(self, server: Nbdkit, history: History) -> None:
        """Kills it after it answered flushes of data that the store never received."""
        assert self.stall
        load = Load(history, self.run, [server.connect()], self.flush_is_durable)
        load.run(self.rng, Mix.choose(self.rng), self.rng.randint(0, 100), 1024)
        load.finish()
        mix = Mix(depth=4, largest=8, reads=0.0, zeroes=0.1, flushes=0.1, fua=0.1, hot=0.5)
        # What was written before may take all memory as long as the store takes none of it.
        load.patience_s = STALLED_PATIENCE_S
        with self.stall():
            with suppress(NoReply):
                load.run(self.rng, mix, load.replies + self.rng.randint(10, 100), load.blocks + STALLED_BLOCKS)
                load.run(self.rng, replace(mix, flushes=1.0), load.replies + 1, load.blocks + 1)
            if load.failed:
                raise Failure(f"{load.failed[0]}\n{server.output()}")
            server.kill()


def ended(server: Nbdkit) -> int | None:
    """How the server ended: as Popen tells it; None: it goes on, or hangs."""
    try:
        return server.process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None


def spoil(cache: Path, rng: random.Random) -> None:
    """Damages a cache file, wipes it or cuts its end off, as disks and their owners do."""
    data = bytearray(cache.read_bytes())
    how = rng.randrange(3) if len(data) > 4096 else 2
    if how == 0:
        for _ in range(100):  # but where it says what it is: anything else is refused
            data[rng.randrange(8, len(data))] ^= 1 << rng.randrange(8)
    cache.write_bytes(data if how == 0 else data[: rng.randrange(4096, len(data))] if how == 1 else b"")


def name_of(number: int, seed: int) -> str:
    return f"crash-{seed:x}-{number}"


def s3_volume(number: int, seed: int, store: Store, work: Path, stack: ExitStack, sought: str | None = None) -> Volume:
    """What it needs besides ends with the stack. sought: a failpoint that it comes to first."""
    rng = random.Random(f"{seed}/{number}")
    name = name_of(number, seed)
    writes_back = sought in WRITE_BACK_POINTS or (sought is None and number % 4 == 3)
    weak = rng.random() < 0.2 and not writes_back
    made = {"create": "on", "size": str(BLOCKS * BLOCK)}
    features: tuple[tuple[str, ...], ...] = ((), (), ("zstd",), ("aes",), ("zstd", "aes"))
    if sought in REKEY_POINTS:
        features = features[3:]
    chosen = {
        "flush": "weak" if weak else "durable",
        "batch-size": rng.choice(("1M", "2M", "4M")),
        "uploads": rng.choice(("1", "2", "8")),
        "checkpoint": rng.choice(("4", "16", "512")),
        "gc-delay": rng.choice(("0", "60")),
        **({} if store.conditional_put else {"fencing": "none"}),
        **feature_settings(work, *rng.choice(features)),
    }
    # On the way to a named point everything is done as early as can be.
    soon = {"batch-size": "1M", "checkpoint": "4", "gc-delay": "0"}

    cache = work / "cache"
    caching = random.Random(f"{seed}/{number}/cache")
    # The file would hold plain text.
    if caching.random() < 0.5 and "encryption-key" not in chosen:
        chosen |= {"cache-file": str(cache), "cache-size": "16M"}

    url, proxy = store.url, None
    if writes_back:
        chosen |= {"write-back": str(work / "write-back"), "batch-size": "1M"}
        made |= {"write-back-size": "8M"}
        proxy = FaultProxy(store.address, BUCKET)
        stack.callback(proxy.stop)
        url = proxy.url

    def serve(directory: Path, wrapper: Sequence[str]) -> Nbdkit:
        if cache.exists() and caching.random() < 0.2:
            spoil(cache, caching)
        settings = made | chosen | (soon if wrapper else {})
        arguments = parameters(url, store.credentials, name, **settings)
        server = Nbdkit(directory, plugin_path("s3"), *arguments, wrapper=tuple(wrapper))
        made.clear()
        return server

    def driven(volume: str, more: dict[str, str]) -> list[str]:
        settings = chosen | soon | more
        if volume != name:  # a clone
            settings.pop("write-back", None)
        return parameters(store.url, store.credentials, volume, **settings)

    run_id = rng.getrandbits(63)
    objects = volume_directory(store, name) if isinstance(store, Versitygw) else None
    key = Path(chosen["encryption-key"]) if "encryption-key" in chosen else None
    orders = Orders(work, rng, run_id, BLOCKS, name, driven, objects, key) if objects else None
    # Those of orders are always reached, the others not, so that they are tried twice as often. Each volume
    # begins about where the one before ends.
    points = (*IO_POINTS, *ORDER_POINTS, *IO_POINTS) if orders else IO_POINTS
    points = tuple(point for point in points if point not in REKEY_POINTS)
    each = CRASHES_PER_VOLUME * 6 // 10
    first = number * each % len(points)
    if writes_back:
        first = number // 4 * each % len(WRITE_BACK_POINTS)
        points = (*WRITE_BACK_POINTS, *points)
    points = points[first:] + points[:first]
    if orders and key:
        points = (*REKEY_POINTS, *points)
    if sought:
        first_point = ORPHAN_POINTS[0] if sought == ORPHAN_POINTS[1] else sought
        points = (first_point, first_point, first_point, *points)
    stall = partial(proxy.outage, silent=True) if proxy else None
    durable = not weak
    share = 1.0 if sought else Volume.at_failpoints
    return Volume(serve, work, rng, run_id, objects, durable, points, share, orders, stall)


def failpoints_of(store: Store) -> Sequence[str]:
    """Those of orders need to look at the store from behind."""
    behind = isinstance(store, Versitygw)
    return [name for name in FAILPOINTS if behind or name not in ORDER_POINTS]


def one_volume(
    number: int, crashes: int, seed: int, store: Store, keep: Path | None, sought: str | None = None
) -> Result:
    """In a process of its own."""
    result = Result(number)
    work = memory_directory()
    with ExitStack() as stack:
        live(s3_volume(number, seed, store, work, stack, sought), crashes, result, keep)
    if not isinstance(store, Versitygw):
        store.remove(f"{PREFIX}/{name_of(number, seed)}/")
    shutil.rmtree(work, ignore_errors=True)
    return result


def live(volume: Volume, crashes: int, result: Result, keep: Path | None) -> None:
    number, work = result.volume, volume.work
    try:
        volume.live(crashes, result)
    except (Failure, Inconsistent, DamagedBlock) as error:
        result.failure = f"volume {number}, crash {result.crashes + 1}: {error}"
    except Exception:
        result.failure = f"volume {number}, crash {result.crashes + 1}: {traceback.format_exc()}"
    if result.failure and keep:
        place = keep / f"volume{number}"
        shutil.copytree(work, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
        if volume.objects and volume.objects.exists():
            shutil.copytree(volume.objects, place / "objects", dirs_exist_ok=True)
        (place / "failure").write_text(result.failure + "\n", encoding="utf-8")
    if volume.objects:
        shutil.rmtree(volume.objects, ignore_errors=True)


def build_of() -> str:
    """The build of the programs that crash and of what judges them."""
    here = Path(__file__).parent
    judges = [here / f"{name}.py" for name in ("crash", "crash_load", "crash_results", "history", "orders")]
    files = [Path(plugin_path("s3")), ROOT / DRIVER, *judges]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def run(store: Store, options: argparse.Namespace) -> list[Result]:
    """All volumes, as far as the time goes; those that the file of results has are done already."""
    names = failpoints_of(store)
    record = Record(options.results, options.seed, build_of())
    done = record.read()
    record.write(done.values())
    left = (number for number in itertools.count() if number not in done)
    began = shown = time.monotonic()
    end = began + (options.time or math.inf)
    running: set[Future[Result]] = set()
    # A process for each volume: libnbd does not give back all memory of replies that a killed server owed.
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        while True:
            # Only as many as run at once, so that there is never more to wait for than what has been begun.
            while (
                len(running) < options.jobs
                and time.monotonic() < end
                and points_done(done.values()) + CRASHES_PER_VOLUME * len(running)
                < crashes_wanted(list(done.values()), options.points, names)
            ):
                # Chance ends a volume's way: what no volume came to is then the first that one comes to.
                sought = (
                    never_reached(list(done.values()), names) if points_done(done.values()) >= options.points else []
                )
                first = sought[len(done) % len(sought)] if sought else None
                arguments = (next(left), CRASHES_PER_VOLUME, options.seed, store, options.keep, first)
                running.add(pool.submit(one_volume, *arguments))
            if not running:
                break
            over, running = wait(running, return_when=FIRST_COMPLETED)
            for future in over:
                result = future.result()
                done[result.volume] = result
                record.add(result)
                if result.failure:
                    print(f"FAILED {result.failure}", file=sys.stderr, flush=True)
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                crashes = sum(r.crashes for r in done.values())
                print(f"{crashes}/{options.points} crashes, {shown - began:.0f} s", file=sys.stderr, flush=True)
    return [done[number] for number in sorted(done)]


def parse_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=200, metavar="N", help="crashes (default 200)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="volumes at the same time (default 2)")
    parser.add_argument("--seed", type=int, default=1, help="of what is chosen by chance (default 1)")
    parser.add_argument("--store", choices=KINDS, default="versitygw", help="where (default versitygw)")
    parser.add_argument("--time", type=float, metavar="S", help="begin nothing more after so many seconds")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="keep results here until all have passed, and go on from them"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep volumes that fail here, with their logs")
    options = parser.parse_args(argv)
    for name in ("points", "jobs", "time"):
        if (value := getattr(options, name)) is not None and value < 1:
            parser.error(f"--{name}={getattr(options, name)}: give 1 or more")
    return options


def main(argv: Sequence[str]) -> int:
    options = parse_options(argv)
    with started(KINDS[options.store]) as store:
        results = run(store, options)
        names = failpoints_of(store)
    print(f"{store.name}, seed {options.seed}: {summary(results, options.points, names)}")
    failed = any(result.failure for result in results)
    complete = points_done(results) >= options.points
    if complete and not failed and options.results:
        options.results.unlink()
    if failed or (complete and never_reached(results, names)):
        return 1
    return 0 if complete else INCOMPLETE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
