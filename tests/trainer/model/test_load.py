import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from headrace.schemas.objects.store import file_sha256
from headrace.trainer.batches.packing import pack
from headrace.trainer.model.load import load_model, longest_sequence, save_model, vocabulary_size
from headrace.trainer.model.logprobs import token_logprobs
from tests.trainer.builders import random_sequences, tiny_model


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def directory(request, tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"), tied=request.param)


@pytest.fixture(scope="module")
def model(directory):
    return load_model(directory)


def reference(directory, sequences):
    """Returns the results of each sequence alone by the unmodified model."""
    plain = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    logprobs = []
    for ids, mask in sequences:
        table = plain(torch.tensor(ids)[None]).logits[0].log_softmax(-1)
        logprobs += [table[index - 1, ids[index]] for index in np.flatnonzero(mask)]
    return plain, torch.stack(logprobs)


def test_packed_logprobs_and_gradients_are_those_of_each_sequence_alone(model, directory):
    sequences = random_sequences(20, seed=1)
    plain, expected = reference(directory, sequences)
    found = token_logprobs(model, pack(sequences)).logprobs
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)

    model.zero_grad()
    found.sum().backward()
    expected.sum().backward()
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=2e-3, rtol=1e-3, msg=name)


def test_a_sequence_never_sees_its_neighbours(model):
    sequences = random_sequences(8, seed=2)
    before = token_logprobs(model, pack(sequences)).logprobs
    middle = sum(int(mask.sum()) for _, mask in sequences[:3]), sum(int(mask.sum()) for _, mask in sequences[:4])
    ids, mask = sequences[3]
    sequences[3] = ((ids + 11) % 50, mask)
    after = token_logprobs(model, pack(sequences)).logprobs
    torch.testing.assert_close(before[: middle[0]], after[: middle[0]], atol=0, rtol=0)
    torch.testing.assert_close(before[middle[1] :], after[middle[1] :], atol=0, rtol=0)
    assert not torch.allclose(before[slice(*middle)], after[slice(*middle)])


def test_a_token_never_sees_what_comes_after_it(model):
    ids = np.arange(20) % 50
    first = token_logprobs(model, pack([(ids, [0] + [1] * 19)])).logprobs
    changed = ids.copy()
    changed[15:] = 3
    second = token_logprobs(model, pack([(changed, [0] + [1] * 19)])).logprobs
    torch.testing.assert_close(first[:14], second[:14], atol=0, rtol=0)
    assert not torch.allclose(first[14:], second[14:])


def test_chunks_of_the_head_change_nothing(model):
    packed = pack(random_sequences(10, seed=3))
    model.zero_grad()
    whole = token_logprobs(model, packed)
    whole.logprobs.sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    chunked = token_logprobs(model, packed, max_logits=50 * 7)
    chunked.logprobs.sum().backward()
    torch.testing.assert_close(whole.logprobs, chunked.logprobs)
    torch.testing.assert_close(whole.entropy, chunked.entropy)
    for one, other in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad, atol=1e-4, rtol=1e-4)


def test_entropy_is_that_of_the_distribution(model, directory):
    ids = np.array([4, 9, 2, 30])
    plain, _ = reference(directory, [(ids, [0, 0, 0, 1])])
    expected = torch.distributions.Categorical(logits=plain(torch.tensor(ids)[None]).logits[0, 2]).entropy()
    found = token_logprobs(model, pack([(ids, [0, 0, 0, 1])])).entropy
    torch.testing.assert_close(found, expected[None], atol=1e-5, rtol=1e-5)
    assert not found.requires_grad


def test_a_saved_model_is_the_same_model_and_the_same_bytes(model, tmp_path):
    save_model(model, tmp_path / "a")
    assert len({file.stat().st_mode for file in (tmp_path / "a").iterdir()}) == 1
    again = load_model(tmp_path / "a")
    save_model(again, tmp_path / "b")
    assert file_sha256(tmp_path / "a" / "model.safetensors") == file_sha256(tmp_path / "b" / "model.safetensors")
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_tokenizer_is_copied(model, tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "tokenizer.json").write_text("{}")
    save_model(model, tmp_path / "out", tokenizer_from=tmp_path / "base")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="model_dir"):
        load_model(tmp_path)


def test_the_limits_of_the_model_are_read_from_it(model):
    assert (vocabulary_size(model), longest_sequence(model)) == (50, 128)
