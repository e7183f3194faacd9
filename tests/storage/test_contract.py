"""What every store promises, tried on each of them: local folder, a wrapper, servers of S3, Azure and Google."""

import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_versioned.errors import AlreadyExists, InvalidName, ObjectNotFound, PreconditionFailed, StorageError
from dagster_versioned.storage import ObjectStore
from dagster_versioned.storage.keys import is_key
from support.racers import among_processes, among_threads, create, swap
from support.store_verbs import addresses_of, of_key

MEGABYTE = 1024**2
MOTO = pytest.param("moto", marks=pytest.mark.slow)
REAL_S3 = pytest.param("s3", marks=pytest.mark.s3)
AZURE = pytest.param("azure", marks=[pytest.mark.azure, pytest.mark.slow])
ODD_KEYS = [
    "a b",
    "ü/ß",
    "percent%2Fencoded",
    "q?x=1&y",
    "h#x",
    "日本/語",
    "a+b",
    "c=1/d",
    "😀",
    "x~'\"()!*;:@,$[]",
    "-",
    "...",
]
REFUSED_KEYS = [
    "",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/../b",
    "../a",
    "./a",
    "a/.",
    "a\0b",
    "a\\b",
    "a\nb",
    "\x7f",
    ".tmp/x",
    "x/.tmp",
]


def keys_of(store: ObjectStore, prefix: str = "", **arguments: str) -> list[str]:
    return [info.key for info in store.list(prefix, **arguments)]


def fill(store: ObjectStore, keys: list[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, key.encode()), keys))


class TestObjects:
    @pytest.mark.parametrize("data", [b"", b"\0", b"text\r\n", bytes(range(256)) * 40_000], ids=len)
    def test_get_returns_what_was_put(self, store: ObjectStore, data: bytes):
        info = store.put("folder/object", data)
        assert store.get("folder/object") == data
        assert (info.key, info.size) == ("folder/object", len(data))

    def test_put_replaces(self, store: ObjectStore):
        first = store.put("object", b"first")
        second = store.put("object", b"2nd")
        assert store.get("object") == b"2nd"
        assert first.etag != second.etag

    def test_a_put_that_may_be_lost_with_power_is_visible_at_once(self, store: ObjectStore):
        first = store.put("object", b"first", durability="later")
        assert store.get_with_info("object") == (b"first", store.head("object"))
        second = store.put_if_match("object", b"second", first.etag, durability="later")
        assert store.get("object") == b"second"
        assert second.etag == store.head("object").etag != first.etag
        with pytest.raises(PreconditionFailed, match="object"):
            store.put_if_match("object", b"third", first.etag, durability="later")
        with pytest.raises(PreconditionFailed, match="object"):
            store.put_if_match("object", b"third", None, durability="later")
        store.put_if_match("new/object", b"new", None, durability="later")
        assert store.get("new/object") == b"new"

    def test_every_verb_reports_the_same_info(self, store: ObjectStore):
        put = store.put("object", b"data")
        head = store.head("object")
        assert (put.key, put.size, put.etag) == (head.key, head.size, head.etag)
        assert store.get_with_info("object") == (b"data", head)
        (listed,) = store.list()
        assert (listed.key, listed.size, listed.etag) == (head.key, head.size, head.etag)

    def test_the_time_is_now_in_utc(self, store: ObjectStore):
        for info in (store.put("object", b"data"), store.head("object"), *store.list()):
            assert info.modified.tzinfo is UTC
            assert abs(info.modified - datetime.now(UTC)) < timedelta(seconds=30)

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [(0, 4, b"0123"), (3, 4, b"3456"), (8, 100, b"89"), (10, 1, b""), (50, 5, b""), (2, 0, b"")],
    )
    def test_a_range_ends_with_the_object(self, store: ObjectStore, start: int, length: int, expected: bytes):
        store.put("object", b"0123456789")
        assert store.get_range("object", start, length) == expected

    @pytest.mark.parametrize("start", [0, 3])
    def test_every_range_of_an_empty_object_is_empty(self, store: ObjectStore, start: int):
        store.put("object", b"")
        assert store.get_range("object", start, 4) == b""

    @pytest.mark.parametrize("operation", ["get", "get_with_info", "head"])
    @pytest.mark.parametrize("key", ["absent", "object/below", "folder"])
    def test_what_is_not_an_object_is_not_found(self, store: ObjectStore, operation: str, key: str):
        store.put("object", b"data")
        store.put("folder/inner", b"data")
        with pytest.raises(ObjectNotFound, match=key):
            getattr(store, operation)(key)

    @pytest.mark.parametrize("length", [0, 5])
    def test_a_range_of_an_absent_object_is_not_found(self, store: ObjectStore, length: int):
        with pytest.raises(ObjectNotFound, match="absent"):
            store.get_range("absent", 0, length)

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_odd_keys_come_back_as_they_were(self, store: ObjectStore, key: str):
        store.put(key, b"data")
        assert store.get(key) == b"data"
        assert keys_of(store) == [key]
        store.copy(key, f"copy of/{key}")
        assert store.get(f"copy of/{key}") == b"data"
        store.delete([key])
        assert keys_of(store) == [f"copy of/{key}"]

    @pytest.mark.parametrize("key", REFUSED_KEYS)
    def test_keys_that_could_leave_the_root_are_refused_by_every_verb(self, store: ObjectStore, file: Path, key: str):
        store.put("kept", b"data")
        for attempt in (
            *of_key(store, key, file, "other"),
            *addresses_of(store, key, "kept"),
            lambda: store.delete(["kept", key]),
            lambda: store.subfolder(key),
        ):
            with pytest.raises(InvalidName, match="Nothing was touched"):
                attempt()
        assert keys_of(store) == ["kept"]

    def test_an_engine_is_given_an_address_of_the_object(self, store: ObjectStore):
        store.put("folder/a%2Fb", b"data")
        path = store.local_path("folder/a%2Fb")
        if path is None:
            assert store.url("folder/a%2Fb") == f"{store.uri}/folder/a%2Fb"
            assert urlsplit(store.uri).scheme in ("s3", "abfss", "gs")
        else:
            assert store.url("folder/a%2Fb") == str(path)
            assert path.read_bytes() == b"data"


