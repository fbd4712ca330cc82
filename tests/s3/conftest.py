# SPDX-License-Identifier: BSD-3-Clause
"""Fixtures of the tests of the S3 device: a store, a proxy before it, a server over it; always undone."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from client_driver import Connect, Driver
from device import ServeS3
from fault_proxy import FaultProxy
from servers import BUCKET, KINDS, S3Client, Store, client, started

_tests = itertools.count()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fencing: only over a store that honours If-None-Match")


@pytest.fixture(scope="session")
def store() -> Iterator[Store]:
    """
    A store in memory, one for all tests, each of which has volumes or keys of its own: versitygw, or what
    USERBLK_S3_STORE names.
    """
    with started(KINDS[os.environ.get("USERBLK_S3_STORE", "versitygw")]) as running:
        yield running


@pytest.fixture
def proxy(store: Store) -> Iterator[FaultProxy]:
    running = FaultProxy(store.address, BUCKET)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def s3(store: Store) -> S3Client:
    """An S3 client that is not ours, straight to the store."""
    return store.client()


@pytest.fixture
def s3_through_proxy(proxy: FaultProxy) -> S3Client:
    return client(proxy.url)


@pytest.fixture
def serve_s3(store: Store, tmp_path: Path) -> Iterator[ServeS3]:
    """Servers over volumes of this test alone."""
    serve = ServeS3(store, f"t{next(_tests)}", tmp_path)
    with ExitStack() as stack:
        yield serve
        for server in serve.servers:
            stack.callback(server.kill)


# ---- the client as a program ----


@pytest.fixture
def connect(store: Store, tmp_path: Path) -> Iterator[Connect]:
    """connect(URL, PARAMETER=VALUE...): a client of the store; those that run are ended well."""
    drivers: list[Driver] = []

    def start(url: str | None = None, env: dict[str, str] | None = None, **parameters: object) -> Driver:
        values = {
            "endpoint": url or store.url,
            "bucket": BUCKET,
            "credentials": store.credentials,
            "retry-deadline": 20,
            **{name.replace("_", "-"): value for name, value in parameters.items()},
        }
        words = [f"{name}={value}" for name, value in values.items() if value is not None]
        drivers.append(Driver(tmp_path, *words, env=env))
        return drivers[-1]

    with ExitStack() as stack:
        yield start
        for driver in drivers:
            stack.callback(driver.kill)
        for driver in drivers:
            driver.end()


@pytest.fixture
def driver(connect: Connect) -> Driver:
    return connect()


@pytest.fixture
def through(connect: Connect, proxy: FaultProxy) -> Driver:
    """A client that the proxy stands in front of."""
    return connect(proxy.url)


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name.lower())
    return f"client/{name}/object"
