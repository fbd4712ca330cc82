# SPDX-License-Identifier: BSD-3-Clause
"""The crash checker over the S3 device: 200 crashes here, 10,000 in `make test-crash`."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest
from crash import FAILPOINT, FAILPOINTS, main, one_volume
from crash_results import Result, crashes_wanted
from device import ServeS3
from servers import Store

POINTS = int(os.environ.get("USERBLK_CRASH_POINTS", "200"))


def test_crashes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status = main(["--points", str(POINTS), "--jobs", "2", "--keep", str(tmp_path)])
    text = capfd.readouterr().out
    print(text)
    assert status == 0, text


@pytest.mark.parametrize(("points", "names", "wanted"), [(10, "a", 10), (10, "ab", 15), (20, "ab", 20)])
def test_goes_on_for_points_without_a_crash(points: int, names: str, wanted: int) -> None:
    assert crashes_wanted([Result(0, crashes=10, kinds=Counter(a=10))], points, names) == wanted


@pytest.mark.parametrize(
    "name", ["log-put-before", "snap-root-before", "rekey-super-after", "orphan-delete-before", "wb-replay-put-after"]
)
def test_volume_comes_to_what_is_sought(store: Store, name: str) -> None:
    result = one_volume(0, crashes=3, seed=3, store=store, keep=None, sought=name)
    assert result.failure is None and result.kinds[name]


@pytest.mark.parametrize("text", ["log-put", "log-put-before:0", "log-put-before:x", ""])
def test_unknown_failpoint_is_refused(serve_s3: ServeS3, text: str) -> None:
    with pytest.raises(AssertionError, match=f"{FAILPOINT}={text}: no such point") as error:
        serve_s3("v", wrapper=("env", f"{FAILPOINT}={text}"))
    names = re.search("there are (.*), each with", str(error.value))
    assert names and tuple(names[1].split(", ")) == FAILPOINTS
    assert not serve_s3.objects("v")
