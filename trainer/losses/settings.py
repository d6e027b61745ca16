"""Settings of the losses, of the corrections for stale and mismatched tokens, of the KL penalty and of hint
distillation.

Plain values, without torch. The settings of a loss, and their published values, are in the loss's own file.
"""

from dataclasses import asdict, dataclass
from enum import StrEnum


class Normaliser(StrEnum):
    """Divisor of the sum of the tokens' objectives."""

    CONSTANT_LENGTH = "constant_length"
    """Trajectories × ``constant_length``: tokens of long and short answers weigh the same (Dr. GRPO)."""
    TOKEN_MEAN = "token_mean"
    """Number of tokens (DAPO)."""
    SEQUENCE_MEAN = "sequence_mean"
    """Mean over each trajectory's tokens, then over trajectories (GRPO)."""


class AdvantageScale(StrEnum):
    """Divisor of the advantages, applied first (σ of the formula in ``trainer/batches/advantages.py``)."""

    NONE = "none"
    """None: r − baseline, as in the group's record."""
    GROUP_STD = "group_std"
    """The standard deviation of the group's rewards (GRPO)."""


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Changes to the loss as published; a setting that the loss does not have is refused."""

    clip_low: float | None = None
    """Lower ε of losses that clip the ratio to [1 − ε, …]."""
    clip_high: float | None = None
    """Upper ε of losses that clip the ratio to […, 1 + ε]."""
    dual_clip: float | None = None
    """c of grpo, dr_grpo and dapo: upper bound of the ratio of tokens with a negative advantage, which their clip does
    not bound; usually 3. Without it a single token whose recorded log-probability is far too low can outweigh a
    batch."""
    ratio_max: float | None = None
    """ε_max of cispo: cap of the ratio."""
    log_ratio_min: float | None = None
    """α of kimi: a token whose log-ratio is below it has no gradient."""
    log_ratio_max: float | None = None
    """β of kimi: a token whose log-ratio is above it has no gradient."""
    log_ratio_penalty: float | None = None
    """τ of kimi: weight of the squared log-ratio."""
    normaliser: Normaliser | None = None
    """Divisor of the sum over tokens; valid for any loss."""
    advantage_scale: AdvantageScale | None = None
    """Divisor of the advantages; valid for any loss."""

    def __post_init__(self) -> None:
        _one_of(Normaliser, "normaliser", self.normaliser)
        _one_of(AdvantageScale, "advantage_scale", self.advantage_scale)
        for name, value in self.bounds().items():
            if not (value <= 0 if name == "log_ratio_min" else value >= 0):
                raise ValueError(f"{name} is {value}: it must be {'at most' if name.endswith('min') else 'at least'} 0")
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ValueError(f"dual_clip is {self.dual_clip}: it must be above 1, or it clips unchanged tokens")
        if self.clip_low is not None and self.clip_low > 1:
            raise ValueError(f"clip_low is {self.clip_low}: it must be at most 1, because no ratio is below 0")

    def bounds(self) -> dict[str, float]:
        """Returns the bounds that are set, by name."""
        others = ("normaliser", "advantage_scale")
        return {name: value for name, value in asdict(self).items() if value is not None and name not in others}


class Importance(StrEnum):
    """How tokens are weighted by w = π_prox / π_b, from the behaviour policy to the policy before the step."""

    NONE = "none"
    """Not at all: the loss's own ratio is relative to the behaviour policy."""
    TRUNCATE = "truncate"
    """By min(w, C): bounded variance, some bias."""
    MASK = "mask"
    """By w inside the bounds; outside them the token is masked."""


class Level(StrEnum):
    """The level at which a token's ratio w is computed."""

    TOKEN = "token"
    """The token's own ratio."""
    GEOMETRIC_MEAN = "geometric_mean"
    """Geometric mean over the tokens of its trajectory."""
    PRODUCT = "product"
    """Product over the tokens of its trajectory: unbiased, with a large variance."""


