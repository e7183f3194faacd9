"""A promotion killed at every call of the store, and what production does before calls of a promotion and of a fork."""

import contextlib
import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import ProjectResource, VersionedParquetIOManager, build_version_sensor
from dagster_versioned.branches.environments import create_environment, drop_environment
from dagster_versioned.branches.open_promotion import abandon_promotion
from dagster_versioned.branches.promote import PromotionReport, promote
from dagster_versioned.branches.promotion_document import PROMOTION_KEY, read_promotion
from dagster_versioned.errors import CommitConflict, EnvironmentNotFound, HeldHead, InvalidInput, VersionedError
from dagster_versioned.projects.project import Project
from dagster_versioned.storage import LocalStore
from dagster_versioned.tables.environment.registry import names_of
from support.chain import build, forked, rows
from support.chain import sorted_numbers as numbers
from support.crashes import append_as_another_program
from support.interleaving import Stepped, dying, impatient
from support.s3_server import S3Server
from support.stores import left_of_environments

pytestmark = pytest.mark.slow

MOST_CALLS = 1000
EVERY = 4
"""What production does meanwhile is done before each fourth call, beginning with another one for each."""


def opened(root: Path) -> Project:
    return Project("NYC", LocalStore(root))


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """A chain with partitions, and an environment that has other versions of it, a new partition and a new table."""
    root = tmp_path_factory.mktemp("base") / "lake"
    project = opened(root)
    project.table("raw").write(rows(1, 2))
    build(project, "middle", rows(1), "raw")
    build(project, "middle", rows(2), "raw")
    for key in "ab":
        build(project, "daily", rows(1), "raw", partition=key)
    build(project, "top", rows(3), "middle", "daily")
    branch = forked(project, "pr")
    build(branch, "middle", rows(20), "raw", code="2")
    build(branch, "daily", rows(10), "raw", code="2", partition="a")
    build(branch, "daily", rows(11), "raw", code="2", partition="c")
    build(branch, "top", rows(30), "middle", "daily", code="2")
    build(branch, "new", rows(40), "top", code="2")
    return root


def write(project: Project) -> None:
    build(project, "middle", rows(77), "raw", code="9")


def write_and_revert(project: Project) -> None:
    write(project)
    project.table("middle").revert("@1")


def write_and_expire(project: Project) -> None:
    write(project)
    build(project, "middle", rows(78), "raw", code="9")
    project.table("middle").expire(keep_last=1, dry_run=False)


def vacuum(project: Project) -> None:
    for table in project.tables():
        project.table(table).vacuum(min_age=timedelta(seconds=-1), dry_run=False)


def drop(project: Project) -> None:
    project.table("middle").drop(dry_run=False)


def make_and_drop_a_partition(project: Project) -> None:
    build(project, "daily", rows(5), "raw", partition="c", code="9")
    project.table("daily").drop_partitions(["c"], dry_run=False)


def append_elsewhere(project: Project) -> None:
    append_as_another_program(project.table("middle"), rows(99))


def rename(project: Project) -> None:
    project.table("middle").rename("renamed", dry_run=False)


def hold(project: Project) -> None:
    project.table("middle").revert("@1", hold=True, why="a dispute")


def write_upstream(project: Project) -> None:
    project.table("raw").write(rows(5))


def write_the_new_table(project: Project) -> None:
    build(project, "new", rows(41), "top", code="9")


def promote_too(project: Project) -> None:
    promote(project, "pr", dry_run=False)


def has_been_kept(project: Project, other: Callable[[Project], None]) -> bool:
    """Whether what production did is what production has."""
    middle = project.table("middle")
    match other.__name__:
        case "write":
            return numbers(project, "middle") == [77]
        case "write_and_revert" | "hold":
            return numbers(project, "middle") == [2]
        case "write_and_expire":
            return numbers(project, "middle") == [78]
        case "drop":
            return not middle.state.history.heads
        case "make_and_drop_a_partition":
            return "c" not in project.table("daily").state.history.heads
        case "append_elsewhere":
            return 99 in numbers(project, "middle")
        case "rename":
            return project.table("renamed").exists()
        case "write_upstream":
            return numbers(project, "raw") == [5]
        case "write_the_new_table":
            return numbers(project, "new") in ([40], [41])
        case _:
            return True


