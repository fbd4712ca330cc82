# SPDX-License-Identifier: BSD-3-Clause
"""The S3 device over stores of several nodes, which die now and then: `make test-s3-distributed` names the store."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from device import ServeS3
from nbdkit_server import NbdError, Nbdkit, checked, nbd
from servers import Store
from stamps import BLOCK, numbers, stamped
from waiting import wait_until

BLOCKS = 1024
RUN = 11
LIMIT_S = 300.0  # several nodes share this machine with their client
FIRST, LAST = 0, -1  # the node that the device talks to, and one that it does not
nodes = pytest.mark.parametrize("node", [LAST, FIRST], ids=["another", "its own"])


@contextmanager
def without(store: Store, node: int) -> Iterator[None]:
    """It is killed, and there again afterwards."""
    store.nodes[node].end(signal.SIGKILL)
    try:
        yield
    finally:
        store.restart(node)


def lives_through(
    load: Callable[[], None], server: Nbdkit, store: Store, node: int, halfway: Callable[[], bool]
) -> None:
    """The load goes on without the node, but if it is the one that the device talks to: then when that is back."""
    with ThreadPoolExecutor(1) as pool:
        try:
            under_way = pool.submit(load)
            wait_until("the load is halfway", lambda: halfway() or under_way.done(), LIMIT_S)
            with without(store, node):
                if node == LAST:
                    under_way.result(LIMIT_S)
            under_way.result(LIMIT_S)
        except BaseException:
            server.kill()  # or the load would never end
            raise


def test_store_without_conditions_is_refused(serve_s3: ServeS3, store: Store) -> None:
    """It answers 200 where it should refuse: the device detects this by itself, and writes nothing there."""
    if store.conditional_put:
        serve_s3("v", fencing="auto").stop()
        return
    with pytest.raises(AssertionError, match="fencing=none"):
        serve_s3("v", fencing="auto")
    assert not serve_s3.objects("v")
    server = serve_s3("v")  # with fencing=none
    server.connect().pwrite(stamped(RUN, 0, 1), 0)
    server.stop()
    with pytest.raises(AssertionError, match="fencing=none"):
        serve_s3("v", fencing="auto")
    assert numbers(serve_s3("v", readonly="on", fencing="auto").connect().pread(BLOCK, 0), RUN, 0) == [1]


@pytest.mark.fencing
def test_second_writer_at_another_node(serve_s3: ServeS3, store: Store) -> None:
    """One of two PUTs with the same condition, sent to two nodes, is refused."""
    a = serve_s3("v").connect()
    a.pwrite(stamped(RUN, 0, 1), 0)
    a.flush()
    b = serve_s3("v", endpoint=store.url_of(LAST)).connect()
    assert numbers(b.pread(BLOCK, 0), RUN, 0) == [1]
    b.pwrite(stamped(RUN, 0, 2), 0)
    b.flush()
    with pytest.raises(NbdError):
        a.pwrite(stamped(RUN, 0, 3), 0, nbd.CMD_FLAG_FUA)
    assert numbers(b.pread(BLOCK, 0), RUN, 0) == [2]
    assert numbers(serve_s3("v", readonly="on").connect().pread(BLOCK, 0), RUN, 0) == [2]


@nodes
def test_a_node_dies_while_it_flushes(serve_s3: ServeS3, store: Store, node: int) -> None:
    """What was flushed is there when the device has been killed too and is opened again."""
    server = serve_s3("v", batch_size="1M")
    handle = server.connect()
    written = [0]

    def write() -> None:
        for number in (1, 2):
            for block in range(BLOCKS):
                handle.pwrite(stamped(RUN, block, number), block * BLOCK)
                if block % 64 == 63:
                    handle.flush()
                written[0] += 1

    lives_through(write, server, store, node, lambda: written[0] > BLOCKS // 2)
    server.kill()
    assert numbers(serve_s3("v").connect().pread(BLOCKS * BLOCK, 0), RUN, 0) == [2] * BLOCKS


def verify(server: Nbdkit, *options: str) -> None:
    argv = ["fio", "--name=verify", "--ioengine=nbd", f"--uri={server.uri}", "--rw=randwrite", "--bs=16k"]
    argv += ["--size=32M", "--iodepth=16", "--randseed=5", "--verify=crc32c", "--verify_fatal=1"]
    checked([*argv, "--verify_state_save=0", *options], timeout=LIMIT_S)


@nodes
def test_fio_verifies_while_a_node_is_gone(serve_s3: ServeS3, store: Store, node: int) -> None:
    """With checkpoints and garbage collection meanwhile; then once more what another server finds."""
    server = serve_s3("v", batch_size="1M", checkpoint="8", gc_delay="0", memory="24M")
    lives_through(
        lambda: verify(server, "--fsync=128"),
        server,
        store,
        node,
        lambda: len(serve_s3.objects("v", "log/")) > 8,
    )
    server.stop()
    verify(serve_s3("v"), "--verify_only=1")
