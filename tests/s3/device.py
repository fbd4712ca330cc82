# SPDX-License-Identifier: BSD-3-Clause
"""The S3 device's parameters as the tests give them, and where a volume's objects are."""

from __future__ import annotations

from pathlib import Path

from servers import BUCKET, REGION, Versitygw

PREFIX = "volumes"


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
