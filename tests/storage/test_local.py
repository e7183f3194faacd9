"""What the local store promises beyond the contract: crashes, links, a full disk, folders that may not be written."""

import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dagster_versioned.errors import InvalidName, ObjectNotFound, StorageError
from dagster_versioned.storage import Durability, LocalStore
from support.racers import add_one
from support.store_verbs import addresses_of, of_key

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")  # the children change their own user or limits and then only write files
MEGABYTE = 1024**2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def keys_of(store: LocalStore) -> list[str]:
    return [info.key for info in store.list()]


def files_in_the_making(root: Path) -> list[str]:
    return [path.name for path in (root / ".tmp").iterdir() if not path.name.startswith("lock-")]


class TestLinks:
    @pytest.fixture
    def outside(self, tmp_path: Path) -> Path:
        folder = tmp_path / "outside"
        folder.mkdir()
        (folder / "secret").write_bytes(b"secret")
        return folder

    @pytest.mark.parametrize("key", ["link/secret", "link/new", "link/deep/er/new", "file"])
    def test_a_link_out_of_the_root_is_refused_by_every_verb(self, root: Path, outside: Path, key: str):
        root.mkdir()
        (root / "link").symlink_to(outside)
        (root / "file").symlink_to(outside / "secret")
        store = LocalStore(root)
        store.put("inside", b"data")
        for attempt in (*of_key(store, key, root / "inside", "inside"), *addresses_of(store, key, "inside")):
            with pytest.raises(InvalidName, match="link leads out of the root"):
                attempt()
        assert [(path.name, path.read_bytes()) for path in outside.iterdir()] == [("secret", b"secret")]

    def test_what_a_link_leads_to_is_not_listed_or_rooted_in(self, root: Path, outside: Path):
        store = LocalStore(root)
        store.put("inside", b"data")
        (root / "link").symlink_to(outside)
        (root / "file").symlink_to(outside / "secret")
        assert keys_of(store) == ["inside"]
        assert list(store.folders()) == []
        for attempt in (
            lambda: list(store.list("link/")),
            lambda: list(store.folders("link/")),
            lambda: store.subfolder("link"),
        ):
            with pytest.raises(InvalidName, match="link leads out of the root"):
                attempt()

    def test_a_link_that_is_planted_later_is_refused(self, root: Path, outside: Path):
        store = LocalStore(root).subfolder("tables")
        store.put("folder/object", b"data")
        shutil.rmtree(root / "tables")
        (root / "tables").symlink_to(outside)
        for attempt in (lambda: store.get("secret"), lambda: store.put("new", b""), lambda: list(store.list())):
            with pytest.raises(InvalidName, match="link leads out of the root"):
                attempt()
        assert [path.name for path in outside.iterdir()] == ["secret"]

    @pytest.mark.parametrize("inside", [False, True])
    @pytest.mark.parametrize("verb", ["put", "put_if_absent", "delete", "copy"])
    def test_a_folder_for_files_in_the_making_that_is_a_link_is_refused(
        self, root: Path, outside: Path, verb: str, inside: bool
    ):
        """Else old files of a stranger, or objects, would be taken for what a killed write left."""
        target = root / "folder" if inside else outside
        target.mkdir(parents=True, exist_ok=True)
        (target / ("a" * 32)).write_bytes(b"mine")
        root.mkdir(exist_ok=True)
        (root / "object").write_bytes(b"data")
        (root / ".tmp").symlink_to(target)
        before = sorted(target.iterdir())
        store = LocalStore(root)
        calls = {
            "put": lambda: store.put("object", b"new"),
            "put_if_absent": lambda: store.put_if_absent("new", b"new"),
            "delete": lambda: store.delete(["object"]),
            "copy": lambda: store.copy("object", "copy"),
        }
        with pytest.raises(InvalidName, match=r"\.tmp.*symbolic link"):
            calls[verb]()
        assert sorted(target.iterdir()) == before
        assert (root / "object").read_bytes() == b"data"

    def test_a_lock_that_is_a_link_is_not_followed(self, root: Path, outside: Path):
        store = LocalStore(root)
        store.put("object", b"data")
        (lock,) = (root / ".tmp").glob("lock-*")
        lock.unlink()
        lock.symlink_to(outside / "made")
        with pytest.raises(StorageError):
            store.put("object", b"new")
        assert not (outside / "made").exists()

    def test_the_root_itself_may_be_a_link(self, tmp_path: Path, outside: Path):
        (tmp_path / "link").symlink_to(outside)
        store = LocalStore(tmp_path / "link")
        store.put("new", b"data")
        assert (outside / "new").read_bytes() == b"data"
        assert store.get("secret") == b"secret"

    def test_a_link_within_the_root_is_followed(self, root: Path):
        store = LocalStore(root)
        store.put("a/object", b"data")
        (root / "b").symlink_to(root / "a")
        assert store.get("b/object") == b"data"