class TestFiles:
    @pytest.mark.parametrize("size", [0, 1000, 5 * MEGABYTE, 11 * MEGABYTE + 7])
    def test_put_file_stores_its_bytes_and_leaves_it(self, store: ObjectStore, file: Path, size: int):
        data = (bytes(range(251)) * (size // 251 + 1))[:size]
        file.write_bytes(data)
        store.put("part", b"old")
        info = store.put_file("part", file)
        assert store.get("part") == data == file.read_bytes()
        assert (info.key, info.size, info.etag) == ("part", size, store.head("part").etag)

    def test_changing_the_file_later_does_not_change_the_object(self, store: ObjectStore, file: Path):
        file.write_bytes(b"before")
        store.put_file("part", file)
        with file.open("r+b") as opened:
            opened.write(b"AFTER!")
        assert store.get("part") == b"before"


class TestCopy:
    @pytest.mark.parametrize("size", [0, 1000, 11 * MEGABYTE + 7])
    def test_copy_replaces_the_target(self, store: ObjectStore, size: int):
        store.put("source", b"x" * size)
        store.put("folder/target", b"old")
        info = store.copy("source", "folder/target")
        assert store.get("folder/target") == store.get("source") == b"x" * size
        assert (info.key, info.size, info.etag) == ("folder/target", size, store.head("folder/target").etag)

    def test_a_copy_lives_apart_from_its_source(self, store: ObjectStore):
        store.put("source", b"one")
        store.copy("source", "target")
        store.put("source", b"two")
        assert store.get("target") == b"one"
        store.copy("target", "other")
        store.delete(["target"])
        assert store.get("other") == b"one"

    @pytest.mark.parametrize("target", ["object", "twin"])
    def test_copying_the_same_bytes_again_makes_them_young(self, store: ObjectStore, target: str):
        store.put("object", b"data")
        store.copy("object", "twin")
        before = store.head(target).modified
        if store.local_path("object") is None:
            time.sleep(1.1)  # S3 and Azure show whole seconds
        store.copy("object", target)
        assert store.head(target).modified > before
        assert keys_of(store) == ["object", "twin"]

    def test_an_absent_source_is_not_found(self, store: ObjectStore):
        store.put("target", b"data")
        with pytest.raises(ObjectNotFound, match="absent"):
            store.copy("absent", "target")
        assert store.get("target") == b"data"


class TestConditionalPuts:
    def test_put_if_absent_creates_once(self, store: ObjectStore):
        info = store.put_if_absent("log/0", b"first")
        assert info.etag == store.head("log/0").etag
        for data in (b"second", b"first"):
            with pytest.raises(AlreadyExists, match="log/0"):
                store.put_if_absent("log/0", data)
        assert store.get("log/0") == b"first"

    def test_put_if_match_replaces_what_was_read(self, store: ObjectStore):
        etag = store.put("head", b"one").etag
        info = store.put_if_match("head", b"two", etag)
        assert store.get_with_info("head") == (b"two", store.head("head"))
        assert info.etag == store.head("head").etag != etag
        with pytest.raises(PreconditionFailed, match="head"):
            store.put_if_match("head", b"three", etag)
        assert store.get("head") == b"two"

    def test_put_if_match_without_an_etag_creates_once(self, store: ObjectStore):
        etag = store.put_if_match("head", b"one", None).etag
        with pytest.raises(PreconditionFailed, match="head"):
            store.put_if_match("head", b"two", None)
        assert store.put_if_match("head", b"two", etag).size == 3

    def test_put_if_match_does_not_create(self, store: ObjectStore):
        etag = store.put("other", b"one").etag
        with pytest.raises(PreconditionFailed, match="head"):
            store.put_if_match("head", b"one", etag)
        assert keys_of(store) == ["other"]

    def test_every_verb_returns_an_etag_that_put_if_match_takes(self, store: ObjectStore, file: Path):
        file.write_bytes(b"f" * (6 * MEGABYTE))
        store.put("source", b"source")
        for info in (
            store.put_if_absent("object", b"0"),
            store.put("object", b"1"),
            store.put_file("object", file),
            store.copy("source", "object"),
            store.head("object"),
            next(store.list("object")),
            store.get_with_info("object")[1],
        ):
            store.put_if_match("object", b"swapped", store.head("object").etag)
            with pytest.raises(PreconditionFailed):
                store.put_if_match("object", b"never", f"{info.etag}0")
        for write in (
            lambda: store.put("object", b"1"),
            lambda: store.put_file("object", file),
            lambda: store.copy("source", "object"),
        ):
            store.put_if_match("object", b"swapped", write().etag)

    def test_the_etag_tells_writes_in_quick_succession_apart(self, store: ObjectStore):
        etags = [store.put("head", b"%03d" % number).etag for number in range(40)]
        assert len(set(etags)) == 40

    @pytest.mark.every(2)
    @pytest.mark.parametrize("attempt", [create, swap])
    def test_one_of_16_threads_wins(self, store: ObjectStore, attempt):
        keys = [f"race{number}" for number in range(3)]
        if attempt is swap:
            prepare_swap(store, keys)
        for key, winners in among_threads(store, attempt, keys).items():
            assert len(winners) == 1
            assert store.get(key) == b"%d" % winners[0]

    # moto decides in this process, and so would prove nothing.
    @pytest.mark.parametrize(
        "new_store",
        [
            "local",
            pytest.param("gcs", marks=pytest.mark.slow),
            pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.slow]),
            AZURE,
        ],
        indirect=True,
    )
    def test_one_of_8_processes_wins(self, store: ObjectStore, s3_environment: tuple[str, ...]):
        created = [f"create{number}" for number in range(4)]
        swapped = [f"swap{number}" for number in range(4)]
        prepare_swap(store, swapped)
        attempts = dict.fromkeys(created, create) | dict.fromkeys(swapped, swap)
        for key, winners in among_processes(store, attempts).items():
            assert len(winners) == 1
            assert store.get(key) == b"%d" % winners[0]


