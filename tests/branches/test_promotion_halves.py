"""A promotion in two halves: what is open is written down, one at a time, and ends in every way that it can."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_versioned.branches.environments import create_environment, drop_environment
from dagster_versioned.branches.open_promotion import abandon_promotion
from dagster_versioned.branches.promote import promote
from dagster_versioned.branches.promotion_document import PROMOTION_KEY, OpenPromotion, read_promotion
from dagster_versioned.branches.rebase import rebase_environment
from dagster_versioned.errors import CommitConflict, EnvironmentNotFound, IntegrityError, InvalidInput
from dagster_versioned.identity.names import table_name
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.options import TableOptions
from support.chain import build, chain, forked, left, rows
from support.chain import sorted_numbers as numbers
from support.hooked_store import HookedStore
from support.stores import contents


def age(project: Project, by: timedelta) -> None:
    """Let the promotion have been renewed so long ago."""
    known = read_promotion(project.data)
    before = (datetime.now(UTC) - by).isoformat(timespec="seconds")
    project.data.put(PROMOTION_KEY, replace(known, renewed=before).to_bytes())


@pytest.fixture
def project(tmp_path) -> Project:
    """``raw``, ``middle`` built from it, ``top`` built from that; in ``pr-1`` and ``pr-2`` by other code."""
    made = chain(Project.open("NYC", str(tmp_path / "lake")))
    for name, number in (("pr-1", 10), ("pr-2", 20)):
        branch = forked(made, name)
        build(branch, "middle", rows(number), "raw", code=name)
        build(branch, "top", rows(number + 1), "middle", code=name)
    return made


@pytest.fixture
def branch(project) -> Project:
    return project.in_environment("pr-1")


class TestPrepare:
    def test_commits_nothing_and_says_what_is_coming(self, project, branch):
        before = contents(project.data)
        report = promote(project, "pr-1", dry_run=False, half="prepare", by="Ada")
        assert (report.dry_run, [cell.table for cell in report.promoted]) == (True, ["middle", "top"])
        assert contents(project.data, without=(PROMOTION_KEY,)) == before
        found = read_promotion(project.data)
        assert (found.environment, found.state, found.by, found.is_living) == ("pr-1", "open", "Ada", True)
        assert found.generation == branch.environment.fork.generation
        assert found.cells == {one: {None: branch.table(one).version().metadata_sha} for one in ("middle", "top")}

    def test_a_dry_run_writes_nothing(self, project):
        before = contents(project.data)
        promote(project, "pr-1", half="prepare")
        assert contents(project.data) == before

    def test_bytes_that_are_not_what_they_are_called_open_nothing(self, project, branch):
        (add,) = branch.table("top").state.snapshot.adds()
        branch.table("top").store.put(add.key, b"PAR1 forged PAR1")
        with pytest.raises(IntegrityError, match="with bytes of the SHA-256"):
            promote(project, "pr-1", dry_run=False, half="prepare")
        assert read_promotion(project.data) is None

    def test_rows_that_break_a_constraint_are_left_with_what_is_below(self, project, tmp_path):
        branch = project.in_environment("pr-1")
        options = TableOptions(constraints={"small": "n < 100"})
        branch.table("first").write(rows(5), options=options, code_version="1")
        build(branch, "second", rows(6), "first")
        forged = branch.table("first").state
        key = f"_delta_log/{forged.log_version:020}.json"
        store = branch.table("first").store
        store.put(key, store.get(key).replace(b"n < 100", b"n < 002"))
        report = promote(Project.open("NYC", str(tmp_path / "lake")), "pr-1", dry_run=False, half="prepare")
        assert set(left(report)) == {"first", "second"}
        assert "constraint 'small'" in left(report)["first"]
        assert set(read_promotion(project.data).cells) == {"middle", "top"}

    def test_once_more_prepares_what_is_there_now(self, project, branch):
        promote(project, "pr-1", dry_run=False, half="prepare")
        opened = read_promotion(project.data).opened
        newest = build(branch, "top", rows(99), "middle", code="pr-1").metadata_sha
        report = promote(project, "pr-1", dry_run=False, half="commit")
        assert "was not prepared" in left(report)["top"]
        assert numbers(project, "top") == [3]
        promote(project, "pr-1", dry_run=False, half="prepare")
        found = read_promotion(project.data)
        assert found.cells["top"] == {None: newest}
        assert found.opened >= opened
        assert not promote(project, "pr-1", dry_run=False, half="commit").left
        assert numbers(project, "top") == [99]

    def test_nothing_to_promote_is_prepared_and_committed(self, project):
        create_environment(project, "empty")
        assert not promote(project, "empty", dry_run=False, half="prepare").promoted
        assert not promote(project, "empty", dry_run=False, half="commit").promoted
        assert read_promotion(project.data).state == "ended"


class TestCommit:
    def test_what_was_prepared_and_ends_it(self, project, branch):
        promote(project, "pr-1", dry_run=False, half="prepare")
        report = promote(project, "pr-1", dry_run=False, half="commit")
        assert ([cell.table for cell in report.promoted], report.left, report.dry_run) == (["middle", "top"], (), False)
        assert numbers(project, "top") == [11]
        assert project.table("top").version().metadata_sha == branch.table("top").version().metadata_sha
        assert read_promotion(project.data).state == "ended"

    def test_again_it_finds_everything_done(self, project):
        promote(project, "pr-1", dry_run=False, half="prepare")
        first = promote(project, "pr-1", dry_run=False, half="commit")
        before = contents(project.data)
        again = promote(project, "pr-1", dry_run=False, half="commit")
        assert [cell.after for cell in again.promoted] == [cell.after for cell in first.promoted]
        assert contents(project.data) == before

    def test_of_what_nobody_prepared(self, project):
        with pytest.raises(InvalidInput, match=r"promote pr-1 --prepare"):
            promote(project, "pr-1", dry_run=False, half="commit")
        promote(project, "pr-1", dry_run=False, half="prepare")
        abandon_promotion(project, "pr-1", dry_run=False)
        with pytest.raises(InvalidInput, match="abandoned"):
            promote(project, "pr-1", dry_run=False, half="commit")
        assert numbers(project, "top") == [3]

    def test_of_an_environment_that_was_made_anew(self, project, branch):
        promote(project, "pr-1", dry_run=False, half="prepare")
        abandoned = read_promotion(project.data)
        abandon_promotion(project, "pr-1", dry_run=False)
        drop_environment(project, "pr-1")
        create_environment(project, "pr-1")
        project.data.put(PROMOTION_KEY, replace(abandoned, state="ended").to_bytes())
        with pytest.raises(InvalidInput, match="No promotion of pr-1 is prepared"):
            promote(project, "pr-1", dry_run=False, half="commit")

    def test_what_production_did_meanwhile_is_left(self, project):
        promote(project, "pr-1", dry_run=False, half="prepare")
        build(project, "top", rows(7), "middle", code="9")
        report = promote(project, "pr-1", dry_run=False, half="commit")
        assert ([cell.table for cell in report.promoted], set(left(report))) == (["middle"], {"top"})
        assert (numbers(project, "middle"), numbers(project, "top")) == ([10], [7])
        assert read_promotion(project.data).state == "ended"

    def test_what_was_accepted_stays_so(self, project, branch):
        branch.table("unsaid").write(rows(5))
        assert "unsaid" in left(promote(project, "pr-1"))
        promote(project, "pr-1", dry_run=False, half="prepare", accept=["unsaid"])
        assert not promote(project, "pr-1", dry_run=False, half="commit").left
        assert numbers(project, "unsaid") == [5]

    def test_a_check_that_refuses_leaves_it_prepared(self, project):
        seen = []

        def check(versions):
            seen.extend(version.identity.asset_key for version in versions)
            raise InvalidInput("no")

        promote(project, "pr-1", dry_run=False, half="prepare", check=check)
        assert not seen
        with pytest.raises(InvalidInput, match="no"):
            promote(project, "pr-1", dry_run=False, half="commit", check=check)
        assert sorted(map(tuple, seen)) == [("middle",), ("top",)]
        assert (numbers(project, "middle"), read_promotion(project.data).state) == ([1, 2], "open")
        promote(project, "pr-1", dry_run=False, half="commit")
        promote(project, "pr-1", dry_run=False, check=check)  # there is nothing left to check

    def test_it_is_renewed_before_each_table(self, project, tmp_path):
        promote(project, "pr-1", dry_run=False, half="prepare")
        age(project, timedelta(minutes=59))
        seen = []

        def look():
            seen.append(read_promotion(project.data).is_living)
            age(project, timedelta(minutes=61))

        def store(table, hook, root):
            return HookedStore(root, "put_if_absent", f"{table}/_delta_log/00000000000000000001.json", hook)

        hooked = store("top", look, store("middle", look, LocalStore(tmp_path / "lake")))
        age(project, timedelta(hours=2))  # and a dead one of its own is gone on with
        promote(Project("NYC", hooked), "pr-1", dry_run=False, half="commit")
        assert seen == [True, True]


class TestOneAtATime:
    def test_another_environments_is_refused_and_says_the_way_out(self, project):
        promote(project, "pr-1", dry_run=False, half="prepare", by="Ada")
        before = contents(project.data)
        for half in (None, "prepare", "commit"):
            with pytest.raises(CommitConflict, match=r"of pr-1 is open since .*'Ada'.* promote pr-1 --abandon"):
                promote(project, "pr-2", dry_run=False, half=half)
        assert contents(project.data) == before
        assert promote(project, "pr-2").promoted  # a dry run asks for nothing
        promote(project, "pr-1", dry_run=False)  # both halves of the very one go on
        assert read_promotion(project.data).state == "ended"

    def test_a_dead_one_is_taken_over_and_wakes_up_to_nothing(self, project, tmp_path):
        promote(project, "pr-1", dry_run=False, half="prepare")
        age(project, timedelta(minutes=59))
        with pytest.raises(CommitConflict):
            promote(project, "pr-2", dry_run=False)
        age(project, timedelta(minutes=61))
        store = HookedStore(
            LocalStore(tmp_path / "lake"),
            "put_if_match",
            PROMOTION_KEY,
            lambda: promote(project, "pr-2", dry_run=False, half="prepare"),
        )
        report = promote(Project("NYC", store), "pr-1", dry_run=False, half="commit")
        assert "the promotion has ended" in left(report)["middle"]
        assert numbers(project, "middle") == [1, 2]
        assert (read_promotion(project.data).environment, read_promotion(project.data).state) == ("pr-2", "open")

    def test_an_hour_that_is_yet_to_come_counts_no_more_than_one_that_is_over(self, project):
        promote(project, "pr-1", dry_run=False, half="prepare")
        age(project, timedelta(minutes=-61))
        assert not read_promotion(project.data).is_living
        promote(project, "pr-2", dry_run=False)
        assert numbers(project, "middle") == [20]

    @pytest.mark.parametrize("half", [None, "commit"])
    def test_the_same_twice_at_once(self, project, tmp_path, half):
        promote(project, "pr-1", dry_run=False, half="prepare")
        reports = []
        store = HookedStore(
            LocalStore(tmp_path / "lake"),
            "put_if_absent",
            "middle/_delta_log/00000000000000000001.json",
            lambda: reports.append(promote(project, "pr-1", dry_run=False, half="commit")),
        )
        reports.append(promote(Project("NYC", store), "pr-1", dry_run=False, half=half))
        assert not reports[0].left
        assert numbers(project, "top") == [11]
        assert [project.table(one).state.log_version for one in ("middle", "top")] == [1, 1]
        assert not [one for table in project.tables() for one in project.table(table).verify().findings]


class TestAbandon:
    def test_at_any_age_and_by_name(self, project):
        with pytest.raises(InvalidInput, match="No promotion of pr-1 is open"):
            abandon_promotion(project, "pr-1", dry_run=False)
        promote(project, "pr-1", dry_run=False, half="prepare")
        with pytest.raises(InvalidInput, match="One of pr-1 is"):
            abandon_promotion(project, "pr-2", dry_run=False)
        assert abandon_promotion(project, "pr-1").environment == "pr-1"
        assert read_promotion(project.data).state == "open"
        abandon_promotion(project, "pr-1", dry_run=False)
        assert read_promotion(project.data).state == "abandoned"
        promote(project, "pr-2", dry_run=False, half="prepare")
        age(project, timedelta(days=3))
        abandon_promotion(project, "pr-2", dry_run=False)
        with pytest.raises(InvalidInput):
            abandon_promotion(project, "pr-2", dry_run=False)

    def test_while_it_commits_leaves_the_rest(self, project, tmp_path):
        store = HookedStore(
            LocalStore(tmp_path / "lake"),
            "put_if_absent",
            "middle/_delta_log/00000000000000000001.json",
            lambda: abandon_promotion(project, "pr-1", dry_run=False),
        )
        report = promote(Project("NYC", store), "pr-1", dry_run=False)
        assert "abandoned" in left(report)["top"]
        assert (numbers(project, "middle"), numbers(project, "top")) == ([10], [3])
        assert read_promotion(project.data).state == "abandoned"


class TestDrop:
    def test_is_refused_while_one_is_open(self, project):
        promote(project, "pr-1", dry_run=False, half="prepare")
        age(project, timedelta(hours=3))
        before = contents(project.store)
        with pytest.raises(InvalidInput, match=r"Nothing was dropped.* promote pr-1 --abandon"):
            drop_environment(project, "pr-1")
        assert contents(project.store) == before
        drop_environment(project, "pr-2")
        abandon_promotion(project, "pr-1", dry_run=False)
        drop_environment(project, "pr-1")

    @pytest.mark.every(4)
    @pytest.mark.parametrize("half", [None, "prepare", "commit"])
    @pytest.mark.parametrize(
        ("verb", "ending"),
        [
            ("head", "environments/forks/pr-1.json"),
            ("get", ".parquet"),
            ("get", "promotion.json"),
            ("put_if_match", "promotion.json"),
            ("put_if_absent", "top/_delta_log/00000000000000000001.json"),
        ],
    )
    def test_one_that_was_faster_ends_the_promotion_in_words(self, project, tmp_path, half, verb, ending):
        if half == "commit":
            promote(project, "pr-1", dry_run=False, half="prepare")

        def drop():  # what a drop does that looked before the promotion was open
            for prefix in ("environments/forks/pr-1", "environments/files/pr-1/"):
                project.store.delete([info.key for info in project.store.list(prefix)])

        store = HookedStore(LocalStore(tmp_path / "lake"), verb, ending, drop)
        try:
            report = promote(Project("NYC", store), "pr-1", dry_run=False, half=half)
        except EnvironmentNotFound as error:
            # Not pytest.raises: which of both ends it comes to depends on the call at which the other one is faster.
            assert "pr-1 was dropped, or made anew, while it was promoted" in str(error)  # noqa: PT017
            found = read_promotion(project.data)
            assert found is None or found.state == "ended"
        else:
            found = read_promotion(project.data)
            assert not report.left
            assert found.state == ("open" if half == "prepare" else "ended")
        for table in project.tables():
            assert not project.table(table).verify().findings
        assert numbers(project, "top") in ([3], [11])
        if half != "prepare" or found is None or found.state == "ended":
            promote(project, "pr-2", dry_run=False)  # nobody has to wait for it


PROMOTION = {
    "schema_version": 1,
    "environment": "pr-1",
    "generation": "0123456789ab",
    "state": "open",
    "opened": "2026-11-27T03:00:00+00:00",
    "renewed": "2026-11-27T03:00:00+00:00",
    "by": None,
    "cells": {"middle": {"": "a" * 64}, "daily": {"x": "b" * 64}},
}


class TestDocument:
    @pytest.mark.every(3)
    @pytest.mark.parametrize(
        "changed",
        [
            b"",
            b"{}",
            b"[1]",
            b"null",
            b"\xff\xfe",
            b"[" * 100_000,
            {"schema_version": 2},
            {"schema_version": True},
            {"environment": "../x"},
            {"environment": None},
            {"generation": "../../x"},
            {"state": "done"},
            {"state": 1},
            {"opened": "yesterday"},
            {"renewed": "2026-11-27T03:00:00"},
            {"renewed": "2026-11-27T03:00:00+02:00"},
            {"renewed": "9999-99-99"},
            {"by": 3},
            {"cells": []},
            {"cells": {"middle": "a" * 64}},
            {"cells": {"../middle": {"": "a" * 64}}},
            {"cells": {"middle": {"": "a" * 63}}},
            {"cells": {"middle": {"": None}}},
            {"cells": {"middle": {"x\x00": "a" * 64}}},
        ],
        ids=lambda changed: repr(changed)[:40],
    )
    def test_hostile_content_is_named_and_can_be_taken_away(self, project, changed):
        data = changed if isinstance(changed, bytes) else orjson.dumps({**PROMOTION, **changed})
        project.data.put(PROMOTION_KEY, data)
        with pytest.raises(IntegrityError, match=r"promotion\.json .* cannot be read .* --abandon"):
            promote(project, "pr-1", dry_run=False)
        assert project.data.get(PROMOTION_KEY) == data
        assert numbers(project, "top") == [3]
        assert abandon_promotion(project, "pr-1") is None
        assert abandon_promotion(project, "pr-1", dry_run=False) is None
        promote(project, "pr-1", dry_run=False)
        assert numbers(project, "top") == [11]

    @given(st.dictionaries(st.sampled_from(["middle", "top", "a b"]), st.dictionaries(st.text(), st.binary())))
    def test_what_is_written_is_read(self, cells):
        from dagster_versioned.errors import InvalidName
        from dagster_versioned.identity.names import check_partition_key

        made: dict = {}
        for table, partitions in cells.items():
            for partition, some in partitions.items():
                try:
                    key = check_partition_key(partition) if partition else None
                except InvalidName:
                    continue
                made.setdefault(table_name(table), {})[key] = some.hex()[:64].rjust(64, "0")
        one = OpenPromotion("pr-1", "0" * 12, "open", PROMOTION["opened"], PROMOTION["renewed"], "Ada", made)
        assert OpenPromotion.from_bytes(one.to_bytes(), "here") == one

    def test_it_covers_its_cells_alone(self):
        one = OpenPromotion.from_bytes(orjson.dumps(PROMOTION), "here")
        middle, daily, other = map(table_name, ("middle", "daily", "other"))
        assert one.covers(middle, None)
        assert one.covers(daily, "x")
        assert one.covers(daily, None)
        assert not one.covers(daily, "y")
        assert not one.covers(other, None)

    def test_who_may_write_below_environments_alone_opens_none(self, project, branch):
        branch.data.put(PROMOTION_KEY, orjson.dumps({**PROMOTION, "environment": "pr-2"}))
        assert read_promotion(project.data) is None
        promote(project, "pr-1", dry_run=False)
        assert numbers(project, "top") == [11]


def test_no_environment_is_rebased_while_a_promotion_of_it_is_open(project):
    promote(project, "pr-1", dry_run=False, half="prepare")
    before = contents(project.store)
    for dry_run in (True, False):
        with pytest.raises(InvalidInput, match="promote pr-1 --abandon"):
            rebase_environment(project, "pr-1", dry_run=dry_run)
    assert contents(project.store) == before
    assert rebase_environment(project, "pr-2", dry_run=False).kept
    promote(project, "pr-1", dry_run=False, half="commit")
    assert rebase_environment(project, "pr-1", dry_run=False).left == ()


def test_a_promotion_ends_that_meets_a_rebase(project):
    promote(project, "pr-1", dry_run=False, half="prepare")
    abandon_promotion(project, "pr-1", dry_run=False)
    rebase_environment(project, "pr-1", dry_run=False)
    with pytest.raises(InvalidInput, match="No promotion of pr-1 is prepared"):
        promote(project, "pr-1", dry_run=False, half="commit")
    assert len(promote(project, "pr-1", dry_run=False).promoted) == 2
