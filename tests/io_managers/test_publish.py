"""`publish="after_checks"`: nobody outside of a run reads a version whose blocking check has not passed."""

import dataclasses
import signal
import time
from datetime import datetime, timedelta

import dagster as dg
import deltalake
import pyarrow as pa
import pytest

from dagster_versioned import (
    Project,
    ProjectResource,
    TableOptions,
    VersionedParquetIOManager,
    build_publication_sensor,
    build_version_checks,
    build_version_sensor,
    publish_checked,
    version_changed,
)
from dagster_versioned.assets.parked import PARKED_TAG
from dagster_versioned.branches.environments import create_environment, drop_environment
from dagster_versioned.branches.promote import promote
from dagster_versioned.checks.check import Verdict, VersionCheck
from dagster_versioned.checks.row_count import RowCountDrift
from dagster_versioned.errors import InvalidInput
from dagster_versioned.io_managers import publication
from dagster_versioned.io_managers.publication import WHOLE_KEY
from dagster_versioned.publication import park, publish
from dagster_versioned.sensors import watch
from support.dagster_versions import has_partitioned_checks
from support.house import materializations

AFTER = {"publish": "after_checks"}


def rows(*numbers):
    return pa.table({"n": list(numbers)})


def numbers(house, name, **chosen):
    return sorted(house.project.table(name).read(**chosen)["n"].to_pylist())


def seen_outside(house, name):
    """What a reader who knows nothing of us gets."""
    return sorted(deltalake.DeltaTable(f"{house.location}/datom/{name}").to_pyarrow_table()["n"].to_pylist())


def defined(house, *assets, checks=(), **more):
    resources = {"io_manager": house.io_manager(**AFTER)}
    return dg.Definitions(assets=assets, asset_checks=checks, resources=resources, **more)


def materialized(house, definitions, **given):
    job = definitions.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(instance=house.instance, raise_on_error=False, **given)


class Pipeline:
    """`raw`, a blocking check of it (or what ``checks`` are), and `total`, which reads it; what they do is set from
    outside."""

    def __init__(self, house, checks=(), **options):
        self.house = house
        self.given, self.passes, self.severity, self.checked = rows(1, 2), True, dg.AssetCheckSeverity.ERROR, []
        self.fails_below = False
        metadata = TableOptions(**options).as_metadata() if options else None

        @dg.asset(metadata=metadata)
        def raw():
            return self.given

        @dg.asset_check(asset=raw, blocking=True)
        def good(raw: pa.Table):
            self.checked.append(sorted(raw["n"].to_pylist()))
            return dg.AssetCheckResult(passed=self.passes, severity=self.severity)

        @dg.asset
        def total(raw: pa.Table):
            if self.fails_below:
                raise ValueError("below")
            return rows(sum(raw["n"].to_pylist()))

        self.assets = [raw, total]
        self.define(checks or [good])

    def define(self, checks):
        self.definitions = dg.Definitions(
            assets=self.assets,
            asset_checks=checks,
            resources={"io_manager": self.house.io_manager(**AFTER)},
            sensors=[build_publication_sensor("publisher")],
            jobs=[
                dg.define_asset_job("all", selection=dg.AssetSelection.all()),
                dg.define_asset_job(
                    "unchecked", selection=dg.AssetSelection.all() - dg.AssetSelection.all_asset_checks()
                ),
                *([dg.define_asset_job("checks", selection=dg.AssetSelection.all_asset_checks())] if checks else []),
            ],
        )

    def run(self, job="all", **given):
        made = self.definitions.resolve_job_def(job)
        return made.execute_in_process(instance=self.house.instance, raise_on_error=False, **given)

    def publish(self, **given):
        return publish_checked(self.house.project, self.house.instance, self.definitions, **given)

    def tick(self, sensor=None):
        repository = self.definitions.get_repository_def()
        context = dg.build_sensor_context(instance=self.house.instance, repository_def=repository)
        return (sensor or repository.get_sensor_def("publisher")).evaluate_tick(context)


@pytest.fixture
def pipeline(house):
    return Pipeline(house)


def standings(house):
    return {str(one.table): one.standing for one in house.project.parked()}


def test_a_run_reads_what_it_parked_and_nobody_else_does_before_it_is_published(house, pipeline):
    result = pipeline.run()
    assert result.success
    assert pipeline.checked == [[1, 2]]
    assert not house.project.table("raw").exists()
    assert not house.project.table("total").exists()
    report = pipeline.publish()
    assert [str(one.draft.table) for one in report.published] == ["raw", "total"]
    assert seen_outside(house, "raw") == [1, 2]
    assert seen_outside(house, "total") == [3]
    assert house.parents("total") == [("raw", None, house.head("raw").metadata_sha)]
    assert standings(house) == {"raw": "published", "total": "published"}
    assert house.project.table("raw").verify().ok


def test_a_version_whose_blocking_check_fails_is_never_read_outside(house, pipeline):
    pipeline.run()
    pipeline.publish()
    pipeline.given, pipeline.passes = rows(666), False
    assert not pipeline.run().success
    report = pipeline.publish()
    assert not report.published
    assert seen_outside(house, "raw") == [1, 2]
    assert house.project.parked()[-1].standing == "failed"
    assert "the check good has failed" in house.project.parked()[-1].why


