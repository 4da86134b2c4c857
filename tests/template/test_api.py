"""The gateway: who needs a key, what it says when it refuses, what it writes down."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from sluiceway import http
from sluiceway.domain.api_key import POLICY_KEPT_S
from sluiceway_cli.key_commands import STOPS

from tests.docs.test_docs import OPERATIONS, section
from tests.template.rendering import alias_of, render

BODY: dict[str, Any] = render().properties("Api")["Body"]
RESPONSES: dict[str, Any] = BODY["x-amazon-apigateway-gateway-responses"]
KINDS = sorted(RESPONSES)
METHODS = [
    pytest.param(path, method, id=f"{method.upper()} {path}")
    for path, methods in BODY["paths"].items()
    for method in methods
]
MINUTE_S = 60
OPEN = {(path, method) for path in ("/health", "/openapi.json") for method in ("get", "head")}
"""What needs no key."""
OF_REST_APIS = {"get", "head", "post", "put", "patch", "delete", "options"}
"""All methods that API Gateway can be given."""

VARIABLE = re.compile(r"\$context\.[\w.]+")
OF_THE_GATEWAY = {"rate_limited": 429}
"""Codes that only the gateway gives."""


def stage() -> dict[str, Any]:
    (found,) = render().of_type("AWS::ApiGateway::Stage").values()
    return found


def problem(kind: str) -> dict[str, Any]:
    """The body of a gateway response."""
    (template,) = RESPONSES[kind]["responseTemplates"].values()
    body: dict[str, Any] = json.loads(VARIABLE.sub("a-value", template))
    return body


def headers(kind: str) -> dict[str, str]:
    return {
        name.removeprefix("gatewayresponse.header."): value
        for name, value in RESPONSES[kind]["responseParameters"].items()
    }


# ------------------------------------------------------------------------------------ keys


@pytest.mark.parametrize(("path", "method"), METHODS)
def test_only_health_and_the_document_need_no_key(path: str, method: str) -> None:
    security = BODY["paths"][path][method]["security"]

    needs = [] if (path, method) in OPEN else ["PartnerKey"]

    assert [name for scheme in security for name in scheme if name != "NONE"] == needs


def test_key_is_the_whole_identity_and_its_policy_kept_as_long_as_operators_are_told() -> None:
    (scheme,) = BODY["components"]["securitySchemes"].values()

    authorizer = scheme["x-amazon-apigateway-authorizer"]

    assert authorizer["type"] == "request"
    assert authorizer["identitySource"] == "method.request.header.Authorization"
    assert authorizer["authorizerResultTtlInSeconds"] == POLICY_KEPT_S <= MINUTE_S
    assert f"within {POLICY_KEPT_S} s" in STOPS
    assert f"{POLICY_KEPT_S} s" in section(OPERATIONS, "Revoking")


def test_gateway_may_call_the_authorizer() -> None:
    permissions = render().of_type("AWS::Lambda::Permission").values()

    called = [of["FunctionName"] for of in permissions]

    assert alias_of("AuthorizeFunction") in called


# ------------------------------------------------------------------------------------ routes


@pytest.mark.parametrize(("path", "method"), METHODS)
def test_method_is_named_and_goes_to_the_api_function(path: str, method: str) -> None:
    # Emulators skip "ANY".
    integration = BODY["paths"][path][method]["x-amazon-apigateway-integration"]

    assert method in OF_REST_APIS
    assert integration["type"] == "aws_proxy"
    assert f"${{{alias_of('ApiFunction')['Ref']}}}" in json.dumps(integration["uri"])


def test_every_other_path_is_the_functions_to_answer() -> None:
    methods = set(BODY["paths"]["/{proxy+}"])

    assert methods == OF_REST_APIS


def test_stage_is_the_only_one_and_traced() -> None:
    of = stage()

    assert of["StageName"] == "v1"
    assert of["TracingEnabled"] is True


def test_stage_is_throttled_as_the_parameters_say() -> None:
    stack = render(ApiRequestsPerSecond="7", ApiBurst="9")

    (of,) = stack.of_type("AWS::ApiGateway::Stage").values()
    (settings,) = of["MethodSettings"]

    assert (settings["HttpMethod"], settings["ResourcePath"]) == ("*", "/*")
    assert (settings["ThrottlingRateLimit"], settings["ThrottlingBurstLimit"]) == ("7", "9")


def test_stage_never_logs_bodies() -> None:
    settings = stage()["MethodSettings"]

    assert all(setting["DataTraceEnabled"] is False for setting in settings)
    assert not any("LoggingLevel" in setting for setting in settings)


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("kind", KINDS)
def test_refusal_is_a_problem_with_code_and_request_id(kind: str) -> None:
    body = problem(kind)

    assert body["type"] == "about:blank"
    assert body["title"]
    assert body["detail"]
    assert isinstance(body["retryable"], bool)
    assert body["request_id"] == "a-value"
    assert headers(kind)["Content-Type"] == "'application/problem+json'"


@pytest.mark.parametrize("kind", ["UNAUTHORIZED", "ACCESS_DENIED"])
def test_refusal_of_a_key_is_told_where_openais_clients_look(kind: str) -> None:
    body = problem(kind)

    assert body["message"] == body["detail"]


@pytest.mark.parametrize("kind", KINDS)
def test_refusal_says_its_status_once_in_the_line_and_once_in_the_body(kind: str) -> None:
    status = RESPONSES[kind].get("statusCode")

    body = problem(kind)

    assert body.get("status") == (int(status) if status else None)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "statusCode" in RESPONSES[kind]])
def test_refusal_has_the_status_that_its_code_has_everywhere(kind: str) -> None:
    code = problem(kind)["code"]

    status = {**http.STATUS, **OF_THE_GATEWAY}[code]

    assert int(RESPONSES[kind]["statusCode"]) == status


@pytest.mark.parametrize("kind", KINDS)
def test_refusal_repeats_nothing_of_the_request(kind: str) -> None:
    (template,) = RESPONSES[kind]["responseTemplates"].values()

    assert set(VARIABLE.findall(template)) == {"$context.requestId"}


@pytest.mark.parametrize("kind", KINDS)
def test_refusal_that_may_pass_says_when_to_come_back(kind: str) -> None:
    status = RESPONSES[kind].get("statusCode")

    retry_after = headers(kind).get("Retry-After", "")

    assert bool(re.fullmatch(r"'\d+'", retry_after)) == (status in {"429", "503"})


@pytest.mark.parametrize("kind", ["UNAUTHORIZED", "ACCESS_DENIED"])
def test_refusal_of_a_key_names_the_scheme(kind: str) -> None:
    # The authorizer denies what it doesn't know, and that is 401, too.
    assert RESPONSES[kind]["statusCode"] == "401"
    assert headers(kind)["WWW-Authenticate"] == "'Bearer'"


@pytest.mark.parametrize(
    "kind",
    [
        "DEFAULT_4XX",
        "DEFAULT_5XX",
        "MISSING_AUTHENTICATION_TOKEN",
        "REQUEST_TOO_LARGE",
        "THROTTLED",
        "QUOTA_EXCEEDED",
        "UNSUPPORTED_MEDIA_TYPE",
    ],
)
def test_gateways_own_errors_are_all_put_in_our_form(kind: str) -> None:
    assert kind in RESPONSES


# ------------------------------------------------------------------------------------ access log


def test_access_log_is_one_line_of_json() -> None:
    text = stage()["AccessLogSetting"]["Format"]

    fields = json.loads(text)

    assert "\n" not in text
    assert {"request_id", "tenant", "method", "path", "status", "latency_ms"} <= fields.keys()
    assert all(VARIABLE.fullmatch(value) for value in fields.values())


def test_access_log_holds_no_header_no_query_and_no_key() -> None:
    text = stage()["AccessLogSetting"]["Format"].lower()

    variables = VARIABLE.findall(text)

    assert not re.search(r"header|querystring|authorization|identity", text)
    assert [v for v in variables if v.startswith("$context.authorizer.")] == [
        "$context.authorizer.tenant"
    ]


def test_access_log_has_its_own_group() -> None:
    destination = stage()["AccessLogSetting"]["DestinationArn"]

    assert destination == {"Fn::GetAtt": ["ApiAccessLogGroup", "Arn"]}


def test_account_may_write_logs_before_the_stage_wants_to() -> None:
    stack = render(Target="aws", ApiGatewayLogRole="create")

    metadata = stack.resources["ApiAccessLogGroup"]["Metadata"]

    assert metadata["After"] == {"Ref": "ApiGatewayAccount"}
    assert "ApiGatewayAccount" in stack.resources


def test_account_that_has_a_log_role_keeps_it() -> None:
    stack = render(Target="aws", ApiGatewayLogRole="existing")

    assert not stack.of_type("AWS::ApiGateway::Account")
    assert stack.resources["ApiAccessLogGroup"]["Metadata"]["After"] == ""
