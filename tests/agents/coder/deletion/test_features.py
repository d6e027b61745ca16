"""Functions are found with their decorators and removed whole; what is left is valid Python."""

import ast
from pathlib import Path
from sysconfig import get_path

import pytest

from headrace.agents.coder.deletion.features import Feature, features, without
from headrace.agents.coder.deletion.installation import MODULES

SOURCE = '''
def short(): pass


class Shape:
    @property
    def area(self):
        """Area."""
        return 1

    def only(self):
        x = 1
        return x


class Single:
    def method(self):
        x = 1
        return x


def outer():
    def inner():
        x = 1
        return x
    return inner
'''


def test_functions_and_methods_are_found_with_their_decorators() -> None:
    assert features(SOURCE) == [Feature("Shape.area", 6, 9), Feature("Shape.only", 11, 13), Feature("outer", 22, 26)]


def test_a_feature_is_removed_and_nothing_else() -> None:
    left = without(SOURCE, Feature("Shape.area", 6, 9))
    assert "area" not in left
    assert left.count("\n") == SOURCE.count("\n") - 4


@pytest.mark.parametrize("module", MODULES)
def test_every_module_is_valid_python_without_any_feature(module: str) -> None:
    source = (Path(get_path("stdlib")) / f"{module}.py").read_text()
    found = features(source)
    assert found
    whole = len(ast.unparse(ast.parse(source)))
    for feature in found:
        assert len(ast.unparse(ast.parse(without(source, feature)))) < whole
