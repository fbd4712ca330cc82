# SPDX-License-Identifier: BSD-3-Clause
"""The S3 client against a real store, straight and through a proxy that misbehaves.

tests/s3/client_driver.c is the client as a program; a client that is not ours puts and checks objects.
"""

from __future__ import annotations

import http.server
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from email.utils import formatdate
from errno import EACCES, EEXIST, EINVAL, EIO, ENOENT, ENXIO, EPROTO, ERANGE, EREMCHG, ESHUTDOWN
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import (
    Action,
    Broken,
    Exchange,
    FaultProxy,
    Head,
    Rule,
    delayed,
    done_but_refused,
    done_but_reset,
    ended_in_reply,
    error_body,
    overwritten,
    passed_on,
    refused,
    reset_in_reply,
    reset_in_request,
    shortened_reply,
    whole_for_range,
)
from role_service import CONTAINER_PATH, ROLES, RoleService
from servers import ACCESS_KEY, BUCKET, ROOT, SECRET_KEY, Process, S3Client, Versitygw, port_of, program, reserve_port

DRIVER = os.environ.get("USERBLK_S3_DRIVER", str(ROOT / "build/host/tests/s3/client_driver"))
MIB = 1 << 20
BODY = random.Random(4).randbytes(3 * MIB + 5)


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


class Driver:
    """A client_driver; lines are what it tells its user."""

    def __init__(self, directory: Path, *parameters: str, env: dict[str, str] | None = None) -> None:
        self._log = (directory / f"driver-{random.getrandbits(32):08x}").open("w+b")
        self.process = subprocess.Popen(
            [DRIVER, *parameters],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **(env or {})},
        )

    def __call__(self, *words: object) -> dict[str, Any]:
        """Runs a command and returns its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"no answer: {self.reported}"
        answer: dict[str, Any] = json.loads(line)
        assert answer.get("called", 1) == 1
        return answer

    @property
    def reported(self) -> str:
        self._log.seek(0)
        return self._log.read().decode()

    def end(self) -> int:
        """Closes the client. The sanitizers' verdict is in the status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        status = self.process.wait(300)
        assert status in (0, 2), self.reported
        return status

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None and self.process.stdout is not None:
            self.process.stdin.close()
            self.process.stdout.close()
        self._log.close()


Connect = Callable[..., Driver]


@pytest.fixture
def connect(store: Versitygw, tmp_path: Path) -> Iterator[Connect]:
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


def put(s3: S3Client, key: str, body: bytes = BODY) -> None:
    s3.put_object(Bucket=BUCKET, Key=key, Body=body)


def get(s3: S3Client, key: str) -> bytes:
    return bytes(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())


# ---- what it does --------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 4096, 5 * MIB + 3])
@pytest.mark.parametrize("how", ["", "digest"])
def test_put_stores_the_body(driver: Driver, s3: S3Client, key: str, size: int, how: str) -> None:
    answer = driver("put", key, size, 7, *how.split())
    assert answer["result"] == 0 and answer["retries"] == 0 and answer["bytes"] == size
    stored = get(s3, key)
    assert len(stored) == size and digest(stored) == answer["sha256"]
    assert answer["etag"] == s3.head_object(Bucket=BUCKET, Key=key)["ETag"]


def test_get_receives_ranges(driver: Driver, s3: S3Client, key: str) -> None:
    put(s3, key)
    size = len(BODY)
    for offset, length in [(0, size), (0, 1), (size - 1, 1), (4096, 4096), (1000, 2 * MIB)]:
        answer = driver("get", key, offset, length)
        assert (answer["result"], answer["bytes"], answer["object_size"]) == (0, length, size)
        assert answer["sha256"] == digest(BODY[offset : offset + length])
    assert driver("get", key, size - 10, 11)["result"] == -ERANGE
    assert driver("get", key, size, 1)["result"] == -ERANGE
    answer = driver("get", key, size - 10, 100, "short")
    assert (answer["result"], answer["bytes"], answer["object_size"]) == (0, 10, size)
    assert answer["sha256"] == digest(BODY[-10:])
    answer = driver("get", key, size + 5, 100, "short")
    assert (answer["result"], answer["bytes"]) == (0, 0)
    answer = driver("get", f"{key}-none", 0, 100, "short")
    assert answer["result"] == -ENOENT and "no such object" in answer["message"]


def test_head_tells_sizes(driver: Driver, s3: S3Client, key: str) -> None:
    for size in 0, 1, 12345:
        put(s3, key, BODY[:size])
        answer = driver("head", key)
        assert (answer["result"], answer["object_size"]) == (0, size)
    assert answer["etag"] == s3.head_object(Bucket=BUCKET, Key=key)["ETag"]
    assert driver("head", f"{key}-none")["result"] == -ENOENT


def test_conditional_put_has_one_winner(driver: Driver, s3: S3Client, key: str) -> None:
    first = driver("put", key, 1000, 1, "none-match")
    assert first["result"] == 0
    second = driver("put", key, 1000, 2, "none-match")
    assert second["result"] == -EEXIST and second["retries"] == 0
    assert digest(get(s3, key)) == first["sha256"]
    third = driver("put", key, 1000, 3, "match=" + first["etag"])
    assert third["result"] == 0
    assert driver("put", key, 1000, 4, "match=" + first["etag"])["result"] == -EEXIST
    assert digest(get(s3, key)) == third["sha256"]


