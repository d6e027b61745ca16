"""Mutants are small, effective changes, deterministic by seed."""

import ast

import pytest

from tests.mutation.mutants import draw, places_in

CODE = '''
def share(part: float | None = 2, whole: int = 10) -> float | None:
    """One."""
    if part is None or whole < 3:
        return None
    return part / whole
'''


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "shares.py").write_text(CODE)
    return tmp_path


def test_each_mutant_changes_one_line_of_the_code_itself(tree):
    places = places_in(tree, "shares.py")
    mutants = draw(tree, places, 100, seed=1)
    assert {mutant.place.line for mutant in mutants} == {2, 4, 6}
    for mutant in mutants:
        changed = [one for one, other in zip(CODE.splitlines(), mutant.code.splitlines(), strict=True) if one != other]
        assert len(changed) == 1
        assert ast.dump(ast.parse(mutant.code)) != ast.dump(ast.parse(CODE))
        assert ") -> float | None:" in mutant.code


def test_mutants_are_deterministic_by_seed(tree):
    places = places_in(tree, "shares.py")
    assert draw(tree, places, 2, seed=3) == draw(tree, places, 2, seed=3)
    assert len({tuple(mutant.diff for mutant in draw(tree, places, 2, seed=seed)) for seed in range(8)}) > 2
