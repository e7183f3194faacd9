"""Reader cases as datom's own suite has them, over stores that this package wrote: a call, and what any reader gives.

``python -m support.datom_cases FOLDER`` (with ``tests`` on the path) writes them as its runner reads them: a folder for
each, with ``case.json`` and ``storage.zip``. Names that its rules ask for are used here for the same. What is expected
is computed from the frames and the log, never from datom's documents.
"""

import argparse
import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.compute as pc

from dagster_versioned.governance.enroll import enroll
from dagster_versioned.governance.mirror import GovernanceStore
from dagster_versioned.governance.registry import Registry
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore, Location, ObjectStore
from dagster_versioned.tables.documents.manifest import MANIFEST_KEY
from dagster_versioned.tables.history import Version
from dagster_versioned.tables.options import TableOptions
from support.frames import ALL_TYPES, numbered
from support.governed import Opener
from support.s3_server import S3Server

PROJECT = "STUDY_001"
LAB = "Lab results (v2)"
HIDDEN = ("parted", "many", "vectors", "empty", "dropped")
FRAMES = [numbered(rows) for rows in (5, 6, 7)]
KINDS = pa.table(
    {
        "i64": pa.array([9007199254740993, None, 1]),
        "int": pa.array([1, None, 3], pa.int32()),
        "lgl": pa.array([True, None, False]),
    }
)

TYPES = pa.table(
    {
        name: pc.if_else(pc.is_nan(column), None, column) if pa.types.is_floating(column.type) else column
        for name, column in zip(ALL_TYPES.column_names, ALL_TYPES.columns, strict=True)
    }
)
"""Every stored type; without NaN, which datom's runner takes for a difference."""

METADATA, HISTORY = "metadata", "version_history"

CURRENT, BY_VERSION = "a table, its current version", "a table, a version by its SHA or a prefix of it"
UNKNOWN, BYTES = "names, tables and versions that are not there", "bytes that are not those recorded, or gone"
CHANGED, HISTORIES, LISTS = "documents that somebody changed", "history", "list and manifest"
GOVERNED, SETS = "governance marker", "sets and their members, refused"


@dataclass(frozen=True)
class Study:
    """A project of ours, and what the log has of each table's versions, oldest first."""

    project: Project
    versions: Mapping[str, list[Version]]

    def sha(self, table: str, at: int) -> str:
        """The ``metadata_sha`` of a version."""
        sha = self.versions[table][at].metadata_sha
        assert sha is not None
        return sha

    def shas(self, table: str) -> list[str]:
        """All of them."""
        return [self.sha(table, at) for at in range(len(self.versions[table]))]


@dataclass(frozen=True)
class Place:
    """Where a store is, and who opens it: on this machine, or on a server of S3."""

    location: Location
    server: S3Server | None = None

    def opener(self) -> Opener:
        """What opens a store of ours there."""
        return Opener({} if self.server is None else {self.server.endpoint_url: self.server})

    def store(self, credentials: Callable[[], Mapping[str, Any]] | None = None) -> Any:
        """datom's store of the place; on S3 with what ``credentials`` gives, which are the server's keys without it."""
        import datom

        if self.server is None:
            return datom.store_local(self.location.root, self.location.prefix or None)
        keys = {"access_key": self.server.access_key, "secret_key": self.server.secret_key}
        store = datom.store_s3(
            self.location.root, self.location.prefix or None, credentials=credentials or (lambda: keys)
        )
        return sent_to(self.server, store)


def sent_to(server: S3Server, store: Any) -> Any:
    """A store of datom's whose requests, signed for AWS as they are, go to a server: it takes no other endpoint."""

    def redirect(request: Any, **_: Any) -> None:
        parts = urlsplit(request.url)
        request.headers["Host"] = parts.netloc
        request.url = urlunsplit(("http", urlsplit(server.endpoint_url).netloc, parts.path, parts.query, ""))

    store._get_client().meta.events.register("before-send.s3", redirect)
    return store


Asked = Callable[[Study], str | None]
"""The version that a call asks for."""


@dataclass(frozen=True)
class Case:
    """A call of datom's runner, and what is to come of it; ``frame`` are the rows of a read."""

    group: str
    call: Callable[[Study], dict[str, Any]]
    expect: Callable[[Study], dict[str, Any]]
    frame: pa.Table | None = None
    store: str = "study"
    shows: tuple[str, ...] | None = field(default=None)
    """The tables whose folders the call touches; ``None``: those of the call's name alone."""


