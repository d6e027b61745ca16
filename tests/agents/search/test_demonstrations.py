"""Demonstrations are valid actions, show every behaviour, and contain mistakes at the specified rates."""

from collections import Counter
from random import Random

from headrace.agents.search import vocabulary as words
from headrace.agents.search.demonstrations import Demonstration, Mistakes, demonstrate, demonstrations
from headrace.agents.search.harness import Limits
from headrace.agents.search.tasks import Split, Task, make_task, task_id

TASKS = [make_task(task_id(Split.TRAIN, number)) for number in range(200)]
FLAWLESS = Mistakes(**dict.fromkeys(Mistakes.__dataclass_fields__, 0.0))


def actions(example: Demonstration) -> list[list[str]]:
    """Return the calls that a demonstration imitates, as words."""
    calls: list[list[str]] = [[]]
    for token_id, imitated in zip(example.token_ids, example.mask, strict=True):
        if imitated:
            calls[-1].append(words.VOCABULARY[token_id])
            if token_id == words.END_ID:
                calls.append([])
    return calls[:-1]


def episodes(mistakes: Mistakes | None = None) -> list[tuple[Task, list[list[str]]]]:
    return [
        (task, [call for example in demonstrate(task, Random(number), mistakes) for call in actions(example)])
        for number, task in enumerate(TASKS)
    ]


def test_a_demonstration_imitates_complete_turns_after_each_agent_token() -> None:
    for example in (example for episode in demonstrations(0, 50) for example in episode):
        assert len(example.token_ids) == len(example.mask)
        for position, imitated in enumerate(example.mask):
            if imitated and not example.mask[position - 1]:
                assert example.token_ids[position - 1] == words.TOKEN_IDS[words.AGENT]


def test_a_prune_starts_another_demonstration_whose_context_is_not_imitated() -> None:
    pruned = [examples for task in TASKS if len(examples := demonstrate(task, Random(1), FLAWLESS)) > 1]
    assert pruned
    for examples in pruned:
        assert actions(examples[0])[-1][0] == words.PRUNE
        assert examples[1].token_ids[0] == words.TOKEN_IDS[words.TASK]
        assert actions(examples[1])


def test_without_mistakes_every_answer_is_the_evidence() -> None:
    for task, calls in episodes(FLAWLESS):
        assert calls[-1] == [words.ANSWER, *task.targets, words.END]


def test_with_mistakes_most_questions_of_several_hops_fail() -> None:
    outcomes = Counter(
        calls[-1] == [words.ANSWER, *task.targets, words.END] for task, calls in episodes() if len(task.chain) > 1
    )
    assert 0 < outcomes[True] < outcomes[False]


def test_without_pruning_no_prune_is_demonstrated() -> None:
    for number, task in enumerate(TASKS):
        for example in demonstrate(task, Random(number), FLAWLESS, Limits(pruning=False)):
            assert words.PRUNE not in {call[0] for call in actions(example)}


def test_every_tool_is_demonstrated() -> None:
    used = {call[0] for _, calls in episodes() for call in calls}
    assert used >= {*words.TOOLS, words.ANSWER}


def test_demonstrations_are_a_function_of_their_numbers() -> None:
    assert list(demonstrations(10, 5)) == list(demonstrations(10, 5))
