"""Derived records: everything that is a fold over facts and can be rebuilt from offsets.

    facts → Trajectory → Reward → TrainingGroup | Rejection → Step → Weights → Applied

Only a ``Trajectory`` holds tokens; later records point at it by ``Reference``, so a training batch is a list of
offsets. Every trajectory ends as a member of a trained group or as a ``Rejection``; what is neither is pending.
"""

from headrace.schemas.bounds import Count, Offset
from headrace.schemas.model import Part


class Reference(Part):
    """Where a record stands in the log. The topic follows from the field's meaning."""

    partition: Count
    """Partition."""
    offset: Offset
    """Offset in the partition."""
