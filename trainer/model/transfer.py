"""Begins a word-level model with the weights of another that shares its shape and many of its words.

    begin_with(model, words=("<pad>", "find_page", "ada", …), source=search_model, source_words=("<pad>", "ada", …))

The layers are copied; of the embedding and the LM head, the rows of shared words. Rows of other words keep their own
initial values. Copying of names is then learnt already, which is most of the cost of training such a model.
"""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel


@torch.no_grad()
def begin_with(
    model: PreTrainedModel, words: Sequence[str], source: PreTrainedModel, source_words: Sequence[str]
) -> int:
    """Copy ``source`` into ``model`` in place; returns the number of shared words.

    ``words`` and ``source_words``: the vocabularies, (V,) each, by token id. Raises ``ValueError`` if the models differ
    in more than their vocabularies, or if a vocabulary does not fit its model.
    """
    own, other = model.state_dict(), source.state_dict()
    tables = [name for name in own if name.endswith(("embed_tokens.weight", "lm_head.weight"))]
    layers = own.keys() - set(tables)
    differ = [name for name in layers if name not in other or own[name].shape != other[name].shape]
    if differ or own.keys() != other.keys():
        raise ValueError(f"the models differ in {', '.join(sorted(differ)) or 'their layers'}: only vocabularies may")
    for name in tables:
        if own[name].shape[0] != len(words) or other[name].shape[0] != len(source_words):
            raise ValueError(
                f"{name} has {own[name].shape[0]} and {other[name].shape[0]} rows for vocabularies of {len(words)} and "
                f"{len(source_words)} words"
            )
    places = {word: place for place, word in enumerate(source_words)}
    shared = [(place, places[word]) for place, word in enumerate(words) if word in places]
    to, of = (torch.tensor(side) for side in zip(*shared, strict=True))
    for name in layers:
        own[name].copy_(other[name])
    for name in tables:
        own[name][to] = other[name][of]
    return len(shared)