def test_a_check_that_warns_has_passed(house, pipeline):
    pipeline.passes, pipeline.severity = False, dg.AssetCheckSeverity.WARN
    pipeline.run()
    assert len(pipeline.publish().published) == 2


def test_a_check_that_was_not_executed_has_not_passed_and_may_follow_in_a_run_of_its_own(house, pipeline):
    run = pipeline.run("unchecked")
    assert run.success
    assert "the check good has not been evaluated" in pipeline.publish().waiting[0][1]
    pipeline.run("checks", tags={PARKED_TAG: run.run_id})
    assert pipeline.checked == [[1, 2]]
    assert len(pipeline.publish().published) == 2


def test_an_evaluation_by_a_run_that_does_not_see_the_draft_says_nothing_of_it(house, pipeline):
    pipeline.run()
    pipeline.publish()
    pipeline.given = rows(3)
    pipeline.run("unchecked")
    pipeline.run("checks")
    assert pipeline.checked[-1] == [1, 2]
    assert not pipeline.publish().published


def test_a_check_that_crashes_has_not_passed(house):
    @dg.asset_check(asset="raw", blocking=True)
    def crashes():
        raise ValueError("crash")

    pipeline = Pipeline(house, [crashes])
    pipeline.run()
    [(_, why)] = pipeline.publish().waiting
    assert "did not run to its end" in why
    assert house.project.parked()[0].standing == "failed"


def test_a_check_that_is_removed_is_not_waited_for(house, pipeline):
    pipeline.run("unchecked")
    assert not pipeline.publish().published
    pipeline.define([])
    assert len(pipeline.publish().published) == 2


class TestExecutedAgain:
    """Runs that are executed again, on an instance that keeps their runs."""

    @pytest.fixture
    def again(self, tmp_path, monkeypatch):
        location = str(tmp_path / "data")
        monkeypatch.setenv(
            "AGAIN_LOCATION", location
        )  # in a variable, since Dagster remembers the job of the last test
        monkeypatch.setattr(Again, "given", [1, 2])
        monkeypatch.setattr(Again, "passes", False)
        with dg.instance_for_test() as instance:
            yield Project.open("HOUSE", location), instance

    def run(self, instance, **given):
        job = dg.build_reconstructable_job(__name__, "again_job")
        with dg.execute_job(job, instance, **given) as result:
            return result.run_id

    def publish(self, project, instance):
        return publish_checked(project, instance, again_definitions())

    def test_from_its_failure_a_run_goes_on_with_what_was_parked(self, again):
        project, instance = again
        first = self.run(instance)
        assert not self.publish(project, instance).published
        Again.passes, Again.given = True, [99]
        options = dg.ReexecutionOptions.from_failure(first, instance)
        self.run(instance, reexecution_options=options)
        assert [str(one.draft.table) for one in self.publish(project, instance).published] == ["raw", "total"]
        assert project.table("total").read()["n"].to_pylist() == [3]

    def test_with_all_steps_it_starts_afresh(self, again):
        project, instance = again
        first = self.run(instance)
        Again.passes, Again.given = True, [99]
        self.run(instance, reexecution_options=dg.ReexecutionOptions(first))
        report = self.publish(project, instance)
        assert [one.draft.run.run_id == first for one in report.published] == [False, False]
        assert project.table("raw").read()["n"].to_pylist() == [99]
        assert [one.standing for one in project.parked()] == ["failed", "published", "published"]

    def test_what_is_parked_again_is_looked_at_anew_by_who_knows_of_the_failure(self, again, monkeypatch):
        project, instance = again
        monkeypatch.setattr(Again, "fails", True)
        definitions = again_definitions(checked=False)
        repository, job = definitions.get_repository_def(), dg.build_reconstructable_job(__name__, "unchecked_job")
        with dg.execute_job(job, instance) as failed:
            [(first, why)] = publish_checked(project, instance, repository).waiting
        assert why == "its step raw has not succeeded"
        Again.fails = False
        dg.execute_job(job, instance, reexecution_options=dg.ReexecutionOptions.from_failure(failed.run_id, instance))
        report = publish_checked(project, instance, repository)
        assert [one.draft.id == first.id for one in report.published] == [True, False]

    def test_what_was_published_is_not_parked_again_and_all_that_follows_is_of_the_head(self, again, monkeypatch):
        project, instance = again
        monkeypatch.setattr(Again, "fails", True)
        first = self.run(instance)
        project.publish(first, by="ann")
        head = project.table("raw").write(rows(-5)).version
        Again.fails, Again.passes = False, True
        self.run(instance, reexecution_options=dg.ReexecutionOptions.from_failure(first, instance))
        assert Again.checked == [-5]
        assert [str(one.draft.table) for one in self.publish(project, instance).published] == ["total"]
        [parent] = project.table("total").version().identity.parents
        assert (parent.version, project.table("total").read()["n"].to_pylist()) == (head.metadata_sha, [-5])
        assert project.table("raw").read()["n"].to_pylist() == [-5]

    def test_what_was_dropped_is_not_read_by_a_run_that_goes_on(self, again, monkeypatch):
        project, instance = again
        first = self.run(instance)
        [draft] = project.parked()
        project.drop_parked(draft.id, by="ann")
        monkeypatch.setattr(Again, "checked", None)
        self.run(instance, reexecution_options=dg.ReexecutionOptions.from_failure(first, instance))
        assert Again.checked is None
        assert [one.standing for one in project.parked()] == ["superseded"]


