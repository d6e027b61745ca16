"""Functions of the host whose calls are recorded: synchronous, asynchronous, generators, asynchronous generators."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from headrace.agents.raised import type_name
from headrace.agents.streamed import (
    Call,
    ToolRecording,
    TrajectoryRecording,
    record_async_generator,
    record_generator,
)
from headrace.agents.trajectory import Trajectory

P = ParamSpec("P")
R = TypeVar("R")


def record_trajectories(function: Callable[P, R], begin: Callable[[Call], Trajectory], most: int) -> Callable[P, R]:
    """Return ``function``, each call of which is a trajectory that ``begin`` opens.

    It ends with the call. Its answer is what the function returned, or produced as a generator, unless the function
    ended it. ``most``: characters of a stream that are kept.
    """
    body, called = _body(function), cast(Callable[..., Any], function)
    if inspect.isgeneratorfunction(body):
        stream = record_generator(called, lambda call: TrajectoryRecording(begin(call), most))
        return cast(Callable[P, R], stream)
    if inspect.isasyncgenfunction(body):
        return cast(Callable[P, R], record_async_generator(called, lambda call: TrajectoryRecording(begin(call), most)))
    if inspect.iscoroutinefunction(body):

        @functools.wraps(function)
        async def run_async(*arguments: P.args, **keywords: P.kwargs) -> Any:
            with begin((arguments, keywords)) as trajectory:
                result = await called(*arguments, **keywords)
                _end(trajectory, result)
                return result

        return cast(Callable[P, R], run_async)

    @functools.wraps(function)
    def run(*arguments: P.args, **keywords: P.kwargs) -> R:
        with begin((arguments, keywords)) as trajectory:
            result = function(*arguments, **keywords)
            _end(trajectory, result)
            return result

    return run


def record_tool_calls(
    function: Callable[P, R], name: str | None, current: Callable[[], Trajectory], most: int
) -> Callable[P, R]:
    """Return ``function``, each call of which is a call of the tool ``name`` in the ``current`` trajectory.

    ``name`` defaults to the function's. ``most``: characters of a stream that are kept.
    """
    title = name or function_name(function)
    parameters = _positional(function)

    def begin(call: Call) -> ToolRecording:
        return ToolRecording(current().tool(title, _named(parameters, *call)), most)

    body, called = _body(function), cast(Callable[..., Any], function)
    if inspect.isgeneratorfunction(body):
        return cast(Callable[P, R], record_generator(called, begin))
    if inspect.isasyncgenfunction(body):
        return cast(Callable[P, R], record_async_generator(called, begin))
    if inspect.iscoroutinefunction(body):

        @functools.wraps(function)
        async def call_async(*arguments: P.args, **keywords: P.kwargs) -> Any:
            with current().tool(title, _named(parameters, arguments, keywords)) as call:
                call.result = await called(*arguments, **keywords)
            return call.result

        return cast(Callable[P, R], call_async)

    @functools.wraps(function)
    def call_sync(*arguments: P.args, **keywords: P.kwargs) -> R:
        with current().tool(title, _named(parameters, arguments, keywords)) as call:
            result = call.result = function(*arguments, **keywords)
        return result

    return call_sync


def task_of(function: Callable[..., Any], task_id: Callable[..., str] | str | None, call: Call) -> str:
    """Return the task of a call: ``task_id``, what it returns for the call's arguments, or the function's name."""
    if not callable(task_id):
        return task_id or function_name(function)
    arguments, keywords = call
    try:
        return task_id(*arguments, **keywords)
    except Exception as error:  # noqa: BLE001 - a failure to name the task must not fail the host's call
        return f"unnamed ({type_name(type(error))})"


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the class of another callable."""
    try:
        return str(getattr(function, "__name__", type_name(type(function))))
    except Exception:  # noqa: BLE001 - a callable of the host may raise on any access
        return type_name(type(function))


def _body(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that shows how ``function`` runs: of an object that can be called, its ``__call__``."""
    if inspect.isroutine(function) or isinstance(function, functools.partial | type):
        return function
    return cast(Callable[..., Any], getattr(type(function), "__call__", function))  # noqa: B004 - not a test for it


def _end(trajectory: Trajectory, answer: Any) -> None:
    if trajectory.is_open:
        trajectory.end(answer=answer)


def _positional(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of positional arguments; none if the function has no signature, like many functions in C."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters
    except Exception:  # noqa: BLE001 - ValueError if there is none, any error if the host's code computes it
        return ()
    return tuple(name for name, each in parameters.items() if each.kind in kinds)


def _named(parameters: tuple[str, ...], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name, without ``self`` and ``cls``."""
    named = dict(zip(parameters, arguments, strict=False)) | keywords
    if len(arguments) > len(parameters):
        named["*"] = arguments[len(parameters) :]
    if parameters and parameters[0] in ("self", "cls"):
        named.pop(parameters[0], None)
    return named