def prepare_swap(store: ObjectStore, keys: list[str]) -> None:
    for key in keys:
        store.put(f"{key}.etag", store.put(key, b"start").etag.encode())


class TestListing:
    def test_an_empty_store_lists_nothing(self, store: ObjectStore):
        assert keys_of(store) == keys_of(store, "folder/") == []
        assert list(store.folders()) == list(store.folders("folder/")) == []

    def test_the_order_is_that_of_the_whole_key(self, store: ObjectStore):
        keys = ["a", "a-b/c", "a.b", "ab", "b/c-d", "b/c.d", "b/c/d", "b/c0", "é", "ÿ", "日", "😀"]
        fill(store, [*keys, "aa/b", "a!"])
        assert keys_of(store) == sorted([*keys, "aa/b", "a!"], key=lambda key: key.encode())

    def test_a_prefix_need_not_be_a_folder(self, store: ObjectStore):
        fill(store, ["log/1", "log/10", "log/2", "logs", "lo", "other/log/1"])
        assert keys_of(store, "log") == ["log/1", "log/10", "log/2", "logs"]
        assert keys_of(store, "log/1") == ["log/1", "log/10"]
        assert keys_of(store, "log/") == ["log/1", "log/10", "log/2"]
        assert keys_of(store, "log/1/") == []

    def test_start_after_need_not_be_a_key(self, store: ObjectStore):
        fill(store, ["a/1", "a/3", "b", "c/1"])
        assert keys_of(store, start_after="a/1") == ["a/3", "b", "c/1"]
        assert keys_of(store, start_after="a/2") == ["a/3", "b", "c/1"]
        assert keys_of(store, start_after="a/") == ["a/1", "a/3", "b", "c/1"]
        assert keys_of(store, start_after="a/9") == ["b", "c/1"]
        assert keys_of(store, start_after="z") == []
        assert keys_of(store, "a/", start_after="a/1") == ["a/3"]
        assert keys_of(store, "b", start_after="a/1") == ["b"]
        assert keys_of(store, "a/", start_after="b") == []

    @pytest.mark.parametrize("new_store", ["local", "gcs", MOTO, REAL_S3, AZURE], indirect=True)
    @pytest.mark.slow
    def test_more_than_a_page_is_listed_and_deleted(self, store: ObjectStore):
        keys = [f"log/{number:020d}.json" for number in range(1005)]
        fill(store, keys)
        assert keys_of(store) == keys
        assert keys_of(store, "log/", start_after=keys[1001]) == keys[1002:]
        store.delete([*keys[:1002], keys[1003], keys[1004]])
        assert keys_of(store) == [keys[1002]]

    def test_folders_are_the_names_directly_below(self, store: ObjectStore):
        fill(store, ["t1/x", "t1/y/z", "t-2/x", "t/x", "file", "t1-file"])
        assert list(store.folders()) == ["t", "t-2", "t1"]
        assert list(store.folders("t1/")) == ["y"]
        with pytest.raises(InvalidName, match="'/'"):
            store.folders("t1")

    def test_a_subfolder_is_a_store_of_its_own(self, store: ObjectStore):
        inner = store.subfolder("tables/t1")
        inner.put("log/0", b"data")
        store.put("tables/t10/log/0", b"other")
        assert inner.uri == f"{store.uri}/tables/t1"
        assert keys_of(inner) == ["log/0"]
        assert keys_of(store, "tables/t1/") == ["tables/t1/log/0"]
        assert inner.url("x") == store.url("tables/t1/x")
        assert inner.subfolder("log").get("0") == b"data"
        assert keys_of(inner, start_after="log") == ["log/0"]

    def test_what_follows_the_prefix_itself_is_all_of_it(self, store: ObjectStore):
        fill(store, ["a/0", "a1", "ab/c", "b-/0"])
        assert keys_of(store, "a", start_after="a") == ["a/0", "a1", "ab/c"]
        assert keys_of(store, "ab", start_after="ab") == ["ab/c"]
        assert keys_of(store, "b-", start_after="b-") == ["b-/0"]

    @pytest.mark.parametrize("prefix", ["/", "a//", "../", "a/../", "\0", "a\\"])
    def test_a_prefix_that_could_leave_the_root_is_refused(self, store: ObjectStore, prefix: str):
        with pytest.raises(InvalidName):
            store.list(prefix)
        with pytest.raises(InvalidName):
            store.folders(prefix)

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=8)
    @given(data=st.data())
    def test_any_keys_are_listed_as_sorted_bytes(self, new_store: Callable[[], ObjectStore], data: st.DataObject):
        segment = st.text(st.sampled_from("ab!-.0~é😀"), min_size=1, max_size=3).filter(is_key)
        keys = data.draw(st.sets(st.lists(segment, min_size=1, max_size=3).map("/".join), max_size=12))
        # A folder of files cannot hold both "a" and "a/b".
        keys = {key for key in keys if not any(other.startswith(f"{key}/") for other in keys)}
        store = new_store()
        fill(store, sorted(keys))
        expected = sorted(keys, key=lambda key: key.encode())
        assert keys_of(store) == expected
        prefix = data.draw(st.sampled_from(["", "a", "a/", "b-", "é/"]))
        start = data.draw(st.sampled_from(["", "a", "a-", "a/", "a/b", "b", "é", *expected]))
        assert keys_of(store, prefix, start_after=start) == [
            key for key in expected if key.startswith(prefix) and key.encode() > start.encode()
        ]


