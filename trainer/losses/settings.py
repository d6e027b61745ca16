"""Settings of the losses, of the corrections for stale and mismatched tokens, and of the KL penalty.

Plain values, without torch. Which of them a loss knows, and what it was published with, stands in the loss's own file.
"""

from dataclasses import asdict, dataclass
from enum import StrEnum


class Normaliser(StrEnum):
    """What the sum of the tokens' objectives is divided by."""

    CONSTANT_LENGTH = "constant_length"
    """Trajectories × ``constant_length``: a token weighs the same in a long and in a short answer (Dr. GRPO)."""
    TOKEN_MEAN = "token_mean"
    """Tokens (DAPO)."""
    SEQUENCE_MEAN = "sequence_mean"
    """Each trajectory's by its tokens, then all by the trajectories (GRPO)."""


class AdvantageScale(StrEnum):
    """What advantages are divided by before anything else."""

    NONE = "none"
    """Nothing: r − baseline, as the group's record says."""
    GROUP_STD = "group_std"
    """The standard deviation of the group's rewards (GRPO)."""


@dataclass(frozen=True, slots=True)
class LossSettings:
    """What may differ from what the loss was published with; a setting that the loss does not know is refused."""

    clip_low: float | None = None
    """ε below 1 of losses that clip the ratio."""
    clip_high: float | None = None
    """ε above 1 of losses that clip the ratio."""
    dual_clip: float | None = None
    """c of grpo, dr_grpo and dapo: cap of the ratio of tokens with a negative advantage, which their clip leaves
    without one; 3 is usual. One token that the engine recorded far too low can outweigh a batch otherwise."""
    ratio_max: float | None = None
    """ε_max of cispo: cap of the ratio."""
    log_ratio_min: float | None = None
    """α of kimi: a token whose log-ratio is below it has no gradient."""
    log_ratio_max: float | None = None
    """β of kimi: a token whose log-ratio is above it has no gradient."""
    log_ratio_penalty: float | None = None
    """τ of kimi: weight of the squared log-ratio."""
    normaliser: Normaliser | None = None
    """What the sum over tokens is divided by; any loss takes any."""
    advantage_scale: AdvantageScale | None = None
    """What advantages are divided by; any loss takes any."""

    def __post_init__(self) -> None:
        _one_of(Normaliser, "normaliser", self.normaliser)
        _one_of(AdvantageScale, "advantage_scale", self.advantage_scale)
        for name, value in self.bounds().items():
            if not (value <= 0 if name == "log_ratio_min" else value >= 0):
                raise ValueError(f"{name} is {value}: it must be {'at most' if name.endswith('min') else 'at least'} 0")
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ValueError(f"dual_clip is {self.dual_clip}: it must be above 1, or it silences what did not move")
        if self.clip_low is not None and self.clip_low > 1:
            raise ValueError(f"clip_low is {self.clip_low}: it must be at most 1, or no ratio is below the clip")

    def bounds(self) -> dict[str, float]:
        """The bounds that are set, by name."""
        others = ("normaliser", "advantage_scale")
        return {name: value for name, value in asdict(self).items() if value is not None and name not in others}


class Importance(StrEnum):
    """How tokens are weighed for the way from the policy that sampled to the one before the step."""

    NONE = "none"
    """Not at all: the loss's own ratio reaches back to the policy that sampled."""
    TRUNCATE = "truncate"
    """By min(w, C): bounded variance, some bias."""
    MASK = "mask"
    """By w inside the bounds; outside them the token is masked."""


class Level(StrEnum):
    """Of what the ratio w is, for a token."""

    TOKEN = "token"
    """Of the token."""
    GEOMETRIC_MEAN = "geometric_mean"
    """Of its trajectory, the geometric mean over tokens."""
    PRODUCT = "product"
    """Of its trajectory, the product over tokens: unbiased, and soon 0 or huge."""


@dataclass(frozen=True, slots=True)
class CorrectionSettings:
    """Corrections for tokens that another policy sampled. They go with any loss, except the importance with decoupled.

    With an importance correction the loss's own ratio is measured against the policy before the step, π_prox, and the
    correction weighs the rest of the way, w = π_prox / π_b; this costs one more forward pass a step.
    """

    importance: Importance = Importance.NONE
    """What is done with w."""
    level: Level = Level.TOKEN
    """Of what the ratio is."""
    ratio_min: float | None = None
    """Least w that ``mask`` keeps; unset: 0.5."""
    ratio_max: float | None = None
    """C of ``truncate``, greatest w that ``mask`` keeps; unset: 2."""
    max_token_staleness: int | None = None
    """Tokens sampled more versions ago are masked; unset: none is. The trajectory's fresher tokens are trained.
    ``max_staleness`` of the trainer instead rejects whole trajectories, by their oldest token."""

    def __post_init__(self) -> None:
        _one_of(Importance, "importance", self.importance)
        _one_of(Level, "level", self.level)
        if self.importance == Importance.NONE and (self.ratio_min, self.ratio_max) != (None, None):
            raise ValueError("ratio_min and ratio_max of the correction need an importance: choose truncate or mask")
        if self.importance == Importance.NONE and self.level != Level.TOKEN:
            raise ValueError(f"level is {self.level} without an importance: choose truncate or mask")
        if self.importance == Importance.TRUNCATE and self.ratio_min is not None:
            raise ValueError("ratio_min is for the importance mask: truncate has no lower bound")
        if not 0 <= self.least < self.greatest:
            raise ValueError(
                f"ratio_min is {self.least} and ratio_max {self.greatest}: take 0 <= ratio_min < ratio_max"
            )
        if self.max_token_staleness is not None and self.max_token_staleness < 0:
            raise ValueError("max_token_staleness must not be negative")

    @property
    def least(self) -> float:
        """Least w that is kept."""
        default = 0.5 if self.importance == Importance.MASK else 0.0
        return default if self.ratio_min is None else self.ratio_min

    @property
    def greatest(self) -> float:
        """Greatest w that is kept, or C."""
        return 2.0 if self.ratio_max is None else self.ratio_max


class KlReference(StrEnum):
    """The policy to stay near."""

    BASE = "base"
    """Version 0: a frozen copy of the model in memory, and one more forward pass."""
    BEHAVIOUR = "behaviour"
    """The policy that sampled: costs nothing, and lets the policy wander off slowly."""


@dataclass(frozen=True, slots=True)
class KlSettings:
    """The KL penalty: β k1 is taken from each token's advantage (``kl.py``)."""

    coefficient: float = 0.0
    """β; 0: no penalty."""
    reference: KlReference = KlReference.BASE
    """What the policy is compared with."""

    def __post_init__(self) -> None:
        _one_of(KlReference, "reference", self.reference)
        if not 0 <= self.coefficient < float("inf"):
            raise ValueError(f"coefficient of kl is {self.coefficient}: it must be at least 0")
        if not self.coefficient and self.reference != KlReference.BASE:
            raise ValueError(f"kl has the reference {self.reference} and no coefficient: set one above 0")

    @property
    def needs_base(self) -> bool:
        """Whether a frozen copy of the base model is needed."""
        return self.coefficient > 0 and self.reference == KlReference.BASE


def _one_of(values: type[StrEnum], name: str, value: str | None) -> None:
    if value is not None and value not in list(values):
        raise ValueError(f"{name} is {value!r}: choose one of {', '.join(values)}")
