"""A reference system as one value: what `headrace demo SYSTEM` runs, and how `headrace base-model SYSTEM` makes its
model.

    System("search", SEARCH_TASKS, in_this_process, base=…/agents/search/base, plan={"learning_rate": 8e-4})
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from headrace.agents.rollouts.attempts import Attempts
from headrace.agents.rollouts.config import RolloutConfig
from headrace.agents.rollouts.tasks import TaskSource
from headrace.schemas.records.reward import Reward

RunningAttempts: TypeAlias = AbstractAsyncContextManager[Attempts[Any], bool | None]
"""Makes attempts inside its block."""

Options: TypeAlias = Mapping[str, Mapping[str, object]]
"""Options of the stack's parts, by part and name, as in ``--set PART.NAME``."""


class Demonstration(Protocol):
    """A context to imitate; axis T tokens."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """(T,)"""
        ...

    @property
    def mask(self) -> tuple[int, ...]:
        """(T,) 1 on tokens to imitate, 0 on tokens that were read."""
        ...


@dataclass(frozen=True, slots=True)
class BaseModel:
    """How a system's base model is made: a vocabulary, and scripted episodes with mistakes."""

    vocabulary_size: int
    """Number of tokens."""
    end_id: int
    """Token that ends a turn."""
    pad_id: int
    """Token that fills batches."""
    tokenizer: Callable[[], Mapping[str, Any]]
    """Makes ``tokenizer.json``."""
    tokenizer_config: Callable[[], Mapping[str, Any]]
    """Makes ``tokenizer_config.json``, with the chat template."""
    demonstrations: Callable[[int, int], Iterator[Sequence[Demonstration]]]
    """Makes the episodes of a number of training tasks: from the first number on, that many."""
    held_out_first: int
    """First training task that is never imitated; the held-out loss is measured from there on."""
    episodes: int = 60_000
    """Default number of episodes."""
    steps: int = 2_400
    """Default number of optimiser steps."""
    batch_size: int = 64
    """Sequences per optimiser step."""
    learning_rate: float = 3e-3
    """Peak learning rate."""
    warmup_steps: int = 100
    """Steps over which the learning rate rises to its peak."""
    max_positions: int = 1_024
    """Longest context, in tokens."""
    tied: bool = False
    """Whether the LM head shares the embedding's weights."""
    key_value_heads: int = 1
    """Key-value heads of each layer: 1, or 3 for keys of every head's own."""
    begins_with: Path | None = None
    """Folder of a word-level model whose layers, and rows of shared words, are the initial weights: names need not be
    learnt to be copied again. ``None``: random weights."""


@dataclass(frozen=True, slots=True)
class Program:
    """The system's agent as a program without headrace's code, behind the gateway."""

    attempts: Callable[[str, Path], RunningAttempts]
    """Runs it: address of the gateway, file for what it writes to stderr."""
    encode: Callable[[str], Sequence[int]]
    """The tokens of a text. Raises ``KeyError`` for a text outside the vocabulary."""
    end_id: int
    """Token that ends a turn."""
    requires: str
    """A module that it imports, and the extra of headrace with that name."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What a held-out attempt is worth, where the reward cannot be compared before and after: its weights change."""

    name: str
    """What it is, in a few words."""
    of: Callable[[Reward], float]
    """From 0 to 1."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A variant of a system, to be compared with others at the same seed."""

    about: str
    """What differs, in a sentence."""
    options: Options = field(default_factory=dict)
    """Options of the stack's parts."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the demo's plan."""
    attempts: Callable[[RolloutConfig], RunningAttempts] | None = None
    """Makes attempts with another harness; ``None``: the system's."""


@dataclass(frozen=True, slots=True)
class System:
    """A reference system."""

    name: str
    """Its name, as in ``headrace demo NAME``."""
    about: str
    """What it is, in a few words."""
    tasks: TaskSource[Any]
    """Its tasks."""
    attempts: Callable[[RolloutConfig], RunningAttempts]
    """Makes attempts of its agent in this process, with its harness's limits."""
    agents: tuple[str, ...]
    """Names of its agents in ``trajectory.started``. Their rewards are those of ``streams/rewards/registry.py``, unless
    ``options`` or an arm sets ``workers.rewards``."""
    base: Path
    """Folder of its base model."""
    base_model: BaseModel
    """How that is made."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the demo's plan that differ from its defaults."""
    options: Options = field(default_factory=dict)
    """Further options of the stack's parts, such as the trainer's loss."""
    program: Program | None = None
    """The agent as a program; ``None`` if there is none."""
    has_sandboxes: bool = False
    """Whether its attempts have sandboxes, of which snapshots can be kept."""
    arms: Mapping[str, Arm] = field(default_factory=dict)
    """Its variants, by name."""
    measure: Measure | None = None
    """What held-out attempts are worth; ``None``: their reward, as a share of its maximum."""
    figures: Callable[[Collection[Reward]], Mapping[str, float]] | None = None
    """What the summary shows of the sampled held-out attempts before and after training, besides their rewards."""


def merged(*options: Options) -> dict[str, dict[str, object]]:
    """Return the options of all; a later value replaces an earlier one."""
    every: dict[str, dict[str, object]] = {}
    for each in options:
        for part, values in each.items():
            every[part] = {**every.get(part, {}), **values}
    return every


def component_means(rewards: Collection[Reward]) -> dict[str, float]:
    """Return the mean value of each reward component, before weighting, over the rewards that have it."""
    names = sorted({name for reward in rewards for name in reward.components})
    found = {name: [r.components[name].value for r in rewards if name in r.components] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}
