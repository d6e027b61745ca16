"""A model that begins with another computes the same on shared words."""

import pytest
import torch

from headrace.trainer.model.miniature import miniature_qwen3
from headrace.trainer.model.transfer import begin_with

OLD = ("<pad>", "<end>", "ada", "bruno", "find")
NEW = ("<pad>", "<end>", "look", "bruno", "ada", "more")


def model(words: tuple[str, ...], seed: int) -> torch.nn.Module:
    return miniature_qwen3(len(words), end_id=1, pad_id=0, seed=seed)


def test_logits_of_shared_words_are_the_same_and_the_number_of_them_is_returned() -> None:
    old, new = model(OLD, 0), model(NEW, 1)
    assert begin_with(new, NEW, old, OLD) == 4  # type: ignore[arg-type]
    text, shared = ("ada", "bruno", "ada", "<end>"), ("<pad>", "<end>", "ada", "bruno")
    with torch.no_grad():
        before = old(torch.tensor([[OLD.index(word) for word in text]])).logits
        after = new(torch.tensor([[NEW.index(word) for word in text]])).logits
    torch.testing.assert_close(
        after[..., [NEW.index(word) for word in shared]], before[..., [OLD.index(word) for word in shared]]
    )


def test_words_that_are_new_keep_their_initial_rows() -> None:
    new, untouched = model(NEW, 1), model(NEW, 1)
    begin_with(new, NEW, model(OLD, 0), OLD)  # type: ignore[arg-type]
    for word in ("look", "more"):
        row = NEW.index(word)
        assert torch.equal(new.lm_head.weight[row], untouched.lm_head.weight[row])  # type: ignore[union-attr, index]


def test_models_of_another_shape_and_wrong_vocabularies_are_refused() -> None:
    with pytest.raises(ValueError, match="rows for vocabularies"):
        begin_with(model(NEW, 1), OLD, model(OLD, 0), OLD)  # type: ignore[arg-type]
    tied = miniature_qwen3(len(OLD), end_id=1, pad_id=0, seed=0)
    tied.model.layers[0].mlp.up_proj = torch.nn.Linear(96, 7, bias=False)
    with pytest.raises(ValueError, match="differ in"):
        begin_with(model(NEW, 1), NEW, tied, OLD)  # type: ignore[arg-type]
