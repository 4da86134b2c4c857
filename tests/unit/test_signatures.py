"""Calls whose signature expired while Lambda had frozen the process."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, cast

import pytest
import urllib3
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError
from sluiceway import bootstrap
from sluiceway.adapters.dynamodb import Table

if TYPE_CHECKING:
    from sluiceway.telemetry import PowertoolsTelemetry

CODES = [
    *("InvalidSignatureException", "RequestExpired"),
    *("RequestTimeTooSkewed", "SignatureDoesNotMatch"),
]


class Frozen:
    """The functions' client of DynamoDB, whose first calls are answered with these codes.

    It is the client's telemetry as well, and notes how it was used.
    """

    def __init__(self, *codes: str) -> None:
        self._codes = list(codes)
        self.signed = self.sent = self.renewals = 0
        self.client = bootstrap._store("dynamodb", cast("PowertoolsTelemetry", self))
        self.client.meta.events.register("before-sign", self._sign)
        self.client.meta.events.register("before-send", self._send)

    def event(self, name: str) -> None:
        """What telemetry is told."""
        assert name == "signature_expired"
        self.renewals += 1

    def _sign(self, **_: Any) -> None:
        self.signed += 1

    def _send(self, request: Any, **_: Any) -> AWSResponse:
        self.sent += 1
        code = self._codes.pop(0) if self._codes else None
        body = json.dumps({"__type": code, "message": "Signature expired."} if code else {})
        headers = {"content-type": "application/x-amz-json-1.0"}
        raw = urllib3.HTTPResponse(io.BytesIO(body.encode()), preload_content=False)
        status = 400 if code else 200
        return AWSResponse(request.url, status, urllib3.HTTPHeaderDict(headers), raw)


@pytest.mark.parametrize("code", CODES)
def test_call_whose_signature_expired_is_made_again_with_a_new_one_and_counted(  # case Z01
    code: str,
) -> None:
    frozen = Frozen(code)

    row = Table(frozen.client).read("table", {"id": "a"})

    assert row is None
    assert (frozen.sent, frozen.signed, frozen.renewals) == (2, 2, 1)


def test_signature_that_is_refused_again_is_not_renewed_for_ever() -> None:  # case Z01
    frozen = Frozen(*["InvalidSignatureException"] * 5)

    with pytest.raises(ClientError, match="InvalidSignatureException"):
        Table(frozen.client).read("table", {"id": "a"})

    assert (frozen.sent, frozen.renewals) == (2, 1)


def test_call_that_is_refused_for_another_reason_is_not_made_again() -> None:
    frozen = Frozen("ValidationException")

    with pytest.raises(ClientError, match="ValidationException"):
        Table(frozen.client).read("table", {"id": "a"})

    assert (frozen.sent, frozen.renewals) == (1, 0)
