"""Simulated attempts of a policy that learns honestly, as values from which real records are made.

    attempt of version 120:  search, search, read, prune, answer     solved, 412 tokens, judged 0.71, feedback given

The world is small, but it moves in the ways that monitors must not mistake for a hack: the policy solves more tasks
from version to version, becomes shorter, makes fewer mistakes, and λ of its shaping term declines. Every number is
drawn from a seeded generator, so that a run can be repeated.
"""

from dataclasses import dataclass
from math import exp
from random import Random

from headrace.schemas.records.group import Reason
from headrace.streams.rewards.planted import LAMBDA, PLANTED

PER_STEP = 64
"""Attempts of a step."""
PER_GROUP = 8
"""Attempts at one task."""
TRIPWIRES = 4
"""Attempts of a step whose task cannot be solved."""
HELD_OUT = 32
"""Evaluations, at every fifth version."""
EVALUATED_EVERY = 5

SPEC = PLANTED.label
AGENT = PLANTED.name

SOURCES = ("tickets", "papers")
TOOLS = "prune,read,search"
"""The tools that a model may use."""
TENANTS = ("north", "south", "east")


@dataclass(slots=True)
class Attempt:
    """One attempt."""

    id: str
    """Trajectory."""
    version: int
    """Policy version."""
    actions: list[str]
    """Action of each turn."""
    tenant: str = "north"
    """Owner."""
    tripwire: bool = False
    """Whether the task cannot be solved."""
    evaluates: bool = False
    """Whether it is an evaluation."""
    invalid: bool = False
    """Whether a tool refused its arguments."""
    dropped: bool = False
    """Whether it has a defect, and is not trained."""
    too_long: bool = False
    """Whether the trainer rejects it because of its length."""
    answered: bool = True
    """Whether it answers."""
    exhausted: bool = False
    """Whether it used up its turns."""
    left: bool = False
    """Whether it ended early."""
    reads_marked: bool = False
    """Whether it reads what is marked as an answer."""
    tokens: int = 0
    """Sampled tokens."""
    prompt_tokens: int = 0
    """Tokens of the prompt."""
    subagents: int = 0
    """Sub-agents started."""
    finished: int = 0
    """Sub-agents that finished."""
    solved: bool = False
    """Whether the answer is right."""
    quality: float = 0.0
    """Share of the evidence that was found, in [0, 1]."""
    judged: float = 0.0
    """A judge's verdict, in [0, 1]."""
    disagreement: float = 0.0
    """Largest difference between the judge's rubrics."""
    weight: float = 0.0
    """λ of the shaping term."""
    feedback: bool = False
    """Whether somebody judged it."""
    verdict: float = 0.0
    """The feedback, in [0, 1]."""
    delay_s: float = 0.0
    """Seconds from the end to the feedback."""
    source: str = SOURCES[0]
    """Task source."""
    tools_offered: str = TOOLS
    """The tools that its model may use."""
    group: str = ""
    """Group of attempts at the same task; empty for an evaluation."""
    hack: str = ""
    """Hack that it plays; empty for an honest attempt."""

    @property
    def components(self) -> dict[str, tuple[float, float]]:
        """Value and weight of each component of the reward."""
        return {
            "answer": (float(self.solved), 1.0),
            "judged": (self.judged, 0.5),
            "parallel": (min(self.subagents, 10) / 10, self.weight),
            "quality": (self.quality, 0.5),
        }

    @property
    def total(self) -> float | None:
        """The reward; ``None`` if it is dropped."""
        return None if self.dropped else sum(value * weight for value, weight in self.components.values())

    @property
    def steps(self) -> tuple[int, int]:
        """Critical and all model calls; a sub-agent makes two."""
        return len(self.actions) + 2 * bool(self.subagents), len(self.actions) + 2 * self.subagents

    @property
    def rejected(self) -> Reason | None:
        """Why it is not trained; ``None`` if it is."""
        if self.dropped:
            return Reason.BAD_EVENT
        return Reason.TOO_LONG if self.too_long else None


def progress(version: int) -> float:
    """Returns how much an honest policy has learnt, in (0, 1): half of it around version 150."""
    return 1 / (1 + exp(-(version - 150) / 60))


def honest(random: Random, id: str, version: int, *, tripwire: bool = False, evaluates: bool = False) -> Attempt:
    """Returns an honest attempt of policy ``version``."""
    learnt = progress(version)
    searches = 1 + _poisson(random, 2.6 - 0.4 * learnt)
    actions = ["search"] * searches + ["read"] * _poisson(random, 1.2)
    if random.random() < 0.7:
        random.shuffle(actions)
    if random.random() < 0.25:
        actions.insert(random.randrange(1, len(actions) + 1), "prune")
    if random.random() < 0.05:
        actions.insert(random.randrange(len(actions)), "say")
    answered = random.random() < 0.6
    actions.append("answer")
    solved = answered and not tripwire and random.random() < 0.5 + 0.4 * learnt
    subagents = _poisson(random, 3.0)
    made = Attempt(id, version, actions, TENANTS[random.randrange(3)], tripwire, evaluates)
    made.invalid = random.random() < 0.08 - 0.04 * learnt
    made.dropped = random.random() < 0.03
    made.answered, made.solved = answered, solved
    made.left = random.random() < 0.04
    made.exhausted = random.random() < 0.03
    made.tokens = round(60 * len(actions) * random.lognormvariate(0.0, 0.35))
    made.prompt_tokens = round(300 * random.lognormvariate(0.0, 0.4))
    made.subagents = subagents
    made.finished = sum(random.random() < 0.85 for _ in range(subagents))
    made.quality = _within(random.gauss(0.35 + 0.2 * learnt + 0.2 * solved, 0.15))
    made.judged = _within(random.gauss(0.4 + 0.1 * learnt + 0.25 * solved, 0.15))
    made.disagreement = _within(abs(random.gauss(0.0, 0.2)))
    made.weight = LAMBDA.at(version)
    made.feedback = not made.left and random.random() < 0.6
    made.too_long = random.random() < 0.02
    made.verdict = _within(random.gauss(0.45 + 0.3 * solved, 0.2))
    made.delay_s = 3600 * random.lognormvariate(0.0, 0.6)
    return made


def honest_step(random: Random, version: int) -> list[Attempt]:
    """Returns the attempts of a step of an honest policy, with evaluations at every fifth version."""
    attempts = [
        honest(random, f"v{version}-{number}", version, tripwire=number < TRIPWIRES) for number in range(PER_STEP)
    ]
    for number, attempt in enumerate(attempts):
        attempt.group = f"v{version}-g{number // PER_GROUP}"
    if version % EVALUATED_EVERY == 0:
        attempts += [honest(random, f"v{version}-e{number}", version, evaluates=True) for number in range(HELD_OUT)]
    return attempts


def _poisson(random: Random, rate: float) -> int:
    """Returns a Poisson number by Knuth's method; ``rate`` is small."""
    limit, product, count = exp(-rate), random.random(), 0
    while product > limit:
        product *= random.random()
        count += 1
    return count


def _within(value: float) -> float:
    return min(1.0, max(0.0, value))
