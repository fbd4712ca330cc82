# SPDX-License-Identifier: BSD-3-Clause
"""The tutorial's lesson about S3, its commands run as they stand there."""

import re
import socket
import subprocess
from pathlib import Path

from documents import lesson


def test_a_volume_in_s3(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    commands = [
        command.replace("/tmp/", f"{tmp_path}/").replace("7070", str(port)) for command in lesson("A volume in S3")
    ]
    assert commands[0].startswith("make ")  # which has been done for these tests
    script = ["set -eu", f"cd {Path.cwd()}", "trap 'kill %1' EXIT"]
    for command in commands[1:]:
        command = re.sub(r"(> |chmod 600 )(key|first\.conf)$", rf"\1{tmp_path}/\2", command)
        command = command.replace('"$PWD"', str(tmp_path)).replace("config=first.conf", f"config={tmp_path}/first.conf")
        script.append(command)
        if command.endswith("&"):  # a reader takes longer to type the next one
            script.append(
                f"curl -s -o {tmp_path}/answer --retry 50 --retry-connrefused --retry-delay 1 http://127.0.0.1:{port}"
            )
    script.append(f'timeout 60 tail --pid="$(cat {tmp_path}/first.pid)" -f /dev/null')
    done = subprocess.run(["bash", "-c", "\n".join(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.search(r"damaged_objects\s+0\n", done.stdout)
