"""What `verify` promises: whatever is changed is found, and laid at the door of the right dataset and block."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dagster_versioned.errors import IntegrityError, StoreUnavailable
from dagster_versioned.odf.blocks.block import Block, block_hash, encode_block
from dagster_versioned.odf.blocks.block_iterator import Link, iterate_blocks
from dagster_versioned.odf.blocks.events import (
    ExecuteTransform,
    ExecuteTransformInput,
    SetInfo,
    SetTransform,
    TransformInput,
    TransformSql,
)
from dagster_versioned.odf.identity.multihash import Multihash
from dagster_versioned.odf.queries import transform
from dagster_versioned.odf.sharing.remote import RemoteDataset
from dagster_versioned.odf.sharing.transfer import pull
from dagster_versioned.odf.verification.report import ChainFinding, DatasetReport, VerificationReport
from dagster_versioned.odf.verification.verify import verify
from dagster_versioned.projects.project import Project
from dagster_versioned.storage.wrappers import Fault, FaultStore
from support.odf_chains import moment, named
from support.odf_graph import SCHEMA, Graph, Served, add_readings, logical_hash, replay, root_of


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return Graph.build(tmp_path_factory.mktemp("graph"))


@pytest.fixture
def graph(built: Graph, tmp_path: Path) -> Graph:
    return built.copied(tmp_path)


def check(graph: Graph, *, again: bool = False) -> VerificationReport:
    return verify(graph.named.remote, resolve=graph.resolve, replay=replay if again else None)


def only_finding(report: VerificationReport) -> tuple[DatasetReport, ChainFinding]:
    (found,) = [(dataset, finding) for dataset in report.datasets for finding in dataset.findings]
    return found


def test_a_graph_is_verified_up_to_its_root(graph: Graph) -> None:
    report = check(graph, again=True)
    report.require_ok()
    assert [dataset.dataset_id for dataset in report.datasets] == [
        graph.named.dataset_id,
        graph.hot.dataset_id,
        graph.readings.dataset_id,
    ]
    first, second, root = report.datasets
    assert first.inputs == (graph.hot.dataset_id,)
    assert (first.blocks, first.files, first.replayed) == (5, 2, 2)
    assert (second.blocks, second.files, second.replayed) == (5, 2, 2)
    assert (root.blocks, root.files, root.replayed) == (6, 3, 0)
    assert root.sources == ("pushed into the source station",)
    assert second.sources[0].startswith("computed by duckdb 1.")
    assert f"from readings = {graph.readings.dataset_id}: SELECT event_time" in second.sources[0]
    for dataset, served in zip(report.datasets, (graph.named, graph.hot, graph.readings), strict=True):
        assert dataset.signed == dataset.head == served.last.head
        sizes = [path.stat().st_size for path in served.files() if path.parent.name in ("data", "blocks")]
        assert dataset.bytes == sum(sizes)


def test_without_its_inputs_a_dataset_is_verified_alone(graph: Graph) -> None:
    report = verify(graph.named.remote)
    assert report.ok
    assert len(report.datasets) == 1


# --- single bytes ----------------------------------------------------------------------------------------------------


def block_of(served: Served, path: Path) -> Multihash | None:
    """The block that a file belongs to: itself, or the one that names it."""
    if path.parent.name == "blocks":
        return Multihash.parse(path.name)
    return next((link.name for link, file in slices(served) if file == path), None)


def changes(path: Path, count: int) -> Iterator[tuple[int, int]]:
    """Where to change the file, and into which byte."""
    original, chance = path.read_bytes(), random.Random(path.name)
    for _ in range(count):
        at = chance.randrange(len(original))
        yield at, chance.choice([byte for byte in range(256) if byte != original[at]])


def tamper(graph: Graph, count: int) -> int:
    done = 0
    for served in graph.datasets.values():
        for path in served.files():
            original, block = path.read_bytes(), block_of(served, path)
            for at, byte in changes(path, count):
                path.write_bytes(original[:at] + bytes([byte]) + original[at + 1 :])
                report = check(graph)
                what = f"byte {at} of {path} as {byte}"
                accused = [dataset for dataset in report.datasets if dataset.findings]
                assert [dataset.location for dataset in accused] == [served.remote.store.uri], what
                if block is not None:
                    assert accused[0].findings[0].block == block, what
                    assert path.name in accused[0].findings[0].key, what
                assert not report.ok, what
                done += 1
            path.write_bytes(original)
    return done


def test_every_changed_byte_is_found_and_attributed(graph: Graph) -> None:
    assert tamper(graph, 3) == 3 * sum(len(served.files()) for served in graph.datasets.values())
    assert check(graph).ok


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_hundred_changed_bytes_of_each_file_are_found_and_attributed(graph: Graph) -> None:
    assert tamper(graph, 200) == 200 * 29
    assert check(graph).ok


# --- whole files -----------------------------------------------------------------------------------------------------


def slices(served: Served) -> list[tuple[Link, Path]]:
    """The blocks with data, the first one first, and their files."""
    found: list[tuple[Link, Path]] = []
    for link in iterate_blocks(served.remote, served.remote.head()):
        if (data := link.block.new_data) is not None:
            found.append((link, served.folder / f"data/{data.physical_hash}"))
    return found[::-1]


def test_a_file_that_is_missing_cut_or_longer_is_named(graph: Graph) -> None:
    link, path = slices(graph.readings)[1]
    data = path.read_bytes()
    for damage, problem in ((data[:-1], f"it has {len(data) - 1} bytes, not {len(data)}"), (data + b"\0", "it has")):
        path.write_bytes(damage)
        dataset, finding = only_finding(check(graph))
        assert (dataset.dataset_id, finding.subject, finding.block) == (graph.readings.dataset_id, "slice", link.name)
        assert finding.sequence_number == link.block.sequence_number
        assert problem in finding.problem
    path.unlink()
    assert only_finding(check(graph))[1].problem == "it is missing"


def test_a_slice_that_was_written_anew_is_told_from_one_that_was_altered(graph: Graph) -> None:
    link, path = slices(graph.readings)[0]
    rows = pq.read_table(path)
    pq.write_table(rows, path, compression="zstd", use_dictionary=False)
    report = check(graph)
    finding = only_finding(report)[1]
    assert (finding.block, finding.records_match) == (link.name, True)
    assert "its records have the logical hash that the block states" in finding.problem
    assert not report.ok
    pq.write_table(rows.slice(1), path)
    report = check(graph)
    assert not only_finding(report)[1].records_match


def test_what_stands_in_the_place_of_a_file_and_is_none_is_named(graph: Graph, tmp_path: Path) -> None:
    path = slices(graph.readings)[1][1]
    path.rename(tmp_path / "outside")
    path.symlink_to(tmp_path / "outside")
    assert "a symbolic link leads out of the root" in only_finding(check(graph))[1].problem
    path.unlink()
    path.mkdir()
    assert only_finding(check(graph))[1].problem == "it is no file"


def test_what_lies_before_a_broken_block_is_said_to_be_unchecked(graph: Graph) -> None:
    links = list(iterate_blocks(graph.readings.remote, graph.readings.remote.head()))
    (graph.readings.folder / f"blocks/{links[2].name}").unlink()
    dataset, finding = only_finding(check(graph))
    assert (finding.subject, finding.block, finding.sequence_number) == ("block", links[2].name, 3)
    assert dataset.unchecked == ("block 3 and all before it",)
    assert dataset.blocks == 2


def test_a_head_that_somebody_else_knows_otherwise_is_found(graph: Graph) -> None:
    links = list(iterate_blocks(graph.readings.remote, graph.readings.remote.head()))
    report = verify(graph.readings.remote, head=links[1].name)
    assert any(finding.subject == "head" for finding in report.datasets[0].findings)
    assert verify(graph.readings.remote, head=links[0].name).ok


def test_a_chain_that_was_cut_off_is_found_by_the_signature_and_by_what_was_made_of_it(graph: Graph) -> None:
    links = list(iterate_blocks(graph.readings.remote, graph.readings.remote.head()))
    (graph.readings.folder / "refs/head").write_text(str(links[1].name))
    findings = {finding.subject: dataset for dataset in check(graph).datasets for finding in dataset.findings}
    assert findings["signature"].dataset_id == graph.readings.dataset_id
    (graph.readings.folder / "refs/head.sig").unlink()
    dataset, finding = only_finding(check(graph))
    assert (dataset.dataset_id, finding.subject) == (graph.hot.dataset_id, "input")
    assert f"took block {links[0].name}, which the chain of" in finding.problem


def test_a_chain_that_breaks_a_rule_is_found_at_the_block_that_does(graph: Graph) -> None:
    state = graph.readings.last
    block = Block(moment(1), state.head, state.sequence_number + 1, SetInfo("back in time"))
    name = block_hash(encode_block(block))
    graph.readings.store(f"blocks/{name}", encode_block(block))
    graph.readings.store("refs/head", str(name).encode())
    finding = only_finding(verify(graph.readings.remote))[1]
    assert (finding.subject, finding.block) == ("block", name)
    assert "system time" in finding.problem


def test_another_dataset_in_the_place_of_an_input_is_found(graph: Graph) -> None:
    report = verify(graph.hot.remote, resolve=lambda _: graph.named.remote)
    assert "the dataset there is" in report.datasets[1].findings[0].problem


def test_an_input_that_nobody_has_leaves_the_dataset_unchecked(graph: Graph) -> None:
    report = verify(graph.hot.remote, resolve=Graph(graph.hot, graph.hot, graph.hot).resolve, replay=replay)
    assert not report.ok
    assert not report.datasets[0].findings
    assert f"the input {graph.readings.dataset_id}: There is no dataset" in report.datasets[0].unchecked[0]
    with pytest.raises(IntegrityError, match="not checked: the input"):
        report.require_ok()


@pytest.mark.spark
def test_runs_by_an_engine_that_is_not_here_are_not_done_again_and_it_says_so(graph: Graph, spark: Any) -> None:
    report = verify(graph.hot.remote, resolve=graph.resolve, replay=partial(transform.replay, session=spark))
    assert not report.ok
    assert not report.datasets[0].findings
    (unchecked,) = report.datasets[0].unchecked
    assert "its chain and files alone were checked: The transform is in the SQL of 'duckdb'" in unchecked
    assert verify(graph.hot.remote, resolve=graph.resolve).ok


def test_a_store_that_does_not_answer_is_no_finding(graph: Graph) -> None:
    store = graph.readings.remote.store
    for number in range(1, 10):
        faulty = FaultStore(store, lambda call, number=number: Fault.BEFORE if call.number == number else None)
        with pytest.raises(StoreUnavailable):
            verify(RemoteDataset(faulty))


# --- the log of a table ----------------------------------------------------------------------------------------------


def without(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if "add" not in line]


def with_add(**changed: Any) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    return lambda lines: [{"add": {**line["add"], **changed}} if "add" in line else line for line in lines]


def other_columns(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    changed = copy.deepcopy(lines)
    (told,) = [line["metaData"] for line in changed if "metaData" in line]
    told["schemaString"] = told["schemaString"].replace('"station"', '"place"')
    return changed


@pytest.mark.parametrize(
    ("commit", "change", "problems"),
    [
        (1, without, ["the log does not list it, so readers miss its events"]),
        (1, with_add(path="data/forged"), ["no block names it", "the log does not list it"]),
        (1, with_add(size=1), ["the log does not list it whole"]),
        (0, other_columns, ["the log has other columns than the chain: place, station"]),
    ],
)
def test_a_log_that_leads_readers_elsewhere_than_the_chain_is_found(
    graph: Graph, tmp_path: Path, commit: int, change: Any, problems: list[str]
) -> None:
    table = Project.open("COPY", str(tmp_path / "copy")).table("readings")
    pull(RemoteDataset(graph.readings.remote.store), table, until=slices(graph.readings)[1][0].name)
    assert verify(RemoteDataset(table.store), log=table.state.snapshot).ok
    path = tmp_path / f"copy/datom/readings/_delta_log/{commit:020}.json"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert change(lines) != lines
    path.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))
    table = Project.open("COPY", str(tmp_path / "copy")).table("readings")
    (dataset,) = verify(RemoteDataset(table.store), log=table.state.snapshot).datasets
    assert [finding.subject for finding in dataset.findings] == ["log"] * len(problems)
    for finding, problem in zip(dataset.findings, problems, strict=True):
        assert problem in str(finding)


# --- forgeries -------------------------------------------------------------------------------------------------------


def rewritten(served: Served, number: int, change: Any) -> None:
    """Forge a block, and every block after it, as whoever serves them can; the owner's key they do not have."""
    links = list(iterate_blocks(served.remote, served.remote.head()))[::-1]
    head: Multihash | None = None
    for link in links:
        block = link.block
        if block.sequence_number >= number:
            event = change(block.event) if block.sequence_number == number else block.event
            block = replace(block, prev_block_hash=head, event=event)
            served.store(f"blocks/{block_hash(encode_block(block))}", encode_block(block))
        head = block_hash(encode_block(block))
    served.store("refs/head", str(head).encode())
    (served.folder / "refs/head.sig").unlink()