@dataclass(frozen=True, slots=True)
class CorrectionSettings:
    """Corrections for off-policy tokens. Valid with any loss, except the importance correction with decoupled.

    With an importance correction the loss's own ratio is relative to the policy before the step, π_prox, and the
    correction applies the weight w = π_prox / π_b; this costs one more forward pass per step.
    """

    importance: Importance = Importance.NONE
    """Use of the weight w: ``none``, ``truncate`` or ``mask``."""
    level: Level = Level.TOKEN
    """Level of the ratio: ``token``, ``geometric_mean`` or ``product``."""
    ratio_min: float | None = None
    """Smallest w that ``mask`` keeps; unset: 0.5."""
    ratio_max: float | None = None
    """C of ``truncate``, largest w that ``mask`` keeps; unset: 2."""
    max_token_staleness: int | None = None
    """Tokens that are more than this many versions old are masked, and the trajectory's fresher tokens are trained;
    unset: none is masked. ``max_staleness`` of the trainer instead rejects whole trajectories, by their oldest
    token."""

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
        """Smallest w that is kept."""
        default = 0.5 if self.importance == Importance.MASK else 0.0
        return default if self.ratio_min is None else self.ratio_min

    @property
    def greatest(self) -> float:
        """Largest w that is kept, or C."""
        return 2.0 if self.ratio_max is None else self.ratio_max


class KlReference(StrEnum):
    """The reference policy of the KL penalty."""

    BASE = "base"
    """Version 0: a frozen copy of the model in memory, and one more forward pass."""
    BEHAVIOUR = "behaviour"
    """The behaviour policy: costs nothing, and allows a slow drift from the base model."""


@dataclass(frozen=True, slots=True)
class KlSettings:
    """The KL penalty: β k1 is subtracted from each token's advantage (``kl.py``)."""

    coefficient: float = 0.0
    """β; 0: no penalty."""
    reference: KlReference = KlReference.BASE
    """The reference policy: ``base`` or ``behaviour``."""

    def __post_init__(self) -> None:
        _one_of(KlReference, "reference", self.reference)
        if not 0 <= self.coefficient < float("inf"):
            raise ValueError(f"coefficient of kl is {self.coefficient}: it must be at least 0")
        if not self.coefficient and self.reference != KlReference.BASE:
            raise ValueError(f"kl has the reference {self.reference} and no coefficient: set a coefficient above 0")

    @property
    def needs_base(self) -> bool:
        """Whether a frozen copy of the base model is needed."""
        return self.coefficient > 0 and self.reference == KlReference.BASE


class HintDirection(StrEnum):
    """The divergence between the teacher (the policy that reads the hint) and the student (the one that does not)."""

    FORWARD = "forward"
    """KL(teacher ‖ student): the student covers everything that the teacher would do."""
    REVERSE = "reverse"
    """KL(student ‖ teacher): the student avoids what the teacher would not do."""


@dataclass(frozen=True, slots=True)
class HintSettings:
    """Hint distillation (Cursor Composer 2.5): at turns with a hint, the divergence between the policy that reads the
    hint and the one that does not is added to the loss (``trainer/learning/hint_passes.py``). Cursor has not published
    its direction, weight or temperature: these defaults are headrace's choice.
    """

    weight: float = 0.0
    """Factor of the divergence, mean over the hinted tokens of an update; 0: no distillation, hints are not read."""
    max_turns: int = 32
    """Most hinted turns of a step, each of which costs more passes over its context; further hints are refused."""
    direction: HintDirection = HintDirection.FORWARD
    """The divergence: ``forward`` or ``reverse``."""
    temperature: float = 1.0
    """Temperature of both distributions."""

    def __post_init__(self) -> None:
        _one_of(HintDirection, "direction", self.direction)
        if not 0 <= self.weight < float("inf"):
            raise ValueError(f"weight of hints is {self.weight}: it must be at least 0")
        if self.max_turns < 1:
            raise ValueError(f"max_turns of hints is {self.max_turns}: it must be at least 1; weight 0 turns hints off")
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature of hints is {self.temperature}: it must be above 0")


def _one_of(values: type[StrEnum], name: str, value: str | None) -> None:
    if value is not None and value not in list(values):
        raise ValueError(f"{name} is {value!r}: choose one of {', '.join(values)}")
