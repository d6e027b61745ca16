"""A judge: a model that scores a trajectory by rubrics, as a frozen value. The I/O layer calls it.

    HELPFUL = Judge("helpful", (Rubric("task", "The user's task is done."), Rubric("tone", "…")), model="qwen3-8b")

Several rubrics ask one question in several wordings: their mean has less variance than each, and their spread is
recorded as ``disagreement``.
"""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Rubric:
    """One wording of the question."""

    name: str
    """Name of its score in the component's details."""
    text: str
    """Description of which attempt earns which score."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The scores that a judge may give. In the reward they are mapped to [0, 1]."""

    lowest: float = 1
    """Worst score."""
    highest: float = 5
    """Best score."""
    whole: bool = True
    """Whether only whole numbers are allowed."""

    def __post_init__(self) -> None:
        if not self.lowest < self.highest:
            raise ValueError(f"a scale from {self.lowest} to {self.highest} has no room for a difference")
        if self.whole and not (float(self.lowest).is_integer() and float(self.highest).is_integer()):
            raise ValueError(f"a scale of whole numbers cannot go from {self.lowest} to {self.highest}")

    def share(self, score: float) -> float:
        """Returns ``score`` as a share of the scale, in [0, 1]."""
        return (score - self.lowest) / (self.highest - self.lowest)


ONE_TO_FIVE = Scale()
UNIT = Scale(0, 1, whole=False)


class Endpoint(StrEnum):
    """The OpenAI endpoint to call."""

    CHAT = "/v1/chat/completions"
    """Models with a chat template."""
    COMPLETIONS = "/v1/completions"
    """Base models: the prompt is sent unchanged."""


class Reply(StrEnum):
    """The form of an answer, enforced by the server if it supports structured output."""

    OBJECT = "object"
    """``{"score": 4}``: supported by OpenAI's structured output."""
    REASONED = "reasoned"
    """``{"reason": "…", "score": 4}``: better scores for more tokens. The reason is not stored."""
    NUMBER = "number"
    """``4``: cheapest; servers such as vLLM can enforce it."""


class Combination(StrEnum):
    """How the shares of several rubrics are combined."""

    MEAN = "mean"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class Judge:
    """A judge's model, rubrics and limits."""

    name: str
    """Name in logs."""
    rubrics: tuple[Rubric, ...]
    """Rubrics; each is asked as one question."""
    model: str
    """Name of the model at the endpoint."""
    scale: Scale = ONE_TO_FIVE
    """Possible scores."""
    combination: Combination = Combination.MEAN
    """How several rubrics are combined."""
    reply: Reply = Reply.OBJECT
    """Form of an answer."""
    endpoint: Endpoint = Endpoint.CHAT
    """Endpoint to call."""
    temperature: float = 0.0
    """Sampling temperature; 0 is the most reproducible, though not fully deterministic."""
    max_tokens: int = 512
    """Longest answer, in tokens."""
    max_chars: int = 24_000
    """Longest account of the trajectory in a question, in characters; the middle of a longer one is left out."""
    timeout_s: float = 30.0
    """Timeout of one call, in seconds."""
    attempts: int = 3
    """Most calls per question if the endpoint is busy or fails."""

    def __post_init__(self) -> None:
        names = [rubric.name for rubric in self.rubrics]
        if not names or len(set(names)) < len(names) or DISAGREEMENT in names:
            raise ValueError(
                f"judge {self.name!r}: rubrics need different names, and {DISAGREEMENT!r} is taken: {names}"
            )
        if min(self.max_tokens, self.max_chars, self.attempts) < 1 or self.timeout_s <= 0 or self.temperature < 0:
            raise ValueError(
                f"judge {self.name!r}: max_tokens, max_chars and attempts start at 1, timeout_s must be above 0 and "
                "temperature not below it"
            )


DISAGREEMENT = "disagreement"
"""Highest minus lowest share over the rubrics, in [0, 1]; recorded in the details with the rubrics' scores."""