def test_conditional_puts_at_once_have_one_winner(driver: Driver, key: str) -> None:
    assert driver("parallel", 16, "put", key, 100000, 1, "none-match")["results"] == {"0": 1, str(-EEXIST): 15}


def test_delete_removes(driver: Driver, s3: S3Client, key: str) -> None:
    put(s3, key, b"x")
    assert driver("delete", key)["result"] == 0
    assert driver("head", key)["result"] == -ENOENT
    assert driver("delete", key)["result"] == 0


def test_delete_many_removes_a_thousand(driver: Driver, s3: S3Client, key: str) -> None:
    assert driver("parallel", 40, "put", f"{key}-%", 10, 1)["results"] == {"0": 40}
    put(s3, f"{key}-stays", b"x")
    keys = [f"{key}-{i}" for i in range(1000)]
    answer = driver("delete-many", *keys)
    assert answer["result"] == 0 and answer["key_results"] == [0] * 1000
    assert [o["Key"] for o in s3.list_objects_v2(Bucket=BUCKET, Prefix=key)["Contents"]] == [f"{key}-stays"]


def test_list_pages_and_prefixes(driver: Driver, s3: S3Client, key: str) -> None:
    root = key.removesuffix("object")
    names = [f"a/{i}" for i in range(5)] + ["b", "c/1", "with space+plus%25&<é>"]
    for name in names:
        put(s3, root + name, name.encode())
    found: list[str] = []
    token: list[str] = []
    for _ in range(len(names)):
        answer = driver("list", root, "max=3", *token)
        assert answer["result"] == 0 and len(answer["objects"]) <= 3
        found += [o[0] for o in answer["objects"]]
        assert all(o[1] == len(o[0].removeprefix(root).encode()) and not o[3] for o in answer["objects"])
        if answer["token"] is None:
            break
        token = ["token=" + answer["token"]]
    assert found == sorted(root + name for name in names)
    prefixes = driver("list", root, "delimiter")["objects"]
    assert sorted((o[0].removeprefix(root), o[3]) for o in prefixes) == [
        ("a/", True),
        ("b", False),
        ("c/", True),
        (names[-1], False),
    ]
    later = driver("list", root, f"after={root}a/3")["objects"]
    assert [o[0] for o in later] == [key for key in found if key > f"{root}a/3"]
    assert driver("list", f"{root}none")["objects"] == []


def test_malformed_requests_are_refused(driver: Driver, key: str) -> None:
    for bad in "/a", "a//b", "a/../b", "A", "a+b", "a" * 513:
        assert driver("put", bad, 1, 1)["result"] == -EINVAL
    assert driver("get", key, 0, 0)["result"] == -EINVAL
    assert driver("list", "/")["result"] == -EINVAL
    assert driver("delete-many")["result"] == -EINVAL
    assert driver("delete-many", *[f"k{i}" for i in range(1001)])["result"] == -EINVAL
    assert driver("counters")["put"]["requests"] == 0


def test_connections_are_kept(connect: Connect, s3: S3Client, key: str) -> None:
    driver = connect(connections=4)
    put(s3, key)
    assert driver("parallel", 100, "get", key, 0, 70000)["results"] == {"0": 100}
    counters = driver("counters")
    assert counters["connections"] <= 4
    assert counters["get"]["requests"] == counters["get"]["histogram"] == 100
    assert counters["get"]["received"] == 100 * 70000
    assert counters["get"]["max_ns"] <= counters["get"]["busy_ns"]


def test_goes_on_after_parking(driver: Driver, s3: S3Client, key: str) -> None:
    def threads() -> int:
        return len(list(Path(f"/proc/{driver.process.pid}/task").iterdir()))

    put(s3, key)
    for _ in range(3):
        assert driver("parallel", 20, "get", key, 0, 4096)["results"] == {"0": 20}
        running = threads()  # with a sanitizer's own
        driver("park")
        # A thread that was joined is still listed for a moment.
        deadline = time.monotonic() + 120
        while threads() != running - 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threads() == running - 1


@pytest.mark.parametrize("command", [f"get %s 0 {len(BODY)}", "put %s-% 300000 1", "list client/", "get %s-none 0 1"])
def test_close_ends_what_is_in_flight(
    connect: Connect, proxy: FaultProxy, s3: S3Client, key: str, command: str
) -> None:
    put(s3, key)
    proxy.add(Rule(delayed(before=lambda: 0.2), skip=16))  # so that they cannot all be over before it is closed
    driver = connect(proxy.url, connections=8)
    answer = driver("abort", 200, command.replace("%s", key))
    assert answer["in_flight"] == 0
    assert sum(answer["results"].values()) == 200 and answer["results"].get(str(-ESHUTDOWN), 0) > 0
    assert set(answer["results"]) <= {"0", str(-ESHUTDOWN), str(-ENOENT)}


def test_close_ends_what_waits_for_another_try(through: Driver, proxy: FaultProxy, key: str) -> None:
    proxy.add(Rule(refused(503, "SlowDown")))
    answer = through("abort", 50, "put", f"{key}-%", 100, 1)
    assert answer["results"] == {str(-ESHUTDOWN): 50}


