# SPDX-License-Identifier: BSD-3-Clause
"""The fault proxy before a real store, with a client that is not ours: each fault is what it says."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError
from fault_proxy import (
    FaultProxy,
    Rule,
    delayed,
    done_but_refused,
    done_but_reset,
    ended_in_reply,
    flipped_byte,
    overtaken,
    overwritten,
    refused,
    reset_in_reply,
    reset_in_request,
    shortened_reply,
    whole_for_range,
)
from servers import BUCKET, S3Client, Versitygw
from waiting import wait_until

BODY = random.Random(1).randbytes(3 << 20)


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"proxy/{request.node.name}/object"


def code_of(call: Callable[[], Any]) -> tuple[int, str]:
    """The status and the code of the refusal that a call ends with."""
    with pytest.raises(ClientError) as error:
        call()
    reply = error.value.response
    return reply["ResponseMetadata"]["HTTPStatusCode"], reply["Error"]["Code"]


def put(s3: S3Client, key: str, body: bytes = BODY, **conditions: str) -> None:
    if conditions:
        # Older clients have no parameter for it; the header is signed like any other.
        def add(request: Any, **_: Any) -> None:
            request.headers["If-None-Match"] = "*"

        s3.meta.events.register("before-sign.s3.PutObject", add, unique_id="condition")
    try:
        s3.put_object(Bucket=BUCKET, Key=key, Body=body)
    finally:
        if conditions:
            s3.meta.events.unregister("before-sign.s3.PutObject", unique_id="condition")


def get(s3: S3Client, key: str, **more: str) -> bytes:
    return bytes(s3.get_object(Bucket=BUCKET, Key=key, **more)["Body"].read())


def exists(s3: S3Client, key: str) -> bool:
    return any(o["Key"] == key for o in s3.list_objects_v2(Bucket=BUCKET, Prefix=key).get("Contents", []))


def test_requests_pass_unchanged(proxy: FaultProxy, s3_through_proxy: S3Client, key: str) -> None:
    s3 = s3_through_proxy
    put(s3, key)
    put(s3, f"{key}-empty", b"")
    assert get(s3, key) == BODY
    assert get(s3, f"{key}-empty") == b""
    assert get(s3, key, Range="bytes=1000-1999") == BODY[1000:2000]
    assert s3.head_object(Bucket=BUCKET, Key=key)["ContentLength"] == len(BODY)
    assert exists(s3, key)
    assert code_of(lambda: get(s3, f"{key}-none")) == (404, "NoSuchKey")
    s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": key}, {"Key": f"{key}-empty"}]})
    assert not exists(s3, key)
    passed = proxy.passed
    assert [(p.method, p.status) for p in passed[:3]] == [("PUT", 200), ("PUT", 200), ("GET", 200)]
    assert passed[0].key == key


def test_many_connections_at_once(proxy: FaultProxy, s3_through_proxy: S3Client, key: str) -> None:
    wrong: list[int] = []

    def one(number: int) -> None:
        for round_number in range(5):
            body = random.Random(number * 10 + round_number).randbytes(100_000)
            put(s3_through_proxy, f"{key}-{number}", body)
            if get(s3_through_proxy, f"{key}-{number}") != body:
                wrong.append(number)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(proxy.passed) == 160


def test_refusals_reach_the_client_and_not_the_store(
    proxy: FaultProxy, s3: S3Client, s3_through_proxy: S3Client, key: str
) -> None:
    rule = proxy.add(Rule(refused(503, "SlowDown"), method="PUT", key=key, times=2))
    for _ in range(2):
        assert code_of(lambda: put(s3_through_proxy, key)) == (503, "SlowDown")
    assert rule.taken == 2
    assert not exists(s3, key)
    put(s3_through_proxy, key)
    assert get(s3, key) == BODY
    proxy.add(Rule(refused(403, "RequestTimeTooSkewed")))
    assert code_of(lambda: get(s3_through_proxy, key)) == (403, "RequestTimeTooSkewed")
    proxy.clear()
    assert get(s3_through_proxy, key) == BODY


def test_rule_lets_the_first_pass(proxy: FaultProxy, s3_through_proxy: S3Client, key: str) -> None:
    put(s3_through_proxy, key)
    proxy.add(Rule(refused(500, "InternalError"), method="GET", skip=2, times=1))
    got = []
    for _ in range(4):
        try:
            got.append(get(s3_through_proxy, key) == BODY)
        except ClientError:
            got.append(False)
    assert got == [True, True, False, True]


@pytest.mark.parametrize("how", ["refused", "reset"])
def test_store_did_what_the_client_takes_for_failed(
    proxy: FaultProxy, s3: S3Client, s3_through_proxy: S3Client, key: str, how: str
) -> None:
    action = done_but_refused(500, "InternalError") if how == "refused" else done_but_reset
    proxy.add(Rule(action, method="PUT", times=1))
    with pytest.raises((ClientError, BotoCoreError)):
        put(s3_through_proxy, key)
    assert get(s3, key) == BODY


def test_request_is_cut(proxy: FaultProxy, s3: S3Client, s3_through_proxy: S3Client, key: str) -> None:
    proxy.add(Rule(reset_in_request(1_000_000), method="PUT", times=1))
    with pytest.raises(BotoCoreError):
        put(s3_through_proxy, key)
    assert not exists(s3, key)
    put(s3_through_proxy, key)
    assert get(s3, key) == BODY


@pytest.mark.parametrize("action", [reset_in_reply(1_000_000), ended_in_reply(1_000_000)], ids=["reset", "ended"])
def test_reply_is_cut(proxy: FaultProxy, s3_through_proxy: S3Client, key: str, action: Any) -> None:
    put(s3_through_proxy, key)
    proxy.add(Rule(action, method="GET", times=1))
    with pytest.raises(Exception, match="(?i)broken|incomplete|reset|read"):
        get(s3_through_proxy, key)
    assert get(s3_through_proxy, key) == BODY


def test_reply_is_short_but_well_formed(proxy: FaultProxy, s3_through_proxy: S3Client, key: str) -> None:
    put(s3_through_proxy, key)
    proxy.add(Rule(shortened_reply(1000), method="GET", times=1))
    assert get(s3_through_proxy, key, Range="bytes=5-20004") == BODY[5:1005]
    assert get(s3_through_proxy, key) == BODY


def test_range_is_answered_with_the_whole_object(
    proxy: FaultProxy, store: Versitygw, s3_through_proxy: S3Client, key: str
) -> None:
    put(s3_through_proxy, key)
    proxy.add(Rule(whole_for_range(store.objects), method="GET", times=1))
    reply = s3_through_proxy.get_object(Bucket=BUCKET, Key=key, Range="bytes=5-20004")
    assert reply["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert reply["Body"].read() == BODY
    assert get(s3_through_proxy, key, Range="bytes=5-20004") == BODY[5:20005]


@pytest.mark.parametrize("at", [0, 1_500_000, -1])
def test_one_byte_is_flipped(proxy: FaultProxy, s3_through_proxy: S3Client, key: str, at: int) -> None:
    put(s3_through_proxy, key)
    proxy.add(Rule(flipped_byte(at), method="GET", times=1))
    got = get(s3_through_proxy, key)
    place = at % len(BODY)
    assert got[place] == BODY[place] ^ 0xFF
    assert got[:place] == BODY[:place] and got[place + 1 :] == BODY[place + 1 :]


def test_condition_holds_unless_it_is_ignored(
    proxy: FaultProxy, store: Versitygw, s3: S3Client, s3_through_proxy: S3Client, key: str
) -> None:
    put(s3_through_proxy, key, b"first")
    assert code_of(lambda: put(s3_through_proxy, key, b"second", if_none_match="*"))[0] == 412
    proxy.add(Rule(overwritten(store.objects), method="PUT", times=1))
    put(s3_through_proxy, key, b"third", if_none_match="*")
    assert get(s3, key) == b"third"


def test_delay(proxy: FaultProxy, s3_through_proxy: S3Client, key: str) -> None:
    put(s3_through_proxy, key)
    proxy.add(Rule(delayed(lambda: 0.1, lambda: 0.2), method="GET", times=1))
    began = time.monotonic()
    assert get(s3_through_proxy, key) == BODY
    assert time.monotonic() - began >= 0.3


def test_reply_is_overtaken(proxy: FaultProxy, s3_through_proxy: S3Client, key: str) -> None:
    """The first request's reply waits for three later ones."""
    rule = proxy.add(Rule(overtaken(by=3, limit=60), method="PUT", key="-slow$", times=1))
    slow = threading.Thread(target=put, args=(s3_through_proxy, f"{key}-slow"))
    slow.start()
    wait_until("the request comes", lambda: rule.taken)
    for i in range(3):
        assert slow.is_alive()
        put(s3_through_proxy, f"{key}-{i}")
    slow.join()
    assert [p.key.rpartition("-")[2] for p in proxy.passed] == ["0", "1", "2", "slow"]


def test_outage(proxy: FaultProxy, s3_through_proxy: S3Client, key: str) -> None:
    put(s3_through_proxy, key)
    with proxy.outage(), pytest.raises(EndpointConnectionError):
        get(s3_through_proxy, key)
    assert get(s3_through_proxy, key) == BODY


def test_silent_outage_answers_nothing(proxy: FaultProxy, s3_through_proxy: S3Client, key: str) -> None:
    put(s3_through_proxy, key)
    failed: list[bool] = []

    def one() -> None:
        try:
            get(s3_through_proxy, key)
        except (BotoCoreError, ClientError):
            failed.append(True)

    thread = threading.Thread(target=one)
    with proxy.outage(silent=True):
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
    thread.join()
    assert failed
    assert get(s3_through_proxy, key) == BODY