class TestDelete:
    def test_only_the_named_objects_go(self, store: ObjectStore):
        fill(store, ["a/1", "a/2", "b/1", "c"])
        store.delete(iter(["a/1", "b/1", "absent", "a/absent/x", "c/below"]))
        assert keys_of(store) == ["a/2", "c"]
        store.delete([])
        assert keys_of(store) == ["a/2", "c"]

    def test_a_folder_is_not_deleted_by_its_name(self, store: ObjectStore):
        fill(store, ["a/1"])
        store.delete(["a"])
        assert keys_of(store) == ["a/1"]

    # SeaweedFS goes on showing the folder.
    @pytest.mark.parametrize("new_store", ["local", "local-subfolder", MOTO], indirect=True)
    def test_an_emptied_folder_is_gone(self, store: ObjectStore):
        fill(store, ["a/b/c/1", "a/2"])
        store.delete(["a/b/c/1"])
        assert list(store.folders("a/")) == []
        store.delete(["a/2"])
        assert list(store.folders()) == []
        store.put("a/b/c/1", b"again")
        assert keys_of(store) == ["a/b/c/1"]

    def test_a_put_survives_that_its_folder_is_pruned_meanwhile(self, store: ObjectStore):
        def churn(who: int) -> None:
            for number in range(15):
                key = f"deep/er/{who}-{number}"
                store.put(key, b"data")
                assert store.get(key) == b"data"
                store.delete([key])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(churn, range(8)))
        assert keys_of(store) == []


