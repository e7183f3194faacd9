"""Which code locations a plan is about: modules, those of a workspace file, what is in the working directory."""

import json
import sys
from pathlib import Path

import pytest

from dagster_versioned.cli.failures import ExitCode
from support.command_line import in_process

ASSET = """
import dagster as dg
import pyarrow as pa

@dg.asset
def {name}() -> pa.Table:
    raise NotImplementedError
"""
RESOURCES = """
import dagster as dg
from dagster_versioned import ProjectResource, VersionedParquetIOManager

project = ProjectResource(name="NYC", location={location!r}, environment="production")
resources = {{"io_manager": VersionedParquetIOManager(project=project)}}
"""
DEFS = "defs = dg.Definitions([{name}], resources=resources)\n"
FROM_FOLDER = """
from pathlib import Path
import dagster as dg

@dg.definitions
def defs():
    return dg.load_from_defs_folder(project_root=next(p for p in Path(__file__).parents if list(p.glob("*.toml"))))
"""
BROKEN = "raise RuntimeError('this was loaded')\n"


@pytest.fixture
def place(tmp_path, code_folder):
    """Writes files, into a folder that is the working directory."""

    def write(files=()):
        """Modules by their paths, without the ending."""
        for name, text in dict(files).items():
            path = code_folder / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return code_folder

    write.location = str(tmp_path / "store")
    write.resources = RESOURCES.format(location=write.location)
    write.defs = lambda name: write.resources + ASSET.format(name=name) + DEFS.format(name=name)
    return write


def dg_project(place, folder, name, source="src", config="pyproject.toml"):
    """As ``create-dagster project`` lays one out; a defs folder has its only asset."""
    at = f"{folder}{source}/{name}"
    place(
        {
            f"{at}/__init__": "",
            f"{at}/definitions": FROM_FOLDER,
            f"{at}/defs/__init__": "",
            f"{at}/defs/{name}_asset": ASSET.format(name=f"of_{name}"),
            f"{at}/defs/resources": place.resources
            + "@dg.definitions\ndef shared():\n    return dg.Definitions(resources=resources)\n",
        }
    )
    table = "" if config == "dg.toml" else "tool.dg."
    head = "" if config == "dg.toml" else "[tool.dg]\n"
    (Path.cwd() / folder / config).write_text(
        f'{head}directory_type = "project"\n[{table}project]\nroot_module = "{name}"\n'
    )


def file_of(folder, **more):
    return json.dumps({"python_file": {"relative_path": f"{folder}/definitions.py", **more}})


def planned(*words, cli=None):
    """The assets that a plan is about; of a process of its own where the command line is given."""
    if cli is not None:
        outcome = cli.run("plan", "--environment", "production", "--json", *words)
        assert outcome.code == 0, outcome
        return [each["asset"] for each in outcome.json["cells"]]
    result = in_process("plan", "--json", *words)
    assert result.exit_code == 0, (result.stdout, result.stderr)
    return [each["asset"] for each in json.loads(result.stdout)["cells"]]


def refused(*words):
    result = in_process("plan", *words)
    assert (result.exit_code, result.stdout) == (ExitCode.INVALID, ""), (result.stdout, result.stderr)
    assert "Nothing was" in result.stderr
    return result.stderr


