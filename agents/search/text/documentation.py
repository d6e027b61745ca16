"""Documents made of definitions: the signature line, the docstring, then a line for each attribute and method.

    class http.server.HTTPServer(socketserver.TCPServer)

    http.server.HTTPServer.allow_reuse_address = 1

    http.server.HTTPServer.server_bind(self)
        Override server_bind to store the server name.

Lines are as pydoc prints them, but with qualified names, so that each states its fact by itself.
"""

from collections.abc import Iterable, Iterator, Mapping

from headrace.agents.retrieval.passages import Document, paragraphs
from headrace.agents.search.text.definitions import Class, Function, Module

MAX_LINE = 300
"""Longest signature line, in characters; parameters of a longer one are left out as ``...``."""


def documents_of(modules: Iterable[Module], topics: Mapping[str, str], most: int) -> tuple[Document, ...]:
    """Return at most ``most`` documents, in the order of their titles, with ids ``d0001``, ``d0002``, ….

    ``topics`` are articles of the language reference. What has more to tell comes first: topics, modules, functions
    and classes with a docstring, classes with a base or an attribute; longer texts before shorter ones.
    """
    found = [(0, f"language reference: {name}", text.strip()) for name, text in topics.items()]
    for module in modules:
        found += [(rank, title, text) for rank, title, text in _of_module(module) if text]
    kept = sorted(found, key=lambda each: (each[0], -len(each[2]), each[1]))[:most]
    titles = sorted((title, text) for _, title, text in kept)
    return tuple(Document(f"d{number:04d}", title, text) for number, (title, text) in enumerate(titles, start=1))


def _of_module(module: Module) -> Iterator[tuple[int, str, str]]:
    lines = [f"{module.name}.{binding.name} = {binding.value}" for binding in module.constants]
    if module.doc or lines:
        text = "\n\n".join(filter(None, [f"module {module.name}", module.doc, "\n".join(lines)]))
        yield (0 if module.doc else 2), module.name, text
    for function in module.functions:
        if function.doc:
            yield 1, function.name, f"{signature_line(function)}\n\n{function.doc}"
    for each in module.classes:
        if each.doc or each.bases or each.attributes:
            yield (1 if each.doc else 2), each.name, _of_class(each)


def _of_class(defined: Class) -> str:
    attributes = [attribute_line(defined, binding.name, binding.value) for binding in defined.attributes]
    methods = []
    for method in defined.methods:
        summary = " ".join(next(iter(paragraphs(method.doc)), "").split())
        methods.append("\n    ".join(filter(None, [signature_line(method), summary])))
    return "\n\n".join(filter(None, [class_line(defined), defined.doc, "\n".join(attributes), *methods]))


def class_line(defined: Class) -> str:
    """``class http.server.HTTPServer(socketserver.TCPServer)``."""
    return f"class {defined.name}" + (f"({', '.join(defined.bases)})" if defined.bases else "")


def attribute_line(defined: Class, name: str, value: str) -> str:
    """``http.server.HTTPServer.allow_reuse_address = 1``."""
    return f"{defined.name}.{name} = {value}"


def signature_line(function: Function) -> str:
    """``shutil.copyfileobj(fsrc, fdst, length=0)``."""
    line = f"{function.name}({function.signature})"
    return line if len(line) <= MAX_LINE else f"{function.name}(...)"