def build(store: str, place: Place) -> Study:
    """Write the store of a name at an empty place."""
    project = Project(PROJECT, place.opener()(place.location), author="Ada <ada@example.org>")
    versions = STORES[store](project, place)
    return Study(project, versions)


def _study(project: Project, place: Place) -> dict[str, list[Version]]:
    dm = project.table("dm")
    for at, frame in enumerate(FRAMES):
        dm.write(frame, message=f"take {at}", options=TableOptions(custom={"study": "001"}))
    dm.revert(1)
    project.table(LAB).write(TYPES, parents=dm.upstream())
    project.table("kinds").write(KINDS)
    twice = project.table("twice")
    for code_version in ("1", "2"):
        twice.write(FRAMES[0], code_version=code_version)
    project.table("empty").write(FRAMES[0].slice(0, 0), options=TableOptions(allow_empty=True))
    for number in range(17):  # of 17 versions, two begin with the same digit
        project.table("often").write(pa.table({"n": [number]}))
    for name in ("tampered", "lost", "expired", *EDITED):
        for frame in FRAMES[:2]:
            project.table(name).write(frame)
    project.table("expired").expire(keep_last=1, dry_run=False)
    project.table("parted").write(FRAMES[0], partition="2013-01")
    project.table("many").write(numbered(900), options=TableOptions(target_part_bytes=1, row_group_bytes=4_000))
    vectors = TableOptions(mode="merge", merge_key=("n",), properties={"delta.enableDeletionVectors": "true"})
    for start in (0, 3):
        project.table("vectors").write(numbered(6, start), options=vectors)
    project.table("dropped").write(FRAMES[0])
    project.table("dropped").drop(dry_run=False)
    versions = _versions(project)
    _spoil(project.table("tampered").store, versions["tampered"][-1], lambda data: data[:-9] + b"x" + data[-8:])
    _spoil(project.table("lost").store, versions["lost"][-1], None)
    for name, (document, change, *_) in EDITED.items():
        _edit(project.table(name).store, f".metadata/{document}.json", change)
    return versions


def _governed(project: Project, place: Place) -> dict[str, list[Version]]:
    project.table("dm").write(FRAMES[1])
    with tempfile.TemporaryDirectory() as folder:
        registry = Registry.init(f"{folder}/registry.git", Path(folder, "clone"))
        mirror = GovernanceStore(LocalStore(Path(folder, "governance")))
        enroll(registry, mirror, PROJECT, place.location, "attached", actor="A <a@b.org>", open_store=place.opener())
    return _versions(project)


def _hidden_alone(project: Project, place: Place) -> dict[str, list[Version]]:
    project.table("parted").write(FRAMES[0], partition="2013-01")
    return _versions(project)


def _plain(project: Project, place: Place) -> dict[str, list[Version]]:
    for name in ("dm", "lb"):
        for frame in FRAMES[:2]:
            project.table(name).write(frame)
    return _versions(project)


def _tampered(project: Project, place: Place) -> dict[str, list[Version]]:
    versions = _plain(project, place)
    _spoil(project.table("dm").store, versions["dm"][-1], lambda data: data[:-9] + b"x" + data[-8:])
    return versions


def _with_manifest(change: Callable[[Any], Any], project: Project, place: Place) -> dict[str, list[Version]]:
    versions = _plain(project, place)
    _edit(project.data, MANIFEST_KEY, change)
    return versions


def _versions(project: Project) -> dict[str, list[Version]]:
    """What the log has; what is put now and then is as new as the log from here on."""
    found: dict[str, list[Version]] = {}
    for name in map(str, project.tables()):
        table = project.table(name)
        table.repair()
        found[name] = [one for one in reversed(table.history()) if one.metadata_sha is not None]
    return found


def _spoil(store: ObjectStore, version: Version, change: Callable[[bytes], bytes] | None) -> None:
    key = f"{version.data_sha}.parquet"
    data = store.get(key)
    store.delete([key])
    if change is not None:
        store.put(key, change(data))


def _edit(store: ObjectStore, key: str, change: Callable[[Any], Any]) -> None:
    """Put a document that somebody changed; bytes as they are, ``None``: none."""
    changed = change(json.loads(store.get(key)))
    store.delete([key])
    if changed is not None:
        store.put(key, changed if isinstance(changed, bytes) else json.dumps(changed).encode())


