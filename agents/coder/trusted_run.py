"""Runs repositories that the generator or the demonstrator wrote, in this process. Never text of a policy.

run_trusted(repository, {"billing.py": ["charge"]}, (3, 4))  →  {"charge": (23, 30)}
"""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.agents.coder.grading import Outputs, as_output
from headrace.agents.coder.repository import Repository


def run_trusted(repository: Repository, calls: Mapping[str, Sequence[str]], inputs: Sequence[int]) -> Outputs:
    """Return the results of the functions in ``calls`` (file → functions) at each of ``inputs``.

    A file that is no valid Python, or that raises when it is loaded, gives ``None`` for all its functions.
    """
    outputs: dict[str, tuple[int | None, ...]] = {}
    for path, functions in calls.items():
        space: dict[str, Any] = {}
        try:
            exec(compile(repository.text(path), path, "exec"), space)
        except (SyntaxError, NameError, TypeError, SystemExit, ValueError, AttributeError):
            space = {}
        for function in functions:
            outputs[function] = tuple(_called(space.get(function), x) for x in inputs)
    return outputs


def _called(function: Any, x: int) -> int | None:
    try:
        return as_output(function(x))
    except (Exception, SystemExit):  # noqa: BLE001 - a broken function may raise anything: that is its result
        return None
