"""Which remotes git may be given, and that what git would execute is none."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.errors import InvalidInput
from dagster_versioned.governance.git_remote import ROOTS_VARIABLE, remote_url, without_credentials


@pytest.mark.parametrize(
    ("text", "protocols"),
    [
        ("https://github.com/acme/registry.git", "https:ssh"),
        ("https://git.example.org:8443/registry", "https:ssh"),
        ("https://[2001:db8::1]/registry", "https:ssh"),
        ("http://localhost:8080/registry.git", "http:https"),
        ("http://127.0.0.1:8080/registry.git", "http:https"),
        ("http://[::1]:8080/registry.git", "http:https"),
        ("ssh://git@github.com/acme/registry.git", "ssh:https"),
        ("ssh://git.example.org:2222/~ada/registry", "ssh:https"),
        ("git@github.com:acme/registry.git", "ssh:https"),
        ("github.com:acme/registry.git", "ssh:https"),
        ("git@[::1]:registry.git", "ssh:https"),
    ],
)
def test_a_remote_elsewhere(text: str, protocols: str):
    url = remote_url(text)
    assert (str(url), url.protocols, url.local) == (text, protocols, None)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/data/registry.git", "/data/registry.git"),
        ("/data/with space/a:b::c", "/data/with space/a:b::c"),
        ("file:///data/with%20space", "/data/with space"),
        ("registry.git", str(Path.cwd() / "registry.git")),
        ("./a:b", str(Path.cwd() / "a:b")),
        ("~/registry.git", str(Path.home() / "registry.git")),
    ],
)
def test_a_remote_in_a_folder(text: str, path: str):
    url = remote_url(text)
    assert (str(url), url.protocols, url.local) == (path, "file", Path(path))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("ext::sh -c touch% /tmp/pwned", "remote helper"),
        ("ext::hunter2", "remote helper"),
        ("fd::7", "remote helper"),
        ("::/data", "remote helper"),
        ("transport::https://host/x", "remote helper"),
        ("--upload-pack=touch /tmp/pwned", "option"),
        ("-u", "option"),
        ("-oProxyCommand=hunter2:x", "option"),
        ("ssh://-oProxyCommand=hunter2/x", "ssh://"),
        ("ssh://a@-oProxyCommand=hunter2/x", "ssh://"),
        ("-oProxyCommand=hunter2@host:x", "option"),
        ("git@-oProxyCommand=hunter2:x", r"\[user@\]host:path"),
        ("host:-x", r"\[user@\]host:path"),
        ("ssh://user:hunter2@host/x", "ssh://"),
        ("user:hunter2@host:x", "host:path"),
        ("ssh://host/x y", "ssh://"),
        ("ssh://host/x\n", "ssh://"),
        ("ssh://host", "ssh://"),
        ("host:x?hunter2", "host:path"),
        ("https://user:hunter2@github.com/x", "user or a password"),
        ("https://hunter2@github.com/x", "user or a password"),
        ("https://github.com@hunter2/x", "user or a password"),
        ("https://github.com/x?token=hunter2", "query"),
        ("https://github.com/x#hunter2", "query or a fragment"),
        ("https://github.com/x?", "query"),
        ("https://github.com", "of the form https"),
        ("https:///x", "of the form https"),
        ("https://[::1/x", "of the form https"),
        ("https://host/x y", "of the form https"),
        ("https://host\\x/y", "of the form https"),
        ("https://-host/x", "of the form https"),
        ("http://github.com/x", "plain http"),
        ("http://localhost.evil.example/x", "plain http"),
        ("http://127.0.0.1@evil.example/x", "user or a password"),
        ("git://github.com/x", "scheme other"),
        ("HTTPS://github.com/x", "scheme other"),
        ("ext://sh", "scheme other"),
        ("hunter2://x", "scheme other"),
        ("file://host/x", "absolute path"),
        ("file://x", "absolute path"),
        ("file:///data/../etc", "'..'"),
        ("file:///data/%2e%2e/etc", "'..'"),
        ("file:///data/a%0ab", "control character"),
        ("../registry", "'..'"),
        ("/data/\0", "control character"),
        ("/data/\nx", "control character"),
    ],
)
def test_what_git_would_execute_or_what_holds_a_secret_is_refused_and_not_repeated(text: str, reason: str):
    with pytest.raises(InvalidInput, match=re.escape(reason) if "\\" not in reason else reason) as refused:
        remote_url(text)
    assert "Nothing was run" in str(refused.value)
    seen = f"{refused.value!r}{refused.value.__cause__!r}{refused.value.__context__!r}"
    assert "hunter2" not in seen
    assert str(refused.value).isprintable()


@given(st.text(max_size=40) | st.text(alphabet="-:/@.ehtpsxfil[]~?# \\%", max_size=20))
def test_any_text_is_a_remote_without_a_secret_or_refused(text: str):
    try:
        url = remote_url(text, roots=None)
    except InvalidInput as error:
        assert str(error).isprintable()  # noqa: PT017 - it may be accepted as well
        return
    assert not str(url).startswith("-")
    assert url.local is not None or not re.match(r"[A-Za-z0-9+.-]*::", str(url))
    assert url.local is None or (url.local.is_absolute() and ".." not in url.local.parts)
    assert url.local is not None or "@" not in str(url) or url.protocols == "ssh:https"
    assert remote_url(str(url)) == url


def test_folders_are_confined_to_the_allowed_ones_links_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    allowed, outside = tmp_path / "allowed", tmp_path / "outside"
    for folder in (allowed, outside):
        folder.mkdir()
    (allowed / "link").symlink_to(outside)
    (tmp_path / "way-in").symlink_to(allowed)
    monkeypatch.setenv(ROOTS_VARIABLE, f"/nowhere{os.pathsep}{allowed}")
    for inside in (allowed / "a.git", tmp_path / "way-in/a.git"):
        assert remote_url(str(inside)).local == inside
        assert remote_url(f"file://{inside}").local == inside
    for refused in (outside / "a.git", allowed / "link/a.git", tmp_path / "allowed-not/a.git", Path("/")):
        with pytest.raises(InvalidInput, match=ROOTS_VARIABLE):
            remote_url(f"file://{refused}")
    monkeypatch.setenv(ROOTS_VARIABLE, "")
    with pytest.raises(InvalidInput, match=ROOTS_VARIABLE):
        remote_url(str(allowed / "a.git"))
    assert remote_url("https://host/x").local is None


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "fatal: unable to access 'https://ada:hunter2@host/x/': no",
            "fatal: unable to access 'https://…@host/x/': no",
        ),
        ("unable to access 'https://ada:hunter@2@host/x@1/'", "unable to access 'https://…@host/x@1/'"),
        ("https://hunter2@host and ssh://a:hunter2@b/c", "https://…@host and ssh://…@b/c"),
        ("no\r\nsecret\x1b[2J here\n", "no secret [2J here"),
        ("https://host/ada@example.org", "https://host/ada@example.org"),
    ],
)
def test_what_git_says_is_shown_without_credentials_or_escapes(said: str, shown: str):
    assert without_credentials(said) == shown
