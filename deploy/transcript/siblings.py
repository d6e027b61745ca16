"""The other attempts of a trajectory's group, for comparison. Pure."""

from headrace.trainer.provenance.evidence import Found
from headrace.trainer.provenance.trace import Trace


def siblings(trace: Trace) -> list[str]:
    """Returns a line per trajectory of each group of ``trace``, the best reward first; its own is marked."""
    lines = []
    for group in trace.groups:
        if not isinstance(group, Found):
            continue
        lines.append(f"Group {group.record.group_id}, baseline {group.record.baseline_value:g}:")
        for member in sorted(group.record.members, key=lambda each: -each.reward):
            mark = "→" if member.trajectory_id == trace.trajectory_id else "-"
            lines.append(
                f"  {mark} {member.trajectory_id}  reward {member.reward:g}  advantage {member.advantage:+.3g}  "
                f"{member.sampled_tokens:,} tokens"
            )
    return lines
