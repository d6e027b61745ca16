"""References between derived records, which are folds over facts and can be rebuilt from the log.

    facts → Trajectory → Reward → TrainingGroup | Rejection → Step → Weights → Applied

Only a ``Trajectory`` holds an agent's tokens (a ``Reward`` and a ``TrainingGroup`` may hold short hints); later records
point at it by ``Reference``, so a training batch is a list of offsets. Every trajectory becomes a member of a trained
group or gets a ``Rejection``; until then it is pending.
"""

from headrace.schemas.bounds import Count, Offset
from headrace.schemas.model import Part


class Reference(Part):
    """Position of a record in the log. The field that holds the reference determines the topic."""

    partition: Count
    """Partition."""
    offset: Offset
    """Offset in the partition."""
