"""Tasks are verified, reproducible, and never in both splits."""

from collections import Counter
from dataclasses import replace

import pytest

from headrace.agents.search.corpus import Chunk, Triple
from headrace.agents.search.tasks import (
    Split,
    Task,
    UnverifiedTask,
    ask,
    hops_of,
    make_task,
    split_of,
    task_id,
    verify,
)
from headrace.schemas.events import Purpose


def tasks(split: Split, count: int = 150) -> list[Task]:
    return [make_task(task_id(split, number)) for number in range(count)]


def test_a_task_is_a_function_of_its_id() -> None:
    first = make_task("search-train-000007")
    make_task.cache_clear()
    again = make_task("search-train-000007")
    assert (again.question, again.targets, again.corpus) == (first.question, first.targets, first.corpus)


def test_every_task_passes_verification_and_asks_what_its_chain_answers() -> None:
    for task in tasks(Split.TRAIN):
        verify(task.question, task.chain, task.corpus)
        assert task.facts["targets"] == [chunk.chunk_id for chunk in task.chain]
        assert task.facts["answer_chunks"] == [task.chain[-1].chunk_id]


def test_questions_have_one_two_and_three_hops() -> None:
    assert set(Counter(len(task.chain) for task in tasks(Split.TRAIN))) == {1, 2, 3}


def test_hops_are_known_without_making_the_task() -> None:
    for task in tasks(Split.TRAIN):
        assert hops_of(task.task_id) == len(task.chain)


def test_training_and_held_out_never_share_a_question_or_a_corpus() -> None:
    train, held_out = tasks(Split.TRAIN, 400), tasks(Split.HELD_OUT, 400)
    assert not {task.question for task in train} & {task.question for task in held_out}
    assert not {task.corpus.chunks for task in train} & {task.corpus.chunks for task in held_out}
    assert not {task.task_id for task in train} & {task.task_id for task in held_out}


def test_a_question_belongs_to_the_split_of_its_task() -> None:
    for split in Split:
        assert all(split_of(task.question) is split for task in tasks(split, 50))


@pytest.mark.parametrize(
    "identifier", ["", "search-train-1", "search-test-000001", "search-train-000001 ", "airline-3"]
)
def test_an_invalid_task_id_is_refused(identifier: str) -> None:
    with pytest.raises(ValueError, match="is not a task id"):
        make_task(identifier)


@pytest.mark.parametrize("number", [-1, 10**9])
def test_a_number_outside_the_range_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        task_id(Split.TRAIN, number)


class TestVerification:
    """Verification rejects questions without exact evidence."""

    task = next(task for task in tasks(Split.TRAIN) if len(task.chain) == 2)

    def test_no_evidence_fails(self) -> None:
        with pytest.raises(UnverifiedTask, match="without evidence"):
            verify(self.task.question, (), self.task.corpus)

    def test_a_quote_that_is_nearly_there_fails(self) -> None:
        first, last = self.task.chain
        wrong = replace(last, triple=Triple(last.triple.subject, last.triple.relation, first.triple.subject))
        with pytest.raises(UnverifiedTask, match="does not occur"):
            verify(self.task.question, (first, wrong), self.task.corpus)

    def test_evidence_for_another_question_fails(self) -> None:
        with pytest.raises(UnverifiedTask, match="the evidence answers"):
            verify(("what", "is", "the", "home", "of", "nobody", "?"), self.task.chain, self.task.corpus)

    def test_hops_that_do_not_link_fail(self) -> None:
        first = self.task.chain[0]
        stray = next(
            chunk
            for chunk in self.task.corpus.chunks
            if chunk.triple.subject not in (first.triple.value, first.triple.subject)
        )
        chain: tuple[Chunk, ...] = (first, stray)
        with pytest.raises(UnverifiedTask, match="does not lead there"):
            verify(ask(chain), chain, self.task.corpus)


def test_attempts_at_held_out_tasks_are_evaluations() -> None:
    assert [split.purpose for split in (Split.TRAIN, Split.HELD_OUT)] == [Purpose.TRAIN, Purpose.EVALUATE]
