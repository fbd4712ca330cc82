# SPDX-License-Identifier: BSD-3-Clause
"""The report: what is in it, that it comes out the same, and that a real browser shows it."""

from __future__ import annotations

import hashlib
import html as entities
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_up
import matplotlib.image
import pytest
from synthetic import make_campaign
from userblk.analysis.figures import whiskers
from userblk.analysis.page import _summary, heat_maps, write_report
from userblk.analysis.palette import heat
from userblk.analysis.render import shade
from userblk.analysis.summaries import SummaryError, read_campaign
from userblk.analysis.table import METRICS, RATE, Mark, make_cell
from userblk.analysis.tabulate import make_tables
from userblk.harness.machine.paths import CONFIGS
from userblk.harness.running import archive
from userblk.harness.running.archive import CACHE

WORKLOADS = ["seq-read-1th-4k", "rand-write-16th-4k", "create-1th", "web-server"]
ROWS = 2 * (2 + 4)  # devices; workloads on blocks and on files
BROWSER = shutil.which("chromium")
BAD: dict[int, dict[str, Any]] = {
    0: {"valid": False, "invalid": ["the server died <here> & there"]},
    1: {"warnings": ["load: other programs took 60 % of a CPU before the run"]},
}


def digests(directory: Path) -> Mapping[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report's directory of a campaign with a control, an invalid run and a warning."""
    directory = tmp_path_factory.mktemp("report")
    campaign = make_campaign(directory, repetitions=3, workloads=WORKLOADS, changes=BAD)
    output = campaign / "report"
    assert write_report(read_campaign(campaign), output, CONFIGS) == [output / "report.html", output / "figures"]
    return output


@pytest.fixture(scope="module")
def page(report: Path) -> str:
    return (report / "report.html").read_text(encoding="utf-8")


def test_numbers_of_another_base_are_absolute(tmp_path: Path) -> None:
    """A paper may print nothing of native."""
    campaign = read_campaign(archive.unpack(CONFIGS.parent / "docs/data/bs3-fs.tar.gz", tmp_path))
    write_report(campaign, tmp_path / "report", CONFIGS)
    text = (tmp_path / "report/report.html").read_text()
    rows = [row for row in text.split("<tr>") if "s3-direct-nbd</td>" in row]
    numbers = [re.findall(r'<td class="number">([^<]*)</td>', row) for row in rows]
    absolute = [row for row in numbers if len(row) == 2]
    assert absolute and not any(value.startswith("+") for row in absolute for value in row)
    agreement = [row for row in numbers if len(row) == 5]
    assert agreement and all(row[2].endswith(" %") for row in agreement)


def test_without_native_means_are_drawn_and_nothing_is_said_of_differences(tmp_path: Path) -> None:
    """Suite bs3-fs: a file system on each way to a store, by what the suite itself counts."""
    campaign = read_campaign(archive.unpack(CONFIGS.parent / "docs/data/bs3-fs.tar.gz", tmp_path))
    tables = make_tables(campaign.runs)
    (table,) = tables
    assert table.base == "" and table.metrics[0] == RATE
    lines = " ".join(_summary(campaign, tables, ()))
    assert "There is no native to compare with" in lines and "A/A" not in lines and "of native" not in lines
    assert heat_maps(table, {}) == []
    write_report(campaign, tmp_path / "report", CONFIGS)
    assert not list(tmp_path.glob("report/figures/*heatmap*"))
    page = (tmp_path / "report/report.html").read_text()
    assert 'id="overview"' not in page and 'href="#overview"' not in page
    figure = whiskers(table, table.rows[0][0])
    drawn = [axes.get_title() for axes in figure.axes if axes.lines[1:]]  # beside the line at 0
    assert drawn[0] == RATE.title and [axes.get_xlabel() for axes in figure.axes][:2] == [RATE.unit, METRICS[0].unit]
    (title,) = [text.get_text() for text in figure.texts if table.label in text.get_text()]
    assert "difference" not in title
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert [data["metrics"][at]["unit"] for at in data["rows"][0]["metrics"]][0] == RATE.unit


def test_three_runs_without_an_interval_are_no_single_runs() -> None:
    """Native has one run, so that differences to it have no interval."""
    sample = [10.0, 11.0, 10.5]
    (table,) = make_tables(made_up.runs("native", sample[:1]) + made_up.runs("nbdkit", sample))
    (said,) = [text.get_text() for text in whiskers(table, "sata").texts]
    assert "single runs" not in said and "without intervals" in said


def test_everything_is_in_the_page(page: str) -> None:
    text = entities.unescape(page)
    for expected in (
        "EMULATED",
        "132 runs, 131 of them valid.",
        "Table 1: block device workloads",
        "Table 2: file system workloads",
        "are significant (Welch's test",
        "of the paper's 1,365 numbers",
        "there was no A/A control",
        "the server died <here> & there",
        "load: other programs took 60 %",
        "number of files is 5 (because)",
        "Made-up CPU",
        "packages.nbdkit",
    ):
        assert expected in text, expected
    assert "the server died &lt;here&gt; &amp; there" in page  # text stays text


def test_the_page_needs_nothing_else(page: str) -> None:
    assert not re.findall(r"""(?:src|href)=["'](?!#|figures/)""", page)
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert "@import" not in page and "url(" not in page


def test_data_of_every_workload_are_in_the_page(page: str) -> None:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    data = json.loads(found[1])
    assert len(data["rows"]) == ROWS
    assert sum(system["n"] for row in data["rows"] for system in row["systems"]) == 131
    row = next(row for row in data["rows"] if row["name"] == "nvme-bdus-fs-web-server")
    assert [system["id"] for system in row["systems"]] == ["native", "nbdkit", "tcmu", "fuse"]
    for system in row["systems"]:
        assert system["n"] in (2, 3) and len(system["kops"]) == 30 and len(system["means"]) == 3
        assert None not in system["percentiles"][:3]
        assert len(system["spread"]) == len(data["percents"])


def test_every_figure_is_there_twice(report: Path) -> None:
    names = {path.name for path in (report / "figures").iterdir()}
    workloads = [f"bdus-block-{name}" for name in WORKLOADS[:2]] + [f"bdus-fs-{name}" for name in WORKLOADS]
    rows = {f"{device}-{name}" for device in ("sata", "nvme") for name in workloads}
    overviews = ("heatmap", "sata-intervals", "nvme-intervals", "paper")
    tables = {f"{suite}-{what}" for suite in ("bdus-block", "bdus-fs") for what in overviews}
    assert names == {f"{name}.{kind}" for name in rows | tables for kind in ("png", "svg")}
    for path in (report / "figures").glob("*.svg"):
        ElementTree.parse(path)
        assert "<dc:date>" not in path.read_text()
    for path in (report / "figures").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000


def test_it_comes_out_the_same(report: Path, tmp_path: Path) -> None:
    """From the raw files alone, elsewhere, whatever was kept from before."""
    first = digests(report)
    campaign = report.parent
    moved = tmp_path / "moved" / campaign.name
    shutil.copytree(campaign, moved, ignore=shutil.ignore_patterns(CACHE, "report"))
    again = tmp_path / "again"
    write_report(read_campaign(moved), again, CONFIGS)
    assert digests(again) == first
    write_report(read_campaign(moved), again, CONFIGS)  # from what was kept
    assert digests(again) == first


def test_a_report_that_fails_leaves_the_former_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page beside figures of other numbers says what was never measured."""
    campaign = make_campaign(tmp_path, suite="bdus-block", repetitions=1, systems=["native", "nbdkit"],
                             workloads=["seq-read-1th-4k"])  # fmt: skip
    output = tmp_path / "out"
    write_report(read_campaign(campaign), output, CONFIGS)
    mine, stale = output / "figures/mine.png", output / "figures/nvme-bdus-block-seq-read-1th-4k.svg"
    mine.write_text("of the user")
    before = digests(output)

    def fails(*_: object) -> None:
        raise OSError("no room")

    for name in ("render", "draw"):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="no room"):
            patch.setattr(f"userblk.analysis.page.{name}", fails)
            write_report(read_campaign(campaign), output, CONFIGS)
        assert digests(output) == before
    assert stale.exists()
    shutil.rmtree(campaign / "nowhere/nvme")
    write_report(read_campaign(campaign), output, CONFIGS)
    assert mine.exists() and not stale.exists() and (output / "figures/sata-bdus-block-seq-read-1th-4k.svg").exists()


def test_an_aa_control_is_judged(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path, systems=["native", "nbdkit"], suite="bdus-block", repetitions=4,
                             workloads=["seq-read-1th-4k", "rand-read-1th-4k"])  # fmt: skip
    for file in sorted(campaign.glob("*/*/*/native/*/*/summary.json")):
        run = file.parent
        copy = Path(str(run).replace("/native/", "/native-control/"))
        shutil.copytree(run, copy)
        value = json.loads(file.read_text()) | {"system": "native-control"}
        value["metrics"] = {name: number * 1.001 for name, number in value["metrics"].items()}
        (copy / "summary.json").write_text(json.dumps(value))
    write_report(read_campaign(campaign), tmp_path / "out", CONFIGS)
    text = entities.unescape((tmp_path / "out/report.html").read_text())
    assert "A/A control: native differs from native in 0 of 12 tests, 0.0 % [0.0, 60.2], where 5 %" in text


def test_without_raw_files_the_rest_is_there(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path, suite="bdus-block", systems=["native", "nbdkit"], repetitions=2,
                             workloads=["seq-read-1th-4k"])  # fmt: skip
    for path in campaign.glob("*/*/*/*/*/*/fio*"):
        path.unlink()
    write_report(read_campaign(campaign), tmp_path / "out", CONFIGS)
    text = (tmp_path / "out/report.html").read_text()
    assert "Raw files that could not be read" in text and "fio.json" in text and "Table 1" in text


def test_single_runs_are_no_statistics(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path, suite="bdus-block", repetitions=1, systems=["native", "nbdkit"],
                             workloads=["seq-read-1th-4k"])  # fmt: skip
    write_report(read_campaign(campaign), tmp_path / "out", CONFIGS)
    text = entities.unescape((tmp_path / "out/report.html").read_text())
    assert "no intervals and no tests" in text and "One repetition: no intervals." in text


def test_no_run_no_report(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path, suite="bdus-block", repetitions=1, systems=["native"],
                             workloads=["seq-read-1th-4k"])  # fmt: skip
    for mark in campaign.glob("*/*/*/*/*/*/DONE"):
        mark.unlink()
    with pytest.raises(SummaryError, match="has no run"):
        write_report(read_campaign(campaign), tmp_path / "out", CONFIGS)
    assert not (tmp_path / "out").exists()


def test_it_can_be_read_aloud_and_scrolled_by_keyboard(page: str) -> None:
    assert page.count("<main ") == page.count("</main>") == 1 and '<nav aria-label="Sections">' in page
    first = page[page.index("<body") :]
    assert first.index("<header>") < first.index("<h1>") < first.index("</header>") < first.index("<nav ")
    skip = re.search(r'<a [^>]*href="#([^"]+)"', first)
    assert skip and f'<main id="{skip[1]}"' in first, "the first link skips what stands before the content"
    assert not re.findall(r'<th scope="row"></th>', page), "a heading without a text"
    for head in re.findall(r"<thead>.*?</thead>", page, re.S):
        assert "<th" in head and "<th>" not in head, "a heading of which nobody knows what it heads"
    regions = re.findall(r'<div class="scroll"([^>]*)>', page)
    assert len(regions) >= 2
    assert all('tabindex="0"' in one and re.search(r'aria-label="[^"]+"', one) for one in regions)
    assert all(re.search(r'aria-label="[^"]+"', one) for one in re.findall(r'<svg role="img"[^>]*>', page))
    assert all(re.search(r'alt="[^"]+"', one) for one in re.findall(r"<img [^>]*>", page))


def contrast(one: str, other: str) -> float:
    """Between two colours, #rrggbb, by WCAG 2.2."""
    lights = []
    for colour in (one, other):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)
    return max(lights) / min(lights)


