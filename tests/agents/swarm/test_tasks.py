"""Tasks are reproducible, verified by construction, and never in both splits."""

from collections import Counter

import pytest

from headrace.agents.swarm import vocabulary as words
from headrace.agents.swarm.tasks import DEEP_SLACK, Source, Split, Task, ask, make_task, split_of, task_id


def tasks(split: Split, count: int = 150) -> list[Task]:
    return [make_task(task_id(split, number)) for number in range(count)]


def of(source: Source) -> list[Task]:
    return [task for task in tasks(Split.TRAIN) if task.source is source]


def test_a_task_is_a_function_of_its_id() -> None:
    first = make_task("swarm-train-000007")
    make_task.cache_clear()
    again = make_task("swarm-train-000007")
    assert (again.question, again.targets, again.corpus) == (first.question, first.targets, first.corpus)


def test_a_wide_task_asks_one_relation_of_four_to_twelve_different_entities() -> None:
    sizes = Counter()  # type: Counter[int]
    for task in of(Source.WIDE):
        assert len({chunk.triple.relation for chunk in task.evidence}) == 1
        assert len({chunk.triple.subject for chunk in task.evidence}) == len(task.evidence)
        assert task.targets == tuple(chunk.chunk_id for chunk in task.evidence)
        sizes[len(task.evidence)] += 1
    assert set(sizes) == set(range(4, 13))


def test_a_deep_task_is_a_chain_of_three_or_four_facts_that_ends_in_its_target() -> None:
    for task in of(Source.DEEP):
        assert len(task.evidence) in (3, 4)
        for before, after in zip(task.evidence, task.evidence[1:], strict=False):
            assert before.triple.value == after.triple.subject
        assert task.targets == (task.evidence[-1].chunk_id,)


def test_the_budget_is_half_of_a_wide_tasks_serial_need_and_a_deep_ones_need_with_slack() -> None:
    assert all(2 * task.budget == task.serial_steps for task in of(Source.WIDE))
    assert all(task.budget == task.serial_steps + DEEP_SLACK for task in of(Source.DEEP))


def test_every_fact_has_one_answer_in_its_world() -> None:
    for task in tasks(Split.TRAIN):
        for chunk in task.evidence:
            asked = (chunk.triple.subject, chunk.triple.relation)
            same = [each for each in task.corpus.chunks if (each.triple.subject, each.triple.relation) == asked]
            assert same == [chunk]


def test_no_question_mentions_sub_agents_or_doing_things_at_once() -> None:
    asked = {word for task in tasks(Split.TRAIN) for word in task.question}
    assert asked.isdisjoint({words.CREATE, words.ASSIGN, *words.NAMES, *words.FILLERS})
    assert asked <= {words.LIST, words.TRACE, words.OF, *words.RELATIONS, *words.ENTITIES}


def test_training_and_held_out_never_share_a_question() -> None:
    train, held_out = tasks(Split.TRAIN, 300), tasks(Split.HELD_OUT, 300)
    assert not {task.question for task in train} & {task.question for task in held_out}
    assert all(split_of(task.question) is Split.HELD_OUT for task in held_out)


def test_a_question_is_what_its_evidence_answers() -> None:
    assert all(task.question == ask(task.source, task.evidence) for task in tasks(Split.TRAIN))


@pytest.mark.parametrize(
    "identifier", ["", "swarm-train-1", "swarm-test-000001", "swarm-train-000001-vast", "search-train-000001"]
)
def test_an_invalid_task_id_is_refused(identifier: str) -> None:
    with pytest.raises(ValueError, match="is not a task id"):
        make_task(identifier)


@pytest.mark.parametrize("number", [-1, 10**9])
def test_a_number_outside_the_range_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        task_id(Split.TRAIN, number)


def test_a_level_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="none of easy, medium, hard"):
        task_id(Split.TRAIN, 1, "vast")
