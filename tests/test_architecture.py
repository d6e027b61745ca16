"""The house stands as drawn: imports point down only, and the folders are the installed package."""

import ast
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


def imported_layers(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("headrace.")}


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_imports_point_down_only(layer: str) -> None:
    for path in sorted((ROOT / layer).rglob("*.py")):
        forbidden = imported_layers(path) & set(MAY_IMPORT) - MAY_IMPORT[layer]
        assert not forbidden, f"{path.relative_to(ROOT)} imports {', '.join(sorted(forbidden))}"


def test_the_package_is_the_folders() -> None:
    package = Path(headrace.__file__).parent
    assert {path.name for path in package.iterdir() if path.is_symlink()} == set(MAY_IMPORT)
    for layer in MAY_IMPORT:
        assert (package / layer).resolve() == ROOT / layer


def test_layers_are_namespace_packages() -> None:
    assert not [path for layer in MAY_IMPORT for path in (ROOT / layer).rglob("__init__.py")]
