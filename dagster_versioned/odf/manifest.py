"""Datasets and their events as YAML that people write and read. Source: seed 002 ("Metadata Format", "Manifest").

Names are in camelCase, a variant of a union is named by its ``kind``, hashes are multibase, times RFC 3339. Only what
JSON could say is read: no anchors, tags or bare dates. What is wrong is reported all at once, each with its path, its
line, its value and what was expected.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Final, cast, get_args, get_origin

import yaml

from dagster_versioned.errors import InvalidInput
from dagster_versioned.odf.blocks.data_schema import ExtraAttributes
from dagster_versioned.odf.blocks.events import DatasetKind, MetadataEvent, Timestamp
from dagster_versioned.odf.blocks.marks import Variants, Width, hints_of
from dagster_versioned.odf.identity.dataset_id import DatasetId
from dagster_versioned.odf.identity.dataset_ref import DatasetAlias, parse_ref
from dagster_versioned.odf.identity.multihash import Multihash, from_multibase, to_multibase

MANIFEST_VERSION: Final = 1
_MAX_SIZE: Final = 16 * 2**20
_SHOWN: Final = 20
_MAX_DEPTH: Final = 50
_PLAIN: Final = re.compile("[\\n\\x20-\\x7e\\xa0-\\u2027\\u202a-\\ud7ff]*")
_UNIONS: Final = (
    "FetchStep",
    "EventTimeSource",
    "SourceCaching",
    "PrepStep",
    "ReadStep",
    "MergeStrategy",
    "Transform",
    "Attachments",
    "DataType",
)
"""What the names of variants begin with, and their kinds do not."""


@dataclass(frozen=True, slots=True)
class DatasetSnapshot:
    """A dataset as somebody wants it: its name, its kind, and the events that its chain is to begin with."""

    name: str
    kind: DatasetKind
    metadata: tuple[MetadataEvent, ...]

    @property
    def alias(self) -> DatasetAlias:
        """The name. Raises `InvalidInput` where it is none."""
        reference = parse_ref(self.name)
        if not isinstance(reference, DatasetAlias):
            raise InvalidInput(
                f"{self.name!r} is an identity, and a dataset is named by an alias. Nothing was changed."
            )
        return reference


def read_snapshot(text: str, source: str = "the manifest") -> DatasetSnapshot:
    """The dataset that a YAML manifest describes. Raises `InvalidInput` with all that is wrong, by path and line."""
    document = _Document(text, source)
    content = document.content("DatasetSnapshot")
    snapshot = cast("DatasetSnapshot | None", document.read(DatasetSnapshot, content, "content"))
    if snapshot is not None:
        document.attempt(lambda: snapshot.alias, snapshot.name, "content.name", "[account/]name")
    document.finish()
    assert snapshot is not None
    return snapshot


def write_manifest(kind: str, value: object) -> str:
    """A value of the chain in a YAML manifest of that kind."""
    manifest = {"kind": kind, "version": MANIFEST_VERSION, "content": to_document(value)}
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def to_document(value: object) -> Any:
    """A value of the chain as JSON could say it; fields that are ``None`` are left out."""
    if isinstance(value, Timestamp | Multihash | DatasetId):
        return str(value)
    if isinstance(value, tuple):
        return [to_document(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return to_multibase(value)
    if isinstance(value, ExtraAttributes):
        return dict(value.members)
    return _members(value) if is_dataclass(value) else value


def _members(value: object) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, (hint, _) in hints_of(type(value)).items():
        if (part := getattr(value, name)) is not None:
            members[_camel(name)] = _with_kinds(hint, part)
    return members


def _with_kinds(hint: Any, value: object) -> Any:
    """The value as a document; where its type is a union's, with its kind."""
    if get_origin(hint) is tuple:
        return [_with_kinds(get_args(hint)[0], item) for item in cast("tuple[object, ...]", value)]
    if get_origin(hint) is Annotated and get_args(hint)[1] is Variants:
        return {"kind": _kind_of(type(value))} | _members(value)
    return to_document(value)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as people do."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text and " \n" not in text else None
    if not _PLAIN.fullmatch(text):
        style = '"'  # what YAML would take for the end of a line, or not read at all, is escaped
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


