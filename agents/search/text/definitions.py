"""Public definitions of Python modules, read from their source without importing it.

    Class("http.server.HTTPServer", bases=("socketserver.TCPServer",), attributes=(Binding(…),), …)

Names are qualified by their module, since a bare one may be taken for another: ``Index(slice)`` in ``ast`` is
``ast.Index(ast.slice)``, not a subclass of the builtin.
"""

import ast
import builtins
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass

MAX_VALUE = 80
"""Longest value that is shown, in characters; longer ones are left out."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A name with a value: an attribute, a constant, or a parameter's default."""

    name: str
    value: str
    """Python source, with qualified names."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function or a method."""

    name: str
    """Qualified, such as ``shutil.copyfileobj``."""
    signature: str
    """Parameters, such as ``fsrc, fdst, length=0``."""
    defaults: tuple[Binding, ...]
    doc: str


@dataclass(frozen=True, slots=True)
class Class:
    """A class."""

    name: str
    bases: tuple[str, ...]
    attributes: tuple[Binding, ...]
    methods: tuple[Function, ...]
    doc: str


@dataclass(frozen=True, slots=True)
class Module:
    """A module."""

    name: str
    constants: tuple[Binding, ...]
    classes: tuple[Class, ...]
    functions: tuple[Function, ...]
    doc: str


def read_modules(sources: Iterable[tuple[str, bytes]]) -> tuple[Module, ...]:
    """Read modules from pairs of name and source; a package's name is that of its ``__init__``, ``json.__init__``.

    Names are resolved among all of ``sources``. What does not parse is skipped: the standard library has files that
    are meant not to.
    """
    trees: dict[str, tuple[ast.Module, bool]] = {}
    for name, source in sources:
        try:
            trees[name.removesuffix(".__init__")] = ast.parse(source), name.endswith(".__init__")
        except SyntaxError:
            continue
    public = {f"{name}.{defined}" for name, (tree, _) in trees.items() for defined in _defined(tree)}
    return tuple(_module(name, tree, is_package, public) for name, (tree, is_package) in sorted(trees.items()))


def _defined(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module binds once at its top level; which of two definitions holds is not known."""
    bound: Counter[str] = Counter()
    for node in ast.walk(tree):
        match node:
            case ast.Global(names=names):
                bound.update(dict.fromkeys(names, 2))
    for node in tree.body:
        bound.update(_bound(node))
    for node in tree.body:
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            bound.update({name: 2 for inner in ast.walk(node) for name in _bound(inner)})
    return (name for name, count in bound.items() if count == 1 and not name.startswith("_"))


def _bound(node: ast.AST) -> list[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.AugAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _module(name: str, tree: ast.Module, is_package: bool, public: set[str]) -> Module:
    own = set(_defined(tree))
    scope = _imported(tree, name, is_package) | {defined: f"{name}.{defined}" for defined in own}
    qualify = _Qualify(scope, public)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in own]
    functions = [
        node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in own
    ]
    return Module(
        name,
        tuple(binding for binding in _bindings(tree.body, qualify) if binding.name in own),
        tuple(_class(node, name, qualify) for node in classes),
        tuple(_function(node, name, qualify) for node in functions),
        ast.get_docstring(tree) or "",
    )


def _imported(tree: ast.Module, module: str, is_package: bool) -> dict[str, str]:
    """Return what each imported name stands for."""
    names: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            for each in node.names:
                names[each.asname or each.name.partition(".")[0]] = (
                    each.name if each.asname else each.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                parts = module.split(".")
                parts = parts[: len(parts) - node.level + is_package]
                origin = ".".join([*parts, origin]) if origin else ".".join(parts)
            names |= {each.asname or each.name: f"{origin}.{each.name}" for each in node.names}
    return names


class _Qualify(ast.NodeTransformer):
    """Replaces names of public definitions by their qualified names."""

    def __init__(self, scope: Mapping[str, str], public: set[str]) -> None:
        self._scope = scope
        self._public = public

    def text(self, node: ast.AST) -> str:
        """Return the source of ``node`` with qualified names."""
        return ast.unparse(self.visit(deepcopy(node)))

    def name(self, node: ast.AST) -> str | None:
        """Return what a name or a dotted name stands for, if it is a public definition."""
        dotted = _dotted(node)
        if dotted is None:
            return None
        first, _, rest = dotted.partition(".")
        full = ".".join(filter(None, [self._scope.get(first, ""), rest]))
        return full if full in self._public else None

    def visit_Name(self, node: ast.Name) -> ast.AST:
        name = self.name(node)
        return node if name is None else ast.Name(name)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        name = self.name(node)
        return self.generic_visit(node) if name is None else ast.Name(name)


def _dotted(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            before = _dotted(value)
            return None if before is None else f"{before}.{attribute}"
    return None


def _class(node: ast.ClassDef, module: str, qualify: _Qualify) -> Class:
    name = f"{module}.{node.name}"
    methods = [
        each
        for each in node.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        and (each.name == "__init__" or not each.name.startswith("_"))
    ]
    counts = Counter(each.name for each in methods)
    return Class(
        name,
        tuple(qualify.text(base) for base in node.bases),
        tuple(binding for binding in _bindings(node.body, qualify) if not binding.name.startswith("_")),
        tuple(_function(each, name, qualify) for each in methods if counts[each.name] == 1),
        ast.get_docstring(node) or "",
    )


def _bindings(body: list[ast.stmt], qualify: _Qualify) -> Iterator[Binding]:
    """Yield names that are bound once in ``body``, to a value that is short enough."""
    counts = Counter(name for node in body for name in _bound(node))
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if counts[name] == 1:
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if counts[name] == 1:
                pass
            case _:
                continue
        text = qualify.text(value)
        if len(text) <= MAX_VALUE and "\n" not in text:
            yield Binding(name, text)


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str, qualify: _Qualify) -> Function:
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True),
        *(
            (name, default)
            for name, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if default
        ),
    ]
    defaults = [Binding(name.arg, qualify.text(default)) for name, default in pairs if default is not None]
    return Function(f"{owner}.{node.name}", qualify.text(arguments), tuple(defaults), ast.get_docstring(node) or "")


BUILTINS = frozenset(name for name in dir(builtins) if not name.startswith("_"))
"""Names that stand for themselves in any module."""
