"""Chooses the run if none is specified."""

from headrace.deploy.errors import StackError
from headrace.trainer.provenance.log_reader import LogReader
from headrace.trainer.provenance.steps import runs_in


async def chosen_run(log: LogReader, named: str | None) -> str:
    """Returns ``named``, or the only run in the log.

    Raises :class:`StackError` if the log has no such run, no run at all, or several runs to choose from.
    """
    known = await runs_in(log)
    if not known:
        raise StackError("The log has no training run: nothing was trained with this broker.")
    if named is None and len(known) == 1:
        return known[0]
    some = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
    if named is None:
        raise StackError(f"The log has several runs, choose one with --run: {some}.")
    if named not in known:
        raise StackError(f"The log has no run {named!r}; its runs are: {some}.")
    return named
