"""LoRA (Hu et al. 2021) through peft: small adapters beside frozen matrices are trained in place of the matrices.

    W x + (α / r) · B A x          A (r, in) random, B (out, r) zero: version 0 is the base model, to the bit

Engines swap whole weights, so what is published is the merged model: W + (α / r) · B A, computed anew from the frozen W
each time (``published``). Nothing is merged in place and taken out again, which would not give W back.

In bfloat16 the published matrix is rounded, and an element of B A that is below half a unit in the last place of W's
(1/512 of its size) is lost or becomes a whole unit. What is trained is the unmerged model, what samples is the rounded
one: two policies. The trainer therefore asks for a correction by the recorded log-probabilities where both settings
meet, and ``mismatch_kl`` says how far apart they are.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headrace.trainer.model.layers import decoder_layers
from headrace.trainer.model.shards import whole_tensor

ALL_LINEAR = "all-linear"
_ADAPTER = "default"


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """Adapters to train in place of the model's own weights."""

    rank: int = 0
    """r; 0: no adapters, all of the model's weights are trained."""
    alpha: float = 32.0
    """α: adapters count α / r."""
    targets: tuple[str, ...] = (ALL_LINEAR,)
    """Which matrices of a layer have one, by the last part of their names: ["q_proj", "v_proj"]; all of them."""

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ValueError(f"lora: rank is {self.rank}: it must be at least 1, or 0 for no adapters")
        if not 0 < self.alpha < float("inf"):
            raise ValueError(f"lora: alpha is {self.alpha}: it must be above 0")
        if not self.targets:
            raise ValueError(f'lora: targets is empty: name matrices, or ["{ALL_LINEAR}"]')


def add_adapters(model: nn.Module, settings: LoraSettings, *, seed: int) -> None:
    """Give ``model`` its adapters, in place; from now on they alone are trainable. They follow from ``seed`` alone.

    Raises ``ValueError`` where a target names no matrix.
    """
    from peft import LoraConfig, inject_adapter_in_model  # seconds, which only those who use it should wait

    names = _target_names(model, settings.targets)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        target_modules=names,
        lora_dropout=0.0,  # the importance ratio compares with the policy that sampled, not with a noisy copy
        fan_in_fan_out=_is_transposed(model.get_submodule(names[0])),
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model, _ADAPTER)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()  # beside 16-bit weights peft makes 16-bit adapters


class Adapter:
    """The adapter of one matrix, whole on this rank whatever the model's own weights are."""

    def __init__(self, module: Any) -> None:
        """That of peft's ``module``; of a sharded model all ranks call it."""
        self._module = module
        self._A = whole_tensor(module.lora_A[_ADAPTER].weight.detach())
        self._B = whole_tensor(module.lora_B[_ADAPTER].weight.detach())

    @property
    def weight(self) -> Tensor:
        """The frozen W that the model has now: while a layer computes it is whole, and of the type it computes in."""
        weight: Tensor = self._module.base_layer.weight
        return weight

    @property
    def up(self) -> Tensor:
        """The B that the model has now."""
        up: Tensor = self._module.lora_B[_ADAPTER].weight
        return up

    def merged(self, weight: Tensor) -> Tensor:
        """``weight`` + (α / r) · B A, computed in float32, in the type of ``weight``, which is whole."""
        product = self._B @ self._A
        delta = (product.T if self._module.fan_in_fan_out else product) * self._module.scaling[_ADAPTER]
        merged: Tensor = (weight.float() + delta).to(weight.dtype)
        return merged


def whole_adapters(model: nn.Module) -> list[Adapter]:
    """The adapters of ``model`` or of a part of it, gathered; of a sharded model all ranks call it."""
    return [Adapter(module) for module in _adapted(model)]


def has_adapters(model: nn.Module) -> bool:
    """Whether adapters are trained in place of the model's own weights."""
    return bool(_adapted(model))


def plain_name(name: str) -> str | None:
    """The name that a parameter of a model with adapters has in the model without; ``None`` for an adapter's."""
    return None if ".lora_" in name else name.replace(".base_layer.", ".")


def _adapted(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "lora_A") and hasattr(module, "base_layer")]


def _target_names(model: nn.Module, targets: tuple[str, ...]) -> list[str]:
    """Full names of the matrices in the decoder layers that ``targets`` mean."""
    layers = {id(module) for layer in decoder_layers(model) for module in layer.modules()}
    # GPT-2 has its matrices the other way round, in a class of their own.
    matrices = [
        name
        for name, module in model.named_modules()
        if id(module) in layers and (isinstance(module, nn.Linear) or _is_transposed(module))
    ]
    last = {name: name.rpartition(".")[2] for name in matrices}
    if unknown := sorted(set(targets) - set(last.values()) - {ALL_LINEAR}):
        raise ValueError(f"lora: targets {', '.join(unknown)}: the layers have {', '.join(sorted(set(last.values())))}")
    return [name for name in matrices if ALL_LINEAR in targets or last[name] in targets]


def _is_transposed(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D"
