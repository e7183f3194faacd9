"""What is signed of a commit: statements of in-toto, made of nothing but the log.

A statement of provenance follows from the commit and its place, so whoever has the log makes it again and compares: no
statement can say anything else than the log does, and a log that says anything else is another commit. Sources: in-toto
Attestation Framework, "Statement" v1; SLSA v1.0, "Provenance".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from dagster_versioned.delta.log.commits import commit_key
from dagster_versioned.errors import InvalidInput
from dagster_versioned.identity.names import TableName
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.history import CommitRecord

_OURS = "https://pypi.org/project/dagster-versioned/"
STATEMENT = "https://in-toto.io/Statement/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
APPROVAL = f"{_OURS}approval/v1"
REPRODUCTION = f"{_OURS}reproduction/v1"
_COMMIT = f"{_OURS}commit/v1"

ACTIONS = ("promote",)
"""What an approval can be of."""


@dataclass(frozen=True)
class Place:
    """Where a commit was made: its project, its table, and the environment with its generation (or production)."""

    project: str
    table: str
    environment: str | None = None
    generation: str | None = None

    @classmethod
    def of(cls, project: ProjectContext, table: TableName, log_version: int) -> "Place":
        """The place of a commit of a table's log; what an environment began with is production's."""
        environment = project.environment
        if environment is None or log_version <= environment.forked_at(table):
            return cls(project.name, str(table))
        return cls(project.name, str(table), environment.name, environment.fork.generation)

    def to_json(self) -> dict[str, Any]:
        """Without an environment in production."""
        inner = {"environment": self.environment, "generation": self.generation}
        return {"project": self.project, "table": self.table, **(inner if self.environment is not None else {})}

    def __str__(self) -> str:
        return f"{self.project}.{self.table}" + (f" in {self.environment}" if self.environment is not None else "")


def provenance(place: Place, record: CommitRecord) -> dict[str, Any]:
    """The statement that a commit, and the versions that it makes, were made as its log says.

    Raises `InvalidInput` for a commit of another program.
    """
    if record.is_foreign:
        raise InvalidInput(
            f"Log version @{record.log_version} was committed by another program ({record.operation}). Nothing was "
            "signed. Give it an identity: `dagster-versioned adopt`."
        )
    entries = [stored.raw() for stored in record.stored or ()]
    facts = [entry["facts"] for entry in entries]
    runs = [each["run"] for each in facts if each.get("run")]
    dependencies = {repr(each): each for each in (*_parents(entries), *_codes(runs))}
    run: Mapping[str, Any] = runs[0] if runs else {}
    build = {
        "buildType": _COMMIT,
        "externalParameters": {**_about(place, record), "operation": record.operation},
        "internalParameters": {name: run[name] for name in ("code_location", "function", "step_key") if name in run},
        "resolvedDependencies": list(dependencies.values()),
    }
    predicate = {"buildDefinition": build, "runDetails": _run_details(record, facts, run)}
    return {**_statement(place, record), "predicateType": PROVENANCE, "predicate": predicate}


def _run_details(record: CommitRecord, facts: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> dict[str, Any]:
    writer: Mapping[str, str] = (facts[0].get("writer") if facts else None) or {}
    version = {"version": {writer["name"]: writer["version"]}} if writer else {}
    invocation = {"invocationId": run["run_id"]} if run else {}
    finished = facts[0]["created_at"] if facts else _text(moment_of(record))
    return {"builder": {"id": _OURS, **version}, "metadata": {**invocation, "finishedOn": finished}}


def moment_of(record: CommitRecord) -> datetime:
    """When a commit was made, as its log says."""
    return datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)


def approval(place: Place, record: CommitRecord, action: str, expires: datetime, message: str | None) -> dict[str, Any]:
    """The statement that somebody agrees to an action with the versions of a commit, until a moment.

    Raises `InvalidInput` for another action, a moment that is past or has no zone, and a commit that makes no version.
    """
    if not record.stored:
        raise InvalidInput(
            f"Log version @{record.log_version} ({record.operation}) makes no version. Nothing was signed."
        )
    if action not in ACTIONS:
        raise InvalidInput(f"An approval is of {' or '.join(ACTIONS)}, not of {action!a:.100}. Nothing was signed.")
    now = datetime.now(UTC)
    if expires.tzinfo is None or expires <= now:
        raise InvalidInput(f"An approval that ended at {expires} is of no use. Nothing was signed. Name a later time.")
    about = {**_about(place, record), "action": action, "approvedOn": _text(now), "expires": _text(expires)}
    return {
        **_statement(place, record),
        "predicateType": APPROVAL,
        "predicate": {**about, **({"message": message} if message else {})},
    }


def approved_until(statement: Mapping[str, Any], place: Place, record: CommitRecord, action: str) -> datetime | None:
    """Until when a statement approves an action with just the versions of a commit; ``None`` where it does not."""
    if not isinstance(statement.get("predicate"), dict) or statement.get("predicateType") != APPROVAL:
        return None
    predicate: dict[str, Any] = statement["predicate"]
    if not _is_about(statement, predicate, place, record, {"action": action}):
        return None
    try:
        expires = datetime.fromisoformat(str(predicate.get("expires")))
    except ValueError:
        return None
    return expires if expires.tzinfo is not None else None


def reproduced(place: Place, record: CommitRecord, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """The statement that a version of a commit was computed again, and what came of it."""
    about = {**_about(place, record), "finishedOn": _text(datetime.now(UTC)), "outcome": dict(outcome)}
    return {**_statement(place, record), "predicateType": REPRODUCTION, "predicate": about}


def outcome_of(statement: Mapping[str, Any], place: Place, record: CommitRecord) -> Mapping[str, Any] | None:
    """What came of computing just the versions of a commit again; ``None`` where a statement does not say it."""
    if statement.get("predicateType") != REPRODUCTION or not isinstance(statement.get("predicate"), dict):
        return None
    predicate: dict[str, Any] = statement["predicate"]
    if not _is_about(statement, predicate, place, record, {}):
        return None
    outcome: object = predicate.get("outcome")
    return cast("Mapping[str, Any]", outcome) if isinstance(outcome, dict) else None


def _is_about(
    statement: Mapping[str, Any],
    predicate: Mapping[str, Any],
    place: Place,
    record: CommitRecord,
    more: Mapping[str, Any],
) -> bool:
    expected = {**_about(place, record), **more}
    made = {name: statement.get(name) for name in ("_type", "subject")}
    return {name: predicate.get(name) for name in expected} == expected and made == _statement(place, record)


def carried_versions(statement: Mapping[str, Any]) -> tuple[Place, list[dict[str, Any]]] | None:
    """The place and the versions that a statement of provenance speaks of, for a commit that took them over."""
    try:
        if (statement["_type"], statement["predicateType"]) != (STATEMENT, PROVENANCE):
            return None
        said = statement["predicate"]["buildDefinition"]["externalParameters"]
        place = Place(said["project"], said["table"], said.get("environment"), said.get("generation"))
        return place, list(said["versions"])
    except (LookupError, TypeError, AttributeError):
        return None


def versions_of(record: CommitRecord) -> list[dict[str, Any]]:
    """The versions of a commit as a statement names them."""
    return [
        {
            **({"partition": partition} if (partition := entry["identity"].get("partition")) is not None else {}),
            "metadata_sha": entry["metadata_sha"],
            "data_sha": entry["identity"]["data_sha"],
            "rows": entry["identity"]["nrow"],
        }
        for entry in (stored.raw() for stored in record.stored or ())
    ]


def _statement(place: Place, record: CommitRecord) -> dict[str, Any]:
    subject = {"name": f"{place.table}/{commit_key(record.log_version)}", "digest": {"sha256": record.sha256}}
    return {"_type": STATEMENT, "subject": [subject]}


def _about(place: Place, record: CommitRecord) -> dict[str, Any]:
    return {**place.to_json(), "log_version": record.log_version, "versions": versions_of(record)}


def _parents(entries: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        for parent in entry["identity"].get("parents", ()):
            environment = f"@{parent['environment']}" if "environment" in parent else ""
            partition = f"[{parent['partition']}]" if "partition" in parent else ""
            yield {
                "name": f"{parent['source']}{environment}/{parent['table']}{partition}",
                "digest": {"dagsterVersionedVersion": parent["version"], "dagsterVersionedData": parent["data_sha"]},
            }


def _codes(runs: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    codes: dict[str, Mapping[str, Any]] = {code["fingerprint"]: code for run in runs if (code := run.get("code"))}
    for fingerprint, code in codes.items():
        details = {"sha256": code["details"]} if "details" in code else {}
        yield {"name": "code", "digest": {"dagsterVersionedCode": fingerprint, **details}}
        if "commit" in code:
            modified = {"modified": list(code["modified"])} if "modified" in code else {}
            remote = {"uri": f"git+https://{code['remote']}"} if "remote" in code else {"name": "git"}
            annotations = {"annotations": modified} if modified else {}
            yield {**remote, "digest": {"gitCommit": code["commit"]}, **annotations}


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
