"""The least that a gateway in Python does: an aiohttp server that passes streams on as they are, and records nothing.

python -m tests.benchmarks.bare_relay PORT ENGINE_PORT
"""

import asyncio
import sys

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web


async def main(port: int, engine_port: int) -> None:
    timeout = ClientTimeout(total=None)
    async with ClientSession(connector=TCPConnector(limit=0), timeout=timeout, auto_decompress=False) as session:

        async def relay(request: web.Request) -> web.StreamResponse:
            body, url = await request.read(), f"http://127.0.0.1:{engine_port}{request.path}"
            async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
                response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
                await response.prepare(request)
                while data := await answer.content.readany():
                    await response.write(data)
                await response.write_eof()
                return response

        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/{path:.*}", relay)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
