"""The losses by name. A new one is a file beside these and a line here."""

from collections.abc import Mapping

from headrace.trainer.losses.cispo import cispo
from headrace.trainer.losses.dr_grpo import dr_grpo
from headrace.trainer.losses.settings import Loss

LOSSES: Mapping[str, Loss] = {"cispo": cispo, "dr_grpo": dr_grpo}


def loss_named(name: str) -> Loss:
    """The loss called ``name``; raises ``ValueError`` that lists the known ones."""
    if name not in LOSSES:
        raise ValueError(f"loss {name!r} is not known: choose one of {', '.join(sorted(LOSSES))}")
    return LOSSES[name]
