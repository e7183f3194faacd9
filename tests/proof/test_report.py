"""Reports: pages that say what is known, are HTML whatever the names in it are, and ask for nothing."""

import re
from datetime import UTC, datetime
from xml.etree.ElementTree import Element

import html5lib
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned import Project, TableOptions
from dagster_versioned.branches.environments import create_environment
from dagster_versioned.errors import InvalidInput
from dagster_versioned.proof.attest import attest
from dagster_versioned.proof.html import element, page
from dagster_versioned.proof.keys import PrivateKey
from dagster_versioned.proof.report import ReportOptions, report_of, write_project_report
from dagster_versioned.proof.report_pictures import SHOWN, lineage_picture
from dagster_versioned.proof.signatures import TrustedKeys
from dagster_versioned.proof.trace import trace
from support.command_line import in_process
from support.crashes import foreign

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SCRIPT = "<script>alert(1)</script>"
HOSTILE = f"\"'>{SCRIPT}<img src=x onerror=y>&amp;</title></style>\u202e\x00\x1b[2J"


def parsed(text: str) -> Element:
    return html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(text)


def texts(root: Element) -> str:
    return " ".join(" ".join(root.itertext()).split())


def boxes(root: Element) -> int:
    return len(list(root.iter("{http://www.w3.org/2000/svg}g")))


def asks_for(root: Element) -> list[str]:
    """What a browser would ask somebody else for, or run."""
    attributes = [(name, value) for each in root.iter() for name, value in each.attrib.items()]
    names = {each.tag.rpartition("}")[2] for each in root.iter() if isinstance(each.tag, str)}
    return [
        *(value for name, value in attributes if name in {"src", "srcset", "data", "action", "style", "poster"}),
        *(value for name, value in attributes if name == "href" and not re.fullmatch(r"[\w.-]+\.html", value)),
        *(name for name, _ in attributes if name.startswith("on")),
        *(names & {"script", "iframe", "object", "embed", "link", "base", "form", "img", "image", "use"}),
    ]


def chained(project, count=3):
    for number in range(count):
        rows = pa.table({"id": range(number + 2)})
        project.table("orders").write(rows, message=f"day {number}", code_version="1")
        parents = project.table("orders").upstream()
        project.table("daily").write(pa.table({"n": [number]}), parents=parents, code_version="1")
        parents += project.table("daily").upstream()
        project.table("weekly").write(pa.table({"n": [number, number]}), parents=parents, code_version="1")


@pytest.fixture
def project(tmp_path):
    return Project.open("SHOP", str(tmp_path / "shop"), author="ada")


def test_a_version_is_told_on_one_page(project):
    chained(project)
    root = parsed(report_of(project, "weekly", options=ReportOptions(now=NOW)))
    said = texts(root)
    version = project.table("weekly").version()
    assert {version.metadata_sha, version.data_sha, version.record.sha256} <= set(said.split())
    assert "orders has other rows: 4 instead of 3 (orders -> weekly)" in said
    assert "All is as it was committed: 1 part" in said
    assert "2026-01-02 03:04:05 UTC" in said
    assert boxes(root) == 3
    assert "the current version" in said
    assert "the current version" not in texts(parsed(report_of(project, "weekly", "@1")))
    assert asks_for(root) == []


def test_it_says_what_is_wrong(project):
    chained(project)
    part = next(iter(project.table("weekly").files().adds))
    project.table("weekly").store.put(part.key, b"other bytes")
    assert "1 finding" in texts(parsed(report_of(project, "weekly")))
    assert "were not read" in texts(parsed(report_of(project, "weekly", options=ReportOptions(with_bytes=False))))


def test_it_says_by_whom_a_version_is_signed(project):
    chained(project)
    key, other = PrivateKey.generate(), PrivateKey.generate()
    attest(project, "weekly", signer=key)
    trusted = ReportOptions(keys=TrustedKeys.of([key.public]))
    assert "Signed by a key that was named" in texts(parsed(report_of(project, "weekly", options=trusted)))
    stranger = ReportOptions(keys=TrustedKeys.of([other.public]))
    assert "is not trusted" in texts(parsed(report_of(project, "weekly", options=stranger)))
    assert "Signatures" not in texts(parsed(report_of(project, "weekly")))


def test_names_that_are_html_are_shown_and_not_obeyed(project):
    rows = pa.table({HOSTILE: [1], "b": [2]})
    options = TableOptions(custom={HOSTILE: HOSTILE})
    project.table("orders").write(rows, message=HOSTILE, code_version=HOSTILE, options=options)
    root = parsed(report_of(project, "orders"))
    assert asks_for(root) == []
    assert SCRIPT in texts(root)
    assert r"\u{202e}\u{0}\u{1b}[2J" in texts(root)


def test_a_table_of_two_thousand_columns(project):
    names = [f"c{number}" for number in range(2_000)]
    project.table("wide").write(pa.table({name: [1] for name in names}))
    root = parsed(report_of(project, "wide"))
    assert set(names) <= {each.text for each in root.iter("code")}


