"""The digests again, value by value in plain Python: slow, short, sharing nothing with the package but the spec.

Rows come as tuples of Python values, types as the JSON that docs/reference/digest.md gives them.
"""

import hashlib
import json
import math
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import xxhash

MODULO = 1 << 64
NAN = bytes.fromhex("000000000000f87f")


def canonical(kind: str, value: Any) -> bytes:
    if kind in ("byte", "short", "integer", "long", "boolean"):
        return struct.pack("<q", int(value))
    if kind in ("float", "double"):
        return NAN if math.isnan(value) else struct.pack("<d", 0.0 if value == 0 else value)
    if kind == "date":
        return struct.pack("<q", value.toordinal() - date(1970, 1, 1).toordinal())
    if kind == "time":
        assert isinstance(value, time)
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return struct.pack("<q", seconds * 1_000_000 + value.microsecond)
    if kind in ("timestamp", "timestamp_ntz"):
        since = value.replace(tzinfo=value.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
        return struct.pack("<q", (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)
    if kind.startswith("decimal"):
        scale = int(kind[:-1].split(",")[1])
        sign, digits, exponent = Decimal(value).as_tuple()
        unscaled = int("".join(map(str, digits))) * 10 ** (int(exponent) + scale)
        return (-unscaled if sign else unscaled).to_bytes(16, "little", signed=True)
    return value.encode() if kind == "string" else bytes(value)


def packed(values: list[Any]) -> bytes:
    bits = sum(1 << index for index, value in enumerate(values) if value is not None)
    return bits.to_bytes((len(values) + 63) // 64 * 8, "little")


def lane(kind: Any, value: Any, seed: int) -> int:
    if value is None:
        return 0
    if isinstance(kind, str):
        return xxhash.xxh64_intdigest(canonical(kind, value), seed)
    if kind[0] == "struct":
        return record([field for _, field in kind[1:]], [value[name] for name, _ in kind[1:]], seed)
    if kind[0] == "array":
        data = struct.pack("<Q", len(value)) + packed(value)
        data += b"".join(struct.pack("<Q", lane(kind[1], item, seed)) for item in value)
    else:
        total = sum(record(kind[1:], list(entry), seed) for entry in value) % MODULO
        data = struct.pack("<QQ", len(value), total)
    return xxhash.xxh64_intdigest(data, seed)


def record(kinds: list[Any], values: list[Any], seed: int) -> int:
    lanes = (lane(kind, value, seed) for kind, value in zip(kinds, values, strict=True))
    return xxhash.xxh64_intdigest(packed(values) + b"".join(struct.pack("<Q", one) for one in lanes), seed)


def bag(columns: list[tuple[str, Any]], rows: list[tuple[Any, ...]]) -> str:
    kinds = [kind for _, kind in columns]
    sums = [sum(record(kinds, list(row), seed) for row in rows) % MODULO for seed in (0, 1)]
    return f"bag-xxh64x2:{sums[0]:016x}{sums[1]:016x}:{len(rows)}"


def nodes(kind: Any, values: list[Any]) -> bytes:
    present = [value for value in values if value is not None]
    validity = bytes(value is not None for value in values)
    lengths, data, children = b"", b"", b""
    if isinstance(kind, str):
        data = b"".join(canonical(kind, value) for value in present)
        if kind in ("string", "binary"):
            lengths = b"".join(struct.pack("<Q", len(canonical(kind, value))) for value in present)
    elif kind[0] == "struct":
        children = b"".join(nodes(field, [value[name] for value in present]) for name, field in kind[1:])
    else:
        lengths = b"".join(struct.pack("<Q", len(value)) for value in present)
        items = [item for value in present for item in value]
        if kind[0] == "array":
            children = nodes(kind[1], items)
        else:
            children = nodes(kind[1], [key for key, _ in items]) + nodes(kind[2], [item for _, item in items])
    return b"".join(hashlib.sha256(stream).digest() for stream in (validity, lengths, data)) + children


def sequence(columns: list[tuple[str, Any]], rows: list[tuple[Any, ...]]) -> str:
    total = hashlib.sha256(struct.pack("<QQ", len(rows), len(columns)))
    for index, (name, kind) in enumerate(columns):
        head = json.dumps([name, kind], ensure_ascii=False, separators=(",", ":")).encode()
        column = struct.pack("<Q", len(head)) + head + nodes(kind, [row[index] for row in rows])
        total.update(hashlib.sha256(column).digest())
    return f"seq-sha256:{total.hexdigest()}:{len(rows)}"


def widest(kind: Any) -> Any:
    if isinstance(kind, str):
        if kind.startswith("decimal"):
            return f"decimal(38,{kind.split(',')[1]}"
        return {"byte": "long", "short": "long", "integer": "long", "float": "double"}.get(kind, kind)
    if kind[0] == "struct":
        return ["struct", *([name, widest(field)] for name, field in kind[1:])]
    return [kind[0], *map(widest, kind[1:])]


def encoded(kind: Any, value: Any) -> bytes:
    if value is None:
        return b"\0"
    if isinstance(kind, str):
        data = canonical(kind, value)
        length = struct.pack("<Q", len(data)) if kind in ("string", "binary") else b""
        return b"\1" + length + data
    if kind[0] == "struct":
        return b"\1" + b"".join(encoded(field, value[name]) for name, field in kind[1:])
    if kind[0] == "array":
        items = [encoded(kind[1], item) for item in value]
    else:
        items = sorted(b"\1" + encoded(kind[1], key) + encoded(kind[2], item) for key, item in value)
    return b"\1" + struct.pack("<Q", len(items)) + b"".join(items)


def shas(columns: list[tuple[str, Any]], rows: list[tuple[Any, ...]]) -> list[str]:
    text = json.dumps([[name, widest(kind)] for name, kind in columns], ensure_ascii=False, separators=(",", ":"))
    head = hashlib.sha256(text.encode()).digest()
    records = (b"".join(encoded(kind, value) for (_, kind), value in zip(columns, row, strict=True)) for row in rows)
    return [hashlib.sha256(head + record).hexdigest() for record in records]
