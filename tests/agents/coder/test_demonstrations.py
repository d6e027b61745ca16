"""What a base model imitates: every choice of the demonstrator, but no number that it guessed; each choice follows from
what the context shows."""

from dataclasses import replace
from random import Random

import pytest

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.demonstrations import Demonstration, Mistakes, demonstrate, demonstrations
from headrace.agents.coder.harness import Limits
from tests.agents.coder.players import FLAWLESS, play, training_task

GUESSES = replace(FLAWLESS, guess=1.0, ignore_failures=1.0)


def notes(shown: list[Demonstration]) -> list[tuple[str, int, bool]]:
    """Return each noted number: constant, number, and whether the number is imitated."""
    found: list[tuple[str, int, bool]] = []
    for each in shown:
        text = words.decode_words(each.token_ids)
        found += [
            (text[place + 2], int(text[place + 3]), bool(each.mask[place + 3]))
            for place in range(len(text) - 3)
            if text[place : place + 2] == [words.AGENT, words.THINK]
        ]
    return found


def chosen(shown: list[Demonstration]) -> list[str]:
    """Return the words to imitate."""
    return [
        word for each in shown for word, mine in zip(words.decode_words(each.token_ids), each.mask, strict=True) if mine
    ]


def test_a_guessed_number_is_not_imitated() -> None:
    for number in range(10):
        found = notes(demonstrate(training_task(number), Random(number), GUESSES))
        assert found
        assert not any(imitated for _, _, imitated in found)


def test_a_number_that_was_looked_up_is_noted_and_imitated() -> None:
    for number in range(10):
        task = training_task(number)
        found = notes(demonstrate(task, Random(number), FLAWLESS))
        assert found
        assert all((value, imitated) == (task.constants[name], True) for name, value, imitated in found)


@pytest.mark.parametrize("no_todo", [0.0, 1.0])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_without_mistakes_every_function_is_repaired_across_summaries(size: int, no_todo: float) -> None:
    for number in range(5):
        harness, done, _ = play(training_task(number, size), mistakes=replace(FLAWLESS, no_todo=no_todo), seed=number)
        assert done.outcome == 1.0
        assert harness.summaries >= size // 2 - 1


def test_with_a_to_do_list_a_forgotten_summary_loses_no_function() -> None:
    mistakes = replace(FLAWLESS, forget_open=1.0)
    for number in range(5):
        harness, done, _ = play(training_task(number, 4), mistakes=mistakes, seed=number)
        assert (done.outcome, harness.todo.open) == (1.0, ())


def test_without_one_it_begins_with_the_first_function_again() -> None:
    shown = demonstrate(training_task(2, 4), Random(2), replace(FLAWLESS, no_todo=1.0, forget_open=1.0))
    assert len(shown) > 2
    first = training_task(2, 4).targets[0]
    for each in shown:
        assert chosen([each])[:2] == [words.GREP, first]


def test_sloppy_decisions_occur_and_so_do_careful_ones() -> None:
    episodes = [demonstrate(training_task(number, 2), Random(number)) for number in range(60)]
    looked_up = [words.CONSTANTS_FILE in words.decode_words(shown[0].token_ids) for shown in episodes]
    tested = [words.RUN_TESTS in chosen(shown) for shown in episodes]
    for decisions in (looked_up, tested):
        assert 0.1 < sum(decisions) / len(decisions) < 0.9


def test_a_task_is_always_demonstrated_alike() -> None:
    assert list(demonstrations(40, 5)) == list(demonstrations(40, 5))


def test_a_sloppy_player_earns_little_and_a_careful_one_everything() -> None:
    def mean(mistakes: Mistakes) -> float:
        ends = [play(training_task(number), mistakes=mistakes, limits=Limits(), seed=number)[1] for number in range(80)]
        return sum(done.outcome for done in ends) / len(ends)

    assert mean(Mistakes()) < 0.4
    assert mean(FLAWLESS) == 1.0
