"""The losses by name. A new loss is a file in this folder and a line here."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from headrace.trainer.losses.cispo import CISPO
from headrace.trainer.losses.dapo import DAPO
from headrace.trainer.losses.decoupled import DECOUPLED
from headrace.trainer.losses.dr_grpo import DR_GRPO
from headrace.trainer.losses.grpo import GRPO
from headrace.trainer.losses.gspo import GSPO
from headrace.trainer.losses.kimi import KIMI
from headrace.trainer.losses.loss import Loss
from headrace.trainer.losses.settings import CorrectionSettings, Importance, LossSettings

LOSSES: Mapping[str, Loss] = {
    "grpo": GRPO,
    "dr_grpo": DR_GRPO,
    "dapo": DAPO,
    "gspo": GSPO,
    "cispo": CISPO,
    "kimi": KIMI,
    "decoupled": DECOUPLED,
}

_PUBLISHED, _UNCORRECTED = LossSettings(), CorrectionSettings()


def loss_named(
    name: str,
    settings: LossSettings = _PUBLISHED,
    correction: CorrectionSettings = _UNCORRECTED,
) -> Loss:
    """Returns the loss ``name`` with ``settings``; with an importance correction its ratio is relative to π_prox.

    Raises ``ValueError`` for an unknown name, a setting that the loss does not have, and an importance correction of a
    loss that has its own.
    """
    if name not in LOSSES:
        raise ValueError(f"loss {name!r} is not known: choose one of {', '.join(sorted(LOSSES))}")
    loss, bounds = LOSSES[name], settings.bounds()
    known = [bound for bound in inspect.signature(loss.objective).parameters if bound != "tokens"]
    for bound in bounds:
        if bound not in known:
            raise ValueError(f"{bound} is not a setting of the loss {name}: it has {', '.join(known)}")
    weighed = correction.importance != Importance.NONE
    if weighed and loss.proximal:
        raise ValueError(
            f"importance is {correction.importance} and the loss {name} has its own correction: choose importance "
            "none, or another loss, such as dapo"
        )
    return replace(
        loss,
        objective=partial(loss.objective, **bounds),
        normaliser=settings.normaliser or loss.normaliser,
        advantage_scale=settings.advantage_scale or loss.advantage_scale,
        proximal=loss.proximal or weighed,
    )