def hotter(served: Served, path: Path) -> Any:
    """The rows of a slice with one value changed, as a slice."""
    rows = pq.read_table(path)
    heat = rows.column("heat").to_pylist()
    heat[0] += 1
    return served.slice_of(rows.set_column(5, SCHEMA.field("heat"), [heat]).cast(SCHEMA))


def test_a_forgery_of_data_hashes_and_blocks_is_found_by_doing_the_run_again(graph: Graph) -> None:
    link, path = slices(graph.hot)[1]
    forged = hotter(graph.hot, path)
    rewritten(graph.hot, link.block.sequence_number, lambda event: replace(event, new_data=forged))
    assert verify(graph.hot.remote, resolve=graph.resolve).ok  # consistent: nobody could tell
    dataset, finding = only_finding(verify(graph.hot.remote, resolve=graph.resolve, replay=replay))
    assert (dataset.dataset_id, finding.subject) == (graph.hot.dataset_id, "replay")
    assert finding.sequence_number == link.block.sequence_number
    assert "newData is recorded as" in finding.problem


def test_a_block_that_tells_the_truth_of_a_forged_file_is_found_by_reading_it(graph: Graph) -> None:
    link, path = slices(graph.hot)[0]
    forged, truth = hotter(graph.hot, path), logical_hash(pq.read_table(path))
    rewritten(
        graph.hot,
        link.block.sequence_number,
        lambda event: replace(event, new_data=replace(forged, logical_hash=truth)),
    )
    finding = only_finding(verify(graph.hot.remote, resolve=graph.resolve))[1]
    assert finding.subject == "slice"
    assert finding.key.endswith(str(forged.physical_hash))
    assert "its records have the logical hash" in finding.problem