class Again:
    given, passes, fails, checked = [1, 2], False, False, None


def again_definitions(*, checked=True):
    @dg.asset
    def raw():
        yield dg.Output(rows(*Again.given))
        if Again.fails:
            raise ValueError("after it parked")

    @dg.asset_check(asset=raw, blocking=True)
    def good(raw: pa.Table):
        Again.checked = raw["n"].to_pylist()
        return dg.AssetCheckResult(passed=Again.passes)

    @dg.asset
    def total(raw: pa.Table):
        return rows(sum(raw["n"].to_pylist()))

    project = ProjectResource(name="HOUSE", location=dg.EnvVar("AGAIN_LOCATION"))
    manager = VersionedParquetIOManager(project=project, publish="after_checks")
    return dg.Definitions(
        assets=[raw, total],
        asset_checks=[good] if checked else [],
        resources={"io_manager": manager},
        executor=dg.in_process_executor,
        jobs=[dg.define_asset_job("all", selection=dg.AssetSelection.all())],
    )


def again_job():
    return again_definitions().resolve_job_def("all")


def unchecked_job():
    return again_definitions(checked=False).resolve_job_def("all")


class TestAWholeTableCheck:
    def test_is_evaluated_again_once_other_rows_moved(self, house):
        @dg.asset_check(asset="raw", blocking=True, metadata={WHOLE_KEY: True})
        def whole(raw: pa.Table):
            return dg.AssetCheckResult(passed=True)

        pipeline = Pipeline(house, [whole], mode="append")
        run = pipeline.run()
        house.project.table("raw").write(rows(5), options=TableOptions(mode="append"))
        assert "moved since the check whole" in pipeline.publish().waiting[0][1]
        pipeline.run("checks", tags={PARKED_TAG: run.run_id})
        pipeline.publish()
        assert numbers(house, "raw") == [1, 2, 5]


class TestMaintenance:
    def test_vacuum_keeps_the_parts_of_a_draft_and_takes_closed_drafts_away(self, house, pipeline):
        house.project.table("raw").write(rows(0))
        pipeline.run()
        now = {"min_age": timedelta(seconds=-5), "dry_run": False}
        house.project.table("raw").vacuum(**now)
        assert len(pipeline.publish().published) == 2
        assert numbers(house, "raw") == [1, 2]
        house.project.table("raw").vacuum(**now)
        assert [str(one.table) for one in house.project.parked()] == ["total"]

    def test_a_table_with_drafts_is_not_dropped_renamed_or_purged(self, house, pipeline):
        table = house.project.table("raw")
        table.write(rows(0))
        table.write(rows(9))
        pipeline.run()
        for verb in (
            lambda: table.drop(dry_run=False),
            lambda: table.rename("other", dry_run=False),
            lambda: table.purge(["@0"], why="law", dry_run=False),
            lambda: house.project.rename("OTHER"),
        ):
            with pytest.raises(InvalidInput, match="parked drafts"):
                verb()
        for draft in house.project.parked():
            house.project.drop_parked(draft.id, by="ann", why="not needed")
        assert not house.project.publish(draft.run.run_id, by="ann").published
        table.rename("other", dry_run=False)


class TestVersionSensor:
    def test_a_cell_with_a_draft_to_be_judged_is_not_asked_for_again(self, house, pipeline):
        pipeline.run()
        pipeline.publish()
        house.project.table("raw").write(rows(8))
        pipeline.given = rows(8)
        pipeline.run("unchecked")
        assert [str(one.table) for one in house.project.parked() if one.is_living] == ["total"]
        result = pipeline.tick(build_version_sensor("versions", "total"))
        assert not result.run_requests
        assert "parked by run" in result.skip_message

    def test_a_cell_whose_draft_was_built_from_one_that_has_failed_is_asked_for_again(self, house, monkeypatch):
        monkeypatch.setattr(watch, "CLOCKS", timedelta(0))
        pipeline = Pipeline(house)
        for given, job in ((rows(1), "all"), (rows(2), "unchecked")):
            pipeline.given = given
            pipeline.run(job)
            pipeline.publish()
        pipeline.given = rows(3)
        pipeline.run("all", asset_selection=[dg.AssetKey("raw")])
        pipeline.run("checks", tags={PARKED_TAG: house.project.parked()[-1].run.run_id})
        pipeline.publish()
        assert [(str(draft.table), draft.standing) for draft in house.project.parked() if draft.is_living] == [
            ("raw", "failed"),
            ("total", "parked"),
        ]
        assert len(pipeline.tick(build_version_sensor("versions", "total")).run_requests) == 1
        house.project.publish(house.project.parked()[2].run.run_id, by="me")
        assert "parked" not in {draft.standing for draft in house.project.parked()}

    def test_hands_on_what_was_published_under_another_name(self, house, monkeypatch):
        monkeypatch.setattr(watch, "CLOCKS", timedelta(0))
        pipeline = Pipeline(house, mode="append")
        pipeline.run()
        pipeline.given = rows(3)
        pipeline.run()
        pipeline.publish()
        assert len(pipeline.tick(build_version_sensor("versions", "total")).run_requests) == 1


