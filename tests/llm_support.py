"""A fake of an LLM provider: a real HTTP server that speaks the chat completions format of OpenAI.

No model answers. The server returns the answers that a test has queued, and records the requests.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tests.support import eventually

TOKENS = 20  # that each answer reports as used


@dataclass
class FakeProvider:
    """A running fake. `answers` are texts, or complete responses; the last one is repeated.

    `replies` are answers to prompts that contain a text.
    """

    port: int = 0
    answers: list[str | Response] = field(default_factory=lambda: ["Fine."])
    replies: dict[str, str] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)  # the headers Authorization

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def settings(self, **settings: Any) -> dict[str, Any]:
        return {"llm": {"base_url": self.url, "model": "fake-1", **settings}}

    def prepare(self, *answers: str | Response) -> None:
        """Queue the next answers and forget the requests so far."""
        self.answers = list(answers)
        self.requests.clear()
        self.keys.clear()

    async def complete(self, request: Request) -> Response:
        self.requests.append(await request.json())
        self.keys.append(request.headers.get("authorization", ""))
        prompt = self.requests[-1]["messages"][-1]["content"]
        if reply := next((reply for text, reply in self.replies.items() if text in prompt), None):
            return completion(reply)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer if isinstance(answer, Response) else completion(answer)


def completion(
    text: str | None, *, finish_reason: str = "stop", tokens: object = TOKENS, **fields: Any
) -> Response:
    message = {"role": "assistant", "content": text, **fields}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return JSONResponse(
        {"object": "chat.completion", "choices": [choice], "usage": {"total_tokens": tokens}}
    )


@contextmanager
def serve_fake_provider() -> Iterator[FakeProvider]:
    provider = FakeProvider()
    app = Starlette(routes=[Route("/v1/chat/completions", provider.complete, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        provider.port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            assert eventually(lambda: server.started)
            yield provider
        finally:
            server.should_exit = True
            thread.join()
