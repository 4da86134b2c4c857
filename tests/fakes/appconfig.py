"""AppConfig's data plane, which moto lacks: answers the clients of a session."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from botocore.awsrequest import AWSResponse

if TYPE_CHECKING:
    import boto3


class FakeAppConfig:
    """Serves `documents`, by profile; a token names its profile and what it gave last."""

    def __init__(self, session: boto3.Session, **documents: str) -> None:
        self.documents: dict[str, str] = documents
        self.calls: list[str] = []
        self.failing: Exception | None = None
        """Raised in place of an answer."""
        events = session.events
        events.register("before-call.appconfigdata.StartConfigurationSession", self._start)
        events.register("before-call.appconfigdata.GetLatestConfiguration", self._latest)

    def _start(self, params: dict[str, Any], **_: Any) -> Any:
        self._called("start")
        profile = json.loads(params["body"])["ConfigurationProfileIdentifier"]
        return _answer({"InitialConfigurationToken": f"{profile}|"})

    def _latest(self, params: dict[str, Any], **_: Any) -> Any:
        self._called("latest")
        profile, _, given = params["query_string"]["configuration_token"].partition("|")
        text = self.documents.get(profile, "")
        new = "" if text == given else text
        return _answer(
            {
                "NextPollConfigurationToken": f"{profile}|{text}",
                "Configuration": io.BytesIO(new.encode()),
            }
        )

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if self.failing is not None:
            raise self.failing


def _answer(parsed: dict[str, Any]) -> tuple[AWSResponse, dict[str, Any]]:
    return AWSResponse("", 200, {}, None), parsed
