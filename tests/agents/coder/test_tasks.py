"""Tasks are valid, the same on every machine, and disjoint between training and evaluation."""

import ast
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.grading import passed
from headrace.agents.coder.specification import CALLS, Operation, Specification, body, value
from headrace.agents.coder.tasks import (
    Breakage,
    Split,
    Task,
    UnverifiedTask,
    make_task,
    outcome,
    task_id,
    verify,
)
from headrace.agents.coder.trusted_run import run_trusted

TRAINING = [make_task(task_id(Split.TRAIN, number)) for number in range(150)]
HELD_OUT = [make_task(task_id(Split.HELD_OUT, number)) for number in range(150)]
TASKS = [*TRAINING, *HELD_OUT]


def asked(task: Task) -> set[tuple[str, ...]]:
    """Return the specifications that a task asks for."""
    return {task.specifications[name].words for name in task.targets}


def verdict(task: Task, repository: object) -> float:
    outputs = run_trusted(repository, task.calls(), task.verdict_inputs)  # type: ignore[arg-type]
    return outcome(task, passed(outputs, task.expected(task.verdict_inputs)))


def test_every_reference_and_every_broken_repository_is_valid_python() -> None:
    for task in TASKS:
        for repository in (task.reference, task.broken):
            for path, text in repository.texts().items():
                if path.endswith(".py"):
                    ast.parse(text)


def test_the_reference_earns_everything_and_the_broken_repository_nothing() -> None:
    for task in TASKS:
        assert (verdict(task, task.reference), verdict(task, task.broken)) == (1.0, 0.0)


def test_every_mutant_differs_from_its_original_in_the_checks_and_in_the_verdict() -> None:
    bugs = 0
    for task in TASKS:
        for name, kind in task.breakages.items():
            bugs += kind is Breakage.BUG
            for inputs in (task.check_inputs, task.verdict_inputs):
                outputs = run_trusted(task.broken, task.calls(), inputs)
                assert name not in passed(outputs, task.expected(inputs))
    assert bugs > 50


def test_an_equivalent_mutant_is_rejected() -> None:
    task = make_task("coder-train-n1-000000")
    name = task.targets[0]
    spec = task.specifications[name]
    same = (*body(spec.operation, task.constants[spec.constant]), "+", "0")
    broken = task.broken.edited(task.paths[name], name, same)
    with pytest.raises(UnverifiedTask, match="equivalent"):
        verify(replace(task, broken=broken))


def test_no_other_function_of_the_grammar_passes_a_verdict() -> None:
    others: dict[str, Callable[[int], int]] = {"x": lambda x: x}
    for number in range(101):
        others |= {f"{number}": lambda x, number=number: number}  # type: ignore[misc]
        for operation in Operation:
            spec = Specification(operation, "c")
            others[" ".join((*spec.words, f"{number}"))] = partial(_of_number, spec, number)
    # The two tasks at the end had a verdict that x, and the number alone, passed.
    for task in (*TASKS, make_task("coder-train-000198"), make_task("coder-train-000544")):
        expected = task.expected(task.verdict_inputs)
        for name in task.targets:
            spec = task.specifications[name]
            own = " ".join((*spec.words[:-1], "c", f"{task.constants[spec.constant]}"))
            assert [
                text
                for text, other in others.items()
                if tuple(map(other, task.verdict_inputs)) == expected[name] and text != own
            ] == []


def _of_number(spec: Specification, number: int, x: int) -> int:
    return value(spec, x, {spec.constant: number})


def test_a_verdict_that_another_function_passes_is_rejected() -> None:
    task = next(task for task in TRAINING if {spec.operation for spec in _asked_of(task)} & set(CALLS))
    with pytest.raises(UnverifiedTask, match="one side"):
        verify(replace(task, verdict_inputs=tuple(range(20, 28))))


def _asked_of(task: Task) -> list[Specification]:
    return [task.specifications[name] for name in task.targets]


def test_a_reference_that_is_not_valid_python_is_rejected() -> None:
    task = TRAINING[0]
    name = task.targets[0]
    with pytest.raises(UnverifiedTask, match="reference"):
        verify(replace(task, reference=task.reference.edited(task.paths[name], name, ("return", "(", "x"))))


def test_a_task_that_breaks_more_than_it_asks_for_is_rejected() -> None:
    task = next(task for task in TRAINING if task.intact)
    name = task.intact[0]
    with pytest.raises(UnverifiedTask, match="without being broken"):
        verify(replace(task, broken=task.broken.without(task.paths[name], name)))


def test_no_held_out_specification_is_asked_for_or_shown_in_training() -> None:
    shown = {spec.words for task in TRAINING for spec in task.specifications.values()}
    assert not shown & set().union(*map(asked, HELD_OUT))


def test_the_numbers_of_a_repair_are_in_another_file() -> None:
    for task in TRAINING[:50]:
        for name in task.targets:
            spec = task.specifications[name]
            lines = task.broken.files[task.paths[name]]
            assert ("#", name, ":", *spec.words) in lines
            number = (spec.constant, str(task.constants[spec.constant]))
            assert number in task.broken.files[words.CONSTANTS_FILE]


def test_deleted_functions_and_bugs_are_over_several_files() -> None:
    kinds = {kind for task in TRAINING for kind in task.breakages.values()}
    assert kinds == set(Breakage)
    assert max(task.facts["files"] for task in TRAINING) >= 2


def test_the_prompt_is_in_the_order_of_the_files_as_results_are() -> None:
    for task in TASKS:
        assert task.targets == tuple(name for name in task.specifications if name in task.breakages)


def test_a_regression_costs_as_much_as_a_repair_earns() -> None:
    task = next(task for task in TRAINING if len(task.targets) == 2 and len(task.intact) == 2)
    spoilt = task.reference.edited(task.paths[task.intact[0]], task.intact[0], ("return", "1"))
    assert verdict(task, spoilt) <= 0.5


def test_the_size_can_be_chosen_and_files_grow_with_it() -> None:
    task = make_task("coder-heldout-n10-000003")
    assert len(task.targets) == 10
    assert task.facts["size"] == 10
    assert len(task.broken.files) > len(make_task("coder-heldout-n1-000003").broken.files)


@pytest.mark.parametrize(
    "name", ["coder-train-17", "coder-test-000017", "coder-train-n13-000001", "coder-train-n0-000001"]
)
def test_an_invalid_id_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="task id"):
        make_task(name)


def test_the_same_id_gives_the_same_task() -> None:
    again = make_task.__wrapped__("coder-train-000017")
    assert again == make_task("coder-train-000017")


def test_facts_hold_no_expected_value_and_no_reference() -> None:
    for task in TRAINING[:20]:
        assert set(task.facts) == {"targets", "breakages", "size", "files", "split"}


def test_the_visible_tests_hold_no_input_of_the_verdict() -> None:
    for task in TASKS:
        shown = {line[3] for line in task.broken.files[words.TESTS_FILE] if line[0] == "assert"}
        assert not shown & {str(number) for number in task.verdict_inputs}
