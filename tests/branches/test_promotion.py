"""Promotion: what an environment made becomes production's by the same names, or is left; nothing is believed."""

import shutil

import orjson
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_versioned.branches.environments import create_environment, drop_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.branches.promotion_document import PROMOTION_KEY
from dagster_versioned.branches.rebase import rebase_environment
from dagster_versioned.errors import IntegrityError
from dagster_versioned.identity.version import EXTERNAL
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.external import ExternalTable
from dagster_versioned.tables.options import TableOptions
from support.chain import build, chain, forked, left, numbers, promoted, rows
from support.crashes import append_as_another_program
from support.hooked_store import HookedStore
from support.s3_server import S3Server
from support.stores import contents


@pytest.fixture
def project(tmp_path) -> Project:
    """``raw``, ``middle`` built from it, ``top`` built from that."""
    return chain(Project.open("NYC", str(tmp_path / "lake")))


@pytest.fixture
def branch(project) -> Project:
    """``middle`` and ``top`` by other code."""
    branch = forked(project)
    build(branch, "middle", rows(10, 20), "raw", code="2")
    build(branch, "top", rows(30), "middle", code="2")
    return branch


class TestWhatIsPromoted:
    def test_the_same_versions_and_nothing_twice(self, project, branch):
        dry = promote(project, "pr-1")
        assert promoted(dry) == ["middle", "top"]
        assert numbers(project, "top") == [3]
        report = promote(project, "pr-1", dry_run=False, by="Ada")
        assert promoted(report) == promoted(dry)
        assert not report.left
        for table in ("middle", "top"):
            here, there = project.table(table).version(), branch.table(table).version()
            assert (here.metadata_sha, here.data_sha) == (there.metadata_sha, there.data_sha)
            assert here.facts.promoted_from == "pr-1"
            assert here.facts.author == "Ada"
            assert here.facts.digest == there.facts.digest
            assert not project.table(table).verify().findings
        assert numbers(project, "top") == [30]
        before = contents(project.data)
        assert promoted(promote(project, "pr-1", dry_run=False)) == ["middle", "top"]
        assert contents(project.data) == before

    def test_a_write_of_equal_rows_finds_them_there(self, project, branch):
        promote(project, "pr-1", dry_run=False)
        parents = project.table("raw").upstream()
        outcome = project.table("middle").write(rows(10, 20), parents=parents, code_version="2")
        assert outcome.change == "none"

    def test_a_new_table_and_what_is_below_it(self, project):
        branch = forked(project)
        options = TableOptions(constraints={"positive": "n > 0"}, properties={"owner": "Ada"})
        branch.table("source").write(rows(5), options=options, code_version="1")
        build(branch, "below", rows(6), "source", "raw")
        report = promote(project, "pr-1", dry_run=False)
        assert promoted(report) == ["source", "below"]
        assert numbers(project, "below") == [6]
        known = project.table("source").state.snapshot.metadata.configuration
        assert (known["owner"], known["delta.constraints.positive"]) == ("Ada", "n > 0")

    def test_partitions_are_one_commit(self, project):
        for key in "abc":
            build(project, "daily", rows(1), "raw", partition=key)
        branch = forked(project)
        for key in "ab":
            build(branch, "daily", rows(2), "raw", code="2", partition=key)
        build(branch, "total", rows(5), "daily", code="2")
        before = project.table("daily").state.log_version
        report = promote(project, "pr-1", dry_run=False)
        assert promoted(report) == ["daily[a]", "daily[b]", "total"]
        assert project.table("daily").state.log_version == before + 1
        assert [numbers(project, "daily", partition=key) for key in "abc"] == [[2], [2], [1]]
        assert not project.table("daily").verify().findings

    def test_rows_without_an_order_many_parts_and_nulls(self, project):
        branch = forked(project)
        table = pa.table(
            {
                "n": [*range(3000), None],
                "x": [float("nan"), -0.0, *map(float, range(2999))],
                "s": [None if i % 7 == 0 else f"text {i}" for i in range(3001)],
                "l": [[i, None] for i in range(3001)],
            }
        )
        for order in ("ignored", "significant"):
            options = TableOptions(row_order=order, target_part_bytes=2000, row_group_bytes=20_000)
            branch.table(order).write(table, options=options, code_version="1")
        report = promote(project, "pr-1", dry_run=False)
        assert sorted(promoted(report)) == ["ignored", "significant"]
        for order in ("ignored", "significant"):
            assert len(project.table(order).files().scan.files) > 1
            assert not project.table(order).verify().findings
            adds = {add.key: add for add in branch.table(order).state.snapshot.adds()}
            for add in project.table(order).state.snapshot.adds():
                assert add.stats == adds[add.key].stats

    def test_on_s3(self, s3_server: S3Server):
        project = Project("NYC", s3_server.store(s3_server.new_bucket()))
        project.table("raw").write(rows(1))
        branch = forked(project)
        made = build(branch, "middle", rows(2), "raw")
        assert promoted(promote(project, "pr-1", dry_run=False)) == ["middle"]
        assert project.table("middle").version().metadata_sha == made.metadata_sha
        drop_environment(project, "pr-1")
        assert not project.table("middle").verify().findings