class TestWorkspaceFile:
    @pytest.mark.slow
    def test_every_way_to_name_definitions(self, place, monkeypatch, cli, tmp_path):
        place(
            {
                "plain": place.defs("of_module"),
                "apart/in_folder": place.defs("of_folder") + "other = dg.Definitions()\n",
                "package/__init__": place.defs("of_package"),
                "files/one": place.defs("of_file"),
                "files/two": place.defs("of_function") + "def build():\n    return defs\nother = dg.Definitions()\n",
                "loaded/__init__": "",
                "loaded/some": place.resources
                + ASSET.format(name="of_autoload")
                + "@dg.definitions\ndef it():\n    return dg.Definitions([of_autoload], resources=resources)\n",
            }
        )
        folder = place()
        (folder / "pyproject.toml").write_text("")
        folder.joinpath("workspace.yaml").write_text("""
load_from:
  - python_module: plain
  - python_module: {module_name: in_folder, working_directory: apart, attribute: defs, location_name: here}
  - python_package: package
  - python_file: files/one.py
  - python_file: {relative_path: files/two.py, attribute: build, working_directory: files}
  - autoload_defs_module: {module_name: loaded}
""")
        found = ["of_autoload", "of_file", "of_folder", "of_function", "of_module", "of_package"]
        assert sorted(planned("-w", "workspace.yaml", cli=cli)) == found
        # Files and folders are relative to the workspace file, modules to where the program runs, as Dagster has it.
        monkeypatch.chdir(tmp_path)
        (folder / "some.yaml").write_text("""
load_from:
  - python_module: {module_name: in_folder, working_directory: apart, attribute: defs}
  - python_file: files/one.py
""")
        assert planned("-w", "code/some.yaml", cli=cli) == ["of_folder", "of_file"]
        assert "module 'plain' could not be loaded" in refused("-w", "code/workspace.yaml")

    def test_modules_and_a_file_are_one_plan(self, place):
        place({"one": place.defs("one"), "two": place.defs("two")})
        (place() / "workspace.yaml").write_text("load_from: [{python_module: two}]")
        assert planned("-m", "one", "-w", "workspace.yaml") == ["one", "two"]

    def test_files_of_one_name(self, place):
        """Which Dagster takes where their locations have names; each has its own module."""
        place({"a/definitions": place.defs("one"), "b/definitions": place.defs("two")})
        apart = ", ".join(file_of(at, location_name=at, working_directory=at) for at in "ab")
        (place() / "workspace.yaml").write_text(f"load_from: [{apart}]")
        assert planned("-w", "workspace.yaml") == ["one", "two"]
        (place() / "workspace.yaml").write_text(f"load_from: [{file_of('a')}, {file_of('b')}]")
        assert 'multiple locations with the same name, got multiple "definitions.py"' in refused("-w", "workspace.yaml")
        (place() / "workspace.yaml").write_text(f"load_from: [{file_of('a', location_name='a')}, {file_of('b')}]")
        assert planned("-w", "workspace.yaml") == ["one", "two"]

    def test_what_makes_definitions_when_asked_wins_over_others_of_its_module(self, place):
        late = "@dg.definitions\ndef late():\n    return dg.Definitions([asked], resources=resources)\n"
        place({"both": place.defs("other") + ASSET.format(name="asked") + late})
        assert planned("-m", "both") == ["asked"]

    def test_modules_of_one_name_are_refused(self, place):
        place({"a/shared/assets": ASSET.format(name="one"), "b/shared/assets": ASSET.format(name="two")})
        imports = place.resources + "from shared.assets import *\n"
        place({"a/a": imports + DEFS.format(name="one"), "b/b": imports + DEFS.format(name="two")})
        (place() / "workspace.yaml").write_text("""
load_from:
  - python_module: {module_name: a, working_directory: a}
  - python_module: {module_name: b, working_directory: b}
""")
        said = refused("-w", "workspace.yaml")
        assert "Two code locations have a module 'shared.assets'" in said
        assert str(place() / "b" / "shared" / "assets.py") in said

    def test_repositories_are_several_of_a_module(self, place):
        place(
            {
                "several": place.resources
                + ASSET.format(name="one")
                + ASSET.format(name="two")
                + "@dg.repository\ndef first():\n    return dg.with_resources([one], resources)\n"
                + "@dg.repository\ndef second():\n    return dg.with_resources([two], resources)\n"
            }
        )
        assert planned("-m", "several") == ["one", "two"]

    def test_what_is_of_another_process(self, place):
        (place() / "workspace.yaml").write_text("load_from: [{grpc_server: {host: there, port: 4000}}]")
        said = refused("-w", "workspace.yaml")
        assert "has the server 'grpc:there:4000'" in said
        assert "-m" in said
        other = place() / "bin" / "python"
        other.parent.mkdir()
        other.symlink_to(sys.executable)
        for path in (other, "missing"):
            entry = f"{{python_module: {{module_name: mine, executable_path: {path}}}}}"
            (place() / "workspace.yaml").write_text(f"load_from: [{entry}]")
            assert f"has 'mine' of another Python, {path}" in refused("-w", "workspace.yaml")

    def test_this_python_under_any_of_its_names(self, place):
        place({"mine": place.defs("mine")})
        for name in ("python", "python3"):
            path = Path(sys.executable).with_name(name)
            entry = f"{{python_module: {{module_name: mine, executable_path: {path}}}}}"
            (place() / "workspace.yaml").write_text(f"load_from: [{entry}]")
            assert planned("-w", "workspace.yaml") == ["mine"]

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("load_from: [", "while parsing"),
            ("\0", "special characters are not allowed"),
            ("", "Could not parse"),
            ("- python_module: one", "is not one of ['Mapping']"),
            ("load_from: 3", "Value at path root:load_from must be list"),
            ("load_from: []", "names no code location"),
            ("modules: [one]", 'unexpected config entry "modules" at the root'),
            ("load_from: [{module: one}]", 'unexpected config entry "module" at path root:load_from[0]'),
            ("load_from: [{python_module: {name: one}}]", 'unexpected config entry "name"'),
            ("load_from: [{python_module: 3}]", "Invalid scalar"),
            ("load_from: [{python_module: ''}]", "Unsupported location config"),
            ("load_from: [{python_module: one, python_file: one.py}]", "only specify a single field"),
            ("load_from: [{grpc_server: {host: there}}]", "either a socket or a port"),
            ("load_from: [{python_module: no_such_module}]", "ModuleNotFoundError"),
            ("load_from: [{python_module: 'no such module!'}]", "ModuleNotFoundError"),
            ("load_from: [{python_module: .relative}]", "could not be loaded"),
            ("load_from: [{python_file: missing.py}]", "FileNotFoundError"),
            ("load_from: [{python_file: workspace.yaml}]", "could not be loaded"),
            ("load_from: [{python_module: {module_name: good, attribute: missing}}]", "AttributeError"),
            ("load_from: [{python_module: {module_name: good, attribute: project}}]", "has no Definitions"),
            ("load_from: [{autoload_defs_module: {module_name: good}}]", "could not be loaded"),
        ],
    )
    def test_what_is_wrong_is_said(self, place, text, why):
        place({"good": place.defs("good")})
        (place() / "workspace.yaml").write_text(text)
        said = refused("-w", "workspace.yaml")
        assert why in said
        assert "Traceback" not in said
        assert "Expected" not in said
        assert len(said) < 900

    def test_a_file_that_cannot_be_read(self, place):
        assert f"{place() / 'missing.yaml'} cannot be read (FileNotFoundError" in refused("-w", "missing.yaml")
        assert "IsADirectoryError" in refused("-w", ".")
        (place() / "workspace.yaml").write_bytes(b"load_from: \xff")
        assert "cannot be read" in refused("-w", "workspace.yaml")