class TestFiles:
    def test_the_folder_is_made_by_the_first_write(self, tmp_path: Path):
        store = LocalStore(tmp_path / "not" / "yet")
        assert keys_of(store) == []
        assert not (tmp_path / "not").exists()
        store.put("a/b", b"data")
        assert (tmp_path / "not/yet/a/b").read_bytes() == b"data"

    def test_a_subfolder_shares_the_folder_for_files_in_the_making(self, root: Path):
        store = LocalStore(root).subfolder("tables/t1")
        store.put("log/0", b"data")
        store.put_if_absent("log/1", b"data")
        assert sorted(path.name for path in root.iterdir()) == [".tmp", "tables"]
        assert keys_of(LocalStore(root)) == ["tables/t1/log/0", "tables/t1/log/1"]
        assert files_in_the_making(root) == []

    @pytest.mark.parametrize(("durability", "expected"), [("now", [True, False] * 4), ("later", [])])
    def test_a_write_waits_for_the_disk_unless_told_otherwise(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, durability: Durability, expected: list[bool]
    ):
        store = LocalStore(root)
        store.put("folder/old", b"old")
        synced: list[bool] = []
        monkeypatch.setattr(os, "fsync", lambda opened: synced.append(stat.S_ISREG(os.fstat(opened).st_mode)))
        etag = store.put("folder/new", b"1", durability=durability).etag
        store.put("folder/new", b"2", durability=durability)
        store.put_if_match("folder/new", b"3", store.head("folder/new").etag, durability=durability)
        store.put_if_match("folder/newer", b"4", None, durability=durability)
        assert synced == expected, "the file, then its folder"
        assert store.get("folder/new") == b"3"
        assert etag != store.head("folder/new").etag

    def test_foreign_files_whose_names_are_no_keys_are_not_objects(self, root: Path):
        store = LocalStore(root)
        store.put("object", b"data")
        for name in (b"back\\slash", b"new\nline", b"latin-\xe9"):
            Path(os.fsdecode(os.fsencode(root) + b"/" + name)).write_bytes(b"")
        os.mkfifo(root / "pipe")
        assert keys_of(store) == ["object"]
        with pytest.raises(ObjectNotFound):
            store.head("pipe")

    def test_delete_prunes_empty_folders_up_to_the_root(self, root: Path):
        inner = LocalStore(root).subfolder("a/b")
        inner.put("c/d/1", b"data")
        inner.put("c/2", b"data")
        inner.delete(["c/d/1"])
        assert sorted(path.name for path in (root / "a/b/c").iterdir()) == ["2"]
        inner.delete(["c/2"])
        assert [path.name for path in root.iterdir()] == [".tmp"]

    def test_a_folder_without_objects_is_not_shown(self, root: Path):
        store = LocalStore(root)
        store.put("full/deep/er/1", b"data")
        (root / "empty/deep").mkdir(parents=True)
        assert list(store.folders()) == ["full"]

    @pytest.mark.parametrize("key", ["object/below", "folder"])
    def test_a_key_cannot_be_both_object_and_folder(self, root: Path, key: str):
        store = LocalStore(root)
        store.put("object", b"data")
        store.put("folder/object", b"data")
        for attempt in (
            lambda: store.put(key, b""),
            lambda: store.put_if_absent(key, b""),
            lambda: store.put_if_match(key, b"", None),
            lambda: store.copy("object", key),
        ):
            with pytest.raises(StorageError, match=key):
                attempt()
        assert keys_of(store) == ["folder/object", "object"]
        assert files_in_the_making(root) == []

    def test_a_copy_shares_the_bytes_on_the_disk(self, root: Path):
        store = LocalStore(root)
        store.put("source", b"data")
        store.copy("source", "target")
        assert (root / "source").stat().st_ino == (root / "target").stat().st_ino
        store.put("target", b"other")
        assert store.get("source") == b"data"


def run(code: str, *arguments: object, mount: str | None = None) -> str:
    """Run Python code that uses a store, after a mount that only it sees; returns what it prints."""
    command = [
        sys.executable,
        "-c",
        f"import sys\nfrom pathlib import Path\nfrom dagster_versioned.storage import *\n{code}",
    ]
    command += [str(argument) for argument in arguments]
    if mount is not None:
        namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
        if shutil.which("unshare") is None or subprocess.run([*namespace, mount], capture_output=True).returncode:
            pytest.skip("this machine lets no test mount a file system")
        command = [*namespace, f'{mount} && exec "$@"', "sh", *command]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


