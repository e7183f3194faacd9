"""Rebase: an environment goes on from production as it is, and keeps the versions of its own that are current there."""

from collections.abc import Callable
from dataclasses import replace

import orjson
import pytest

from dagster_versioned.branches.environments import create_environment, drop_environment, fork_now
from dagster_versioned.branches.promote import promote
from dagster_versioned.branches.rebase import rebase_environment
from dagster_versioned.errors import CommitConflict, EnvironmentNotFound, IntegrityError, InvalidInput, ProjectMoved
from dagster_versioned.identity.version import Run
from dagster_versioned.projects.project import Project
from dagster_versioned.publication.park import park
from dagster_versioned.storage.location import Location
from dagster_versioned.storage.wrappers import Call
from dagster_versioned.tables.environment.fork import EnvironmentDocument
from dagster_versioned.tables.environment.registry import document_of
from dagster_versioned.tables.options import TableOptions
from dagster_versioned.tables.partitioning import Partitioning
from dagster_versioned.tables.relocation.migration_mark import MARK_KEY, MigrationMark, put_mark
from support.chain import build, chain, forked, left, names, numbers, rows
from support.hooked_store import HookedStore
from support.interleaving import Died, Stepped
from support.s3_server import S3Server
from support.stores import contents, left_of_environments

KEY = "environments/forks/pr.json"
COMMIT = "other/_delta_log/00000000000000000001.json"


def rebase(project: Project, **given):
    return rebase_environment(project, "pr", dry_run=False, **given)


@pytest.fixture
def project(tmp_path) -> Project:
    """``raw``, ``middle`` built from it, ``top`` built from that, and ``other``; an environment."""
    made = chain(Project.open("NYC", str(tmp_path / "lake")))
    build(made, "other", rows(4))
    create_environment(made, "pr")
    return made


@pytest.fixture
def branch(project) -> Project:
    """``middle``, ``top`` and the new table ``below`` by other code."""
    branch = project.in_environment("pr")
    build(branch, "middle", rows(10, 20), "raw", code="2")
    build(branch, "top", rows(30), "middle", code="2")
    build(branch, "below", rows(40), "top", code="2")
    return branch


