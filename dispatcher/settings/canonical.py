"""The content of a limits file in one spelling: two files that say the same have the same content.

What says no more than the built-in defaults, or a category's ``defaults``, is left out, so that a file keeps its
content when a later version of the program knows more keys.
"""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from typing import Any

from dispatcher.settings.content import Content
from dispatcher.settings.limits_schema import CategorySection, ChannelSection, LimitsFile
from dispatcher.settings.limits_values import DEFAULT_CHANNEL_KEY


def content_of(file: LimitsFile) -> Content:
    """The content of a file without faults."""
    tree = content_tree(file)
    digest = blake2b(json.dumps(tree, sort_keys=True).encode(), digest_size=8).hexdigest()
    return Content(_in_ascii(json.dumps(tree, ensure_ascii=False)), digest)


def content_tree(file: LimitsFile) -> dict[str, Any]:
    """The content as plain data."""
    defaults = _whole(CategorySection().over(file.defaults))
    categories = {name: _category(section, file, defaults) for name, section in file.categories.items()}
    own = {"channels": _channels(file), "categories": categories}
    rest = file.model_dump(by_alias=True, exclude_defaults=True, exclude=set(own))
    return {key: value for key, value in (rest | own).items() if value != {}}


def _channels(file: LimitsFile) -> dict[str, Any]:
    said = {name: section.model_dump(exclude_unset=True) for name, section in file.channels.items()}
    built_in = ChannelSection().model_dump()
    return {
        name: keys for name, keys in said.items() if keys and not (name == DEFAULT_CHANNEL_KEY and keys == built_in)
    }


def _category(section: CategorySection, file: LimitsFile, defaults: dict[str, Any]) -> dict[str, Any]:
    """What it says other than the defaults; all that it says, where one key decides about another."""
    whole = _whole(section.over(file.defaults))
    said = {key: value for key, value in whole.items() if value is not None and value != defaults[key]}
    if _whole(CategorySection.model_validate(said).over(file.defaults)) == whole:
        return said
    return {key: whole[key] for key in whole if key in section.model_fields_set}


def _whole(section: CategorySection) -> dict[str, Any]:
    """Every key as plain data, as a limits file has it."""
    keys: dict[str, Any] = json.loads(json.dumps(section.model_dump()))
    return keys


def _in_ascii(text: str) -> str:
    """JSON that YAML reads the same way: it knows no surrogate pairs."""
    return re.sub(r"[^\x20-\x7e]", lambda found: f"\\U{ord(found[0]):08x}", text)
