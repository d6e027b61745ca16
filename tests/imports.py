"""Who imports whom: the import graph of modules and of packages, and a drawing of it.

python -m tests.imports              # packages of all layers, as a Mermaid drawing
python -m tests.imports trainer      # one layer; agents/gateway: the modules of a package
"""

import argparse
import ast
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAYERS = ("deploy", "trainer", "streams", "agents", "schemas")

Graph = dict[str, set[str]]
"""Dotted names, each with those that it imports."""


def imported_names(path: Path) -> set[str]:
    """Dotted names below ``headrace`` that the file imports, anywhere in it: modules, and names from them."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("headrace.") for name in names if name.startswith("headrace.")}


def module_graph(layers: Iterable[Path]) -> Graph:
    """Modules of ``layers``, and the modules that each one imports."""
    files = {
        ".".join(path.relative_to(layer.parent).with_suffix("").parts): path
        for layer in layers
        for path in layer.rglob("*.py")
    }
    graph: Graph = {}
    for module, path in files.items():
        names = imported_names(path)
        graph[module] = (names | {name.rpartition(".")[0] for name in names}) & files.keys() - {module}
    return graph


def grouped(graph: Mapping[str, set[str]], depth: int) -> Graph:
    """The graph of the packages that the first ``depth`` parts of the names give; a module above them is its own."""
    packages: Graph = {}
    for module, imported in graph.items():
        package = _prefix(module, depth)
        packages.setdefault(package, set()).update({_prefix(name, depth) for name in imported} - {package})
    return packages


def _prefix(name: str, depth: int) -> str:
    return ".".join(name.split(".")[:depth])


def import_cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """Names that import one another, directly or through others, the first of them again at the end; empty if none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def mermaid(graph: Mapping[str, set[str]]) -> str:
    """Draw ``graph``, those that import others above them. An import that follows from others is left out."""
    lines = ["flowchart TD"]
    for name in sorted(graph):
        indirect = set().union(*(_reached(graph, each) - {each} for each in graph[name]))
        lines += [
            f"    {name.replace('.', '/')} --> {each.replace('.', '/')}" for each in sorted(graph[name] - indirect)
        ]
    return "\n".join(lines)


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found, waiting = {start}, [start]
    while waiting:
        new = graph.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", help="a layer, such as trainer, or a package, such as agents/gateway")
    part = parser.parse_args().part
    graph = module_graph(ROOT / layer for layer in LAYERS)
    depth = 2
    if part is not None:
        parts = Path(part).parts
        if not (ROOT / part).is_dir() or parts[0] not in LAYERS:
            parser.error(f"{part} is no package of {', '.join(LAYERS)}")
        depth, inside = len(parts) + 1, ".".join(parts) + "."
        graph = {
            module: {each for each in imported if each.startswith(inside)}
            for module, imported in graph.items()
            if module.startswith(inside)
        }
    print(mermaid(grouped(graph, depth)))


if __name__ == "__main__":
    main()
