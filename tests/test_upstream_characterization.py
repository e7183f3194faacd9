"""What this package relies on beside the public interfaces of Dagster and of Spark.

All of it is imported in one module for each. Where a new release differs, the first test that fails here names what.
"""

import re
import sys
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import dagster as dg
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap  # what a code location tells the daemon

import dagster_versioned
from dagster_versioned import dagster_internals as internals
from support.spark import needs_spark, spark

__all__ = ["spark"]

PACKAGE = Path(dagster_versioned.__file__).parent


@pytest.mark.parametrize(
    ("pattern", "only"),
    [
        (r"\bdagster\._|\bdagster_shared\b", "dagster_internals.py"),
        (r"\b_jvm\b|\b_jdf\b|\b_jsparkSession\b|\b_jsc\b|\bpy4j\b|pyspark\.sql\.classic", "engines/spark/catalyst.py"),
    ],
)
def test_one_module_reaches_inside(pattern: str, only: str) -> None:
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(pattern, path.read_text("utf-8"))
    }
    assert found == {only}


class TestDagster:
    def test_tags_are_spelled_as_stored_runs_have_them(self) -> None:
        assert internals.PARTITION_NAME_TAG == "dagster/partition"
        assert internals.ASSET_PARTITION_RANGE_START_TAG == "dagster/asset_partition_range_start"
        assert internals.ASSET_PARTITION_RANGE_END_TAG == "dagster/asset_partition_range_end"
        assert internals.RETRY_NUMBER_TAG == "dagster/retry_number"
        assert internals.WILL_RETRY_TAG == "dagster/will_retry"
        assert internals.DATA_VERSION_TAG == "dagster/data_version"
        assert internals.CODE_VERSION_TAG == "dagster/code_version"
        assert internals.INPUT_DATA_VERSION_PREFIX == "dagster/input_data_version"
        assert internals.INPUT_EVENT_PREFIX == "dagster/input_event_pointer"

    def test_a_run_is_finished_or_not(self) -> None:
        finished, others = set(internals.FINISHED_STATUSES), set(internals.NOT_FINISHED_STATUSES)
        assert finished | others == set(dg.DagsterRunStatus) - {dg.DagsterRunStatus.MANAGED}
        assert not finished & others

    def test_the_graph_of_a_repository(self) -> None:
        days = dg.StaticPartitionsDefinition(["a", "b"])

        @dg.asset(partitions_def=days, io_manager_key="store", code_version="1", metadata={"kept": 1})
        def up() -> int:
            return 1

        @dg.asset(partitions_def=days, ins={"up": dg.AssetIn(metadata={"asked": 2})}, io_manager_key="store")
        def down(up: int) -> int:
            return up

        @dg.asset_check(asset="up", blocking=True)
        def is_good() -> dg.AssetCheckResult:
            return dg.AssetCheckResult(passed=True)

        manager = dg.mem_io_manager
        source = dg.AssetSpec("outside")
        given = dg.Definitions([up, down, source], resources={"store": manager}, asset_checks=[is_good])
        graph = given.get_repository_def().asset_graph
        one, other = dg.AssetKey("up"), dg.AssetKey("down")

        assert isinstance(graph, internals.AssetGraph)
        assert isinstance(graph, internals.BaseAssetGraph)
        assert [key for key in graph.toposorted_asset_keys if key != source.key] == [one, other]
        assert graph.has(one)
        assert not graph.has(dg.AssetKey("none"))
        node = graph.get(other)
        assert isinstance(node, internals.AssetNode)
        assert (node.is_executable, node.is_materializable, node.is_external) == (True, True, False)
        assert graph.get(source.key).is_external
        assert not graph.get(source.key).is_executable
        assert set(node.parent_keys) == {one}
        assert set(node.execution_set_asset_keys) == {other}
        assert node.partitions_def == days
        assert node.backfill_policy is None
        assert isinstance(graph.get_partition_mapping(other, one), dg.IdentityPartitionMapping)
        above = graph.get(one)
        assert above.code_version == "1"
        assert above.metadata["kept"] in (1, dg.MetadataValue.int(1))
        (check,) = above.check_keys
        assert graph.get(check).blocking
        assets = node.assets_def
        assert assets.keys_by_input_name == {"up": one}
        assert {each.name: each.metadata for each in assets.node_def.input_defs}["up"]["asked"] in (
            2,
            dg.MetadataValue.int(2),
        )
        assert assets.get_io_manager_key_for_asset_key(other) == "store"
        assert assets.resource_defs["store"] is manager
        assert not assets.node_def.output_def_named(assets.get_output_name_for_asset_key(other)).dagster_type.is_nothing

    def test_partitions_that_a_mapping_asks_for_and_that_are_not(self) -> None:
        ours, theirs = dg.StaticPartitionsDefinition(["a", "b"]), dg.StaticPartitionsDefinition(["a", "c"])
        with dg.DagsterInstance.ephemeral() as instance:
            found = dg.IdentityPartitionMapping().get_upstream_mapped_partitions_result_for_partitions(
                ours.subset_with_partition_keys(["a", "b"]), ours, theirs, dynamic_partitions_store=instance
            )
        assert isinstance(found, internals.UpstreamPartitionsResult)
        assert list(found.partitions_subset.get_partition_keys()) == ["a"]
        assert list(found.required_but_nonexistent_subset.get_partition_keys()) == ["b"]

    def test_the_context_of_an_attempt(self) -> None:
        seen: list[dict[str, Any]] = []
        attempts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

        @dg.asset(retry_policy=dg.RetryPolicy(max_retries=1))
        def made(context: dg.AssetExecutionContext) -> int:
            step = context.get_step_execution_context()
            assert isinstance(step, internals.StepExecutionContext)
            attempts[step] = len(seen)
            (output,) = step.step.step_outputs
            step.instance.report_engine_event(
                "noted",
                step.dagster_run,
                internals.EngineEventData({"note": dg.JsonMetadataValue([1])}),
                step_key=step.step.key,
            )
            seen.append(
                {
                    "key": step.step.key,
                    "before": step.previous_attempt_count,
                    "in graph": step.is_op_in_graph,
                    "node": step.node_handle.root.name,
                    "manager": step.get_io_manager(internals.StepOutputHandle(step.step.key, output.name)),
                    "graph": step.job_def.asset_layer.asset_graph.source_asset_graph,
                    "assets": step.assets_def,
                    "contexts": len(attempts),
                    "function": step.assets_def.node_def.compute_fn.decorated_fn.__qualname__,
                    "origin": step.dagster_run.remote_job_origin,
                }
            )
            if len(seen) == 1:
                raise dg.Failure("once")
            return 1

        with dg.DagsterInstance.ephemeral() as instance:
            run = dg.materialize([made], instance=instance).dagster_run
            (stats,) = instance.get_run_step_stats(run.run_id, ["made"])
            entries = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
        assert [one["before"] for one in seen] == [0, 1]
        assert {(one["key"], one["in graph"], one["node"], one["origin"]) for one in seen} == {
            ("made", False, "made", None)
        }
        assert all(isinstance(one["manager"], dg.IOManager) for one in seen)
        assert all(isinstance(one["graph"], internals.AssetGraph) for one in seen)
        assert seen[0]["function"].endswith("made")
        assert stats.status is internals.StepEventStatus.SUCCESS
        assert stats.partial_attempt_start or stats.start_time
        notes = [event.engine_event_data.metadata.get("note") for one in entries if (event := one.dagster_event)]
        assert [note.value for note in notes if note] == [[1], [1]]

    def test_what_checks_found_is_listed_from_the_newest_on(self) -> None:
        results = iter([True, False])

        @dg.asset
        def judged() -> int:
            return 1

        @dg.asset_check(asset="judged", blocking=True)
        def is_good() -> dg.AssetCheckResult:
            return dg.AssetCheckResult(passed=next(results))

        check = dg.AssetCheckKey(dg.AssetKey("judged"), "is_good")
        with dg.DagsterInstance.ephemeral() as instance:
            ids = [dg.materialize([judged, is_good], instance=instance, raise_on_error=False).run_id for _ in range(2)]
            storage = instance.event_log_storage
            found = storage.get_asset_check_execution_history(check, limit=5)
            rest = storage.get_asset_check_execution_history(check, limit=5, cursor=found[0].id)
            newest = storage.get_latest_asset_check_execution_by_key([check])[check]
            made = instance.get_asset_records([check.asset_key])[0].asset_entry.last_materialization_record
            of_run = storage.get_records_for_run(ids[0], of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION).records
        assert all(isinstance(one, internals.AssetCheckExecutionRecord) for one in found)
        assert [one.run_id for one in found] == ids[::-1]
        assert [one.id for one in rest] == [found[1].id]
        assert newest.id == found[0].id
        assert [one.status for one in found] == [
            internals.AssetCheckExecutionRecordStatus.FAILED,
            internals.AssetCheckExecutionRecordStatus.SUCCEEDED,
        ]
        evaluation = found[0].evaluation
        assert isinstance(evaluation, dg.AssetCheckEvaluation)
        assert (evaluation.asset_check_key, internals.partition_of(evaluation)) == (check, None)
        assert isinstance(
            evaluation.target_materialization_data, internals.AssetCheckEvaluationTargetMaterializationData
        )
        assert made
        assert evaluation.target_materialization_data.storage_id == made.storage_id
        (event,) = (one.event_log_entry.get_dagster_event().event_specific_data for one in of_run)
        assert isinstance(event, dg.AssetCheckEvaluation)

    def test_a_condition_is_evaluated_over_the_graph_in_user_code(self) -> None:
        views: list[Any] = []

        class Seen(dg.AutomationCondition[dg.AssetKey]):
            @property
            def name(self) -> str:
                return "seen"

            def evaluate(self, context: dg.AutomationContext[dg.AssetKey]) -> dg.AutomationResult[dg.AssetKey]:
                views.append(context.asset_graph_view)
                return dg.AutomationResult(context, context.get_empty_subset(), cursor="kept")

        @dg.asset(automation_condition=Seen())
        def watched() -> int:
            return 1

        with dg.DagsterInstance.ephemeral() as instance:
            dg.evaluate_automation_conditions([watched], instance)
        (view,) = views
        assert isinstance(view, internals.AssetGraphView)
        assert isinstance(view.asset_graph, internals.AssetGraph)
        assert view.instance is instance
        assert set(view.asset_graph.materializable_asset_keys) == {dg.AssetKey("watched")}
        (told,) = RepositorySnap.from_def(dg.Definitions([watched]).get_repository_def()).asset_nodes
        assert told.automation_condition is None  # all that the daemon has to evaluate
        for asked in (True, False):
            sensor = dg.AutomationConditionSensorDefinition("a", target="*", use_user_code_server=asked)
            assert internals.is_in_user_code(sensor) is asked

    def test_the_code_locations_of_a_workspace_file(self, tmp_path: Path) -> None:
        (tmp_path / "workspace.yaml").write_text("""
load_from:
  - python_module: {module_name: one, working_directory: there, attribute: defs, executable_path: python3}
  - python_file: two.py
  - python_file: {relative_path: three.py}
  - autoload_defs_module: {module_name: four}
  - grpc_server: {port: 4000}
""")
        *own, server = internals.location_origins_from_yaml_paths([str(tmp_path / "workspace.yaml")])
        assert isinstance(server, internals.GrpcServerCodeLocationOrigin)
        assert server.location_name == "grpc:localhost:4000"
        one, two, three, four = (origin.loadable_target_origin for origin in own)
        named = (one.module_name, one.working_directory, one.attribute, one.executable_path)
        assert named == ("one", "there", "defs", "python3")
        assert (two.python_file, two.working_directory) == (str(tmp_path / "two.py"), None)
        assert (three.python_file, three.working_directory) == (str(tmp_path / "three.py"), str(tmp_path))
        assert (four.autoload_defs_module_name, four.module_name, four.package_name) == ("four", None, None)

    def test_a_file_is_a_module_of_its_name_and_a_second_one_takes_its_place(self, tmp_path: Path) -> None:
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "of_this_name.py").write_text(f"is_in = {folder!r}")
        loaded = [internals.load_python_file(tmp_path / one / "of_this_name.py", str(tmp_path)) for one in "ab"]
        assert [module.is_in for module in loaded] == ["a", "b"]
        assert sys.modules.pop("of_this_name") is loaded[1]

    def test_a_selection_with_its_neighbors(self) -> None:
        @dg.multi_asset(specs=[dg.AssetSpec("one"), dg.AssetSpec("other")])
        def both() -> dg.MaterializeResult:
            return dg.MaterializeResult("one")

        graph = dg.Definitions([both]).get_repository_def().asset_graph
        child = dg.AssetSelection.assets("one")
        selection = internals.RequiredNeighborsAssetSelection(child=child)
        assert selection.child is child
        assert selection.resolve(graph) == {dg.AssetKey("one"), dg.AssetKey("other")}


