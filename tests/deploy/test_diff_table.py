"""A comparison as text: it contains the changes, and only these."""

from headrace.deploy.diff.table import breakdown, table
from headrace.streams.diff.diff import DiffRow, diff
from headrace.streams.diff.side import TRAINED, Attempt, DiffSide


def side(name: str, *attempts: tuple[float | None, str, float | None]) -> DiffSide:
    """(reward, fate, advantage) of ``t0``, ``t1`` …, two a group."""
    made = DiffSide(name)
    for number, (total, fate, advantage) in enumerate(attempts):
        unscored = "no_outcome" if total is None else None
        group = f"g{number // 2}"
        made.attempts[f"t{number}"] = Attempt(
            group=group, spec=f"{name}@1", total=total, unscored=unscored, fate=fate, advantage=advantage
        )
    return made


FLAT = "zero_variance_all_fail"
BEFORE = side("live", (1.0, TRAINED, 0.5), (0.0, TRAINED, -0.5), (0.0, FLAT, None), (0.0, FLAT, None))
AFTER = side("new", (0.0, TRAINED, -0.5), (1.0, TRAINED, 0.5), (0.25, TRAINED, 0.25), (None, "unscored", None))


def test_every_kind_of_change_has_a_line() -> None:
    text = "\n".join(table(diff(BEFORE, AFTER)))
    for line in (
        "live (live@1) → new (new@1)",
        "4 trajectories compared",
        "3 changed (100 %); rank correlation ρ −0.866, τ −0.816",
        "2 trajectories would have an advantage of the opposite sign",
        "scored → no outcome",
        "were zero variance all fail",
        "zero variance all fail → unscored",
    ):
        assert line in text, f"{line!r} is not in\n{text}"


def test_without_changes_the_table_is_one_sentence() -> None:
    assert table(diff(BEFORE, BEFORE)) == [
        "live (live@1) → live (live@1)",
        "4 trajectories compared",
        "Nothing would have changed.",
    ]


def test_moves_between_reasons_without_a_gradient_are_shown() -> None:
    flat, told_apart = (FLAT, None), ("no_token_ids", None)
    before, after = side("live", (0.0, *flat), (0.0, *flat)), side("new", (0.0, *told_apart), (1.0, *told_apart))
    lines = table(diff(before, after))
    heading = lines.index("Groups without a gradient, before and after")
    assert lines[heading + 1].split() == ["zero", "variance", "all", "fail", "→", "no", "token", "ids", "1"]


def test_sides_without_a_common_trajectory_are_reported() -> None:
    assert table(diff(BEFORE, DiffSide("new"))) == ["live and new have no trajectory in common."]


def test_a_long_breakdown_is_truncated_with_a_note() -> None:
    rows = [DiffRow(f"t{number}", 1, None, 0.5, 0, 0, 1) for number in range(5)]
    lines = breakdown("task", rows, limit=3)
    assert (len(lines), lines[-1]) == (5, "and 2 more")
    assert lines[1].split() == ["t0", "1", "—", "0.500", "—", "0", "0", "1"]
