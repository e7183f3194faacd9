"""Where bytes live, as ref.json's ``current`` says it and as a person types it."""

import re
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from dagster_versioned.errors import InvalidInput
from dagster_versioned.storage.keys import check_key

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_CONTAINER = re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_AZURE_HOST = ".dfs.core.windows.net"
_VOLUMES = Path("/Volumes")
"""Where Databricks mounts the volumes that ``dbfs:/Volumes`` names."""
_REGION = re.compile(r"[A-Za-z0-9-]{1,64}")
_NO_FOLDER = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|\\\\")
"""What a URI or a drive begins with: ``dbfs:/x``, ``s3:/bucket`` (a slash is missing), ``C:`` and a server's share."""
_ADVICE = (
    "Nothing was touched. Use 's3://bucket/prefix?region=…&endpoint_url=…' (or s3a://), 'gs://bucket/prefix', "
    "'abfss://container@account.dfs.core.windows.net/prefix' (or 'az://container/prefix?account=…'), "
    "'file:///absolute/path', 'dbfs:/Volumes/…' or a local path; credentials come from the environment, a named "
    "profile or a callable, never from a location."
)


class Location(BaseModel):
    """A place for a project's bytes: the shape of ref.json's ``current`` (seed 003, "Anatomy").

    ``root`` is a bucket, a container, or an absolute folder; ``prefix`` is empty or ends in ``/``; ``region`` is S3's,
    ``account`` Azure's; ``endpoint_url`` is for servers that are compatible with one of the clouds. A location never
    holds a credential, and refuses one without repeating it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    type: Literal["local", "s3", "gcs", "azure"]
    root: str
    prefix: str = ""
    region: str | None = None
    account: str | None = None
    endpoint_url: str | None = None

    @field_validator("prefix")
    @classmethod
    def _normal_prefix(cls, prefix: str) -> str:
        prefix = prefix.removesuffix("/")
        return check_key(prefix) + "/" if prefix else ""

    @field_validator("region")
    @classmethod
    def _plain_region(cls, region: str | None) -> str | None:
        if region is not None and not _REGION.fullmatch(region):
            raise ValueError("the region is not made of letters, digits and '-'")
        return region

    @field_validator("endpoint_url")
    @classmethod
    def _bare_endpoint(cls, endpoint_url: str | None) -> str | None:
        if endpoint_url is None:
            return None
        parts = urlsplit(endpoint_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("endpoint_url is not http://host[:port] or https://host[:port]")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("endpoint_url holds a user, a password or a query")
        return endpoint_url.rstrip("/")

    @model_validator(mode="after")
    def _root_of_its_type(self) -> Self:
        if self.type == "local":
            if not Path(self.root).is_absolute() or "\0" in self.root:
                raise ValueError("a local root is an absolute path")
        elif "?" in self.prefix:
            raise ValueError("a prefix with '?' cannot be written as a URI")
        elif self.type == "azure":
            if not _CONTAINER.fullmatch(self.root):
                raise ValueError("the container name is not 3 to 63 lowercase letters, digits and single '-'")
            if not _ACCOUNT.fullmatch(self.account or ""):
                raise ValueError("an Azure location needs its storage account: 3 to 24 lowercase letters and digits")
        elif not _BUCKET.fullmatch(self.root):
            raise ValueError("the bucket name is not 3 to 63 letters, digits, '.', '_' and '-'")
        return self

    @model_validator(mode="after")
    def _members_of_its_type(self) -> Self:
        if self.region and self.type != "s3":
            raise ValueError("region belongs to S3 locations")
        if self.account and self.type != "azure":
            raise ValueError("account belongs to Azure locations")
        if self.endpoint_url and self.type == "local":
            raise ValueError("endpoint_url belongs to locations in a cloud")
        return self

    @classmethod
    def parse(cls, uri: str) -> Self:
        """Read a URI of S3, Google Cloud Storage or Azure, ``file:///…`` or a local path.

        ``s3://bucket/prefix?region=…&endpoint_url=…`` (``s3a://`` is the same), ``gs://bucket/prefix``,
        ``abfss://container@account.dfs.core.windows.net/prefix``, ``az://container/prefix?account=…``; the last and
        ``gs://`` take an ``endpoint_url`` too. ``dbfs:/Volumes/…`` is that folder, on Databricks. A path that is
        relative is so to the working directory, and ``~`` is the user's home, as a shell has it. What begins as a URI
        or a drive does is no path. Raises `InvalidInput`.
        """
        scheme, colon, rest = uri.partition("://")
        if not colon:
            return cls._parse_path(uri)
        match scheme.lower():
            case "s3" | "s3a":
                return cls._parse_bucket("s3", rest, {"region", "endpoint_url"})
            case "gs":
                return cls._parse_bucket("gcs", rest, {"endpoint_url"})
            case "az":
                return cls._parse_bucket("azure", rest, {"account", "endpoint_url"})
            case "abfss" | "abfs":
                return cls._parse_abfss(rest)
            case "file":
                if not rest.startswith("/"):
                    raise InvalidInput(f"A file location has no absolute path. {_ADVICE}")
                return cls.from_json({"type": "local", "root": unquote(rest)})
            case _:
                # What stands before "://" may be part of a secret that was pasted in, so only a plain word is repeated.
                shown = f" {scheme!r}" if re.fullmatch(r"[a-z0-9+]{1,12}", scheme) else ""
                raise InvalidInput(f"A location with the unknown scheme{shown}. {_ADVICE}")

    @classmethod
    def _parse_path(cls, path: str) -> Self:
        if not path.strip():
            raise InvalidInput(f"An empty location. {_ADVICE}")
        if path[0].isspace():
            raise InvalidInput(f"A location begins with a space. {_ADVICE}")
        if path.startswith("dbfs:/Volumes/") and _VOLUMES.is_dir():
            path = path.removeprefix("dbfs:")
        if _NO_FOLDER.match(path):
            raise InvalidInput(
                f"A location begins as a URI or a drive does, so it is not taken for a folder. {_ADVICE} A folder with "
                "such a name is './name'."
            )
        try:
            return cls.from_json({"type": "local", "root": str(Path(path).expanduser().absolute())})
        except RuntimeError:  # what pathlib raises
            raise InvalidInput(f"A location begins with '~' and a user who has no home here. {_ADVICE}") from None

    @classmethod
    def _parse_bucket(cls, kind: str, rest: str, known: set[str]) -> Self:
        path, _, query = rest.partition("?")
        bucket, _, prefix = path.partition("/")
        if "@" in bucket or ":" in bucket:
            raise InvalidInput(f"A {kind} location holds a user or a password. {_ADVICE}")
        options = dict(parse_qsl(query, keep_blank_values=True))
        if not options.keys() <= known:
            raise InvalidInput(f"A {kind} location has options other than {' and '.join(sorted(known))}. {_ADVICE}")
        return cls.from_json({"type": kind, "root": bucket, "prefix": prefix, **options})

    @classmethod
    def _parse_abfss(cls, rest: str) -> Self:
        place, _, prefix = rest.partition("/")
        container, _, host = place.partition("@")
        if not host.endswith(_AZURE_HOST):
            raise InvalidInput(f"An abfss location is not container@account{_AZURE_HOST}. {_ADVICE}")
        document = {"type": "azure", "root": container, "prefix": prefix, "account": host.removesuffix(_AZURE_HOST)}
        return cls.from_json(document)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Read the members of ref.json's ``current``. Raises `InvalidInput`."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(map(str, fault['loc'])) or 'location'}: {fault['msg'].removeprefix('Value error, ')}"
                for fault in error.errors(include_input=False, include_url=False, include_context=False)
            )
        # Outside the handler: the validation error holds the input, which may hold a secret.
        raise InvalidInput(f"A storage location is refused: {faults}. {_ADVICE}")

    def to_json(self) -> dict[str, str]:
        """The members of ref.json's ``current``; absent ones are left out."""
        return self.model_dump(exclude_none=True)

    @property
    def uri(self) -> str:
        """The text that `parse` reads back to the same place."""
        if self.type == "local":
            return str(Path(self.root, self.prefix))
        if self.type == "azure" and not self.endpoint_url:
            return f"abfss://{self.root}@{self.account}{_AZURE_HOST}/{self.prefix}"
        scheme = {"s3": "s3", "gcs": "gs", "azure": "az"}[self.type]
        options = [("region", self.region), ("account", self.account), ("endpoint_url", self.endpoint_url)]
        query = "&".join(f"{name}={quote(value, safe=':/')}" for name, value in options if value)
        return f"{scheme}://{self.root}/{self.prefix}" + (f"?{query}" if query else "")

    @property
    def bare_uri(self) -> str:
        """The place as engines and messages name it, without a server's address: ``s3://bucket/prefix``."""
        return self.model_copy(update={"region": None, "endpoint_url": None}).uri.partition("?")[0].rstrip("/")
