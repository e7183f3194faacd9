"""What is reused is what the table's own log has, as long as nobody took it out of use."""

import json

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest

from dagster_versioned import ProjectResource, TableOptions, VersionedParquetIOManager, versioned_asset
from dagster_versioned.branches.environments import create_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.errors import InvalidInput
from dagster_versioned.tables.computations import FOLDER, ForgottenVersions, contradicted
from support.crashes import append_as_another_program


@pytest.fixture
def given():
    return {"source": 1, "noise": 0}


@pytest.fixture
def assets(bench, given):
    @dg.asset(code_version="1")
    def source() -> pd.DataFrame:
        return pd.DataFrame({"value": [given["source"]]})

    def made(code_version="1"):
        @versioned_asset(code_version=code_version)
        def result(source: pd.DataFrame) -> pd.DataFrame:
            bench.calls.append("result")
            return source + given["noise"]

        return [source, result]

    return made


RECOMPUTE = {"dagster_versioned/recompute": "true"}


def documents(bench):
    return sorted((bench.folder("result") / FOLDER).glob("*.json"))


class TestDocuments:
    def many(self, bench, given, assets, count=110):
        """So many commits that the first version is not among the recent ones."""
        bench.run(assets())
        table = bench.table("result")
        for number in range(count):
            table.write(pd.DataFrame({"value": [number + 100]}), code_version="by hand")
        return table.history()[-1]

    def test_a_version_of_long_ago_is_found_with_two_calls(self, bench, given, assets):
        first = self.many(bench, given, assets)
        assert bench.run(assets()) == []
        assert bench.table("result").version().metadata_sha == first.metadata_sha

    @pytest.mark.slow
    def test_without_its_document_it_is_computed_once_more_and_repair_writes_it(self, bench, given, assets):
        first = self.many(bench, given, assets)
        (document,) = documents(bench)
        document.unlink()
        bench.table("result").repair()
        assert json.loads(document.read_bytes()) == {"log_version": 0, "metadata_sha": first.metadata_sha}
        document.unlink()
        assert bench.run(assets()) == ["result"]
        assert bench.run(assets()) == []

    @pytest.mark.every(2)
    @pytest.mark.parametrize(
        "text",
        [
            "",
            pytest.param("[]", marks=pytest.mark.slow),
            '{"log_version": "0", "metadata_sha": "x"}',
            '{"log_version": 5, "metadata_sha": "SHA"}',
            pytest.param('{"log_version": 999999, "metadata_sha": "SHA"}', marks=pytest.mark.slow),
            pytest.param('{"log_version": -1, "metadata_sha": "SHA"}', marks=pytest.mark.slow),
            '{"log_version": 7, "metadata_sha": "OTHER"}',
        ],
    )
    def test_what_a_document_says_is_not_believed(self, bench, given, assets, text):
        first = self.many(bench, given, assets)
        (document,) = documents(bench)
        other = bench.table("result").version("@7")
        document.write_text(text.replace("SHA", first.metadata_sha).replace("OTHER", other.metadata_sha))
        assert bench.run(assets()) == ["result"]
        assert bench.table("result").version().metadata_sha == first.metadata_sha


class TestContradictions:
    def test_a_computation_that_gives_other_rows_is_not_reused_again(self, bench, given, assets):
        bench.run(assets())
        key = bench.table("result").version().computation
        given["noise"] = 1
        assert bench.run(assets(), tags=RECOMPUTE) == ["result"]
        assert bench.metadata("result")["contradicted"] is True
        assert contradicted(bench.table("result").state.snapshot) == [key]
        assert bench.run(assets()) == ["result"]
        given["noise"] = 0
        assert bench.run(assets()) == ["result"]
        given["source"] = 9  # another key
        assert bench.run(assets()) == ["result"]
        assert bench.run(assets()) == []

    def test_so_is_one_of_two_runs_at_once(self, bench, given):
        table = bench.table("result")

        @versioned_asset(code_version="1")
        def result(context: dg.AssetExecutionContext) -> pd.DataFrame:
            bench.calls.append("result")
            if given["source"]:  # another run, which begins and ends while this one computes
                given["source"] = 0
                dg.materialize([result], instance=dg.DagsterInstance.ephemeral(), resources={"io_manager": bench.io()})
                return pd.DataFrame({"value": [1]})
            return pd.DataFrame({"value": [2]})

        assert bench.run([result]) == ["result", "result"]
        assert contradicted(table.state.snapshot) == [table.version().computation]
        assert table.verify().ok

    def test_two_that_agree_are_no_contradiction(self, bench, given, assets):
        bench.run(assets())
        assert bench.run(assets(), tags=RECOMPUTE) == ["result"]
        assert bench.metadata("result")["change"] == "none"
        assert contradicted(bench.table("result").state.snapshot) == []
        assert bench.run(assets()) == []

    @pytest.mark.slow
    def test_one_of_long_ago_is_known_by_its_document(self, bench, given, assets):
        TestDocuments().many(bench, given, assets)
        given["noise"] = 1
        bench.run(assets(), tags=RECOMPUTE)
        assert len(contradicted(bench.table("result").state.snapshot)) == 1


