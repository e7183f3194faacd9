"""One step of such an asset: what of it is kept, and the function called for the rest."""

import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, cast

import dagster as dg

from dagster_versioned.assets.graph.partitions import partitions_of_run, upstream_partitions
from dagster_versioned.assets.looks import blocking_checks
from dagster_versioned.assets.reuse.evaluations import evaluations, has_failed, replayed
from dagster_versioned.assets.reuse.lazy_input import KeptValue, LazyInput
from dagster_versioned.dagster_internals import StepOutputHandle
from dagster_versioned.errors import InvalidInput
from dagster_versioned.tables.findings import findings_of, note_findings
from dagster_versioned.tables.write.kept import KeptVersion

Call = tuple[Sequence[str] | None, Sequence[Any], Mapping[str, Any]]
ByPartition = Mapping[str | None, KeptVersion]
Findings = Mapping[str | None, dg.AssetCheckEvaluation]


class KeptOutput(KeptValue):
    """The output of an asset: the versions that are kept, by partition, and what the function gave for the others."""

    def __init__(self, kept: ByPartition) -> None:
        self.kept = kept
        self.computed: list[tuple[Sequence[str], Any]] = []

    def __repr__(self) -> str:
        return f"KeptOutput({dict(self.kept)!r})"


class Manager(Protocol):
    """An IO manager that remembers what was computed."""

    def computed_before(
        self, context: dg.AssetExecutionContext, asset_key: dg.AssetKey, inputs: Mapping[str, LazyInput]
    ) -> ByPartition:
        """The versions that the run's partitions of an asset would have, of those that were computed before.

        Remembers what is computed in this step, so that it is found later.
        """
        ...


