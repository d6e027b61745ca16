"""The vLLM plugin: registers our weight-transfer backend, so that an engine loads policy versions from verified files.

vLLM finds :func:`register` through the entry point ``headrace`` of group ``vllm.general_plugins`` and calls it in each
of its processes; ``--weight-transfer-config '{"backend": "headrace"}'`` then chooses the backend. This module is
imported by every vLLM process on the machine, so it stays light: the engine itself is imported when it is chosen.
"""

BACKEND = "headrace"
"""Name of the backend in vLLM's ``--weight-transfer-config``."""


def register() -> None:
    """Make ``headrace`` known to vLLM as a weight-transfer backend. Calling it again changes nothing."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "headrace.trainer.follower.weight_transfer", "SafetensorsWeightTransferEngine"
        )
