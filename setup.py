# SPDX-License-Identifier: BSD-3-Clause
"""What pyproject.toml cannot say: a package brings along the source that the lab's guest is built from."""

import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build import build

PACK = Path("packaging/source-archive")
ARCHIVE = "build/source.tar.gz"


class Build(build):
    def run(self) -> None:
        super().run()
        if PACK.is_file():  # not in a source distribution
            subprocess.run([PACK, ARCHIVE], check=True)
            self.distribution.data_files.append(("share/userblk", [ARCHIVE]))


setup(cmdclass={"build": Build})
