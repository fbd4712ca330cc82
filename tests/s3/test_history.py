# SPDX-License-Identifier: BSD-3-Clause
"""The crash checker's judgement, against all states that a definition by brute force allows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
from history import History, Inconsistent, Write
from stamps import BLOCK, ZEROES, DamagedBlock, number_of, stamped

RUN = 0x5EED


def one_after_another(*blocks: int) -> tuple[History, list[Write]]:
    """A history of writes of one block each, each acknowledged before the next one is sent."""
    history = History(4)
    writes = []
    for block in blocks:
        writes.append(history.submit(block, 1))
        history.acknowledge(writes[-1])
    return history, writes


def test_every_prefix_is_right_and_nothing_else() -> None:
    history, writes = one_after_another(0, 1, 2)
    right = [[0, 0, 0, 0], [1, 0, 0, 0], [1, 2, 0, 0], [1, 2, 3, 0]]
    for state in itertools.product((0, 1), (0, 2), (0, 3), (0,)):
        if list(state) in right:
            assert history.check(state).lost == 3 - sum(number > 0 for number in state)
        else:
            with pytest.raises(Inconsistent):
                history.check(state)


def test_lost_write() -> None:
    history, _ = one_after_another(0, 1, 2)
    with pytest.raises(Inconsistent, match="block 1 holds write 0, older than write 2.*block 2 shows write 3"):
        history.check([1, 0, 3, 0])


def test_stale_block() -> None:
    history, _ = one_after_another(0, 0, 1)
    with pytest.raises(Inconsistent, match="block 0 holds write 1, older than write 2"):
        history.check([1, 3, 0, 0])


def test_write_of_another_block() -> None:
    history, _ = one_after_another(0, 1)
    with pytest.raises(Inconsistent, match="never sent there"):
        history.check([2, 1, 0, 0])


def test_concurrent_writes_may_survive_in_either_order() -> None:
    history = History(2)
    writes = [history.submit(0, 1), history.submit(1, 1)]
    for write in writes:
        history.acknowledge(write)
    for state in ([0, 0], [1, 0], [0, 2], [1, 2]):
        history.check(state)


def test_acknowledged_flush_holds_what_was_acknowledged_before_it() -> None:
    history = History(2)
    history.acknowledge(history.submit(0, 1))
    flush = history.submit_flush()
    history.acknowledge(history.submit(1, 1))  # while the flush runs
    history.check([0, 0])
    history.acknowledge_flush(flush)
    history.check([1, 0])
    with pytest.raises(Inconsistent, match="the flush submitted at 3"):
        history.check([0, 0])
    history.check([0, 0], durable=False)


def test_acknowledged_fua_write_and_all_before_it() -> None:
    history = History(3)
    history.acknowledge(history.submit(0, 1))
    history.acknowledge(history.submit(1, 1), durable=True)
    history.acknowledge(history.submit(2, 1))
    history.check([1, 2, 0])
    with pytest.raises(Inconsistent, match="FUA"):
        history.check([1, 0, 0])
    with pytest.raises(Inconsistent, match="FUA"):
        history.check([0, 2, 0])


def test_zeroes_of_a_trim_or_of_the_beginning() -> None:
    history = History(2)
    history.acknowledge(history.submit(0, 1))
    history.acknowledge(history.submit(0, 1, zero=True))
    history.acknowledge(history.submit(1, 1))
    history.check([0, 0])  # nothing survived, or the first two
    history.check([1, 0])
    history.check([0, 3])
    with pytest.raises(Inconsistent, match="block 0 holds write 1, older than write 2"):
        history.check([1, 3])


def test_zeroes_of_a_trim_demand_what_came_before_it() -> None:
    history = History(2)
    history.acknowledge(history.submit(0, 1))
    flush = history.submit_flush()
    history.acknowledge_flush(flush)
    history.acknowledge(history.submit(1, 1))
    history.acknowledge(history.submit(0, 1, zero=True))
    # Block 0 was durable, so its zeroes are the trim's, which came after write 2.
    with pytest.raises(Inconsistent, match="block 1 holds write 0, older than write 2"):
        history.check([0, 0])
    history.check([0, 2])


def test_what_a_crash_took_never_comes_back() -> None:
    history, _ = one_after_another(0, 1)
    history.settle([1, 0, 0, 0])
    history.acknowledge(history.submit(2, 1))
    with pytest.raises(Inconsistent, match="lost in a crash"):
        history.check([1, 2, 3, 0])


def test_what_was_found_after_a_crash_stays() -> None:
    history = History(2)
    history.submit(0, 1)  # never acknowledged, but found
    history.settle([1, 0])
    with pytest.raises(Inconsistent, match="what was found after an earlier crash"):
        history.check([0, 0])
    history.check([1, 0])
    # Objects taken from the store may take it along.
    history.check([0, 0], durable=False)


def small_histories(rng: random.Random) -> Iterator[History]:
    """Histories of a few writes on two blocks, of which some overlap in time."""
    while True:
        history = History(2)
        in_flight: list[Write] = []
        flushes: list[int] = []
        for _ in range(rng.randint(2, 11)):
            free = [b for b in (0, 1) if not any(w.first <= b < w.first + w.count for w in in_flight)]
            action = rng.random()
            if action < 0.45 and free and len(history.writes) < 6:
                both = len(free) == 2 and rng.random() < 0.3
                write = history.submit(0 if both else rng.choice(free), 2 if both else 1, zero=rng.random() < 0.3)
                in_flight.append(write)
            elif action < 0.85 and in_flight:
                write = in_flight.pop(rng.randrange(len(in_flight)))
                history.acknowledge(write, durable=rng.random() < 0.15)
            elif action < 0.9:
                flushes.append(history.submit_flush())
            elif flushes:
                history.acknowledge_flush(flushes.pop())
        yield history


def states_by_definition(history: History, durable: bool) -> set[tuple[int, ...]]:
    """Every state that a prefix of an allowed order of the writes of single blocks leaves."""
    events = [(write, block) for write in history.writes[1:] for block in range(write.first, write.first + write.count)]
    states: set[tuple[int, ...]] = set()
    for size in range(len(events) + 1):
        for chosen in itertools.combinations(range(len(events)), size):
            inside = [events[i] for i in chosen]
            outside = [events[i] for i in range(len(events)) if i not in chosen]
            if any(w.acknowledged < v.submitted for w, _ in outside for v, _ in inside):
                continue  # not closed downwards
            if durable and any(w.durable or w.acknowledged < history.durable_before for w, _ in outside):
                continue
            state = [0, 0]
            for write, block in inside:  # on one block never two in flight: they are in their order
                state[block] = 0 if write.zero else write.number
            states.add(tuple(state))
    return states


def test_judgement_is_the_definition() -> None:
    rng = random.Random(4)
    refused = 0
    for history in itertools.islice(small_histories(rng), 3000):
        choices = [{0} | {w.number for w in history.of_block[block] if not w.zero} for block in range(2)]
        for durable in (True, False):
            right = states_by_definition(history, durable)
            for state in itertools.product(*choices):
                try:
                    history.check(state, durable)
                    accepted = True
                except Inconsistent:
                    accepted = False
                    refused += 1
                assert accepted == (state in right), (history, state, durable)
    assert refused > 1000


def test_stamp_tells_its_write() -> None:
    assert number_of(stamped(RUN, 7, 42), RUN, 7) == 42
    assert number_of(ZEROES, RUN, 7) == 0


@pytest.mark.parametrize("at", [0, 9, 17, 25, 31, 32, 2047, 2048, BLOCK - 1])
def test_one_flipped_bit_shows(at: int) -> None:
    content = bytearray(stamped(RUN, 7, 42))
    content[at] ^= 0x10
    with pytest.raises(DamagedBlock):
        number_of(bytes(content), RUN, 7)


@pytest.mark.parametrize("cut", [512, 1024, 2048, 3584])
def test_torn_block_shows(cut: int) -> None:
    for other in (stamped(RUN, 7, 43), ZEROES):
        with pytest.raises(DamagedBlock, match="torn or foreign"):
            number_of(stamped(RUN, 7, 42)[:cut] + other[cut:], RUN, 7)


def test_block_of_another_place_or_run_shows() -> None:
    with pytest.raises(DamagedBlock, match="of block 8"):
        number_of(stamped(RUN, 8, 42), RUN, 7)
    with pytest.raises(DamagedBlock, match="another run"):
        number_of(stamped(RUN + 1, 7, 42), RUN, 7)
