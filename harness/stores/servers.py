# SPDX-License-Identifier: BSD-3-Clause
"""Object stores for the suite over a store: versitygw in memory, started here, or one that the user names in a file.

The file has a line KEY=VALUE each for endpoint, region, bucket and credentials, as the device itself takes them.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from ..machine.packages import installing
from ..machine.paths import CHECKOUT, PYTHON_PATH
from ..machine.subprocesses import Recorder
from ..machine.teardown import Teardown, lasting
from ..model import source
from ..model.tables import ConfigError
from ..systems.base import BringUpError, await_up

SERVER = "versitygw"
REGION, BUCKET = "us-east-1", "userblk-bench"
PREFIX = "userblk-bench"
MEMORY, DISK = Path("/dev/shm"), Path("/var/tmp")
ROOM = 4  # times a volume's bytes that a store in memory must have room for: the volume, its copy, and garbage


@dataclass(frozen=True)
class Access:
    """How to reach a bucket. credentials: a file as the device takes it. prefix: of a campaign's keys."""

    endpoint: str
    region: str
    bucket: str
    access_key: str
    secret_key: str
    credentials: Path
    prefix: str = PREFIX

    def environment(self) -> dict[str, str]:
        """For programs that know Amazon's variables."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
        }


def new_prefix() -> str:
    """For the keys of a campaign; as long as all others, so that none begins with another."""
    return f"{PREFIX}-{secrets.token_hex(4)}"


def _pairs(path: Path) -> dict[str, str]:
    """The KEY=VALUE lines of a file. Raises ConfigError."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(f"store={path}: {reason}; name a readable file of KEY=VALUE lines") from None
    pairs = (line.partition("=") for line in lines if line.strip() and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def read_access(path: Path) -> Access:
    """A store of the user's. Raises ConfigError."""
    values = _pairs(path)
    for key in ("endpoint", "bucket", "credentials"):
        if not values.get(key):
            raise ConfigError(f"store={path}: {key} is missing; add a line {key}=VALUE")
    for key in values:
        if key not in ("endpoint", "region", "bucket", "credentials"):
            known = "endpoint, region, bucket or credentials"
            raise ConfigError(f"store={path}: {key}={values[key]}: unknown; use {known}")
    credentials = (path.parent / values["credentials"]).absolute()
    keys = _pairs(credentials)
    try:
        access, secret = keys["access-key-id"], keys["secret-access-key"]
    except KeyError as error:
        raise ConfigError(f"store={path}: credentials={credentials}: has no line {error.args[0]}=VALUE") from None
    return Access(values["endpoint"], values.get("region", REGION), values["bucket"], access, secret, credentials)


def server_program() -> str:
    """The pinned S3 server, which is built if it is not there. Raises ConfigError."""
    place = CHECKOUT or source.unpack()
    if place is None:
        text = "needs userblk's source, which this installation lacks; run bin/userblk in a checkout"
        raise ConfigError(f"store: to start one {text}, or name your own by --store")
    argv = [str(place / "harness/get-s3-server"), SERVER]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ConfigError(f"store: {SERVER} cannot be built: {result.stderr.strip() or 'no message'}")
    return result.stdout.strip()


def roomy(size: int) -> Path:
    """Where stores of a volume of size bytes are: in memory, unless it has no room for them."""
    return MEMORY if shutil.disk_usage(MEMORY).free > ROOM * size else DISK


class LocalStore:
    """versitygw on a directory of its own below top, latency_ms away; what keep() found, reset() puts back."""

    def __init__(self, top: Path, latency_ms: int, recorder: Recorder, teardown: Teardown) -> None:
        self.directory = teardown.new_directory("userblk-store-", top)
        self._objects = self.directory / "data" / BUCKET
        self._objects.mkdir(parents=True)
        self._kept = self.directory / "kept"
        key, secret = "userblkbench", secrets.token_hex(16)
        credentials = self.directory / "credentials"
        credentials.write_text(f"access-key-id={key}\nsecret-access-key={secret}\n")
        credentials.chmod(0o600)
        # As long as this is bound nobody else gets the port; the server, which sets SO_REUSEADDR too, can listen there.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        port = int(self._reserved.getsockname()[1])
        argv = [server_program(), "--port", f"127.0.0.1:{port}", "--region", REGION, "--quiet", "--keep-alive"]
        process = recorder.spawn(
            [*argv, "posix", str(self.directory / "data")],
            teardown=teardown,
            environment={"ROOT_ACCESS_KEY": key, "ROOT_SECRET_KEY": secret},
        )
        await_up(f"{SERVER} is not ready", lambda: _answers(port), process)
        if latency_ms:
            port_file = self.directory / "port"
            argv = [sys.executable, "-m", "userblk.harness.stores.latency_proxy"]
            argv += ["--to", f"127.0.0.1:{port}", "--ms", str(latency_ms)]
            argv += ["--port-file", str(port_file)]
            process = recorder.spawn(argv, teardown=teardown, environment={"PYTHONPATH": str(PYTHON_PATH)})
            await_up("the latency proxy is not ready", port_file.exists, process)
            port = int(port_file.read_text())
        self.access = Access(f"http://127.0.0.1:{port}", REGION, BUCKET, key, secret, credentials)
        self.settings: dict[str, object] = {"store": SERVER, "store_directory": str(top), "latency_ms": latency_ms}
        self.warnings = [f"store: its objects are on a disk, in {DISK}: {MEMORY} has no room"] if top == DISK else []

    def keep(self) -> None:
        """Remember what is stored, with the attributes in which the server keeps what it knows of objects."""
        self._copy(str(self._objects), self._kept)

    def reset(self) -> bool:
        """Put that back. Always possible here: True."""
        for path in self._objects.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._copy(f"{self._kept}/.", self._objects)
        return True

    @staticmethod
    def _copy(source: str, target: Path) -> None:
        """Raises BringUpError, as where the disk is full."""
        done = subprocess.run(["cp", "-a", source, str(target)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise BringUpError(f"objects cannot be copied: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")


def remove_all(access: Access) -> None:
    """Everything below the prefix. Raises BringUpError."""
    try:
        import boto3  # only here, since the runner needs nothing but Python's standard library
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise BringUpError(f"a store of your own needs boto3; run: {installing('python3-boto3')}") from None
    left: list[dict[str, str]] = []
    try:
        client = boto3.client(
            "s3",
            endpoint_url=access.endpoint,
            region_name=access.region,
            aws_access_key_id=access.access_key,
            aws_secret_access_key=access.secret_key,
        )
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=access.bucket, Prefix=access.prefix):
            if keys := [{"Key": one["Key"]} for one in page.get("Contents", [])]:
                answer = client.delete_objects(Bucket=access.bucket, Delete={"Objects": keys, "Quiet": True})
                left += answer.get("Errors", [])
    except (BotoCoreError, ClientError) as error:
        raise BringUpError(f"{access.endpoint}: {error}") from None
    if left:
        what = f"{left[0].get('Key')}: {left[0].get('Code')}"
        raise BringUpError(f"{access.endpoint}: {len(left)} objects cannot be deleted, such as {what}")


@lasting
def remove_objects(store: str, prefix: str) -> None:
    """From a store of the user's. A line names what stays there, and no other campaign is held up."""
    try:
        remove_all(replace(read_access(Path(store)), prefix=prefix))
    except (BringUpError, ConfigError) as error:
        print(f"userblk: objects below {prefix} may be left in the store of {store}: {error}", file=sys.stderr)


class GivenStore:
    """The user's own. Everything below the campaign's prefix is deleted before a volume is made, and at the end: by the
    teardown, so that the next campaign does it after one that was killed.
    """

    def __init__(self, path: Path, prefix: str, teardown: Teardown) -> None:
        self.access = replace(read_access(path), prefix=prefix)
        self.settings: dict[str, object] = {"store": self.access.endpoint, "latency_ms": 0}
        self.warnings: list[str] = []
        self.reset()
        teardown.push("remove_objects", store=str(path), prefix=prefix)

    def keep(self) -> None:
        pass

    def reset(self) -> bool:
        """Delete all. False: the volume has to be filled again. Raises BringUpError."""
        remove_all(self.access)
        return False


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


Store = LocalStore | GivenStore