class TestWhatIsInTheFolder:
    def test_a_project_of_dg(self, place, cli):
        dg_project(place, "", "shop")
        assert planned(cli=cli) == ["of_shop"]

    def test_a_project_without_a_source_folder_and_with_other_settings(self, place):
        dg_project(place, "", "stall", source="stall_code", config="dg.toml")
        (place() / "src").mkdir()  # of something else
        assert "No module named 'stall'" in refused()
        (place() / "stall_code" / "stall").rename(place() / "stall")
        (place() / "pyproject.toml").write_text('[tool.dg.project]\nroot_module = "missing"\n')
        assert planned() == ["of_stall"]
        place({"stall/others": place.defs("other")})
        with (place() / "dg.toml").open("a") as file:
            file.write('code_location_target_module = "stall.others"\ncode_location_name = "all"\n')
        assert planned() == ["other"]

    @pytest.mark.slow  # each plan is a process of its own; one project of dg is planned in every suite
    def test_a_workspace_of_dg_and_each_project_has_its_own_source_folder(self, place, cli):
        dg_project(place, "projects/east/", "east")
        dg_project(place, "projects/west/", "west", config="dg.toml")
        (place() / "dg.toml").write_text(
            'directory_type = "workspace"\n[workspace]\n'
            '[[workspace.projects]]\npath = "projects/east"\n[[workspace.projects]]\npath = "projects/west"\n'
        )
        assert sorted(planned(cli=cli)) == ["of_east", "of_west"]

    def test_tool_dagster(self, place):
        place({"one": place.defs("one"), "two": place.defs("two"), "three": place.defs("three")})
        (place() / "workspace.yaml").write_text("load_from: [{python_module: three}]")
        toml = place() / "pyproject.toml"
        toml.write_text('[tool.dagster]\nmodule_name = "one"\n[tool.dg.project]\nroot_module = "missing"\n')
        assert planned() == ["one"]
        toml.write_text('[tool.dagster]\nmodules = [{type = "module", name = "one"}, {type = "module", name = "two"}]')
        assert planned() == ["one", "two"]
        toml.write_text('[tool.dagster]\nmodules = [{type = "module", name = "one"}, {type = "any", name = "two"}]')
        assert planned() == ["one"]
        toml.write_text('[project]\nname = "any"\n')
        assert planned() == ["three"]

    def test_a_workspace_file_of_either_name(self, place):
        place({"one": place.defs("one"), "two": place.defs("two")})
        (place() / "workspace.yml").write_text("load_from: [{python_module: one}]")
        result = in_process("plan")
        assert (result.exit_code, result.stderr) == (0, "Found here: the module 'one'.\n")
        (place() / "workspace.yaml").write_text("load_from: [{python_module: two}]")
        assert planned() == ["two"]

    def test_what_is_named_wins(self, place, monkeypatch):
        place({"one": place.defs("one"), "two": place.defs("two"), "broken": BROKEN})
        (place() / "workspace.yaml").write_text("load_from: [{python_module: broken}]")
        assert planned("-m", "one") == ["one"]
        monkeypatch.setenv("DAGSTER_VERSIONED_MODULE", "two")
        assert planned() == ["two"]
        assert planned("-m", "one") == ["one"]

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("[tool", "cannot be read"),
            ("tool = 3", "has 3 for tool, which is a table"),
            ("tool.dagster = 3", "has 3 for dagster"),
            ("tool.dagster.module_name = 3", "has 3 for module_name"),
            ("tool.dagster.modules = 3", "has 3 for modules, which is a list of tables"),
            ("tool.dagster.modules = ['one']", "has ['one'] for modules"),
            ("tool.dagster.modules = [{type = 'module'}]", "has None for modules.name"),
            ("tool.dg.project.defs_module = 'x'", "has None for project.root_module"),
            ("tool.dg.project.root_module = ''", "has '' for project.root_module"),
            ("tool.dg.project = {root_module = 'x', code_location_target_module = 3}", "code_location_target_module"),
            ("tool.dg.workspace.projects = [{}]", "has None for workspace.projects.path"),
            ("tool.dg.workspace.projects = [{path = 'missing'}]", "which has no dg.toml or [tool.dg.project]"),
            ("tool.dg.project.root_module = 'no_such_package'", "No module named 'no_such_package'"),
            ("tool.dg.workspace.projects = []", "No definitions are named"),
            ("", "No definitions are named"),
        ],
    )
    def test_what_is_wrong_is_said(self, place, text, why):
        (place() / "pyproject.toml").write_text(text)
        assert why in refused()

    def test_a_file_that_is_no_text(self, place):
        (place() / "dg.toml").write_bytes(b"\xff")
        assert "cannot be read (UnicodeDecodeError" in refused()