OTHERS = [
    write,
    write_and_revert,
    write_and_expire,
    vacuum,
    drop,
    make_and_drop_a_partition,
    append_elsewhere,
    rename,
    hold,
    write_upstream,
    write_the_new_table,
    promote_too,
]


def at_calls(
    base: Path, folder: Path, happens: Callable[[Stepped, Path], None], *, first: int = 1
) -> Iterator[tuple[Stepped, Path]]:
    """Copies of the base, each with a store in which something happens before a later one, by `EVERY`, of its calls."""
    for number in itertools.count(first, EVERY):
        root = folder / str(number)
        shutil.copytree(base, root)
        fired: list[int] = []
        box: list[Stepped] = []

        def before(call, number=number, root=root, fired=fired, box=box) -> None:
            if call.number == number:
                fired.append(number)
                happens(box[0], root)

        box.append(Stepped(LocalStore(root), before))
        with impatient():
            yield box[0], root
        shutil.rmtree(root)
        if not fired:
            assert number > 20
            return
        assert number < MOST_CALLS


def deaths(base: Path, folder: Path, *, least: int = 10) -> Iterator[tuple[Stepped, Path]]:
    """Copies of the base, each with the store of a process that dies before a later one of the calls that write."""
    for number in itertools.count(1):
        root = folder / str(number)
        shutil.copytree(base, root)
        store = dying(LocalStore(root), number)
        with impatient():
            yield store, root
        shutil.rmtree(root)
        if not store.shared["dead"]:
            assert number > least
            return
        assert number < MOST_CALLS


def require_sound(project: Project, *, documents: bool = True) -> None:
    for table in project.tables():
        findings = project.table(table).verify().findings
        assert not [one for one in findings if documents or one.subject != "document"], table


def ends_of(project: Project) -> dict[str, tuple[list[int], int]]:
    return {one: (numbers(project, one), project.table(one).state.log_version) for one in project.tables()}


def test_a_promotion_that_dies_goes_on(base, tmp_path):
    whole = tmp_path / "whole"
    shutil.copytree(base, whole)
    promote(opened(whole), "pr", dry_run=False)
    wanted = ends_of(opened(whole))
    for store, root in deaths(base, tmp_path):
        with contextlib.suppress(VersionedError):
            promote(Project("NYC", store), "pr", dry_run=False)
        project = opened(root)
        for table in project.tables():
            project.table(table).read()
        assert not promote(project, "pr", dry_run=False).left
        assert ends_of(project) == wanted
        require_sound(project)


def keep_current(root: Path, code: str):
    """Production's version sensor as it is deployed with the old code or the new; each call is a tick of a new process.

    Returns the assets that a run is requested for.
    """
    keys = dg.StaticPartitionsDefinition(["a", "b", "c"])

    def asset(name: str, *upstreams: str, code_version: str | None = code, partitions=None) -> dg.AssetsDefinition:
        def compute() -> pa.Table:
            raise NotImplementedError

        deps = [dg.AssetDep(one, partition_mapping=ALL if one == "daily" else None) for one in upstreams]
        return dg.asset(name=name, deps=deps, code_version=code_version, partitions_def=partitions)(compute)

    assets = [
        asset("raw", code_version=None),
        asset("middle", "raw"),
        asset("daily", "raw", partitions=keys),
        asset("top", "middle", "daily"),
        asset("new", "top"),
    ]
    resource = ProjectResource(name="NYC", location=str(root))
    sensor = build_version_sensor("keep", dg.AssetSelection.all(), on_code_version=True)
    manager = VersionedParquetIOManager(project=resource)
    definitions = dg.Definitions(assets, sensors=[sensor], resources={"io_manager": manager})

    def tick(instance: dg.DagsterInstance) -> set[str]:
        with dg.build_sensor_context(instance=instance, definitions=definitions) as context:
            found = sensor.evaluate_tick(context)
        return {key.to_user_string() for one in found.run_requests or () for key in one.asset_selection}

    return tick


ALL = dg.AllPartitionMapping()
LONG_AGO = timedelta(minutes=61)