def test_addresses_by_virtual_host(connect: Connect, tmp_path: Path, key: str) -> None:
    with gateway(tmp_path, "--virtual-domain", "localhost:{port}") as port:
        driver = connect(f"http://localhost:{port}", addressing="virtual")
        assert driver("put", key, 1000, 1)["result"] == 0
        assert driver("get", key, 0, 1000)["sha256"] == digest((tmp_path / "data" / BUCKET / key).read_bytes())
        assert driver("list", key)["objects"][0][0] == key
        assert driver("delete-many", key)["result"] == 0


# ---- faults --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "times"),
    [
        (refused(503, "SlowDown"), 3),
        (refused(503, "SlowDown", retry_after=1), 1),
        (refused(429, "TooManyRequests"), 2),
        (refused(409, "ConditionalRequestConflict"), 2),
        (refused(400, "RequestTimeout"), 1),
        (refused(500, "InternalError"), 2),
        (done_but_refused(500, "InternalError"), 1),
        (done_but_reset, 2),
        (reset_in_request(70000), 2),
    ],
)
def test_put_is_tried_again(
    through: Driver, proxy: FaultProxy, s3: S3Client, key: str, action: Action, times: int
) -> None:
    rule = proxy.add(Rule(action, "PUT", times=times))
    answer = through("put", key, 2 * MIB, 3)
    assert answer["result"] == 0 and answer["retries"] >= times and rule.taken == times
    assert digest(get(s3, key)) == answer["sha256"]
    counters = through("counters")["put"]
    assert (counters["requests"], counters["errors"], counters["retries"]) == (1, 0, answer["retries"])


@pytest.mark.parametrize("action", [done_but_refused(500, "InternalError"), done_but_reset])
def test_own_conditional_put_is_told_apart(
    through: Driver, proxy: FaultProxy, s3: S3Client, key: str, action: Action
) -> None:
    """The first attempt was stored, its reply was lost: the result asks the caller to look."""
    proxy.add(Rule(action, "PUT", times=1))
    answer = through("put", key, MIB, 3, "none-match")
    assert answer["result"] == -EEXIST and answer["retries"] >= 1
    assert digest(get(s3, key)) == answer["sha256"]


def test_ignored_condition_is_seen(through: Driver, proxy: FaultProxy, store: Versitygw, key: str) -> None:
    """What the probe at open relies on: such a store answers 200 twice."""
    proxy.add(Rule(overwritten(store.objects), "PUT"))
    assert [through("put", key, 10, i, "none-match")["result"] for i in range(2)] == [0, 0]


@pytest.mark.parametrize(
    "action", [reset_in_reply(0), reset_in_reply(100000), ended_in_reply(100000), shortened_reply(100000)]
)
def test_cut_replies_are_tried_again(
    through: Driver, proxy: FaultProxy, s3: S3Client, key: str, action: Action
) -> None:
    put(s3, key)
    proxy.add(Rule(action, "GET", times=2))
    answer = through("get", key, 5, 2 * MIB)
    assert (answer["result"], answer["retries"]) == (0, 2)
    assert answer["sha256"] == digest(BODY[5 : 5 + 2 * MIB])


def test_whole_object_for_a_range_is_no_data(
    through: Driver, proxy: FaultProxy, store: Versitygw, s3: S3Client, key: str
) -> None:
    put(s3, key)
    rule = proxy.add(Rule(whole_for_range(store.objects), "GET", times=1))
    answer = through("get", key, 4096, 4096)
    assert (answer["result"], answer["retries"]) == (0, 1)
    assert answer["sha256"] == digest(BODY[4096:8192])
    rule.taken, rule.times = 0, 1000
    for command in ("get", key, 0, 4096), ("head", key):
        answer = through(*command)
        assert (answer["result"], answer["bytes"]) == (-EIO, 0)
        assert "does not match the request" in answer["message"]


def test_other_range_is_no_data(through: Driver, proxy: FaultProxy, s3: S3Client, key: str) -> None:
    def moved(exchange: Exchange) -> None:
        exchange.request.set("Range", "bytes=0-4095")
        reply = exchange.forward()
        assert reply.status in (206, 403)
        reply.first = "HTTP/1.1 206 Partial Content"
        reply.set("Content-Range", f"bytes 0-{(reply.length or 1) - 1}/{len(BODY)}")
        exchange.relay()

    put(s3, key)
    proxy.add(Rule(moved, "GET", times=1))
    answer = through("get", key, 4096, 4096)
    assert (answer["result"], answer["retries"]) == (0, 1)
    assert answer["sha256"] == digest(BODY[4096:8192])


def test_slow_reply_is_tried_again(connect: Connect, proxy: FaultProxy, s3: S3Client, key: str) -> None:
    put(s3, key)
    proxy.add(Rule(delayed(after=lambda: 30.0), "GET", times=1))
    answer = connect(proxy.url, timeout=1)("get", key, 0, 4096)
    assert answer["result"] == 0 and answer["retries"] >= 1


def test_gives_up_at_the_deadline(connect: Connect, proxy: FaultProxy, key: str) -> None:
    proxy.add(Rule(refused(503, "SlowDown")))
    answer = connect(proxy.url, retry_deadline=5)("get", key, 0, 4096)
    assert answer["result"] == -EIO and answer["retries"] >= 1
    assert "503" in answer["message"] and "given up after" in answer["message"]
    # Also in the middle of an attempt.
    proxy.clear()
    proxy.add(Rule(delayed(after=lambda: 30.0)))
    answer = connect(proxy.url, retry_deadline=1)("get", key, 0, 4096)
    assert answer["result"] == -EIO