def test_append_puts_every_row_there_once_whoever_came_first(house):
    pipeline = Pipeline(house, mode="append")
    first = pipeline.run()
    pipeline.given = rows(3)
    pipeline.run()
    assert pipeline.checked == [[1, 2], [3]]
    report = pipeline.publish()
    assert numbers(house, "raw") == [1, 2, 3]
    assert [str(one.table) for one in report.superseded] == ["total"]
    house.project.publish(first.run_id, by="me")
    assert numbers(house, "raw") == [1, 2, 3]


def test_merge_is_put_onto_the_head_as_it_is_when_it_is_published(house):
    pipeline = Pipeline(house, mode="merge", merge_key=("n",))
    pipeline.run("unchecked")
    house.project.table("raw").write(rows(2, 5), options=TableOptions(mode="merge", merge_key=("n",)))
    house.project.publish(house.project.parked()[0].run.run_id, by="me")
    assert numbers(house, "raw") == [1, 2, 5]


def test_a_replacement_of_a_head_that_moved_is_superseded_and_says_so(house, pipeline):
    pipeline.run()
    house.project.table("raw").write(rows(7))
    report = pipeline.publish()
    assert [str(one.table) for one in report.superseded] == ["raw", "total"]
    assert "was none when the draft was made" in report.superseded[0].why
    assert numbers(house, "raw") == [7]


def test_what_is_the_head_already_is_not_parked(house, pipeline):
    pipeline.run()
    pipeline.publish()
    before = len(house.project.parked())
    result = pipeline.run()
    assert len(house.project.parked()) == before
    assert materializations(result)["raw", None].metadata["dagster_versioned/change"].value == "none"


def test_dagster_shows_what_is_parked_and_what_is_published(house, pipeline):
    result = pipeline.run()
    made = materializations(result)["raw", None].metadata
    assert made["dagster_versioned/state"].value == "parked"
    assert "dagster_versioned/log_version" not in made
    pipeline.publish()
    last = house.instance.get_latest_materialization_event(dg.AssetKey("raw")).asset_materialization
    assert last.metadata["dagster_versioned/state"].value == "published"
    assert last.metadata["dagster_versioned/metadata_sha"].value == house.head("raw").metadata_sha
    count = len(house.instance.fetch_materializations(dg.AssetKey("raw"), limit=10).records)
    pipeline.publish()
    assert len(house.instance.fetch_materializations(dg.AssetKey("raw"), limit=10).records) == count


def test_what_checks_found_of_a_draft_is_of_the_published_version_in_dagster_too(house, pipeline):
    """Else Dagster's UI says that they are to be evaluated again."""
    result = pipeline.run()
    pipeline.publish()
    pipeline.publish()
    check = dg.AssetCheckKey(dg.AssetKey("raw"), "good")
    [newest, first] = house.instance.event_log_storage.get_asset_check_execution_history(check, limit=9)
    published = house.instance.get_latest_materialization_event(dg.AssetKey("raw"))
    assert published.asset_materialization.metadata["dagster_versioned/state"].value == "published"
    [last] = house.instance.fetch_materializations(dg.AssetKey("raw"), limit=1).records
    assert (first.run_id, newest.run_id) == (result.run_id, "")
    assert newest.evaluation.target_materialization_data.storage_id == last.storage_id
    assert newest.evaluation.passed
    assert newest.evaluation.metadata["dagster_versioned/evaluated_by"].value == result.run_id


@has_partitioned_checks
def test_each_publication_of_a_partition_says_in_dagster_what_its_check_has_found(house):
    keys, given = dg.StaticPartitionsDefinition(["a", "b"]), [1]

    @dg.asset(partitions_def=keys)
    def sales() -> pa.Table:
        return rows(*given)

    @dg.asset_check(asset=sales, blocking=True, partitions_def=keys)
    def good(sales: pa.Table):
        return dg.AssetCheckResult(passed=True)

    defs = defined(house, sales, checks=[good])
    for number in range(3):
        given[0] = number
        run = materialized(house, defs, partition_key="a")
        for published in (1, 0):
            assert len(publish_checked(house.project, house.instance, defs).published) == published
        assert numbers(house, "sales", partition="a") == [number]
        newest, *_ = house.instance.event_log_storage.get_asset_check_execution_history(good.check_key, limit=9)
        [last] = house.instance.fetch_materializations(dg.AssetKey("sales"), limit=1).records
        assert (newest.partition, newest.evaluation.target_materialization_data.storage_id) == ("a", last.storage_id)
        assert newest.evaluation.metadata["dagster_versioned/evaluated_by"].value == run.run_id


def test_what_was_reported_beside_a_publication_is_not_taken_for_an_evaluation_of_the_next_draft(house, pipeline):
    pipeline.run()
    pipeline.publish()
    pipeline.given = rows(3)
    pipeline.run("unchecked")
    [(raw, why), _] = pipeline.publish().waiting
    assert (str(raw.table), why) == ("raw", "the check good has not been evaluated")