def test_numbers_can_be_read_on_every_colour() -> None:
    throughput = METRICS[0]
    for percent in range(101):
        sample = [100.0 - percent] * 2
        shown = shade(throughput, "nbdkit", make_cell(throughput, "sata", "rand-read-1th-4k", sample, [100.0] * 2, 0))
        assert shown is not None and contrast(shown.background, shown.text) >= 4.5, percent
        for difference in (-percent, percent):
            assert contrast(*heat(throughput, difference)) >= 4.5, difference


# ---- in a browser ---------------------------------------------------------------------------


def browse(profile: Path, address: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Chromium without a screen and without any network."""
    if BROWSER is None:
        pytest.skip("chromium is not installed; run: apt-get install chromium")
    argv = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    argv += [f"--user-data-dir={profile}", "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=5000"]
    argv += ["--enable-logging=stderr", "--log-level=0", "--window-size=1400,1200", *options, address]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)


def test_a_browser_draws_the_workload_that_is_asked_for(report: Path, tmp_path: Path) -> None:
    address = (report / "report.html").as_uri()
    seen = browse(tmp_path, f"{address}#cell=nvme-bdus-fs-web-server", "--dump-dom")
    assert "CONSOLE" not in seen.stderr, seen.stderr  # errors of the script are said there
    body = seen.stdout
    assert 'data-ready="true"' in body
    cell = body[body.index('<div id="cell"') : body.index('<h2 id="paper">')]
    assert "<h3>NVMe web-server" in cell
    assert cell.count("<figure>") == 6 and cell.count("<svg") == 6 + 4  # figures and the key
    # Bars of four systems in three figures; lines of four systems over time, twice, and of the distribution.
    assert len(re.findall(r"<rect [^>]*opacity", cell)) == 12
    assert len(re.findall(r'<path [^>]*fill="none"', cell)) == 12
    assert "NaN" not in cell and "undefined" not in cell and "Infinity" not in cell
    assert "p99.9" in cell
    assert "figures/nvme-bdus-fs-web-server.svg" in body and "figures/nvme-bdus-fs-web-server.png" in body


def test_closed_parts_are_printed(report: Path, page: str, tmp_path: Path) -> None:
    """As many pages as of a copy in which all is open; of one in which closed parts are removed there are fewer."""
    opened = page.replace("<details>", "<details open>")
    assert page.count("<details>") > 1
    pages = []
    for number, text in enumerate((page, opened, re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL))):
        (tmp_path / f"{number}.html").write_text(text, encoding="utf-8")
        pdf = tmp_path / f"{number}.pdf"
        browse(tmp_path / "profile", (tmp_path / f"{number}.html").as_uri(), f"--print-to-pdf={pdf}")
        pages.append(len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes())))
    assert pages[0] == pages[1] > pages[2] > 0, pages


def test_a_browser_opens_every_workload(report: Path, page: str, tmp_path: Path) -> None:
    """By a copy of the page that shows one after the other and counts."""
    walk = """<script>
    const counts = [];
    for (const option of document.getElementById("row").options) {
      location.hash = "cell=" + option.value; window.dispatchEvent(new HashChangeEvent("hashchange"));
      counts.push(document.querySelectorAll("#cell figure").length);
    }
    document.getElementById("ci").click();
    document.body.dataset.counts = counts.join(" ") + (document.body.classList.contains("plain") ? " plain" : " with");
    </script></body>"""
    copy = tmp_path / "walk.html"
    copy.write_text(page.replace("</body>", walk), encoding="utf-8")
    seen = browse(tmp_path / "profile", copy.as_uri(), "--dump-dom")
    assert "CONSOLE" not in seen.stderr, seen.stderr
    assert f'data-counts="{" ".join(["6"] * ROWS)} with"' in seen.stdout


def test_names_of_many_systems_do_not_cross(tmp_path: Path) -> None:
    systems = ["native", "buse", "nbdkit-serial", "nbdkit", "tcmu", "ublk-workers", "ublk-uring"]
    campaign = make_campaign(tmp_path, suite="bdus-block", repetitions=1, systems=systems, workloads=WORKLOADS[:1],
                             speed=dict.fromkeys(systems, 1.0))  # fmt: skip
    write_report(read_campaign(campaign), tmp_path / "out", CONFIGS)
    look = """<script>
    const names = [...document.querySelectorAll("#cell figure:first-child text[text-anchor=middle]")];
    const boxes = names.map((name) => name.getBoundingClientRect());
    const cross = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom - 2 && b.top < a.bottom - 2;
    document.body.dataset.names = names.length + " names, "
      + boxes.filter((one, at) => boxes.some((other, place) => place > at && cross(one, other))).length + " cross";
    </script></body>"""
    copy = tmp_path / "look.html"
    copy.write_text((tmp_path / "out/report.html").read_text("utf-8").replace("</body>", look), encoding="utf-8")
    assert 'data-names="7 names, 0 cross"' in browse(tmp_path / "profile", copy.as_uri(), "--dump-dom").stdout


def test_it_fits_a_phone(report: Path, tmp_path: Path) -> None:
    """Only tables scroll sideways, each in its own region. A browser's window is wider, so the page is in a frame."""
    measure = "document.body.dataset.width = this.contentDocument.documentElement.scrollWidth"
    frame = f'<iframe src="{(report / "report.html").as_uri()}" style="width: 375px; border: 0" onload="{measure}">'
    phone = tmp_path / "phone.html"
    phone.write_text(f"<!DOCTYPE html><body>{frame}</iframe></body>", encoding="utf-8")
    seen = browse(
        tmp_path / "profile", phone.as_uri(), "--allow-file-access-from-files", "--hide-scrollbars", "--dump-dom"
    )
    assert 'data-width="375"' in seen.stdout


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_browser_paints_it(report: Path, tmp_path: Path, scheme: str) -> None:
    picture = tmp_path / "page.png"
    wanted = f"--blink-settings=preferredColorScheme={['dark', 'light'].index(scheme)}"
    browse(tmp_path / "profile", (report / "report.html").as_uri(), f"--screenshot={picture}", wanted)
    assert picture.stat().st_size > 30_000
    corner = matplotlib.image.imread(picture)[2, 2, :3].mean()  # of the page itself
    assert corner < 0.2 if scheme == "dark" else corner == 1


def test_wide_intervals_are_counted_among_the_means_of_the_table(tmp_path: Path) -> None:
    """Not those of files per second, which are in the long CSV only."""
    runs = [
        replace(one, engine="flow", repetition=number, metrics=one.metrics | {"cpu_percent": kops, "files_kops": kops})
        for number, kops in enumerate((10.0, 90.0), 1)
        for system in ("native", "fuse")
        for one in made_up.runs(system, [kops], suite="bdus-fs", workload="create-1th")
    ]
    (table,) = tables = make_tables(runs)
    assert sum(Mark.WIDE in cell.marks for cell in table.cells.values()) == 8
    lines = _summary(read_campaign(made_up.small_campaign(tmp_path)), tables, ())
    assert "6 of 6 means have intervals wider than the paper's limits." in lines