EDITED: dict[str, tuple[str, Callable[[Any], Any], str, Asked]] = {
    "newer": (METADATA, lambda found: found | {"schema_version": 3}, "schema_unsupported", lambda study: None),
    "odd": (METADATA, lambda found: found | {"schema_version": "2"}, "schema_invalid", lambda study: None),
    "of-no-data": (METADATA, lambda found: found | {"data_sha": None}, "metadata_corrupt", lambda study: None),
    "outside": (METADATA, lambda found: found | {"data_sha": "../dm"}, "invalid_address", lambda study: None),
    "of-a-set": (METADATA, lambda found: found | {"kind": "set"}, "kind_mismatch", lambda study: None),
    "torn": (METADATA, lambda found: b"{", "document_unreadable", lambda study: None),
    "without-metadata": (METADATA, lambda found: None, "not_found", lambda study: None),
    "without-history": (HISTORY, lambda found: None, "not_found", lambda study: None),
    "of-no-version": (HISTORY, lambda found: [], "version_not_found", lambda study: study.sha("of-no-version", 0)),
    "of-another-hash": (
        HISTORY,
        lambda found: [entry | {"parquet_sha": "0" * 64} for entry in found],
        "integrity_mismatch",
        lambda study: study.sha("of-another-hash", 0),
    ),
}
"""Tables with a document that somebody changed: which, how, the refusal, and of which version."""

STORES: dict[str, Callable[[Project, Place], dict[str, list[Version]]]] = {
    "study": _study,
    "governed": _governed,
    "hidden-alone": _hidden_alone,
    "plain": _plain,
    "tampered": _tampered,
    "manifest-newer": partial(_with_manifest, lambda found: found | {"schema_version": 3}),
    "manifest-older": partial(
        _with_manifest, lambda found: {key: found[key] for key in ("project_name", "tables", "updated_at", "summary")}
    ),
    "manifest-without-list": partial(
        _with_manifest, lambda found: {key: value for key, value in found.items() if key != "artifacts"}
    ),
    "manifest-torn": partial(_with_manifest, lambda found: b"{"),
    "manifest-gone": partial(_with_manifest, lambda found: None),
}


def current(study: Study) -> str | None:
    """No version is asked for."""
    return None


def _call(op: str, **given: Any) -> Callable[[Study], dict[str, Any]]:
    def call(study: Study) -> dict[str, Any]:
        return {"op": op, **{key: value(study) if callable(value) else value for key, value in given.items()}}

    return call


def _reads(group: str, table: str, asked: Asked, at: int, frame: pa.Table, **more: Any) -> Case:
    """A read of a table gives the rows of a frame, as the version of a place in its history."""
    warned: tuple[str, ...] = more.pop("warnings", ())

    def expect(study: Study) -> dict[str, Any]:
        return {
            "ok": True,
            "version": study.sha(table, at),
            "data_sha": study.versions[table][at].data_sha,
            "nrow": frame.num_rows,
            "ncol": frame.num_columns,
            "colnames": frame.column_names,
            "arrow_types": [_type_name(column.name, column.type) for column in frame.schema],
            **({"warnings": list(warned)} if warned else {}),
        }

    return Case(group, _call("read_table", name=table, version=asked), expect, frame, **more)


def _refused(group: str, code: str, op: str, *, shows: tuple[str, ...] | None = None, **given: Any) -> Case:
    store = given.pop("store", "study")
    return Case(group, _call(op, **given), lambda study: {"ok": False, "error": code}, store=store, shows=shows)


def _history(table: str, n: int) -> Case:
    def expect(study: Study) -> dict[str, Any]:
        newest: dict[str, dict[str, Any]] = {}
        for version in reversed(study.versions[table]):
            assert version.raw is not None
            identity, facts = version.raw["identity"], version.raw["facts"]
            row = {
                "version": version.metadata_sha,
                "data_sha": version.data_sha,
                "timestamp": facts["created_at"],
                "author": "Ada <ada@example.org>",
                "commit_message": identity.get("message"),
                "commit_sha": None,
            }
            if version.gone is None:
                newest.setdefault(str(version.metadata_sha), row)
        return {"ok": True, "rows": list(newest.values())[:n]}

    return Case(HISTORIES, _call("history", name=table, n=n), expect)