# Prints what each write raises and what then is in the store; sys.argv[1] is the root, which holds old and kept.
WRITES = """
store, file = LocalStore(sys.argv[1]), Path(sys.argv[2])
big = bytes(4 * 1024**2)
etag = store.head("old").etag
for write in (
    lambda: store.put("old", big),
    lambda: store.put("new/deep", big),
    lambda: store.put_if_absent("new", big),
    lambda: store.put_if_match("old", big, etag),
    lambda: store.put_file("old", file),
):
    try:
        write()
        print("nothing raised")
    except Exception as error:
        print(type(error).__name__, error)
print([(info.key, store.get(info.key)) for info in store.list()])
print([path.name for path in Path(sys.argv[1], ".tmp").glob("*") if not path.name.startswith("lock-")])
"""
UNTOUCHED = "[('kept', b'kept'), ('old', b'old')]"


@pytest.fixture
def big_file(tmp_path: Path) -> Path:
    file = tmp_path / "big"
    file.write_bytes(bytes(4 * MEGABYTE))
    return file


class TestRefusedWrites:
    @pytest.mark.skipif(not Path("/proc").is_dir(), reason="no /proc")
    def test_a_place_where_no_folder_can_be_made_is_refused(self):
        with pytest.raises(StorageError, match="No such file or directory"):
            LocalStore("/proc/nothing").put("key", b"x")

    def old_and_kept(self, root: Path) -> None:
        LocalStore(root).put("old", b"old")
        LocalStore(root).put("kept", b"kept")

    def test_a_full_disk_leaves_everything_as_it_was(self, root: Path, big_file: Path):
        root.mkdir()
        prepare = "store = LocalStore(sys.argv[1]); store.put('old', b'old'); store.put('kept', b'kept')\n"
        *raised, objects, making = run(
            prepare + WRITES, root, big_file, mount=f"mount -t tmpfs -o size=1m none '{root}'"
        ).splitlines()
        assert len(raised) == 5
        assert all(line.startswith("StoreUnavailable") and "full" in line for line in raised)
        assert (objects, making) == (UNTOUCHED, "[]")

    def test_a_file_size_limit_leaves_everything_as_it_was(self, root: Path, big_file: Path):
        self.old_and_kept(root)
        limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1024**2, 1024**2))\n"
        *raised, objects, making = run(limit + WRITES, root, big_file).splitlines()
        assert len(raised) == 5
        assert all(line.startswith("StoreUnavailable") and "quota" in line for line in raised)
        assert (objects, making) == (UNTOUCHED, "[]")

    def test_a_read_only_file_system_denies_access(self, root: Path, big_file: Path):
        self.old_and_kept(root)
        mount = f"mount --bind '{root}' '{root}' && mount -o remount,bind,ro '{root}'"
        *raised, objects, _ = run(WRITES, root, big_file, mount=mount).splitlines()
        assert len(raised) == 5
        assert all(line.startswith("AccessDenied") and "Read-only" in line for line in raised)
        assert objects == UNTOUCHED

    def test_a_folder_of_somebody_else_denies_access(self, root: Path, big_file: Path):
        self.old_and_kept(root)
        hidden = root / "hidden"
        hidden.write_bytes(b"")
        hidden.chmod(0)
        for folder in (root, root / ".tmp"):
            folder.chmod(0o555)
        for parent in list(root.parents)[:-2]:  # pytest's folders are private to the user
            if parent.stat().st_uid == os.getuid():
                parent.chmod(parent.stat().st_mode | 0o011)
        # root may write anywhere, so it becomes nobody first.
        become = "import os\nif os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        reads = """
for attempt in (lambda: store.get("hidden"), lambda: store.delete(["old"]), lambda: store.copy("kept", "old")):
    try:
        attempt()
        print("nothing raised")
    except Exception as error:
        print(type(error).__name__, error)
"""
        writes = WRITES.replace("store.list()]", "store.list() if info.key != 'hidden']")
        *raised, objects, making, read, deleted, copied = run(become + writes + reads, root, big_file).splitlines()
        assert len(raised) == 5
        assert all(line.startswith("AccessDenied") for line in [*raised, read, deleted, copied])
        assert (objects, making) == (UNTOUCHED, "[]")

    def test_a_copy_from_another_device_is_made_of_bytes(self, root: Path):
        (root / "mounted").mkdir(parents=True)
        code = """
