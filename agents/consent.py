"""What may be recorded of a trajectory: consent, and sampling by the hash of its id.

The decision is a function of the settings and the id, so that every process decides alike, and all events of a
trajectory are recorded or none. Children follow their parent. The id of a trajectory that is not recorded begins with
``UNRECORDED``, so that its children and its feedback are recognised in any process.
"""

import hashlib
from enum import StrEnum
from typing import Final

_STEPS = 2**64

UNRECORDED: Final = "unrecorded-"
"""Beginning of the id of a trajectory that is not recorded."""


class Consent(StrEnum):
    """What may be done with a trajectory."""

    TRAIN = "train"
    """It is recorded and may be trained on."""
    ANALYSE = "analyse"
    """It is recorded, scored and shown, and never trained on."""
    UNRECORDED = "unrecorded"
    """Nothing of it is recorded."""


def consent_of(value: object) -> Consent | None:
    """Return a :class:`Consent` given as itself or its text; ``True`` means ``TRAIN``, ``False`` means ``ANALYSE``;
    ``None`` for anything else."""
    if type(value) is bool:
        return Consent.TRAIN if value else Consent.ANALYSE
    if type(value) is Consent:
        return value
    return Consent(value) if type(value) is str and value in _TEXTS else None


_TEXTS = frozenset(map(str, Consent))


def is_recorded(
    consent: Consent, trajectory_id: str, *, parent_id: str | None, tenant: str | None, sample_rate: float
) -> bool:
    """Return whether a trajectory is recorded. ``parent_id``: trajectory of which it is a part, which it follows."""
    if consent is Consent.UNRECORDED:
        return False
    if parent_id is not None:
        return not parent_id.startswith(UNRECORDED)
    return not 0 < sample_rate < 1 or is_sampled(tenant or "", trajectory_id, sample_rate)


def is_sampled(tenant: str, name: str, sample_rate: float) -> bool:
    """Return whether a trajectory or session of a tenant is among the ``sample_rate`` that is recorded.

    Those that are recorded at one rate are recorded at every higher rate.
    """
    hashed = f"{len(tenant)}:{tenant}{name}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(hashed).digest()[:8], "big") < sample_rate * _STEPS