def test_outlasts_an_outage_and_tells(connect: Connect, proxy: FaultProxy, s3: S3Client, key: str) -> None:
    driver = connect(proxy.url, retry_deadline=0)
    put(s3, key)
    assert driver("get", key, 0, 10)["result"] == 0
    over = threading.Event()
    with proxy.outage():
        results: list[dict[str, Any]] = []
        thread = threading.Thread(target=lambda: results.append(driver("parallel", 30, "get", key, 0, 4096)))
        thread.start()
        while "is being tried again" not in driver.reported:
            assert not over.wait(0.1)
    thread.join()
    assert results[0]["results"] == {"0": 30} and results[0]["retries"] >= 30
    assert f"endpoint={proxy.url}: cannot connect" in driver.reported
    assert "answers again after" in driver.reported
    assert len(driver.reported.splitlines()) == 2


def test_proxys_not_found_is_not_absence(through: Driver, proxy: FaultProxy, s3: S3Client, key: str) -> None:
    """A 404 without the store's own word for it, as a load balancer gives when it has no server."""

    def not_found(exchange: Exchange) -> None:
        exchange.client.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot found")

    put(s3, key)
    assert through("head", key)["result"] == 0
    proxy.add(Rule(not_found, "GET", times=2))
    for command in ("get", key, 0, 4096), ("head", key):
        answer = through(*command)
        assert answer["result"] == 0
    assert through("counters")["get"]["retries"] == 2