store = LocalStore(sys.argv[1])
Path(sys.argv[1], "mounted", "far").write_bytes(b"far away")
print(store.copy("mounted/far", "near").size, store.get("near"))
"""
        assert run(code, root, mount=f"mount -t tmpfs none '{root}/mounted'") == "8 b'far away'\n"
        assert (root / "near").read_bytes() == b"far away"
        assert files_in_the_making(root) == []


def _put_for_ever(store: LocalStore, verb: str, ready) -> None:
    number = 0
    while True:
        number += 1
        data = bytes([number % 256]) * MEGABYTE
        match verb:
            case "put":
                store.put("object", data)
            case "put_if_match":
                store.put_if_match("object", data, store.head("object").etag)
            case "copy":
                store.put("source", data)
                store.copy("source", "object")
            case _:
                store.put_if_absent(f"log/{number}", data)
        if number == 2:
            ready.set()


class TestCrashes:
    @pytest.mark.every(2)
    @pytest.mark.faults
    @pytest.mark.parametrize("verb", ["put", "put_if_absent", "put_if_match", "copy"])
    def test_a_killed_writer_leaves_whole_objects(self, root: Path, verb: str):
        store = LocalStore(root)
        store.put("object", bytes(MEGABYTE))
        for turn in range(8):
            ready = FORK.Event()
            writer = FORK.Process(
                target=_put_for_ever,
                args=(store.subfolder(f"turn{turn}") if verb == "put_if_absent" else store, verb, ready),
            )
            writer.start()
            assert ready.wait(120)
            time.sleep(0.003 * turn)
            os.kill(writer.pid, signal.SIGKILL)
            writer.join()
            for info in store.list():
                data = store.get(info.key)
                assert len(data) == info.size == MEGABYTE
                assert data == data[:1] * MEGABYTE
        # Neither a lock nor a file in the making stands in the way of the next writer.
        store.put_if_match("object", b"next", store.head("object").etag)
        assert store.get("object") == b"next"

    def test_what_killed_writers_left_is_removed_after_a_day(self, root: Path, monkeypatch: pytest.MonkeyPatch):
        LocalStore(root).put("object", b"data")
        abandoned = os.urandom(16).hex()
        (root / ".tmp" / abandoned).write_bytes(b"half")
        run("LocalStore(sys.argv[1]).put('object', b'data')", root)
        assert files_in_the_making(root) == [abandoned]
        a_day_on = "import time\nnow = time.time\ntime.time = lambda: now() + 25 * 3600\n"
        run(a_day_on + "LocalStore(sys.argv[1]).put('object', b'data')", root)
        assert files_in_the_making(root) == []
        assert list((root / ".tmp").glob("lock-*"))

    def test_what_no_write_made_is_left_where_it_is(self, root: Path):
        folder = root / ".tmp"
        folder.mkdir(parents=True)
        (root / "elsewhere").write_bytes(b"mine")
        (folder / "thesis.txt").write_bytes(b"x")
        (folder / ("a" * 32)).mkdir()
        (folder / ("b" * 32)).symlink_to(root / "elsewhere")
        (folder / ("C" * 32)).write_bytes(b"not lower case")
        a_day_on = "import time\nnow = time.time\ntime.time = lambda: now() + 25 * 3600\n"
        run(a_day_on + "LocalStore(sys.argv[1]).put('object', b'data')", root)
        assert sorted(files_in_the_making(root)) == ["C" * 32, "a" * 32, "b" * 32, "thesis.txt"]


class TestConcurrency:
    def test_no_compare_and_swap_is_lost_between_processes(self, root: Path):
        store = LocalStore(root)
        store.put("count", b"0")
        adders = [SPAWN.Process(target=add_one, args=(store, "count", 25)) for _ in range(4)]
        for adder in adders:
            adder.start()
        for adder in adders:
            adder.join()
        assert store.get("count") == b"100"

    def test_an_etag_is_never_used_again(self, root: Path):
        # Equal sizes, inodes freed and taken again, all within the few milliseconds of the kernel's coarse clock.
        store = LocalStore(root)
        etags = [store.put("head", b"same size").etag for _ in range(200)]
        assert len(set(etags)) == 200

    def test_a_reader_sees_the_old_or_the_new(self, root: Path):
        store = LocalStore(root)
        store.put("object", b"\0" * MEGABYTE)
        ready = FORK.Event()
        writer = FORK.Process(target=_put_for_ever, args=(store, "put", ready))
        writer.start()
        try:
            assert ready.wait(120)
            for _ in range(100):
                data, info = store.get_with_info("object")
                assert len(data) == info.size == MEGABYTE
                assert data == data[:1] * MEGABYTE
        finally:
            writer.kill()
            writer.join()
