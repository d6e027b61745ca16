"""A harness of verifiers that makes the calls of the model in the environment's process, so that a rollout starts none.
It plays any taskset without tools, also one whose exchange has several turns: each is a call with the conversation so
far. Only the Python of the environment imports it.

{"harness": {"id": "in_process"}, "runtime": {"type": "subprocess"}}
"""

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire

CALL_S = 120.0


class InProcessHarness(vf.Harness[vf.HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:
        system, prompt = self.resolve_prompt(data)
        said = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt or [])
        if system is not None:
            said.insert(0, vf.SystemMessage(content=system))
        body = {"model": ctx.model, "messages": [message_to_wire(message) for message in said]}
        async with httpx.AsyncClient(timeout=CALL_S, headers={"Authorization": f"Bearer {secret}"}) as client:
            answer = await client.post(f"{endpoint}/chat/completions", json=body)
        return vf.ProgramResult(0 if answer.is_success else 1, "", "" if answer.is_success else answer.text)


__all__ = ["InProcessHarness"]