class TestForgetting:
    def test_what_is_forgotten_is_computed_once_more(self, bench, given, assets):
        bench.run(assets())
        table = bench.table("result")
        concerned = table.forget(key=table.version().computation)
        assert [one.log_version for one in concerned] == [0]
        assert bench.run(assets()) == []  # it was a dry run
        table.forget(key=table.version().computation, dry_run=False)
        given["noise"] = 1
        assert bench.run(assets()) == ["result"]
        assert contradicted(bench.table("result").state.snapshot) == []  # forgetting says that the first was wrong
        assert bench.run(assets()) == []

    def test_a_code_version_is_forgotten_in_all_its_versions(self, bench, given, assets):
        for code_version in ("1", "2"):
            bench.run(assets(code_version))
        assert len(bench.table("result").forget(code_version="1", dry_run=False)) == 1
        assert bench.run(assets("2")) == []
        assert bench.run(assets("1")) == ["result"]
        assert ForgottenVersions.of(bench.table("result").state.snapshot) == ForgottenVersions(code_versions={"1": 1})

    def test_everything_is(self, bench, given, assets):
        for code_version in ("1", "2"):
            bench.run(assets(code_version))
        assert len(bench.table("result").forget(dry_run=False)) == 2
        assert bench.run(assets("2")) == ["result"]
        assert bench.table("result").forget(code_version="3", dry_run=False) == ()

    def test_the_run_tag_names_assets(self, bench, given, assets):
        bench.run(assets())
        assert bench.run(assets(), tags={"dagster_versioned/recompute": "other"}) == []
        assert bench.run(assets(), tags={"dagster_versioned/recompute": "other, result"}) == ["result"]

    @pytest.mark.parametrize("key", ["", "abc", "A" * 64])
    def test_what_is_no_key_is_refused(self, bench, assets, key):
        bench.run(assets())
        with pytest.raises(InvalidInput, match="64 lowercase hex"):
            bench.table("result").forget(key=key, dry_run=False)
        with pytest.raises(InvalidInput, match="not both"):
            bench.table("result").forget(key="a" * 64, code_version="1")


