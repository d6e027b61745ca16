"""A model may propose anything: only what is verified becomes a task, and what it says wrongly is counted."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.retrieval.endpoint import RetrievalError
from headrace.agents.retrieval.passages import Document
from headrace.agents.search.text.model_explorer import ModelExplorer, candidates_in
from headrace.agents.search.text.model_tasks import tasks_by_model
from headrace.agents.search.text.verify import Check, Corpus
from tests.agents.retrieval.endpoint_server import endpoint

DOCUMENTS = (
    Document("d1", "Ada", "Ada Lovelace lived in London and wrote the first programme."),
    Document("d2", "London", "The river of London is called Thames."),
    Document("d3", "Hugo", "Hugo lives elsewhere."),
)
CORPUS = Corpus.of(DOCUMENTS)
HOME = {
    "question": "In which city was Ada Lovelace at home?",
    "hops": [
        {
            "subject": "Ada Lovelace",
            "cues": [],
            "value": "London",
            "doc_id": "d1",
            "quotes": ["Ada Lovelace lived in London"],
        }
    ],
}
RIVER = {
    "question": "Which river does the home town of Ada Lovelace have?",
    "hops": [
        {
            "subject": "London",
            "cues": ["river"],
            "value": "Thames",
            "doc_id": "d2",
            "quotes": ["The river of London is called Thames."],
        }
    ],
}
INVENTED = {
    "question": "Where did Hugo learn?",
    "hops": [{"subject": "Hugo", "cues": [], "value": "Paris", "doc_id": "d3", "quotes": ["Hugo learnt in Paris"]}],
}


def saying(*candidates: Any) -> Any:
    return {"choices": [{"message": {"content": json.dumps({"candidates": candidates})}}]}


def scripted(path: str, body: Any) -> Any:
    """A model that knows of Ada, extends by the river, invents something of Hugo, and fails the form on London."""
    assert path == "/v1/chat/completions"
    prompt = body["messages"][0]["content"]
    if "Present question" in prompt:
        return saying(RIVER)
    if "[d1]" in prompt:
        return saying(HOME)
    return saying(INVENTED) if "[d3]" in prompt else saying({"question": "?"}, 7)


async def test_what_a_model_proposes_is_verified_extended_and_counted() -> None:
    async with endpoint(scripted) as (http, url, asked):
        explorer = ModelExplorer(http, f"{url}/v1", "m")
        made = await tasks_by_model(explorer, CORPUS, "sha", count=9, calls=9)
    (task,) = made.tasks
    assert (task.question, task.answer, len(task.hops)) == (RIVER["question"], "Thames", 2)
    assert task.targets == ("d1-1", "d2-1")
    assert task.provenance.explorer == "model:m"
    assert made.by_check == {Check.QUOTED: 1}
    assert (made.calls, made.malformed) == (len(asked), 2) == (4, 2)


async def test_a_hop_that_fails_leaves_the_shorter_question() -> None:
    def leaky(path: str, body: Any) -> Any:
        told = RIVER | {"question": "Which river has London, where Ada Lovelace lived?"}
        return saying(told) if "Present question" in body["messages"][0]["content"] else scripted(path, body)

    async with endpoint(leaky) as (http, url, _):
        made = await tasks_by_model(ModelExplorer(http, f"{url}/v1", "m"), CORPUS, "sha", count=9, calls=9)
    assert [task.question for task in made.tasks] == [HOME["question"]]
    assert made.by_check[Check.ASKS] == 1


async def test_calls_and_tasks_are_bounded() -> None:
    async with endpoint(scripted) as (http, url, asked):
        explorer = ModelExplorer(http, f"{url}/v1", "m")
        assert (await tasks_by_model(explorer, CORPUS, "sha", count=9, calls=2)).calls == len(asked) == 2
        assert (await tasks_by_model(explorer, CORPUS, "sha", count=0, calls=9)).tasks == ()


async def test_an_endpoint_that_fails_is_an_error_that_names_the_setting() -> None:
    async with endpoint(lambda path, body: 500) as (http, url, _):
        with pytest.raises(RetrievalError, match="explorer_url"):
            await ModelExplorer(http, url, "m").explore(DOCUMENTS)


def test_an_answer_in_a_code_fence_is_read() -> None:
    text = f"Here you are:\n```json\n{json.dumps({'candidates': [HOME]})}\n```"
    assert [candidate.answer for candidate in candidates_in(text, "m").candidates] == ["London"]


@pytest.mark.parametrize(
    "text", ["", "I cannot", "[]", '{"candidates": 3}', '{"candidates": [null]}', "[" * 100_000, '{"candidates": [{}]}']
)
def test_an_answer_of_another_form_is_counted_and_never_raises(text: str) -> None:
    found = candidates_in(text, "m")
    assert (found.candidates, found.malformed) == ((), 1)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["candidates", "hops", "question", "quotes", "cues"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_json_is_an_answer(value: Any) -> None:
    candidates_in(json.dumps({"candidates": [value]}), "m")
