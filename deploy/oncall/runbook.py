"""The runbooks: pages in the folder ``runbooks``, one for each kind of alert.

lag.md    # A consumer group is behind
"""

from pathlib import Path

_FOLDER = Path(__file__).with_name("runbooks")


class NoRunbook(LookupError):
    """There is no such runbook; the message says which there are."""


def titles() -> dict[str, str]:
    """Returns the titles of all runbooks by name."""
    return {
        path.stem: path.read_text().partition("\n")[0].removeprefix("# ")
        for path in sorted(_FOLDER.glob("*.md"))
        if path.stem != "README"
    }


def runbook(name: str) -> str:
    """Returns the runbook ``name``. Raises :class:`NoRunbook`."""
    if name not in titles():
        raise NoRunbook(f"no runbook {name!r}: there are {', '.join(titles())}")
    return (_FOLDER / f"{name}.md").read_text()
