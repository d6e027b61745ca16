"""Formats the lineage of a version as text for a terminal, and as JSON."""

from collections.abc import Sequence
from typing import Any

from headrace.trainer.provenance.contributions import Contribution, Dimension
from headrace.trainer.provenance.shares import Share, Shares
from headrace.trainer.provenance.version_lineage import StepRow, VersionLineage
from headrace.trainer.provenance.versions import spans

_LABEL = 14


def page(lineage: VersionLineage, top: int) -> list[str]:
    """Returns what the version was trained on, with the ``top`` steps and the ``top`` values of each dimension."""
    total = lineage.shares.total
    lines = [f"Version {lineage.version} of run {lineage.run}", _row("trained from", _ancestors(lineage))]
    if not lineage.steps and not lineage.unexplained:
        lines.append(_row("trained on", "nothing: it is the base model"))
    else:
        groups = sum(row.groups for row in lineage.steps)
        counts = f"{groups:,} groups, {total.trajectories:,} trajectories, {total.tokens:,} tokens"
        lines.append(_row("trained on", f"{counts}, in {_count(len(lineage.steps), 'step')}"))
    lines.append(_row("descendants", _descendants(lineage.descendants)))
    lines += _gaps(lineage)
    if lineage.steps:
        lines += ["", *_shares(lineage, top), "", *_steps(lineage.steps, top)]
    return lines


def as_json(lineage: VersionLineage) -> dict[str, Any]:
    """Returns the same content as JSON data, with all values of all dimensions."""
    return {
        "run": lineage.run,
        "version": lineage.version,
        "ancestry": list(lineage.ancestry),
        "lost_at": lineage.lost_at,
        "unexplained": lineage.unexplained,
        "descendants": list(lineage.descendants),
        "trained_on": {
            "tokens": lineage.shares.total.tokens,
            "trajectories": lineage.shares.total.trajectories,
            "groups": sum(row.groups for row in lineage.steps),
        },
        "shares": _tables(lineage.shares),
        "own_shares": _tables(lineage.own),
        "steps": [
            {
                "step": row.step,
                "version": row.version,
                "groups": row.groups,
                "trajectories": row.trajectories,
                "tokens": row.tokens,
                "reward_mean": row.reward_mean,
                "age_tokens": dict(row.ages),
                "missing": row.missing,
                "data_sha256": row.data_sha256,
            }
            for row in lineage.steps
        ],
        "missing": [
            {"topic": topic, "absence": absence.value, "records": count}
            for (topic, absence), count in lineage.missing.items()
        ],
    }


def member_line(given: Contribution) -> str:
    """Returns a trajectory that was trained on as one line."""
    tokens = "?" if given.tokens is None else f"{given.tokens:,}"
    reward = "?" if given.reward is None else f"{given.reward:g}"
    labels = "  ".join(f"{each.value} {given.labels[each]}" for each in (Dimension.TASK, Dimension.AGENT))
    amount = f"{tokens} tokens  reward {reward}"
    return f"step {given.step:>5}  {given.trajectory_id}  group {given.group_id}  {amount}  {labels}"


def member_json(given: Contribution) -> dict[str, Any]:
    """Returns the same content as JSON data."""
    return {
        "step": given.step,
        "version": given.version,
        "trajectory_id": given.trajectory_id,
        "group_id": given.group_id,
        "tokens": given.tokens,
        "reward": given.reward,
        **{each.value: label for each, label in given.labels.items()},
    }


def _ancestors(lineage: VersionLineage) -> str:
    above = lineage.ancestry[1:]
    if not above and lineage.lost_at is None:
        return "nothing"
    known = f"{above[0]}, whose ancestors are {spans(above[1:])}" if len(above) > 1 else spans(above)
    return known if lineage.lost_at is None else f"{known or 'unknown'}; earlier versions are not in the log"


def _descendants(versions: Sequence[int]) -> str:
    return f"{spans(versions)} ({_count(len(versions), 'version')})" if versions else "none yet"


def _gaps(lineage: VersionLineage) -> list[str]:
    lines = []
    if lineage.lost_at is not None:
        lines.append(f"  The log has no version {lineage.lost_at}: its ancestors are unknown.")
    if lineage.unexplained:
        lines.append(f"  The log has no readable step for versions {spans(lineage.unexplained)}.")
    for (topic, absence), count in sorted(lineage.missing.items()):
        sample = next(each for each in lineage.samples if (each.topic, each.absence) == (topic, absence))
        lines.append(f"  {_count(count, 'record')} of {topic} {absence.value}: {sample.detail}.")
    if lineage.missing:
        lines.append("  Their tokens are counted, because the steps record their number, but their source is unknown.")
    return lines


def _shares(lineage: VersionLineage, top: int) -> list[str]:
    """Returns the shares of tokens as a block of lines per dimension."""
    lines = [f"Shares of the tokens{'in its ancestry':>42}{'in its own step':>19}"]
    own = {each: {row.key: row.share for row in lineage.own.table(each)} for each in Dimension}
    for dimension in Dimension:
        rows = lineage.shares.table(dimension)
        shown = [(_named(dimension, row.key), row, own[dimension].get(row.key, 0.0)) for row in rows[:top]]
        if len(rows) > top:
            rest = rows[top:]
            share, trajectories = sum(row.share for row in rest), sum(row.trajectories for row in rest)
            here = sum(own[dimension].get(row.key, 0.0) for row in rest)
            shown.append((f"{len(rest):,} others", Share("", 0, trajectories, share), here))
        for number, (name, row, here) in enumerate(shown):
            label = "" if number else dimension.value
            counts = f"{_percent(row.share):>9} {row.trajectories:>8,} tr."
            lines.append(f"  {label:<8}{_short(name, 30):<31}{counts}{_percent(here):>19}")
    return lines


def _steps(rows: Sequence[StepRow], top: int) -> list[str]:
    lines = [f"{'step':>6}{'version':>9}{'groups':>8}{'traject.':>10}{'tokens':>10}{'reward':>9}{'missing':>9}  sha256"]
    if len(rows) > top:
        earlier = rows[:-top]
        lines.append(f"  {_count(len(earlier), 'earlier step')}, {sum(row.tokens for row in earlier):,} tokens")
    for row in rows[-top:]:
        reward = "—" if row.reward_mean is None else f"{row.reward_mean:.3f}"
        missing = row.missing or "·"
        lines.append(
            f"{row.step:>6}{row.version:>9}{row.groups:>8,}{row.trajectories:>10,}{row.tokens:>10,}{reward:>9}"
            f"{missing:>9}  {row.data_sha256[:12]}"
        )
    return lines


def _tables(shares: Shares) -> dict[str, list[dict[str, Any]]]:
    return {
        dimension.value: [
            {"key": row.key, "tokens": row.tokens, "trajectories": row.trajectories, "share": row.share}
            for row in shares.table(dimension)
        ]
        for dimension in Dimension
    }


def _named(dimension: Dimension, key: str) -> str:
    if dimension is not Dimension.AGE or not key.isdecimal():
        return key
    return "fresh" if key == "0" else f"{_count(int(key), 'version')} old"


def _percent(share: float) -> str:
    return "·" if not share else f"{100 * share:.1f} %"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _row(label: str, text: str) -> str:
    return f"  {label:<{_LABEL}}{text}"