def test_listing_of_what_was_not_asked_for(connect: Connect, proxy: FaultProxy, key: str) -> None:
    """Its keys would be read and deleted with our signature."""

    def foreign(exchange: Exchange) -> None:
        item = b"<Contents><Key>another/volume</Key><Size>1</Size></Contents>"
        body = b"<ListBucketResult><IsTruncated>false</IsTruncated>" + item + b"</ListBucketResult>"
        head = Head("HTTP/1.1 200 OK", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        exchange.answered = 200
        exchange.client.send(head.encode() + body)

    rule = proxy.add(Rule(foreign, "GET"))
    answer = connect(proxy.url)("list", key)
    assert answer["result"] == -EPROTO and rule.taken == 1


# ---- hedged reads ----------------------------------------------------------------------


@pytest.fixture
def hedging(connect: Connect, proxy: FaultProxy, s3: S3Client, key: str) -> Driver:
    """A client that knows how long the object takes to read, and has paid for some hedges."""
    put(s3, key)
    driver = connect(proxy.url, hedge=95, connections=8)
    assert driver("parallel", 400, "get", key, 0, 4096)["results"] == {"0": 400}
    return driver


def hedged(driver: Driver) -> tuple[int, int]:
    """Hedges, and those of them that were sooner."""
    counters = driver("counters")
    assert counters["hedges"] <= counters["get"]["requests"] / 20
    return counters["hedges"], counters["hedges_won"]


def test_late_read_is_hedged(hedging: Driver, proxy: FaultProxy, key: str) -> None:
    hedges, won = hedged(hedging)
    proxy.add(Rule(delayed(before=lambda: 30.0), "GET", times=1))
    began = time.monotonic()
    answer = hedging("get", key, 8192, 4096)
    assert time.monotonic() - began < 10
    assert (answer["result"], answer["retries"], answer["sha256"]) == (0, 0, digest(BODY[8192:12288]))
    assert hedged(hedging) == (hedges + 1, won + 1)
    # One whose reply comes in the middle of the second attempt's is not mixed with that.
    proxy.clear()
    proxy.add(Rule(delayed(after=lambda: 0.7), "GET", times=1))
    proxy.add(Rule(delayed(after=lambda: 2.0), "GET", times=1))
    answer = hedging("get", key, 8192, 4096)
    assert (answer["result"], answer["sha256"]) == (0, digest(BODY[8192:12288]))
    assert hedged(hedging) == (hedges + 2, won + 1)


def test_reads_that_are_not_late_are_not_hedged(connect: Connect, proxy: FaultProxy, s3: S3Client, key: str) -> None:
    put(s3, key)
    proxy.add(Rule(delayed(before=lambda: 0.02), "GET"))
    driver = connect(proxy.url, connections=8)
    assert driver("parallel", 400, "get", key, 0, 4096)["results"] == {"0": 400}
    proxy.clear()
    proxy.add(Rule(delayed(before=lambda: 1.0), "GET", times=1))
    assert driver("get", key, 0, 4096)["result"] == 0
    assert hedged(driver) == (0, 0)  # that is for who asks for it


def test_store_that_becomes_slow_is_hardly_asked_for_more(hedging: Driver, proxy: FaultProxy, key: str) -> None:
    before = hedging("counters")
    proxy.add(Rule(delayed(before=lambda: 0.1), "GET"))
    for _ in range(50):
        assert hedging("parallel", 4, "get", key, 0, 4096)["results"] == {"0": 4}
    after = hedging("counters")
    assert 0 < after["hedges"] - before["hedges"] <= 10 + 10  # the budget of these and what had been saved
    hedged(hedging)


@pytest.mark.parametrize("times", [1, 2], ids=["first", "both"])
def test_failure_of_a_hedged_read(hedging: Driver, proxy: FaultProxy, key: str, times: int) -> None:
    """While one of the two attempts may succeed nothing is tried again."""

    def late_failure(exchange: Exchange) -> None:
        exchange.proxy.sleep(1.0)
        refused(503, "SlowDown")(exchange)

    proxy.add(Rule(late_failure, "GET", times=times))
    proxy.add(Rule(delayed(after=lambda: 1.5), "GET", times=1))
    answer = hedging("get", key, 0, 4096)
    assert (answer["result"], answer["sha256"]) == (0, digest(BODY[:4096]))
    assert answer["retries"] == times - 1


def test_hedged_read_that_nothing_answers(connect: Connect, proxy: FaultProxy, s3: S3Client, key: str) -> None:
    put(s3, key)
    driver = connect(proxy.url, hedge=95, connections=8, retry_deadline=2)
    assert driver("parallel", 400, "get", key, 0, 4096)["results"] == {"0": 400}
    proxy.add(Rule(delayed(before=lambda: 30.0), "GET", times=2))
    hedges, won = hedged(driver)
    answer = driver("get", key, 0, 4096)
    assert answer["result"] == -EIO and "given up after" in answer["message"]
    assert hedged(driver) == (hedges + 1, won)
    assert driver("get", key, 0, 4096)["result"] == 0


# ---- what a user can fix ---------------------------------------------------------


def test_token_is_sent_and_signed(connect: Connect, proxy: FaultProxy, tmp_path: Path, key: str) -> None:
    seen: list[tuple[str | None, str | None]] = []

    def look(exchange: Exchange) -> None:
        seen.append((exchange.request.get("x-amz-security-token"), exchange.request.get("authorization")))
        passed_on(exchange)

    proxy.add(Rule(look))
    keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_SESSION_TOKEN": "to/ken+="}
    answer = connect(proxy.url, env=keys, credentials=None)("get", key, 0, 1)
    # versitygw has no sessions; that it says so shows that it was a session's.
    assert answer["result"] == -EACCES and "token" in answer["message"]
    assert seen[0][0] == "to/ken+=" and ";x-amz-security-token," in (seen[0][1] or "")


def test_credentials_are_read_again(connect: Connect, proxy: FaultProxy, tmp_path: Path, key: str) -> None:
    path = tmp_path / "credentials"
    path.write_text(f"access-key-id={ACCESS_KEY}\nsecret-access-key=old\n", encoding="utf-8")
    path.chmod(0o600)
    driver = connect(proxy.url, credentials=path)
    answer = driver("put", key, 10, 1)
    assert answer["result"] == -EACCES and answer["retries"] == 0
    assert "secret access key is not that of access key ID" in answer["message"]
    assert f"credentials={path}" in answer["message"] and "old" not in answer["message"]
    path.write_text(f"access-key-id={ACCESS_KEY}\nsecret-access-key={SECRET_KEY}\n", encoding="utf-8")
    answer = driver("put", key, 10, 1)
    assert (answer["result"], answer["retries"]) == (0, 1)
    # On a store in use, a token may be renewed a little late.
    proxy.add(Rule(refused(400, "ExpiredToken"), times=2))
    answer = driver("put", key, 10, 1)
    assert (answer["result"], answer["retries"]) == (0, 2)


@pytest.mark.parametrize(
    ("action", "result", "text"),
    [
        (refused(400, "ExpiredToken"), EACCES, "the session token has expired; renew it"),
        (refused(403, "RequestTimeTooSkewed"), EACCES, "this host's clock differs from the store's"),
        (refused(403, "AccessDenied"), EACCES, f"bucket={BUCKET}: access key ID {ACCESS_KEY}"),
        (refused(301, "PermanentRedirect", None), EREMCHG, "not that of bucket"),
        (refused(400, "AuthorizationHeaderMalformed"), EREMCHG, "region=us-east-1"),
        (refused(507, "XMinioStorageFull"), 28, "the store is full"),
        (refused(501, "NotImplemented"), 95, "the store does not support GET"),
        (refused(400, "InvalidArgument"), EINVAL, "HTTP status 400 InvalidArgument"),
    ],
)
def test_refusals_are_told_at_once(
    through: Driver, proxy: FaultProxy, key: str, action: Action, result: int, text: str
) -> None:
    proxy.add(Rule(action))
    answer = through("get", key, 0, 10)
    assert (answer["result"], answer["retries"]) == (-result, 0)
    assert text in answer["message"] and "\n" not in answer["message"]


def test_stores_clock_is_followed(through: Driver, proxy: FaultProxy, key: str) -> None:
    """This host's clock is an hour off, later it is set; each time is reported once."""
    ahead = 3600

    def clock(exchange: Exchange) -> None:
        now = time.time() + ahead
        said = datetime.strptime(exchange.request.get("x-amz-date") or "", "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        code = "RequestTimeTooSkewed" if abs(said.timestamp() - now) > 900 else "NoSuchKey"
        status = 403 if code == "RequestTimeTooSkewed" else 404
        exchange.answer(status, code, (("Date", formatdate(now, usegmt=True)),))

    proxy.add(Rule(clock))
    answers = [through("head", key) for _ in range(3)]
    assert [(a["result"], a["retries"]) for a in answers] == [(-ENOENT, 1), (-ENOENT, 0), (-ENOENT, 0)]
    assert len(through.reported.splitlines()) == 1
    assert "clock is 3600 s behind the store's" in through.reported or "clock is 3599 s behind" in through.reported
    ahead = 0
    assert (through("head", key)["result"], through("head", key)["retries"]) == (-ENOENT, 0)
    assert len(through.reported.splitlines()) == 2


def test_refusal_in_the_middle_of_a_body_is_told(through: Driver, proxy: FaultProxy, key: str) -> None:
    """The store answers before it has read the body, and breaks the connection."""

    def early(exchange: Exchange) -> None:
        exchange.client.read_some(10000)
        body = error_body("AccessDenied")
        head = f"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        exchange.client.send(head.encode() + body)
        raise Broken("with the rest of the body unread")

    proxy.add(Rule(early, "PUT"))
    answer = through("put", key, 20 * MIB, 1)
    assert (answer["result"], answer["retries"]) == (-EACCES, 0), answer


def test_redirect_names_the_region(through: Driver, proxy: FaultProxy, key: str) -> None:
    def redirect(exchange: Exchange) -> None:
        exchange.answer(301, "PermanentRedirect", (("x-amz-bucket-region", "eu-west-3"), ("Location", "http://a/")))

    proxy.add(Rule(redirect))
    answer = through("get", key, 0, 10)
    assert answer["result"] == -EREMCHG
    assert answer["message"].startswith("region=us-east-1: bucket userblk-test is in region eu-west-3; give region=")


def test_wrong_bucket_key_and_region(connect: Connect, tmp_path: Path, key: str) -> None:
    driver = connect(bucket="no-such-bucket")
    for command in ("get", key, 0, 1), ("put", key, 1, 1), ("head", key), ("list", ""), ("delete-many", key):
        answer = driver(*command)
        assert answer["result"] == -ENXIO and 0 not in answer.get("key_results", []), answer
        assert "bucket=no-such-bucket: no such bucket at http://127.0.0.1:" in answer["message"]
    path = tmp_path / "wrong"
    path.write_text("access-key-id=nobody\nsecret-access-key=x\n", encoding="utf-8")
    path.chmod(0o600)
    answer = connect(credentials=path)("get", key, 0, 1)
    assert answer["result"] == -EACCES
    assert f"credentials={path}: the store does not know the access key ID nobody" in answer["message"]
    answer = connect(region="eu-north-1")("get", key, 0, 1)
    assert answer["result"] in (-EREMCHG, -EACCES) and "region" in answer["message"]


def test_nobody_listens(connect: Connect, key: str) -> None:
    with reserve_port() as reserved:
        port = port_of(reserved)
        answer = connect(f"http://127.0.0.1:{port}", retry_deadline=3)("get", key, 0, 1)
    assert answer["result"] == -EIO
    assert f"endpoint=http://127.0.0.1:{port}: cannot connect" in answer["message"]


def test_name_that_cannot_be_resolved(connect: Connect, key: str) -> None:
    """A name server may be out of order for a while: the same connection tries again."""
    answer = connect("http://store.invalid", connections=1, retry_deadline=3)("get", key, 0, 1)
    assert answer["result"] == -EIO and answer["retries"] >= 3
    assert "endpoint=http://store.invalid: cannot connect: Could not resolve host" in answer["message"]


def test_no_s3_store_answers(connect: Connect, key: str) -> None:
    class Page(http.server.BaseHTTPRequestHandler):
        def reply(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self.send_response(404 if self.command == "GET" else 200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"<p/>")

        do_GET = do_PUT = do_POST = do_DELETE = reply

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        driver = connect(f"http://127.0.0.1:{server.server_port}", retry_deadline=5)
        for command in (
            ("get", key, 0, 1),
            ("head", key),
            ("put", key, 1, 1),
            ("delete", key),
            ("list", ""),
            ("delete-many", key),
        ):
            answer = driver(*command)
            assert (answer["result"], answer["retries"]) == (-EPROTO, 0), command
            assert "is not an S3 store; correct the endpoint" in answer["message"]
        server.shutdown()


@contextmanager
def gateway(directory: Path, *options: str) -> Iterator[int]:
    """The port of a versitygw of its own below directory, with the bucket; {port} in an option becomes it."""
    (directory / "data" / BUCKET).mkdir(parents=True)
    with reserve_port() as reserved:
        port = port_of(reserved)
        argv = [program("versitygw"), "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive"]
        argv += [option.format(port=port) for option in options]
        env = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        process = Process([*argv, "posix", str(directory / "data")], directory / "log", env)
        process.start()
        try:
            process.wait_until(lambda: listens(port), "no gateway")
            yield port
        finally:
            process.end(signal.SIGKILL)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """The certificate of 127.0.0.1, and its private key."""
    cert, private = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject]
    subprocess.run([*argv, "-keyout", str(private), "-out", str(cert)], check=True, capture_output=True)
    return cert, private


def test_body_is_signed_unless_tls_protects_it(connect: Connect, certificate: tuple[Path, Path], key: str) -> None:
    """A server in between, which tls-verify=off allows, cannot change what is stored."""
    cert, private = certificate
    sent: list[tuple[bytes, str | None]] = []

    class Store(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            sent.append((body, self.headers.get("x-amz-content-sha256")))
            self.send_response(200)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, private)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"https://127.0.0.1:{server.server_port}"
        trusts: list[dict[str, Any]] = [{"ca_file": cert}, {"tls_verify": "off"}]
        for more in trusts:
            assert connect(url, **more)("put", key, 5000, 1)["result"] == 0
        server.shutdown()
    (_, verified), (body, unverified) = sent
    assert verified == "UNSIGNED-PAYLOAD" and unverified == sha256(body).hexdigest()


def test_tls(connect: Connect, certificate: tuple[Path, Path], tmp_path: Path, key: str) -> None:
    cert, private = certificate
    with gateway(tmp_path, "--cert", str(cert), "--key", str(private)) as port:
        url = f"https://127.0.0.1:{port}"
        driver = connect(url, ca_file=cert)
        assert driver("put", key, 5 * MIB, 1)["result"] == 0
        assert driver("get", key, 0, 5 * MIB)["sha256"] == digest((tmp_path / "data" / BUCKET / key).read_bytes())
        assert driver("parallel", 50, "get", key, 4096, 4096)["results"] == {"0": 50}
        assert driver("delete-many", key)["result"] == 0
        assert connect(url, tls_verify="off")("put", key, 10, 1)["result"] == 0

        answer = connect(url)("get", key, 0, 1)
        assert (answer["result"], answer["retries"]) == (-EPROTO, 0)
        assert "certificate is not trusted" in answer["message"] and "give ca-file=FILE" in answer["message"]
        answer = connect(f"https://localhost:{port}", ca_file=cert)("get", key, 0, 1)
        assert answer["result"] == -EPROTO and "the name it was issued for" in answer["message"]
        answer = connect(f"http://127.0.0.1:{port}", retry_deadline=5)("get", key, 0, 1)
        assert answer["result"] == -EIO and "write https:// if it has TLS" in answer["message"]
        answer = connect(url, ca_file=private)("get", key, 0, 1)
        assert answer["result"] == -EPROTO and f"ca-file={private}" in answer["message"]


def test_tls_where_there_is_none(connect: Connect, store: Versitygw, key: str) -> None:
    answer = connect(store.url.replace("http:", "https:"))("get", key, 0, 1)
    assert (answer["result"], answer["retries"]) == (-EPROTO, 0)
    assert "TLS fails" in answer["message"] and "use http://" in answer["message"]


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"url": "ftp://a"}, "endpoint=ftp://a: not the address of a store; write http[s]://host[:port]"),
        ({"bucket": "No"}, "bucket=No: not a valid bucket name"),
        ({"region": "a b"}, "region=a b: not a valid region name"),
        ({"addressing": "virtual"}, "addressing=virtual: the endpoint 127.0.0.1 is an IP address"),
        ({"ca_file": "/x"}, "ca-file=/x: no certificates over http"),
        ({"credentials": "/nowhere"}, "credentials=/nowhere: No such file or directory"),
        ({"connections": "0"}, "connections=0: out of range"),
        ({"hedge": "100"}, "hedge=100: out of range"),
        ({"hedge": "20"}, "hedge=20: too many reads would be late; give a percentile from 50 to 99"),
    ],
)
def test_bad_parameters(connect: Connect, parameters: dict[str, Any], text: str) -> None:
    driver = connect(**parameters)
    assert driver.end() == 2
    assert text in driver.reported and len(driver.reported.splitlines()) == 1