def test_what_has_failed_is_looked_at_again_only_where_a_check_was_executed_again(house, pipeline, monkeypatch):
    pipeline.passes = False
    run = pipeline.run()
    looks = []
    monkeypatch.setattr(
        house.instance,
        "get_run_step_stats",
        lambda *given, ask=house.instance.get_run_step_stats: looks.append(given) or ask(*given),
    )
    repository = pipeline.definitions.get_repository_def()
    publish_checked(house.project, house.instance, repository)
    assert looks
    looks.clear()
    [(_, why)] = publish_checked(house.project, house.instance, repository).waiting
    assert (looks, why) == ([], f"the check good has failed in run {run.run_id[:8]}")
    pipeline.given = rows(7)
    other = pipeline.run()
    assert len(publish_checked(house.project, house.instance, repository).waiting) == 2
    assert {run_id for run_id, *_ in looks} == {other.run_id}
    pipeline.passes = True
    pipeline.run("checks", tags={PARKED_TAG: run.run_id})
    assert len(publish_checked(house.project, house.instance, repository).published) == 1


def test_what_passes_at_last_and_waits_for_another_draft_says_so_and_not_that_it_has_failed(house):
    passes = {"raw": False, "total": False}

    @dg.asset_check(asset="raw", blocking=True)
    def good_raw(raw: pa.Table):
        return dg.AssetCheckResult(passed=passes["raw"])

    @dg.asset_check(asset="total", blocking=True)
    def good_total(total: pa.Table):
        return dg.AssetCheckResult(passed=passes["total"])

    pipeline = Pipeline(house, [good_raw, good_total])
    seen = {PARKED_TAG: pipeline.run("unchecked").run_id}
    pipeline.run("checks", tags=seen)
    pipeline.publish()
    assert [one.why.partition(" has")[0] for one in house.project.parked()] == [
        "the check good_raw",
        "the check good_total",
    ]
    passes["total"] = True
    run = pipeline.run("checks", tags=seen)
    [_, (_, why)] = pipeline.publish().waiting
    raw, total = house.project.parked()
    assert (total.standing, total.why) == ("parked", why)
    assert why == f"it was built from the draft {raw.id[:8]} of {raw}, which is not published ({raw.why})"
    assert (raw.standing, raw.why) == ("failed", f"the check good_raw has failed in run {run.run_id[:8]}")


def test_a_check_that_fails_while_another_draft_is_published_has_failed(house, monkeypatch):
    pipeline = Pipeline(house, mode="append")
    pipeline.run()
    pipeline.given = rows(3)
    second = pipeline.run()

    def meanwhile(*given, report=publication.report_publication):
        if pipeline.passes:
            pipeline.passes = False
            pipeline.run("checks", tags={PARKED_TAG: second.run_id})
        report(*given)

    monkeypatch.setattr(publication, "report_publication", meanwhile)
    pipeline.publish()
    assert numbers(house, "raw") == [1, 2]
    assert "the check good has failed" in next(one for one in house.project.parked() if one.is_living).why


def test_rows_that_are_published_while_a_draft_waits_for_another_have_moved_for_its_check(house, monkeypatch):
    """The draft waits, since the clock of the machine that made it is slow: what it was built from comes later."""

    class Slow(datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) - timedelta(hours=1)

    @dg.asset
    def raw():
        return rows(numbers_of.pop())

    @dg.asset(metadata=TableOptions(mode="append").as_metadata())
    def added(raw: pa.Table):
        monkeypatch.setattr(park, "datetime", clocks.pop())
        return raw

    @dg.asset_check(asset=added, blocking=True, metadata={WHOLE_KEY: True})
    def only_one(added: pa.Table):
        return dg.AssetCheckResult(passed=added.num_rows == 1)

    numbers_of, clocks = [2, 1], [datetime, Slow]
    manager = house.io_manager(**AFTER)
    defs = defined(house, raw, added, checks=[only_one])

    def run(selection):
        assert house.run(raw, added, only_one, io_manager=manager, selection=selection).success

    run([raw])
    publish_checked(house.project, house.instance, defs)
    run(dg.AssetSelection.all())
    run(dg.AssetSelection.assets(added))
    report = publish_checked(house.project, house.instance, defs)
    assert [str(one.draft.table) for one in report.published] == ["raw", "added"]
    [(_, why)] = report.waiting
    assert "moved since the check only_one looked" in why
    assert numbers(house, "added") == [1]


def test_a_run_that_is_cancelled_before_its_check_has_ended_publishes_nothing(house):
    @dg.asset_check(asset="raw", blocking=True)
    def cancelled():
        signal.raise_signal(signal.SIGINT)
        time.sleep(5)
        return dg.AssetCheckResult(passed=True)

    pipeline = Pipeline(house, [cancelled])
    assert not pipeline.run().success
    [(_, why)] = pipeline.publish().waiting
    assert "did not run to its end" in why
    assert [one.standing for one in house.project.parked()] == ["failed"]


class TestMultiAssets:
    def test_each_output_is_judged_by_its_own_checks(self, house):
        @dg.multi_asset(outs={"good": dg.AssetOut(), "bad": dg.AssetOut()})
        def both():
            yield dg.Output(rows(1), "good")
            yield dg.Output(rows(2), "bad")

        @dg.asset_check(asset="bad", blocking=True)
        def refused(bad: pa.Table):
            return dg.AssetCheckResult(passed=False)

        definitions = defined(house, both, checks=[refused])
        materialized(house, definitions)
        report = publish_checked(house.project, house.instance, definitions)
        assert [str(one.draft.table) for one in report.published] == ["good"]
        assert standings(house) == {"good": "published", "bad": "failed"}
        assert not house.project.table("bad").exists()