class TestWhatIsKept:
    def test_the_same_versions_on_what_production_has_now(self, project, branch):
        build(project, "other", rows(44))
        made = {name: branch.table(name).version() for name in ("middle", "top", "below")}
        before = contents(project.store)
        dry = rebase_environment(project, "pr")
        assert contents(project.store) == before
        report = rebase(project, by="Ada")
        assert report == replace(dry, dry_run=False, forked=report.forked)
        assert names(report.kept) == ["middle", "top", "below"]
        assert not report.left
        again = project.in_environment("pr")
        assert numbers(again, "other") == [44]
        for name, version in made.items():
            here = again.table(name).version()
            assert (here.metadata_sha, here.data_sha) == (version.metadata_sha, version.data_sha)
            assert (here.facts.digest, here.facts.author, here.facts.promoted_from) == (
                version.facts.digest,
                "Ada",
                None,
            )
            assert not again.table(name).verify().findings
        assert contents(project.data) == {
            key.removeprefix("datom/"): data for key, data in before.items() if key.startswith("datom/")
        }

    def test_one_generation_and_no_trace_of_the_rebase_is_left(self, project, branch):
        rebase(project)
        document, _ = document_of(project.store, project.name, "pr")
        assert (document.next, document.previous) == (None, None)
        folders = {info.key.split("/")[3] for info in project.store.list("environments/files/")}
        assert folders == {document.fork.generation}

    def test_what_production_has_changed_and_all_below_it_is_left(self, project, branch):
        build(project, "middle", rows(7), "raw", code="9")
        report = rebase(project)
        assert not report.kept
        assert "production has made version" in left(report)["middle"]
        assert "not current in production" in left(report)["top"]
        again = project.in_environment("pr")
        assert (numbers(again, "middle"), numbers(again, "top")) == ([7], [3])
        assert not again.table("below").exists()

    def test_nobody_has_to_accept_anything(self, project):
        branch = project.in_environment("pr")
        branch.table("raw").write(rows(5))
        build(branch, "middle", rows(1), "raw", code=None)
        report = rebase(project)
        assert names(report.kept) == ["raw", "middle"]
        assert set(left(promote(project, "pr"))) == {"raw", "middle"}

    def test_partitions_stay_beside_new_ones_of_production(self, project):
        for key in "ab":
            build(project, "daily", rows(1), "raw", partition=key)
        drop_environment(project, "pr")
        branch = forked(project, "pr")
        for key in "ac":
            build(branch, "daily", rows(2), "raw", code="2", partition=key)
        build(project, "daily", rows(3), "raw", partition="d")
        build(project, "daily", rows(4), "raw", partition="b")
        assert names(rebase(project).kept) == ["daily[a]", "daily[c]"]
        again = project.in_environment("pr")
        assert {key: numbers(again, "daily", partition=key) for key in "abcd"} == {
            "a": [2],
            "b": [4],
            "c": [2],
            "d": [3],
        }
        assert [one.before is None for one in rebase(project).kept] == [False, True]

    def test_what_was_added_to_and_what_was_reverted_is_left(self, project):
        branch = project.in_environment("pr")
        branch.table("other").write(rows(5), options=TableOptions(mode="append"))
        build(branch, "top", rows(9), "middle", code="2")
        branch.table("top").revert("@0")
        report = rebase(project)
        assert "were added" in left(report)["other"]
        assert "REVERT" in left(report)["top"]
        assert numbers(project.in_environment("pr"), "other") == [4]

    def test_again_and_again_and_then_promoted(self, project, branch):
        sha = branch.table("middle").version().metadata_sha
        for number in range(3):
            build(project, "other", rows(number))
            assert len(rebase(project).kept) == 3
        assert len(promote(project, "pr", dry_run=False).promoted) == 3
        promoted = project.table("middle").version()
        assert (promoted.metadata_sha, promoted.facts.promoted_from) == (sha, "pr")
        assert numbers(project, "below") == [40]
        assert names(rebase(project).kept) == ["middle", "top", "below"]
        build(project.in_environment("pr"), "below", rows(41), "top", code="3")
        assert names(promote(project, "pr", dry_run=False).promoted) == ["below"]
        assert not any(project.table(name).verify().findings for name in project.tables())

    def test_after_a_part_of_it_was_promoted(self, project, branch):
        promote(project, "pr", dry_run=False)
        build(branch, "below", rows(41), "top", code="3")
        build(project, "below", rows(42), "top", code="9")
        report = rebase(project)
        assert names(report.kept) == ["middle", "top"]
        assert numbers(project.in_environment("pr"), "below") == [42]

    def test_on_s3(self, s3_server: S3Server):
        project = Project("NYC", s3_server.store(s3_server.new_bucket()))
        build(project, "middle", rows(1))
        create_environment(project, "pr")
        build(project.in_environment("pr"), "top", rows(2), "middle")
        build(project, "other", rows(3))
        assert names(rebase(project).kept) == ["top"]
        again = project.in_environment("pr")
        assert (numbers(again, "top"), numbers(again, "other")) == ([2], [3])


class TestTablesThatAreOthersNow:
    def dropped(self, table):
        table.drop(dry_run=False)

    def renamed(self, table):
        table.rename("renamed", dry_run=False)

    def made_anew(self, table):
        project = table.project
        project.data.delete([info.key for info in project.data.list("middle/")])
        project.data.delete([".metadata/heads/middle.json"])
        build(Project("NYC", project.store), "middle", rows(8), "raw")

    def repartitioned(self, table):
        table.repartition(Partitioning.names(), "n", dry_run=False)

    @pytest.mark.parametrize(
        ("how", "why"),
        [
            ("dropped", "production has dropped it"),
            ("renamed", "is called renamed now"),
            ("made_anew", "is another table than the one"),
            ("repartitioned", ""),
        ],
    )
    def test_they_are_left_by_name(self, project, branch, how, why):
        getattr(self, how)(project.table("middle"))
        report = rebase(project)
        assert why in left(report)["middle"]
        assert {"middle", "top", "below"} == set(left(report))
        again = project.in_environment("pr")
        for table in again.tables():
            if again.table(table).state.history.heads:
                again.table(table).read()

    def test_what_production_has_made_under_the_name_of_a_new_one(self, project, branch):
        build(project, "below", rows(9))
        assert "production has made a table of this name" in left(rebase(project))["below"]
        assert numbers(project.in_environment("pr"), "below") == [9]

    def test_files_that_are_gone(self, project, branch):
        for info in list(project.store.list("environments/files/")):
            if "/middle/" in info.key and info.key.endswith(".parquet"):
                project.store.delete([info.key])
        report = rebase(project)
        assert "lacks the part" in left(report)["middle"]
        assert numbers(project.in_environment("pr"), "middle") == [1, 2]


