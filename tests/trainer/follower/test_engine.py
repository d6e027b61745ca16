import httpx
import pytest

from headrace.schemas.stamp import unverified_stamp
from headrace.trainer.follower.engine import EngineRefused, EngineUnreachable, VersionRefused, VllmEngine
from headrace.trainer.follower.swap import swap
from tests.trainer.fake_engine import FakeEngine


def engine(*answers, attempts=3):
    """Returns an engine that gives ``answers`` in sequence, and the requests that it received."""
    left, seen = list(answers), []

    def handle(request):
        seen.append(request)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return VllmEngine(
        httpx.AsyncClient(transport=httpx.MockTransport(handle), base_url="http://engine"), attempts=attempts
    ), seen


async def test_a_call_that_may_be_repeated_is_repeated_when_the_connection_fails():
    asked, seen = engine(httpx.ConnectError("no"), httpx.ReadTimeout("slow"), httpx.Response(200, json={}))
    await asked.resume()
    assert len(seen) == 3


async def test_a_step_of_an_update_is_never_repeated():
    asked, seen = engine(httpx.ReadTimeout("slow"), httpx.Response(200, json={}))
    with pytest.raises(EngineUnreachable, match="start_weight_update"):
        await asked.start_update()
    assert len(seen) == 1


async def test_a_call_answered_with_an_error_is_not_repeated():
    asked, seen = engine(httpx.Response(500, text="CUDA error"), httpx.Response(200, json={}))
    with pytest.raises(EngineRefused, match="CUDA error"):
        await asked.served()
    assert len(seen) == 1


async def test_an_answer_that_is_not_json_is_an_error_that_shows_it():
    asked, _ = engine(httpx.Response(200, text="<html>a proxy</html>"))
    with pytest.raises(EngineRefused, match="a proxy"):
        await asked.served()


async def test_scores_are_those_of_the_sequences_own_tokens():
    rows = [None, {"7": {"logprob": -1.5}, "3": {"logprob": -0.1}}, {"9": {"logprob": -2.5}}]
    asked, _ = engine(httpx.Response(200, json={"prompt_logprobs": rows}))
    assert await asked.score([5, 7, 9]) == [-1.5, -2.5]


async def test_two_scores_never_share_the_prefix_cache():
    answer = {"prompt_logprobs": [None, {"2": {"logprob": -1.0}}]}
    asked, seen = engine(httpx.Response(200, json=answer), httpx.Response(200, json=answer))
    for _ in range(2):
        await asked.score([1, 2])
    salts = [request.content.split(b'"cache_salt"')[1][:50] for request in seen]
    assert salts[0] != salts[1]


async def test_a_canary_that_the_model_cannot_take_refuses_the_version():
    asked, _ = engine(httpx.Response(400, text="Token id 999 is out of vocabulary"))
    with pytest.raises(VersionRefused, match="vocabulary"):
        await asked.score([1, 999])


@pytest.mark.parametrize("step", ["/start_weight_update", "/update_weights", "/finish_weight_update"])
async def test_a_swap_that_fails_leaves_the_engine_running_and_naming_no_version(tmp_path, step):
    fake = FakeEngine(stamp="run/3")
    fake.failing[step] = 500
    file = tmp_path / "weights"
    file.write_text("1")
    with pytest.raises((EngineRefused, VersionRefused)):
        await swap(fake.client(), "run", 4, file, "0" * 64)
    assert not fake.paused
    assert fake.stamp == unverified_stamp("run")


async def test_a_cache_that_cannot_be_reset_fails_the_swap(tmp_path):
    fake = FakeEngine()
    fake.reset_prefix_cache = lambda body, query: httpx.Response(200, json={"success": False})
    file = tmp_path / "weights"
    file.write_text("1")
    with pytest.raises(EngineRefused, match="prefix cache"):
        await swap(fake.client(), "run", 4, file, "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b")
    assert (fake.stamp, fake.paused) == (unverified_stamp("run"), False)
