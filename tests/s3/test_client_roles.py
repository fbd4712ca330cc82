# SPDX-License-Identifier: BSD-3-Clause
"""The credentials of a role of a machine or a container, which the S3 client gets and renews."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from errno import EACCES
from pathlib import Path
from typing import Any

import pytest
from client_driver import Connect
from fault_proxy import (
    Exchange,
    FaultProxy,
    Rule,
    refused,
)
from role_service import CONTAINER_PATH, ROLES, RoleService
from servers import ACCESS_KEY, SECRET_KEY
from waiting import wait_until


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
    wait_until("credentials are asked for", lambda: len(roles.requests) >= before + 3, 10)
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
    wait_until("credentials are asked for", lambda: len(roles.requests) >= before + 3, 10)
    assert len(roles.requests) == before + 3


def test_role_that_may_not_do_it(
    connect: Connect, proxy: FaultProxy, roles: RoleService, tmp_path: Path, key: str
) -> None:
    """Where each attempt takes longer than credentials count as just given: others of the same role do not help."""

    def late_refusal(exchange: Exchange) -> None:
        exchange.proxy.sleep(3.2)
        refused(403, "AccessDenied")(exchange)

    driver = connect(proxy.url, env=of_instance(roles.url, tmp_path), credentials=None)
    assert driver("put", key, 10, 1)["result"] == 0
    before = len(roles.requests)
    proxy.add(Rule(late_refusal, method="PUT"))
    answer = driver("put", key, 10, 1)
    assert answer["result"] == -EACCES and 1 <= answer["retries"] <= 2
    assert len(roles.requests) >= before + 3


def test_role_that_replaces_a_file_is_renewed(connect: Connect, roles: RoleService, tmp_path: Path, key: str) -> None:
    path = tmp_path / ".aws/credentials"
    path.parent.mkdir()
    path.write_text(f"[default]\naws_access_key_id={ACCESS_KEY}\naws_secret_access_key=old\n", encoding="utf-8")
    path.chmod(0o600)
    driver = connect(env=of_instance(roles.url, tmp_path), credentials=None)
    assert driver("put", key, 10, 1)["result"] == -EACCES
    path.unlink()
    roles.lasts_s = 4
    assert driver("put", key, 10, 1)["result"] == 0
    before = len(roles.requests)
    roles.lasts_s = 3600
    wait_until("credentials are asked for", lambda: len(roles.requests) >= before + 3, 10)
    assert driver("get", key, 0, 10)["result"] == 0


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