class TestRefusals:
    def test_within_an_environment_and_of_none(self, project, branch):
        with pytest.raises(InvalidInput, match="A rebase is not possible in the environment pr"):
            rebase_environment(branch, "pr")
        with pytest.raises(EnvironmentNotFound, match="no environment 'pr-2'"):
            rebase_environment(project, "pr-2", dry_run=False)

    def test_a_place_that_is_being_left(self, project, branch):
        """The mark came after the environment was found: the next fork, which the migration does not know, goes."""
        place = Location.parse("/elsewhere")
        mark = MigrationMark("m1", "leaving", place, place, "2026-11-24T00:00:00+00:00")
        hooked = HookedStore(project.store, "put_if_match", KEY, lambda: put_mark(project.data, mark))
        with pytest.raises(ProjectMoved):
            rebase(Project("NYC", hooked))
        assert document_of(project.store, project.name, "pr")[0].next is None
        project.data.delete([MARK_KEY])
        assert len(rebase(project).kept) == 3

    def test_a_collection_that_was_faster(self, project, branch):
        """The next fork names what is collected before its document is there, so it is taken back."""
        build(project, "other", rows(5))

        def collect() -> None:
            build(project, "other", rows(6))
            project.table("other").expire(keep_last=1, dry_run=False)

        hooked = Project("NYC", HookedStore(project.store, "put_if_match", KEY, collect))
        with pytest.raises(CommitConflict, match="was collected while the rebase of pr"):
            rebase(hooked)
        assert document_of(project.store, project.name, "pr")[0].next is None
        assert numbers(project.in_environment("pr"), "below") == [40]
        assert len(rebase(project).kept) == 3

    @pytest.mark.parametrize("member", ["next", "previous"])
    def test_documents_of_no_rebase(self, project, branch, member):
        raw = orjson.loads(project.store.get(KEY))
        for bad in (None, {}, raw, raw | {"generation": "0" * 12, "environment": "pr-2"}, raw | {"generation": "../x"}):
            project.store.put(KEY, orjson.dumps(raw | {member: bad}))
            with pytest.raises(IntegrityError, match=r"pr\.json.* cannot be read"):
                rebase(project)
        other = raw | {"generation": "0" * 12}
        project.store.put(KEY, orjson.dumps(raw | {"next": other, "previous": other | {"generation": "1" * 12}}))
        with pytest.raises(IntegrityError, match="not those of one rebase"):
            rebase(project)


def begun(project: Project) -> EnvironmentDocument:
    """A rebase that died when the next fork was there."""
    document, etag = document_of(project.store, project.name, "pr")
    begun = EnvironmentDocument(document.fork, next=fork_now(project, "pr", None))
    project.store.put_if_match(KEY, begun.to_bytes(), etag)
    return begun


def swapped(project: Project) -> EnvironmentDocument:
    """A rebase that died when the forks were swapped, with nothing carried."""
    before = begun(project)
    assert before.next is not None
    document = EnvironmentDocument(before.next, previous=before.fork)
    project.store.put(KEY, document.to_bytes())
    return document


def replaced_and_collected(project: Project) -> None:
    for table in ("raw", "middle", "top", "other"):
        for number in (100, 101):
            build(project, table, rows(number), code="z")
        project.table(table).expire(keep_last=1, dry_run=False)


class TestUnfinished:
    @pytest.mark.parametrize("died", [begun, swapped])
    def test_is_finished_by_the_next_one_whatever_was_collected(self, project, branch, died):
        build(project, "other", rows(50))
        document = died(project)
        replaced_and_collected(project)
        report = rebase(project)
        assert report.forked == max(fork.created for fork in document.forks)
        assert names(report.kept) == ["middle", "top", "below"]
        again = project.in_environment("pr")
        assert {name: numbers(again, name) for name in again.tables()} == {
            "raw": [1, 2],
            "middle": [10, 20],
            "top": [30],
            "below": [40],
            "other": [50],
        }

    @pytest.mark.parametrize("died", [begun, swapped])
    def test_is_dropped_with_the_environment(self, project, branch, died):
        died(project)
        drop_environment(project, "pr")
        assert not left_of_environments(project.store)

    def test_production_is_not_asked_again_for_files_that_it_may_collect(self, project, branch):
        """Purges are refused for both forks as well."""
        build(project, "other", rows(50))
        begun(project)
        build(project, "other", rows(51))
        for version in ("@0", "@1"):
            with pytest.raises(InvalidInput, match="environment 'pr'"):
                project.table("other").purge([version], why="erasure", dry_run=False)


