"""The base model of the Hangman experiment: a tokenizer of the words that occur in games, and games to imitate.

    games = played(python, word_lists(folder).training, 4_400)
    make_base_model(recipe(games), out)

The games are those of ``play.py``: the shipped environment's texts, with a script as the player.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.agents.word_tokenizer import WordTokenizer
from headrace.deploy.configuration.settings import base_model_dir
from headrace.deploy.demo.system import BaseModel
from tests.agents.environments.word_list import word_list

PAD, END, AGENT = "<pad>", "<end>", "<assistant>"
ROLES = ("<system>", "<user>", AGENT)
"""What begins a message."""
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<' + message['role'] + '> ' + (message['content'] or '') + ' ' }}"
    f"{{%- if message['role'] == 'assistant' -%}}{{{{ '{END} ' }}}}{{%- endif -%}}"
    "{%- endfor -%}"
    f"{{%- if add_generation_prompt -%}}{{{{ '{AGENT}' }}}}{{%- endif -%}}"
)

WORDS = Path(__file__).with_name("words.txt")
WHOLE_EVERY = 3
"""One game of so many is imitated with the rules as well, which are two thirds of its tokens; all without them."""
HELD_OUT_EVERY = 4
"""One word of so many is held out."""

IMITATED, HELD_OUT_GAMES = 4_000, 400
"""Games to imitate, and others on which the loss is measured."""
STEPS = 500
PLAY_S = 600.0
"""Longest time of playing the games, in seconds."""


@dataclass(frozen=True, slots=True)
class WordLists:
    """Folders for ``NLTK_DATA`` with disjoint lists of words."""

    training: Path
    held_out: Path


def split() -> tuple[list[str], list[str]]:
    """Return the words for training, and those held out."""
    words = WORDS.read_text().split()
    held_out = words[::HELD_OUT_EVERY]
    return [word for word in words if word not in held_out], held_out


def word_lists(folder: Path) -> WordLists:
    """Write both lists into new folders of ``folder``."""
    training, held_out = split()
    return WordLists(word_list(folder / "training-words", training), word_list(folder / "held-out-words", held_out))


@dataclass(frozen=True, slots=True)
class Game:
    """A game that the script played."""

    messages: Sequence[Mapping[str, str]]
    """``role`` and ``content`` of each message; the last one is the player's."""
    reward: float
    """The environment's reward."""


def played(python: str, words: Path, count: int) -> list[Game]:
    """Play ``count`` games with the words of a folder; raises ``CalledProcessError`` with what was said."""
    program = Path(__file__).with_name("play.py")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"NLTK_DATA": str(words)}
    said = subprocess.run(
        (python, "-P", program, str(count)), env=env, capture_output=True, text=True, check=True, timeout=PLAY_S
    )
    return [Game(**json.loads(line)) for line in said.stdout.splitlines()]


def tokenizer_of(games: Sequence[Game]) -> WordTokenizer:
    """Return the tokenizer whose words are those of all messages."""
    words = {word for game in games for message in game.messages for word in message["content"].split()}
    special = (PAD, END, *ROLES)
    return WordTokenizer(
        (*special, *sorted(words)), special, pad=PAD, end=END, owner="Hangman player", chat_template=CHAT_TEMPLATE
    )


@dataclass(frozen=True, slots=True)
class Imitation:
    """A game as a context of the model; axis T tokens."""

    token_ids: tuple[int, ...]
    """(T,)"""
    mask: tuple[int, ...]
    """(T,) 1 on the player's tokens, with the end of its turns."""


def imitation_of(game: Game, tokenizer: WordTokenizer) -> Imitation:
    """Return the game as the chat template renders it."""
    token_ids: list[int] = []
    mask: list[int] = []
    for message in game.messages:
        content = tokenizer.encode(message["content"])
        is_player = message["role"] == "assistant"
        tail = tokenizer.encode(END) if is_player else []
        token_ids += [*tokenizer.encode(f"<{message['role']}>"), *content, *tail]
        mask += [0, *[int(is_player)] * (len(content) + len(tail))]
    return Imitation(tuple(token_ids), tuple(mask))


def without_rules(game: Game) -> Game:
    """Return the game from its first board on."""
    _, rules, *turns = game.messages
    return Game(({**rules, "content": rules["content"].rpartition("Current board:")[2]}, *turns), game.reward)


def recipe(games: Sequence[Game]) -> BaseModel:
    """Return how the base model is made of games: all but the last ``HELD_OUT_GAMES`` are imitated."""
    tokenizer = tokenizer_of(games)
    imitated = len(games) - HELD_OUT_GAMES

    def demonstrations(first: int, count: int) -> Iterator[Sequence[Imitation]]:
        for number, game in enumerate(games[first : first + count]):
            shown = [without_rules(game), *([game] if number % WHOLE_EVERY == 0 else [])]
            yield [imitation_of(each, tokenizer) for each in shown]

    return BaseModel(
        vocabulary_size=len(tokenizer.words),
        end_id=tokenizer.ids[END],
        pad_id=tokenizer.ids[PAD],
        tokenizer=tokenizer.tokenizer_json,
        tokenizer_config=tokenizer.tokenizer_config,
        demonstrations=demonstrations,
        held_out_first=imitated,
        episodes=imitated,
        steps=STEPS,
        warmup_steps=30,
        begins_with=base_model_dir(),
    )