# ---- the role of a machine or a container ------------------------------------------------


@pytest.fixture
def roles() -> Iterator[RoleService]:
    service = RoleService(ACCESS_KEY, SECRET_KEY)
    yield service
    service.stop()


def of_instance(url: str, home: Path, **more: str) -> dict[str, str]:
    """An environment in which there are no credentials but those of a role."""
    none = {"AWS_PROFILE": "", "HOME": str(home)}
    return {**none, "AWS_EC2_METADATA_SERVICE_ENDPOINT": url, **more}


def test_role_of_an_instance(connect: Connect, roles: RoleService, tmp_path: Path, key: str) -> None:
    roles.refused_tokens = 1
    driver = connect(env=of_instance(roles.url, tmp_path), credentials=None)
    assert driver("put", key, 10, 1)["result"] == 0
    token, roles_of, credentials = "PUT /latest/api/token", f"GET {ROLES}", f"GET {ROLES}volumes"
    # A token that is not accepted is asked for once more.
    assert roles.requests == [token, roles_of, token, roles_of, credentials]
    # What is in a file comes first.
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text("[default]\naws_access_key_id=nobody\naws_secret_access_key=x\n")
    answer = connect(env=of_instance(roles.url, tmp_path), credentials=None)("get", key, 0, 1)
    assert "does not know the access key ID nobody" in answer["message"]
    # A file without the section is none.
    (tmp_path / ".aws/credentials").write_text("[other]\naws_access_key_id=nobody\naws_secret_access_key=x\n")
    assert connect(env=of_instance(roles.url, tmp_path), credentials=None)("get", key, 0, 1)["result"] == 0