def _list(store: str, shows: tuple[str, ...]) -> Case:
    def expect(study: Study) -> dict[str, Any]:
        rows = []
        for name in shows:
            kept = [one for one in study.versions[name] if one.gone is None]
            assert kept[-1].raw is not None
            rows.append(
                {
                    "name": name,
                    "kind": "table",
                    "current_version": kept[-1].metadata_sha,
                    "current_data_sha": kept[-1].data_sha,
                    "last_updated": kept[-1].raw["facts"]["created_at"],
                    "version_count": len({one.metadata_sha for one in kept}),
                }
            )
        return {"ok": True, "rows": rows}

    return Case(LISTS, _call("list"), expect, store=store, shows=shows)


def shortest(versions: list[str], at: int) -> str:
    """The shortest prefix of a version that no other has."""
    others = versions[:at] + versions[at + 1 :]
    return next(versions[at][:n] for n in range(1, 65) if not any(one.startswith(versions[at][:n]) for one in others))


def shared_digit(versions: list[str]) -> str:
    """A digit that several versions begin with."""
    digits = [version[0] for version in versions]
    return next(digit for digit in digits if digits.count(digit) > 1)


def _type_name(name: str, kind: pa.DataType) -> str:
    """As pyarrow prints the type of a column of Parquet: what is in a list is an element, in a map has its name."""
    if pa.types.is_map(kind):
        return f"map<{_type_name('', kind.key_type)}, {_type_name('', kind.item_type)} ('{name}')>"
    if pa.types.is_list(kind):
        return f"list<element: {_type_name('element', kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{one.name}: {_type_name(one.name, one.type)}' for one in kind)}>"
    return str(kind)


VISIBLE = tuple(sorted([LAB, "dm", "expired", "kinds", "lost", "often", "tampered", "twice", *EDITED]))