@pytest.mark.parametrize("offset", [99, 16], ids=["of no record", "before the block's last"])
def test_a_run_that_took_other_records_than_the_block_that_it_took_ends_with_is_found(
    graph: Graph, offset: int
) -> None:
    link, _ = slices(graph.hot)[1]

    def changed(event: ExecuteTransform) -> ExecuteTransform:
        (taken,) = event.query_inputs
        return replace(event, query_inputs=(replace(taken, new_offset=offset),))

    rewritten(graph.hot, link.block.sequence_number, changed)
    finding = only_finding(verify(graph.hot.remote, resolve=graph.resolve))[1]
    assert (finding.subject, finding.sequence_number) == ("input", link.block.sequence_number)
    assert f"up to offset {offset}" in finding.problem


def test_a_run_that_took_an_earlier_block_than_the_one_before_it_is_found(graph: Graph) -> None:
    own, earlier = graph.hot.last, list(iterate_blocks(graph.readings.remote, graph.readings.remote.head()))[1]
    known = own.inputs[graph.readings.dataset_id]
    taken = ExecuteTransformInput(graph.readings.dataset_id, known.block_hash, earlier.name, known.offset, None)
    graph.hot.append(ExecuteTransform((taken,), None, own.last_offset, None, None, moment(99)))
    finding = verify(graph.hot.remote, resolve=graph.resolve).datasets[0].findings[0]
    assert finding.problem == f"it took block 4 of {graph.readings.dataset_id} after block 5"


