"""The reward of attempts at environments that others wrote: the environment's own reward, whatever its range.

trajectory.ended.outcome = 1.1, trajectory.ended.answer = {"rewards": {"correct": [1.0, 1.0], "short": [0.5, 0.2]}}
"""

from headrace.streams.rewards.outcome import outcome
from headrace.streams.rewards.spec import RewardSpec

ENVIRONMENT = RewardSpec("environment", 1, (outcome,))
"""``environment@1``: total = outcome, without bounds of its own. The parts are in the trajectory's answer."""
