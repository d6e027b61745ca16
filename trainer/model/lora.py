"""LoRA (Hu et al. 2021) through peft: small adapters of frozen matrices are trained instead of the matrices.

    W x + (α / r) · B A x          A (r, in) random, B (out, r) zero: version 0 is exactly the base model

Engines load complete weights, so the merged model is published: W + (α / r) · B A, computed from the frozen W each time
(``published``). Adapters are never merged in place and subtracted again, because that would not restore W exactly.

In bfloat16 the published matrix is rounded: an element of B A below half a unit in the last place of W's (1/512 of its
size) is lost or becomes a whole unit. The unmerged model is trained and the rounded one samples, which are two
policies. The trainer therefore requires an importance correction if both settings are used, and ``mismatch_kl``
measures the distance.
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
    """Adapters to train instead of the model's own weights."""

    rank: int = 0
    """r; 0: no adapters, all weights of the model are trained."""
    alpha: float = 32.0
    """α: adapters are scaled by α / r."""
    targets: tuple[str, ...] = (ALL_LINEAR,)
    """Matrices of a layer that get adapters, by the last part of their names: ["q_proj", "v_proj"]; default: all."""

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ValueError(f"lora: rank is {self.rank}: it must be at least 1, or 0 for no adapters")
        if not 0 < self.alpha < float("inf"):
            raise ValueError(f"lora: alpha is {self.alpha}: it must be above 0")
        if not self.targets:
            raise ValueError(f'lora: targets is empty: name matrices, or ["{ALL_LINEAR}"]')


def add_adapters(model: nn.Module, settings: LoraSettings, *, seed: int) -> None:
    """Add adapters to ``model``, in place; only they are trainable afterwards. Their values depend on ``seed`` alone.

    Raises ``ValueError`` if a target names no matrix.
    """
    from peft import LoraConfig, inject_adapter_in_model  # takes seconds, so only if adapters are used

    names = _target_names(model, settings.targets)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        target_modules=names,
        lora_dropout=0.0,  # the importance ratio compares with the behaviour policy, not with a noisy copy
        fan_in_fan_out=_is_transposed(model.get_submodule(names[0])),
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model, _ADAPTER)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()  # for 16-bit weights peft creates 16-bit adapters


class Adapter:
    """The adapter of one matrix, complete on this rank even if the model is sharded."""

    def __init__(self, module: Any) -> None:
        """The adapter of peft's ``module``; all ranks of a sharded model call it."""
        self._module = module
        self._A = whole_tensor(module.lora_A[_ADAPTER].weight.detach())
        self._B = whole_tensor(module.lora_B[_ADAPTER].weight.detach())

    @property
    def weight(self) -> Tensor:
        """The model's current frozen W: complete, and in the type of the pass, while its layer computes."""
        weight: Tensor = self._module.base_layer.weight
        return weight

    @property
    def up(self) -> Tensor:
        """The model's current B."""
        up: Tensor = self._module.lora_B[_ADAPTER].weight
        return up

    def merged(self, weight: Tensor) -> Tensor:
        """Returns the complete ``weight`` + (α / r) · B A, computed in float32, in the type of ``weight``."""
        product = self._B @ self._A
        delta = (product.T if self._module.fan_in_fan_out else product) * self._module.scaling[_ADAPTER]
        merged: Tensor = (weight.float() + delta).to(weight.dtype)
        return merged


def whole_adapters(model: nn.Module) -> list[Adapter]:
    """Returns the adapters of ``model`` or of a part of it, gathered; all ranks of a sharded model call it."""
    return [Adapter(module) for module in _adapted(model)]


def has_adapters(model: nn.Module) -> bool:
    """Whether adapters are trained instead of the model's own weights."""
    return bool(_adapted(model))


def plain_name(name: str) -> str | None:
    """Returns the name of a parameter in the model without adapters; ``None`` for an adapter's parameter."""
    return None if ".lora_" in name else name.replace(".base_layer.", ".")


def _adapted(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "lora_A") and hasattr(module, "base_layer")]


def _target_names(model: nn.Module, targets: tuple[str, ...]) -> list[str]:
    """Returns the full names of the matrices in the decoder layers that match ``targets``."""
    layers = {id(module) for layer in decoder_layers(model) for module in layer.modules()}
    # GPT-2 stores its matrices transposed, in a class of their own.
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
