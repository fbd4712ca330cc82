# SPDX-License-Identifier: BSD-3-Clause
"""What the S3 client reports when the store refuses it, and what the user can change: names, keys, TLS."""

from __future__ import annotations

import http.server
import ssl
import subprocess
import threading
import time
from datetime import UTC, datetime
from email.utils import formatdate
from errno import EACCES, EINVAL, EIO, ENOENT, ENXIO, EPROTO, EREMCHG
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from client_driver import MIB, Connect, Driver, digest
from fault_proxy import (
    Action,
    Broken,
    Ended,
    Exchange,
    FaultProxy,
    Rule,
    error_body,
    passed_on,
    refused,
)
from servers import ACCESS_KEY, BUCKET, SECRET_KEY, Versitygw, gateway, port_of, reserve_port


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
        (refused(403, "InvalidObjectState"), EINVAL, "has been archived; restore it there"),
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


def test_what_is_absent_is_deleted(through: Driver, proxy: FaultProxy, key: str) -> None:
    """Some stores say so, also when an attempt whose reply was lost has deleted it."""
    proxy.add(Rule(refused(404, "NoSuchKey"), method="DELETE", times=1))
    answer = through("delete", key)
    assert (answer["result"], answer["retries"]) == (0, 0)
    proxy.add(Rule(refused(404, "NoSuchBucket"), method="DELETE", times=1))
    assert through("delete", key)["result"] == -ENXIO


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


@pytest.mark.parametrize(
    ("end", "most_retries"),
    [
        (Ended, 0),
        # With the rest of the body unread. That may overtake the answer, as TCP has it: then the client asks again.
        (Broken, 2),
    ],
    ids=["in order", "at once"],
)
def test_refusal_in_the_middle_of_a_body_is_told(
    end: type[Exception], most_retries: int, through: Driver, proxy: FaultProxy, key: str
) -> None:
    """The store answers before it has read the body, and ends the connection."""

    def early(exchange: Exchange) -> None:
        exchange.client.read_some(10000)
        body = error_body("AccessDenied")
        head = f"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        exchange.client.send(head.encode() + body)
        raise end

    proxy.add(Rule(early, "PUT"))
    answer = through("put", key, 20 * MIB, 1)
    assert answer["result"] == -EACCES and answer["retries"] <= most_retries, answer


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