def test_role_is_renewed_before_it_expires(connect: Connect, roles: RoleService, tmp_path: Path, key: str) -> None:
    roles.lasts_s = 4
    driver = connect(env=of_instance(roles.url, tmp_path), credentials=None)
    assert driver("put", key, 10, 1)["result"] == 0
    before = len(roles.requests)
    roles.lasts_s = 3600
    deadline = time.monotonic() + 10
    while len(roles.requests) < before + 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(roles.requests) == before + 3
    time.sleep(0.2)
    # That was it for an hour; parking ends the thread.
    driver("park")
    assert driver("get", key, 0, 10)["result"] == 0
    assert len(roles.requests) == before + 3


def test_role_that_is_not_accepted_any_more_is_renewed(
    connect: Connect, proxy: FaultProxy, roles: RoleService, tmp_path: Path, key: str
) -> None:
    driver = connect(proxy.url, env=of_instance(roles.url, tmp_path), credentials=None)
    assert driver("put", key, 10, 1)["result"] == 0
    time.sleep(3)  # credentials that were just given are not asked for again
    before = len(roles.requests)
    # The service is slow: only what was refused waits for it.
    roles.delay_s = 0.7
    proxy.add(Rule(refused(400, "ExpiredToken"), method="PUT", times=1))
    began = time.monotonic()
    answers = [driver("put", key, 10, 1)]
    for _ in range(20):
        answers.append(driver("get", key, 0, 10))
    assert time.monotonic() - began < 2.0
    assert all(answer["result"] == 0 for answer in answers)
    deadline = time.monotonic() + 10
    while len(roles.requests) < before + 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(roles.requests) == before + 3


