"""A weight-transfer engine for vLLM: a policy version is a verified safetensors file on the engine's own disk.

Runs inside vLLM's worker process and is driven over HTTP by the follower::

    POST /init_weight_transfer_engine {"init_info": {"root": "/var/cache/headrace"}}
    POST /start_weight_update
    POST /update_weights {"update_info": {"path": "/var/cache/headrace/7/model.safetensors", "sha256": "9f86d0…"}}
    POST /finish_weight_update {"weight_version": "search-3/7"}

A file is verified before the first parameter is changed, so that a refused file leaves the old weights intact. A load
that has begun is always finalised, so that the engine can run and load another version even after a failure. Nothing is
unpickled. This module must not import Kafka or Faust: engines run on other machines than workers.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.config.weight_transfer import WeightTransferConfig

_CHUNK_BYTES = 1024 * 1024


class RefusedWeights(ValueError):
    """A file that must not be loaded: the engine keeps the weights it has."""


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Parameters of the initialisation, sent once."""

    root: str
    """The only folder that weights may be loaded from."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """One complete set of weights."""

    path: str
    """A safetensors file under ``root``, in the checkpoint's names and shapes (Hugging Face)."""
    sha256: str
    """Hash of the file (hex)."""


class SafetensorsWeightTransferEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Loads complete checkpoints from local safetensors files, layer by layer, into the running model."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(
        self,
        config: "WeightTransferConfig",
        vllm_config: "VllmConfig",
        device: torch.device,
        model: torch.nn.Module,
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        self._root: Path | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Set the folder from which weights are loaded; raises ``ValueError`` if it does not exist."""
        root = Path(init_info.root)
        if not root.is_absolute() or not root.is_dir():
            raise ValueError(f"root {init_info.root!r} is not the absolute path of an existing folder")
        self._root = root.resolve()

    def start_weight_update(self) -> None:
        """Do nothing yet: the model is changed only after its file has been verified."""

    def update_weights(self, update_info: dict[str, object]) -> None:
        """Load the file of ``update_info``; unlike the base class, synchronises an accelerator only if there is one."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Verify the file, then load it; if it raises :class:`RefusedWeights` the old weights are unchanged."""
        path = allowed_path(self._root, update_info.path)
        verify_sha256(path, update_info.sha256)
        try:
            with safe_open(path, framework="pt", device="cpu") as checkpoint:
                self._load((name, checkpoint.get_tensor(name)) for name in checkpoint.keys())  # noqa: SIM118
        except SafetensorError as error:
            raise RefusedWeights(f"{path.name} is not a safetensors file: {error}") from error

    @torch.no_grad()
    def _load(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Reload layer by layer; the kernels' own forms of the weights (packed, fused) are recomputed."""
        initialize_layerwise_reload(self.model)
        try:
            self.model.load_weights(weights)  # type: ignore[operator]  # vLLM's models have it, nn.Module has not
        finally:
            finalize_layerwise_reload(self.model, self.model_config)  # type: ignore[no-untyped-call]
            remake_lm_heads(self.model)

    def finish_weight_update(self) -> None:
        """Do nothing: ``receive_weights`` leaves the model complete."""

    def shutdown(self) -> None:
        """Do nothing: there is no connection and no shared memory to release."""


def allowed_path(root: Path | None, path: str) -> Path:
    """Returns ``path`` with links resolved; raises :class:`RefusedWeights` if it is not a file under ``root``."""
    if root is None:
        raise RefusedWeights("no root folder yet: POST /init_weight_transfer_engine first")
    resolved = Path(path).resolve()
    if not resolved.is_relative_to(root) or not resolved.is_file():
        raise RefusedWeights(f"{path!r} is not a file under {root}")
    return resolved


def verify_sha256(path: Path, expected: str) -> None:
    """Raise :class:`RefusedWeights` unless the file's SHA-256 (hex) is ``expected``."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != expected:
        raise RefusedWeights(f"{path.name} has sha256 {digest.hexdigest()}, not {expected}")


def remake_lm_heads(model: torch.nn.Module) -> None:
    """Recompute the kernels' forms of the LM heads from their current weights.

    With tied embeddings a checkpoint holds no LM head, so layerwise reloading skips the head; on a CPU its packed copy
    would silently keep the old weights. Without a packed copy this changes nothing.
    """
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)