@pytest.mark.parametrize("gone", ["expired", "dropped", "foreign", "environment", "partitioned"])
def test_what_is_not_there_is_said(project, gone):
    chained(project, 4)
    if gone == "partitioned":
        for day in ("2024-01-01", "2024-01-02"):
            project.table("days").write(pa.table({"v": [1]}), partition=day)
        assert "days [2024-01-02]" in texts(parsed(report_of(project, "days")))
        return
    if gone == "environment":
        create_environment(project, "pr-1")
        inner = project.in_environment("pr-1")
        inner.table("weekly").write(pa.table({"n": [9]}))
        assert "environment pr-1" in texts(parsed(report_of(inner, "weekly")))
        return
    weekly = project.table("weekly")
    if gone == "expired":
        weekly.purge(["@0"], why="asked for", dry_run=False)
        said = texts(parsed(report_of(project, "weekly", "@0")))
        assert "not kept any more" in said
        return
    if gone == "dropped":
        project.table("orders").drop(dry_run=False)
    else:
        foreign(project.table("orders"))
        assert "another program" in texts(parsed(report_of(project, "orders")))
    assert "weekly" in texts(parsed(report_of(project, "weekly")))


def test_a_project_is_a_folder_of_pages(project, tmp_path):
    chained(project)
    project.table("index").write(pa.table({"v": [1]}))
    files = write_project_report(project, tmp_path / "site", options=ReportOptions(with_bytes=False))
    pages = {path.name: parsed(path.read_text("utf-8")) for path in files}
    assert sorted(pages) == ["daily.html", "index.1bc04b52.html", "index.html", "orders.html", "weekly.html"]
    links = {each.get("href") for each in pages["index.html"].iter("a")}
    assert links == pages.keys() - {"index.html"}
    assert all(asks_for(root) == [] for root in pages.values())
    write_project_report(project, tmp_path / "site", options=ReportOptions(with_bytes=False))  # again, over the former
    (tmp_path / "site/notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="holds notes"):
        write_project_report(project, tmp_path / "site")


def test_no_two_tables_share_a_page(project, tmp_path):
    for name in ("a b", "a_b", "Index"):
        project.table(name).write(pa.table({"v": [1]}))
    files = write_project_report(project, tmp_path / "site", options=ReportOptions(with_bytes=False))
    assert len({path.name.lower() for path in files}) == 4


def test_a_list_has_the_sums_of_partitions(project, tmp_path):
    for day in ("mon", "tue"):
        project.table("days").write(pa.table({"v": [1, 2]}), partition=day)
    files = write_project_report(project, tmp_path / "site", options=ReportOptions(with_bytes=False))
    assert "and 1 more partitions" in texts(parsed(files[0].read_text("utf-8")))
    assert [each.text for each in parsed(files[0].read_text("utf-8")).iter("td")][3] == "4"


@pytest.mark.parametrize("hidden", ["\u061c", "\u00ad", "\u180e", "\u3164", "\u115f", "\U000e0041", "\u202e", "\x00"])
def test_what_cannot_be_seen_is_shown(hidden):
    assert f"a\\u{{{ord(hidden):x}}}b" in page(f"a{hidden}b", "", "")


def test_a_picture_has_the_versions_that_are_nearest(project):
    parents = []
    for number in range(SHOWN + 20):
        project.table(f"t{number}").write(pa.table({"n": [number]}), parents=parents)
        parents = project.table(f"t{number}").upstream()
    found = trace(project, f"t{SHOWN + 19}")
    picture = html5lib.parseFragment(lineage_picture(found), namespaceHTMLElements=False)
    assert boxes(picture) == SHOWN
    assert "20 versions more" in texts(parsed(report_of(project, f"t{SHOWN + 19}")))


def test_a_page_says_only_what_its_style_sheet_is(project):
    chained(project, 1)
    root = parsed(report_of(project, "weekly"))
    policy = next(each.get("content") for each in root.iter("meta") if each.get("http-equiv"))
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


@given(st.text(st.characters(codec=None), max_size=40))
def test_any_text_is_a_text(text):
    root = parsed(page(text, "p { color: red; }", element("p", text, title=text), element("code", text)))
    shown = next(root.iter("p"))
    assert list(shown) == []
    assert shown.get("title") == shown.text or not text


def test_the_command_writes_a_page_and_a_folder(project, tmp_path):
    chained(project)
    at = ("--location", project.store.uri, "report")
    ended = in_process(*at, "weekly", "@1", "-o", tmp_path / "weekly.html")
    assert ended.exit_code == 0, ended.output
    assert "@1" in texts(parsed((tmp_path / "weekly.html").read_text("utf-8")))
    assert in_process(*at, "-o", tmp_path / "site").exit_code == 0
    assert (tmp_path / "site/index.html").exists()
    refused = in_process(*at, "weekly", "-o", tmp_path / "nowhere/weekly.html")
    assert (refused.exit_code, "cannot be written" in refused.stderr) == (2, True)


def test_a_project_that_goes_on_meanwhile_is_told_all_the_same(project, tmp_path):
    chained(project)

    def write_more(done, total):
        project.table("orders").write(pa.table({"id": [done]}), code_version="1")

    options = ReportOptions(with_bytes=False)
    assert len(write_project_report(project, tmp_path / "site", options=options, progress=write_more)) == 4
