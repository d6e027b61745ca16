"""Settings of a job of several ranks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParallelSettings:
    """How the ranks that ``torchrun`` starts work together. None of it changes what is learnt."""

    timeout_s: float = 600.0
    """Seconds after which a rank that does not answer counts as lost, and the job ends."""
    reduce_every_pass: bool = True
    """Sum gradients over the ranks after every pass, so that a rank holds only its shard of them. ``False`` sums them
    once per update, which sends less but holds the whole model's gradients on every rank."""
    shard_alone: bool = False
    """Shard the model (FSDP2) even on a single rank, to measure or test on one GPU what several ranks run. It saves no
    memory there."""

    def __post_init__(self) -> None:
        if not 1 <= self.timeout_s < float("inf"):
            raise ValueError(f"timeout_s is {self.timeout_s}: it must be at least 1")
