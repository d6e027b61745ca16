"""Which of vLLM's sampling parameters change what may be trained."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.gateway.resolved_sampling import ALTERING, RECORDED, WITHOUT_EFFECT, resolved_sampling
from headrace.schemas.events import Sampling


def test_what_is_absent_has_vllms_default() -> None:
    assert resolved_sampling({}) == Sampling(temperature=1.0)


def test_recorded_parameters_keep_their_values() -> None:
    values = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.05,
        "max_tokens": 64,
        "seed": -3,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
    }
    assert set(values) == RECORDED
    assert resolved_sampling(values) == Sampling(**values)


@pytest.mark.parametrize(
    ("params", "altered_by"),
    [
        ({"structured_outputs": {"json_object": True}}, ["structured_output"]),
        ({"logit_bias": {"3": 1.0}, "bad_words": ["no"]}, ["bad_words", "logit_bias"]),
        ({"allowed_token_ids": []}, ["allowed_token_ids"]),
        ({"thinking_token_budget": 0}, ["thinking_token_budget"]),
        ({"trace_decode_token_ids": [4]}, ["trace_decode_token_ids"]),
        ({"extra_args": {"custom": 1}}, ["extra_args"]),
        ({"watermarking": True}, ["watermarking"]),
    ],
)
def test_what_alters_the_distribution_is_named(params: dict[str, Any], altered_by: list[str]) -> None:
    sampling = resolved_sampling(params)
    assert sampling.altered_by == altered_by
    assert sampling.is_altered


@pytest.mark.parametrize(
    "params",
    [
        {"stop": ["###"], "stop_token_ids": [], "bad_words": [], "skip_reading_prefix_cache": False, "n": 4},
        {"output_kind": 2, "skip_clone": True, "logprobs": 5, "ignore_eos": True, "watermarking": False},
        {"extra_args": {"kv_transfer_params": {"do_remote_decode": True}}, "structured_outputs": None},
        {"logit_bias": {}, "top_k": -1},
    ],
)
def test_what_has_no_effect_leaves_the_tokens_trainable(params: dict[str, Any]) -> None:
    sampling = resolved_sampling(params)
    assert (sampling.is_altered, sampling.truncates, sampling.is_unknown) == (False, False, False)


def test_an_unknown_parameter_is_kept_under_its_name_and_keeps_tokens_from_training() -> None:
    sampling = resolved_sampling({"temperature": 1.0, "dry_multiplier": 0.8, "altered_by": ["x"], "newer": None})
    assert sampling.unknown_fields == ["dry_multiplier", "vllm_altered_by"]
    assert sampling.is_unknown


def test_a_value_that_cannot_be_recorded_counts_as_altering() -> None:
    sampling = resolved_sampling({"temperature": 0.5, "seed": 2**80, "min_p": "much"})
    assert (sampling.temperature, sampling.seed, sampling.altered_by) == (0.5, None, ["min_p", "seed"])


@given(
    st.dictionaries(
        st.sampled_from(sorted(RECORDED | WITHOUT_EFFECT | set(ALTERING))) | st.text(max_size=12),
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        max_size=6,
    )
)
def test_any_parameters_are_recorded(params: dict[str, Any]) -> None:
    sampling = resolved_sampling(params)
    lost = {
        name
        for name, value in params.items()
        if value is not None and name not in WITHOUT_EFFECT and name not in ALTERING
        if sampling.model_dump().get(name) is None and name not in sampling.altered_by
        if f"vllm_{name}" not in sampling.unknown_fields
    }
    assert not lost


@pytest.mark.vllm
def test_every_parameter_of_vllm_is_in_one_group() -> None:
    """A new one fails here. Decide whether it changes the distribution of the next token, and add it to its group."""
    vllm = pytest.importorskip("vllm.sampling_params")
    groups = [RECORDED, WITHOUT_EFFECT, set(ALTERING)]
    for name in vllm.SamplingParams.__struct_fields__:
        assert sum(name in group for group in groups) == 1, f"{name} is in no group, or in several"
    assert set().union(*groups) == set(vllm.SamplingParams.__struct_fields__)


@pytest.mark.vllm
def test_recorded_defaults_are_those_of_vllm() -> None:
    vllm = pytest.importorskip("vllm.sampling_params")
    defaults = vllm.SamplingParams()
    ours = resolved_sampling({})
    for name in RECORDED - {"max_tokens"}:
        assert getattr(ours, name) == getattr(defaults, name), name
