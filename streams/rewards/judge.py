"""A judge: a model that scores a trajectory by rubrics, as a frozen value. Asking it is the shell's work.

    HELPFUL = Judge("helpful", (Rubric("task", "The user's task is done."), Rubric("tone", "…")), model="qwen3-8b")

Several rubrics word one question in several ways: their mean is steadier than any of them, and their spread goes on
record as ``disagreement``.
"""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Rubric:
    """One wording of what is judged."""

    name: str
    """Name of its score in the component's details."""
    text: str
    """What earns which score, in words."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The scores that a judge may give. In the reward they are shares of the scale, in [0, 1]."""

    lowest: float = 1
    """Worst score."""
    highest: float = 5
    """Best score."""
    whole: bool = True
    """Whether only whole numbers count."""

    def __post_init__(self) -> None:
        if not self.lowest < self.highest:
            raise ValueError(f"a scale from {self.lowest} to {self.highest} has no room for a difference")
        if self.whole and not (float(self.lowest).is_integer() and float(self.highest).is_integer()):
            raise ValueError(f"a scale of whole numbers cannot go from {self.lowest} to {self.highest}")

    def share(self, score: float) -> float:
        """``score`` as a share of the scale, in [0, 1]."""
        return (score - self.lowest) / (self.highest - self.lowest)


ONE_TO_FIVE = Scale()
UNIT = Scale(0, 1, whole=False)


class Endpoint(StrEnum):
    """Which of the two OpenAI endpoints is asked."""

    CHAT = "/v1/chat/completions"
    """Models with a chat template."""
    COMPLETIONS = "/v1/completions"
    """Base models: the prompt goes as it is."""


class Reply(StrEnum):
    """The form of an answer. Where the server can, it holds the model to it."""

    OBJECT = "object"
    """``{"score": 4}``: what OpenAI's structured output allows."""
    REASONED = "reasoned"
    """``{"reason": "…", "score": 4}``: better judged, at more tokens. The reason is not kept."""
    NUMBER = "number"
    """``4``: cheapest; servers such as vLLM can hold a model to it."""


class Combination(StrEnum):
    """How the shares of several rubrics become one."""

    MEAN = "mean"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class Judge:
    """Who judges, by which rubrics, and how long it may take."""

    name: str
    """Name in logs."""
    rubrics: tuple[Rubric, ...]
    """One question each."""
    model: str
    """Model, as the endpoint names it."""
    scale: Scale = ONE_TO_FIVE
    """Possible scores."""
    combination: Combination = Combination.MEAN
    """How several rubrics become one value."""
    reply: Reply = Reply.OBJECT
    """Form of an answer."""
    endpoint: Endpoint = Endpoint.CHAT
    """Which endpoint is asked."""
    temperature: float = 0.0
    """Sampling temperature; 0 is the most repeatable, and even that is not always the same."""
    max_tokens: int = 512
    """Longest answer, in tokens."""
    max_chars: int = 24_000
    """Longest account of the trajectory in a question, in characters; the middle of a longer one is left out."""
    timeout_s: float = 30.0
    """Longest wait for one call, in seconds."""
    attempts: int = 3
    """Calls a question, where the endpoint is busy or fails."""

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
"""Highest minus lowest share over the rubrics, in [0, 1]; in the details beside the rubrics' scores."""
