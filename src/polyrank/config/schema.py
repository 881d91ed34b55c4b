"""JSON Schema of recipes, with which editors complete and check TOML, derived from types, ranges and docstrings."""

import dataclasses
import inspect
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from polyrank.config.checked import Limits, Settings, field_types, is_settings, without_none
from polyrank.config.models import BackboneConfig
from polyrank.config.pretrain import PretrainRecipe
from polyrank.config.recipe import Recipe
from polyrank.config.train import NetworkTraining

_ENTRY = re.compile(r"^    ([a-z_][a-z_, ]*): (.*)$")
_TYPES: Mapping[type, str] = {int: "integer", float: "number", bool: "boolean", str: "string"}
Schema = dict[str, Any]


def recipe_schema() -> Schema:
    """The schema of a recipe for ``polyrank train``.

    >>> recipe_schema()["properties"]["train"]["properties"]["lr"]["type"]
    'number'
    """
    schema, partner = _of_settings(Recipe, {}), _of_type(BackboneConfig, {})
    for model in (*schema["properties"]["model"]["anyOf"], *partner["anyOf"]):
        model["required"].append("kind")
    for model in partner["anyOf"]:
        model["properties"]["train"] = _of_settings(NetworkTraining, {})
    schema["properties"]["reranker"] = {"description": "the second network of a mutual training.", **partner}
    return _titled(schema, "A recipe for polyrank train")


def pretrain_schema() -> Schema:
    """The schema of a recipe for ``polyrank pretrain``."""
    schema = _of_settings(PretrainRecipe, {})
    schema["required"].remove("model")  # the default is a network of the default sizes
    return _titled(schema, "A recipe for polyrank pretrain")


def meanings(kind: type[Any]) -> dict[str, str]:
    """The descriptions of the fields, from the docstrings of a class and of its bases.

    >>> meanings(Limits)["most"]
    'the highest valid value.'
    """
    lines_of: dict[str, list[str]] = {}
    for ancestor in reversed(kind.__mro__):
        current: list[str] = []
        for line in (inspect.getdoc(ancestor) or "").partition("Args:\n")[2].splitlines():
            if entry := _ENTRY.match(line):
                current = [entry[2]]
                lines_of |= dict.fromkeys(entry[1].split(", "), current)
            elif line.startswith("        "):
                current.append(line.strip())
            else:
                break
    joined = {name: " ".join(lines) for name, lines in lines_of.items()}
    return {name: re.sub(r"\bNone\b", "none", text).replace("``", "`") for name, text in joined.items()}


def _titled(schema: Schema, title: str) -> Schema:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}


def _of_settings(kind: type[Any], about: Schema) -> Schema:
    """A table: keys without a default are required, and unknown keys are errors."""
    properties, required, texts = {}, [], meanings(kind)
    if hasattr(kind, "kind"):
        properties["kind"] = {"const": kind.kind}
    types = field_types(kind)
    for field in dataclasses.fields(kind):
        about_field: Schema = {"description": texts[field.name]} if field.name in texts else {}
        has_default = field.default is not dataclasses.MISSING
        if has_default and field.default is not None and not isinstance(field.default, Settings):
            about_field["default"] = list(field.default) if isinstance(field.default, tuple) else field.default
        if not has_default and field.default_factory is dataclasses.MISSING:
            required.append(field.name)
        properties[field.name] = _of_type(types[field.name], about_field)
    return {**about, "type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _of_type(hint: Any, about: Schema) -> Schema:
    options: list[Any] = without_none(hint)
    if is_settings(options[0]):
        if len(options) == 1:
            return _of_settings(options[0], about)
        return {**about, "anyOf": [_of_settings(option, {}) for option in options]}
    (option,) = options
    if get_origin(option) is Annotated:
        option, limits = get_args(option)
        return _of_type(option, {**about, **_range(limits)})
    if get_origin(option) is Literal:
        return {**about, "enum": list(get_args(option))}
    if get_origin(option) is tuple:
        items = get_args(option)
        length = {} if Ellipsis in items else {"minItems": len(items), "maxItems": len(items)}
        item = _of_type(items[0], {})
        several = {"type": "array", "items": item, **length}
        return {**about, "anyOf": [item, several]} if "enum" in item else {**about, **several}  # one word needs no list
    return {**about, "type": _TYPES[option]}


def _range(limits: Limits) -> Schema:
    ends = {"minimum": limits.least, "maximum": limits.most, "exclusiveMinimum": limits.above}
    return {name: value for name, value in ends.items() if math.isfinite(value)}
