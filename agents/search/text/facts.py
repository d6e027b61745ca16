"""Facts of definitions, each with the line of a document that states it: what the explorer by syntax tree finds.

    Fact("http.server.HTTPServer", BASE, value="socketserver.TCPServer", document="http.server.HTTPServer",
         quote="class http.server.HTTPServer(socketserver.TCPServer)")

A fact whose value is itself the subject of facts can be continued: those are the hops of a question.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from headrace.agents.search.text.definitions import BUILTINS, Binding, Class, Module
from headrace.agents.search.text.documentation import attribute_line, class_line, signature_line

MIN_ANSWER, MAX_ANSWER = 1, 60
"""Lengths of a value that can be asked for, in characters of its source."""


class Relation(StrEnum):
    """What a fact says of its subject."""

    BASE = "base"
    """The only base class of a class."""
    ATTRIBUTE = "attribute"
    """The value of a class attribute."""
    VALUE = "value"
    """The value of a module's constant."""
    DEFAULT = "default"
    """The default of a function's parameter."""
    METHOD_DEFAULT = "method_default"
    """The default of a parameter of a class's method."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact and its evidence."""

    subject: str
    """Qualified name."""
    relation: Relation
    names: tuple[str, ...]
    """The attribute, the parameter, or method and parameter that the relation is about."""
    value: str
    document: str
    """Title of the document that states it."""
    quote: str
    """The line that states it."""

    @property
    def asks(self) -> str:
        """The relation in English, with a place for the subject: ``the base class of {}``."""
        match self.relation:
            case Relation.BASE:
                return "the base class of {}"
            case Relation.ATTRIBUTE:
                return f"the value of the class attribute {self.names[0]} of {{}}"
            case Relation.VALUE:
                return "the value of the constant {}"
            case Relation.DEFAULT:
                return f"the default of the parameter {self.names[0]} of {{}}"
            case Relation.METHOD_DEFAULT:
                return f"the default of the parameter {self.names[1]} of the method {self.names[0]} of {{}}"


def facts_of(modules: Iterable[Module]) -> tuple[Fact, ...]:
    """Return the facts of ``modules`` whose (subject, relation, names) has one value, in their order."""
    found = [fact for module in modules for fact in _of_module(module)]
    values: dict[tuple[str, Relation, tuple[str, ...]], set[str]] = {}
    for fact in found:
        values.setdefault((fact.subject, fact.relation, fact.names), set()).add(fact.value)
    return tuple(
        fact
        for fact in found
        if len(values[fact.subject, fact.relation, fact.names]) == 1 and fact.value != fact.subject
    )


def _of_module(module: Module) -> Iterator[Fact]:
    for binding in module.constants:
        if _can_be_asked(binding):
            subject = f"{module.name}.{binding.name}"
            quote = f"{subject} = {binding.value}"
            yield Fact(subject, Relation.VALUE, (), binding.value, module.name, quote)
    for function in module.functions:
        if function.doc and "(...)" not in (line := signature_line(function)):
            for binding in filter(_can_be_asked, function.defaults):
                yield Fact(function.name, Relation.DEFAULT, (binding.name,), binding.value, function.name, line)
    for each in module.classes:
        yield from _of_class(each)


def _of_class(defined: Class) -> Iterator[Fact]:
    if len(defined.bases) == 1 and _is_name(defined.bases[0]) and defined.bases[0] != "object":
        yield Fact(defined.name, Relation.BASE, (), defined.bases[0], defined.name, class_line(defined))
    for binding in filter(_can_be_asked, defined.attributes):
        line = attribute_line(defined, binding.name, binding.value)
        yield Fact(defined.name, Relation.ATTRIBUTE, (binding.name,), binding.value, defined.name, line)
    for method in defined.methods:
        if "(...)" not in (line := signature_line(method)):
            name = method.name.removeprefix(f"{defined.name}.")
            for binding in filter(_can_be_asked, method.defaults):
                names = (name, binding.name)
                yield Fact(defined.name, Relation.METHOD_DEFAULT, names, binding.value, defined.name, line)


def _is_name(text: str) -> bool:
    """Whether ``text`` is a name that is understood without its module: a dotted one, or a builtin."""
    return text in BUILTINS or ("." in text and all(part.isidentifier() for part in text.split(".")))


def _can_be_asked(binding: Binding) -> bool:
    """Whether the value is a qualified name, a number or a text; ``None``, ``True`` and ``''`` are too common."""
    if not MIN_ANSWER <= len(binding.value) <= MAX_ANSWER:
        return False
    try:
        value = ast.literal_eval(binding.value)
    except (ValueError, SyntaxError):
        return _is_name(binding.value) and binding.value != "object"
    return isinstance(value, int | float | str) and not isinstance(value, bool) and value != ""
