"""What is installed is what is here, and the top level stays as small as it is meant to be."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP_LEVEL = {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "gputopo", "launch", "probes", "tests"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETTINGS = PROJECT["tool"]["setuptools"]


def tracked() -> list[str]:
    done = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    return done.stdout.splitlines()


def test_every_folder_with_an_init_file_is_a_listed_package() -> None:
    folders = {"gputopo": "gputopo", "probes": "gputopo.probes", "launch": "gputopo.launch"}
    found = set()
    for folder, package in folders.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            inside = init.parent.relative_to(ROOT / folder)
            if not {"probes", "launch"} & set(inside.parts):  # the links in gputopo/ are the same files
                found.add(".".join([package, *inside.parts]))
    assert found == set(SETTINGS["packages"])


def test_the_two_links_stand_for_the_two_folders() -> None:
    for name in ("probes", "launch"):
        link = ROOT / "gputopo" / name
        if link.is_file() or not link.is_symlink():
            pytest.skip("this checkout has no symbolic links")  # nor has an sdist
        assert link.resolve() == (ROOT / name).resolve()
        assert SETTINGS["package-dir"][f"gputopo.{name}"] == name


def test_data_files_travel_with_the_package_whose_folder_they_are_in() -> None:
    # By the package of their own folder: setuptools takes a folder of data for a package that was forgotten.
    travelling: set[Path] = set()
    for package, patterns in SETTINGS["package-data"].items():
        assert package in SETTINGS["packages"]
        assert not any("/" in pattern for pattern in patterns)
        folder = ROOT.joinpath(*package.split("."))
        travelling |= {path for pattern in patterns for path in folder.glob(pattern)}
    data = ROOT / "gputopo" / "reference" / "data"
    present = {path for path in data.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}}
    assert present
    assert present <= travelling


def test_the_top_level_holds_nothing_else() -> None:
    top = {name.split("/")[0] for name in tracked()}
    assert {name for name in top if not name.startswith(".")} == TOP_LEVEL


def test_what_is_neither_package_nor_known_to_setuptools_is_named_for_the_sdist() -> None:
    assert PROJECT["build-system"]["backend-path"] == [".ci"]
    backend = (ROOT / ".ci" / f"{PROJECT['build-system']['build-backend']}.py").read_text()
    assert 'MANIFEST = ".ci/MANIFEST.in"' in backend
    words = (ROOT / ".ci" / "MANIFEST.in").read_text().splitlines()
    grafted = {line.split()[1] for line in words if line.startswith("graft ")}
    included = {name for line in words if line.startswith("include ") for name in line.split()[1:]}
    of_setuptools = {"pyproject.toml", "README.md", "LICENSE", "gputopo", "launch", "probes"}
    assert {name.split("/")[0] for name in tracked()} == grafted | included | of_setuptools


def test_the_line_that_installs_without_tensorflow_names_all_other_packages() -> None:
    page = (ROOT / "gputopo/pages/install.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^pip install --no-deps \. && pip install (.*)$", page, re.MULTILINE)
    needed = {re.split("[<>=]", package)[0] for package in PROJECT["project"]["dependencies"]}
    assert set(line.split()) == needed - {"tensorflow", "numpy"}


def test_no_message_tells_to_install_gputopo_from_an_index() -> None:
    """It is not there: whoever takes the name would be installed."""
    told = re.compile(r"pip install (-\S+ )*['\"]?gputopo")
    files = [ROOT / name for name in tracked() if Path(name).suffix in {".py", ".csv", ".md"}]
    texts = {path: path.read_text(encoding="utf-8") for path in files if path != Path(__file__)}
    assert texts
    assert [path for path, text in texts.items() if told.search(text)] == []