class Step:
    """A call of the function as it is: outside of a step of its asset, as in a unit test."""

    is_kept = False
    stretches: Sequence[Sequence[str]] = ()
    """The partitions to compute, in runs without a gap, where these are not all."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._args = args
        self._kwargs = kwargs
        self._value: Any = None

    def outputs(self) -> Generator[dg.Output[Any] | dg.AssetCheckResult]:
        """What stands for the outputs that are kept, and what checks had found of them."""
        yield from ()

    def calls(self) -> Iterator[Call]:
        """The calls to make: for which stretch (``None``: all that the step is of), and with which arguments."""
        yield None, self._args, self._kwargs

    def take(self, stretch: Sequence[str] | None, value: Any) -> bool:
        """Take what a call gave; returns whether it is a value at all, and not another event."""
        self._value = value
        return True

    def rest(self) -> Generator[dg.Output[Any]]:
        """The output of the asset, where it is put together from several calls."""
        yield from ()

    def result(self) -> Any:
        """What a function gives to Dagster that is no generator itself."""
        if self.is_kept:
            return self.outputs()
        return self.rest() if self.stretches else self._value


class ReuseStep(Step):
    """What becomes of one step."""

    def __init__(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        context: dg.AssetExecutionContext,
        inputs: Mapping[str, LazyInput],
        kept: Mapping[dg.AssetKey, ByPartition],
    ) -> None:
        super().__init__(args, kwargs)
        self.context = context
        self.inputs = inputs
        self.kept = kept
        self.checks: Mapping[dg.AssetCheckKey, Findings] = {}
        self._metadata: dict[str, Any] = {}
        self._computed: list[tuple[Sequence[str], Any]] = []

    @property
    def stands(self) -> bool:
        """Whether all that the step would compute is there and current, so that it changes nothing."""
        return self.is_kept and all(version.is_current for kept in self.kept.values() for version in kept.values())

    def outputs(self) -> Generator[dg.Output[Any] | dg.AssetCheckResult]:
        """What stands for the outputs that are kept, and what checks had found of them."""
        for asset_key, kept in self.kept.items() if self.is_kept else ():
            name = self.context.assets_def.get_output_name_for_asset_key(asset_key)
            yield dg.Output(KeptOutput(kept), output_name=name)
        yield from map(replayed, self.checks.values())

    def calls(self) -> Iterator[Call]:
        """The calls to make, each with the inputs of its partitions, which are loaded for it."""
        if self.is_kept:
            return
        types = {def_.name: def_.dagster_type for def_ in self.context.op_execution_context.op_def.input_defs}
        for stretch in self.stretches or (None,):
            loaded = {
                name: input_.value(self._wanted(input_, stretch), types[name]) for name, input_ in self.inputs.items()
            }
            contexts = self._args if stretch is None else [NarrowedContext(self.context, stretch)]
            yield stretch, contexts, {**self._kwargs, **loaded}

    def take(self, stretch: Sequence[str] | None, value: Any) -> bool:
        if stretch is None:
            return super().take(stretch, value)
        match value:
            case dg.Output() | dg.MaterializeResult():
                given = cast("dg.Output[Any]", value)
                self._metadata |= given.metadata or {}
                self._computed.append((stretch, given.value))
            case dg.AssetMaterialization() | dg.AssetObservation() | dg.ExpectationResult():
                return False
            case _:
                self._computed.append((stretch, value))
        return True

    def rest(self) -> Generator[dg.Output[Any]]:
        if not self.stretches:
            return
        ((asset_key, kept),) = self.kept.items()
        given = [list(stretch) for stretch, _ in self._computed]
        if given != [list(stretch) for stretch in self.stretches]:
            raise InvalidInput(
                f"The function of {asset_key.to_user_string()} was called for {len(self.stretches)} stretches of "
                f"partitions, and gave {len(given)} values. Nothing was written. Return, or yield, one value a call."
            )
        output = KeptOutput(kept)
        output.computed = self._computed
        name = self.context.assets_def.get_output_name_for_asset_key(asset_key)
        yield dg.Output(output, output_name=name, metadata=self._metadata)

    def _wanted(self, input_: LazyInput, stretch: Sequence[str] | None) -> frozenset[str] | None:
        return None if stretch is None else _keys_above(self.context, stretch, input_.asset_key)


def _keys_above(
    context: dg.AssetExecutionContext, partitions: Sequence[str], upstream: dg.AssetKey
) -> frozenset[str] | None:
    """The partitions of an upstream that these of the one asset of a step are built from; ``None`` for the whole."""
    (asset_key,) = context.selected_asset_keys
    graph, found = context.job_def.asset_layer.asset_graph.source_asset_graph, frozenset[str]()
    for partition in partitions:
        mapped = upstream_partitions(graph, asset_key, partition, upstream, context.instance)
        if mapped is None:
            return None
        found |= mapped
    return found


def begin(compute: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Step:
    """What becomes of the step in which ``compute`` is called.

    Raises `InvalidInput` for an input or output that another IO manager handles, and for a config that is not JSON.
    """
    context = _context(compute)
    if context is None:
        return Step(args, kwargs)
    names = [def_.name for def_ in context.op_execution_context.op_def.input_defs]
    inputs: dict[str, LazyInput] = {}
    for name in names:
        value = kwargs[name]
        if not isinstance(value, LazyInput):
            raise InvalidInput(
                f"The input {name!r} of {_names(context)} was loaded by another IO manager ({type(value).__name__}), "
                "so nobody knows which version it is. The function was not called, and nothing was written. Give the "
                "upstream a VersionedParquetIOManager, or define this asset with @dg.asset."
            )
        inputs[name] = value
    step = _step(context, args, kwargs, inputs)
    if step.stands or all(input_.look_again is None for input_ in inputs.values()):
        return step
    return _step(context, args, kwargs, {name: input_.as_it_is_now() for name, input_ in inputs.items()})


def _step(
    context: dg.AssetExecutionContext, args: Sequence[Any], kwargs: Mapping[str, Any], inputs: Mapping[str, LazyInput]
) -> ReuseStep:
    found = {key: _manager(context, key).computed_before(context, key, inputs) for key in _outputs(context)}
    kept, evaluated = _checked(context, found)
    checks, partitions = context.selected_asset_check_keys, set(partitions_of_run(context))
    step = ReuseStep(args, kwargs, context, inputs, kept)
    is_known = all(set(each) == partitions for each in evaluated.values())
    if all(set(versions) == partitions for versions in kept.values()) and is_known:
        step.is_kept, step.checks = True, evaluated
    elif len(kept) == 1 and not checks and any(kept.values()) and _takes_context(args):
        step.stretches = _stretches(context, kept)
    return step


def _checked(
    context: dg.AssetExecutionContext, found: Mapping[dg.AssetKey, ByPartition]
) -> tuple[Mapping[dg.AssetKey, ByPartition], Mapping[dg.AssetCheckKey, Findings]]:
    """The versions that every blocking check has passed for, and what the checks of the step itself found of them.

    What is known neither from the event log nor with the table has not passed.
    """
    graph = context.job_def.asset_layer.asset_graph.source_asset_graph
    own = context.selected_asset_check_keys
    kept: dict[dg.AssetKey, dict[str | None, KeptVersion]] = {key: {} for key in found}
    evaluated: dict[dg.AssetCheckKey, dict[str | None, dg.AssetCheckEvaluation]] = {check: {} for check in own}
    for key, versions in found.items():
        blocking = blocking_checks(graph, key)
        asked = {*blocking, *(check for check in own if check.asset_key == key)}
        for partition, version in versions.items():
            known = evaluations(context.instance, asked, key, partition, str(version.version.metadata_sha))
            if (why := _missed(version, blocking, known)) is not None:
                context.log.info(f"Version {version.version.short} {why}: not reused.")
                continue
            kept[key][partition] = version
            for check in known.keys() & own:
                evaluated[check][partition] = known[check]
    return kept, evaluated


def _missed(
    version: KeptVersion,
    blocking: Sequence[dg.AssetCheckKey],
    known: Mapping[dg.AssetCheckKey, dg.AssetCheckEvaluation],
) -> str | None:
    """Which blocking check has not passed for a version; ``None`` where all have. What is known is noted with it."""
    sha = str(version.version.metadata_sha)
    outcomes = {check.name: not has_failed(known[check]) for check in blocking if check in known}
    noted = findings_of(version.store, sha) if blocking else {}
    if not outcomes.items() <= noted.items():
        note_findings(version.store, sha, outcomes)
    noted = {**noted, **outcomes}
    missed = next((check.name for check in blocking if not noted.get(check.name)), None)
    if missed is None:
        return None
    return f"{'failed' if missed in noted else 'is not known to have passed'} the check {missed}"


def _context(compute: Callable[..., Any]) -> dg.AssetExecutionContext | None:
    with suppress(dg.DagsterInvariantViolationError):
        context = dg.AssetExecutionContext.get()
        if getattr(context.op_execution_context.op_def.compute_fn, "decorated_fn", None) is compute:
            return context
    return None


def _outputs(context: dg.AssetExecutionContext) -> list[dg.AssetKey]:
    return sorted(context.selected_asset_keys)


def _names(context: dg.AssetExecutionContext) -> str:
    return ", ".join(key.to_user_string() for key in _outputs(context))


def _takes_context(args: Sequence[Any]) -> bool:
    """Whether the function is told which partitions it is to compute: another one computes all that the run covers."""
    return bool(args) and isinstance(args[0], dg.AssetExecutionContext)


def _stretches(context: dg.AssetExecutionContext, kept: Mapping[dg.AssetKey, ByPartition]) -> list[list[str]]:
    (versions,) = kept.values()
    stretches: list[list[str]] = [[]]
    for partition in map(str, context.partition_keys):  # in the order of the definition
        if partition in versions:
            stretches.append([])
        else:
            stretches[-1].append(partition)
    return [stretch for stretch in stretches if stretch]


def _manager(context: dg.AssetExecutionContext, asset_key: dg.AssetKey) -> Manager:
    step = context.get_step_execution_context()
    name = context.assets_def.get_output_name_for_asset_key(asset_key)
    manager: Any = step.get_io_manager(StepOutputHandle(step.step.key, name))
    if not hasattr(manager, "computed_before"):
        raise InvalidInput(
            f"The IO manager of {asset_key.to_user_string()} is a {type(manager).__name__}, which remembers nothing "
            "that was computed. The function was not called, and nothing was written. Give it a "
            "VersionedParquetIOManager, or define the asset with @dg.asset."
        )
    return manager


def reusing(body: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the same kind (plain, generator, or either of them async) that calls ``body`` if it must."""
    if inspect.isasyncgenfunction(body):
        return _async_generator(body)
    if inspect.iscoroutinefunction(body):
        return _coroutine(body)
    return _generator(body) if inspect.isgeneratorfunction(body) else _plain(body)


