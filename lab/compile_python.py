# SPDX-License-Identifier: BSD-3-Clause
"""
python3 -m userblk.lab.compile_python MODULE...: import these and keep what was compiled in PYTHONPYCACHEPREFIX, nothing
else. By the guest's own Python, in its root file system: an emulated CPU takes seconds for it.

Each compiled file is checked against the text of its module (PEP 552), not against its time: times in the image of a
checkout are made equal, and the same checkout gives the same files.
"""

from __future__ import annotations

import importlib
import importlib.util
import marshal
import sys
from pathlib import Path

# A later format shares objects, if something else in the process that writes it happens to have them, too.
FORMAT = 2
HEAD = importlib.util.MAGIC_NUMBER + (0b11).to_bytes(4, "little")  # the hash of the text follows


def compile_module(source: Path, compiled: Path) -> None:
    """Compile source into compiled, unless that is there and current. Raises SyntaxError, OSError."""
    text = source.read_bytes()
    head = HEAD + bytes(importlib.util.source_hash(text))  # typeshed has it return an integer
    try:
        with compiled.open("rb") as file:
            if file.read(len(head)) == head:
                return
    except FileNotFoundError:
        pass
    code = marshal.dumps(compile(text, str(source), "exec", dont_inherit=True), FORMAT)
    compiled.parent.mkdir(parents=True, exist_ok=True)
    new = compiled.with_suffix(".new")
    new.write_bytes(head + code)
    new.replace(compiled)  # a guest may be reading the old one


def compile_imported(names: list[str], prefix: Path) -> None:
    """Compile all modules that the named ones import, and remove from prefix what else is there."""
    sys.dont_write_bytecode = True
    for name in names:
        importlib.import_module(name)
    sources = {Path(file) for module in sys.modules.values() if (file := getattr(module, "__file__", None))}
    kept = set()
    for source in sorted(path for path in sources if path.suffix == ".py"):
        compiled = Path(importlib.util.cache_from_source(str(source)))
        compile_module(source, compiled)
        kept.add(compiled)
    for old in prefix.rglob("*.pyc"):
        if old not in kept:
            old.unlink()


if __name__ == "__main__":
    assert sys.pycache_prefix
    compile_imported(sys.argv[1:], Path(sys.pycache_prefix))
