# SPDX-License-Identifier: BSD-3-Clause
"""Real S3 servers on ports of their own of this machine, for tests and benchmarks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = STOP_TIMEOUT_S = 120.0  # of what takes a second: the machine may be slow, or busy
REGION = "us-east-1"
BUCKET = "userblk-test"
ACCESS_KEY = "userblktest"
SECRET_KEY = "0123456789abcdef0123456789abcdef"
LOOPBACK = "127.0.0.1"
OWN_NETWORK = "192.0.2.1"  # this machine in tests/s3/own-network

S3Client: TypeAlias = Any  # boto3's: it has no types


def client(url: str, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY, region: str = REGION) -> S3Client:
    """An S3 client that is not ours, without retries of its own."""
    import boto3
    from botocore.config import Config

    config = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        s3={"addressing_style": "path"},
        connect_timeout=60,
        read_timeout=120,
        max_pool_connections=64,
    )
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name=region,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        config=config,
    )


def program(name: str) -> str:
    """The path of a pinned server, which is built if it is not there."""
    result = subprocess.run([str(ROOT / "harness/get-s3-server"), name], stdout=subprocess.PIPE, text=True, check=True)
    return result.stdout.strip()


def reserve_port(host: str = LOOPBACK) -> socket.socket:
    """
    A port of an address of this machine that is nobody else's until the socket is closed. A server that sets
    SO_REUSEADDR, as all here do, can listen there, and again after a crash; while none does, connections are refused.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((host, 0))
    return reserved


def port_of(reserved: socket.socket) -> int:
    return int(reserved.getsockname()[1])


def memory_directory() -> Path:
    """A new directory in memory."""
    return Path(tempfile.mkdtemp(prefix="userblk-s3-", dir="/dev/shm"))


def served(call: Callable[[], object]) -> bool:
    """Did the store do it, or is it still starting?"""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        call()
    except (BotoCoreError, ClientError):
        return False
    return True