def let_it_die(project: Project) -> None:
    """An hour goes by, after which nobody is waited for: not a promotion, and not who announced a commit either."""
    for name in project.tables():
        project.table(name).resolve()
    known = read_promotion(project.data)
    if known is not None:
        before = (known.renewed_at - LONG_AGO).isoformat()
        project.data.put(PROMOTION_KEY, replace(known, renewed=before).to_bytes())


def prepare(project: Project) -> None:
    promote(project, "pr", dry_run=False, half="prepare")


def commit(project: Project) -> None:
    promote(project, "pr", dry_run=False, half="commit")


def abandon(project: Project) -> None:
    abandon_promotion(project, "pr", dry_run=False)


def abandon_and_drop(project: Project) -> None:
    with contextlib.suppress(InvalidInput):
        abandon(project)
    drop_environment(project, "pr")


@pytest.mark.parametrize("dies", [prepare, commit, abandon, abandon_and_drop], ids=lambda dies: dies.__name__)
def test_production_requests_nothing_that_a_promotion_makes_needless_and_all_that_it_leaves(base, tmp_path, dies):
    """A half dies at any call, before or after the new code is deployed; sensors look, and whoever comes goes on."""
    started = tmp_path / "started"
    shutil.copytree(base, started)
    branch = opened(started).in_environment("pr")  # all partitions by the new code, which else asks for the others
    build(branch, "daily", rows(12), "raw", code="2", partition="b")
    build(branch, "top", rows(31), "middle", "daily", code="2")
    build(branch, "new", rows(41), "top", code="2")
    promoted = {"middle", "daily", "top", "new"}
    if dies is not prepare:
        prepare(opened(started))
    seen = set()
    with dg.DagsterInstance.ephemeral() as instance:
        for store, root in deaths(started, tmp_path, least=1):
            with contextlib.suppress(VersionedError):
                dies(Project("NYC", store))
            project = opened(root)
            found = read_promotion(project.data)
            state = None if found is None else found.state
            seen.add(state)
            done = {one for one in promoted if is_promoted(project, one)}
            old, new = keep_current(root, "1"), keep_current(root, "2")
            if state == "open":
                assert old(instance) == new(instance) == set()
                again = root.with_name(f"{root.name} again")
                shutil.copytree(root, again)
                let_it_die(opened(again))
                assert bool(keep_current(again, "2")(instance)) == (done != promoted)
                shutil.rmtree(again)
            else:
                assert done == (promoted if state == "ended" else done)
                assert bool(new(instance)) == (done != promoted)
            if "pr" in names_of(project.store) and dies is not abandon_and_drop:
                assert not promote(project, "pr", dry_run=False).left
                assert new(instance) == set()
                require_sound(project)
                assert read_promotion(project.data).state in ("ended", "abandoned")
            elif dies is abandon_and_drop:
                abandon_and_drop_again(project)
                assert new(instance) >= {"daily"}
                assert not left_of_environments(project.store)
    expected = {prepare: {None, "open"}, commit: {"open", "ended"}}
    assert seen == expected.get(dies, {"open", "abandoned"})


@pytest.mark.s3
@pytest.mark.parametrize("dies", [prepare, commit, abandon], ids=lambda dies: dies.__name__)
@pytest.mark.timeout(1200)
def test_a_half_that_dies_on_s3_is_gone_on_with(base, tmp_path, s3_server: S3Server, dies):
    whole = tmp_path / "whole"
    shutil.copytree(base, whole)
    promote(opened(whole), "pr", dry_run=False)
    wanted = ends_of(opened(whole))
    started = tmp_path / "started"
    shutil.copytree(base, started)
    if dies is not prepare:
        prepare(opened(started))
    bucket = s3_server.new_bucket()
    for number in itertools.count(1):
        store = s3_server.store(bucket, f"{number}")
        for info in LocalStore(started).list(""):
            store.put(info.key, LocalStore(started).get(info.key))
        stepped = dying(store, number)
        with contextlib.suppress(VersionedError), impatient():
            dies(Project("NYC", stepped))
        project = Project("NYC", store)
        assert not promote(project, "pr", dry_run=False).left
        assert ends_of(project) == wanted
        assert read_promotion(project.data).state == "ended"
        require_sound(project)
        if not stepped.shared["dead"]:
            assert number > 1
            return


