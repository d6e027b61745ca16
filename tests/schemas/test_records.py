"""Models refuse inconsistent records: arrays of different lengths, spans that do not tile."""

import pytest
from pydantic import ValidationError

from headrace.schemas.events import ModelCalled, Sampling, VersionSpan
from headrace.schemas.records.group import Reason
from headrace.schemas.records.trajectory import Defect, Segment


def call(**fields: object) -> ModelCalled:
    return ModelCalled.model_validate({"model": "m", "context_ids": [1], "sampled_ids": [2, 3]} | fields)


def test_a_call_without_token_ids_is_a_labelled_absence() -> None:
    assert ModelCalled(model="gpt-4o").sampled_ids is None


def test_there_is_one_log_probability_per_sampled_token() -> None:
    with pytest.raises(ValidationError, match="1 logprobs for 2 sampled_ids"):
        call(logprobs=[-0.5])


@pytest.mark.parametrize("spans", [[(0, 1)], [(1, 2)], [(0, 1), (0, 2)], [(0, 3)], [(0, 0), (0, 2)]])
def test_version_spans_tile_the_sampled_tokens(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(ValidationError, match="version_spans"):
        call(version_spans=[VersionSpan(version=1, start=start, end=end) for start, end in spans])


def test_a_prefix_needs_its_hash() -> None:
    with pytest.raises(ValidationError, match="prefix_sha256"):
        call(prefix_length=4)


@pytest.mark.parametrize("fields", [{"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.05}])
def test_truncating_samplers_are_recognised(fields: dict[str, float]) -> None:
    assert Sampling.model_validate(fields).truncates
    assert not Sampling().truncates


@pytest.mark.parametrize(
    "fields",
    [
        {"loss_mask": [0]},
        {"logprobs": [-1.0]},
        {"version_spans": [VersionSpan(version=0, start=0, end=1)]},
    ],
)
def test_a_segments_axes_agree(fields: dict[str, object]) -> None:
    whole = {"token_ids": [1, 2, 3], "loss_mask": [0, 1, 1], "logprobs": [-1.0, -2.0], "version_spans": []}
    Segment.model_validate(whole)
    with pytest.raises(ValidationError):
        Segment.model_validate(whole | fields)


def test_every_defect_is_a_reason_of_the_same_name() -> None:
    assert {defect.value for defect in Defect} <= {reason.value for reason in Reason}
