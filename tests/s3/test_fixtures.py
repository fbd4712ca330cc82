# SPDX-License-Identifier: BSD-3-Clause
"""Volumes that a program of an older version left open, hold what they held, and go on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from device import ServeS3
from servers import BUCKET, Store
from volume_driver import VolumeDriver
from volume_fixtures import FIXTURES, SECTOR, Contents, Manifest, names, read

PIECE = (4 << 20) // SECTOR  # sectors that are compared at once


class Fixture:
    """An archive's objects in the store, and the expected content of its volumes."""

    def __init__(self, store: Store, directory: Path, manifest: Manifest, files: dict[str, bytes]) -> None:
        self.manifest = manifest
        self.serve = ServeS3(store, manifest.prefix, directory)
        for volume in manifest.volumes:
            self.serve.made(volume.name)
        for name, data in files.items():
            (directory / name).write_bytes(data)
        self.parameters = {
            **manifest.parameters,
            **{name: str(directory / file) for name, file in manifest.files.items()},
        }

    def open(self, volume: str, **more: str) -> VolumeDriver:
        if volume == self.manifest.volumes[0].name and "snapshot" not in more:
            more = {**self.parameters, **more}
        return self.serve.drive(volume, features=self.manifest.features, **more)


@pytest.fixture(params=names())
def fixture(request: pytest.FixtureRequest, store: Store, tmp_path: Path) -> Iterator[Fixture]:
    manifest, objects, files = read(FIXTURES / f"{request.param}.tar.xz")
    s3 = store.client()
    for key, data in objects.items():
        s3.put_object(Bucket=BUCKET, Key=key, Body=data)
    found = Fixture(store, tmp_path, manifest, files)
    try:
        yield found
    finally:
        for driver in found.serve.servers:
            driver.kill()
        store.remove(f"{manifest.prefix}/")


def holds(driver: VolumeDriver, contents: Contents) -> None:
    assert driver.size() == contents.sectors * SECTOR
    for first in range(0, contents.sectors, PIECE):
        count = min(PIECE, contents.sectors - first)
        found, expected = driver.pread(count * SECTOR, first * SECTOR), contents.data(first, count)
        if found != expected:
            wrong = [first + i for i in range(count) if found[i * SECTOR :][:SECTOR] != expected[i * SECTOR :][:SECTOR]]
            pytest.fail(f"{len(wrong)} sectors of {count} differ, the first at {wrong[0]}")


def snapshots_hold(fixture: Fixture) -> None:
    for volume in fixture.manifest.volumes:
        for name in volume.snapshots:
            driver = fixture.open(volume.name, snapshot=name)
            holds(driver, volume.contents(name))
            driver.stop()


def change(driver: VolumeDriver, contents: Contents, seed: int, trims: bool) -> None:
    """Writes and trims, some over parts of what was there."""
    rng = random.Random(seed)
    for number in range(1 << 20, (1 << 20) + 40):
        count = rng.randrange(8, 257, 8)
        first = rng.randrange(0, min(contents.sectors, 1 << 17) - count, 8)
        contents.put(first, count, 0 if trims and rng.random() < 0.2 else number)
        if contents.data(first, 1) == bytes(SECTOR):
            driver("trim", first * SECTOR, count * SECTOR)
        else:
            driver.pwrite(contents.data(first, count), first * SECTOR)
    driver("flush")


def test_volume_of_an_older_program(fixture: Fixture) -> None:
    direct = fixture.manifest.prefix == "fixture-direct"  # no snapshots, and no trims of parts of chunks
    snapshots_hold(fixture)
    for i, volume in enumerate(fixture.manifest.volumes):
        contents = volume.contents()
        driver = fixture.open(volume.name, checkpoint="4", gc_delay="0", batch_size="1M")
        holds(driver, contents)
        change(driver, contents, 2 * i, not direct)
        if not direct:
            driver("create", "new")
            driver("gc")
        holds(driver, contents)
        change(driver, contents, 2 * i + 1, not direct)
        driver.kill()
        driver = fixture.open(volume.name, gc_delay="0")
        holds(driver, contents)
        if not direct:
            driver("delete", "new")
            driver("gc")
        driver.stop()
        driver = fixture.open(volume.name, readonly="on")
        holds(driver, contents)
        driver.stop()
    snapshots_hold(fixture)