def test_role_of_a_container(connect: Connect, roles: RoleService, tmp_path: Path, key: str) -> None:
    full = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": roles.url + CONTAINER_PATH}
    # It comes before that of the instance.
    assert connect(env=of_instance(roles.url, tmp_path, **full), credentials=None)("put", key, 1, 1)["result"] == 0
    roles.container_token = "Bearer abc"
    driver = connect(env=of_instance(roles.url, tmp_path, **full), credentials=None)
    assert driver.end() == 2
    assert "HTTP status 401" in driver.reported and "\n" not in driver.reported.strip()
    token = {"AWS_CONTAINER_AUTHORIZATION_TOKEN": "Bearer abc"}
    assert connect(env=of_instance("", tmp_path, **full, **token), credentials=None)("get", key, 0, 1)["result"] == 0
    # The file comes first, and may have a newline at its end.
    (tmp_path / "token").write_text("Bearer abc\n")
    token = {
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": "wrong",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
    }
    assert connect(env=of_instance("", tmp_path, **full, **token), credentials=None)("get", key, 0, 1)["result"] == 0
    assert set(roles.requests) == {f"GET {CONTAINER_PATH}"}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://192.0.2.1/c"}, "neither https nor an address of this machine"),
        ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1.nip.io/c"}, "neither https"),
        ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "ftp://127.0.0.1/c"}, "neither https"),
        ({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "@evil/c"}, "not a path; begin it with /"),
        (
            {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://[::1]:9/c",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/nowhere",
            },
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=/nowhere: No such file",
        ),
        (
            {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://[::1]:9/c",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN": "a\nHost: b",
            },
            "contains characters that a header cannot have",
        ),
        ({"AWS_EC2_METADATA_DISABLED": "true"}, "none found, nor a role (AWS_EC2_METADATA_DISABLED=true)"),
        (
            {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "nonsense"},
            "METADATA_SERVICE_ENDPOINT=nonsense: not an address",
        ),
    ],
)
def test_wrong_environment_of_a_role(
    connect: Connect, roles: RoleService, tmp_path: Path, more: dict[str, str], text: str
) -> None:
    driver = connect(env=of_instance(roles.url, tmp_path, **more), credentials=None)
    assert driver.end() == 2
    assert text in driver.reported and len(driver.reported.splitlines()) == 1
    assert roles.requests == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"role": ""}, "HTTP status 404: this machine has no role); give credentials=FILE"),
        ({"status": 500}, "HTTP status 500; try again later"),
        ({"body": b'{"Code": "AssumeRoleUnauthorizedAccess", "Message": "not you"}'}, "Unauthorized"),
        ({"body": b"<html>"}, "not a JSON object"),
        ({"body": b'{"AccessKeyId": "a", "SecretAccessKey": "b"'}, "not a JSON object"),
        ({"body": b'{"AccessKeyId": "a", "SecretAccessKey": "b\n"}'}, "not a JSON object"),
        ({"body": b'{"AccessKeyId": "a", "SecretAccessKey": 5}'}, "no AccessKeyId and SecretAccessKey"),
        ({"body": b'{"AccessKeyId": "a\\r\\nX: y", "SecretAccessKey": "b"}'}, "no AccessKeyId and SecretAccessKey"),
        ({"body": b"[" * 60000}, "not a JSON object"),
        ({"body": b" " * 100000}, ROLES),
        ({"delay_s": 30.0}, "none found, nor a role ("),
    ],
)
def test_role_that_cannot_be_had(
    connect: Connect, roles: RoleService, tmp_path: Path, change: dict[str, Any], text: str
) -> None:
    for name, value in change.items():
        setattr(roles, name, value)
    began = time.monotonic()
    driver = connect(env=of_instance(roles.url, tmp_path), credentials=None)
    assert driver.end() == 2
    assert time.monotonic() - began < 2.0
    assert text in driver.reported and len(driver.reported.splitlines()) == 1
    assert "credentials=FILE" in driver.reported or ROLES in driver.reported


def test_machine_without_a_role_is_told_soon(connect: Connect, tmp_path: Path) -> None:
    with socket.socket() as silent:  # what is sent there is never answered
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        began = time.monotonic()
        driver = connect(env=of_instance(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path), credentials=None)
        assert driver.end() == 2
        assert 0.5 < time.monotonic() - began < 2.0
    assert "credentials: none found, nor a role (http://127.0.0.1:" in driver.reported
    assert "write ~/.aws/credentials" in driver.reported and len(driver.reported.splitlines()) == 1
