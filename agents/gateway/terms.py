"""What is recorded of a session, decided before the first byte of its first answer: consent, sampling, masking.

The decision is a function of the tenant's settings and the session, so that every process, and a process after its
restart, decides alike. It never changes within a session.
"""

from dataclasses import dataclass, replace

from headrace.agents.consent import is_sampled
from headrace.schemas.events import Purpose, Role


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """A tenant's settings."""

    consent: bool = True
    """Whether its sessions may be trained on, unless a session says otherwise."""
    sample_rate: float = 1.0
    """Share of its sessions that is recorded; above 0, at most 1."""
    masked: bool = False
    """Whether token ids, log-probabilities and messages stay out of the log; such sessions cannot be trained."""
    subagent_role: Role = Role.FROZEN
    """Whether the trajectories of sub-agents may be trained; they have no reward of their own by default."""
    unmatched_root_role: Role = Role.FROZEN
    """Whether a conversation may be trained that appears in a session beside its main one: a title, a check."""

    def __post_init__(self) -> None:
        if not 0 < self.sample_rate <= 1:
            raise ValueError(f"sample_rate is {self.sample_rate}: expected more than 0 and at most 1")


@dataclass(frozen=True, slots=True)
class Terms:
    """What is recorded of a session."""

    recorded: bool
    """Whether it is recorded at all."""
    consent: bool
    """Whether it may be trained on."""
    masked: bool
    """Whether its tokens and messages stay out of the log."""
    sample_rate: float
    """Share of the tenant's sessions that is recorded."""
    purpose: Purpose = Purpose.TRAIN
    """Of all its trajectories: an evaluation is never trained on, whatever it starts."""

    @property
    def is_kept_out(self) -> bool:
        """Whether it is never trained on."""
        return not self.consent or self.purpose is Purpose.EVALUATE

    def limited(self, consent: bool, purpose: Purpose) -> "Terms":
        """Return these terms for what continues something with that consent and purpose: it is kept out of training if
        either is."""
        purpose = self.purpose if purpose is Purpose.TRAIN else purpose
        return replace(self, consent=self.consent and consent, purpose=purpose)


def terms_of(
    policy: TenantPolicy,
    tenant: str,
    session_id: str,
    *,
    consent: bool | None = None,
    purpose: Purpose = Purpose.TRAIN,
) -> Terms:
    """Return the terms of a session. ``consent``: what the session itself says; it can only withdraw consent."""
    return Terms(
        recorded=is_sampled(tenant, session_id, policy.sample_rate),
        consent=policy.consent and consent is not False,
        masked=policy.masked,
        sample_rate=policy.sample_rate,
        purpose=purpose,
    )