class TestInAnEnvironment:
    def test_it_is_published_within_it_and_promoted_from_it(self, house):
        house.project.table("raw").write(rows(1, 2))
        house.project.table("total").write(rows(0), code_version="1", parents=house.project.table("raw").upstream())
        create_environment(house.project, "pr")
        branch = house.project.in_environment("pr")
        resource = ProjectResource(name="HOUSE", location=house.location, environment="pr")

        @dg.asset(code_version="2")
        def total(raw: pa.Table):
            return rows(sum(raw["n"].to_pylist()))

        @dg.asset_check(asset=total, blocking=True)
        def good(total: pa.Table):
            return dg.AssetCheckResult(passed=total["n"].to_pylist() == [3])

        definitions = dg.Definitions(
            assets=[dg.AssetSpec("raw"), total],
            asset_checks=[good],
            resources={"io_manager": VersionedParquetIOManager(project=resource, **AFTER)},
        )
        job = definitions.resolve_implicit_global_asset_job_def()
        assert job.execute_in_process(instance=house.instance).success
        assert not house.project.parked()
        assert branch.table("total").read()["n"].to_pylist() == [0]
        assert len(publish_checked(branch, house.instance, definitions).published) == 1
        assert branch.table("total").read()["n"].to_pylist() == [3]
        assert numbers(house, "total") == [0]
        made = branch.table("total").version().metadata_sha
        assert not promote(house.project, "pr", dry_run=False).left
        assert seen_outside(house, "total") == [3]
        assert house.head("total").metadata_sha == made

    def test_it_sees_no_draft_of_production_and_leaves_them_alone(self, house, pipeline):
        pipeline.run()
        create_environment(house.project, "pr")
        branch = house.project.in_environment("pr")
        assert not branch.parked()
        branch.table("raw").write(rows(9))
        drop_environment(house.project, "pr")
        assert len(pipeline.publish().published) == 2
        assert numbers(house, "raw") == [1, 2]


def test_the_sensor_goes_on_where_a_draft_cannot_be_published(house, pipeline):
    pipeline.run()
    bad = house.project.parked()[0]
    pipeline.given = rows(3)
    pipeline.run()
    house.project.data.put(bad.key, bad.to_bytes()[:-20])
    tick = pipeline.tick()
    assert numbers(house, "raw") == [3]
    assert "1 could not be read" in tick.skip_message


def test_a_forged_draft_is_not_published(house, pipeline):
    pipeline.run()
    draft = house.project.parked()[0]
    forged = draft.to_bytes().replace(b'"author":null', b'"author":"x"')
    assert forged != draft.to_bytes()
    house.project.data.put(draft.key, forged)
    report = pipeline.publish()
    assert not report.published
    assert "not what its step parked" in report.waiting[0][1]


def test_a_draft_whose_files_were_collected_is_superseded(house, pipeline):
    pipeline.run()
    table = house.project.table("raw")
    table.store.delete([info.key for info in table.store.list() if info.key.endswith(".parquet")])
    report = pipeline.publish()
    assert "was collected" in report.superseded[0].why
    assert not table.exists()


def test_what_a_step_parked_is_not_published_before_the_step_has_ended(house):
    seen = []

    @dg.asset
    def raw():
        yield dg.Output(rows(1))
        seen.append(publish_checked(house.project, house.instance, defs))

    defs = defined(house, raw)
    assert materialized(house, defs).success
    [(_, why)] = seen[0].waiting
    assert why == "its step raw has not ended yet"
    assert len(publish_checked(house.project, house.instance, defs).published) == 1


def test_a_step_that_failed_after_it_parked_is_not_published(house):
    @dg.asset(check_specs=[dg.AssetCheckSpec("inside", asset="raw", blocking=True)])
    def raw():
        yield dg.Output(rows(1))
        raise ValueError("after its output")

    defs = defined(house, raw)
    materialized(house, defs)
    report = publish_checked(house.project, house.instance, defs)
    assert "has not succeeded" in report.waiting[0][1]


def test_a_step_that_is_tried_again_parks_once(house):
    tries = []

    @dg.asset(retry_policy=dg.RetryPolicy(max_retries=1), metadata=TableOptions(mode="append").as_metadata())
    def raw():
        tries.append(1)
        yield dg.Output(rows(len(tries)))
        if len(tries) == 1:
            raise ValueError("after its output")

    house.run(raw, io_manager=house.io_manager(**AFTER))
    [draft] = house.project.parked()
    house.project.publish(draft.run.run_id, by="me")
    assert numbers(house, "raw") == [2]


def test_our_checks_look_at_what_is_parked(house):
    @dg.asset
    def raw():
        return rows(1)

    checks = build_version_checks([raw], [RowCountDrift(blocking=True)])
    result = house.run(raw, *checks, io_manager=house.io_manager(**AFTER))
    assert all(one.passed for one in result.get_asset_check_evaluations())


