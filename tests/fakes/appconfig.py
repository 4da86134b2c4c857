"""AppConfig, which moto lacks: its data plane for the clients of a session, and MiniStack's own
control plane without a server."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import urllib3
from botocore.awsrequest import AWSResponse
from ministack.services import appconfig as ministack

if TYPE_CHECKING:
    import boto3
    from botocore.awsrequest import AWSPreparedRequest


class FakeAppConfig:
    """Serves `documents`, by profile. A token serves one call, whether or not its answer came."""

    def __init__(self, session: boto3.Session, **documents: str) -> None:
        self.documents: dict[str, str] = documents
        self.calls: list[str] = []
        self._given: dict[str, tuple[str, str]] = {}
        """By token that wasn't used yet: its profile, and what was given last."""
        self._numbers = itertools.count(1)
        self.failing: Exception | None = None
        """Raised in place of an answer."""
        events = session.events
        events.register("before-call.appconfigdata.StartConfigurationSession", self._start)
        events.register("before-call.appconfigdata.GetLatestConfiguration", self._latest)

    def _start(self, params: dict[str, Any], **_: Any) -> Any:
        self._called("start")
        profile = json.loads(params["body"])["ConfigurationProfileIdentifier"]
        return _answer({"InitialConfigurationToken": self._token(profile, "")})

    def _latest(self, params: dict[str, Any], **_: Any) -> Any:
        profile, given = self._given.pop(params["query_string"]["configuration_token"])
        self._called("latest")
        text = self.documents.get(profile, "")
        new = "" if text == given else text
        return _answer(
            {
                "NextPollConfigurationToken": self._token(profile, text),
                "Configuration": io.BytesIO(new.encode()),
            }
        )

    def _token(self, profile: str, given: str) -> str:
        token = f"{profile}|{next(self._numbers)}"  # who reads calls sees whose they are
        self._given[token] = profile, given
        return token

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if self.failing is not None:
            raise self.failing


def _answer(parsed: dict[str, Any]) -> tuple[AWSResponse, dict[str, Any]]:
    return AWSResponse("", 200, {}, None), parsed


def emulated(session: boto3.Session) -> Any:
    """A client of AppConfig whose calls MiniStack's code answers in this process, from nothing."""
    ministack.reset()
    client = session.client("appconfig")
    client.meta.events.register("before-send.appconfig", _emulate)
    return client


def _emulate(request: AWSPreparedRequest, **_: Any) -> AWSResponse:
    url = urlsplit(request.url)
    body = request.body or b""
    status, headers, content = asyncio.run(
        ministack.handle_request(
            request.method,
            url.path,
            {name.lower(): _text(value) for name, value in request.headers.items()},
            body.encode() if isinstance(body, str) else bytes(body),
            parse_qs(url.query),
        )
    )
    content = content.encode() if isinstance(content, str) else content
    raw = urllib3.HTTPResponse(
        io.BytesIO(content), headers=headers, status=status, preload_content=False
    )
    return AWSResponse(request.url, status, urllib3.HTTPHeaderDict(headers), raw)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