def _plain(body: Callable[..., Any]) -> Callable[..., Any]:
    def compute(*args: Any, **kwargs: Any) -> Any:
        step = begin(compute, args, kwargs)
        for stretch, given, named in step.calls():
            step.take(stretch, body(*given, **named))
        return step.result()

    return compute


def _coroutine(body: Callable[..., Any]) -> Callable[..., Any]:
    async def compute(*args: Any, **kwargs: Any) -> Any:
        step = begin(compute, args, kwargs)
        for stretch, given, named in step.calls():
            step.take(stretch, await body(*given, **named))
        return step.result()

    return compute


def _generator(body: Callable[..., Any]) -> Callable[..., Any]:
    def compute(*args: Any, **kwargs: Any) -> Generator[Any]:
        step = begin(compute, args, kwargs)
        yield from step.outputs()
        for stretch, given, named in step.calls():
            for event in body(*given, **named):
                if stretch is None or not step.take(stretch, event):
                    yield event
        yield from step.rest()

    return compute


def _async_generator(body: Callable[..., Any]) -> Callable[..., Any]:
    async def compute(*args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        step = begin(compute, args, kwargs)
        for output in step.outputs():
            yield output
        for stretch, given, named in step.calls():
            async for event in body(*given, **named):
                if stretch is None or not step.take(stretch, event):
                    yield event
        for output in step.rest():
            yield output

    return compute


class NarrowedContext(dg.AssetExecutionContext):
    """The step's own context, whose partitions are a contiguous stretch of those of the run.

    Run, tags and what is reached through ``op_execution_context`` are those of the run.
    """

    def __init__(self, context: dg.AssetExecutionContext, keys: Sequence[str]) -> None:
        super().__init__(context.op_execution_context)
        self._keys = list(keys)

    @property
    def partition_keys(self) -> Sequence[str]:
        return list(self._keys)

    @property
    def has_partition_key(self) -> bool:
        return len(self._keys) == 1

    @property
    def has_partition_key_range(self) -> bool:
        return True

    @property
    def partition_key(self) -> str:
        if len(self._keys) != 1:
            raise dg.DagsterInvariantViolationError(f"{len(self._keys)} partitions are computed: use partition_keys.")
        return self._keys[0]

    @property
    def partition_key_range(self) -> dg.PartitionKeyRange:
        return dg.PartitionKeyRange(self._keys[0], self._keys[-1])

    @property
    def asset_partition_key_range(self) -> dg.PartitionKeyRange:
        return self.partition_key_range

    @property
    def partition_time_window(self) -> dg.TimeWindow:
        definition: Any = self.assets_def.partitions_def
        first, last = (definition.time_window_for_partition_key(key) for key in (self._keys[0], self._keys[-1]))
        return dg.TimeWindow(first.start, last.end)

    def asset_partition_key_for_output(self, output_name: str = "result") -> str:
        return self.partition_key

    def asset_partition_keys_for_output(self, output_name: str = "result") -> Sequence[str]:
        return self.partition_keys

    def asset_partition_key_range_for_output(self, output_name: str = "result") -> dg.PartitionKeyRange:
        return self.partition_key_range

    def asset_partitions_time_window_for_output(self, output_name: str = "result") -> dg.TimeWindow:
        return self.partition_time_window

    def asset_partition_keys_for_input(self, input_name: str) -> Sequence[str]:
        wanted = _keys_above(self, self._keys, self.asset_key_for_input(input_name))
        return super().asset_partition_keys_for_input(input_name) if wanted is None else sorted(wanted)
