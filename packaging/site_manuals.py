# SPDX-License-Identifier: BSD-3-Clause
"""Hook of mkdocs: the manual pages, which stand beside the code, as pages of the site."""

import logging
import re
import shutil
import subprocess
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

TOP = Path(__file__).resolve().parents[1]


def pages() -> list[Path]:
    if not shutil.which("mandoc"):
        logging.getLogger("mkdocs").info("manual pages are left out; for them, run: apt-get install mandoc")
        return []
    listed = subprocess.run(["git", "ls-files", "*.[18]"], cwd=TOP, capture_output=True, text=True, check=True)
    return sorted((TOP / name for name in listed.stdout.split()), key=lambda page: page.stem)


def on_config(config: MkDocsConfig) -> None:
    (reference,) = (part["Reference"] for part in config.nav or [] if "Reference" in part)
    titles = [{f"{page.stem}({page.suffix[1:]})": f"manual/{page.stem}.md"} for page in pages()]
    reference.append({"Manual pages": titles})


def on_files(files: Files, config: MkDocsConfig) -> None:
    for page in pages():
        argv = ["mandoc", "-T", "markdown", str(page)]
        text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        # mandoc escapes in code, too, where a backslash is one; and its first line is no heading.
        text = re.sub(r"`[^`\n]*`", lambda code: code[0].replace("\\_", "_"), text)
        title = f"# {page.stem}({page.suffix[1:]})"
        text = re.sub(r"^# ", "## ", text.partition("\n")[2], flags=re.M)
        files.append(File.generated(config, f"manual/{page.stem}.md", content=f"{title}\n{text}"))
