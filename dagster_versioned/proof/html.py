"""HTML from Python values: what is in them is shown, and none of it is obeyed.

A page asks for nothing from anywhere, and runs nothing: its Content-Security-Policy allows its own style sheet alone.
"""

import base64
import hashlib
import html
import unicodedata
from collections.abc import Iterable, Mapping

_FILLERS = frozenset("\u115f\u1160\u3164\uffa0")
_VOID = frozenset({"meta", "br"})


class Html(str):
    """Markup, which is not escaped again."""

    __slots__ = ()


Content = str | int | None | Iterable["Content"]
"""What is within an element: markup as it is, texts escaped, ``None`` nothing."""


def element(tag: str, /, *content: Content, **attributes: str | float | None) -> Html:
    """An element; ``class_`` is its class, other underlines in names of attributes are hyphens."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_text(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    end = "" if tag in _VOID else f"{''.join(_markup(content))}</{tag}>"
    return Html(f"<{tag}{given}>{end}")


def page(title: str, style: str, *body: Content) -> str:
    """A whole document with one style sheet."""
    sha = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{sha}'; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(style)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, element('body', *body), lang='en')}\n"


def table(headings: Iterable[Content], rows: Iterable[Iterable[Content]], *, numbers: Iterable[int] = ()) -> Html:
    """A table; the columns of ``numbers`` are aligned to the right."""
    right = frozenset(numbers)

    def cells(name: str, values: Iterable[Content]) -> list[Html]:
        return [element(name, value, class_="number" if n in right else None) for n, value in enumerate(values)]

    head = element("thead", element("tr", *cells("th", headings)))
    body = element("tbody", *[element("tr", *cells("td", row)) for row in rows])
    return element("div", element("table", head, body), class_="wide")


def fields(values: Mapping[str, Content]) -> Html:
    """Names and their values, without those that are ``None`` or empty."""
    shown = [(name, value) for name, value in values.items() if value not in (None, "", ())]
    return element("dl", *[element("div", element("dt", name), element("dd", value)) for name, value in shown])


def _markup(content: Content) -> Iterable[str]:
    match content:
        case None:
            return
        case Html():
            yield content
        case str() | int():
            yield _text(str(content))
        case _:
            for each in content:
                yield from _markup(each)


def _text(text: str) -> str:
    is_plain = text.isprintable() and not _FILLERS & set(text)
    shown = text if is_plain else "".join(f"\\u{{{ord(each):x}}}" if _is_hidden(each) else each for each in text)
    return html.escape(shown)


def _is_hidden(character: str) -> bool:
    """What ends a page early, or hides or turns around what follows, so that a name looks like another."""
    if character in "\n\t ":
        return False
    return unicodedata.category(character) in {"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"} or character in _FILLERS


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, int) else f"{value:.1f}"
