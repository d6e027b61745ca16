"""The vLLM plugin: registers our weight-transfer backend, so that an engine loads policy versions from verified files.

vLLM finds :func:`register` through the entry point ``headrace`` of group ``vllm.general_plugins`` and calls it in each
of its processes; ``--weight-transfer-config '{"backend": "headrace"}'`` then selects the backend. Every vLLM process on
the machine imports this module, so it stays light: the backend is imported when it is selected.
"""

BACKEND = "headrace"
"""Name of the backend in vLLM's ``--weight-transfer-config``."""


def register() -> None:
    """Register ``headrace`` as a weight-transfer backend of vLLM. Idempotent."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "headrace.trainer.follower.weight_transfer", "SafetensorsWeightTransferEngine"
        )
