"""Governing from a terminal: who may, what is recorded, what is only said, and where every other verb then looks."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_versioned import Project
from dagster_versioned.governance.fence import fence_of
from support.command_line import Cli, Outcome, in_process

pytestmark = pytest.mark.usefixtures("git_identity")


@dataclass
class Organization(Cli):
    """A developer of an organization that has a registry and a governance storage; `location` is their folder."""

    role: str = "developer"

    @property
    def where(self):
        registry = () if self.role == "reader" else ("--registry", str(self.location / "registry.git"))
        return ("--governance", str(self.location / "governance"), *registry)

    def git(self, repository, *arguments):
        command = ["git", "-C", str(self.location / repository), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def log(self, repository="registry.git"):
        """What the registry records, oldest first."""
        return self.git(repository, "log", "--reverse", "--format=%s", "main").splitlines()

    def governance_files(self):
        root = self.location / "governance"
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def acme(tmp_path):
    """An organization with a registry and no project."""
    acme = Organization(tmp_path / "acme")
    acme.location.mkdir()
    acme("gov", "init", ok=0)
    return acme


@pytest.fixture
def reader(acme):
    return Organization(acme.location, role="reader")


@pytest.fixture
def solo(tmp_path):
    """A project of two versions that nobody governs."""
    project = Project.open("NYC", str(tmp_path / "warehouse"))
    for n in (1, 2):
        project.table("flights").write(pa.table({"n": [n]}))
    return project


@pytest.fixture
def governed(acme, solo, tmp_path):
    """The same, governed."""
    acme("gov", "attach", "NYC", tmp_path / "warehouse", ok=0)
    return acme


def bytes_below(folder: Path):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Beginning


def test_init_makes_a_registry_once(tmp_path):
    acme = Organization(tmp_path)
    planned = acme.json("gov", "init", "--dry-run")
    assert (planned["applied"], (tmp_path / "registry.git").exists()) == (False, False)
    made = acme.json("gov", "init")
    assert (made["applied"], made["commit"]) == (True, acme.git("registry.git", "rev-parse", "main").strip())
    assert acme.json("gov", "init")["commit"] == made["commit"]
    assert acme.log() == ["Begin the registry"]


def test_a_registry_that_git_would_execute_is_refused(tmp_path):
    url = f"ext::sh -c 'touch {tmp_path}/owned'"
    outcome = in_process("--registry", url, "--governance", str(tmp_path / "g"), "gov", "init")
    assert (outcome.exit_code, outcome.stdout, "owned" in outcome.stderr) == (2, "", False)
    assert not (tmp_path / "owned").exists()


def test_what_is_missing_is_said_in_words(tmp_path):
    for args, words in (
        (["gov", "init"], "DAGSTER_VERSIONED_REGISTRY"),
        (["gov", "list"], "DAGSTER_VERSIONED_GOVERNANCE"),
        (["--governance", str(tmp_path), "gov", "status"], "--registry"),
        (["--governance", str(tmp_path), "--role", "king", "gov", "list"], "developer or reader"),
        (["--governance", str(tmp_path), "--role", "developer", "gov", "list"], "DAGSTER_VERSIONED_CLONE"),
        (["--governance", str(tmp_path), "ls"], "DAGSTER_VERSIONED_PROJECT"),
    ):
        result = in_process(*args)
        assert (result.exit_code, result.stdout) == (2, ""), args
        assert words in result.stderr, args


# Registering and attaching


def test_a_new_project_is_registered_once_and_its_first_table_written_there(acme, tmp_path):
    place = tmp_path / "new"
    planned = acme.json("gov", "register", "NYC", place, "--dry-run")
    assert (planned["applied"], planned["changed"], planned["commit"]) == (False, True, None)
    assert acme.log() == ["Begin the registry"]
    assert acme.governance_files() == {}
    done = acme.json("gov", "register", "NYC", place, "--reason", "ticket 12")
    assert done["commit"] == acme.git("registry.git", "rev-parse", "main").strip()
    again = acme.json("gov", "register", "NYC", place)
    assert (again["changed"], again["commit"], again["published"]) == (False, None, [])
    assert acme.log() == ["Begin the registry", f"Registered: NYC at {place}"]
    assert {key.rsplit("/", 1)[1] for key in acme.governance_files()} == {
        "ref.json", "dispatch.json", "migration_history.json"
    }  # fmt: skip
    assert acme("gov", "register", "LAX", place).code == 6
    assert acme("gov", "register", "NYC", tmp_path / "other").code == 6


def test_a_project_that_is_there_is_attached_and_nothing_of_it_is_touched(acme, solo, tmp_path):
    before = bytes_below(tmp_path / "warehouse")
    refused = acme("gov", "register", "NYC", tmp_path / "warehouse")
    assert (refused.code, "gov attach NYC" in refused.err) == (2, True)
    assert acme("gov", "attach", "LAX", tmp_path / "warehouse").code == 2
    assert acme("gov", "attach", "NYC", tmp_path / "nothing").code == 2
    assert acme.log() == ["Begin the registry"]
    acme("gov", "attach", "NYC", tmp_path / "warehouse", ok=0)
    assert acme.log()[1:] == [f"Attached: NYC at {tmp_path / 'warehouse'}"]
    after = bytes_below(tmp_path / "warehouse")
    (put,) = after.keys() - before.keys()
    assert (str(put).endswith(".metadata/governance.json"), before.items() <= after.items()) == (True, True)


def test_a_storage_that_was_down_is_given_the_documents_by_the_next_run(acme, solo, tmp_path, monkeypatch):
    from dagster_versioned.errors import StoreUnavailable
    from dagster_versioned.governance.mirror import GovernanceStore

    def down(*args, **kwargs):
        raise StoreUnavailable("no answer.")

    with monkeypatch.context() as patch:
        patch.setattr(GovernanceStore, "publish", down)
        assert acme("gov", "attach", "NYC", tmp_path / "warehouse").code == 5
    again = acme.json("gov", "attach", "NYC", tmp_path / "warehouse")
    assert (again["changed"], len(again["published"])) == (False, 3)


def test_a_project_name_with_tricks_in_it_is_refused(acme, tmp_path):
    for name in ("../up", "a/b", "", "1st", "N" * 200, "--help-me", "é"):
        outcome = acme("gov", "register", "--", name, tmp_path / "x")
        assert (outcome.code, outcome.out) == (2, ""), name
    assert acme.log() == ["Begin the registry"]


# Looking


def test_list_is_what_a_developer_s_clone_and_a_reader_s_storage_say(governed, reader, tmp_path):
    for who, role in ((governed, "developer"), (reader, "reader")):
        found = who.json("gov", "list")
        assert (found["role"], [(p["project"], p["location"]) for p in found["projects"]]) == (
            role,
            [("NYC", str(tmp_path / "warehouse"))],
        )
    assert "warehouse" in governed("gov", "list", ok=0).out


def test_ref_shows_where_the_project_is_and_what_happened(governed, reader):
    shown = governed.json("gov", "ref", "NYC")
    assert shown["ref"]["current"]["root"].endswith("warehouse")
    assert [event["kind"] for event in shown["events"]] == ["attached"]
    assert reader.json("gov", "ref", "NYC") == shown == governed.json("gov", "ref", "NYC", "--live")
    assert "attached" in governed("gov", "ref", "NYC", ok=0).out
    assert governed("gov", "ref", "LAX").code == 4


def edit_ref(acme, root="/somewhere/else"):
    """Change ref.json in the registry as a person with an editor would."""
    work = acme.location / "work"
    acme.git(".", "clone", "--quiet", "registry.git", "work")
    path = work / "projects" / "NYC" / "ref.json"
    document = json.loads(path.read_text())
    document["current"]["root"] = root
    path.write_text(json.dumps(document))
    acme.git("work", "commit", "--quiet", "--all", "--message", "By hand")
    acme.git("work", "push", "--quiet")


def test_a_hand_edit_is_found_and_repaired(governed):
    edit_ref(governed)
    status = governed("gov", "status", "--json")
    assert status.code == 1
    problem = status.json["projects"][0]["problem"]
    assert "edited by hand" in problem
    assert "gov ref NYC --repair" in problem
    planned = governed.json("gov", "ref", "NYC", "--repair", "--dry-run")
    assert (planned["changed"], governed.log()[-1]) == (True, "By hand")
    governed("gov", "ref", "NYC", "--repair", ok=0)
    assert governed.log()[-1] == "Repaired: ref.json of NYC"
    assert governed.json("gov", "status")["ok"]
    assert governed.json("gov", "ref", "NYC", "--repair")["changed"] is False


def test_status_finds_a_storage_that_is_not_what_the_registry_says_and_pull_mends_it(governed):
    assert governed.json("gov", "status")["ok"]
    key = governed.location / "governance/datom/projects/NYC/dispatch.json"
    right = key.read_bytes()
    key.write_text("{}")
    outcome = governed("gov", "status")
    assert (outcome.code, "dispatch.json" in outcome.out) == (1, True)
    planned = governed.json("gov", "pull", "--dry-run")
    assert [each["document"] for each in planned["published"]] == ["dispatch.json"]
    assert key.read_text() == "{}"
    governed("gov", "pull", ok=0)
    assert key.read_bytes() == right
    assert governed.json("gov", "pull")["published"] == []


def test_status_goes_on_with_the_clone_where_the_registry_is_down(governed):
    (governed.location / "registry.git").rename(governed.location / "away")
    outcome = governed("gov", "status", "--json", ok=0)
    assert "as it was last fetched" in outcome.err
    assert [each["state"] for each in outcome.json["projects"]] == ["governed"]
    assert governed("gov", "pull").code == 5


# Dispatch


def test_dispatch_shows_and_changes_how_a_project_is_read(governed, reader):
    ours = {"default": "dagster_versioned.read", "cached": "dagster_versioned.read_cached"}
    assert governed.json("gov", "dispatch", "NYC")["methods"]["python"] == ours
    change = ("gov", "dispatch", "NYC", "--context", "audited", "--method", "acme.audit.read")
    assert governed.json(*change, "--dry-run")["changed"] is True
    assert governed.json(*change)["changed"] is True
    assert governed.json(*change)["changed"] is False
    assert governed.log()[2:] == ["Dispatch: NYC"]
    assert reader.json("gov", "dispatch", "NYC")["methods"]["python"]["audited"] == "acme.audit.read"
    governed("gov", "dispatch", "NYC", "--context", "audited", "--remove", ok=0)
    assert "audited" not in reader("gov", "dispatch", "NYC", ok=0).out


def test_a_dispatch_that_cannot_be_is_refused(governed):
    for change in (
        ("--method", "os.system; rm"),
        ("--context", "Bad Context", "--method", "a.b"),
        ("--remove",),
        ("--context", "default", "--remove", "--method", "a.b"),
        ("--context", "nothing", "--remove"),
        ("--method", "a.b", "--remove"),
    ):
        outcome = governed("gov", "dispatch", "NYC", *change)
        assert (outcome.code, outcome.out) == (2, ""), change
    assert len(governed.log()) == 2


# Moving and giving up


def test_migrate_is_one_command_and_every_verb_follows(governed, reader, solo, tmp_path):
    shas = [version.metadata_sha for version in solo.table("flights").history()]
    target = tmp_path / "elsewhere"
    planned = governed.json("gov", "migrate", "NYC", target, "--dry-run")
    assert (planned["applied"], planned["tables"], planned["objects"] > 0) == (False, 1, True)
    assert not target.exists()
    assert governed.log() == ["Begin the registry", f"Attached: NYC at {tmp_path / 'warehouse'}"]
    outcome = governed("gov", "migrate", "NYC", target, "--reason", "why", "--verify", "content", "--json", ok=0)
    steps = [line.removeprefix("Moving NYC: ") for line in outcome.err.splitlines()]
    assert steps[0] == "copying"
    assert steps[-2:] == ["switching", "recording"]
    done = outcome.json
    assert (done["applied"], done["verified"], done["to"], done["deleted_objects"]) == (
        True, "content", str(target), 0
    )  # fmt: skip
    assert governed.log()[2:] == [f"Migration prepared: NYC to {target}", f"Migrated: NYC to {target}"]
    for who in (governed, reader):
        history = who.json("--project", "NYC", "history", "flights")
        assert [version["version"] for version in history["versions"]] == shas
        assert who.json("--project", "NYC", "ls")["location"].startswith(str(target))
        for sha in shas:
            assert who.json("--project", "NYC", "read", "flights", sha)["versions"] == [sha]
    old = governed("--project", "NYC", "--location", tmp_path / "warehouse", "ls", ok=0)
    assert "is not at" in old.err
    assert governed("gov", "ref", "NYC", ok=0).out.startswith(f"NYC is at {target}")


def test_delete_source_asks_for_the_project_s_name(governed, tmp_path):
    target, old = tmp_path / "elsewhere", tmp_path / "warehouse"
    command = ("gov", "migrate", "NYC", target, "--delete-source")
    for stdin, confirm in (("nyc\n", ()), ("", ()), ("NYC\n", ("--confirm", "nyc"))):
        refused = governed(*command, *confirm, stdin=stdin)
        assert (refused.code, "not the project's name" in refused.err) == (2, True)
    assert not target.exists()
    asked = governed(*command, stdin="NYC\n", ok=0)
    assert f"deleted at {old}" in asked.err
    assert "deleted at" in asked.out
    data = old / "datom"
    left = {path.relative_to(data).as_posix() for path in data.rglob("*") if path.is_file()}
    assert left == fence_of(left)
    assert {".metadata/migration.json", ".metadata/pins.json"} < left


def test_confirm_deletes_without_asking(governed, tmp_path):
    done = governed.json("gov", "migrate", "NYC", tmp_path / "to", "--delete-source", "--confirm", "NYC")
    assert done["deleted_objects"] > 0


def test_a_migration_that_did_not_switch_is_called_off(governed, tmp_path, monkeypatch):
    from dagster_versioned.errors import StoreUnavailable
    from dagster_versioned.governance.mirror import GovernanceStore

    def dies(*args, **kwargs):
        raise StoreUnavailable("no answer.")

    with monkeypatch.context() as patch:
        patch.setattr(GovernanceStore, "commit_migration", dies)
        assert governed("gov", "migrate", "NYC", tmp_path / "to").code == 5
    (moving,) = governed("gov", "status", "--json").json["projects"]
    assert (moving["state"], moving["pending"]["to"]["root"]) == ("moving", str(tmp_path / "to"))
    assert f"to {tmp_path / 'to'} by Ada Lovelace" in governed("gov", "status").out
    planned = governed.json("gov", "migrate", "NYC", "--abort", "--dry-run")
    assert (planned["applied"], planned["to"]) == (False, str(tmp_path / "to"))
    done = governed.json("gov", "migrate", "NYC", "--abort")
    assert (done["applied"], done["deleted_objects"] > 0) == (True, True)
    assert governed.log()[-1] == "Migration aborted: NYC"
    governed("--project", "NYC", "pin", "flights", "p", ok=0)  # writes go on at the old place
    assert governed("gov", "migrate", "NYC", "--abort").code == 4


def test_a_migration_that_makes_no_sense_is_refused(governed, tmp_path):
    warehouse = tmp_path / "warehouse"
    for args in ((), ("there", "--abort"), ("there", "--verify", "hard"), (warehouse,), (warehouse / "inside",)):
        outcome = governed("gov", "migrate", "NYC", *args)
        assert (outcome.code, outcome.out, len(governed.log())) == (2, "", 2), args


def test_decommission_asks_and_leaves_the_bytes(governed, reader, tmp_path):
    before = bytes_below(tmp_path / "warehouse")
    planned = governed.json("gov", "decommission", "NYC", "--dry-run")
    assert (planned["applied"], planned["objects"] > 0, len(governed.log())) == (False, True, 2)
    assert "would stay" in governed("gov", "decommission", "NYC", "--dry-run", ok=0).out
    assert governed("gov", "decommission", "NYC", stdin="no\n").code == 2
    assert len(governed.log()) == 2
    governed("gov", "decommission", "NYC", "--reason", "study ended", stdin="NYC\n", ok=0)
    assert governed.log()[2:] == ["Decommissioned: NYC"]
    assert reader("gov", "ref", "NYC").code == 4
    assert governed.json("gov", "list")["projects"] == []
    (known,) = governed.json("gov", "status")["projects"]
    assert known["state"] == "decommissioned"
    del before["datom/.metadata/governance.json"]
    after = bytes_below(tmp_path / "warehouse")
    assert {path: after[path] for path in after if "/lock-" not in path} == {
        path: before[path] for path in before if "/lock-" not in path
    }
    governed("gov", "decommission", "NYC", "--confirm", "NYC", ok=0)
    assert len(governed.log()) == 3


def test_decommission_deletes_only_what_was_asked_and_confirmed(governed, tmp_path):
    command = ("gov", "decommission", "NYC", "--delete-data")
    before = bytes_below(tmp_path / "warehouse")
    assert "would be deleted" in governed(*command, "--dry-run", ok=0).out
    refused = governed(*command, "--confirm", "nyc")
    assert (refused.code, bytes_below(tmp_path / "warehouse") == before, len(governed.log())) == (2, True, 2)
    done = governed.json(*command, "--confirm", "NYC")
    assert (done["applied"], done["deleted_objects"]) == (True, done["objects"])
    assert [path for path in (tmp_path / "warehouse" / "datom").rglob("*") if path.is_file()] == []


# Roles


def test_a_reader_reads_and_changes_nothing(governed, reader, tmp_path):
    assert reader.json("--project", "NYC", "read", "flights")["rows"] == [{"n": 2}]
    assert "reader" in reader("--project", "NYC", "revert", "flights", "@0").err
    for args in (
        ("register", "LAX", tmp_path / "x"),
        ("attach", "LAX", tmp_path / "x"),
        ("status",),
        ("ref", "NYC", "--repair"),
        ("dispatch", "NYC", "--method", "a.b"),
        ("migrate", "NYC", tmp_path / "x"),
        ("decommission", "NYC", "--confirm", "NYC"),
        ("pull",),
    ):
        outcome = reader("gov", *args)
        assert (outcome.code, "developer" in outcome.err) == (2, True), args
    assert len(governed.log()) == 2


def test_a_write_asks_the_governance_storage_and_stops_where_it_does_not_answer(governed, tmp_path):
    (governed.location / "governance").rename(governed.location / "away")
    before = bytes_below(tmp_path / "warehouse")
    outcome = governed("--project", "NYC", "revert", "flights", "@0")
    assert (outcome.code, "Nothing was written" in outcome.err, "gov pull" in outcome.err) == (4, True, True)
    assert bytes_below(tmp_path / "warehouse") == before
    assert governed.json("--project", "NYC", "read", "flights")["rows"] == [{"n": 2}]  # by the clone


def test_settings_come_from_the_environment_and_an_empty_option_sets_them_aside(governed, tmp_path, monkeypatch):
    for name, value in zip(("GOVERNANCE", "REGISTRY"), governed.where[1::2], strict=True):
        monkeypatch.setenv(f"DAGSTER_VERSIONED_{name}", value)
    monkeypatch.setenv("DAGSTER_VERSIONED_PROJECT", "NYC")
    for role in ("developer", "reader"):
        monkeypatch.setenv("DAGSTER_VERSIONED_ROLE", role)
        listed = in_process("gov", "list", "--json")
        assert json.loads(listed.stdout)["role"] == role
        assert in_process("history", "flights").exit_code == 0
    copy = ["--location", str(tmp_path / "nowhere")]
    assert in_process(*copy, "ls").exit_code == 4  # a place that the project never had
    assert in_process(*copy, "--governance", "", "ls").exit_code == 0


# The git mirror


def test_mirror_commits_once_and_is_a_witness(governed, solo, tmp_path):
    where = ("--project", "NYC", "gov", "mirror", "--remote", str(governed.location / "mirror.git"))
    governed.git(".", "init", "--quiet", "--bare", "--initial-branch=main", "mirror.git")
    assert governed.json(*where, "--dry-run")["changed"][0]["table"] == "flights"
    done = governed.json(*where)
    assert (done["applied"], done["commit"]) == (True, governed.git("mirror.git", "rev-parse", "main").strip())
    assert governed.json(*where, "flights")["commit"] is None
    assert governed.log("mirror.git") == ["Mirror: 1 table"]
    assert governed.json(*where, "--verify")["tables"][0]["witnessed"] == 1
    table = solo.table("flights")
    table.store.delete([f"_delta_log/{1:020d}.json"])
    table.repair()
    refused = governed(*where)
    assert (refused.code, "ends at @0" in refused.err) == (4, True)
    found = governed(*where, "--verify", "--json")
    assert (found.code, found.json["tables"][0]["findings"][0]["where"]) == (1, "@1")
    assert governed(*where, "nonsense").code == 3
    assert governed.json(*where, "--accept", "flights")["changed"][0]["log_version"] == 0
    assert governed("--project", "NYC", "gov", "mirror").code == 2


def test_mirror_verifies_a_table_that_is_gone(governed, solo, tmp_path):
    where = ("--project", "NYC", "gov", "mirror", "--remote", str(governed.location / "mirror.git"))
    governed.git(".", "init", "--quiet", "--bare", "--initial-branch=main", "mirror.git")
    governed(*where, ok=0)
    (tmp_path / "warehouse" / "datom" / "flights").rename(tmp_path / "gone")
    found = governed(*where, "--verify", "--json")
    assert (found.code, [each["table"] for each in found.json["tables"]]) == (1, ["flights"])


# What every verb owes


def test_nothing_that_somebody_recorded_reaches_the_terminal_raw(governed):
    outcome: Outcome = governed("gov", "decommission", "NYC", "--confirm", "NYC", "--reason", "\x1b[31m\u202e")
    assert outcome.code == 2
    for text in (outcome.out, outcome.err):
        assert all(character.isprintable() or character == "\n" for character in text)
