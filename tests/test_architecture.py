"""The architecture holds: imports point down only, between layers and between the packages of one layer, and the
folders are the installed package."""

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import headrace

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "schemas": {"schemas"},
    "agents": {"agents", "schemas"},
    "streams": {"streams", "schemas"},
    "trainer": {"trainer", "schemas"},
    "deploy": {"deploy", "trainer", "streams", "agents", "schemas"},
}


def imported_names(path: Path) -> set[str]:
    """Dotted names below ``headrace`` that the file imports: modules, and names from them."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("headrace.") for name in names if name.startswith("headrace.")}


def imported_layers(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported_names(path)}


def packages_of(layer: Path) -> dict[str, set[str]]:
    """Packages of the layer (its sub-packages and single modules), and the other packages that each one imports."""
    files = {path: path.relative_to(layer).with_suffix("").parts[0] for path in layer.rglob("*.py")}
    packages: dict[str, set[str]] = {package: set() for package in files.values()}
    for path, package in files.items():
        below = {name.split(".")[1] for name in imported_names(path) if name.startswith(f"{layer.name}.")}
        packages[package] |= below & set(packages) - {package}
    return packages


def import_cycles(packages: Mapping[str, set[str]]) -> list[list[str]]:
    """Packages that import one another, directly or through others."""
    try:
        TopologicalSorter(packages).prepare()
    except CycleError as error:
        return [error.args[1]]
    return []


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_imports_point_down_only(layer: str) -> None:
    for path in sorted((ROOT / layer).rglob("*.py")):
        forbidden = imported_layers(path) & set(MAY_IMPORT) - MAY_IMPORT[layer]
        assert not forbidden, f"{path.relative_to(ROOT)} imports {', '.join(sorted(forbidden))}"


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_no_packages_import_each_other(layer: str) -> None:
    packages = packages_of(ROOT / layer)
    assert import_cycles(packages) == []


def test_only_the_loop_takes_all_settings_of_the_trainer() -> None:
    assert [package for package, imported in packages_of(ROOT / "trainer").items() if "config" in imported] == ["loop"]


def test_packages_that_import_each_other_are_found(tmp_path: Path) -> None:
    layer = tmp_path / "trainer"
    (layer / "model").mkdir(parents=True)
    (layer / "learning").mkdir()
    (layer / "config.py").write_text("from headrace.trainer.model.load import load_model\n")
    (layer / "model" / "load.py").write_text("def load():\n    from headrace.trainer.learning import learner\n")
    (layer / "learning" / "learner.py").write_text("import headrace.trainer.config\n")
    assert packages_of(layer) == {"config": {"model"}, "model": {"learning"}, "learning": {"config"}}
    ((*packages, _),) = import_cycles(packages_of(layer))
    assert set(packages) == {"config", "model", "learning"}
    (layer / "config.py").write_text("from headrace.schemas.model import Part\n")
    assert import_cycles(packages_of(layer)) == []


def test_the_package_is_the_folders() -> None:
    package = Path(headrace.__file__).parent
    assert {path.name for path in package.iterdir() if path.is_symlink()} == set(MAY_IMPORT)
    for layer in MAY_IMPORT:
        assert (package / layer).resolve() == ROOT / layer


def test_layers_are_namespace_packages() -> None:
    assert not [path for layer in MAY_IMPORT for path in (ROOT / layer).rglob("__init__.py")]
