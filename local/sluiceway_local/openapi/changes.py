"""What a new document breaks for the clients of an old one.

Whatever the old one took must still be taken, and whatever the new one gives must be something that
clients of the old one know: so a request's schema may only get wider, and an answer's only
narrower. Members that answers have besides are harmless: clients ignore them. What isn't understood
counts as a break when it differs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_ANNOTATIONS = frozenset({"description", "title", "examples", "example", "deprecated", "summary"})
_NO_LESS = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_NO_MORE = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_READ_BY_FIT = frozenset(
    {*_NO_LESS, *_NO_MORE, "type", "enum", "const", "required", "properties"}
    | {"additionalProperties", "items", "default"}
)


def breaks(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Each break, with its place in the document."""
    found: list[str] = []
    for path, operations in old["paths"].items():
        if path not in new["paths"]:
            found.append(f"{path}: is gone")
            continue
        for method, operation in operations.items():
            place = f"{method.upper()} {path}"
            now = new["paths"][path].get(method)
            if now is None:
                found.append(f"{place}: is gone")
            else:
                found += [f"{place}: {text}" for text in _Comparison(old, new).call(operation, now)]
    codes = set(old.get("components", {}).get("examples", {}))
    gone = codes - set(new.get("components", {}).get("examples", {}))
    return found + [f"the code {code} is gone" for code in sorted(gone)]


