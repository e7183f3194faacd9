"""Versions are computed again from what they were built from, and nothing of a project is touched by it."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import dagster as dg
import pyarrow as pa
import pytest

from dagster_versioned import Project
from dagster_versioned.assets.code_location import CodeLocation
from dagster_versioned.branches.environments import create_environment
from dagster_versioned.code.commit import write_out
from dagster_versioned.code.runtime import make_environment, requirements_of
from dagster_versioned.io_managers.reproduce import reproduce
from dagster_versioned.process_state import PROCESS
from dagster_versioned.proof.attest import attest_reproduction
from dagster_versioned.proof.keys import PrivateKey
from dagster_versioned.proof.reproduction import differing_columns, likely_reason
from dagster_versioned.proof.signatures import TrustedKeys, check_signatures
from dagster_versioned.tables.stand_ins import StandIns
from support.command_line import in_process

MODULE = """
import os, random, time
import dagster as dg, pandas as pd, polars as pl, pyarrow as pa
from dagster_versioned import *

LOCATION = os.environ["SHOP_LOCATION"]
days = dg.StaticPartitionsDefinition(["mon", "tue"])
regions = dg.DynamicPartitionsDefinition(name="regions")
both = dg.MultiPartitionsDefinition({"day": days, "region": regions})
project = ProjectResource(name="SHOP", location=LOCATION, environment=os.environ.get("SHOP_ENVIRONMENT"),
                          default_engine="polars")


class Till(dg.ConfigurableResource):
    rows: int = 3


class Config(dg.Config):
    factor: int


@dg.asset
def orders(till: Till) -> pa.Table:
    return pa.table({"id": list(range(till.rows)), "price": [1.5 * n for n in range(till.rows)]})

@dg.asset
def cleaned(orders: pl.DataFrame) -> pl.DataFrame:
    return orders.filter(pl.col("id") > 0)

@versioned_asset
def totals(cleaned: pl.DataFrame) -> pl.DataFrame:
    return cleaned.select(pl.col("price").sum())

@dg.asset(metadata=TableOptions(mode="append").as_metadata())
def log(orders: pd.DataFrame) -> pd.DataFrame:
    return orders.assign(n=len(orders))

@dg.asset(metadata=TableOptions(mode="merge", merge_key=("id",)).as_metadata())
def latest(orders: pa.Table) -> pa.Table:
    return orders

@dg.asset(partitions_def=days)
def daily(context: dg.AssetExecutionContext, orders: pa.Table) -> pa.Table:
    return pa.table({"day": [context.partition_key], "n": [orders.num_rows]})

@dg.asset(partitions_def=both)
def regional(context: dg.AssetExecutionContext) -> pa.Table:
    return pa.table({"key": [str(context.partition_key)]})

@dg.asset
def weekly(daily: dict[str, pa.Table]) -> pa.Table:
    return pa.concat_tables([daily[day] for day in sorted(daily)])

@dg.multi_asset(outs={"left": dg.AssetOut(), "right": dg.AssetOut()})
def split(orders: pa.Table) -> tuple[pa.Table, pa.Table]:
    return orders.slice(0, 1), orders.slice(1)

@dg.asset(deps=["orders"])
def by_itself() -> pa.Table:
    table = Project.open("SHOP", LOCATION).table("orders")
    side = Project.open("SHOP", LOCATION).table("side")
    side.write(pa.table({"v": [table.read().num_rows]}))
    return pa.table({"rows": [table.read().num_rows]})

@versioned_feature(id_columns=("id",), fields=("price",))
def orders_feature() -> pl.DataFrame:
    return pl.DataFrame({"id": [1, 2], "price": [1.0, 2.0]})

@versioned_feature(id_columns=("id",), fields=("double",), deps=(FeatureDep(orders_feature),))
def doubled(increment: Increment) -> pl.DataFrame:
    return increment.changed.select("id", double=pl.col("price") * 2)

