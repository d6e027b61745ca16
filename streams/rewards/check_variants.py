"""Variants of a recorded trajectory that are rare in recorded runs but occur in live traffic."""

from collections.abc import Iterator

from headrace.schemas.records.trajectory import Trajectory


def variants(trajectory: Trajectory) -> Iterator[tuple[str, Trajectory]]:
    """Yields variants of ``trajectory``, each with a description of the difference."""

    def other(**fields: object) -> Trajectory:
        return trajectory.model_copy(update=fields, deep=True)

    yield "without an answer", other(answer=None)
    yield "with an answer of another shape", other(answer=[{"unexpected": 1}])
    yield "without turns", other(turns=[], tools={}, sampled_tokens=0)
    yield "without token ids", other(segments=[], sampled_tokens=0)
    yield "without an outcome", other(outcome=None)
    silent = [
        turn.model_copy(
            update={
                "messages": None,
                "tools": [
                    use.model_copy(update={"status": None, "result": None, "latency_s": None}) for use in turn.tools
                ],
            }
        )
        for turn in trajectory.turns
    ]
    yield "with hidden messages and tools that never returned", other(turns=silent)
