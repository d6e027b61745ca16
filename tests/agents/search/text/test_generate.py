"""Tasks are verified, spread over what they are about, the same for a seed, and say where they come from."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.agents.search.tasks import Split
from headrace.agents.search.text.facts import Fact, Relation
from headrace.agents.search.text.generate import DISTRACTORS, generate
from headrace.agents.search.text.tasks import GENERATOR, NoTasks, TextTasks, read_tasks, task_of, write_tasks
from headrace.agents.search.text.verify import Check, Corpus
from tests.agents.search.text.library import candidates, small_text

TEXT = small_text()
CORPUS = Corpus.of(TEXT.documents)
GENERATED = generate(TEXT.facts, CORPUS, "sha", counts={1: 99, 2: 99, 3: 99, 4: 99})
BY_QUESTION = {task.question: task for task in GENERATED.tasks}


def test_a_question_of_three_hops_has_the_chunk_of_each_as_a_target() -> None:
    task = BY_QUESTION[
        "What is the value of the constant that is the value of the class attribute backlog of the base class of "
        "web.WebServer?"
    ]
    assert task.answer == "5"
    assert [hop.value for hop in task.hops] == ["net.Server", "net.BACKLOG", "5"]
    shown = [CORPUS.passages.by_id[chunk_id].text for chunk_id in task.targets]
    assert all(hop.quotes[0] in text for hop, text in zip(task.hops, shown, strict=True))
    assert task.answer_chunks == task.targets[-1:]
    assert task.facts["hops"] == 3


def test_every_fact_of_the_library_becomes_a_question() -> None:
    assert Counter(len(task.hops) for task in GENERATED.tasks)[1] == len(TEXT.facts)
    assert GENERATED.rejected == ()


def test_no_more_questions_are_made_than_asked_for() -> None:
    few = generate(TEXT.facts, CORPUS, "sha", counts={1: 2, 2: 3})
    assert Counter(len(task.hops) for task in few.tasks) == {1: 2, 2: 3}


def test_a_seed_gives_the_same_tasks_and_another_seed_other_ones() -> None:
    first, again, other = (generate(TEXT.facts, CORPUS, "sha", counts={1: 4}, seed=seed).tasks for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_distractors_share_a_name_and_are_no_evidence() -> None:
    found = [task for task in GENERATED.tasks if task.distractors]
    assert found
    for task in found:
        assert len(task.distractors) <= DISTRACTORS
        assert not {hop.doc_id for hop in task.hops} & set(task.distractors)


def test_a_fact_whose_quote_is_not_in_its_document_is_rejected_and_never_part_of_a_longer_question() -> None:
    base = next(fact for fact in TEXT.facts if (fact.subject, fact.relation) == ("web.WebServer", Relation.BASE))
    wrong = replace(base, quote="class web.WebServer(net.Other)")
    facts: list[Fact] = [wrong if fact is base else fact for fact in TEXT.facts]
    made = generate(facts, CORPUS, "sha", counts={1: 99, 2: 99, 3: 99})
    assert [rejected.failures[0].check for rejected in made.rejected] == [Check.QUOTED]
    assert made.by_check == {Check.QUOTED: 1}
    assert not [task for task in made.tasks if any("Other" in quote for hop in task.hops for quote in hop.quotes)]
    assert len(made.tasks) < len(GENERATED.tasks)


def test_tasks_say_where_they_come_from() -> None:
    for task in GENERATED.tasks:
        assert task.provenance.generator == GENERATOR
        assert task.provenance.explorer == "syntax-tree"
        assert task.provenance.documents == "sha"
        assert set(task.provenance.checks) == {str(check) for check in Check}
        assert task.task_id.startswith(f"text-{task.split}-")
    assert len({task.task_id for task in GENERATED.tasks}) == len(GENERATED.tasks)


def test_only_verified_candidates_become_tasks() -> None:
    wrong = replace(candidates(TEXT, CORPUS, 1)[0], answer="planted")
    with pytest.raises(ValueError, match="not verified"):
        task_of(wrong, CORPUS, "sha")


def test_stored_tasks_are_read_again(tmp_path: Path) -> None:
    write_tasks(GENERATED.tasks, tmp_path / "tasks.jsonl")
    assert read_tasks(tmp_path / "tasks.jsonl") == GENERATED.tasks


@pytest.mark.parametrize("line", ["{}", "[]", "no json", '{"hops": [{"subject": 1}]}'])
def test_a_line_that_is_no_task_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "tasks.jsonl").write_text(line + "\n")
    with pytest.raises(NoTasks, match=r"tasks\.jsonl:1"):
        read_tasks(tmp_path / "tasks.jsonl")


def test_a_source_of_tasks_offers_each_split_by_number_and_level() -> None:
    source = TextTasks.of(GENERATED.tasks)
    assert source.levels == ("1", "2", "3", "4")
    training = [source.training(number) for number in range(10)]
    assert {task.split for task in training} == {Split.TRAIN}
    assert {len(source.training(number, level=1).hops) for number in range(10)} == {2}
    assert source.held_out(0).split is Split.HELD_OUT
    assert source.training(0) == source.training(len(source.by_split[Split.TRAIN]))


def test_a_source_without_held_out_tasks_says_so() -> None:
    training = [task for task in GENERATED.tasks if task.split is Split.TRAIN]
    with pytest.raises(NoTasks, match="held"):
        TextTasks.of(training).held_out(0)
    with pytest.raises(NoTasks, match="level"):
        TextTasks.of(training[:1]).training(0, level=7)