class TestWritersMeanwhile:
    def test_one_that_is_late_fails_and_leaves_what_others_wrote(self, project, branch):
        late = project.in_environment("pr")
        assert numbers(late, "other") == [4]
        swapped(project)
        with pytest.raises(EnvironmentNotFound, match="was rebased at"):
            build(late, "other", rows(5))
        assert names(rebase(project).kept) == ["middle", "top", "below"]

    def test_one_that_committed_at_the_swap_is_told_and_deletes_nothing(self, project, branch):
        hooked = HookedStore(project.store, "put_if_absent", COMMIT, lambda: swapped(project))
        late = Project("NYC", hooked).in_environment("pr")
        with pytest.raises(EnvironmentNotFound, match="may or may not have carried on"):
            build(late, "other", rows(5))
        assert {"middle", "top", "below"} <= set(names(rebase(project).kept))
        assert numbers(project.in_environment("pr"), "middle") == [10, 20]

    def test_one_that_committed_after_it_all_leaves_nothing(self, project, branch):
        hooked = HookedStore(project.store, "put_if_absent", COMMIT, lambda: rebase(project))
        late = Project("NYC", hooked).in_environment("pr")
        with pytest.raises(EnvironmentNotFound, match=r"was rebased, or made anew, at .* may or may not have"):
            build(late, "other", rows(5))
        generation = document_of(project.store, project.name, "pr")[0].fork.generation
        assert {info.key.split("/")[3] for info in project.store.list("environments/files/")} == {generation}

    def test_a_later_version_takes_the_place_of_one_that_was_carried_before(self, project, branch):
        def write() -> None:
            build(project.in_environment("pr"), "middle", rows(11), "raw", code="3")
            build(project.in_environment("pr"), "new", rows(12), "middle", code="3")

        report = rebase(at_swap(project, lambda _: write()))
        again = project.in_environment("pr")
        assert (numbers(again, "middle"), numbers(again, "new")) == ([11], [12])
        assert {"middle", "new"} <= set(names(report.kept))

    def test_what_is_written_after_the_swap_stays(self, project, branch):
        with pytest.raises(Died):
            rebase(at_swap(project, lambda store: store.die(after=True)))
        assert document_of(project.store, project.name, "pr")[0].previous is not None
        build(project.in_environment("pr"), "middle", rows(12), "raw", code="4")
        report = rebase(project)
        assert not report.left
        assert numbers(project.in_environment("pr"), "middle") == [12]

    def test_an_environment_that_is_dropped_meanwhile_stays_dropped(self, project, branch):
        with pytest.raises(EnvironmentNotFound):
            rebase(at_swap(project, lambda _: drop_environment(project, "pr")))
        assert not left_of_environments(project.store)

    def test_another_rebase_that_is_faster_has_done_it(self, project, branch):
        report = rebase(at_swap(project, lambda _: rebase(project)))
        assert names(report.kept) == ["middle", "top", "below"]
        assert numbers(project.in_environment("pr"), "below") == [40]


def at_swap(project: Project, happens: Callable[[Stepped], object]) -> Project:
    """The project, in which something happens right before the forks of an environment are swapped."""
    seen: list[Call] = []

    def before(call: Call) -> None:
        if (call.verb, call.key) == ("put_if_match", KEY):
            seen.append(call)
            if len(seen) == 2:  # the first one states the next fork
                happens(store)

    store = Stepped(project.store, before)
    return Project("NYC", store)


class TestParkedDrafts:
    """What waits in the environment for its checks is not carried on, and never lost without a word."""

    def park(self, project: Project) -> str:
        table = project.in_environment("pr").table("raw")
        draft = park(table, {None: rows(7)}, run=Run("r1", "raw", 0)).draft
        assert draft is not None
        return draft.id[:8]

    @pytest.mark.parametrize("dry_run", [True, False])
    def test_stop_it(self, project, dry_run):
        draft = self.park(project)
        with pytest.raises(InvalidInput, match=f"A rebase of the environment pr would leave parked drafts .* {draft}"):
            rebase_environment(project, "pr", dry_run=dry_run)
        [waiting] = project.in_environment("pr").parked()
        project.in_environment("pr").drop_parked(waiting.id, by="ann")
        rebase(project)

    def test_that_came_meanwhile_are_named(self, project):
        document, etag = document_of(project.store, project.name, "pr")
        begun = replace(document, next=fork_now(project, "pr", None))
        project.store.put_if_match(KEY, begun.to_bytes(), etag)  # the rebase of somebody who died
        draft = self.park(project)
        assert left(rebase(project))["raw"].startswith(f"it was parked as the draft {draft}, which is not carried on")
