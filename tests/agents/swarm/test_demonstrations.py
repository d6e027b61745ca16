"""Demonstrations are sloppy on purpose: working alone is usual, sub-agents are rare and seldom useful."""

from random import Random
from statistics import mean

from headrace.agents.swarm import vocabulary as words
from headrace.agents.swarm.demonstrations import FLAWLESS, Demonstration, Mistakes, demonstrate, demonstrations
from headrace.agents.swarm.tasks import Source, Split, make_task, task_id

TASKS = [make_task(task_id(Split.TRAIN, number)) for number in range(300)]
ALONE = Mistakes(**dict.fromkeys(Mistakes.__dataclass_fields__, 0.0))


def turns(example: Demonstration) -> list[list[str]]:
    """Return the turns that a demonstration imitates, as words."""
    found: list[list[str]] = [[]]
    for token_id, imitated in zip(example.token_ids, example.mask, strict=True):
        if imitated:
            found[-1].append(words.VOCABULARY[token_id])
            if token_id == words.END_ID:
                found.append([])
    return found[:-1]


def outcomes(mistakes: Mistakes | None, source: Source) -> float:
    return mean(
        demonstrate(task, Random(number), mistakes).outcome
        for number, task in enumerate(TASKS)
        if task.source is source
    )


def test_only_complete_turns_are_imitated_and_never_what_a_sub_agent_said() -> None:
    for [example] in demonstrations(0, 60):
        for position, imitated in enumerate(example.mask):
            if imitated and not example.mask[position - 1]:
                assert example.token_ids[position - 1] == words.TOKEN_IDS[words.AGENT]
            if not imitated and example.mask[position - 1]:
                assert example.token_ids[position - 1] == words.END_ID


def test_one_turn_of_sub_tasks_nearly_solves_wide_tasks_and_working_alone_cannot() -> None:
    assert outcomes(FLAWLESS, Source.WIDE) > 0.9
    assert outcomes(ALONE, Source.WIDE) < 0.65


def test_deep_tasks_are_solved_alone_and_a_sub_agent_first_costs_accuracy() -> None:
    first = Mistakes(**{**dict.fromkeys(Mistakes.__dataclass_fields__, 0.0), "delegates_deep": 1.0, "junk": 1.0})
    assert outcomes(ALONE, Source.DEEP) > 0.95
    assert outcomes(first, Source.DEEP) < 0.9


def test_the_first_sub_agents_do_not_pay() -> None:
    def wide(delegates: float) -> float:
        return outcomes(Mistakes(delegates_wide=delegates), Source.WIDE)

    assert wide(1.0) < wide(0.0)


def test_every_tool_is_demonstrated_and_more_than_half_of_the_sub_tasks_are_useless() -> None:
    called = [turn for [example] in demonstrations(0, 300) for turn in turns(example)]
    assert {turn[0] for turn in called} >= {*words.TOOLS, words.ANSWER}
    prompts = [
        piece
        for turn in called
        if turn[0] == words.ASSIGN
        for piece in " ".join(turn[:-1]).split(words.ASSIGN)
        if piece
    ]
    named = sum(not set(piece.split()).isdisjoint(words.ENTITIES) for piece in prompts)
    assert 0 < named < len(prompts) / 2


def test_demonstrations_are_a_function_of_their_numbers() -> None:
    assert list(demonstrations(10, 5)) == list(demonstrations(10, 5))