class TestUnfinished:
    def test_what_ended_is_not_unfinished(self, store: ObjectStore, file: Path):
        file.write_bytes(bytes(12 * MEGABYTE))
        store.put_file("file", file)
        store.put_chunks("chunks", [bytes(5 * MEGABYTE), b"end"])
        store.copy("file", "copy")
        assert list(store.unfinished()) == []

    def test_one_that_is_being_made_is_listed_and_can_be_aborted(self, store: ObjectStore):
        def chunks():
            yield bytes(5 * MEGABYTE)
            (write,) = list(store.subfolder("folder").unfinished()) or pytest.skip("this store shows none")
            assert write.key in ("part", None)
            assert write.begun.tzinfo is UTC
            store.subfolder("folder").abort([write])
            store.subfolder("folder").abort([write])  # which is gone
            assert list(store.unfinished()) == []
            yield b"end"

        with pytest.raises(StorageError):
            store.put_chunks("folder/part", chunks())
        assert keys_of(store) == []


class TestPickle:
    def test_a_copy_works_and_holds_no_credential(self, store: ObjectStore, s3_environment: tuple[str, ...]):
        store.put("a/b", b"data")
        for original, key in ((store, "a/b"), (store.subfolder("a"), "b")):
            pickled = pickle.dumps(original)
            assert not [secret for secret in s3_environment if secret.encode() in pickled]
            copy = pickle.loads(pickled)
            assert copy.uri == original.uri
            assert copy.get(key) == b"data"
