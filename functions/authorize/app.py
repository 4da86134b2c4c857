"""API Gateway's Lambda authorizer: lets in whoever holds a good API key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluiceway import bootstrap
from sluiceway.usecases.authorize import authorize

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext
    from sluiceway.bootstrap import AuthorizeDeps


def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Answers a REQUEST authorizer event with a policy and the caller."""
    return handle(event, context, bootstrap.authorize_deps())


def handle(event: dict[str, Any], context: LambdaContext, deps: AuthorizeDeps) -> dict[str, Any]:
    """The policy is for the whole stage: API Gateway keeps it and uses it for every method.

    An unknown key gets a Deny, which is kept as well, so that guessing costs us one read a minute;
    the gateway turns it into 401 (template.yaml, ACCESS_DENIED).
    """
    with deps.telemetry.invocation(context):
        headers = {
            name.lower(): value for name, value in (event.get("headers") or {}).items() if value
        }
        key = authorize(
            headers.get("authorization", ""),
            keys=deps.keys,
            clock=deps.clock,
            telemetry=deps.telemetry,
        )
        arn, stage = event["methodArn"].split("/")[:2]
        return {
            "principalId": key.tenant if key else "unknown",
            "policyDocument": {
                "Version": "2012-10-17",
                "Statement": [
                    {
                        "Action": "execute-api:Invoke",
                        "Effect": "Allow" if key else "Deny",
                        "Resource": f"{arn}/{stage}/*",
                    }
                ],
            },
            "context": (
                {"tenant": key.tenant, "scopes": " ".join(key.scopes), "key_id": key.key_id}
                if key
                else {}
            ),
        }
