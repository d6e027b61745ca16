"""The architecture holds: imports point down only, between layers and between the packages of one layer, and the
folders are the installed package."""

from functools import cache
from pathlib import Path

import pytest

import headrace
from tests.imports import LAYERS, ROOT, Graph, grouped, import_cycle, imported_names, mermaid, module_graph

MAY_IMPORT = {
    "schemas": {"schemas"},
    "agents": {"agents", "schemas"},
    "streams": {"streams", "schemas"},
    "trainer": {"trainer", "schemas"},
    "deploy": {"deploy", "trainer", "streams", "agents", "schemas"},
}


def imported_layers(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported_names(path)}


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_imports_point_down_only(layer: str) -> None:
    for path in sorted((ROOT / layer).rglob("*.py")):
        forbidden = imported_layers(path) & set(MAY_IMPORT) - MAY_IMPORT[layer]
        assert not forbidden, f"{path.relative_to(ROOT)} imports {', '.join(sorted(forbidden))}"


@cache
def graph() -> Graph:
    return module_graph(ROOT / layer for layer in LAYERS)


def test_no_modules_import_each_other() -> None:
    assert import_cycle(graph()) == []


@pytest.mark.parametrize("depth", [2, 3])
def test_no_packages_import_each_other(depth: int) -> None:
    assert import_cycle(grouped(graph(), depth)) == []


def test_only_the_loop_takes_all_settings_of_the_trainer() -> None:
    assert [
        module for module, imported in graph().items() if "trainer.config" in imported and module.startswith("trainer.")
    ] == ["trainer.loop"]


def test_modules_that_import_each_other_are_found(tmp_path: Path) -> None:
    layer = tmp_path / "trainer"
    (layer / "model").mkdir(parents=True)
    (layer / "learning").mkdir()
    (layer / "config.py").write_text("from headrace.trainer.model.load import load_model\n")
    (layer / "model" / "load.py").write_text("def load():\n    from headrace.trainer.learning import learner\n")
    (layer / "learning" / "learner.py").write_text("import headrace.trainer.config\n")
    graph = module_graph([layer])
    assert graph == {
        "trainer.config": {"trainer.model.load"},
        "trainer.model.load": {"trainer.learning.learner"},
        "trainer.learning.learner": {"trainer.config"},
    }
    assert set(import_cycle(graph)) == graph.keys()
    packages = grouped(graph, 2)
    assert packages == {
        "trainer.config": {"trainer.model"},
        "trainer.model": {"trainer.learning"},
        "trainer.learning": {"trainer.config"},
    }
    assert set(import_cycle(packages)) == packages.keys()
    (layer / "config.py").write_text("from headrace.schemas.model import Part\n")
    assert import_cycle(module_graph([layer])) == []


def test_a_drawing_leaves_out_what_follows_from_other_imports() -> None:
    graph = {
        "trainer.loop": {"trainer.steps", "trainer.losses"},
        "trainer.steps": {"trainer.losses"},
        "trainer.losses": set[str](),
    }
    lines = mermaid(graph).splitlines()
    assert lines == ["flowchart TD", "    trainer/loop --> trainer/steps", "    trainer/steps --> trainer/losses"]


def test_the_package_is_the_folders() -> None:
    package = Path(headrace.__file__).parent
    assert {path.name for path in package.iterdir() if path.is_symlink()} == set(MAY_IMPORT)
    for layer in MAY_IMPORT:
        assert (package / layer).resolve() == ROOT / layer


def test_layers_are_namespace_packages() -> None:
    assert not [path for layer in MAY_IMPORT for path in (ROOT / layer).rglob("__init__.py")]