class TestWhatIsLeft:
    def test_what_is_built_from_what_production_changed(self, project, branch):
        """The branch is behind: production's raw has other rows, so nothing below it is what production would make."""
        project.table("raw").write(rows(7))
        report = promote(project, "pr-1", dry_run=False)
        assert not report.promoted
        assert "raw" in left(report)["middle"]
        assert "middle" in left(report)["top"]
        assert numbers(project, "top") == [3]

    def test_the_closed_subset_is_promoted(self, project, branch):
        build(branch, "apart", rows(40), code="2")
        project.table("raw").write(rows(7))
        report = promote(project, "pr-1", dry_run=False)
        assert promoted(report) == ["apart"]
        assert sorted(left(report)) == ["middle", "top"]

    def test_a_cell_that_production_made_meanwhile(self, project, branch):
        build(project, "top", rows(4), "middle", code="1b")
        report = promote(project, "pr-1", dry_run=False)
        assert promoted(report) == ["middle"]
        assert "production has made version" in left(report)["top"]
        assert numbers(project, "top") == [4]

    def test_a_revert_in_production_stays(self, project, branch):
        """Production moved on and came back: the head's name is that of the fork, by somebody's decision."""
        first = project.table("top").version().metadata_sha
        build(project, "top", rows(4), "middle", code="1b")
        project.table("top").revert(first)
        assert "production has made version" in left(promote(project, "pr-1", dry_run=False))["top"]

    def test_a_hold_in_production_stays(self, project, branch):
        head = project.table("top").version().metadata_sha
        project.table("top").revert(head, hold=True, why="a dispute")
        report = promote(project, "pr-1", dry_run=False)
        assert "top" in left(report)
        assert numbers(project, "top") == [3]

    def test_dropped_in_production(self, project, branch):
        project.table("top").drop(dry_run=False)
        assert "top" in left(promote(project, "pr-1", dry_run=False))
        assert not project.table("top").state.history.heads

    def test_another_programs_rows(self, project, branch):
        append_as_another_program(project.table("top"), rows(99))
        assert "another program" in left(promote(project, "pr-1", dry_run=False))["top"]

    def test_a_table_made_anew(self, project, branch):
        shutil.rmtree(f"{project.data.uri}/top")
        build(project, "top", rows(8), "middle")
        with pytest.raises(IntegrityError, match=r"top .* is another table than the one that the environment pr-1"):
            promote(project, "pr-1", dry_run=False)
        assert numbers(project, "middle") == [1, 2]

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda table: table.revert("@0"), "more than writes"),
            (lambda table: table.drop(dry_run=False), "more than writes"),
            (lambda table: table.write(rows(5), options=TableOptions(mode="append")), "rows were added"),
            (lambda table: build(table.project, "top", rows(5), "middle", code=None), "states no code_version"),
            (
                lambda table: table.write(rows(5), code_version="3", options=TableOptions(properties={"a": "b"})),
                "properties or constraints were changed",
            ),
        ],
        ids=["revert", "drop", "append", "no code version", "properties"],
    )
    def test_what_is_no_plain_write(self, project, branch, change, reason):
        change(branch.table("top"))
        report = promote(project, "pr-1", dry_run=False)
        assert reason in left(report)["top"]
        assert numbers(project, "top") == [3]

    def test_an_imported_table_that_production_has(self, project, branch):
        branch.table("raw").write(rows(1, 2, 3), code_version="1")
        report = promote(project, "pr-1", dry_run=False)
        assert "reads from its source itself" in left(report)["raw"]
        assert numbers(project, "raw") == [1, 2]

    def test_a_sample_unless_it_is_accepted(self, project, branch):
        build(project, "large", rows(*range(10)), "raw")
        other = forked(project, "pr-2")
        build(other, "large", rows(1), "raw", code="2")
        assert "it has 1 rows, and production 10" in left(promote(project, "pr-2", dry_run=False))["large"]
        assert promoted(promote(project, "pr-2", dry_run=False, accept=["large"])) == ["large"]