def is_promoted(project: Project, table: str) -> bool:
    heads = project.table(table).state.history.heads.values() if project.table(table).exists() else ()
    return any(one.facts.promoted_from == "pr" for one in heads)


def abandon_and_drop_again(project: Project) -> None:
    with contextlib.suppress(EnvironmentNotFound):  # where all of it is gone
        abandon_and_drop(project)


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.__name__)
def test_what_production_does_meanwhile_stays(base, tmp_path, other):
    done: list[Path] = []

    def happens(_: Stepped, root: Path) -> None:
        done.append(root)
        other(opened(root))

    for store, root in at_calls(base, tmp_path, happens, first=1 + OTHERS.index(other) % EVERY):
        with contextlib.suppress(VersionedError):
            promote(Project("NYC", store), "pr", dry_run=False)
        project = opened(root)
        require_sound(project, documents=other is not append_elsewhere)
        assert root not in done or has_been_kept(project, other)


@pytest.mark.parametrize("other", [one for one in OTHERS if one is not promote_too], ids=lambda other: other.__name__)
def test_a_fork_reads_whatever_production_does_meanwhile_and_afterwards(base, tmp_path, other):
    alone = tmp_path / "alone"
    shutil.copytree(base, alone)
    drop_environment(opened(alone), "pr")
    first = 1 + OTHERS.index(other) % EVERY
    for store, root in at_calls(alone, tmp_path, lambda _, root: other(opened(root)), first=first):
        with contextlib.suppress(VersionedError):
            create_environment(Project("NYC", store), "e")
        project = opened(root)
        if "e" in list(names_of(project.store)):
            replace_and_collect_all(project)
            branch = project.in_environment("e")
            for table in branch.tables():
                if branch.table(table).state.history.heads:
                    branch.table(table).read()
        require_sound(project, documents=other is not append_elsewhere)


def replace_and_collect_all(project: Project) -> None:
    for number, table in itertools.product(range(2), project.tables()):
        for partition in list(project.table(table).state.history.heads) or [None]:
            with contextlib.suppress(HeldHead):
                build(project, table, rows(1000 + number), partition=partition, code="z")
    for table in project.tables():
        project.table(table).expire(keep_last=1, dry_run=False)
        project.table(table).vacuum(min_age=timedelta(seconds=-1), dry_run=False)


def test_promotions_of_two_environments_at_once(tmp_path):
    project = opened(tmp_path / "lake")
    project.table("raw").write(rows(1, 2))
    build(project, "middle", rows(1), "raw")
    build(project, "top", rows(3), "middle")
    for name, number in (("pr-1", 10), ("pr-2", 20)):
        branch = forked(project, name)
        build(branch, "middle", rows(number), "raw", code=name)
        build(branch, "top", rows(number + 1), "middle", code=name)
    reports = []

    def run(name: str) -> None:
        try:
            reports.append(promote(opened(tmp_path / "lake"), name, dry_run=False))
        except CommitConflict as error:  # while another one's is open
            reports.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("pr-1", "pr-2", "pr-1", "pr-2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reports) == 4
    assert any(isinstance(one, PromotionReport) for one in reports)
    assert read_promotion(project.data).state == "ended"
    require_sound(project)
    assert project.table("middle").state.log_version == 1
    assert numbers(project, "middle")[0] in (10, 20)
    if numbers(project, "top") != [3]:
        assert numbers(project, "top") == [numbers(project, "middle")[0] + 1]


@pytest.mark.s3
def test_promotions_of_one_environment_at_once_on_s3(s3_server: S3Server):
    store = s3_server.store(s3_server.new_bucket())
    project = Project("NYC", store)
    project.table("raw").write(rows(1))
    create_environment(project, "pr")
    build(project.in_environment("pr"), "middle", rows(*range(20_000)), "raw", code="2")
    reports = []
    threads = [
        threading.Thread(target=lambda: reports.append(promote(Project("NYC", store), "pr", dry_run=False)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reports) == 3
    assert Project("NYC", store).table("middle").state.log_version == 0
    require_sound(project)
    assert not [info.key for info in store.list("datom/middle/_staging/")]
    drop_environment(project, "pr")
    assert project.table("middle").read().num_rows == 20_000
