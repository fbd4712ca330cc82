# SPDX-License-Identifier: BSD-3-Clause
"""The S3 device under nbdkit as the tests serve it, and where a volume's objects are."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

from fault_proxy import FaultProxy
from nbdkit_server import Nbdkit, plugin_path
from servers import BUCKET, REGION, Store, Versitygw
from volume_driver import VolumeDriver

PREFIX = "volumes"
KEY = hashlib.sha256(b"of the tests").digest()


def parameters(url: str, credentials: Path, volume: str, **more: str) -> list[str]:
    """key=value parameters for a volume in the store behind a URL; more may replace some."""
    values = {
        "endpoint": url,
        "region": REGION,
        "bucket": BUCKET,
        "prefix": PREFIX,
        "credentials": str(credentials),
        "volume": volume,
        **more,
    }
    return [f"{key}={value}" for key, value in values.items()]


def volume_directory(store: Versitygw, volume: str) -> Path:
    """The directory of versitygw that holds the objects of a volume, at their keys below it."""
    return store.objects / PREFIX / volume


def feature_settings(directory: Path, *features: str) -> dict[str, str]:
    """Parameters of a volume with these: "zstd", "aes"; its key is in a file in the directory."""
    settings: dict[str, str] = {}
    if "zstd" in features:
        settings["compress"] = "zstd"
    if "aes" in features:
        key = directory / "encryption-key"
        key.write_bytes(KEY)
        key.chmod(0o600)
        settings["encryption-key"] = str(key)
    return settings


class ServeS3:
    """
    Called with a volume's name it starts a server over that volume, which is made if it is not there.
    Volumes of different prefixes have nothing in common.
    """

    def __init__(self, store: Store, prefix: str, directory: Path) -> None:
        self.store = store
        self.prefix = prefix
        self.directory = directory
        self.servers: list[Nbdkit | VolumeDriver] = []
        self._made: set[str] = set()
        self._numbers = itertools.count()

    def __call__(
        self,
        volume: str,
        through: FaultProxy | None = None,
        wrapper: tuple[str, ...] = (),
        features: str = "",
        **more: str,
    ) -> Nbdkit:
        """
        through: the proxy by which it reaches the store; features: as of feature_settings(), "zstd aes";
        more: parameters, '_' for '-'.
        """
        directory, chosen = self._prepare(volume, through, features, more)
        server = Nbdkit(directory, plugin_path("s3"), *chosen, wrapper=wrapper)
        self.servers.append(server)
        self._made.add(volume)
        return server

    def drive(
        self,
        volume: str,
        through: FaultProxy | None = None,
        failpoint: str | None = None,
        features: str = "",
        clients_of: int | None = None,
        **more: str,
    ) -> VolumeDriver:
        """The same with what no framework offers. clients_of: the session of an earlier server whose clients it has."""
        directory, chosen = self._prepare(volume, through, features, more)
        clients = [] if clients_of is None else [f"--clients-of={clients_of}"]
        driver = VolumeDriver(directory, [*chosen, *clients], failpoint)
        self.servers.append(driver)
        self._made.add(volume)
        return driver

    def cloned(self, volume: str) -> None:
        """A volume has been made by other means."""
        self._made.add(volume)

    def _prepare(
        self, volume: str, through: FaultProxy | None, features: str, more: dict[str, str]
    ) -> tuple[Path, list[str]]:
        directory = self.directory / f"s{next(self._numbers)}"
        directory.mkdir()
        settings = {"prefix": self.prefix}
        if volume not in self._made:
            settings |= {"create": "on", "size": "64M"}
        if not self.store.conditional_put:
            settings |= {"fencing": "none"}
        settings |= feature_settings(self.directory, *features.split())
        settings |= {name.replace("_", "-"): value for name, value in more.items()}
        url = through.url if through else self.store.url
        return directory, parameters(url, self.store.credentials, volume, **settings)

    def made(self, volume: str) -> None:
        """Somebody else has made it."""
        self._made.add(volume)

    def objects(self, volume: str, kind: str = "") -> dict[str, int]:
        """The sizes of a volume's objects, by key below the volume; kind: "log", "ckpt", ..., or all."""
        top = f"{self.prefix}/{volume}/"
        found: dict[str, int] = {}
        for page in self.store.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=top + kind):
            found |= {o["Key"].removeprefix(top): int(o["Size"]) for o in page.get("Contents", [])}
        return found
