# SPDX-License-Identifier: BSD-3-Clause
"""What README and docs point at is there: links, headings, make targets, commands of userblk."""

import itertools
import re
import subprocess
from pathlib import Path

import pytest
from documents import lesson, lessons

PAGES = [Path("README.md"), Path("CONTRIBUTING.md"), Path("CHANGELOG.md"), *sorted(Path("docs").glob("*.md"))]
README_LINES = 120

# Turns of phrase that readers stumbled over, with what to say instead.
STILTED = {
    r"it was to end": "it was told to shut down",
    r"has not answered for": "no reply from the store for",
    r"mend(s|ed|ing)?": "fix, repair, correct",
    r"anew": "again",
    r"for ever": "forever, always",
    r"whoever|by whomever": "the user, the program, the thread that",
    r"there is none under": "not found under",
    r"just so much": "a fixed amount",
    r"least that is said": "minimum severity logged",
    r"where it is looked for": "install everything",
    r"tells? what": "says, shows, describes, measures",
    r"hands? over": "ships, returns, saves",
    r"of its aims": "targets not met",
    r"takes? less as nothing": "treats smaller differences as noise",
    r"be had( as it is)?": "be taken over, is available, can be made",
    r"a system of others": "a third-party system",
    r"nobody told": "it is missing",
    r"behind the end": "past the end",
    r"errno, (which )?(was |has been )?told": "errno, reported",
    r"(is|are) told": "receives, learns, reports to",
    r"be got|got along": "fetched",
    r"of which file": "needs a file",
    r"nothing of the kind": "does not support",
    r"what answers there": "the server there",
    r"see to (it|the role)": "ensure, check",
    r"is to be a (regular|directory)": "must be a",
    r"has this very": "already has this",
    r"holds what a": "contains",
    r"has no such way": "does not support it",
    r"(gave|gives|give) the disk up": "closed the disk",
    r"he|him|his|whom": "a program, process or writer is it",
    r"be (it|they) (a|an|by|of|that|the|stored)": "even, whether",
    r"(is|are|was|were) to (be|begin|end|go|have|hold|move|pass|reach|run|wait|write)": "must, should, will",
    r"(all|first|largest|memory|names|ones?|pages|records|those) that there (is|are|was|were)": "existing, available",
    r"not [a-z ]{1,30}any more": "no longer",
    r"(is|are|was|were) not to [a-z]+": "must not, should not",
    r"(it|they|which|that) (is|are) none": "it is not one, it is no ...",
    r"in vain": "without effect, without using it",
    r"it lets go": "it releases",
    r"is had|for want of|nobody's": "is available, without, not used",
}


def _prose(page: Path) -> str:
    """The page without its indented blocks and code spans, in which nothing is a link."""
    lines = [line for line in page.read_text().splitlines() if not line.startswith("    ")]
    return re.sub(r"`[^`]*`", "", "\n".join(lines))


def _anchors(page: Path) -> set[str]:
    """The anchors that a renderer of Markdown makes of the page's headings."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            dead.append(link)
    assert not dead


def _targets() -> set[str]:
    database = subprocess.run(["make", "-pnrR", "no-such-target"], capture_output=True, text=True).stdout
    return set(re.findall(r"^([\w.-]+):", database, re.M))


def test_make_targets_exist() -> None:
    targets = _targets()
    unknown = {}
    for page in PAGES:
        text = page.read_text()
        code = re.findall(r"`(make [^`]+)`", text) + re.findall(r"^    (?:\$ )?(make .+)$", text, re.M)
        for command in code:
            for word in command.split("#")[0].split()[1:]:
                if re.fullmatch(r"[a-z][a-z0-9.-]*", word) and word not in targets:
                    unknown[word] = str(page)
    assert not unknown


def test_the_readme_is_read_to_its_end() -> None:
    assert len(Path("README.md").read_text().splitlines()) <= README_LINES


def test_contributors_see_each_long_test() -> None:
    """CONTRIBUTING.md has a row with the minutes of each target of `make test-long`."""
    (targets,) = re.findall(r"^LONG_TESTS := ((?:.*\\\n)*.*)", Path("tests/targets.mk").read_text(), re.M)
    named = re.findall(r"`([\w.-]+)`", "".join(re.findall(r"^\|.*", Path("CONTRIBUTING.md").read_text(), re.M)))
    assert sorted(targets.replace("\\\n", "").split()) == sorted(named)


def test_each_page_is_reached() -> None:
    """A page that the site's navigation does not name is found by nobody."""
    navigation = Path("mkdocs.yml").read_text()
    assert not [page.name for page in sorted(Path("docs").glob("*.md")) if f": {page.name}" not in navigation]


def test_each_lesson_of_the_tutorial_is_run() -> None:
    """By tests/s3/test_tutorial.py, or by tests/lab/test_tutorial.py (make test-tutorial)."""
    tests = "".join(Path(f"tests/{folder}/test_tutorial.py").read_text() for folder in ("lab", "s3"))
    assert len(lessons()) == 3
    assert [title for title in lessons() if f'lesson("{title}")' not in tests] == []


def test_the_tutorials_system_is_the_one_that_is_shipped() -> None:
    shown = [line for line in lesson("Your own server as a row") if not line.startswith(("bin/", "make ", "#"))]
    shipped = Path("configs/systems/qemu-nbd.toml").read_text().splitlines()
    assert shown == [line for line in shipped if line and not line.startswith("#")]


def test_no_sentence_begins_with_of() -> None:
    """In comments, docstrings and pages: a reader would have to wait for its subject."""
    starts = r'("""|/\*\*?|^[ \t]*(\*|//|#)|^|[.:;] |")\s*Of '
    argv = ["git", "grep", "-nIE", starts, "--", ":!docs/data", ":!configs/papers", ":!*.csv", ":!LICENSE"]
    found = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert found.returncode in (0, 1), found.stderr
    assert found.stdout == ""


def test_no_clause_begins_with_who() -> None:
    """Except a question: a program or user that does something is its subject."""
    starts = r"(/\*\*?|^[ \t]*(\*|//|#)|\"\"\"|[.:;]) [Ww]ho [a-z][^?]*$"
    argv = ["git", "grep", "-nIE", starts, "--", ":!docs/data", ":!configs/papers", ":!*.csv", ":!LICENSE"]
    found = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert found.returncode in (0, 1), found.stderr
    assert found.stdout == ""


@pytest.mark.parametrize("phrase", STILTED)
def test_stilted_phrases_stay_away(phrase: str) -> None:
    """From pages, messages, comments and configuration: see STILTED for what to say instead."""
    places = ["docs/data", "configs/papers", "*.csv", "LICENSE", "tests/python/test_documents.py"]
    argv = ["git", "grep", "-nIiE", rf"\b({phrase})\b", "--", *(f":!{place}" for place in places)]
    found = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert found.returncode in (0, 1), found.stderr
    assert found.stdout == "", STILTED[phrase]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_code_in_tables_has_no_escaped_pipe(page: Path) -> None:
    """The site would show the backslash."""
    assert re.findall(r"`[^`\n]*\\\|[^`\n]*`", page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_lists_are_lists_on_the_site(page: Path) -> None:
    """Its Markdown wants a blank line before a list and knows no list or table in an item that is indented by less."""
    lines = page.read_text().splitlines()
    item = re.compile(r"(- |\d+\. )\S")
    wrong = [line for line in lines if re.match(r" {1,3}(- |\d+\. |\|)", line)]
    for before, line in itertools.pairwise(lines):
        if item.match(line) and before and not item.match(before) and not before.startswith("  "):
            wrong.append(line)
    assert wrong == []