def test_a_ranged_run_parks_its_partitions_as_one(house):
    daily = dg.StaticPartitionsDefinition(["a", "b"])

    @dg.asset(partitions_def=daily, backfill_policy=dg.BackfillPolicy.single_run())
    def raw(context):
        return {key: rows(number) for number, key in enumerate(context.partition_keys)}

    @dg.asset_check(asset=raw, blocking=True)
    def good():
        return dg.AssetCheckResult(passed=True)

    defs = defined(house, raw, checks=[good])
    tags = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"}
    result = materialized(house, defs, tags=tags)
    assert {one.metadata["dagster_versioned/state"].value for one in materializations(result).values()} == {"parked"}
    assert len(publish_checked(house.project, house.instance, defs).published) == 1
    assert sorted(house.project.table("raw").partitions()) == ["a", "b"]


def test_runs_of_one_backfill_read_what_the_others_parked(house):
    daily = dg.StaticPartitionsDefinition(["a", "b"])

    @dg.asset(partitions_def=daily)
    def raw(context):
        return rows(ord(context.partition_key))

    @dg.asset
    def whole(raw: dict[str, pa.Table]):
        return rows(len(raw))

    manager = house.io_manager(**AFTER)
    for key in "ab":
        house.run(raw, io_manager=manager, partition_key=key, tags={"dagster/backfill": "b1"})
    house.run(raw, whole, io_manager=manager, selection=[whole], tags={"dagster/backfill": "b1"})
    publish_checked(house.project, house.instance, defined(house, raw, whole))
    assert numbers(house, "whole") == [2]


def test_each_run_of_a_backfill_has_what_it_parked_checked_itself(house):
    daily = dg.StaticPartitionsDefinition(["a", "b"])

    @dg.asset(partitions_def=daily)
    def raw(context):
        return rows(ord(context.partition_key))

    @dg.asset_check(asset=raw, blocking=True)
    def good(raw: dict[str, pa.Table]):
        return dg.AssetCheckResult(passed=True, metadata={"seen": sorted(raw)})

    manager = house.io_manager(**AFTER)
    given = {"io_manager": manager, "tags": {"dagster/backfill": "b1"}}
    house.run(raw, partition_key="a", **given)
    result = house.run(raw, good, partition_key="b", **given)
    [found] = result.get_asset_check_evaluations()
    assert found.metadata["seen"].value == ["a", "b"]
    report = publish_checked(house.project, house.instance, defined(house, raw, checks=[good]))
    assert [one.draft.partitions for one in report.published] == [("b",)]
    assert [why for _, why in report.waiting] == ["the check good has not been evaluated"]


def test_a_run_that_is_not_of_the_backfill_does_not(house):
    daily = dg.StaticPartitionsDefinition(["a"])

    @dg.asset(partitions_def=daily)
    def raw():
        return rows(1)

    @dg.asset
    def whole(raw: dict[str, pa.Table]):
        return rows(len(raw))

    manager = house.io_manager(**AFTER)
    house.run(raw, io_manager=manager, partition_key="a", tags={"dagster/backfill": "b1"})
    result = house.run(raw, whole, io_manager=manager, selection=[whole], raise_on_error=False)
    assert not result.success


def test_conditions_that_hear_of_the_step_are_refused(house):
    def assets(condition):
        @dg.asset
        def raw():
            return rows(1)

        @dg.asset(automation_condition=condition)
        def below(raw: pa.Table):
            return raw

        return raw, below

    early = [
        dg.AutomationCondition.eager(),
        dg.AutomationCondition.any_deps_match(dg.AutomationCondition.data_version_changed()),
    ]
    for condition in early:
        with pytest.raises(InvalidInput, match=r"version_changed\(\)"):
            house.run(*assets(condition), io_manager=house.io_manager(**AFTER))
    assert not house.project.parked()
    assert house.run(*assets(version_changed()), io_manager=house.io_manager(**AFTER)).success


def test_publishing_whatever_checks_say_needs_a_name(house, pipeline):
    run = pipeline.run()
    with pytest.raises(InvalidInput, match="by="):
        house.project.publish(run.run_id)
    assert len(house.project.publish(run.run_id, by="ann").published) == 2
    assert house.project.parked()[0].by == "ann"


