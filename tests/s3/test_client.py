# SPDX-License-Identifier: BSD-3-Clause
"""What the S3 client does against a real store; a client that is not ours puts and checks objects."""

from __future__ import annotations

from errno import EEXIST, EINVAL, ENOENT, ERANGE, ESHUTDOWN
from pathlib import Path

import pytest
from client_driver import BODY, MIB, Connect, Driver, digest, get, put
from fault_proxy import (
    FaultProxy,
    Rule,
    delayed,
    refused,
)
from servers import BUCKET, S3Client, gateway
from waiting import wait_until


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
        wait_until("one thread fewer", lambda before=running: threads() == before - 1)  # type: ignore[misc]


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
