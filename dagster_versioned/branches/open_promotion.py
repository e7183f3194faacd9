"""Opening, renewing and ending the one open promotion of a project, for which sensors wait."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from dagster_versioned.branches.promotion_document import PROMOTION_KEY, OpenPromotion, read_promotion
from dagster_versioned.branches.promotion_write import LeftToProduction
from dagster_versioned.errors import CommitConflict, IntegrityError, InvalidInput
from dagster_versioned.identity.names import TableName, check_environment_name
from dagster_versioned.tables.context import ProjectContext
from dagster_versioned.tables.document import SwappedDocument, update_document
from dagster_versioned.tables.environment.registry import Environment
from dagster_versioned.tables.preconditions import require

SELDOM = timedelta(minutes=5)
"""How old a renewal is before another one between the partitions of a table."""


class PromotionDocument:
    """The document, on behalf of the promotion of one environment; see `promote`.

    It is swapped and never deleted, so that nobody takes another's away, and so that a sensor sees that one has just
    ended.
    """

    def __init__(self, project: ProjectContext, environment: Environment) -> None:
        self._project = project
        self.environment = environment
        self._stored = SwappedDocument(project.data, PROMOTION_KEY)
        self._renewed = datetime.min.replace(tzinfo=UTC)

    def check_free(self) -> None:
        """Raise `CommitConflict` where the promotion of another environment is open, and somebody may be at it."""
        self._refuse_others(read_promotion(self._project.data))

    def prepared(self) -> OpenPromotion:
        """What was prepared of the environment, also if all of it was committed since. Raises `InvalidInput`."""
        found = read_promotion(self._project.data)
        self._refuse_others(found)
        name = self.environment.name
        if found is None or not self._is_ours(found) or found.state == "abandoned":
            raise InvalidInput(
                f"No promotion of {name} is prepared, or it was abandoned. Nothing was committed. Prepare it: "
                f"`dagster-versioned promote {name} --prepare --apply`."
            )
        return found

    def open(self, cells: Mapping[TableName, Mapping[str | None, str]], by: str | None) -> None:
        """Put it, for these cells. Raises as `check_free` does, and `ProjectMoved`."""

        def opened(data: bytes | None) -> bytes:
            self._project.check_unmarked()  # between the read and the swap, as pins do
            found = self._parse(data)
            self._refuse_others(found)
            now = _now()
            goes_on = found is not None and found.state == "open" and self._is_ours(found)
            since = found.opened if found is not None and goes_on else now
            fork = self.environment.fork
            return OpenPromotion(fork.environment, fork.generation, "open", since, now, by, cells).to_bytes()

        self._stored.update(opened)
        self.environment.check_current()  # it may have been dropped before this was there to refuse that

    def renew(self, after: timedelta) -> None:
        """Say that somebody is at it, unless that was said less than ``after`` ago.

        Raises `LeftToProduction` where it is not open any more, and `EnvironmentNotFound`.
        """
        if datetime.now(UTC) - self._renewed < after:
            return
        self.environment.check_current()
        if not self._change(lambda found: replace(found, renewed=_now())):
            raise LeftToProduction("the promotion has ended: it was abandoned, or another call finished it")
        self._renewed = datetime.now(UTC)

    def end(self) -> None:
        """Let nobody wait for it any more; nothing where it is not open, or another environment's."""
        self._change(lambda found: replace(found, state="ended", renewed=_now()))

    def _change(self, change: Callable[[OpenPromotion], OpenPromotion]) -> bool:
        """Swap it where it is open and ours; returns whether it is."""
        is_open = False

        def changed(data: bytes | None) -> bytes | None:
            nonlocal is_open
            found = self._parse(data)
            is_open = found is not None and found.state == "open" and self._is_ours(found)
            return change(found).to_bytes() if found is not None and is_open else None

        self._stored.update(changed)
        return is_open

    def _parse(self, data: bytes | None) -> OpenPromotion | None:
        return None if data is None else OpenPromotion.from_bytes(data, self._project.data.uri)

    def _is_ours(self, found: OpenPromotion) -> bool:
        fork = self.environment.fork
        return (found.environment, found.generation) == (fork.environment, fork.generation)

    def _refuse_others(self, found: OpenPromotion | None) -> None:
        if found is not None and found.is_living and not self._is_ours(found):
            raise CommitConflict(
                f"A promotion of {found.environment} is open since {found.opened} (by {found.by or 'somebody'!a:.100}, "
                f"renewed {found.renewed}). Nothing was promoted. Wait until it has ended; an hour after its last "
                f"renewal it counts no more. `dagster-versioned promote {found.environment} --abandon --apply` ends it "
                "now."
            )


def abandon_promotion(project: ProjectContext, name: str, *, dry_run: bool = True) -> OpenPromotion | None:
    """End the open promotion of an environment, at any age, and return it; what it committed stays committed.

    The environment need not be there any more. One that cannot be read, whosever it is, is deleted, and ``None``
    returned. Raises `InvalidInput` where none of that name is open.
    """
    check_environment_name(name)
    require("abandon promotion", project)
    found: list[OpenPromotion] = []

    def abandoned(data: bytes | None) -> bytes:
        one = None if data is None else OpenPromotion.from_bytes(data, project.data.uri)
        if one is None or one.state != "open" or one.environment != name:
            other = f" One of {one.environment} is." if one is not None and one.state == "open" else ""
            raise InvalidInput(f"No promotion of {name} is open in {project.data.uri}.{other} Nothing was changed.")
        found[:] = [one]
        return replace(one, state="abandoned", renewed=_now()).to_bytes()

    try:
        if dry_run:
            stored = read_promotion(project.data)
            abandoned(None if stored is None else stored.to_bytes())
        else:
            update_document(project.data, PROMOTION_KEY, abandoned)
    except IntegrityError:
        if not dry_run:
            project.data.delete([PROMOTION_KEY])
        return None
    return found[0]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