def test_what_was_an_input_before_the_query_was_another_one_is_verified_too(graph: Graph, tmp_path: Path) -> None:
    other = root_of(tmp_path / "other", seed=9)
    inputs = (TransformInput(str(other.dataset_id), "readings"),)
    graph.hot.append(SetTransform(inputs, TransformSql("duckdb", "1", "SELECT 1")))

    def again(*, redo: bool = False) -> VerificationReport:
        known = {other.dataset_id: other, **graph.datasets}
        return verify(graph.hot.remote, resolve=lambda wanted: known[wanted].remote, replay=replay if redo else None)

    again(redo=True).require_ok()
    slices(graph.readings)[0][1].write_bytes(b"")
    assert only_finding(again())[0].dataset_id == graph.readings.dataset_id


def test_runs_over_what_is_broken_are_not_done_again(graph: Graph) -> None:
    slices(graph.readings)[0][1].unlink()
    report = check(graph, again=True)
    assert only_finding(report)[0].dataset_id == graph.readings.dataset_id
    assert "no run was done again: the input" in report.datasets[1].unchecked[0]
    assert "no run was done again: the input" in report.datasets[0].unchecked[0]
    assert [dataset.replayed for dataset in report.datasets] == [0, 0, 0]


def test_what_is_new_in_an_input_does_not_matter_to_what_was_made_before(graph: Graph) -> None:
    add_readings(graph.readings, 18)
    check(graph, again=True).require_ok()


def test_what_is_wrong_is_listed_in_the_error(graph: Graph) -> None:
    path = slices(graph.readings)[0][1]
    path.write_bytes(b"")
    with pytest.raises(IntegrityError, match=rf"found 1 problems: {graph.readings.dataset_id}: slice data/{path.name}"):
        check(graph).require_ok()
    assert named("x") not in {finding.block for finding in check(graph).datasets[2].findings}