class _Loader(yaml.SafeLoader):
    """Reads what JSON could say: texts, numbers, true, false, null, lists and mappings."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - PyYAML's name and form


for _tag, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"-?(?:0|[1-9][0-9]*)", "-0123456789"),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", "-0123456789"),
):
    for _class in (_Loader, _Dumper):  # what would be read as a number is written in quotes
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


class _Document:
    """A manifest that is read, and what is wrong with it."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._lines: dict[str, int] = {}
        self._problems: list[str] = []
        self._root = self._parse(text)

    def _parse(self, text: str) -> Any:
        try:
            if len(text) > _MAX_SIZE:
                raise InvalidInput(f"{self._source} has {len(text)} characters, and a manifest at most {_MAX_SIZE}.")
            node = _compose(text)
            return None if node is None else self._value(node, "")
        except yaml.MarkedYAMLError as error:
            line = f", line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
            raise InvalidInput(f"{self._source}{line} is no YAML: {error.problem}. Nothing was changed.") from None
        except yaml.YAMLError as error:
            raise InvalidInput(f"{self._source} is no YAML: {str(error)[:200]}.") from None

    def _value(self, node: yaml.Node, path: str) -> Any:
        self._lines[path] = node.start_mark.line + 1
        if isinstance(node, yaml.SequenceNode):
            items = cast("list[yaml.Node]", node.value)
            return [self._value(item, f"{path}[{index}]") for index, item in enumerate(items)]
        if not isinstance(node, yaml.MappingNode):
            return _scalar(cast(yaml.ScalarNode, node))
        members: dict[str, Any] = {}
        for key_node, value_node in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
            inner = f"{path}.{key}" if path else key
            if key in members:
                self.wrong(inner, f"is there twice, the second time on line {key_node.start_mark.line + 1}")
            members[key] = self._value(value_node, inner)
            self._lines[inner] = key_node.start_mark.line + 1
        return members

    def wrong(self, path: str, what: str) -> None:
        known = path
        while known not in self._lines and known:
            known = known.rpartition(".")[0]
        self._problems.append(f"{path or 'the document'} (line {self._lines.get(known, 1)}) {what}")

    def finish(self) -> None:
        """Raises `InvalidInput` if something was wrong."""
        if self._problems:
            more = len(self._problems) - _SHOWN
            listed = "".join(f"\n  - {problem}" for problem in self._problems[:_SHOWN])
            raise InvalidInput(
                f"{self._source} cannot be used; nothing was changed:{listed}"
                + (f"\n  and {more} more" if more > 0 else "")
            )

    def content(self, kind: str) -> Any:
        """What the manifest holds, if it is of that kind. Raises `InvalidInput`."""
        root = self._root
        if not isinstance(root, dict):
            self.wrong("", f"is {_shown(root)}; expected a mapping with kind, version and content")
            self.finish()
        members = cast("dict[str, Any]", root)
        self._known_members(members, ("kind", "version", "content"), "")
        if members.get("kind") != kind:
            self.wrong("kind", f"is {_shown(members.get('kind'))}; expected {kind}")
        version = members.get("version")
        if isinstance(version, bool) or version != MANIFEST_VERSION:
            later = ", of a later format than can be read" if isinstance(version, int) and version > 1 else ""
            self.wrong("version", f"is {_shown(version)}{later}; expected {MANIFEST_VERSION}")
        if "content" not in members:
            self.wrong("content", "is missing")
        self.finish()
        return members["content"]

    def read(self, hint: Any, value: Any, path: str) -> Any:
        """The value of a type, or ``None`` where something is wrong with it."""
        origin = get_origin(hint)
        if origin is tuple:
            return self._list(get_args(hint)[0], value, path)
        if origin is Annotated:
            inner, mark = get_args(hint)
            return self._marked(inner, mark, value, path)
        if hint in _SCALARS:
            return value if isinstance(value, hint) else self._refuse(path, value, _SCALARS[hint])
        if hint is ExtraAttributes:
            return self._attributes(value, path)
        if hint in _TEXTS:
            parse, expected = _TEXTS[hint]
            return self.attempt(lambda: parse(_text(value)), value, path, expected)
        if issubclass(hint, Enum):
            return self._enum(hint, value, path)
        return self._table(cast(type, hint), value, path)

    def _refuse(self, path: str, value: Any, expected: str) -> None:
        self.wrong(path, f"is {_shown(value)}; expected {expected}")

    def attempt(self, make: Callable[[], Any], value: Any, path: str, expected: str) -> Any:
        try:
            return make()
        except (InvalidInput, ValueError):
            return self._refuse(path, value, expected)

    def _marked(self, inner: Any, mark: Any, value: Any, path: str) -> Any:
        """The value of a type that an annotation narrows: one of several variants, or an integer of a width."""
        if mark is Variants:
            return self._variant(get_args(inner) or (inner,), value, path)
        return self._integer(cast(Width, mark), value, path)

    def _list(self, hint: Any, value: Any, path: str) -> Any:
        if not isinstance(value, list):
            return self._refuse(path, value, "a list")
        items = cast("list[Any]", value)
        return tuple(self.read(hint, item, f"{path}[{index}]") for index, item in enumerate(items))

    def _attributes(self, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            return self._refuse(path, value, "a mapping of attributes")
        return self._made(lambda: ExtraAttributes.of(cast("dict[str, Any]", value)), path)

    def _made(self, make: Callable[[], Any], path: str) -> Any:
        """What a constructor makes of values that are of its types, or ``None`` where it refuses them."""
        try:
            return make()
        except InvalidInput as error:
            return self.wrong(path, f"cannot be: {str(error).rstrip('.')}")

    def _integer(self, width: Width, value: Any, path: str) -> Any:
        low, high = _RANGES[width]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            return self._refuse(path, value, f"a whole number from {low} to {high}")
        return value

    def _enum(self, enum: type[Enum], value: Any, path: str) -> Any:
        members = {str(member.value).lower(): member for member in enum}
        if not isinstance(value, str) or value.lower() not in members:
            return self._refuse(path, value, _one_of([str(member.value) for member in enum]))
        return members[value.lower()]

    def _variant(self, types: tuple[type, ...], value: Any, path: str) -> Any:
        kinds = {_kind_of(variant).lower(): variant for variant in types}
        expected = _one_of([_kind_of(variant) for variant in types])
        if isinstance(value, str):
            value = {"kind": value}  # the short form of a variant that needs no members
        if not isinstance(value, dict):
            return self._refuse(path, value, f"a mapping with a kind: {expected}")
        members = dict(cast("dict[str, Any]", value))
        if "kind" not in members:
            self.wrong(path, f"has no kind; expected {expected}")
            return None
        kind = members.pop("kind")
        if not isinstance(kind, str) or kind.lower() not in kinds:
            return self._refuse(f"{path}.kind", kind, expected)
        return self._table(kinds[kind.lower()], members, path)

    def _table(self, table: type, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            return self._refuse(path, value, f"a mapping with {', '.join(_names(table)) or 'nothing in it'}")
        members = cast("dict[str, Any]", value)
        if isinstance(members.get("schema"), list) and "ddlSchema" in {*_names(table)} - {*members}:
            # Until 0.37, columns in SQL were the schema.
            members = {("ddlSchema" if name == "schema" else name): part for name, part in members.items()}
        self._known_members(members, _names(table), path)
        values, before = dict[str, Any](), len(self._problems)
        for field in fields(table):
            name, (hint, optional) = _camel(field.name), hints_of(table)[field.name]
            inner = f"{path}.{name}"
            if members.get(name) is not None:
                values[field.name] = self.read(hint, members[name], inner)
            elif not optional:
                self.wrong(inner, "is missing" if name not in members else "is null, and may not be")
            elif field.default is MISSING and field.default_factory is MISSING:
                values[field.name] = None
        return self._made(lambda: table(**values), path) if len(self._problems) == before else None

    def _known_members(self, members: Mapping[str, Any], names: tuple[str, ...], path: str) -> None:
        for name in members:
            if name not in names:
                close = difflib.get_close_matches(name, names, 1)
                hint = f"did you mean {close[0]}?" if close else f"expected {_one_of(names)}"
                self.wrong(f"{path}.{name}" if path else name, f"is not known; {hint}")


def _compose(text: str) -> yaml.Node | None:
    depth = 0
    events = cast("Iterator[yaml.Event]", yaml.parse(text, Loader=_Loader))
    for event in events:
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        if anchor is not None or tag is not None:
            what = "an anchor" if anchor is not None else f"the tag {tag}"
            raise yaml.MarkedYAMLError(None, None, f"{what} is nothing that JSON could say", event.start_mark)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:  # the parser's time grows with its square
            raise yaml.MarkedYAMLError(None, None, f"it nests deeper than {_MAX_DEPTH}", event.start_mark)
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def _scalar(node: yaml.ScalarNode) -> Any:
    text = str(node.value)
    match node.tag.rpartition(":")[2]:
        case "bool":
            return text == "true"
        case "null":
            return None
        case "int" if len(text) < 40:
            return int(text)
        case "float" | "int":
            return float(text)
        case _:
            return text


def _moment(text: str) -> Timestamp:
    """A moment of RFC 3339, to the nanosecond."""
    whole = re.fullmatch(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)", text)
    if whole is None:
        raise ValueError(text)
    zone = "+00:00" if whole[3] in "Zz" else whole[3]
    moment = Timestamp.of(datetime.fromisoformat(whole[1] + zone))
    return Timestamp(moment.year, moment.ordinal, moment.seconds_from_midnight, int((whole[2] or "").ljust(9, "0")))


_SCALARS: Final[dict[Any, str]] = {bool: "true or false", str: "a text"}
_TEXTS: Final[dict[Any, tuple[Callable[[str], Any], str]]] = {
    Multihash: (Multihash.parse, "a multihash in multibase, such as f1620…"),
    DatasetId: (DatasetId.parse, "an identity: did:odf:fed01…"),
    Timestamp: (_moment, "a time of RFC 3339, such as 2024-02-29T12:00:00Z"),
    bytes: (from_multibase, "bytes in multibase, such as f00ff"),
}
_RANGES: Final = {
    Width.UINT64: (0, 2**64 - 1),
    Width.INT64: (-(2**63), 2**63 - 1),
    Width.UINT32: (0, 2**32 - 1),
    Width.INT32: (-(2**31), 2**31 - 1),
    Width.INT16: (-(2**15), 2**15 - 1),
}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def _names(table: type) -> tuple[str, ...]:
    return tuple(_camel(field.name) for field in fields(table))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _kind_of(variant: type) -> str:
    name = variant.__name__
    return next((name.removeprefix(union) for union in _UNIONS if name.startswith(union) and name != union), name)


def _one_of(names: "list[str] | tuple[str, ...]") -> str:
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"


def _shown(value: Any) -> str:
    match value:
        case None:
            return "null"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case bool():
            return "true" if value else "false"
        case _:
            return f"{value!r:.100}"