class Process:
    """A server process in a process group of its own, with its output in a file."""

    def __init__(self, argv: Sequence[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.argv = list(argv)
        self.log = log
        self.env = {**os.environ, **(env or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def __getstate__(self) -> dict[str, object]:
        """A copy in another process has no say over the server."""
        return {**self.__dict__, "process": None}

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *self.argv],  # not to outlive a test that is killed
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.env,
                start_new_session=True,
            )

    def end(self, how: signal.Signals) -> None:
        """Ends it if it runs: SIGTERM for a stop, SIGKILL for a crash."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, how)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(STOP_TIMEOUT_S)
        self.process = None

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        def log() -> str:
            return f"{self.argv[0]} says: {self.log.read_text(encoding='utf-8', errors='replace')[-2000:]}"

        assert self.process is not None
        wait_until(what, ready, START_TIMEOUT_S, process=self.process, log=log)


class Store:
    """A store with its bucket: nodes that serve the same objects. Ends with stop()."""

    name: str
    host = LOOPBACK
    conditional_put = True  # does it honour If-None-Match

    def __init__(self, directory: Path, ports: int, access_key: str, secret_key: str) -> None:
        self.directory = directory
        self._reserved = [reserve_port(self.host) for _ in range(ports)]
        self.ports = [port_of(reserved) for reserved in self._reserved]
        self.access_key = access_key
        self.secret_key = secret_key
        self.nodes: list[Process] = []
        self._made = False

    def __getstate__(self) -> dict[str, object]:
        """A copy in another process keeps no ports."""
        return {**self.__dict__, "_reserved": []}

    @property
    def address(self) -> tuple[str, int]:
        return (self.host, self.ports[0])

    @property
    def url(self) -> str:
        return self.url_of(0)

    def url_of(self, node: int) -> str:
        return f"http://{self.host}:{self.ports[node]}"

    @property
    def credentials(self) -> Path:
        """A file as the device takes it."""
        path = self.directory / "credentials"
        if not path.exists():
            # Devices of several processes read it: never half of it.
            new = path.with_name(f"credentials.{os.getpid()}.new")
            new.write_text(f"access-key-id={self.access_key}\nsecret-access-key={self.secret_key}\n", encoding="utf-8")
            new.chmod(0o600)
            new.replace(path)
        return path

    def client(self, url: str | None = None) -> S3Client:
        return client(url or self.url, self.access_key, self.secret_key)

    def start(self) -> None:
        """Also after crash() or stop(), on the same ports with the same objects."""
        for node in self.nodes:
            node.start()
        if not self._made:
            self._make_bucket()
            self._made = True
        self._wait_for_bucket()

    def restart(self, node: int) -> None:
        """One that ended; waits until it serves the bucket itself."""
        self.nodes[node].start()
        self._wait_for_bucket(node)

    def remove(self, prefix: str) -> None:
        """All objects whose keys begin so."""
        s3 = self.client()
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix):
            if keys := [{"Key": o["Key"]} for o in page.get("Contents", [])]:
                s3.delete_objects(Bucket=BUCKET, Delete={"Objects": keys, "Quiet": True})

    def crash(self) -> None:
        """kill -9 of all nodes."""
        for node in self.nodes:
            node.end(signal.SIGKILL)

    def stop(self) -> None:
        for node in self.nodes:
            node.end(signal.SIGTERM)

    def release(self) -> None:
        """Gives its ports back."""
        for reserved in self._reserved:
            reserved.close()

    def _make_bucket(self) -> None:
        s3 = self.client()
        self.nodes[0].wait_until(lambda: served(lambda: s3.create_bucket(Bucket=BUCKET)), f"{self.name} makes a bucket")

    def _wait_for_bucket(self, node: int = 0) -> None:
        s3 = self.client(self.url_of(node))
        self.nodes[node].wait_until(
            lambda: served(lambda: s3.head_bucket(Bucket=BUCKET)), f"{self.name} serves the bucket"
        )


class Versitygw(Store):
    """versitygw on a directory: objects are files by their keys."""

    name = "versitygw"

    def __init__(self, directory: Path, tls: tuple[Path, Path] | None = None) -> None:
        super().__init__(directory, 1, ACCESS_KEY, SECRET_KEY)
        self.data = directory / "data"
        self.data.mkdir()
        argv = [program(self.name), "--port", f"127.0.0.1:{self.ports[0]}", "--region", REGION, "--quiet"]
        argv.append("--keep-alive")  # as every other store does by itself
        if tls is not None:
            argv += ["--cert", str(tls[0]), "--key", str(tls[1])]
        env = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        self.nodes = [Process([*argv, "posix", str(self.data)], directory / "log", env)]

    @property
    def objects(self) -> Path:
        """The directory of the bucket: an object lies at its key."""
        return self.data / BUCKET


class Minio(Store):
    """
    Four MinIO nodes with a drive each, which together are one store as long as three are there. In a container they
    take no loopback address for a node's.
    """

    name = "minio"
    host = OWN_NETWORK

    def __init__(self, directory: Path) -> None:
        try:
            super().__init__(directory, 4, ACCESS_KEY, SECRET_KEY)
        except OSError as error:
            raise RuntimeError(f"minio: {self.host}: {error.strerror}; run it in tests/s3/own-network") from error
        drives = [directory / f"drive{i}" for i in range(4)]
        urls = [f"http://{self.host}:{port}{drive}" for port, drive in zip(self.ports, drives, strict=True)]
        # Without MINIO_CI_CD it refuses drives that are no mounts of their own.
        env = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY, "MINIO_CI_CD": "on"}
        env |= {"MINIO_BROWSER": "off", "MINIO_UPDATE": "off"}
        for i, (port, drive) in enumerate(zip(self.ports, drives, strict=True)):
            drive.mkdir()
            argv = [program(self.name), "server", "--quiet", "--address", f"{self.host}:{port}", *urls]
            self.nodes.append(Process(argv, directory / f"log{i}", env))


class Garage(Store):
    """Three Garage nodes that hold each object three times. It ignores If-None-Match."""

    name = "garage"
    conditional_put = False

    def __init__(self, directory: Path) -> None:
        access_key, secret_key = "GK" + "1f" * 12, "2e" * 32
        super().__init__(directory, 6, access_key, secret_key)
        ports, self.ports = self.ports, self.ports[:3]  # the others are for the nodes among themselves
        self._configs: list[Path] = []
        for i in range(3):
            config = directory / f"garage{i}.toml"
            config.write_text(
                f'metadata_dir = "{directory}/meta{i}"\n'
                f'data_dir = "{directory}/data{i}"\n'
                'db_engine = "sqlite"\n'
                "replication_factor = 3\n"
                f'rpc_bind_addr = "127.0.0.1:{ports[3 + i]}"\n'
                f'rpc_public_addr = "127.0.0.1:{ports[3 + i]}"\n'
                f'rpc_secret = "{"3d" * 32}"\n'
                "[s3_api]\n"
                f's3_region = "{REGION}"\n'
                f'api_bind_addr = "127.0.0.1:{ports[i]}"\n',
                encoding="utf-8",
            )
            self._configs.append(config)
            argv = [program(self.name), "-c", str(config), "server"]
            self.nodes.append(Process(argv, directory / f"log{i}", {"RUST_LOG": "garage=warn"}))

    def _make_bucket(self) -> None:
        """Joins the nodes, lays the data out over them, makes the key and the bucket."""
        configs = self._configs

        def tell(config: Path, *words: str) -> str:
            argv = [program(self.name), "-c", str(config), *words]
            result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=STOP_TIMEOUT_S)
            if result.returncode != 0:
                raise RuntimeError(f"garage {' '.join(words)}: {result.stderr.strip()}")
            return result.stdout.strip()

        def answers(config: Path) -> bool:
            with suppress(RuntimeError):
                return bool(tell(config, "node", "id", "-q"))
            return False

        for node, config in zip(self.nodes, configs, strict=True):
            node.wait_until(lambda config=config: answers(config), "garage has a node id")  # type: ignore[misc]
        ids = [tell(config, "node", "id", "-q") for config in configs]

        def joined() -> bool:
            with suppress(RuntimeError):
                for other in ids[1:]:
                    tell(configs[0], "node", "connect", other)
                return True
            return False

        self.nodes[0].wait_until(joined, "the nodes of garage find each other")
        for node_id in ids:
            tell(configs[0], "layout", "assign", "-z", "zone", "-c", "1G", node_id.partition("@")[0])
        tell(configs[0], "layout", "apply", "--version", "1")
        tell(configs[0], "key", "import", "--yes", "-n", "test", self.access_key, self.secret_key)
        tell(configs[0], "bucket", "create", BUCKET)
        tell(configs[0], "bucket", "allow", "--read", "--write", "--owner", BUCKET, "--key", self.access_key)


KINDS: dict[str, Callable[[Path], Store]] = {"versitygw": Versitygw, "minio": Minio, "garage": Garage}


@contextmanager
def started(kind: Callable[[Path], Store], size: int = 0) -> Iterator[Store]:
    """A store in memory, of which nothing is left at the end. size: in bytes, for which it needs root; 0: no limit."""
    directory = memory_directory()
    try:
        if size:
            mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
            subprocess.run(mount, check=True, timeout=STOP_TIMEOUT_S)
        store = kind(directory)
        try:
            store.start()
            yield store
        finally:
            store.stop()
            store.release()
    finally:
        if os.path.ismount(directory):
            subprocess.run(["umount", str(directory)], check=True, timeout=STOP_TIMEOUT_S)
        subprocess.run(["rm", "-rf", str(directory)], check=False)


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
            process.wait_until(lambda: listens(port), "the gateway listens")
            yield port
        finally:
            process.end(signal.SIGKILL)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
