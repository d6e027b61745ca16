"""Which run is meant where none is named."""

from headrace.deploy.errors import StackError
from headrace.trainer.provenance.log_reader import LogReader
from headrace.trainer.provenance.steps import runs_in


async def chosen_run(log: LogReader, named: str | None) -> str:
    """``named``, or the only run that the log knows.

    Raises :class:`StackError` where the log knows no such run, none, or several to choose from.
    """
    known = await runs_in(log)
    if not known:
        raise StackError("The log knows no training run: nothing was trained on this broker.")
    if named is None and len(known) == 1:
        return known[0]
    some = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
    if named is None:
        raise StackError(f"The log knows several runs, choose one with --run: {some}.")
    if named not in known:
        raise StackError(f"The log knows no run {named!r}; it knows: {some}.")
    return named
