"""Prove a version of a table from its bundle, without dagster-versioned. Needs Python 3.11 and `cryptography`.

Have this file and the key's id from somebody you trust, and not from who gave you the bundle.
    python verify.py FOLDER --trust KEY_ID [--project NAME] [--table NAME] [--environment NAME] [--version SHA]
"""

import argparse, base64, hashlib, json, pathlib, re, sys

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

PROVENANCE, PAYLOAD_TYPE = "https://slsa.dev/provenance/v1", "application/vnd.in-toto+json"
NAMES = r"log/\d{20}\.json|(attestations|keys)/[0-9a-f]{64}\.(json|pem)|parts/\d{6}\.(parquet|deleted)|report\.html"
WANTED = {"project": None, "table": None, "environment": "production", "version": None}


def require(holds, what):
    if not holds:
        raise ValueError(what)


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
    if not isinstance(value, float) or (value == int(value) and abs(value) < 1e21):
        return json.dumps(int(value) if isinstance(value, float) else value, ensure_ascii=False)
    mantissa, _, exponent = repr(value).partition("e")
    if exponent and -7 < int(exponent) < 0:
        return f"{value:.{len(mantissa.partition('.')[2]) - int(exponent)}f}"
    return mantissa.removesuffix(".0") + (f"e{int(exponent):+}" if exponent else "")


def open_bundle(folder):
    """What bundle.json says, and the files: plain ones, below the folder, and just those that it names, as named."""
    found = {}
    for path in folder.rglob("*"):
        where = path.relative_to(folder).as_posix()
        require(not path.is_symlink() and (path.is_dir() or path.is_file()), f"{where}: no plain file")
        found |= {where: path} if path.is_file() else {}
    require("bundle.json" in found, "bundle.json: missing, so this is no bundle")
    bundle = parsed(text := found.pop("bundle.json").read_bytes(), "bundle.json")
    is_own = json.dumps(bundle, indent=1, sort_keys=True).encode() == text and bundle["format"] == 1
    require(is_own, "bundle.json: not as it is written, or of another format than 1")
    for where in sorted({*found, *bundle["files"]}):
        require(re.fullmatch(NAMES, where), f"{where}: no file of a bundle")
        require(where in found and where in bundle["files"], f"{where}: {'not named' if where in found else 'missing'}")
        require(bundle["files"][where] == sha256(found[where]), f"{where}: not the bytes that bundle.json names")
    return bundle, found


def signer_of(found, trusted, envelope):
    """The trusted keys that have signed; keys are in the bundle, and are who their SHA-256 says."""
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
            yield each["keyid"]
        except InvalidSignature:
            continue


def signed_for(found, trusted, commit):
    """What a trusted key has signed of a commit; what else is there, or cannot be read, says nothing."""
    for where in (where for where in sorted(found) if where.startswith("attestations/")):
        try:
            envelope = parsed(found[where].read_bytes(), where)
            statement = parsed(base64.b64decode(envelope["payload"], validate=True), where)
            require((envelope["payloadType"], statement["predicateType"]) == (PAYLOAD_TYPE, PROVENANCE), where)
            require(statement["subject"][0]["digest"]["sha256"] == commit, where)
            if key := next(signer_of(found, trusted, envelope), None):
                return key, statement["predicate"]["buildDefinition"]["externalParameters"]
        except (LookupError, TypeError, ValueError, RecursionError):
            continue
    raise ValueError("attestations/: no trusted key, which has to be in keys/, has signed the commit")


def prove(folder, trusted, wanted):
    bundle, found = open_bundle(folder)
    name, end, parts = bundle["version"], bundle["log_version"], bundle["parts"] or []
    logs = sorted(where for where in found if where.startswith("log/"))
    require(len(logs) == end + 1 and logs[-1] == f"log/{end:020}.json", "log/: other files than 0 to the end")
    infos = [parsed(found[each].read_bytes().split(b"\n", 1)[0], each).get("commitInfo", {}) for each in logs]
    commits, since, redacted = [None], 0, {}
    for number, (where, info) in enumerate(zip(logs, infos)):
        entries = info.get("dagsterVersioned", {}).get("redaction", {"entries": {}})["entries"]
        require(not entries or signed_for(found, trusted, sha256(found[where])), where)  # who redacts has to sign that
        redacted |= {int(at): sha for at, sha in entries.items() if int(at) < number}
    for number, (where, info) in enumerate(zip(logs, infos)):
        sha, before, entry = (sha256(found[where]), *map(info.get, ("dagsterVersionedRedacted", "dagsterVersioned")))
        since = number if entry is None else since  # another program's commit, which is not linked
        require(entry is None or entry.get("prev") == commits[-1], f"{where}: not linked to the commit before it")
        require(sha == redacted.get(number, None if before else sha), f"{where}: redacted, which no commit tells")
        commits.append(before["sha256"] if before else sha)  # one that was redacted is named by what it was
    key, said = signed_for(found, trusted, commits[-1])
    said = {"environment": "production", **said, "version": name}
    print(f"signed   by {key}, for {said['project']}.{said['table']} ({said['environment']})")
    for what, want in (*wanted.items(), ("log_version", end)):
        require(want in (None, said[what]), f"{what}: it is signed for {said[what]}, not {want}")
    print(f"log      commits {since} to {end}, each linked to the one before, the last one signed")
    made, identity = next(((e, e["identity"]) for e in entry["versions"] if e["metadata_sha"] == name), (None, None))
    require(made, f"{logs[-1]}: makes no version {name}")
    require(hashlib.sha256(canonical(identity).encode()).hexdigest() == name, f"{logs[-1]}: another identity")
    names = [[f"parts/{n:06}.parquet", vector and f"parts/{n:06}.deleted"] for n, (_, vector) in enumerate(parts)]
    is_own = {x for p in parts for x in p if x} == {where for where in found if where.startswith("parts/")}
    require(names == parts and is_own, "parts/: other files")
    lines = [" ".join(sha256(found[each]) for each in pair if each) for pair in parts]
    lines = lines if made["facts"]["digest"].startswith("seq-sha256") else sorted(lines)
    several = hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
    data = lines[0] if len(lines) == 1 and " " not in lines[0] else several
    require(bundle["parts"] is None or data == identity["data_sha"], "parts/: not the bytes of this version")
    print(f"version  {name}: partition {identity.get('partition', '-')!a}, rows {identity['nrow']}, files {len(lines)}")
    print("PROVED   what the signer said.", "Its rows are not here." if bundle["parts"] is None else "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--trust", action="append", required=True, metavar="KEY_ID", help="64 hex digits; repeatable")
    [parser.add_argument(f"--{what}", default=value) for what, value in WANTED.items()]
    given, _ = vars(parser.parse_args()), sys.stdout.reconfigure(errors="backslashreplace")
    try:
        prove(given.pop("folder"), set(given.pop("trust")), given)
    except Exception as error:
        text = str(error) if type(error) is ValueError else f"malformed, {error!r}"
        sys.exit("NOT PROVED: " + re.sub("[^ -~]", lambda each: ascii(each[0])[1:-1], text))
