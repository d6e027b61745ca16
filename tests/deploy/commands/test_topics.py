"""`headrace topics NAME` and `headrace asyncapi` contain everything that a consumer of a topic needs to know."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.deploy.cli import cli
from headrace.schemas.asyncapi import DOCUMENT
from headrace.schemas.headers import HEADERS
from headrace.schemas.topics import MODELS, TOPICS, Topic


def headrace(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_a_topics_description_has_headers_fields_and_an_example_of_each_type(topic: Topic) -> None:
    shown = headrace("topics", topic.name)
    assert shown.exit_code == 0, shown.output
    for name in HEADERS:
        assert f"    {name} " in shown.output
    for model in topic.models:
        assert f"\n{model.TYPE}  " in shown.output
        assert f"        ce_type         {model.TYPE}\n" in shown.output
        for field, info in model.model_fields.items():
            assert f"    {field} " in shown.output
            assert info.description


def test_the_json_description_of_a_topic_has_examples_that_can_be_sent() -> None:
    shown = json.loads(headrace("topics", "rewards", "--json").output)
    (reward,) = shown["types"]
    assert shown["key"] == "group id, else cohort key, else trajectory id"
    assert MODELS[reward["name"]].model_validate(reward["example"]["value"])
    assert reward["example"]["headers"]["ce_type"] == reward["name"]
    assert {
        "path": "total",
        "type": "number ≥ -1000000000000.0 ≤ 1000000000000.0 or null",
        "required": True,
    }.items() <= next(field for field in reward["fields"] if field["path"] == "total").items()


def test_an_unknown_topic_is_an_error_that_lists_the_topics() -> None:
    shown = headrace("topics", "trajectorys")
    assert shown.exit_code == 2
    assert "the topics are events, feedback" in shown.output


def test_the_asyncapi_document_is_printed_and_written(tmp_path: Path) -> None:
    assert headrace("asyncapi").output == DOCUMENT.read_text()
    file = tmp_path / "asyncapi.json"
    assert headrace("asyncapi", "--write", str(file)).output == f"{file}: written.\n"
    assert headrace("asyncapi", "--write", str(file)).output == f"{file}: unchanged.\n"
    assert file.read_text() == DOCUMENT.read_text()
