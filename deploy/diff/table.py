"""Formats a comparison as text for a terminal."""

from collections.abc import Iterable, Mapping, Sequence

from headrace.streams.diff.diff import ABSENT, Diff, DiffRow, Moves, Spread
from headrace.streams.diff.side import TRAINED

_SIGNS = ("+", "0", "−", ABSENT)
_LABEL, _COUNT = 34, 12


def table(found: Diff) -> list[str]:
    """Returns the comparison as lines, the most important ones first."""
    if not found.compared:
        return [f"{found.before} and {found.after} have no trajectory in common."]
    lines = [
        f"{found.before} ({', '.join(found.specs[0])}) → {found.after} ({', '.join(found.specs[1])})",
        f"{found.compared:,} trajectories compared" + _only(found),
    ]
    if found.is_empty:
        return [*lines, "Nothing would have changed."]
    for section in (_rewards(found), _pairs(found), _signs(found.signs), _groups(found), _fates(found), _movers(found)):
        if section:
            lines += ["", *section]
    return lines


def breakdown(by: str, rows: Sequence[DiffRow], limit: int = 30) -> list[str]:
    """Returns the first ``limit`` rows of the comparison by task, agent or version."""
    width = max([len(by), *(len(row.key) for row in rows[:limit])])
    heads = ("compared", "mean before", "after", "change", "flips", "trained", "after")
    lines = [f"{by:<{width}}" + "".join(f"{head:>13}" for head in heads)]
    for row in rows[:limit]:
        change = None if row.mean_before is None or row.mean_after is None else row.mean_after - row.mean_before
        cells = (
            f"{row.compared:,}", _number(row.mean_before), _number(row.mean_after), _signed(change),
            f"{row.flips:,}", f"{row.trained_before:,}", f"{row.trained_after:,}",
        )  # fmt: skip
        lines.append(f"{row.key:<{width}}" + "".join(f"{cell:>13}" for cell in cells))
    return [*lines, f"and {len(rows) - limit:,} more"] if len(rows) > limit else lines


def _only(found: Diff) -> str:
    apart = [(found.only_before, found.before), (found.only_after, found.after)]
    return "".join(f"; {count:,} only in {name}" for count, name in apart if count)


def _rewards(found: Diff) -> list[str]:
    heads = ("count", "mean", "sd", "min", "10 %", "median", "90 %", "max")
    lines = [f"{'Rewards':<10}" + "".join(f"{head:>10}" for head in heads)]
    for name, spread in (("before", found.rewards[0]), ("after", found.rewards[1]), ("change", found.change)):
        if spread is not None:
            lines.append(f"  {name:<8}" + "".join(f"{cell:>10}" for cell in _cells(spread)))
    share = f"{100 * found.changed / found.change.count:.0f} %" if found.change else "none"
    ranks = f"ρ {_number(found.spearman)}, τ {_number(found.kendall)}"
    lines.append(f"  {found.changed:,} changed ({share}); rank correlation {ranks}")
    return lines + _moved(found.labels, skip_same=True)


def _cells(spread: Spread) -> Iterable[str]:
    return (f"{spread.count:,}", _number(spread.mean), _number(spread.sd), *map(_number, spread.quantiles))


def _pairs(found: Diff) -> list[str]:
    words = {
        ("<", "<"): "in the same order",
        ("=", "="): "tied as before",
        ("<", ">"): "in reverse order",
        ("<", "="): "tied now",
        ("=", "<"): "no longer tied",
    }
    if not found.pairs:
        return []
    return ["Pairs of attempts in one group", *(_row(text, found.pairs.get(pair, 0)) for pair, text in words.items())]


def _signs(signs: Moves) -> list[str]:
    lines = [
        f"{'Signs of advantages: before ↓ after →':<{_LABEL + 2}}"
        + "".join(f"{_sign(sign):>{_COUNT}}" for sign in _SIGNS)
    ]
    for was in _SIGNS:
        counts = [signs.get((was, now), 0) for now in _SIGNS]
        if any(counts):
            lines.append(f"  {_sign(was):<{_LABEL}}" + "".join(f"{count or '·':>{_COUNT}}" for count in counts))
    flips = signs.get(("+", "−"), 0) + signs.get(("−", "+"), 0)
    return [*lines, f"  {flips:,} trajectories would have an advantage of the opposite sign"]


def _sign(sign: str) -> str:
    return "not trained" if sign == ABSENT else sign


def _groups(found: Diff) -> list[str]:
    stay = found.groups.get(("trained", "trained"), 0)
    lines = ["Groups that carry a gradient", _row("stay", stay), _row("enter", sum(found.entering.values()))]
    lines += [_row(f"  were {_words(reason)}", count) for reason, count in found.entering.items()]
    lines.append(_row("leave", sum(found.leaving.values())))
    lines += [_row(f"  are {_words(reason)}", count) for reason, count in found.leaving.items()]
    others = {move: count for move, count in found.groups.items() if TRAINED not in move}
    moved = _moved(others, skip_same=True)
    return [*lines, "Groups without a gradient, before and after", *moved] if moved else lines


def _fates(found: Diff) -> list[str]:
    moved = _moved(found.fates, skip_same=True)
    return ["Fates of trajectories that change", *moved] if moved else []


def _movers(found: Diff) -> list[str]:
    if not found.movers:
        return []
    lines = ["Largest changes"]
    for mover in found.movers:
        fates = " → ".join(map(_words, dict.fromkeys(mover.fates)))
        figures = f"{_number(mover.before):>8} → {_number(mover.after):>8} {_signed(mover.change):>9}"
        lines.append(f"  {mover.trajectory_id:<40}{figures}  {fates}")
    return lines


def _moved(moves: Mapping[tuple[str, str], int], *, skip_same: bool) -> list[str]:
    return [
        _row(f"{_words(was)} → {_words(now)}", count)
        for (was, now), count in moves.items()
        if not (skip_same and was == now)
    ]


def _row(label: str, count: int) -> str:
    return f"  {label:<{_LABEL + 24}}{count:>{_COUNT},}"


def _words(reason: str) -> str:
    return reason.replace("_", " ")


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.3f}".replace("-", "−")


def _signed(value: float | None) -> str:
    return "—" if value is None else f"{value:+.3f}".replace("-", "−")