@dg.asset
def clocked(orders: pa.Table) -> pa.Table:
    return pa.table({"n": [orders.num_rows], "seconds": [pa.scalar(time.time_ns() // 1000, pa.timestamp("us"))]})

@dg.asset
def shuffled(orders: pl.DataFrame) -> pl.DataFrame:
    return orders.with_columns(pick=random.random())

@dg.asset
def configured(config: Config, orders: pa.Table) -> pa.Table:
    return pa.table({"v": [config.factor]})

@dg.asset
def failing(orders: pa.Table) -> pa.Table:
    if os.environ.get("SHOP_FAILS"):
        raise ValueError("no more")
    return orders

@dg.asset(output_required=False)
def maybe(orders: pa.Table):
    if not os.environ.get("SHOP_FAILS"):
        yield dg.Output(orders)

@dg.asset(io_manager_key="elsewhere")
def foreign(orders: pa.Table) -> pa.Table:
    return orders

@dg.asset
def by_value(context, orders: pa.Table):
    if os.environ.get("SHOP_FAILS"):
        return dg.MaterializeResult()
    return orders

@dg.asset(ins={"plain": dg.AssetIn(input_manager_key="pickles")})
def from_pickle(orders: pa.Table, plain) -> pa.Table:
    return pa.table({"v": [plain]})

@dg.asset(io_manager_key="pickles")
def plain() -> int:
    return 7

@dg.asset
def around(orders: pa.Table) -> pa.Table:
    from dagster_versioned.storage import LocalStore
    if os.environ.get("SHOP_FAILS"):
        Project("SHOP", LocalStore(LOCATION)).table("side").write(pa.table({"v": [666]}))
    return orders

@dg.asset_check(asset=cleaned, blocking=True)
def never_asked() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=not os.environ.get("SHOP_FAILS"))

defs = dg.Definitions(
    assets=[orders, cleaned, totals, log, latest, daily, regional, weekly, split, by_itself, doubled, orders_feature,
            clocked, shuffled, configured, failing, maybe, foreign, by_value, plain, from_pickle, around],
    asset_checks=[never_asked],
    resources={"pickles": dg.FilesystemIOManager(base_dir=LOCATION + "-pickles"), "till": Till(),
               "io_manager": VersionedParquetIOManager(project=project),
               "elsewhere": VersionedParquetIOManager(project=project)},
)
"""
ALLOWED = ("till",)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A shop whose every asset was made, ``orders`` and what is below it twice."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop_assets.py").write_text(MODULE)
    moved = '"elsewhere": dg.FilesystemIOManager(base_dir=LOCATION + "-moved")'
    (folder / "shop_moved.py").write_text(
        MODULE.replace('"elsewhere": VersionedParquetIOManager(project=project)', moved)
    )
    (folder / "shop_branch.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_LOCATION", str(folder / "store"))
        patch.syspath_prepend(str(folder))
        import shop_assets

        with dg.DagsterInstance.ephemeral() as instance:
            instance.add_dynamic_partitions("regions", ["north"])
            for rows in (3, 5):
                resources = {**shop_assets.defs.resources, "till": shop_assets.Till(rows=rows)}

                def made(*names, resources=resources, instance=instance, **how):
                    assets = [each for each in shop_assets.defs.assets if each.keys & {dg.AssetKey(n) for n in names}]
                    every = [each for each in shop_assets.defs.assets if each not in assets]
                    ended = dg.materialize(
                        [*assets, *every], selection=list(names), instance=instance, resources=resources, **how
                    )
                    assert ended.success

                plain = {"orders", "cleaned", "totals", "log", "latest", "left", "right", "by_itself"}
                made(*plain, "orders_feature", "doubled", "clocked", "shuffled", "failing", "maybe", "foreign")
                made("by_value", "plain", "from_pickle", "around")
                made("configured", run_config={"ops": {"configured": {"config": {"factor": 2}}}})
                made("daily", partition_key="mon")
                made("daily", partition_key="tue")
                made("weekly")
                made("regional", partition_key="mon|north")
        patch.setenv("SHOP_FAILS", "1")
        yield Project.open("SHOP", str(folder / "store"))
        for name in ("shop_assets", "shop_branch", "shop_moved"):
            sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def _forgotten():
    yield
    PROCESS.forget(StandIns)


def again(shop, table, version=None, folder=None, **how):
    outcome, _ = reproduce(shop, table, version, [CodeLocation("shop_assets")], folder, **{"allowed": ALLOWED, **how})
    return outcome


def digests(shop) -> dict[str, str]:
    root = Path(shop.store.uri)
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(root.rglob("*")) if path.is_file()
    }


@pytest.fixture
def untouched(shop):
    before = digests(shop)
    yield
    PROCESS.forget(StandIns)
    assert digests(shop) == before


NEWEST = ("orders_feature", "doubled", "by_itself", "left", "right", "weekly", "regional", "maybe", "failing")


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("table", "partition"),
    [
        *((name, None) for name in ("cleaned", "totals", "log", "latest", "by_itself", "left", "right", "weekly")),
        *((name, None) for name in ("orders_feature", "doubled")),
        ("daily", "mon"),
        ("daily", "tue"),
        ("regional", "mon|north"),
    ],
)
def test_every_version_is_reproduced(shop, tmp_path, table, partition):
    versions = shop.table(table).history(partition=partition)
    for version in versions:
        at = f"@{version.log_version}"
        outcome = again(shop, table, at, tmp_path / at, partition=partition)
        PROCESS.forget(StandIns)
        assert (outcome.verdict, outcome.same_bytes) == ("reproduced", True), outcome
    assert len(versions) >= (1 if table in ("regional", "orders_feature", "doubled") else 2)


@pytest.mark.usefixtures("untouched")
def test_a_source_is_made_by_what_is_allowed(shop, tmp_path):
    outcome = again(shop, "orders", "@0", tmp_path)
    assert outcome.verdict == "reproduced"
    PROCESS.forget(StandIns)
    outcome = again(shop, "orders", None, tmp_path / "more")  # of five rows, by config that is not recorded
    assert (outcome.verdict, outcome.text) == ("different", "3 rows instead of 5; other values in id, price")


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("table", "column", "reason"), [("clocked", "seconds", "a clock"), ("shuffled", "pick", "a random number")]
)
def test_what_is_never_the_same_is_named_with_its_column(shop, tmp_path, table, column, reason):
    outcome, rows = reproduce(shop, table, None, [CodeLocation("shop_assets")], tmp_path)
    assert (outcome.verdict, outcome.columns) == ("different", [column])
    assert outcome.same_code
    assert reason in likely_reason(outcome.columns, rows["again"])


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(
    ("table", "how", "why"),
    [
        ("orders", {"allowed": ()}, "it needs till, which is not allowed here: --allow-resource till"),
        ("configured", {}, "it needs config, which is not recorded"),
        ("failing", {}, "its function failed: ValueError: no more"),
        ("maybe", {}, "its function made nothing"),
        ("by_value", {}, "its function made nothing that an IO manager of this package stored"),
        ("from_pickle", {}, "its input plain has no versions: the IO manager 'pickles' loads it"),
        ("around", {}, "its function failed: dagster_versioned.errors.InvalidInput: In this process, something stands"),
        ("side", {}, "no definition of the asset side is in what was loaded"),
    ],
)
def test_what_is_not_possible_says_why(shop, tmp_path, table, how, why):
    outcome = again(shop, table, None, tmp_path, **how)
    assert outcome.verdict == "not possible"
    assert outcome.text.startswith(why)


def test_an_io_manager_of_others_is_not_possible(shop, tmp_path):
    outcome, _ = reproduce(shop, "foreign", None, [CodeLocation("shop_moved")], tmp_path)
    assert (outcome.verdict, outcome.text) == ("not possible", "its IO manager 'elsewhere' is none of this package")
    assert not Path(f"{shop.store.uri}-moved").exists()


def test_what_is_gone_is_not_possible(tmp_path, shop, monkeypatch):
    copied = tmp_path / "copy"
    subprocess.run(["cp", "-r", shop.store.uri, copied], check=True)
    monkeypatch.setenv("SHOP_LOCATION", str(copied))
    project = Project.open("SHOP", str(copied))
    project.table("orders").purge(["@0"], why="asked for", dry_run=False)
    outcome = again(project, "cleaned", "@0", tmp_path / "a")
    assert (outcome.verdict, "are gone" in outcome.text) == ("not possible", True)
    assert again(project, "orders", "@0", tmp_path / "b").text.startswith("its rows are gone")


def test_a_version_of_an_environment_and_one_after_a_rename(tmp_path, shop, monkeypatch):
    copied = tmp_path / "copy"
    subprocess.run(["cp", "-r", shop.store.uri, copied], check=True)
    monkeypatch.setenv("SHOP_LOCATION", str(copied))
    monkeypatch.setenv("SHOP_ENVIRONMENT", "pr-1")
    project = Project.open("SHOP", str(copied))
    create_environment(project, "pr-1")
    branch = project.in_environment("pr-1")
    branch.table("orders").write(pa.table({"id": [7, 8], "price": [1.0, 2.0]}))
    monkeypatch.setenv("SHOP_FAILS", "")
    import shop_branch

    assert dg.materialize(shop_branch.defs.assets, selection=["cleaned"], resources=shop_branch.defs.resources).success
    before = digests(project)
    assert branch.table("cleaned").read().num_rows == 2
    outcome, _ = reproduce(branch, "cleaned", None, [CodeLocation("shop_branch")], tmp_path / "a")
    assert (outcome.verdict, outcome.same_bytes) == ("reproduced", True), outcome
    PROCESS.forget(StandIns)
    assert digests(project) == before
    project.table("orders").rename("orders_then", dry_run=False)
    assert again(project, "latest", "@0", tmp_path / "b").verdict in ("reproduced", "not possible")


def test_an_outcome_can_be_signed(shop, tmp_path):
    key = PrivateKey.generate()
    copied = tmp_path / "copy"
    subprocess.run(["cp", "-r", shop.store.uri, copied], check=True)
    project = Project.open("SHOP", str(copied))
    outcome = {"verdict": "reproduced", "text": "the same bytes", "same_code": True}
    attest_reproduction(project, "cleaned", "@0", outcome, signer=key)
    found = check_signatures(project, "cleaned", TrustedKeys.of([key.public]))[0]
    assert (found.standing, found.notes) == (
        "unsigned",
        (f"computed again by a key that was named ({key.public.key_id[:16]}): reproduced, the same bytes",),
    )
    stranger = check_signatures(project, "cleaned", TrustedKeys.of([PrivateKey.generate().public]))[0]
    assert (stranger.standing, stranger.notes) == ("unsigned", ())


# The commands


@pytest.fixture
def house(tmp_path, monkeypatch, git_identity):
    """A repository with an asset, and a project in which it was made by a run of the committed code."""
    monkeypatch.chdir(tmp_path)
    source = """
        import atexit, os
        import dagster as dg, pyarrow as pa
        from dagster_versioned import ProjectResource, VersionedParquetIOManager

        FACTOR = 2
        atexit.register(print, "\\0and that was all")

        @dg.asset
        def numbers() -> pa.Table:
            if os.environ.get("DAGSTER_VERSIONED_READ_ONLY"):
                assert "DAGSTER_VERSIONED_KEY_PASSPHRASE" not in os.environ
            return pa.table({"v": [FACTOR * n for n in range(4)]})

        project = ProjectResource(name="HOUSE", location="store")
        defs = dg.Definitions(assets=[numbers], resources={"io_manager": VersionedParquetIOManager(project=project)})
        """
    (tmp_path / "house_assets.py").write_text(dedent(source))
    (tmp_path / ".gitignore").write_text("store\n__pycache__\n*.pem*\n")
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], check=True)
    materialize = "import house_assets as h, dagster as dg; dg.materialize(h.defs.assets, resources=h.defs.resources)"
    subprocess.run([sys.executable, "-c", materialize], check=True, capture_output=True)
    return tmp_path


def test_the_command_computes_again_with_the_code_of_then(house, monkeypatch):
    at = ("--location", "store")
    monkeypatch.setenv("DAGSTER_VERSIONED_KEY_PASSPHRASE", "correct horse")
    in_process("key", "new", "k.pem")
    ended = in_process(*at, "reproduce", "numbers", "-m", "house_assets", "--key", "k.pem")
    assert (ended.exit_code, "reproduced, the same bytes" in ended.stdout) == (0, True), ended.stderr
    assert "computed again" in in_process(*at, "verify", "--trust", "k.pem.pub").stdout
    text = (house / "house_assets.py").read_text()
    (house / "house_assets.py").write_text(text.replace("FACTOR = 2", "FACTOR = 3"))
    ended = in_process(*at, "reproduce", "numbers", "-m", "house_assets")
    assert (ended.exit_code, "by other code than is recorded" in ended.stdout) == (1, True), ended.stderr
    ended = in_process(*at, "reproduce", "numbers", "-m", "house_assets", "--code", "recorded")
    assert (ended.exit_code, "by the same code" in ended.stdout) == (0, True), ended.stderr
    ended = in_process(*at, "probe", "-m", "house_assets")
    assert (ended.exit_code, "twice the same, so by other code" in ended.stdout.replace("\n", " ")) == (0, True)


def test_code_that_no_commit_has_is_not_to_be_had(house):
    at = ("--location", "store")
    subprocess.run(["git", "checkout", "-q", "--orphan", "other"], check=True)
    subprocess.run(["git", "commit", "-q", "-m", "other"], check=True)
    subprocess.run(["git", "branch", "-q", "-D", "main"], check=True)
    ended = in_process(*at, "reproduce", "numbers", "-m", "house_assets", "--code", "recorded")
    assert (ended.exit_code, "no branch here" in ended.stderr) == (2, True), ended.stderr
    ended = in_process(*at, "reproduce", "numbers", "--code", "recorded")
    assert (ended.exit_code, "Give -m" in ended.stderr) == (2, True)
    # A remote that was fetched for a look is none that is followed, whatever a log says.
    recorded = json.loads(in_process(*at, "show", "numbers", "--json").stdout)["facts"]["run"]["code"]["commit"]
    subprocess.run(["git", "remote", "add", "mallory", "https://git.example.org/mallory.git"], check=True)
    subprocess.run(["git", "update-ref", "refs/remotes/mallory/main", recorded], check=True)
    with pytest.raises(ValueError, match="no branch here"):
        write_out(recorded, "git.example.org/mallory.git", house, house / "out")
    subprocess.run(["git", "remote", "rename", "mallory", "origin"], check=True, capture_output=True)
    with pytest.raises(ValueError, match="no branch here"):
        write_out(recorded, "git.example.org/ours.git", house, house / "out")
    assert (write_out(recorded, "git.example.org/mallory.git", house, house / "out") / "house_assets.py").exists()
    (house / "later").mkdir()
    with pytest.raises(ValueError, match="has no folder later"):
        write_out(recorded, "git.example.org/mallory.git", house / "later", house / "more")
    shutil.rmtree(".git")
    ended = in_process(*at, "reproduce", "numbers", "-m", "house_assets", "--code", "recorded")
    assert (ended.exit_code, "in no git repository" in ended.stderr) == (2, True), ended.stderr


def test_what_the_log_says_of_rows_is_not_believed(shop, tmp_path, monkeypatch):
    """A version whose facts have the digest of what the function gives, and whose rows are others."""
    copied = tmp_path / "copy"
    subprocess.run(["cp", "-r", shop.store.uri, copied], check=True)
    monkeypatch.setenv("SHOP_LOCATION", str(copied))
    project = Project.open("SHOP", str(copied))
    true = project.table("weekly").version()
    parents = project.table("daily").upstream()
    rows = project.table("weekly").read().set_column(1, "n", pa.array([666, 667]))
    project.table("weekly").write(rows, parents=parents)
    forged = project.table("weekly").version()
    path = Path(project.table("weekly").store.uri) / f"_delta_log/{forged.log_version:020}.json"
    path.write_text(path.read_text().replace(forged.digest, true.digest))
    outcome = again(Project.open("SHOP", str(copied)), "weekly", None, tmp_path / "a")
    assert (outcome.verdict, outcome.columns) == ("different", ["n"])


def test_only_releases_of_what_is_installed_are_asked_for(tmp_path):
    evil = "1.0 ; python_version<'3'\n--index-url http://evil.example\nevil @ file:///evil"
    recorded = {
        "polars": "1.2.3",
        "pyarrow": evil,
        "numpy": "-r /etc/passwd",
        "dagster-versioned": "0.1.0",
        "evil": "1",
    }
    taken, left = requirements_of({"distributions": recorded})
    assert taken == ["polars==1.2.3"]
    assert left == ["dagster-versioned", "evil", "numpy", "pyarrow"]
    for python in ("/tmp/evil/python", "", "3.11", "3.11.7; evil"):
        with pytest.raises(ValueError, match="no release of Python"):
            make_environment({"python": python, "distributions": {}}, tmp_path / "env")


def test_columns_are_compared_whatever_the_order_of_rows():
    one = pa.table({"a": [1, 2], "b": [0.0, float("nan")], "c": [[1], None]})
    assert differing_columns(one, one.take([1, 0])) == []
    assert differing_columns(one, one.set_column(0, "a", pa.array([1, 3]))) == ["a"]
    assert differing_columns(one, one.drop_columns(["b"]).append_column("d", pa.array([1, 2]))) == ["b", "d"]
    assert differing_columns(one, one.set_column(0, "a", pa.array([1, 2], pa.int32()))) == ["a"]
