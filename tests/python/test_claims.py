# SPDX-License-Identifier: BSD-3-Clause
"""docs/claims.toml says where each number comes from that README and docs give as measured."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import claims
import pytest
from claims import Section, differing, measure, sections, told, values_of, without_entry, wrong_entries

PAGE = "docs/page.md"


def test_the_pages_say_what_the_data_do() -> None:
    assert told() == []


def section(text: str) -> Section:
    _, found = sections(PAGE, f"# Title\n{text}\n")
    return found


@pytest.mark.parametrize(
    "text",
    [
        "It takes 3.5 ms.",
        "ran at 1,200 MB/s",
        "2.5 to 3 times as fast",
        "35 and 27 us",
        "0.98 [0.95, 1.01]",
        "| disk | reads (kop/s) |",
        "nbdkit is 24 % slower",
        "it lost 1.4 to\n32\n% of them",
        "2375 MiB were resident",
        "2 GiB for 1 TiB",
        "33 MB for all files",
        "| done | 12 % |",
    ],
)
def test_a_number_without_an_entry_is_found(text: str) -> None:
    found = section(text)
    (line,) = without_entry({}, [found])
    assert line.startswith("docs/page.md: section 'Title' has '") and "which no entry in docs/claims.toml says" in line
    entry: dict[str, Any] = {"page": PAGE, "heading": "Title", "says": [" ".join(text.split())]}
    assert not [*without_entry({"claim": [entry]}, [found])]
    assert not [*without_entry({"other": [entry]}, [found])]
    for key, value in (("page", "README.md"), ("heading", "*"), ("says", ["7 ms"])):
        assert [*without_entry({"other": [{**entry, key: value}]}, [found])] == [line]


def test_each_number_of_a_section_needs_an_entry() -> None:
    table = "| a | b |\n|---|---|\n| 1 s | 2 s |"
    found = section(f"It takes 3.5 ms, 5 % more than\nbefore; 2.5 % of it is ours.\n\n{table}")
    assert found.unsaid(["3.5 ms", "5 %", "| a | b |"]) == ["2.5 %"]
    assert found.unsaid(["3.5 ms", "5 % more than before; 2.5 % of", "| 1 s |"]) == ["2 s"]
    assert found.unsaid([]) == ["3.5 ms", "5 %", "2.5 %", "1 s", "2 s"]


def test_what_the_data_make_has_its_entry() -> None:
    row = "| nbdkit | 12 % |"
    entry = {"page": PAGE, "heading": "Title", "check": ["printf", f"{row}\\n".replace("%", "%%")]}
    assert not [*without_entry({"claim": [entry]}, [section(row)])]
    assert [*without_entry({"claim": [entry]}, [section(f"{row}\n| TCMU | 13 % |")])]
    text = [{"text": "it takes 12 s", "values": ["seconds"]}]
    assert not [*without_entry({"claim": [entry | {"text": text}]}, [section("it takes\n12 s")])]
    written = "<!-- userblk table table1 -->\n| 12 % |\n<!-- end -->\n"
    assert section(written).unsaid([]) == [] and section(f"{written}13 %").unsaid([]) == ["13 %"]


@pytest.mark.parametrize("text", ["`--runtime 3 s`", "    $ sleep 3 s", "version 1.8.0", "64 KiB blocks", "Linux 6.12"])
def test_settings_and_code_are_no_measurements(text: str) -> None:
    assert not section(text).unsaid([])


def claim(tmp_path: Path, **more: Any) -> dict[str, Any]:
    (tmp_path / "data.json").write_text(json.dumps({"runs": 10064, "seconds": 1.449}))
    text = [{"text": "of 10,064 runs takes 1.4 s", "values": ["runs", "seconds"]}]
    whole = {"id": "one", "page": PAGE, "heading": "Title", "machine": "any", "command": "make"}
    return whole | {"data": str(tmp_path / "data.json"), "text": text, "tolerance": 0.1, "minutes": 1} | more


def test_numbers_are_those_of_the_data(tmp_path: Path) -> None:
    assert not [*differing(claim(tmp_path), "The table\nof 10,064 runs takes 1.4 s.")]
    (line,) = differing(claim(tmp_path), "of 10,064 runs takes 1.5 s")
    assert "does not say 'of 10,064 runs takes 1.4 s'" in line
    other = [{"text": "of 10,065 runs takes 1.5 s", "values": ["runs", "seconds"]}]
    first, second = differing(claim(tmp_path, text=other), "of 10,065 runs takes 1.5 s")
    assert "has runs = 10064" in first and "has seconds = 1.4" in second
    check = ["printf", "| a | 1 |\\n| b | 2 |\\n"]
    (line,) = differing(claim(tmp_path, text=[], check=check), "| a | 1 |\n| b | 3 |")
    assert "has no line '| b | 2 |'" in line
    (line,) = differing(claim(tmp_path, text=[], check=["false"]), "")
    assert line == "one: false: "


def test_values_are_picked_from_what_a_benchmark_printed() -> None:
    one = {"id": "one", "pick": {"runs": r"^(\d+) runs", "seconds": r"in ([\d.]+) s"}}
    assert values_of(one, "begin\n10064 runs in 1.449 s\n") == {"runs": 10064, "seconds": 1.449}
    with pytest.raises(ValueError, match="one: seconds is not in the data"):
        values_of(one, "10064 runs")


def test_entries_say_enough(tmp_path: Path) -> None:
    found = [section("of 10,064 runs")]
    assert not [*wrong_entries({"claim": [claim(tmp_path)]}, found)]
    for key, value, says in (
        ("heading", "Gone", "has no section 'Gone'"),
        ("data", "docs/none.json", "data=docs/none.json is not there"),
        ("comand", "make", "comand is unknown"),
        ("says", ["10,065 runs"], "does not say '10,065 runs'"),
    ):
        (line,) = wrong_entries({"claim": [claim(tmp_path, **{key: value})]}, found)
        assert says in line
    without = claim(tmp_path)
    del without["machine"], without["tolerance"], without["data"], without["text"]
    missing, neither, nothing = wrong_entries({"claim": [without]}, found)
    assert missing == "one: machine, tolerance is missing; add it" and neither.startswith("one: neither data")
    assert nothing.startswith("one: no number is of it")
    (line,) = wrong_entries({"other": [{"page": PAGE, "heading": "Title"}]}, found)
    assert "[[other]]" in line


def test_a_sample_is_measured_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    near, far = ({"runs": 10064, "seconds": seconds} for seconds in (1.5, 2.0))
    some = [
        claim(tmp_path, id="near", measure=["echo", json.dumps(near)]),
        claim(tmp_path, id="far", measure=["echo", json.dumps(far)]),
        claim(tmp_path, id="fails", measure=["false"]),
        claim(tmp_path, id="long", measure=["false"], minutes=100),
    ]
    assert measure(some, 30, random.Random(1)) == 2
    said = capsys.readouterr().out
    assert "seconds: 2, kept 1.449: 38.0% apart, more than 10%" in said and "long: left out" in said
    assert claims.ROOT == Path.cwd()
