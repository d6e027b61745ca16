"""A specification's words, values and Python agree, whatever it is made of."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.repository import Repository, signature
from headrace.agents.coder.specification import NUMBERS, Operation, Specification, body, draw, mutant, value
from headrace.agents.coder.trusted_run import run_trusted

OPERATIONS = st.sampled_from(Operation)


def computed(code: tuple[str, ...], x: int) -> int | None:
    """Run ``code`` as the body of ``fee``."""
    repository = Repository({"orders.py": ((*signature("fee"), *code),)})
    return run_trusted(repository, {"orders.py": ["fee"]}, (x,))["fee"][0]


@given(OPERATIONS, st.sampled_from(NUMBERS), st.integers(-50, 50))
def test_the_python_of_a_specification_computes_its_value(operation: Operation, number: int, x: int) -> None:
    assert computed(body(operation, number), x) == value(Specification(operation, "rate"), x, {"rate": number})


@given(OPERATIONS, st.sampled_from(NUMBERS), st.integers(0, 10**6))
def test_its_words_its_python_and_its_mutants_are_in_the_vocabulary(
    operation: Operation, number: int, seed: int
) -> None:
    words.encode_words(Specification(operation, "rate").words)
    assert words.CODE_WORDS.issuperset(body(operation, number))
    assert words.CODE_WORDS.issuperset(mutant(operation, number, Random(seed)))


@given(OPERATIONS, st.sampled_from(NUMBERS), st.integers(0, 10**6))
def test_a_mutant_differs_from_its_original(operation: Operation, number: int, seed: int) -> None:
    assert mutant(operation, number, Random(seed)) != body(operation, number)


@pytest.mark.parametrize(
    ("operation", "text", "code", "at_three"),
    [
        ("times", "x times rate", "x * 7", 21),
        ("plus", "x plus rate", "x + 7", 10),
        ("minus", "x minus rate", "x - 7", -4),
        ("larger", "larger of x and rate", "max ( x , 7 )", 7),
        ("smaller", "smaller of x and rate", "min ( x , 7 )", 3),
    ],
)
def test_examples(operation: str, text: str, code: str, at_three: int) -> None:
    spec = Specification(Operation(operation), "rate")
    assert " ".join(spec.words) == text
    assert " ".join(body(spec.operation, 7)) == f"return {code}"
    assert value(spec, 3, {"rate": 7}) == computed(body(spec.operation, 7), 3) == at_three


def test_one_operation_of_each_constant_is_held_out_and_none_of_all_constants() -> None:
    held_out = {
        constant: [operation for operation in Operation if Specification(operation, constant).is_held_out]
        for constant in words.CONSTANTS
    }
    assert {len(operations) for operations in held_out.values()} == {1}
    assert {operation for [operation] in held_out.values()} == set(Operation)


def test_a_draw_uses_the_given_constants() -> None:
    rng = Random(0)
    drawn = [draw(rng, ("rate", "size")) for _ in range(100)]
    assert {spec.constant for spec in drawn} == {"rate", "size"}
    assert {spec.operation for spec in drawn} == set(Operation)
