"""Health, the models, and what operators may do to the cache."""

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.router import APIGatewayRouter

from sluiceway.domain.request import parse_invalidation
from sluiceway.http import Reply, invalidated_reply, model_reply, models_reply
from sluiceway.routes.request import request_of
from sluiceway.usecases.invalidate_cache import Invalidation, invalidate_cache

router = APIGatewayRouter()  # type: ignore[no-untyped-call]


@router.route("/health", ["GET", "HEAD"])
def get_health() -> Response[str]:
    """Whether the API answers; needs no key."""
    return request_of(router).respond(Reply(200, {"status": "ok"}, {}))


@router.route("/models", ["GET", "HEAD"])
def get_models() -> Response[str]:
    """The models of the catalogue, in OpenAI's list form."""
    request = request_of(router)
    request.caller("read")
    request.parameters()
    return request.respond(models_reply(request.deps.submitter.catalogue.models))


@router.route("/models/<name>", ["GET", "HEAD"])
def get_model(name: str) -> Response[str]:
    """One model of the catalogue."""
    request = request_of(router)
    request.caller("read")
    request.parameters()
    return request.respond(model_reply(name, request.deps.submitter.catalogue.model(name)))


@router.post("/admin/cache/invalidate")
def post_invalidate() -> Response[str]:
    """Makes what is cached for a model or tenant, or under a key, invalid."""
    request = request_of(router)
    caller = request.caller("admin")
    request.parameters()
    wanted = parse_invalidation(request.json())
    if wanted.model is not None:
        # A slip of the pen would do nothing.
        request.deps.submitter.catalogue.model(wanted.model)
    done = invalidate_cache(
        Invalidation.of(wanted),
        actor=f"key:{caller.key_id}",
        request_id=request.request_id,
        invalidator=request.deps.invalidator,
    )
    return request.respond(
        invalidated_reply(done.subject, at_ms=done.at_epoch_ms, epoch=done.epoch, found=done.found)
    )
