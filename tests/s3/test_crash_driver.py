# SPDX-License-Identifier: BSD-3-Clause
"""The crash checker over devices whose crashes are known: it must accept the right and refuse the wrong."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import crash
import pytest
from crash import BLOCKS, OBJECT_HEAD, Serve, Volume, has_a_witness, objects_in, take_objects
from crash_results import Record, Result
from history import Inconsistent
from nbdkit_server import Nbdkit, plugin_path
from orders import Failure, opened
from stamps import BLOCK, DamagedBlock

SIZE = BLOCKS * BLOCK


def volume(tmp_path: Path, serve: Serve, seed: int) -> Volume:
    work = tmp_path / "w"
    work.mkdir()
    return Volume(serve, work, random.Random(seed), run=seed, failpoints=())


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "disk"
    with path.open("wb") as file:
        file.truncate(SIZE)
    return path


def of_file(disk: Path) -> Serve:
    """The page cache keeps what a killed server wrote: nothing acknowledged is ever lost."""

    def serve(directory: Path, wrapper: Sequence[str]) -> Nbdkit:
        return Nbdkit(directory, plugin_path("passthrough"), f"file={disk}", wrapper=tuple(wrapper))

    return serve


@pytest.mark.parametrize("seed", range(3))
def test_device_that_loses_nothing(tmp_path: Path, disk: Path, seed: int) -> None:
    result = Result(0)
    volume(tmp_path, of_file(disk), seed).live(5, result)
    assert result.crashes == 5 and result.kinds == {"kill": 5}
    assert result.writes > 0 and result.lost == 0


def test_a_slow_store_is_waited_for_and_nothing_else() -> None:
    said = ["GET of x was not answered (given up after 20 s)"] * 2 + ["the log is damaged"]
    tries = iter(said)

    def attempt() -> None:
        raise AssertionError(next(tries))

    with pytest.raises(AssertionError, match="damaged"):
        opened(attempt)


def test_device_that_loses_all(tmp_path: Path) -> None:
    def serve(directory: Path, wrapper: Sequence[str]) -> Nbdkit:
        return Nbdkit(directory, "memory", f"size={SIZE}", wrapper=tuple(wrapper))

    with pytest.raises(Inconsistent, match="FUA|flush"):
        volume(tmp_path, serve, 1).live(20, Result(0))


def test_device_that_answers_reads_wrongly(tmp_path: Path) -> None:
    def serve(directory: Path, wrapper: Sequence[str]) -> Nbdkit:
        return Nbdkit(directory, "null", f"size={SIZE}", wrapper=tuple(wrapper))

    with pytest.raises((Failure, Inconsistent), match="a read while it runs|FUA|flush"):
        volume(tmp_path, serve, 1).live(20, Result(0))


def test_device_that_fails_requests(tmp_path: Path, disk: Path) -> None:
    def serve(directory: Path, wrapper: Sequence[str]) -> Nbdkit:
        parameters = (f"file={disk}", "error-pwrite-rate=0.1", "error=EIO")
        return Nbdkit(directory, plugin_path("passthrough"), *parameters, options=("--filter=error",))

    with pytest.raises(Failure, match="write of .* Input/output error"):
        volume(tmp_path, serve, 1).live(20, Result(0))


class Tampering:
    """Serves a file in which, before the n-th start, something is changed."""

    def __init__(self, disk: Path, seed: int) -> None:
        self.disk = disk
        self.inner = of_file(disk)
        self.rng = random.Random(seed)
        self.before = bytes(SIZE)

    def __call__(self, directory: Path, wrapper: Sequence[str]) -> Nbdkit:
        now = self.disk.read_bytes()
        changed = [i for i in range(BLOCKS) if self.block(now, i) != self.block(self.before, i)]
        self.before = now
        if changed:
            block = self.rng.choice(changed)
            with self.disk.open("r+b") as file:
                file.seek(block * BLOCK)
                file.write(self.tampered(self.block(now, block)))
        return self.inner(directory, wrapper)

    @staticmethod
    def block(data: bytes, number: int) -> bytes:
        return data[number * BLOCK : (number + 1) * BLOCK]

    def tampered(self, content: bytes) -> bytes:
        raise NotImplementedError


class Tearing(Tampering):
    def tampered(self, content: bytes) -> bytes:
        return bytes(512) + content[512:] if any(content) else content[:512] + b"\1" * (BLOCK - 512)


class Dropping(Tampering):
    """Its blocks become older ones: zeroes, of which the newest writes cannot have been the last."""

    def tampered(self, content: bytes) -> bytes:
        return bytes(BLOCK)


def test_torn_block(tmp_path: Path, disk: Path) -> None:
    with pytest.raises(DamagedBlock, match="torn or foreign"):
        volume(tmp_path, Tearing(disk, 1), 1).live(20, Result(0))


def test_dropped_write(tmp_path: Path, disk: Path) -> None:
    with pytest.raises(Inconsistent, match="holds write 0, older than"):
        volume(tmp_path, Dropping(disk, 1), 1).live(20, Result(0))


def test_objects_are_taken_from_the_end_of_the_log_only(tmp_path: Path) -> None:
    names = ("log/00/0", "log/09/9", "ckpt/1/root", "log/01/1", "log/02/2", "log/03/3")
    directory = tmp_path / "volume"

    def make() -> None:
        for number, name in enumerate(names):
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
            os.utime(path, ns=(10**18 + number * 10**9,) * 2)

    rng = random.Random(1)
    kinds = set()
    for _ in range(30):
        make()
        taken = take_objects(directory, {directory / "log/01/1"}, rng, tmp_path / "aside")
        kinds.add("one of" in taken.what)
        left = {str(path.relative_to(directory)) for path in objects_in(directory)}
        assert set(names[:4]) <= left and len(left) < len(names)
        taken.put_back()
        assert len(objects_in(directory)) == len(names)
    assert kinds == {True, False}


@pytest.mark.parametrize(
    ("log", "root", "witness"),
    [
        # number: (epoch, frontier)
        ({1: (1, 0), 2: (1, 1), 3: (1, 2)}, None, False),
        ({1: (1, 0), 2: (1, 1), 4: (1, 1)}, None, False),
        ({1: (1, 0), 2: (1, 1), 4: (1, 1), 5: (1, 3)}, None, True),
        # Left by a writer that was fenced.
        ({1: (1, 0), 2: (2, 1), 4: (1, 3)}, None, False),
        # Deleted, because a checkpoint covers it.
        ({1: (1, 0), 3: (1, 2), 4: (1, 3)}, 3, False),
        ({1: (1, 0), 3: (1, 2), 5: (1, 4)}, 3, True),
    ],
)
def test_witness(tmp_path: Path, log: dict[int, tuple[int, int]], root: int | None, witness: bool) -> None:
    for number, (epoch, frontier) in log.items():
        path = tmp_path / f"log/{number:02x}/{number:016x}"
        path.parent.mkdir(parents=True)
        path.write_bytes(OBJECT_HEAD.pack(number, epoch, frontier))
    if root is not None:
        path = tmp_path / f"ckpt/{root:016x}/root"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    assert has_a_witness(tmp_path) == witness


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    """From what passed: not from what failed, nor from a line that was cut short."""
    record = Record(path := tmp_path / "results", seed=5, build="one")
    assert record.read() == {}
    record.write([Result(0, crashes=10)])
    record.add(Result(2, crashes=10, kinds=Counter(kill=10)))
    record.add(Result(1, crashes=3, failure="lost"))
    path.write_text(path.read_text() + Result(3, crashes=10).json()[:20])
    done = record.read()
    assert sorted(done) == [0, 2] and done[2].kinds["kill"] == 10
    record.write(done.values())
    assert record.read() == done
    with pytest.raises(SystemExit, match="is of seed 5"):
        Record(path, seed=6, build="one").read()
    # What another build did tells nothing of this one.
    assert Record(path, seed=5, build="two").read() == {}


def test_a_run_that_ends_early_is_none_that_passed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    kinds = Counter(dict.fromkeys(crash.FAILPOINTS, 1))
    results = [Result(0, crashes=10, kinds=kinds)]
    monkeypatch.setattr(crash, "started", lambda kind: nullcontext(SimpleNamespace(name="none")))
    monkeypatch.setattr(crash, "run", lambda store, options: results)
    assert crash.main(["--points", "10"]) == 0
    assert crash.main(["--points", "20", "--time", "1"]) == crash.INCOMPLETE
    results[0].kinds = Counter()
    assert crash.main(["--points", "10"]) == 1
    results[0].failure = "lost"
    assert crash.main(["--points", "20"]) == 1
    assert "10 of 20 are left" in capfd.readouterr().out
