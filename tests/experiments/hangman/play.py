"""Plays TextArena's Hangman, as verifiers ships it, by a script that knows no words. The environment's own Python runs
this file, with ``NLTK_DATA`` naming the list of words.

python play.py 4400        # games; a line each, of the tasks 0, 1, …
{"messages": [{"role": "system", "content": …}, …, {"role": "assistant", "content": "[E]"}], "reward": 0.25}
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from random import Random
from string import ascii_uppercase
from types import SimpleNamespace
from typing import Any

import verifiers.v1 as vf

REPEATS, MALFORMED, GUESSES_WORD = 0.03, 0.05, 0.01
"""Probabilities, each at its own guess: the last letter again; words that are no guess; the word that the rules give as
their example."""
STRIDE = 6
"""The player begins anywhere in the alphabet and names letters 1 to so many places further each time, A after Z."""
EXAMPLE = "LIGHT"
ENVIRONMENT = {"taskset": {"id": "textarena", "game": "Hangman-v0"}}


class ScriptedPlayer:
    """The side of the policy in one game: as verifiers' agent, its interaction and its trace, as far as the
    environment's ``run`` uses them."""

    def __init__(self, task: vf.Task[Any], rng: Random) -> None:
        self._rng = rng
        self._place = -1
        self.reward = 0.0
        self.info: dict[str, Any] = {}
        self.trace = self
        data = task.data
        self.messages = [{"role": "system", "content": data.system_prompt}, {"role": "user", "content": data.prompt}]

    @asynccontextmanager
    async def interaction(self, task: vf.Task[Any]) -> AsyncIterator["ScriptedPlayer"]:
        """Return the one exchange."""
        yield self

    async def turn(self, message: str | None = None) -> SimpleNamespace:
        """Return the answer to the environment's message; ``None`` stands for the task's prompt."""
        if message is not None:
            self.messages.append({"role": "user", "content": message})
        reply = self._guess()
        self.messages.append({"role": "assistant", "content": reply})
        return SimpleNamespace(terminated=False, last_reply=reply)

    def _guess(self) -> str:
        rng = self._rng
        if rng.random() < GUESSES_WORD:
            return f"[{EXAMPLE}]"
        if self._place < 0:
            self._place = rng.randrange(len(ascii_uppercase))
        elif rng.random() >= REPEATS:
            self._place = (self._place + rng.randint(1, STRIDE)) % len(ascii_uppercase)
        letter = ascii_uppercase[self._place]
        return f"the letter {letter}" if rng.random() < MALFORMED else f"[{letter}]"

    def record_reward(self, name: str, score: float, weight: float) -> None:
        """Take the reward."""
        self.reward += score * weight


async def main(games: int) -> None:
    """Play and write the games."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the environment prints is no line of ours
    env = vf.load_environment(vf.resolve_env_config(ENVIRONMENT))
    for number, task in enumerate(islice(env.taskset.load(), games)):
        player = ScriptedPlayer(task, Random(f"hangman/{number}"))
        await env.run(task, SimpleNamespace(player=player))
        output.write(json.dumps({"messages": player.messages, "reward": player.reward}) + "\n")
    output.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
