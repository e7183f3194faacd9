"""Checks in real runs: each passes where it should, fails where it should, and says why."""

import shutil
from types import SimpleNamespace

import dagster as dg
import deltalake
import pyarrow as pa
import pytest
from dagster._core.definitions.reconstruct import ReconstructableRepository

from dagster_versioned.assets.feature import versioned_feature
from dagster_versioned.checks.build import DEFAULT_CHECKS, build_version_checks
from dagster_versioned.checks.chain import ChainValidity
from dagster_versioned.checks.check import CheckedHeads
from dagster_versioned.checks.integrity import HeadIntegrity
from dagster_versioned.checks.parents import FreshParents
from dagster_versioned.checks.row_count import RowCountDrift
from dagster_versioned.checks.schema_policy import SchemaPolicy, differences
from dagster_versioned.delta.files import deletion_vectors
from dagster_versioned.delta.table import Table
from dagster_versioned.errors import IntegrityError, InvalidInput, StoreUnavailable
from dagster_versioned.features.definitions import Field, FieldDep
from dagster_versioned.sensors.source import versioned_source
from dagster_versioned.tables.options import TableOptions

DAYS = dg.StaticPartitionsDefinition(["a", "b", "c"])


@pytest.fixture
def frames():
    """What the assets below return next, by name."""
    return {}


@pytest.fixture
def one(frames):
    @dg.asset
    def one():
        return frames["one"]

    return one


@pytest.fixture
def make(house, one, frames):
    """Makes versions of `one` of these frames, one after the other."""

    def make(*given):
        for frame in given:
            frames["one"] = frame
            house.run(one)

    return make


@pytest.fixture
def judge(house, one, frames):
    """Makes them, and judges each; what checks came to at last."""

    def judge(checks, *given):
        for frame in given:
            frames["one"] = frame
            found = checked(house, one, checks=checks)
        return found

    return judge


