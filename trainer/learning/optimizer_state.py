"""The optimiser's state on disk: a folder of safetensors files, one per rank, with the placement of their shards.

torch's distributed checkpoint in the Hugging Face format writes and reads them: the placement of a shard is in the
file's header, so no pickle is read, and any number of ranks can read what any other number wrote. Its import takes
seconds; a single process, which has no shards, does not use it.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor, zeros

from headrace.trainer.model.shards import whole_tensor
from headrace.trainer.parallel.ranks import Ranks

_WHOLE = "whole.safetensors"


def write_state(tensors: Mapping[str, Tensor], folder: Path, ranks: Ranks) -> None:
    """Write ``tensors``, each rank its own shards; all ranks call it, with the same names.

    Raises ``OSError`` on every rank if one of them cannot write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if ranks.count == 1:
        save_file({name: whole_tensor(tensor) for name, tensor in tensors.items()}, folder / _WHOLE)
        return
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    # The ranks agree on their parts by torch's own messages; nothing on disk is pickled.
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        save(dict(tensors), storage_writer=writer, process_group=ranks.control)
    except CheckpointException as error:
        raise OSError(
            f"{folder} cannot store the optimiser's state: {next(iter(error.failures.values()))[0]}"
        ) from error


def read_state(folder: Path, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns what :func:`write_state` wrote, on any number of ranks; the caller has verified the files.

    A tensor ``<slot>/<parameter>`` of the parameter's shape is sharded as that parameter is. Raises ``OSError`` if the
    folder holds no state.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no optimiser state")
    sharded = any(isinstance(parameter, DTensor) for parameter in parameters.values())
    if [file.name for file in files] == [_WHOLE] and not sharded:
        return load_file(files[0])
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    state = {
        name: _empty(name, stored.size, stored.properties.dtype, parameters)
        for name, stored in reader.read_metadata().state_dict_metadata.items()
        if isinstance(stored, TensorStorageMetadata)
    }
    with warnings.catch_warnings(category=UserWarning, action="ignore"):  # that it is not distributed, as intended
        load(state, storage_reader=reader, no_dist=True)
    return state


def _empty(name: str, size: torch.Size, dtype: torch.dtype, parameters: Mapping[str, Tensor]) -> Tensor:
    parameter = parameters.get(name.partition("/")[2])
    if isinstance(parameter, DTensor) and parameter.shape == size:
        return zeros(size, dtype=dtype, device_mesh=parameter.device_mesh, placements=parameter.placements)
    return torch.zeros(size, dtype=dtype)
