"""The sample events: one for each trigger of the template, each as its service would send it."""

from __future__ import annotations

import hashlib
from copy import deepcopy

import pytest
from aws_lambda_powertools.utilities.parser import models

from tests.template.rendering import RESOURCES
from tests.template.samples import ACCOUNT, REGION, SAMPLES, TRIGGERS, table, triggers_of

_RECORDS = {"aws:sqs": models.SqsModel, "aws:dynamodb": models.DynamoDBStreamModel}


def test_every_trigger_has_a_sample() -> None:
    with_samples = {key for event in SAMPLES.values() for key in triggers_of(event)}

    assert with_samples == set(TRIGGERS)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_is_of_one_trigger(name: str) -> None:
    assert len(triggers_of(SAMPLES[name])) == 1


def test_table_of_samples_is_that_of_the_template() -> None:
    told = {name: (row.function, row.trigger) for name, row in table().items()}

    assert told == {name: triggers_of(event)[0] for name, event in SAMPLES.items()}


@pytest.mark.parametrize("name", [name for name in SAMPLES if "httpMethod" in SAMPLES[name]])
def test_sample_of_the_gateway_fits_its_model_and_the_stage(name: str) -> None:
    event = deepcopy(SAMPLES[name])
    context = event["requestContext"]
    # The model knows scopes of Cognito alone, which are a list; what an authorizer gives is text.
    context.get("authorizer", {}).pop("scopes", "")
    model = (
        models.ApiGatewayAuthorizerRequest
        if "methodArn" in event
        else models.APIGatewayProxyEventModel
    )

    model.model_validate(event)

    stage = RESOURCES["Api"]["Properties"]["StageName"]
    assert context["stage"] == stage
    assert context["path"] == f"/{stage}{event['path']}"
    assert (context["httpMethod"], context["resourcePath"]) == (
        event["httpMethod"],
        event["resource"],
    )
    assert event["multiValueHeaders"] == {
        header: [value] for header, value in event["headers"].items()
    }
    proxied = event["path"].removeprefix("/")
    assert (event["pathParameters"] or {}).get("proxy", proxied) == proxied
    arn = f"arn:aws:execute-api:{REGION}:{ACCOUNT}:{context['apiId']}/{stage}"
    assert event.get("methodArn", f"{arn}/{event['httpMethod']}{event['path']}") == (
        f"{arn}/{event['httpMethod']}{event['path']}"
    )


@pytest.mark.parametrize("name", [name for name in SAMPLES if name.startswith("api_")])
def test_sample_without_an_authorizer_is_of_a_route_that_needs_none(name: str) -> None:
    ((function, trigger),) = triggers_of(SAMPLES[name])
    of = RESOURCES[function]["Properties"]["Events"][trigger.partition(":")[0]]["Properties"]

    has_authorizer = "authorizer" in SAMPLES[name]["requestContext"]

    assert has_authorizer is (of.get("Auth", {}).get("Authorizer") != "NONE")


@pytest.mark.parametrize("name", [name for name in SAMPLES if "Records" in SAMPLES[name]])
def test_sample_of_a_mapping_fits_its_model(name: str) -> None:
    event = SAMPLES[name]
    (record,) = event["Records"]

    _RECORDS[record["eventSource"]].model_validate(event)

    assert record["awsRegion"] == REGION
    if "body" in record:
        digest = hashlib.md5(record["body"].encode(), usedforsecurity=False).hexdigest()
        assert record["md5OfBody"] == digest


def test_sample_of_the_bus_fits_its_model() -> None:
    event = models.EventBridgeModel.model_validate(SAMPLES["invalidate_cache"])

    assert (event.account, event.region) == (ACCOUNT, REGION)