@pytest.mark.spark
class TestSpark:
    @pytest.fixture
    def session(self, spark: Any) -> Any:
        return spark.newSession()

    def test_classic_frames_have_plans(self, session: Any) -> None:
        from dagster_versioned.engines.spark import catalyst

        frame = session.range(3)
        assert catalyst.is_classic(type(frame))
        assert catalyst.has_plans(session)
        assert not catalyst.is_classic(dict)

    def test_a_plan_is_listed_from_its_root_down(self, session: Any) -> None:
        from dagster_versioned.engines.spark import catalyst

        frame = session.sql("SELECT a.id + 1 AS n FROM range(3) a JOIN range(4) b USING (id) WHERE a.id > 0")
        nodes = catalyst.nodes_of(catalyst.plan_of(frame))
        names = [str(one["class"]).rpartition(".")[2] for one in nodes]
        assert names[:4] == ["Project", "Filter", "Project", "Join"]
        assert [one["num-children"] for one in nodes[:4]] == [1, 1, 1, 2]
        assert "projectList" in nodes[0]

    def test_nodes_have_the_members_that_are_walked(self, session: Any) -> None:
        from dagster_versioned.engines.spark import catalyst

        plan = catalyst.plan_of(session.sql("SELECT id % 2 AS k, count(*) AS n FROM range(9) GROUP BY id % 2"))
        assert plan.nodeName() == "Aggregate"
        assert plan.deterministic()
        assert not plan.subqueriesAll().size()
        (key,) = catalyst.items(plan.groupingExpressions())
        columns = catalyst.items(plan.aggregateExpressions())
        assert [one.name() for one in columns] == ["k", "n"]
        assert columns[0].child().semanticEquals(key)
        (below,) = catalyst.children(plan)
        (attribute,) = catalyst.items(below.output())
        assert catalyst.attribute_id(attribute) == attribute.exprId().id()
        assert catalyst.attribute_id(columns[1]) is None

    def test_nodes_that_are_made_run(self, session: Any) -> None:
        from dagster_versioned.engines.spark import catalyst

        build = catalyst.PlanBuilder(session)
        below = catalyst.plan_of(session.range(6))
        (number,) = catalyst.items(below.output())
        doubled = build.project([number, build.expression("id * 2 AS twice")], below)
        assert sorted(row["twice"] for row in catalyst.frame_of(session, doubled).collect()) == [0, 2, 4, 6, 8, 10]
        named = build.project([build.alias(number, "n")], below)
        counted = build.aggregate([], [build.expression("count(1) AS n")], named)
        assert [row["n"] for row in catalyst.frame_of(session, counted).collect()] == [6]
        halved = build.above(catalyst.plan_of(session.range(9).where("id < 3")), [below])
        assert halved.nodeName() == "Filter"

    @needs_spark(4, 0, "scripts in SQL")
    def test_a_command_is_analysed_and_does_not_run(self, session: Any) -> None:
        from pyspark.errors import PySparkException

        from dagster_versioned.engines.spark import catalyst

        catalyst.analysed(session, catalyst.parsed(session, "CREATE TEMPORARY VIEW never AS SELECT 1"))
        assert not session.catalog.tableExists("never")
        from dagster_versioned.engines.spark.releases import release

        if release() >= (4, 1):  # 4.0 has scripts behind a setting
            assert catalyst.parsed(session, "BEGIN SELECT 1; END").nodeName() == "CompoundBody"
        assert "ExecuteImmediate" in catalyst.parsed(session, "EXECUTE IMMEDIATE 'SELECT 1'").nodeName()
        with pytest.raises(PySparkException):
            catalyst.parsed(session, "SELEKT 1")
        with pytest.raises(PySparkException):
            catalyst.analysed(session, catalyst.parsed(session, "SELECT missing"))

    def test_the_optimized_plan_names_what_python_computes(self, session: Any) -> None:
        from dagster_versioned.engines.spark import catalyst

        frame = session.range(3)
        plain, mapped = (
            catalyst.optimized_text(frame),
            catalyst.optimized_text(frame.mapInArrow(lambda batches: batches, "id long")),
        )
        assert "Arrow" not in plain
        assert "Arrow" in mapped.splitlines()[0]
