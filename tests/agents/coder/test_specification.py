"""A specification's words, values and Python agree, whatever it is made of."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.repository import Repository, signature
from headrace.agents.coder.specification import Specification, Start, body, draw, mutant, value
from headrace.agents.coder.trusted_run import run_trusted

CONSTANTS = {"rate": 7, "size": 2, "limit": 5}


def computed(code: tuple[str, ...], x: int) -> int | None:
    """Run ``code`` as the body of ``fee``, next to ``toll``, which returns x + 1."""
    lines = ((*signature("toll"), "return", "x", "+", "1"), (*signature("fee"), *code))
    return run_trusted(Repository({"orders.py": lines}), {"orders.py": ["fee"]}, (x,))["fee"][0]


def wanted(spec: Specification, x: int) -> int:
    return value(spec, x, CONSTANTS, lambda _, inner: inner + 1)


@given(st.integers(0, 10**6), st.integers(-50, 50))
def test_the_python_of_a_specification_computes_its_value(seed: int, x: int) -> None:
    spec = draw(Random(seed), tuple(CONSTANTS), ("toll",))
    assert computed(body(spec, CONSTANTS), x) == wanted(spec, x)


@given(st.integers(0, 10**6))
def test_its_words_its_python_and_its_mutants_are_in_the_vocabulary(seed: int) -> None:
    rng = Random(seed)
    spec = draw(rng, tuple(CONSTANTS), ("toll",))
    words.encode_words(spec.words)
    assert words.CODE_WORDS.issuperset(body(spec, CONSTANTS))
    assert words.CODE_WORDS.issuperset(mutant(spec, CONSTANTS, rng))


@pytest.mark.parametrize(
    ("spec", "text", "code", "at_three"),
    [
        (Specification(Start.X, "", (("times", "rate"), ("plus", "size"))), "x times rate plus size", "x * 7 + 2", 23),
        (
            Specification(Start.X, "", (("plus", "size"), ("times", "rate"))),
            "x plus size times rate",
            "( x + 2 ) * 7",
            35,
        ),
        (Specification(Start.CALL, "toll", (("minus", "size"),)), "toll of x minus size", "toll ( x ) - 2", 2),
        (
            Specification(Start.LARGER, "limit", (("plus", "size"),)),
            "larger of x and limit plus size",
            "max ( x , 5 ) + 2",
            7,
        ),
        (
            Specification(Start.SMALLER, "size", (("times", "rate"),)),
            "smaller of x and size times rate",
            "min ( x , 2 ) * 7",
            14,
        ),
    ],
)
def test_examples(spec: Specification, text: str, code: str, at_three: int) -> None:
    assert " ".join(spec.words) == text
    assert " ".join(body(spec, CONSTANTS)) == f"return {code}"
    assert wanted(spec, 3) == computed(body(spec, CONSTANTS), 3) == at_three


def test_the_callees_name_does_not_decide_the_split() -> None:
    steps = (("plus", "rate"),)
    split = {Specification(Start.CALL, name, steps).is_held_out for name in words.FUNCTIONS}
    assert len(split) == 1
