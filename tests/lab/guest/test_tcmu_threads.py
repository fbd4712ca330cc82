# SPDX-License-Identifier: BSD-3-Clause
"""TCMU disks with threads of the handler's own: how many, and what becomes of commands that wait in them."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from guest import LIMIT, MIB, NVME, RELEASE, mapped, suspended
from guest_tcmu import daemon
from userblk.harness.systems.lio import Backstore, LioError, Lun, TcmuRunner, write_attribute
from waiting import thread_states, wait_until

SIZE = 64 * MIB
OWN, RUNNERS = "userblk_threads_passthrough", "userblk_passthrough"
DEFAULT = 16
RING = int(RELEASE == "bullseye")  # threads of a disk that tcmu-runner 1.5.2 gives no name
MANY = 24  # requests at once
LENGTH = 4096
APART = 128 * 1024  # so that the kernel merges none


@pytest.fixture
def below() -> Iterator[str]:
    """The device below."""
    with mapped("slow", f"0 {SIZE // 512} linear {NVME} 0") as path:
        yield path


@contextmanager
def exported(config: str, subtype: str = OWN, name: str = "threads", timeout_s: int = 120) -> Iterator[Lun]:
    with Lun(Backstore.user(subtype, config, SIZE, timeout_s=timeout_s), name) as lun:
        write_attribute(attribute(lun, "timeout"), "120")  # of the SCSI disk: LIO's is the one that expires
        yield lun


def attribute(lun: Lun, name: str) -> Path:
    return Path("/sys/block", lun.disk.name, "device", name)


class Requests:
    """Direct I/O of LENGTH bytes each, by as many threads, at offsets that are APART."""

    def __init__(self, lun: Lun, pool: ThreadPoolExecutor) -> None:
        self.lun = lun
        self.pool = pool

    def write(self, numbers: Sequence[int], byte: bytes) -> list[Future[bytes]]:
        return [self.pool.submit(self._one, number, byte) for number in numbers]

    def read(self, numbers: Sequence[int]) -> list[Future[bytes]]:
        return [self.pool.submit(self._one, number) for number in numbers]

    def _one(self, number: int, byte: bytes = b"") -> bytes:
        fd = os.open(self.lun.disk, os.O_RDWR | os.O_DIRECT)
        try:
            with mmap.mmap(-1, LENGTH) as memory:
                if byte:
                    memory[:] = byte * LENGTH
                    done = os.pwritev(fd, [memory], number * APART)
                else:
                    done = os.preadv(fd, [memory], number * APART)
                assert done == LENGTH
                return memory[:]
        finally:
            os.close(fd)

    def await_arrival(self, count: int) -> None:
        wait_until(
            f"{count} commands are under way", lambda: int(attribute(self.lun, "device_busy").read_text()) == count
        )


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3 * MANY) as pool:
        yield pool


def waiting(runner: TcmuRunner) -> int:
    """Threads of the daemon that wait for the device below."""
    return thread_states(runner.process.pid).count("D")


def assert_waiting(runner: TcmuRunner, count: int) -> None:
    wait_until(f"{count} threads wait", lambda: waiting(runner) == count, log=lambda: str(waiting(runner)))
    time.sleep(0.3)
    assert waiting(runner) == count


def unnamed(runner: TcmuRunner) -> int:
    """Threads of the daemon with its own name: those of our handlers, not those of rings and of libraries."""
    return sum(path.read_text() == "tcmu-runner\n" for path in Path(f"/proc/{runner.process.pid}/task").glob("*/comm"))


def assert_content(requests: Requests, numbers: Sequence[int], byte: bytes) -> None:
    assert {found.result(LIMIT) for found in requests.read(numbers)} == {byte * LENGTH}


def test_one_disk_after_another(below: str, pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    """Each has as many threads as its own cfgstring says, in whatever form; none is left when it goes."""
    file = tmp_path / "parameters"
    file.write_text(f"file={below}\ndirect=on\n")
    forms = (
        (f"{below};direct=on;threads=3", 3),
        (f"{below};direct=on", DEFAULT),
        (f"threads=1;file={below};direct=on", 1),
        (f"config={file}", DEFAULT),
        (f"config={file};threads=256", 256),
        (f"direct=on;threads=2;file={below};tcmur_cmd_time_out=60", 2),
    )
    with daemon() as runner:
        alone = unnamed(runner)
        for byte, (config, threads) in enumerate(forms, 1):
            with exported(config) as lun:
                assert unnamed(runner) == alone + RING + threads, config
                requests = Requests(lun, pool)
                with suspended("slow"):
                    writes = requests.write(range(MANY), bytes([byte]))
                    requests.await_arrival(MANY)
                    assert_waiting(runner, min(threads, MANY))
                    assert not any(write.done() for write in writes)
                for write in writes:
                    write.result(LIMIT)
                assert_content(requests, range(MANY), bytes([byte]))
            wait_until("its threads end", lambda: unnamed(runner) == alone)


@pytest.mark.parametrize(
    ("subtype", "words", "given", "threads"),
    [(OWN, ";threads=2", None, 2), (RUNNERS, "", None, DEFAULT), (RUNNERS, "", 3, 3), (RUNNERS, "", 0, 1)],
)
def test_beside_another_disk(
    below: str, pool: ThreadPoolExecutor, subtype: str, words: str, given: int | None, threads: int
) -> None:
    """
    Neither has the other's number, be the other's threads its own or the daemon's. Without any, that of the ring waits.
    """
    with (
        mapped("other", f"0 {SIZE // 512} linear {NVME} {SIZE // 512}") as beside,
        daemon(given) as runner,
        exported(f"{beside};direct=on{words}", subtype, "other") as other,
        exported(f"{below};direct=on;threads=5") as ours,
        suspended("other"),
    ):
        read = Requests(other, pool).read(range(MANY))
        assert_waiting(runner, threads)
        requests = Requests(ours, pool)
        for write in requests.write(range(MANY), b"o"):
            write.result(LIMIT)
        with suspended("slow"):
            again = requests.read(range(MANY))
            requests.await_arrival(MANY)
            assert_waiting(runner, threads + 5)
        assert {found.result(LIMIT) for found in again} == {b"o" * LENGTH}
        assert not any(found.done() for found in read)


def test_what_is_refused(below: str, pool: ThreadPoolExecutor) -> None:
    wrong = (
        (OWN, "threads=0", "threads=0: not a number of threads; use 1 to 256"),
        (OWN, "threads=257", "threads=257: not a number of threads; use 1 to 256"),
        (OWN, "threads=4;threads=5", "threads=5: given twice; leave one out"),
        (OWN, "tcmur_cmd_time_out=5;threads=4", "tcmur_cmd_time_out=5: not the last"),
        (RUNNERS, "threads=4", "threads=4: the threads of this disk are tcmu-runner's"),
    )  # fmt: skip
    with daemon() as runner:
        for subtype, words, reason in wrong:
            logged = len(runner.log)
            with pytest.raises(LioError), exported(f"{below};direct=on;{words}", subtype):
                pass
            assert reason in runner.log[logged:]
        with exported(f"{below};direct=on;threads=4") as lun:  # what was refused holds nothing
            assert Requests(lun, pool).write([0], b"w")[0].result(LIMIT)


def test_commands_that_take_long_are_logged(below: str, pool: ThreadPoolExecutor) -> None:
    """Those in a thread, and those that wait for one; later each ends well, and is logged again."""
    with daemon() as runner, exported(f"{below};direct=on;threads=2;tcmur_cmd_time_out=1") as lun:
        requests = Requests(lun, pool)
        with suspended("slow"):
            writes = requests.write(range(MANY), b"l")
            wait_until("each is logged", lambda: runner.log.count(" timed out.") == MANY, log=lambda: runner.log)
            assert waiting(runner) == 2 and not any(write.done() for write in writes)
        for write in writes:
            write.result(LIMIT)
        ends = "Timed out command id "
        wait_until("each end is logged", lambda: runner.log.count(ends) == MANY, log=lambda: runner.log)
        assert runner.log.count("with status 0.") == MANY
        assert_content(requests, range(MANY), b"l")


def test_a_disk_goes_while_its_threads_wait(below: str, pool: ThreadPoolExecutor) -> None:
    """The kernel has given the commands up; the daemon closes the disk when its threads are done with them."""
    config = f"{below};direct=on;threads=2"
    with daemon() as runner, ExitStack() as stack:
        lun = stack.enter_context(exported(config, timeout_s=2))
        with suspended("slow"):
            reads = Requests(lun, pool).read(range(MANY))
            assert_waiting(runner, 2)
            attribute(lun, "state").write_text("offline\n")  # not sent again
            assert all(isinstance(read.exception(LIMIT), OSError) for read in reads)
            gone = pool.submit(stack.close)
            wait_until("the disk is gone", lambda: not Path("/sys/block", lun.disk.name).exists())
            time.sleep(1)
            assert not gone.done() and waiting(runner) == 2
        gone.result(LIMIT)
        assert runner.process.poll() is None
        with exported(config) as again:  # which the first would not let open
            assert Requests(again, pool).write([0], b"w")[0].result(LIMIT)


@pytest.mark.parametrize("restarted", [True, False])
def test_a_kill_while_commands_wait(below: str, pool: ThreadPoolExecutor, restarted: bool) -> None:
    """Each ends, well with the next daemon and with an error without; what was acknowledged is there."""
    config = f"{below};direct=on;threads=4;tcmur_cmd_time_out=60"
    before, during = range(MANY), range(MANY, 2 * MANY)
    with ExitStack() as daemons:
        first = daemons.enter_context(daemon())
        with exported(config) as lun:
            requests = Requests(lun, pool)
            for write in requests.write(before, b"b"):
                write.result(LIMIT)
            with suspended("slow"):
                under_way = requests.write(during, b"d") + requests.read(before)
                requests.await_arrival(2 * MANY)
                assert_waiting(first, 4)
                first.process.kill()  # it ends when its threads have
            first.process.wait(LIMIT)
            assert not any(request.done() for request in under_way)
            if restarted:
                daemons.enter_context(daemon())
            else:
                attribute(lun, "state").write_text("offline\n")
                lun.fail_commands()
            ends = {type(request.exception(LIMIT)) for request in under_way}
            assert ends == {type(None) if restarted else OSError}
            if restarted:
                assert {read.result() for read in under_way[MANY:]} == {b"b" * LENGTH}
                assert_content(requests, during, b"d")
    with daemon(), exported(config) as later:
        assert_content(Requests(later, pool), before, b"b")
