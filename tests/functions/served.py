"""The API on a local port: what the gateway makes of a request, and of an answer."""

from __future__ import annotations

import base64
import threading
from contextlib import contextmanager
from http.client import responses
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, make_server

from sluiceway.domain.errors import UnauthenticatedError
from sluiceway.http import problem

from tests.functions.stage import Answer, Stage, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

KEY = "the-key-of-acme"
SCOPES = "submit read cancel bypass admin"
OPEN = ("/health", "/openapi.json")


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None: ...


@contextmanager
def served(stage: Stage) -> Iterator[str]:
    """The URL of the stage's API, of which `KEY` opens everything as acme.

    Whoever waits gives the workers time: what was sent is run.
    """
    ran = 0

    def pause(seconds: float) -> None:
        nonlocal ran
        stage.clock.pause(seconds)
        while ran < len(stage.sent):
            _, tenant, job_id = stage.sent[ran]
            ran += 1
            stage.run_job(job_id, tenant)

    stage.pause = pause

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer = _answer(stage, environ)
        start_response(
            f"{answer.status} {responses.get(answer.status, '')}", list(answer.headers.items())
        )
        return [answer.text.encode()]

    with make_server("127.0.0.1", 0, app, handler_class=_Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _answer(stage: Stage, environ: dict[str, Any]) -> Answer:
    path = environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace")
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_") or name == "CONTENT_TYPE"
    }
    # Python's server calls a body without a type a text; gateways don't.
    if headers.get("content-type") == "text/plain":
        del headers["content-type"]
    if path not in OPEN and headers.get("authorization") != f"Bearer {KEY}":
        refused = problem(UnauthenticatedError("Send a valid API key."), "gateway-1")
        return Answer(
            refused.status,
            {"content-type": refused.content_type, **dict(refused.headers)},
            refused.serialised(),
        )
    query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    event = request(
        environ["REQUEST_METHOD"],
        path,
        scopes=SCOPES,
        query={name: values[-1] for name, values in query.items()} or None,
    )
    event["headers"] = headers
    event["multiValueHeaders"] = {name: [value] for name, value in headers.items()}
    event["multiValueQueryStringParameters"] = query or None
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    try:
        event["body"], event["isBase64Encoded"] = body.decode() or None, False
    except UnicodeDecodeError:
        event["body"], event["isBase64Encoded"] = base64.b64encode(body).decode(), True
    return stage.answer(event)