@pytest.fixture
def daily(frames):
    @dg.asset(partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
    def daily(context) -> dict[str, pa.Table]:
        return {key: frames[key] for key in context.partition_keys}

    return daily


def rows(count, **columns):
    return pa.table({"n": list(range(count)), **{name: [value] * count for name, value in columns.items()}})


def results(result):
    """What each check of a run came to, by asset and name."""
    return {(one.asset_key.to_user_string(), one.check_name): one for one in result.get_asset_check_evaluations()}


def checked(house, *assets, checks=DEFAULT_CHECKS, of=None, only_checks=False, **kwargs):
    """Run the assets and their checks, or the checks alone."""
    definitions = build_version_checks(of or assets, checks)
    if only_checks:
        kwargs["selection"] = dg.AssetSelection.checks(*definitions)
    return results(house.run(*assets, *definitions, raise_on_error=False, **kwargs))


def one_result(found):
    (only,) = found.values()
    return only


def parts(table):
    return [info.key for info in table.store.list() if info.key.endswith(".parquet") and "/" not in info.key]


def test_all_checks_pass_on_what_was_just_written(judge):
    found = judge(DEFAULT_CHECKS, rows(3))
    assert {name for _, name in found} == {"integrity", "chain", "schema", "parents", "row_count"}
    assert all(result.passed and result.description for result in found.values())
    assert found["one", "integrity"].metadata["parts"].value == 1
    assert found["one", "chain"].metadata["witnessed_commits"].value == 1


def test_an_asset_that_was_never_materialized_fails_with_a_sentence(house, one):
    found = checked(house, one, only_checks=True)
    assert not any(result.passed for result in found.values())
    assert "Nothing was ever written" in found["one", "integrity"].description


def test_a_check_that_blocks_keeps_what_is_downstream_from_running(house, one, frames):
    @dg.asset
    def down(one):
        return one

    blocking = [SchemaPolicy("frozen", blocking=True)]
    frames["one"] = rows(3)
    checked(house, one, down, of=[one], checks=blocking)
    frames["one"] = rows(3, extra="x")
    found = checked(house, one, down, of=[one], checks=blocking)
    assert not one_result(found).passed
    assert house.project.table("one").read().column_names == ["n", "extra"]
    assert house.project.table("down").read().column_names == ["n"]


def test_a_check_that_does_not_block_lets_what_is_downstream_run(house, one, frames):
    @dg.asset
    def down(one):
        return one

    for frame in (rows(3), rows(3, extra="x")):
        frames["one"] = frame
        found = checked(house, one, down, of=[one], checks=[SchemaPolicy("frozen")])
    assert not one_result(found).passed
    assert house.project.table("down").read().column_names == ["n", "extra"]


def test_the_severity_is_the_checks_own(judge):
    found = judge([SchemaPolicy("frozen", severity=dg.AssetCheckSeverity.WARN)], rows(3), rows(3, extra="x"))
    assert one_result(found).severity == dg.AssetCheckSeverity.WARN


def test_an_asset_may_have_two_checks_of_a_kind_under_two_names(judge):
    checks = [SchemaPolicy("frozen", name="strict"), SchemaPolicy("any", name="told")]
    found = judge(checks, rows(3), rows(3, extra="x"))
    assert {name: result.passed for (_, name), result in found.items()} == {"strict": False, "told": True}


def test_two_checks_of_one_name_are_refused():
    with pytest.raises(InvalidInput, match="called 'schema'"):
        build_version_checks(["one"], [SchemaPolicy("frozen"), SchemaPolicy("any")])


def test_one_check_of_several_can_be_run_alone(house, one, make):
    make(rows(3))
    selection = dg.AssetSelection.checks(dg.AssetCheckKey(dg.AssetKey("one"), "chain"))
    found = results(house.run(one, *build_version_checks([one]), selection=selection))
    assert list(found) == [("one", "chain")]


def test_the_project_may_come_from_a_resource_of_its_own(house, one, frames):
    frames["one"] = rows(3)
    checks = build_version_checks([one], [HeadIntegrity()], resource_key="project")
    result = house.run(one, *checks, resources={"project": house.io_manager().project})
    assert one_result(results(result)).passed


def test_a_resource_without_a_project_is_refused_with_what_to_name(house, one, frames):
    frames["one"] = rows(3)
    checks = build_version_checks([one], resource_key="other")
    with pytest.raises(InvalidInput, match=r"'other' is a int.*resource_key="):
        house.run(one, *checks, resources={"other": 1})


def test_keys_names_and_definitions_of_assets_are_taken(one):
    @dg.multi_asset(outs={"left": dg.AssetOut(), "right": dg.AssetOut()})
    def both():
        return None, None

    built = build_version_checks([one, both, "three", dg.AssetKey(["a", "four"]), ["a", "four"], dg.AssetSpec("five")])
    found = {key.to_user_string() for checks in built for key in {spec.asset_key for spec in checks.check_specs}}
    assert found == {"one", "left", "right", "three", "a/four", "five"}
    assert len(built) == 6


# Integrity


def test_a_part_with_altered_bytes_is_named(house, one, judge):
    judge(DEFAULT_CHECKS, rows(100))
    table = house.project.table("one")
    (part,) = parts(table)
    data = bytearray(table.store.get(part))
    data[len(data) // 2] ^= 1
    table.store.put(part, bytes(data))
    found = checked(house, one, only_checks=True)
    assert {name for (_, name), result in found.items() if not result.passed} == {"integrity"}
    assert "SHA-256" in found["one", "integrity"].description
    assert part in found["one", "integrity"].metadata["problems"].value


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_part_that_is_missing_or_cut_is_named(house, one, damage, make):
    make(rows(100))
    table = house.project.table("one")
    (part,) = parts(table)
    if damage == "missing":
        table.store.delete([part])
    else:
        table.store.put(part, table.store.get(part)[:-1])
    result = one_result(checked(house, one, checks=[HeadIntegrity()], only_checks=True))
    assert not result.passed
    assert ("missing" if damage == "missing" else "were committed") in result.metadata["problems"].value


@pytest.mark.parametrize("damage", ["missing", "altered"])
def test_a_deletion_vector_that_is_not_what_was_committed_is_named(house, one, damage, monkeypatch, make):
    monkeypatch.setattr(deletion_vectors.named_by_content, "__defaults__", (0,))  # in files, however small
    make(rows(100, v=0))
    table = house.project.table("one")
    merge = TableOptions(mode="merge", merge_key=("n",), properties={"delta.enableDeletionVectors": "true"})
    table.write(pa.table({"n": [3], "v": [1]}), options=merge)
    assert one_result(checked(house, one, checks=[HeadIntegrity()], only_checks=True)).passed
    (vector,) = [info.key for info in table.store.list() if info.key.endswith(".bin")]
    data = bytearray(table.store.get(vector))
    data[-6] ^= 1
    table.store.delete([vector])
    if damage == "altered":
        table.store.put(vector, bytes(data))
    result = one_result(checked(house, one, checks=[HeadIntegrity()], only_checks=True))
    assert not result.passed
    assert vector.rpartition("/")[2] in result.metadata["problems"].value
    with pytest.raises(IntegrityError):
        table.read()


def test_a_store_that_fails_costs_no_other_check_its_verdict(house, one, monkeypatch, make):
    make(rows(3))

    def unreachable(*_):
        raise StoreUnavailable("The store does not answer.")

    monkeypatch.setattr(HeadIntegrity, "judge", unreachable)
    definitions = build_version_checks([one])
    result = house.run(one, *definitions, selection=dg.AssetSelection.checks(*definitions), raise_on_error=False)
    assert not result.success
    assert {name for _, name in results(result)} == {each.check_name for each in DEFAULT_CHECKS} - {"integrity"}


def test_all_that_is_read_is_of_the_heads_that_are_judged(house, one, make):
    make(rows(3))
    table = house.project.table("one")
    context = SimpleNamespace(job_def=dg.Definitions([one]).resolve_implicit_global_asset_job_def())
    checked_heads = CheckedHeads(house.project.table("one"), dg.AssetKey("one"), None, context)
    (head,) = checked_heads.heads
    before = table.files().adds
    table.write(rows(4))
    assert checked_heads.heads == (head,)
    assert checked_heads.files().adds == before
    assert checked_heads.table.version() != head


def test_only_the_head_is_looked_at(house, one, make):
    make(rows(3))
    table = house.project.table("one")
    (old,) = parts(table)
    make(rows(4))
    table.store.delete([old])
    assert one_result(checked(house, one, checks=[HeadIntegrity()], only_checks=True)).passed


def test_a_run_of_partitions_is_judged_by_its_own(house, daily, frames):
    frames.update({key: rows(3 + i) for i, key in enumerate("abc")})
    tags = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "c"}
    assert all(result.passed for result in checked(house, daily, tags=tags).values())
    table = house.project.table("daily")
    broken = table.files(partition="a").scan.files[0].key
    table.store.delete([broken])
    integrity = [HeadIntegrity()]
    assert one_result(checked(house, daily, checks=integrity, partition_key="b")).passed
    assert not one_result(checked(house, daily, checks=integrity, only_checks=True)).passed
    assert one_result(checked(house, daily, checks=integrity, partition_key="a")).passed  # writing again healed it


# Chain


def test_a_commit_that_was_changed_is_named(house, one, make):
    make(*map(rows, (1, 2, 3)))
    key = f"_delta_log/{1:020d}.json"
    store = house.project.table("one").store
    store.put(key, store.get(key).replace(b'"mode":"Overwrite"', b'"mode":"overwrite"'))
    result = one_result(checked(house, one, checks=[ChainValidity()], only_checks=True))
    assert not result.passed
    assert "@2" in result.metadata["problems"].value  # the link to it
    assert "@1" in result.metadata["problems"].value  # the event log


def test_a_log_that_was_cut_is_seen_by_the_event_log(house, one, make):
    make(*map(rows, (1, 2)))
    house.project.table("one").store.delete([f"_delta_log/{1:020d}.json"])
    seen = one_result(checked(house, one, checks=[ChainValidity()], only_checks=True))
    blind = one_result(checked(house, one, checks=[ChainValidity(witnesses=0)], only_checks=True))
    assert not seen.passed
    assert "the log ends before it" in seen.description
    assert blind.passed


def test_what_the_event_log_says_of_another_place_is_left_out(house, one, frames, tmp_path, make):
    from dagster_versioned import ProjectResource, VersionedParquetIOManager

    frames["one"] = rows(1)
    elsewhere = VersionedParquetIOManager(project=ProjectResource(name="HOUSE", location=str(tmp_path / "other")))
    house.run(one, io_manager=elsewhere)
    make(rows(2))
    result = one_result(checked(house, one, checks=[ChainValidity()], only_checks=True))
    assert result.passed
    assert result.metadata["witnessed_commits"].value == 1


def test_a_log_that_cannot_be_read_is_a_verdict_and_no_crash(house, one, make):
    make(rows(1))
    store = house.project.table("one").store
    store.put(f"_delta_log/{0:020d}.json", b"{")
    found = checked(house, one, only_checks=True)
    assert not any(result.passed for result in found.values())
    assert "_delta_log" in found["one", "chain"].description


# Schema


def struct(**fields):
    return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        (struct(a="long"), struct(a="long"), []),
        (struct(a="long"), struct(a="long", b="string"), [("b", "added")]),
        (struct(a="long", b="string"), struct(a="long"), [("b", "removed")]),
        (struct(a="long"), struct(a="integer"), [("a", "another type")]),
        (struct(a="long", b="string"), struct(b="string", a="long"), [("(columns)", "another order")]),
        (struct(a=struct(x="long")), struct(a=struct(x="long", y="long")), [("a.y", "added")]),
        (struct(a=struct(x="long")), struct(a=struct(x="string")), [("a.x", "another type")]),
        (struct(a=struct(x="long")), struct(a="long"), [("a", "another type")]),
        (
            struct(a={"type": "array", "elementType": struct(x="long"), "containsNull": True}),
            struct(a={"type": "array", "elementType": struct(), "containsNull": True}),
            [("a.element.x", "removed")],
        ),
        (
            struct(a={"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}),
            struct(a={"type": "map", "keyType": "long", "valueType": "string", "valueContainsNull": True}),
            [("a.key", "another type"), ("a.value", "another type")],
        ),
    ],
)
def test_differences_of_schemas_are_found_at_any_depth(before, after, kinds):
    assert [(one.path, one.kind) for one in differences(before, after)] == kinds


@pytest.mark.parametrize(
    ("policy", "passes"),
    [
        ("additive", {"added": True, "removed": False, "type": False, "order": True}),
        ("frozen", {"added": False, "removed": False, "type": False, "order": False}),
        ("any", {"added": True, "removed": True, "type": True, "order": True}),
    ],
)
def test_each_policy_allows_what_it_says(policy, passes, make, judge):
    changed = {
        "added": pa.table({"n": [1], "s": ["a"], "t": ["b"]}),
        "removed": pa.table({"n": [1]}),
        "type": pa.table({"n": [1.5], "s": ["a"]}),
        "order": pa.table({"s": ["a"], "n": [1]}),
    }
    found = {}
    for name, frame in changed.items():
        make(pa.table({"n": [1], "s": ["a"]}))
        result = one_result(judge([SchemaPolicy(policy)], frame))
        found[name] = result.passed
        assert result.metadata["differences"].value == 1
        assert ("allowed" if result.passed else "refused") in result.metadata["schema_changes"].value
    assert found == passes


def test_a_baseline_refuses_again_what_has_become_the_version_before(house, one, make, judge):
    make(rows(1, s="a"))
    house.project.pin("contract", "one", "@0")
    previous = one_result(judge([SchemaPolicy()], *map(rows, (1, 2))))
    assert previous.passed
    against = SchemaPolicy(baseline="pin:contract")
    assert not one_result(checked(house, one, checks=[against], only_checks=True)).passed


def test_the_first_version_of_a_partition_is_compared_with_the_other_partitions(house, daily, frames):
    frames.update(a=rows(1, s="a"), b=rows(1))
    assert one_result(checked(house, daily, checks=[SchemaPolicy()], partition_key="a")).passed
    result = one_result(checked(house, daily, checks=[SchemaPolicy()], partition_key="b"))
    assert not result.passed
    assert "s (removed" in result.description


def test_an_unknown_policy_is_refused():
    with pytest.raises(InvalidInput, match="additive, frozen, any"):
        SchemaPolicy("strict")


# Row counts


@pytest.mark.parametrize(
    ("counts", "passed"),
    [([100], True), ([100, 51], True), ([100, 49], False), ([100, 200], True), ([100, 201], False)],
)
def test_a_count_far_from_the_median_fails(counts, passed, judge):
    result = one_result(judge([RowCountDrift()], *map(rows, counts)))
    assert result.passed == passed
    assert str(counts[-1]) in result.metadata["row_counts"].value
    assert result.metadata["rows"].value == counts[-1]


def test_the_median_is_taken_over_the_last_versions_with_other_data(house, one, make):
    make(*map(rows, (1000, 10, 11, 1000, 12)))
    assert one_result(checked(house, one, checks=[RowCountDrift(last=3)], only_checks=True)).passed
    assert not one_result(checked(house, one, checks=[RowCountDrift(last=1)], only_checks=True)).passed


def test_growth_may_be_without_limit(judge):
    result = one_result(judge([RowCountDrift(max_growth=None)], *map(rows, (1, 100))))
    assert result.passed


def test_a_partition_can_be_compared_with_the_others(house, daily, frames):
    frames.update(a=rows(100), b=rows(100), c=rows(10))
    check = [RowCountDrift(against="partitions")]
    found = [one_result(checked(house, daily, checks=check, partition_key=key)).passed for key in "abc"]
    assert found == [True, True, False]
    assert one_result(checked(house, daily, checks=[RowCountDrift()], partition_key="c")).passed


def test_limits_that_mean_nothing_are_refused():
    with pytest.raises(InvalidInput, match="last=0"):
        RowCountDrift(last=0)


# Parents


def test_a_head_is_stale_once_its_upstream_has_another_version(house, one, frames, make):
    @dg.asset
    def down(one):
        return one

    frames["one"] = rows(3)
    check = [FreshParents()]
    assert one_result(checked(house, one, down, of=[down], checks=check)).passed
    make(rows(4))
    result = one_result(checked(house, one, down, of=[down], checks=check, only_checks=True))
    assert not result.passed
    assert house.head("one").short in result.description
    assert "| one |" in result.metadata["stale_parents"].value
    assert one_result(checked(house, one, down, of=[down], checks=check)).passed


def test_an_upstream_whose_data_is_the_same_is_current_by_data_sha(house):
    def assets(code_version):
        @dg.asset(code_version=code_version)
        def one():
            return rows(3)

        @dg.asset
        def down(one):
            return one

        return one, down

    house.run(*assets("1"))
    house.run(assets("2")[0])
    by_meaning, by_data = (
        one_result(checked(house, *assets("2"), of=["down"], checks=[FreshParents(on)], only_checks=True))
        for on in ("metadata_sha", "data_sha")
    )
    assert (by_meaning.passed, by_data.passed) == (False, True)


def test_an_upstream_that_came_to_be_later_makes_the_head_stale(house):
    @dg.asset(deps=["up"])
    def down():
        return rows(1)

    house.run(down)
    house.project.table(["up"]).write(rows(1))
    assert not one_result(checked(house, down, checks=[FreshParents()], only_checks=True)).passed


def test_a_delta_table_of_no_project_is_judged_by_its_log(house, tmp_path):
    lake = str(tmp_path / "lake" / "rates")

    @dg.asset
    def down(rates: pa.Table) -> pa.Table:
        return rates

    source = versioned_source("rates", uri=lake)
    deltalake.write_deltalake(lake, rows(3))
    house.run(down, source)
    (before,) = house.head("down").identity.parents
    check, by_data = ([FreshParents(on)] for on in ("metadata_sha", "data_sha"))
    assert one_result(checked(house, down, source, of=[down], checks=check, only_checks=True)).passed
    Table(lake).set_properties({"my.note": "x"})
    assert not one_result(checked(house, down, source, of=[down], checks=check, only_checks=True)).passed
    assert one_result(checked(house, down, source, of=[down], checks=by_data, only_checks=True)).passed
    deltalake.write_deltalake(lake, rows(4), mode="append")
    result = one_result(checked(house, down, source, of=[down], checks=by_data, only_checks=True))
    assert not result.passed
    assert before.version[:8] in result.description
    shutil.rmtree(lake)
    result = one_result(checked(house, down, source, of=[down], checks=check, only_checks=True))
    assert result.passed
    assert result.metadata["not_judged"].value == "external:delta.rates"


def test_partitions_are_judged_through_the_mapping(house, daily, frames):
    @dg.asset(partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
    def copy(daily: dict[str, pa.Table]) -> dict[str, pa.Table]:
        return daily

    @dg.asset
    def total(daily):
        return daily

    tags = {"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "c"}
    frames.update(a=rows(1), b=rows(2), c=rows(3))
    check = [FreshParents()]
    found = checked(house, daily, copy, total, of=[copy, total], checks=check, tags=tags)
    assert all(result.passed for result in found.values())
    frames["b"] = rows(5)
    house.run(daily, partition_key="b")
    found = checked(house, daily, copy, total, of=[copy, total], checks=check, only_checks=True)
    assert not found["total", "parents"].passed
    stale = found["copy", "parents"]
    assert stale.metadata["stale"].value == 1
    assert "daily [b]" in stale.metadata["stale_parents"].value


def code_location():
    """As a run of a real deployment loads it, which knows all assets even where only a check is selected."""
    from dagster_versioned import ProjectResource, VersionedParquetIOManager

    @dg.asset(partitions_def=DAYS)
    def daily():
        return rows(1)

    mapping = dg.SpecificPartitionsPartitionMapping(["a", "b"])

    @dg.asset(ins={"daily": dg.AssetIn(partition_mapping=mapping, metadata={"allow_missing_partitions": True})})
    def some(daily):
        return daily

    project = ProjectResource(name="HOUSE", location=dg.EnvVar("CHECKS_TEST_LOCATION"))
    checks = build_version_checks([some], [FreshParents()])
    return dg.Definitions(
        assets=[daily, some],
        asset_checks=checks,
        resources={"io_manager": VersionedParquetIOManager(project=project)},
        jobs=[
            dg.define_asset_job("look", dg.AssetSelection.checks(*checks), executor_def=dg.in_process_executor),
            dg.define_asset_job("build", dg.AssetSelection.assets("some"), executor_def=dg.in_process_executor),
        ],
    )


def test_a_partition_that_came_to_be_later_makes_the_head_stale(house, monkeypatch):
    monkeypatch.setenv("CHECKS_TEST_LOCATION", house.location)
    repository = ReconstructableRepository.for_file(__file__, "code_location")

    def run(job):
        with dg.execute_job(repository.get_reconstructable_job(job), house.instance) as result:
            assert result.success
            return results(result)

    daily = house.project.table(["daily"])
    daily.write(rows(1), partition="a")
    run("build")
    daily.write(rows(1), partition="c")
    assert one_result(run("look")).passed
    daily.write(rows(1), partition="b")
    result = one_result(run("look"))
    assert not result.passed
    assert "daily [b] is at" in result.description


def test_a_pinned_input_is_current_if_it_is_what_was_read(house, one, frames, make):
    make(rows(3), rows(4))

    def found(metadata=None, pins=None):
        @dg.asset(ins={"one": dg.AssetIn(metadata=metadata)})
        def down(one):
            return one

        manager = house.io_manager(pins=pins or {})
        return one_result(checked(house, one, down, of=[down], checks=[FreshParents()], io_manager=manager))

    frames["one"] = rows(5)
    assert found(metadata={"dagster_versioned/version": "@0"}).passed
    assert found(pins={"one": "@1"}).passed
    assert house.parents("down") == [("one", None, house.project.table("one").version("@1").metadata_sha)]
    assert found().passed


@pytest.mark.parametrize("is_loaded", [True, False])
def test_an_upstream_of_another_project_is_judged_where_its_io_manager_is_known(house, tmp_path, is_loaded):
    from dagster_versioned import Project, ProjectResource, VersionedParquetIOManager, versioned_source

    other = Project.open("ELSEWHERE", str(tmp_path / "other"))
    resource = ProjectResource(name="ELSEWHERE", location=str(tmp_path / "other"))
    far = versioned_source("far", io_manager_key="elsewhere")

    @dg.asset(deps=None if is_loaded else [far], ins={"far": dg.AssetIn()} if is_loaded else None)
    def down(**inputs):
        return rows(1)

    def found(of, **options):
        resources = {"elsewhere": VersionedParquetIOManager(project=resource)}
        return one_result(checked(house, *of, of=["down"], checks=[FreshParents()], resources=resources, **options))

    other.table("far").write(rows(1))
    assert found([far, down]).passed
    other.table("far").write(rows(2))
    result = found([far, down], only_checks=True)
    assert not result.passed
    assert f"far is at {other.table('far').version().short}" in result.description
    listed = found([dg.AssetSpec("down")], only_checks=True)  # nobody says where it is
    assert listed.passed
    assert listed.metadata["not_judged"].value == "ELSEWHERE.far"


def test_features_are_judged_by_the_fields_that_they_are_computed_from(house):
    videos = [(1, "a", "x")]

    def assets(code):
        @versioned_feature(
            id_columns=["id"], fields=[Field("sound", columns=["sound"]), Field("image", code, columns=["image"])]
        )
        def video():
            return pa.table(dict(zip(("id", "sound", "image"), map(list, zip(*videos, strict=True)), strict=True)))

        @versioned_feature(id_columns=["id"], fields=[Field("text", deps=[FieldDep(video, ["sound"])])], deps=[video])
        def words(increment):
            return increment.changed.select(["id"])

        @versioned_feature(id_columns=["id"], fields=[Field("faces", deps=[FieldDep(video, ["image"])])], deps=[video])
        def faces(increment):
            return increment.changed.select(["id"])

        return video, words, faces

    def fresh(*materialized, code="1"):
        every = assets(code)
        checks = build_version_checks(every[1:], [FreshParents()])
        selection = dg.AssetSelection.assets(*materialized).without_checks() | dg.AssetSelection.checks(*checks)
        found = results(house.run(*every, *checks, selection=selection))
        return [found[name, "parents"].passed for name in ("words", "faces")]

    assert fresh("video", "words", "faces") == [True, True]
    videos[0] = (1, "other", "x")
    house.run(*assets("1"), selection=["video"])
    assert fresh("faces") == [False, True]
    assert fresh("words") == [True, True]
    assert fresh("words", code="2") == [True, False]
    assert fresh("faces", code="2") == [True, True]


def test_what_counts_as_a_change_is_checked_when_it_is_said():
    with pytest.raises(InvalidInput, match="'data'; it is 'metadata_sha' or 'data_sha'"):
        FreshParents(on="data")  # pyright: ignore[reportArgumentType]
