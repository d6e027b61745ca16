"""TextArena's Hangman, as verifiers ships it, trains a policy: games of several turns through the gateway, with Kafka,
vLLM and the trainer.

python -m tests.experiments.hangman_learning --python envs/bin/python [--seed 0] [--steps 16] [--json FILE]

The base model imitates a player that goes through the alphabet and skips letters at random
(``tests/experiments/hangman``); it is made once, in four minutes. The reward is the share of the word's letters that is
revealed. Held-out words are in no training task. The harness is
``tests/agents/environments/tasksets/in_process.py``, because the harness ``null`` starts a process for each turn. The
Python has verifiers 0.4.0 installed; how is in ``agents/environments/README.md``.
"""

import asyncio
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from headrace.deploy.commands.base_model import make_base_model
from headrace.deploy.demo.circle import DemoPlan
from tests.experiments.environment_learning import (
    HELD_OUT,
    IN_PROCESS,
    Lesson,
    TaskSet,
    learnt,
    parser_of,
    report,
    training_tasks,
)
from tests.experiments.hangman.base import HELD_OUT_GAMES, IMITATED, played, recipe, word_lists

ENVIRONMENT = {"taskset": {"id": "textarena", "game": "Hangman-v0"}, "player": IN_PROCESS | {"max_turns": 24}}
"""A wrong guess of the whole word costs nothing, so the game itself has no longest length."""
TASKS_PER_SEED = 2_000
"""A task is a seed of the game's random choice of the word, so a word comes in several tasks."""
REPLY_TOKENS = 6
OPTIONS = {"trainer": {"substeps": 4}}
"""Games take longer than training on them, so each is used for all it is worth."""


def hangman(plan: DemoPlan, folder: Path, model: Path) -> Lesson:
    """Write the lists of words into ``folder``, and choose the tasks."""
    words = word_lists(folder)
    return Lesson(
        training=TaskSet(
            ENVIRONMENT,
            {"skip": (plan.seed + 1) * TASKS_PER_SEED, "limit": training_tasks(plan)},
            {"NLTK_DATA": str(words.training)},
        ),
        held_out=TaskSet(ENVIRONMENT, {"limit": HELD_OUT}, {"NLTK_DATA": str(words.held_out)}),
        reply_tokens=REPLY_TOKENS,
        options=OPTIONS,
        model=model,
    )


def base_model(python: str, folder: Path, games: int = IMITATED, steps: int | None = None) -> Path:
    """Return the folder of the base model, which is made if there is none."""
    if not (folder / "config.json").exists():
        with TemporaryDirectory() as lists:
            found = played(python, word_lists(Path(lists)).training, games + HELD_OUT_GAMES)
        print(f"{len(found)} games by the script: mean reward {fmean(game.reward for game in found):.3f}", flush=True)
        make_base_model(recipe(found), folder, steps=steps)
    return folder


def main() -> None:
    """Run it, print the figures, and write them."""
    parser = parser_of(__doc__, ".headrace/hangman-learning", 16)
    parser.add_argument("--model", type=Path, default=Path(".headrace/hangman-model"), help="folder of the base model")
    given = parser.parse_args()
    plan = DemoPlan(seed=given.seed, steps=given.steps, control=given.control)
    model = base_model(given.python, given.model.absolute())
    with TemporaryDirectory() as folder:
        lesson = hangman(plan, Path(folder), model)
        report(asyncio.run(learnt(given.python, plan, given.data.absolute(), lesson)), given.json)


if __name__ == "__main__":
    main()
