"""Prove a version of a table from its bundle, without dagster-versioned. Needs Python 3.11 and `cryptography`.

    python verify.py FOLDER --trust KEY_ID [--project NAME] [--table NAME] [--version SHA]

Have this file and the key's id from somebody you trust, and not from who gave you the bundle.
"""

import argparse, base64, hashlib, json, os, sys
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

PROVENANCE, PAYLOAD_TYPE = "https://slsa.dev/provenance/v1", "application/vnd.in-toto+json"


class NotProved(Exception):
    pass


def require(holds, what):
    if not holds:
        raise NotProved(what)


def sha256(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parsed(data, where):
    def members(pairs):
        require(len(dict(pairs)) == len(pairs), f"{where}: a member occurs twice")
        return dict(pairs)

    return json.loads(data, object_pairs_hook=members)


def canonical(value):
    """JSON as identities are hashed (RFC 8785): members in the order of UTF-16, numbers as ECMAScript has them."""
    if isinstance(value, dict):
        members = sorted(value.items(), key=lambda member: member[0].encode("utf-16-be"))
        return "{" + ",".join(f"{canonical(name)}:{canonical(each)}" for name, each in members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if not isinstance(value, float):
        return json.dumps(value, ensure_ascii=False)
    if value == int(value) and abs(value) < 1e21:
        return str(int(value))
    sign, (mantissa, _, exponent) = "-" * (value < 0), repr(abs(value)).partition("e")
    whole, _, rest = mantissa.partition(".")
    if not exponent:
        return sign + mantissa
    if -7 < int(exponent) < 0:
        return f"{sign}0.{'0' * (-int(exponent) - 1)}{whole}{rest}"
    return f"{sign}{whole}{'.' * bool(rest)}{rest}e{int(exponent):+}"


def open_bundle(folder):
    """What bundle.json says, and the files: plain ones, below the folder, and just those that it names, as named."""
    found = {}
    for place, folders, names in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *names)):
            where = path.relative_to(folder).as_posix()
            require(not path.is_symlink() and (path.is_dir() or path.is_file()), f"{where}: no plain file")
            found |= {where: path} if path.is_file() else {}
    text = found.pop("bundle.json").read_bytes()
    bundle = parsed(text, "bundle.json")
    require(json.dumps(bundle, indent=1, sort_keys=True).encode() == text, "bundle.json: not as it is written")
    require(bundle["format"] == 1, f"bundle.json: format {bundle['format']}, and this knows 1")
    for where in sorted({*found, *bundle["files"]}):
        require(where in found, f"{where}: missing")
        require(where in bundle["files"], f"{where}: not named in bundle.json")
        require(bundle["files"][where] == sha256(found[where]), f"{where}: not the bytes that bundle.json names")
    return bundle, found


def signer_of(found, trusted, envelope):
    """The trusted key that has signed; keys are in the bundle, and are who their SHA-256 says."""
    payload = base64.b64decode(envelope["payload"], validate=True)
    data = b"DSSEv1 %d %b %d %b" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)
    for each in (each for each in envelope["signatures"] if each["keyid"] in trusted):
        where = f"keys/{each['keyid']}.pem"
        key = serialization.load_pem_public_key(found[where].read_bytes())
        der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        require(hashlib.sha256(der).hexdigest() == each["keyid"], f"{where}: another key")
        how = () if isinstance(key, ed25519.Ed25519PublicKey) else (ec.ECDSA(hashes.SHA256()),)
        try:
            key.verify(base64.b64decode(each["sig"], validate=True), data, *how)
            return each["keyid"]
        except InvalidSignature:
            continue
    return None


def signed_for(found, trusted, commit):
    """What a trusted key has signed of a commit."""
    for where in (where for where in sorted(found) if where.startswith("attestations/")):
        envelope = parsed(found[where].read_bytes(), where)
        statement = parsed(base64.b64decode(envelope["payload"], validate=True), where)
        is_of_it = statement["predicateType"] == PROVENANCE and statement["subject"][0]["digest"]["sha256"] == commit
        if is_of_it and envelope["payloadType"] == PAYLOAD_TYPE and (key := signer_of(found, trusted, envelope)):
            return key, statement["predicate"]["buildDefinition"]["externalParameters"]
    raise NotProved("attestations/: no trusted key has signed the commit")


def prove(folder, trusted, wanted):
    bundle, found = open_bundle(folder)
    name, end = bundle["version"], bundle["log_version"]
    logs = [f"log/{number:020}.json" for number in range(end + 1)]
    require(logs == sorted(where for where in found if where.startswith("log/")), "log/: other files than 0 to the end")
    commits = [sha256(found[where]) for where in logs]
    key, said = signed_for(found, trusted, commits[-1])
    print(f"signed   by {key}, for {said['project']}.{said['table']} ({said.get('environment', 'production')})")
    for what, value in (*wanted.items(), ("log_version", end)):
        have = name if what == "version" else said[what]
        require(value is None or value == have, f"{what}: it is signed for {have}, not {value}")
    for before, where in zip([None, *commits], logs):
        entry = parsed(found[where].read_bytes().split(b"\n", 1)[0], where)["commitInfo"].get("dagsterVersioned")
        require(entry is None or entry.get("prev") == before, f"{where}: not linked to the commit before it")
    print(f"log      commits {len(logs)}, each linked to the one before, the last one signed")
    made = next((each for each in entry["versions"] if each["metadata_sha"] == name), None)
    require(made, f"{logs[-1]}: makes no version {name}")
    identity = made["identity"]
    sha = hashlib.sha256(canonical(identity).encode()).hexdigest()
    require(sha == name, f"{logs[-1]}: the identity has the SHA-256 {sha}")
    print(f"version  {name}: rows {identity['nrow']}, parents {len(identity.get('parents', ()))}")
    paths = [(found[part], None if vector is None else found[vector]) for part, vector in bundle["parts"] or ()]
    lines = [sha256(part) + ("" if vector is None else f" {sha256(vector)}") for part, vector in paths]
    if not made["facts"]["digest"].startswith("seq-sha256"):
        lines.sort()
    several = hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
    data = lines[0] if len(lines) == 1 and " " not in lines[0] else several
    require(bundle["parts"] is None or data == identity["data_sha"], "parts/: not the bytes of this version")
    print(f"rows     {f'files {len(lines)}' if bundle['parts'] is not None else 'not here'}: {identity['data_sha']}")
    print("PROVED   what the signer said. report.html, and other files, are for reading alone.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trust", action="append", required=True, metavar="KEY_ID", help="64 hex digits; repeatable")
    [parser.add_argument(f"--{option}") for option in ("project", "table", "version")]
    given = vars(parser.parse_args())
    try:
        prove(given.pop("folder"), set(given.pop("trust")), given)
    except (NotProved, LookupError, TypeError, AttributeError, ValueError, OSError, RecursionError) as error:
        sys.exit(f"NOT PROVED: {error if isinstance(error, NotProved) else f'malformed, {error!r}'}")
