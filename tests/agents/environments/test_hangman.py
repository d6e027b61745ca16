"""The game that verifiers ships, as the experiment ``tests/experiments/hangman_learning.py`` trains on it."""

from pathlib import Path
from string import ascii_uppercase

import pytest
from transformers import AutoTokenizer

from headrace.deploy.commands.base_model import make_base_model
from headrace.deploy.demo.circle import DemoPlan
from headrace.deploy.demo.run import fresh_folder
from headrace.deploy.demo.watch import watch_run
from headrace.deploy.stack.stack import running_stack
from tests.agents.environments.test_verifiers import VERIFIERS
from tests.agents.gateway.clients.installed import programs_of
from tests.conftest import CACHE
from tests.experiments.environment_learning import STEP_S, at_rest, exactness_of, settings_of, trained
from tests.experiments.hangman.base import (
    END,
    HELD_OUT_GAMES,
    IMITATED,
    Game,
    imitation_of,
    played,
    recipe,
    split,
    tokenizer_of,
    word_lists,
)
from tests.experiments.hangman_learning import hangman

GAME = Game(
    (
        {"role": "system", "content": "Read the rules."},
        {"role": "user", "content": "\n[GAME] Current board:\n\nC00 C01\n  _   _ "},
        {"role": "assistant", "content": "[A]"},
        {"role": "user", "content": "C00 C01\n  A   _ "},
        {"role": "assistant", "content": "the letter E"},
    ),
    0.5,
)


def test_no_held_out_word_is_for_training() -> None:
    training, held_out = split()
    assert (len(set(training)), len(set(held_out))) == (195, 66)
    assert not set(training) & set(held_out)


def test_a_game_is_imitated_as_its_chat_is_rendered(tmp_path: Path) -> None:
    tokenizer = tokenizer_of([GAME])
    found = imitation_of(GAME, tokenizer)
    make_base_model(recipe([GAME] * (HELD_OUT_GAMES + 1)), tmp_path / "model", steps=1)
    rendered = AutoTokenizer.from_pretrained(tmp_path / "model").apply_chat_template([*GAME.messages])
    assert list(found.token_ids) == rendered["input_ids"]
    imitated = [token for token, chosen in zip(found.token_ids, found.mask, strict=True) if chosen]
    assert tokenizer.decode(imitated) == f"[A] {END} the letter E {END}"


@pytest.mark.clients
def test_the_tokenizer_has_all_that_the_shipped_game_says(tmp_path: Path) -> None:
    python, words = str(programs_of(VERIFIERS) / "python"), word_lists(tmp_path)
    games = played(python, words.training, IMITATED + HELD_OUT_GAMES)
    assert {0.0, 1.0} <= {game.reward for game in games}
    boards = {game.messages[1]["content"].count("_ ") for game in games}
    assert len(boards) > 2, "each task's prompt shows its own board"
    tokenizer = tokenizer_of(games)
    assert {each for letter in ascii_uppercase for each in (letter, f"'{letter}'", f"[{letter}]")} < set(
        tokenizer.words
    )
    for game in played(python, words.held_out, HELD_OUT_GAMES):
        imitation_of(game, tokenizer)  # which raises for a word that the tokenizer lacks


@pytest.mark.clients
@pytest.mark.kafka
@pytest.mark.clickhouse
@pytest.mark.vllm
async def test_a_step_is_trained_on_the_shipped_game(tmp_path: Path) -> None:
    """Games through the gateway, live, become groups, the groups a step, and its weights are served."""
    python = str(programs_of(VERIFIERS) / "python")
    games = played(python, word_lists(tmp_path / "script").training, HELD_OUT_GAMES + 320)
    make_base_model(recipe(games), tmp_path / "model", steps=40)
    plan = DemoPlan(steps=1, group_size=4, groups_per_step=2, concurrency=8)
    lesson = hangman(plan, tmp_path, tmp_path / "model")
    settings = settings_of(plan, tmp_path / "data", lesson).model_copy(update={"cache": CACHE})
    fresh_folder(settings.data)
    async with running_stack(settings) as stack, watch_run(stack.addresses["kafka"], settings.run) as watch:
        await watch.until(lambda records: records.served >= 0, what="version 0", timeout_s=STEP_S)
        tally = await trained(stack, python, lesson, plan, watch)
        ledger = await at_rest(stack.addresses["kafka"])
        exactness = await exactness_of(stack)
    assert watch.records.served == 1
    assert ledger["adds_up"]
    trained_games = [name for group in watch.records.steps[1].groups for name in group.trajectory_ids]
    assert len(trained_games) == 8
    assert len({watch.records.rewards[name].total for name in trained_games}) > 1
    assert not tally.failures
    assert exactness.calls > exactness.continuing > len(trained_games)
    assert (exactness.retokenised, exactness.unknown_prefixes) == (0, 0)
    assert exactness.calls - exactness.continuing == ledger["started"], "each game is one conversation"