class TestOutOfReach:
    """What production does not read: versions of other environments, tables that it is not known to read."""

    @pytest.fixture
    def other(self, project, branch, tmp_path) -> Project:
        """Another project, of which production reads ``kept``, in an environment that changed the rest."""
        other = Project.open("TAXIS", str(tmp_path / "taxis"))
        for table in ("raw", "days"):
            other.table(table).write(rows(1), **({"partition": "a"} if table == "days" else {}))
        build(other, "kept", rows(1), "raw")
        project.table("joined").write(rows(1), parents=other.table("kept").upstream(), code_version="1")
        made = forked(other)
        made.table("raw").write(rows(7))
        made.table("days").write(rows(7), partition="b")
        return made

    @pytest.mark.parametrize(("table", "given"), [("raw", {}), ("days", {}), ("days", {"partition": "b"})])
    def test_built_from_another_projects_environment(self, project, branch, other, table, given):
        read = other.table(table).upstream(**given)
        version = branch.table("taxis").write(rows(7), parents=read, code_version="1").version
        build(branch, "below", rows(8), "taxis")
        assert [one.environment for one in version.identity.parents] == ["pr-1"]
        report = promote(project, "pr-1", dry_run=False, accept=["taxis", "below"])
        assert "of TAXIS in the environment pr-1, which production does not read" in left(report)["taxis"]
        assert "not current in production" in left(report)["below"]
        assert promoted(report) == ["middle", "top"]
        assert not project.table("taxis").exists()
        assert branch.table("taxis").verify().findings == ()

    @pytest.mark.parametrize(("table", "given"), [("kept", {}), ("days", {"partition": "a"})])
    def test_what_an_environment_began_with_is_productions(self, project, branch, other, table, given):
        read = other.table(table).upstream(**given)
        version = branch.table("taxis").write(rows(7), parents=read, code_version="1").version
        assert [one.environment for one in version.identity.parents] == [None]
        assert "taxis" in promoted(promote(project, "pr-1", dry_run=False))

    def test_another_environment_of_the_project_itself(self, project, branch):
        there = forked(project, "pr-2")
        build(there, "middle", rows(5), "raw", code="3")
        version = (
            branch.table("middle").write(rows(5), parents=there.table("middle").upstream(), code_version="3").version
        )
        assert [(one.table, one.environment) for one in version.identity.parents] == [("middle", "pr-2")]
        report = promote(project, "pr-1", dry_run=False)
        assert "of NYC in the environment pr-2" in left(report)["middle"]
        assert promoted(report) == []

    def test_an_external_table_below_an_environments_files(self, project, branch):
        branch.table("fresh").write(rows(1), code_version="1")
        read = ExternalTable(branch.table("fresh").store.uri)
        version = branch.table("copy").write(rows(1), parents=read.upstream(), code_version="1").version
        assert [(one.source, one.environment) for one in version.identity.parents] == [(EXTERNAL, "pr-1")]
        assert "in the environment pr-1" in left(promote(project, "pr-1", dry_run=False, accept=["copy"]))["copy"]

    def test_what_production_is_not_known_to_read_unless_it_is_accepted(self, project, branch, other, tmp_path):
        for name in ("events", "others"):
            write_deltalake(str(tmp_path / name), rows(1))
        events, others = (ExternalTable(str(tmp_path / name)) for name in ("events", "others"))
        project.table("seen").write(rows(1), parents=events.upstream(), code_version="1")
        strange = Project.open("STRANGE", str(tmp_path / "strange"))
        strange.table("raw").write(rows(1))
        reads = {"a": events, "b": others, "c": strange.table("raw"), "d": other.table("kept")}
        for name, read in reads.items():
            branch.table(name).write(rows(1), parents=read.upstream(), code_version="1")
        why = left(promote(project, "pr-1", dry_run=False))
        assert sorted(why) == ["b", "c"]
        assert all("so nobody can tell whether production reads it" in one for one in why.values())
        assert "b" in promoted(promote(project, "pr-1", dry_run=False, accept=["b"]))

    def test_a_rebase_carries_it_and_it_is_left_again(self, project, branch, other):
        branch.table("taxis").write(rows(7), parents=other.table("raw").upstream(), code_version="1")
        rebase_environment(project, "pr-1", dry_run=False)
        assert numbers(project.in_environment("pr-1"), "taxis") == [7]
        assert "which production does not read" in left(promote(project, "pr-1", dry_run=False))["taxis"]


