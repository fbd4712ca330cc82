# SPDX-License-Identifier: BSD-3-Clause
"""The S3 client behind a proxy that misbehaves: what it tries again, and what it takes for no data."""

from __future__ import annotations

import threading
import time
from errno import EEXIST, EIO, EPROTO, ESHUTDOWN
from typing import Any

import pytest
from client_driver import BODY, MIB, Connect, Driver, digest, get, put
from fault_proxy import (
    Action,
    Exchange,
    FaultProxy,
    Head,
    Rule,
    delayed,
    done_but_refused,
    done_but_reset,
    ended_in_reply,
    overwritten,
    refused,
    reset_in_reply,
    reset_in_request,
    shortened_reply,
    throttled,
    whole_for_range,
)
from servers import BUCKET, S3Client, Versitygw

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


def test_pause_that_ended_before_this_clocks_time_is_none(through: Driver, proxy: FaultProxy, key: str) -> None:
    proxy.add(Rule(refused(503, "SlowDown", retry_after="Thu, 01 Jan 2026 00:00:00 GMT"), "PUT", times=1))
    began = time.monotonic()
    answer = through("put", key, 10, 3)
    assert (answer["result"], answer["retries"]) == (0, 1)
    assert time.monotonic() - began < 10


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


def test_requests_that_move_are_not_given_up(connect: Connect, proxy: FaultProxy, s3: S3Client, key: str) -> None:
    """Over a line that takes longer than the deadline, which the requests share or wait for."""
    put(s3, key)
    proxy.add(Rule(throttled(8 * MIB), "PUT"))
    proxy.add(Rule(throttled(MIB), "GET"))
    for connections, command, seconds in (
        # Some MiB of each body are in the buffers of the kernel at once.
        (3, ("put", f"{key}-%", 16 * MIB, 3), 6),
        (3, ("get", key, 0, 2 * MIB), 6),
        (1, ("get", key, 0, 2 * MIB), 6),
    ):
        driver = connect(proxy.url, retry_deadline=2, connections=connections)
        began = time.monotonic()
        answer = driver("parallel", 3, *command)
        assert (answer["results"], answer["retries"]) == ({"0": 3}, 0), driver.reported
        assert time.monotonic() - began > seconds - 0.5


def test_deadline_counts_from_the_last_progress(connect: Connect, proxy: FaultProxy, s3: S3Client, key: str) -> None:
    """What has moved for longer than that is tried again when it fails, and given up if that lasts."""

    def slowly(offset: int, data: bytes) -> bytes:
        time.sleep(len(data) / MIB)
        return data

    def moved_and_reset(exchange: Exchange) -> None:
        exchange.forward()
        exchange.relay(change=slowly, limit=2 * MIB)

    put(s3, key)
    driver = connect(proxy.url, retry_deadline=1)
    proxy.add(Rule(moved_and_reset, "GET", times=1))
    answer = driver("get", key, 0, 3 * MIB)
    assert (answer["result"], answer["retries"]) == (0, 1)
    proxy.clear()
    proxy.add(Rule(moved_and_reset, "GET"))
    began = time.monotonic()
    answer = driver("get", key, 0, 3 * MIB)
    assert (answer["result"], answer["retries"]) == (-EIO, 1) and "given up after" in answer["message"]
    assert time.monotonic() - began < 10


def test_what_can_be_dropped_ends_at_once(connect: Connect, proxy: FaultProxy, s3: S3Client, key: str) -> None:
    """On its way, waiting for a connection, or to be tried again; the others go on."""
    put(s3, key)
    driver = connect(proxy.url, connections=4)
    proxy.add(Rule(refused(503, "SlowDown"), "GET", times=2))
    proxy.add(Rule(delayed(before=lambda: 1.0), "GET"))
    answer = driver("drop", 20, "get", key, 0, 4096)
    assert answer["results"] == {"0": 10, str(-ESHUTDOWN): 10} and answer["called"] == 1
    began = time.monotonic()
    assert driver("drop", 2, "get", key, 0, 4096)["results"] == {"0": 1, str(-ESHUTDOWN): 1}
    assert time.monotonic() - began < 10


def test_outlasts_an_outage_and_tells(connect: Connect, proxy: FaultProxy, s3: S3Client, key: str) -> None:
    driver = connect(proxy.url, retry_deadline=0)
    put(s3, key)
    assert driver("get", key, 0, 10)["result"] == 0
    over = threading.Event()
    with proxy.outage():
        results: list[dict[str, Any]] = []
        thread = threading.Thread(target=lambda: results.append(driver("parallel", 30, "get", key, 0, 4096)))
        thread.start()
        while "(trying again)" not in driver.reported:
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


def test_weak_etags_of_a_proxy(through: Driver, proxy: FaultProxy, s3: S3Client, key: str) -> None:
    """A proxy that compresses, say, marks them; the store compares its own."""

    def marked(exchange: Exchange) -> None:
        reply = exchange.forward()
        reply.set("ETag", "W/" + (reply.get("etag") or ""))
        exchange.relay()

    put(s3, key)
    proxy.add(Rule(marked))
    etag = through("get", key, 0, 10)["etag"]
    assert etag == s3.head_object(Bucket=BUCKET, Key=key)["ETag"]
    answer = through("put", key, 10, 3, f"match={etag}")
    assert answer["result"] == 0 and answer["etag"] == s3.head_object(Bucket=BUCKET, Key=key)["ETag"]


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
