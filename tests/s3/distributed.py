# SPDX-License-Identifier: BSD-3-Clause
"""The S3 device over stores of several nodes: `make test-s3-distributed`, which names one of them."""

from __future__ import annotations

import signal
import threading

import pytest
from device import ServeS3
from servers import Store
from stamps import BLOCK, number_of, stamped

BLOCKS = 1024
RUN = 11


def test_store_without_conditions_is_refused(serve_s3: ServeS3, store: Store) -> None:
    if store.conditional_put:
        assert serve_s3("v", fencing="auto").stop() == 0
        return
    with pytest.raises(AssertionError, match="fencing=none"):
        serve_s3("v", fencing="auto")
    assert not serve_s3.objects("v")


def test_a_node_dies_while_it_writes(serve_s3: ServeS3, store: Store) -> None:
    """The last node, not the one that the device talks to: the store goes on, and so does the device."""
    server = serve_s3("v", batch_size="1M")
    handle = server.connect()
    halfway = threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            for number in (1, 2):
                for block in range(BLOCKS):
                    handle.pwrite(stamped(RUN, block, number), block * BLOCK)
                    if block % 128 == 127:
                        handle.flush()
                halfway.set()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failed.append(error)
            halfway.set()

    writer = threading.Thread(target=write)
    writer.start()
    halfway.wait(300)
    store.nodes[-1].end(signal.SIGKILL)
    try:
        writer.join(300)
        assert not writer.is_alive() and not failed, failed
        server.kill()
        handle = serve_s3("v").connect()
        for block in range(BLOCKS):
            assert number_of(bytes(handle.pread(BLOCK, block * BLOCK)), RUN, block) == 2
    finally:
        store.nodes[-1].start()