class TestNothingIsBelieved:
    """A developer may write below ``environments/``, and nowhere else."""

    def forge(self, branch, table, change):
        store = branch.table(table).store
        key = f"_delta_log/{branch.table(table).state.log_version:020}.json"
        lines = [orjson.loads(line) for line in store.get(key).splitlines()]
        change(lines)
        store.put(key, b"\n".join(map(orjson.dumps, lines)) + b"\n")

    def test_statistics_counts_and_digests_are_made_again(self, project, branch):
        right = promote_elsewhere(project)

        def lie(lines):
            for line in lines:
                if "add" in line:
                    line["add"]["stats"] = '{"numRecords":1,"minValues":{"n":500},"maxValues":{"n":501}}'
                if "commitInfo" in line:
                    facts = line["commitInfo"]["dagsterVersioned"]["versions"][0]["facts"]
                    facts["digest"] = "seq-sha256:" + "0" * 64 + ":2"

        self.forge(branch, "middle", lie)
        promote(project, "pr-1", dry_run=False)
        head = project.table("middle").version()
        assert head.facts.digest == right.facts.digest
        assert numbers(project, "middle") == [10, 20]
        assert not project.table("middle").verify().findings

    def test_other_bytes_under_the_name_of_a_part(self, project, branch):
        before = contents(project.data, without=(PROMOTION_KEY,))
        (add,) = branch.table("middle").state.snapshot.adds()
        branch.table("middle").store.put(add.key, b"PAR1 forged PAR1")
        with pytest.raises(IntegrityError, match=r"with bytes of the SHA-256 .* production is as it was"):
            promote(project, "pr-1", dry_run=False)
        assert contents(project.data, without=(PROMOTION_KEY,)) == before

    def test_an_identity_that_does_not_follow_from_the_bytes(self, project, branch):
        before = contents(project.data, without=(PROMOTION_KEY,))

        def lie(lines):
            for line in lines:
                if "commitInfo" in line:
                    line["commitInfo"]["dagsterVersioned"]["versions"][0]["identity"]["nrow"] = 3

        self.forge(branch, "middle", lie)
        with pytest.raises(IntegrityError):
            promote(project, "pr-1", dry_run=False)
        assert contents(project.data, without=(PROMOTION_KEY,)) == before

    def test_production_in_the_meantime(self, project, branch, tmp_path):
        """Raw moves on between the judgement and the commit; the plan asks again at each attempt."""
        store = HookedStore(
            LocalStore(tmp_path / "lake"),
            "put_if_absent",
            "middle/_delta_log/00000000000000000001.json",
            lambda: build(project, "middle", rows(77), "raw", code="9"),
        )
        report = promote(Project("NYC", store), "pr-1", dry_run=False)
        assert sorted(left(report)) == ["middle", "top"]
        assert numbers(project, "middle") == [77]
        assert numbers(project, "top") == [3]

    def test_an_upstream_in_production_in_the_meantime(self, project, branch, tmp_path):
        """Raw moves on once the promotion is open, and before what is built from it is committed."""
        before = project.table("middle").version().metadata_sha
        store = HookedStore(
            LocalStore(tmp_path / "lake"), "put_if_match", PROMOTION_KEY, lambda: project.table("raw").write(rows(77))
        )
        report = promote(Project("NYC", store), "pr-1", dry_run=False)
        assert sorted(left(report)) == ["middle", "top"]
        assert numbers(project, "raw") == [77]
        assert project.table("middle").version().metadata_sha == before


def promote_elsewhere(project):
    """The version that production would make of the branch's rows, in another project."""
    other = Project.open("NYC", project.store.uri + "-other")
    other.table("raw").write(rows(1, 2))
    return build(other, "middle", rows(10, 20), "raw", code="2")


STEP = st.tuples(
    st.sampled_from(["base", "branch", "branch", "promote", "create", "expire"]),
    st.sampled_from(["raw", "middle", "top"]),
    st.integers(0, 3),
)
ABOVE = {"raw": (), "middle": ("raw",), "top": ("middle",)}


@given(st.lists(STEP, max_size=25))
@settings(max_examples=25, deadline=None)
def test_walks(tmp_path_factory, steps):
    """Promoted versions have their names, their parents are production's, and verify finds nothing."""
    project = Project.open("NYC", str(tmp_path_factory.mktemp("walk")))
    for table in ABOVE:
        build(project, table, rows(0), *ABOVE[table])
    create_environment(project, "pr")
    for verb, table, number in steps:
        branch = project.in_environment("pr")
        match verb:
            case "base":
                build(project, table, rows(number), *ABOVE[table], code=f"base {number}")
            case "branch":
                build(branch, table, rows(10 + number), *ABOVE[table], code=f"branch {number}")
            case "create":
                drop_environment(project, "pr")
                create_environment(project, "pr")
            case "expire":
                project.table(table).expire(keep_last=1, dry_run=False)
            case _:
                report = promote(project, "pr", dry_run=False)
                for cell in report.promoted:
                    assert project.table(cell.table).version().metadata_sha == cell.after
                    known = {one.metadata_sha for up in ABOVE[cell.table] for one in project.table(up).history()}
                    parents = project.table(cell.table).version().identity.parents
                    assert {parent.version for parent in parents} <= known
                for cell in report.promoted:
                    for up in ABOVE[cell.table]:
                        parents = {one.version for one in project.table(cell.table).version().identity.parents}
                        assert project.table(up).version().metadata_sha in parents
    assert not any(project.table(table).verify().findings for table in ABOVE)
