"""Pictures of graphs: what they show, and that no name in them is obeyed."""

import re

import pytest
from features.test_graph import example, graphs
from features.test_snapshots import everything
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.features.definitions import Feature, FeatureDep, Field
from dagster_versioned.features.graph import FeatureGraph
from dagster_versioned.features.rendering import draw, draw_diff, render

GRAPH = """\
project version 441cc681, features: 4
├── example/video c2ac395f  by video_id
│   ├── audio 22742381  code 1
│   └── frames 794116a9  code 1
├── example/crop 34d75856  by video_id
│   ├── from example/video
│   ├── audio 4c726c4b  code 1; from example/video.audio
│   └── frames 2419e09d  code 1; from example/video.frames
├── example/stt d953dea4  by video_id
│   ├── from example/video
│   └── transcription 3ec3826d  code 1; from example/video.audio
└── example/face_detection f1526ee0  by video_id
    ├── from example/crop
    └── faces 006efeef  code 1; from example/crop.frames
"""

DIFF = """\
project version 441cc681 -> cdd1405e, features changed: 3, unchanged: 1
├── example/video c2ac395f -> 2faffb98  changed
│   └── audio 22742381 -> 09c8398b  code 1 -> 2
├── example/crop 34d75856 -> fe237dc9  changed
│   └── audio 4c726c4b -> e2b6ce39  with example/video.audio
└── example/stt d953dea4 -> e57e7555  changed
    └── transcription 3ec3826d -> 9f7ea40c  with example/video.audio
"""

MERMAID = """\
flowchart LR
  n0["<b>example/video c2ac395f -#62; 2faffb98</b><br/>audio 22742381 -#62; 09c8398b"]:::changed
  n1["<b>example/crop 34d75856 -#62; fe237dc9</b><br/>audio 4c726c4b -#62; e2b6ce39"]:::changed
  n2["<b>example/stt d953dea4 -#62; e57e7555</b><br/>transcription 3ec3826d -#62; 9f7ea40c"]:::changed
  n3["<b>example/face_detection f1526ee0</b>"]
  n0 --> n1
  n0 --> n2
  n1 --> n3
  classDef changed fill:#fdf0c4,stroke:#9a6700,color:#000
"""


def test_a_graph_as_text():
    assert render(draw(example()), "text") == GRAPH


def test_what_of_a_dependency_is_not_as_by_default_is_said():
    text = render(draw(FeatureGraph(everything())), "text")
    assert "from a/root  optional; aggregation; on key; where r > 1 AND r <> 'ä\"'; p as r; id as key; only r\n" in text
    assert "x 8129cb15  of p, q\n" in text


def test_a_comparison_as_text():
    assert render(draw_diff(example(), example("2")), "text") == DIFF


def test_a_comparison_of_equals_as_text():
    assert render(draw_diff(example(), example()), "text") == (
        "project version 441cc681, features changed: 0, unchanged: 4\n"
    )


def test_a_comparison_for_mermaid():
    assert render(draw_diff(example(), example("2")), "mermaid", "LR") == MERMAID


def two(upstream, **options):
    root = Feature("r", ["id"], ["a"])
    return FeatureGraph(
        [root, Feature("s", ["id"], ["a"]), Feature("f", ["id"], ["a"], [FeatureDep(upstream, **options)])]
    )


def test_what_comes_and_goes_is_told_apart():
    before, after = two("r"), two("s", filter="n > 1", optional=True)
    text = render(draw_diff(before, after), "text")
    for line in (
        "deps.r  removed",
        "deps.s  added",
        "deps.s.filter n > 1  added",
        "deps.s.optional  added",
        "now from s.a; no more from r.a",
    ):
        assert f"{line}\n" in text
    mermaid = render(draw_diff(before, after), "mermaid")
    assert mermaid.count("stroke:#1a7f37") == mermaid.count("stroke:#c62828") == 1
    assert re.findall(r"n\d -.*", mermaid) == ["n0 -.-> n2", "n1 --> n2"]


HOSTILE = [
    '"]; click n0 "javascript:alert(1)"',
    "<script>alert(1)</script>",
    "a\nb",
    "\x1b[31mred\x1b[0m",
    "\u202eevil",
    "[bold]markup[/bold]",
    "\\N\\G\\l",
    "&lt;&#35;#quot;",
    "%%{init: {'theme': 'dark'}}%%",
    "`**x**`",
    "end",
]


def hostile(text):
    root = Feature("r", [text], [Field("a", text.replace("|", ""), columns=[text])])
    return FeatureGraph([root, Feature("f", [text], ["a"], [FeatureDep("r", {text: f"{text}2"}, filter=text)])])


@pytest.mark.parametrize("text", HOSTILE)
def test_names_are_shown_and_not_obeyed(text):
    empty = FeatureGraph([Feature("r", ["id"], ["a"]), Feature("f", ["id"], ["a"], ["r"])])
    for drawing in (draw(hostile(text)), draw_diff(empty, hostile(text))):
        shown = render(drawing, "text")
        assert all(line.isprintable() for line in shown.splitlines())
        assert "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text) in shown
        mermaid = render(drawing, "mermaid")
        assert len(mermaid.splitlines()) == 1 + 2 + 1 + ("classDef" in mermaid)
        for label in re.findall(r'\["(.*)"\]', mermaid):
            assert re.fullmatch(r"(?:[\w -./:,()]|#\d+;|</?b>|<br/>)*", label)


@given(graphs(), graphs(), st.sampled_from(["text", "mermaid"]))
def test_every_graph_has_a_picture_with_all_its_features(before, after, how):
    text = render(draw_diff(FeatureGraph(before), FeatureGraph(after)), how)
    if how != "text":
        assert all(f"{feature.key} " in text for feature in (*before, *after))
    assert all(f"{feature.key} " in render(draw(FeatureGraph(after)), how) for feature in after)