class TestWhatIsThere:
    def test_a_version_whose_bytes_are_gone_is_computed(self, bench, given, assets):
        bench.run(assets())
        first = bench.table("result").version()
        given["source"] = 2
        bench.run(assets())
        bench.table("result").purge([first.metadata_sha], why="a test", dry_run=False)
        given["source"] = 1
        assert bench.run(assets()) == ["result"]
        assert bench.table("result").read(as_type=pd.DataFrame)["value"].tolist() == [1]

    def test_a_lost_part_is_written_again(self, bench, given, assets):
        bench.run(assets())
        (part,) = bench.folder("result").glob("*.parquet")
        part.unlink()
        assert bench.run(assets()) == ["result"]
        assert part.exists()
        assert bench.run(assets()) == []

    def test_a_head_that_another_program_changed_is_none(self, bench, given, assets):
        bench.run(assets())
        append_as_another_program(bench.table("result"), pa.table({"value": [5]}))
        assert bench.table("result").read(as_type=pd.DataFrame)["value"].tolist() == [1, 5]
        assert bench.run(assets()) == []
        assert bench.table("result").read(as_type=pd.DataFrame)["value"].tolist() == [1]

    def test_a_held_head_stays(self, bench, given, assets):
        bench.run(assets())
        table = bench.table("result")
        first = table.version()
        given["source"] = 2
        bench.run(assets())
        table.revert(first.metadata_sha, hold=True, why="a test")
        assert bench.run(assets(), fails=True) == []
        assert "is held" in bench.errors()
        given["source"] = 1
        assert bench.run(assets()) == []
        assert bench.metadata("result")["change"] == "none"

    def test_a_revert_carries_its_computation(self, bench, given, assets):
        bench.run(assets())
        first = bench.table("result").version()
        given["source"] = 2
        bench.run(assets())
        bench.table("result").revert(first.metadata_sha)
        assert bench.table("result").version().facts.computation == first.facts.computation

    def test_a_step_that_fails_after_its_function_is_computed_again(self, bench, given, assets, monkeypatch):
        def full(*args, **kwargs):
            raise OSError("No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("dagster_versioned.tables.write.write.TableWrite.draft", full)
            assert bench.run(assets(), fails=True) == []  # the source could not be written
            patch.undo()
        bench.run(assets()[:1])
        with monkeypatch.context() as patch:
            patch.setattr("dagster_versioned.tables.write.write.TableWrite.draft", full)
            assert bench.run(assets(), selection=["result"], fails=True) == ["result"]
        assert not bench.table("result").exists()
        assert bench.run(assets()) == ["result"]
        assert bench.run(assets()) == []

    def test_a_cancelled_run_leaves_nothing_to_reuse(self, bench, given):
        @versioned_asset(code_version="1")
        def result() -> pd.DataFrame:
            bench.calls.append("result")
            if given["noise"] == 0:
                raise dg.DagsterExecutionInterruptedError
            return pd.DataFrame({"value": [1]})

        with pytest.raises(dg.DagsterExecutionInterruptedError):
            bench.run([result])
        assert not bench.table("result").exists()
        given["noise"] = 1
        assert bench.run([result]) == ["result"]
        assert bench.run([result]) == []


class TestEnvironments:
    def test_a_branch_hits_what_the_base_computed_up_to_its_fork(self, bench, given, assets):
        bench.run(assets("1"))
        bench.run(assets("2"))
        TestDocuments().many(bench, given, assets)  # neither is recent
        create_environment(bench.project, "branch")
        bench.run(assets("3"))  # which the branch must not see
        branch = bench.io(environment="branch")
        bench.instance = dg.DagsterInstance.ephemeral()
        assert bench.run(assets("1"), io=branch) == []
        assert bench.run(assets("2"), io=branch) == []
        assert bench.run(assets("3"), io=branch) == ["result"]
        assert bench.run(assets("3"), io=branch) == []
        bench.instance = dg.DagsterInstance.ephemeral()
        assert bench.run(assets("4")) == ["result"]

    def test_a_promoted_version_is_computed_once_in_production(self, bench, given, assets):
        bench.run(assets("1"))
        create_environment(bench.project, "branch")
        bench.instance = dg.DagsterInstance.ephemeral()
        bench.run(assets("2"), io=bench.io(environment="branch"))
        promote(bench.project, "branch", dry_run=False)
        promoted = bench.table("result").version()
        assert promoted.identity.code_version == "2"
        assert promoted.facts.computation is None  # what the branch claims is not believed
        bench.instance = dg.DagsterInstance.ephemeral()
        assert bench.run(assets("2")) == ["result"]
        assert bench.run(assets("2")) == []
        assert bench.table("result").version().metadata_sha == promoted.metadata_sha


class TestPublishedAfterChecks:
    """What is parked is computed: nobody knows whether it will be published."""

    def io(self, bench):
        project = ProjectResource(name="HANGAR", location=str(bench.root))
        return VersionedParquetIOManager(project=project, publish="after_checks")

    def test_nothing_is_reused_of_it(self, bench):
        @versioned_asset(code_version="1")
        def up() -> pa.Table:
            bench.calls.append("up")
            return pa.table({"n": [1]})

        @versioned_asset(code_version="1")
        def down(up: pa.Table) -> pa.Table:
            bench.calls.append("down")
            return up

        assert bench.run([up, down]) == ["up", "down"]
        assert bench.run([up, down]) == []
        assert bench.run([up, down], io=self.io(bench)) == ["up", "down"]

    def test_nor_of_what_is_built_from_it(self, bench):
        given = [1]

        @dg.asset(metadata=TableOptions(publish="after_checks").as_metadata())
        def up() -> pa.Table:
            return pa.table({"n": given})

        @versioned_asset(code_version="1")
        def down(up: pa.Table) -> pa.Table:
            bench.calls.append("down")
            return up

        assert bench.run([up, down]) == ["down"]
        bench.project.publish(bench.result.run_id, by="ann")
        assert bench.run([up, down]) == ["down"]  # from what is published now, and remembered
        assert bench.run([up, down]) == []
        given[:] = [2]
        assert bench.run([up, down]) == ["down"]  # which is parked, as what it is built from is
        bench.project.publish(bench.result.run_id, by="ann")
        given[:] = [1]
        assert bench.run([up, down]) == ["down"]  # computed before, of a version of this very name
        bench.project.publish(bench.result.run_id, by="ann")
        assert bench.table("down").read()["n"].to_pylist() == [1]
