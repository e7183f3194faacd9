"""Assets of every kind that can be parked, that cannot, and that read what is: what the walk of publication runs."""

import threading

import dagster as dg
import pyarrow as pa

import dagster_versioned as dv
from dagster_versioned.io_managers.publication import WHOLE_KEY

KEYS = ("a", "b", "c")
PARTS = {
    "partitions_def": dg.StaticPartitionsDefinition(list(KEYS)),
    "backfill_policy": dg.BackfillPolicy.single_run(),
}
RANGE = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
ABOVE = {
    "parts": [],
    "single": [],
    "log": [],
    "ledger": [],
    "below": ["parts"],
    "total": ["parts"],
    "loads": ["single", "log"],
    "graph": ["single"],
    "there": ["single"],
    "events": ["single"],
}
"""Every asset, upstream first."""
SOURCES = ("parts", "single", "log", "ledger")
"""Assets without an upstream. Each has a blocking check."""
ADDS = ("log", "ledger", "events")
PARTED = ("parts", "below")
AT_ONCE = ("below", "there", "events")
CANNOT_WAIT = ("there", "events")
STEPS = {name: (name,) for name in ABOVE} | {"graph": ("graph.first", "graph.second")}
PLANS = [
    *[(name,) for name in ABOVE],
    ("parts", "below"),
    ("parts", "total"),
    ("parts", "below", "total"),
    ("single", "loads"),
    ("single", "graph"),
    ("single", "there"),
    ("single", "events"),
    ("log", "loads"),
    ("single", "log", "loads", "graph", "there"),
]
INTERRUPTED = ("loads", "graph")
"""Assets that read one table twice; of a plan, the last one alone, so that nobody else sees what happens in between."""


def rows(*numbers):
    return pa.table({"n": list(numbers)})


def numbers(frame):
    return tuple(sorted(frame["n"].to_pylist()))


def is_good(found):
    """What every check wants: that the number that came last is none of those that are bad."""
    return max(found, key=abs) > 0


class Hand:
    """What assets yield and what happens beside them; and what they, and the checks, have read."""

    def __init__(self):
        self.given, self.fails, self.crashes, self.is_lenient = {}, set(), False, False
        self.between, self.read = None, {}

    def note(self, name, *frames):
        self.read.setdefault(name, []).extend(map(numbers, frames))

    def meanwhile(self, run_id):
        """Somebody else does something, on a thread of which no step knows."""
        if self.between is not None:
            beside = threading.Thread(target=self.between, args=(run_id,))
            beside.start()
            beside.join()

    def judge(self, name, frames):
        self.note(f"check of {name}", *frames)
        if self.crashes:
            raise ValueError("the check crashes")
        return dg.AssetCheckResult(passed=self.is_lenient or all(is_good(numbers(one)) for one in frames))


def definitions(hand, place, environment=None):  # noqa: C901 - an asset of each kind
    adding = dv.TableOptions(mode="append").as_metadata()
    happening = dv.TableOptions(history=dv.EventHistory(merge=dv.AppendMerge())).as_metadata()

    def source(name, **options):
        @dg.asset(name=name, io_manager_key="checked", **options)
        def asset(context: dg.AssetExecutionContext):
            given = hand.given[name]
            keys = context.partition_keys if name in PARTED else None
            yield dg.Output(rows(*given[None]) if keys is None else {key: rows(*given[key]) for key in keys})
            if name in hand.fails:
                raise ValueError("after its output")

        return asset

    @dg.asset(io_manager_key="at_once", **PARTS)
    def below(parts: dict[str, pa.Table]) -> dict[str, pa.Table]:
        hand.note("below", *parts.values())
        return parts

    @dg.asset(io_manager_key="checked")
    def total(parts: dict[str, pa.Table]) -> pa.Table:
        hand.note("total", *parts.values())
        return rows(sum(sum(numbers(one)) for one in parts.values()))

    @dg.asset(io_manager_key="checked", deps=["log"])
    def loads(context: dg.AssetExecutionContext, single: pa.Table) -> pa.Table:
        hand.meanwhile(context.run_id)
        again, log = (context.load_asset_value(dg.AssetKey(name), python_type=pa.Table) for name in ("single", "log"))
        hand.note("loads", single, again, log)
        return pa.concat_tables([single, again, log])

    @dg.op(out=dg.Out(io_manager_key="memory"))
    def first(context: dg.OpExecutionContext, single: pa.Table) -> pa.Table:
        hand.meanwhile(context.run_id)
        return single

    @dg.op(out=dg.Out(io_manager_key="checked"))
    def second(earlier: pa.Table, single: pa.Table) -> pa.Table:
        hand.note("graph", earlier, single)
        return pa.concat_tables([earlier, single])

    @dg.graph_asset
    def graph(single):
        return second(first(single), single)

    @dg.asset(io_manager_key="there")
    def there(single: pa.Table) -> pa.Table:
        hand.note("there", single)
        return single

    @dg.asset(io_manager_key="at_once", metadata=happening)
    def events(single: pa.Table) -> pa.Table:
        hand.note("events", single)
        return single

    @dg.asset_check(asset="parts", name="good", blocking=True, partitions_def=PARTS["partitions_def"])
    def parts_good(parts: dict[str, pa.Table]):
        return hand.judge("parts", parts.values())

    @dg.asset_check(asset="single", name="good", blocking=True, metadata={WHOLE_KEY: True})
    def single_good(single: pa.Table):
        return hand.judge("single", [single])

    @dg.asset_check(asset="log", name="good", blocking=True)
    def log_good(log: pa.Table):
        return hand.judge("log", [log])

    @dg.asset_check(asset="ledger", name="good", blocking=True, metadata={WHOLE_KEY: True})
    def ledger_good(ledger: pa.Table):
        return hand.judge("ledger", [ledger])

    house = dv.ProjectResource(name="HOUSE", location=f"{place}/house", environment=environment)
    jobs = [dg.define_asset_job(f"check_{name}", dg.AssetSelection.checks_for_assets(name)) for name in SOURCES]
    for plan in PLANS:
        chosen = dg.AssetSelection.assets(*plan)
        jobs += [dg.define_asset_job("_".join(plan), chosen.without_checks())]
        jobs += [dg.define_asset_job("_".join((*plan, "checked")), chosen)]
    return dg.Definitions(
        assets=[
            source("parts", **PARTS),
            source("single"),
            *(source(name, metadata=adding) for name in ("log", "ledger")),
            *(below, total, loads, graph, there, events),
        ],
        asset_checks=[parts_good, single_good, log_good, ledger_good],
        resources={
            "checked": dv.VersionedParquetIOManager(project=house, publish="after_checks"),
            "at_once": dv.VersionedParquetIOManager(project=house),
            "there": dv.VersionedParquetIOManager(project=dv.ProjectResource(name="THERE", location=f"{place}/there")),
            "memory": dg.mem_io_manager,
        },
        executor=dg.in_process_executor,
        jobs=jobs,
    )


QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
DEPLOYED = {}
"""Code locations by their names, for Dagster, which looks for the job of a run by itself."""


def job_of(name, job):
    return DEPLOYED[name].get_job(job)
