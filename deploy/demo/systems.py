"""The systems that ``headrace demo`` and ``headrace base-model`` offer, by name.

To add one: a module next to this one with its :class:`System`, and a ``case`` and a name here.
"""

from typing import TYPE_CHECKING

from headrace.deploy.errors import StackError

if TYPE_CHECKING:
    from headrace.deploy.demo.system import System

NAMES = ("quick", "search", "coder", "swarm")
"""Names of the systems; the first is the default."""


def system_named(name: str) -> "System":
    """Return a system; its modules are imported only now, so that ``--help`` is fast. Raises :class:`StackError`."""
    match name:
        case "quick":
            from headrace.deploy.demo.quick_system import QUICK

            return QUICK
        case "search":
            from headrace.deploy.demo.search_system import SEARCH

            return SEARCH
        case "coder":
            from headrace.deploy.demo.coder_system import CODER

            return CODER
        case "swarm":
            from headrace.deploy.demo.swarm_system import SWARM

            return SWARM
        case _:
            raise StackError(f"there is no system {name!r}: expected one of {', '.join(NAMES)}")
