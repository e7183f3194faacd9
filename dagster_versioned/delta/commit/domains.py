"""Named texts that a table keeps for programs, beside its rows. Protocol: *Domain Metadata*."""

from dagster_versioned.delta.actions import DomainMetadata, unlike
from dagster_versioned.delta.commit.conflicts import NOTHING
from dagster_versioned.delta.commit.protocol_upgrade import ASKED, protocol_with
from dagster_versioned.delta.commit.transaction import Transaction
from dagster_versioned.delta.log.snapshot import OWN_DOMAINS, Snapshot
from dagster_versioned.errors import InvalidInput

_SYSTEM = "delta."


def set_domain(read: Snapshot, domain: str, configuration: str) -> Transaction:
    """The transaction that gives a domain a text, with the feature that the table needs for it."""
    _require_users(domain)
    # Whoever has no type checker gives a dict here, which would be written and be no text to any reader.
    if not isinstance(configuration, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(
            f"The metadata of domain {domain!r} is {configuration!r:.50}; it is text. Nothing was written. Write it as"
            " JSON."
        )
    properties = {**read.metadata.configuration, f"{ASKED}domainMetadata": "supported"}
    protocol = protocol_with(read.protocol, properties, read.schema)
    actions = [*unlike(protocol, read.protocol), DomainMetadata(domain, configuration)]
    return Transaction(read, actions, "SET DOMAIN METADATA", NOTHING, {"domain": domain})


def remove_domain(read: Snapshot, domain: str) -> Transaction:
    """The transaction that takes a domain away."""
    _require_users(domain)
    if domain not in read.domains:
        known = sorted(name for name in read.domains if not name.startswith(_SYSTEM))
        raise InvalidInput(f"The table has no metadata domain {domain!r}; there are {known}. Nothing was written.")
    removed = DomainMetadata(domain, read.domains[domain], removed=True)
    return Transaction(read, [removed], "REMOVE DOMAIN METADATA", NOTHING, {"domain": domain})


def _require_users(domain: str) -> None:
    # Calls of users are not checked for their types.
    if not isinstance(domain, str) or not domain:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"A metadata domain has a name, which is text; {domain!r:.50} is none. Nothing was written.")
    if domain.casefold().startswith((_SYSTEM, OWN_DOMAINS)):
        whose = "the protocol" if domain.casefold().startswith(_SYSTEM) else "versioned tables"
        raise InvalidInput(
            f"The metadata domain {domain!r} belongs to {whose}. Nothing was written. Take a name of your own, such as"
            " org.example.loader."
        )