CASES: dict[str, Case] = {
    "table-current": _reads(CURRENT, "dm", current, 1, FRAMES[1]),
    "table-column-kinds": _reads(CURRENT, "kinds", current, 0, KINDS),
    "table-all-types": _reads(CURRENT, LAB, current, 0, TYPES),
    "table-same-data-current": _reads(CURRENT, "twice", current, 1, FRAMES[0]),
    "table-often": _reads(CURRENT, "often", current, 16, pa.table({"n": [16]})),
    "table-kept-by-an-expiry": _reads(CURRENT, "expired", current, 1, FRAMES[1]),
    "table-full-version": _reads(BY_VERSION, "dm", lambda s: s.sha("dm", 2), 2, FRAMES[2]),
    "table-prefix-of-8": _reads(BY_VERSION, "dm", lambda s: s.sha("dm", 0)[:8], 0, FRAMES[0]),
    "table-shortest-prefix": _reads(BY_VERSION, "dm", lambda s: shortest(s.shas("dm")[:3], 0), 0, FRAMES[0]),
    "table-repeated-by-a-revert": _reads(BY_VERSION, "dm", lambda s: s.sha("dm", 1), 1, FRAMES[1]),
    "table-derived": _reads(BY_VERSION, LAB, lambda s: s.sha(LAB, 0), 0, TYPES),
    "table-same-data-second": _reads(BY_VERSION, "twice", lambda s: s.sha("twice", 1), 1, FRAMES[0]),
    "table-same-data-first": _reads(BY_VERSION, "twice", lambda s: s.sha("twice", 0), 0, FRAMES[0]),
    "table-one-of-many": _reads(BY_VERSION, "often", lambda s: s.sha("often", 3), 3, pa.table({"n": [3]})),
    "table-beside-tampered": _reads(BY_VERSION, "tampered", lambda s: s.sha("tampered", 0), 0, FRAMES[0]),
    "table-beside-lost": _reads(BY_VERSION, "lost", lambda s: s.sha("lost", 0), 0, FRAMES[0]),
    "governance-marker": _reads(
        GOVERNED, "dm", current, 0, FRAMES[1], store="governed", warnings=("governance_attached",)
    ),
    "refuse-no-such-table": _refused(UNKNOWN, "not_found", "read_table", name="nothing", version=None),
    **{
        f"refuse-{name}-current": _refused(UNKNOWN, "not_found", "read_table", name=name, version=None)
        for name in HIDDEN
    },
    **{
        f"refuse-{name}-version": _refused(
            UNKNOWN, "not_found", "read_table", name=name, version=lambda study, name=name: study.sha(name, 0)
        )
        for name in HIDDEN
    },
    "refuse-no-such-version": _refused(UNKNOWN, "version_not_found", "read_table", name="dm", version="f" * 64),
    "refuse-gone-version": _refused(
        UNKNOWN, "version_not_found", "read_table", name="expired", version=lambda study: study.sha("expired", 0)
    ),
    "refuse-ambiguous-version": _refused(
        UNKNOWN, "version_ambiguous", "read_table", name="often", version=lambda s: shared_digit(s.shas("often"))
    ),
    "refuse-empty-version": _refused(UNKNOWN, "invalid_argument", "read_table", name="dm", version=""),
    **{
        f"refuse-name-{at}": _refused(UNKNOWN, "invalid_name", "read_table", name=name, version=None)
        for at, name in enumerate(("../dm", ".metadata", "Datom", "1dm"))
    },
    "refuse-table-integrity": _refused(
        BYTES, "integrity_mismatch", "read_table", name="dm", version=None, store="tampered"
    ),
    "refuse-tampered-version": _refused(
        BYTES, "integrity_mismatch", "read_table", name="tampered", version=lambda s: s.sha("tampered", 1)
    ),
    "refuse-lost": _refused(BYTES, "not_found", "read_table", name="lost", version=None),
    **{
        f"refuse-document-{name}": _refused(CHANGED, code, "read_table", name=name, version=asked)
        for name, (_, _, code, asked) in EDITED.items()
    },
    "history-table": _history("dm", 10),
    "history-two": _history("dm", 2),
    "history-name-with-spaces": _history(LAB, 10),
    "history-same-data": _history("twice", 10),
    "history-often": _history("often", 10),
    "history-after-an-expiry": _history("expired", 10),
    **{f"refuse-history-{name}": _refused(HISTORIES, "not_found", "history", name=name, n=10) for name in HIDDEN},
    "refuse-history-nothing": _refused(HISTORIES, "not_found", "history", name="nothing", n=10),
    "refuse-history-none": _refused(HISTORIES, "invalid_argument", "history", name="dm", n=0),
    "list": _list("plain", ("dm", "lb")),
    "list-of-all": _list("study", VISIBLE),
    "list-of-hidden-alone": _list("hidden-alone", ()),
    "list-of-an-older-manifest": _list("manifest-older", ("dm", "lb")),
    **{
        f"refuse-list-{store}": _refused(LISTS, code, "list", store=store, shows=())
        for store, code in {
            "manifest-newer": "schema_unsupported",
            "manifest-without-list": "manifest_unreadable",
            "manifest-torn": "manifest_unreadable",
            "manifest-gone": "manifest_unreadable",
        }.items()
    },
    "refuse-table-read-as-set": _refused(SETS, "kind_mismatch", "read_set", name="dm", version=None),
    **{f"refuse-set-{name}": _refused(SETS, "not_found", "read_set", name=name, version=None) for name in HIDDEN},
    "refuse-set-nothing": _refused(SETS, "not_found", "read_set", name="nothing", version=None),
    "refuse-member-of-a-table": _refused(
        SETS, "kind_mismatch", "fetch_member", set="dm", set_version=None, member="dm", tags=None, version=None
    ),
}


def write_cases(folder: Path) -> None:
    """Write every case below a new folder, as datom's runner reads them."""
    with tempfile.TemporaryDirectory() as stores:
        built: dict[str, Study] = {}
        for name, case in CASES.items():
            root = Path(stores, case.store)
            if case.store not in built:
                built[case.store] = build(case.store, Place(Location.parse(str(root))))
            study = built[case.store]
            call = case.call(study)
            (folder / name).mkdir(parents=True)
            document = {"call": call, "expect": case.expect(study)}
            (folder / name / "case.json").write_text(json.dumps(document, indent=2), "utf-8")
            shown = case.shows if case.shows is not None else (str(call.get("name", call.get("set"))),)
            with zipfile.ZipFile(folder / name / "storage.zip", "w") as archive:
                for path in sorted(root.rglob("*")):
                    inside = path.relative_to(root)
                    if path.is_file() and inside.parts[0] == "datom" and inside.parts[1] in (".metadata", *shown):
                        archive.write(path, inside)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=write_cases.__doc__)
    parser.add_argument("folder", type=Path)
    write_cases(parser.parse_args().folder)