class TestAnEvaluation:
    """By what its step has read is known of which draft it is, and of which partitions."""

    RANGE = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")

    @pytest.fixture(
        params=[
            "of all",
            pytest.param("of the run's partitions", marks=has_partitioned_checks),
            pytest.param("reads nothing", marks=has_partitioned_checks),
            "ours",
        ]
    )
    def sales(self, house, request):
        """Partitions ``a`` to ``c``, parked by one run, of which those with a negative number do not pass."""
        keys = dg.StaticPartitionsDefinition(["a", "b", "c"])
        self.bad = {"b"}

        @dg.asset(partitions_def=keys, backfill_policy=dg.BackfillPolicy.single_run())
        def sales(context: dg.AssetExecutionContext) -> dict[str, pa.Table]:
            return {key: rows(-1 if key in self.bad else 1) for key in context.partition_keys}

        of = {} if request.param == "of all" else {"partitions_def": keys}

        if request.param == "reads nothing":

            @dg.asset_check(asset=sales, blocking=True, **of)
            def good(context: dg.AssetCheckExecutionContext):
                return dg.AssetCheckResult(passed=not self.bad & set(context.op_execution_context.partition_keys))

            checks = [good]
        elif request.param == "ours":
            checks = build_version_checks([sales], [NoNegative(blocking=True)])
        else:

            @dg.asset_check(asset=sales, blocking=True, **of)
            def good(sales: dict[str, pa.Table]):
                return dg.AssetCheckResult(passed=all(min(one["n"].to_pylist()) > 0 for one in sales.values()))

            checks = [good]
        self.definitions = defined(
            house,
            sales,
            checks=checks,
            jobs=[
                dg.define_asset_job("all", selection=dg.AssetSelection.all()),
                dg.define_asset_job("unchecked", selection=dg.AssetSelection.assets(sales).without_checks()),
                dg.define_asset_job("checks", selection=dg.AssetSelection.all_asset_checks()),
            ],
        )
        return request.param

    def run(self, house, job, first, last=None, **tags):
        given = {"dagster/partition": first} if last is None else dict(zip(self.RANGE, (first, last), strict=True))
        made = self.definitions.resolve_job_def(job)
        return made.execute_in_process(instance=house.instance, raise_on_error=False, tags={**given, **tags})

    def publish(self, house):
        report = publish_checked(house.project, house.instance, self.definitions)
        return len(report.published), [why for _, why in report.waiting]

    def test_of_one_partition_says_nothing_of_the_others(self, house, sales):
        seen = {PARKED_TAG: self.run(house, "all", "a", "c").run_id}
        assert self.publish(house)[0] == 0
        assert self.run(house, "checks", "a", **seen).success or sales == "of all"
        assert self.publish(house)[0] == 0
        assert not house.project.table("sales").exists()

    def test_of_each_partition_by_a_run_of_its_own_is_one_of_all(self, house, sales):
        self.bad = set()
        seen = {PARKED_TAG: self.run(house, "unchecked", "a", "c").run_id}
        self.run(house, "checks", "a", "b", **seen)
        if sales != "of all":  # which it reads in each run
            assert self.publish(house) == (0, [f"the check {self.name} has not been evaluated of 'c'"])
        self.run(house, "checks", "c", **seen)
        assert self.publish(house) == (1, [])

    @property
    def name(self):
        [check] = self.definitions.resolve_asset_graph().asset_check_keys
        return check.name

    def test_of_another_draft_of_the_same_partitions_says_nothing(self, house, sales):
        self.run(house, "all", "a", "c")
        self.bad = set()
        self.run(house, "all", "a", "c")
        assert self.publish(house)[0] == 1
        assert [one.standing for one in house.project.parked()] == ["failed", "published"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoNegative(VersionCheck):
    default_name = "no_negative"
    description = "No number is negative."

    def judge(self, checked):
        found = checked.table.read_files(checked.files())["n"].to_pylist()
        return Verdict(min(found) > 0, f"{found}")


def test_a_check_that_reads_another_version_has_not_looked_at_the_draft(house, pipeline):
    house.project.table("raw").write(rows(0))
    run = pipeline.run("unchecked")
    pipeline.run("checks", tags={PARKED_TAG: run.run_id, "dagster_versioned/pin/raw": "@0"})
    assert pipeline.checked == [[0]]
    assert "the check good has not been evaluated" in pipeline.publish().waiting[0][1]


@dg.asset_check(asset="raw", blocking=True, metadata={WHOLE_KEY: True})
def at_most_two(raw: pa.Table):
    return dg.AssetCheckResult(passed=raw.num_rows <= 2)


@pytest.mark.parametrize("late", [0, -3600, 3600])
@pytest.mark.parametrize("between", ["nobody", "another run"])
def test_what_a_whole_table_check_saw_is_told_by_the_log_and_by_no_clock(house, monkeypatch, late, between):
    """Of two rows at most. Who writes in between has a clock that is an hour off."""

    house.project.table("raw").write(rows(0))
    pipeline = Pipeline(house, [at_most_two], mode="append")
    pipeline.given = rows(1)
    first = pipeline.run()
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + late * 10**9)
    Project.open("HOUSE", house.location).table("raw").write(rows(2), options=TableOptions(mode="append"))
    monkeypatch.setattr(time, "time_ns", real)
    if between == "another run":
        pipeline.given = pa.table({"n": pa.array([], pa.int64())})
        pipeline.run()
    report = pipeline.publish()
    [why] = [why for one, why in report.waiting if one.run.run_id == first.run_id and str(one.table) == "raw"]
    assert "moved since the check at_most_two looked" in why
    assert numbers(house, "raw") == [0, 2]


def test_rows_that_are_committed_after_a_draft_was_judged_have_moved_for_its_check(house, monkeypatch):
    def meanwhile(*given, write=publish.parked_write):
        house.project.table("raw").write(rows(5), options=TableOptions(mode="append"))
        return write(*given)

    pipeline = Pipeline(house, [at_most_two], mode="append")
    pipeline.run()
    monkeypatch.setattr(publish, "parked_write", meanwhile)
    report = pipeline.publish()
    assert "moved since the check at_most_two looked" in report.waiting[0][1]
    assert numbers(house, "raw") == [5]


def test_executions_of_long_ago_are_found(house, pipeline, monkeypatch):
    monkeypatch.setattr(publication, "EXECUTIONS", 1)
    pipeline.run()
    for _ in range(3):
        pipeline.run("checks")
    assert len(pipeline.publish().published) == 2