@dataclass
class _Comparison:
    """Of one call."""

    old: dict[str, Any]
    new: dict[str, Any]
    seen: set[tuple[str, str, bool]] = field(default_factory=set)
    """Pairs of references that were compared, since schemas may refer to themselves."""

    # -------------------------------------------------------------------------------- calls

    def call(self, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
        if old.get("operationId") != new.get("operationId"):
            yield "has another operationId, by which clients are generated"
        if new.get("security") and new["security"] != old.get("security"):
            yield "needs another key or scope"
        yield from self._parameters(old, new)
        yield from self._body(old.get("requestBody"), new.get("requestBody"))
        for status, answer in old["responses"].items():
            now = new["responses"].get(status)
            if now is not None:
                yield from (f"{status}: {text}" for text in self._answer(answer, now))
            elif status.startswith("2"):
                yield f"{status}: is gone"
        for status in new["responses"]:
            if status.startswith("2") and status not in old["responses"]:
                yield f"{status}: is new, and means success"

    def _parameters(self, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
        before, now = (
            {(one["in"], one["name"]): one for one in call.get("parameters", [])}
            for call in (old, new)
        )
        for key, parameter in before.items():
            name = " ".join(key)
            if key not in now:
                yield f"{name}: is gone"
                continue
            if now[key].get("required") and not parameter.get("required"):
                yield f"{name}: has become required"
            schemas = parameter.get("schema", {}), now[key].get("schema", {})
            yield from (f"{name}{text}" for text in self._taken(*schemas))
        for key, parameter in now.items():
            if key not in before and parameter.get("required"):
                yield f"{' '.join(key)}: is new and required"

    def _body(self, old: dict[str, Any] | None, new: dict[str, Any] | None) -> Iterator[str]:
        if old is None:
            if new is not None and new.get("required"):
                yield "body: is new and required"
            return
        if new is None:
            yield "body: is gone"
            return
        if new.get("required") and not old.get("required"):
            yield "body: has become required"
        for kind, content in old["content"].items():
            if kind not in new["content"]:
                yield f"body: {kind} is gone"
                continue
            schemas = content.get("schema", {}), new["content"][kind].get("schema", {})
            yield from (f"body{text}" for text in self._taken(*schemas))

    def _answer(self, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
        for kind, content in old.get("content", {}).items():
            if kind not in new.get("content", {}):
                yield f"{kind} is gone"
                continue
            schemas = content.get("schema", {}), new["content"][kind].get("schema", {})
            yield from (f"body{text}" for text in self._given(*schemas))
        if not old.get("content") and new.get("content"):
            yield "has a body now"
        for name, header in old.get("headers", {}).items():
            if name not in new.get("headers", {}):
                yield f"the header {name} is gone"
                continue
            before, now = _found(header, self.old), _found(new["headers"][name], self.new)
            if before.get("required") and not now.get("required"):
                yield f"the header {name} may be missing now"
            schemas = before.get("schema", {}), now.get("schema", {})
            yield from (f"the header {name}{text}" for text in self._given(*schemas))

    # -------------------------------------------------------------------------------- schemas

    def _taken(self, old: Any, new: Any) -> Iterator[str]:
        """What the old schema allows and the new one doesn't."""
        yield from self._unfit(old, new, "", newer=False)

    def _given(self, old: Any, new: Any) -> Iterator[str]:
        """What the new schema allows and the old one doesn't."""
        yield from self._unfit(new, old, "", newer=True)

    def _unfit(self, part: Any, whole: Any, at: str, *, newer: bool) -> Iterator[str]:
        """Why values of `part` may not be values of `whole`. `newer`: `part` is the new one's."""
        of_part, of_whole = (self.new, self.old) if newer else (self.old, self.new)
        names = part.get("$ref", ""), whole.get("$ref", "")
        if all(names):
            if (*names, newer) in self.seen:
                return
            self.seen.add((*names, newer))
        variants = [one for given in _variants(part, of_part) for one in _variants(given, of_part)]
        wholes = [one for given in _variants(whole, of_whole) for one in _variants(given, of_whole)]
        for variant in variants:
            faults = [
                list(self._unfit_one(variant, candidate, at, newer=newer)) for candidate in wholes
            ]
            yield from min(faults, key=len)

    def _unfit_one(
        self, part: dict[str, Any], whole: dict[str, Any], at: str, *, newer: bool
    ) -> Iterator[str]:
        if _plain(part) == _plain(whole) and "$ref" not in repr(part):
            return
        kinds = part.get("type"), whole.get("type")
        if kinds[1] is not None and kinds[0] != kinds[1] and kinds != ("integer", "number"):
            yield f"{at}: {kinds[0]} is no {kinds[1]}"
            return
        values, known = _values(part), _values(whole)
        if known is not None:
            strange = "any value" if values is None else [v for v in values if v not in known]
            if strange:
                yield f"{at}: {strange} is not among {known}"
        yield from _beyond_limits(part, whole, at)
        if newer is False and part.get("default") != whole.get("default"):
            yield f"{at}: has another default"
        for keyword in (whole.keys() | part.keys()) - _READ_BY_FIT - _ANNOTATIONS:
            if keyword in whole and part.get(keyword) != whole[keyword]:
                yield f"{at}: {keyword} has changed"
        if "items" in whole:
            yield from self._unfit(part.get("items", {}), whole["items"], f"{at}[]", newer=newer)
        if whole.get("type") == "object":
            yield from self._unfit_object(part, whole, at, newer=newer)

    def _unfit_object(
        self, part: dict[str, Any], whole: dict[str, Any], at: str, *, newer: bool
    ) -> Iterator[str]:
        for name in sorted({*whole.get("required", [])} - {*part.get("required", [])}):
            told = name in part.get("properties", {}) or not newer
            if told:  # else it is gone, which is said below
                yield f"{at}.{name}: {'may be missing now' if newer else 'has become required'}"
        members, known = part.get("properties", {}), whole.get("properties", {})
        others = whole.get("additionalProperties", True)
        for name, schema in members.items():
            if name in known:
                yield from self._unfit(schema, known[name], f"{at}.{name}", newer=newer)
            elif others is False:
                yield f"{at}.{name}: is not taken any more"
            elif others is not True:
                yield from self._unfit(schema, others, f"{at}.{name}", newer=newer)
        if part.get("additionalProperties", True) is not False:
            for name in sorted(known.keys() - members.keys()):
                yield f"{at}.{name}: {'is gone' if newer else 'may not be whatever it could be'}"
            yield from self._unfit_others(part, whole, at, newer=newer)

    def _unfit_others(
        self, part: dict[str, Any], whole: dict[str, Any], at: str, *, newer: bool
    ) -> Iterator[str]:
        """As to members that the schemas don't name."""
        besides = part.get("additionalProperties", True)
        others = whole.get("additionalProperties", True)
        if others is False:
            yield f"{at}: other members are not taken any more"
        elif others is not True:
            given = {} if besides is True else besides
            yield from self._unfit(given, others, f"{at}.*", newer=newer)


def _variants(schema: dict[str, Any], document: dict[str, Any]) -> list[dict[str, Any]]:
    """The schemas of which a value fits one; itself, if it is no choice."""
    schema = _found(schema, document)
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema and not schema.keys() - {keyword, "default"} - _ANNOTATIONS:
            return [_found(one, document) for one in schema[keyword]]
    return [schema]


def _found(part: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """The part, or what it refers to."""
    if "$ref" not in part:
        return part
    found: Any = document
    for name in part["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return {**found, **{name: value for name, value in part.items() if name != "$ref"}}


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name not in _ANNOTATIONS}


def _values(schema: dict[str, Any]) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _beyond_limits(part: dict[str, Any], whole: dict[str, Any], at: str) -> Iterator[str]:
    for keyword in _NO_LESS:
        if keyword in whole and part.get(keyword, float("-inf")) < whole[keyword]:
            yield f"{at}: {keyword} {part.get(keyword)} is less than {whole[keyword]}"
    for keyword in _NO_MORE:
        if keyword in whole and part.get(keyword, float("inf")) > whole[keyword]:
            yield f"{at}: {keyword} {part.get(keyword)} is more than {whole[keyword]}"
