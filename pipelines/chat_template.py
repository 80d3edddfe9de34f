"""Renders a model's chat template to text, in a sandbox.

Knows Jinja and the helpers that published templates call. Does not know models, tokens or requests.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from plait.framework.errors import RequestError
from plait.pipelines.tokenizer import Tokenizer


def render(
    template: str, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **values: Any
) -> str:
    """Render `messages` to the prompt text; `values` (tools, bos_token, ...) are names the template may read.

    Raises: RequestError if the template cannot be read, refuses the messages, or fails on them.
    """
    compiled = compile_template(template)
    try:
        return compiled.render(messages=messages, add_generation_prompt=add_generation_prompt, **values)
    except jinja2.TemplateError as error:
        raise _refusal("the template refuses these messages", error) from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise _refusal("the template fails on these messages", error) from None


def render_chat(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]) -> str:
    """The prompt text that a model's own template makes of messages.

    Raises: RequestError when the model has no template, or it refuses the messages.
    """
    if tokenizer.chat_template is None:
        raise RequestError("messages: the model has no chat template; give the prompt as text.", param="messages")
    ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    names: dict[str, Any] = {key: tokenizer.token_name(i) for key, i in ids.items() if i is not None}
    return render(tokenizer.chat_template, messages, **names)


@functools.lru_cache(maxsize=32)
def compile_template(template: str) -> jinja2.Template:
    """Compile a template; the last ones used are kept.

    Raises: RequestError naming the line if it is not a valid template.
    """
    try:
        return _environment().from_string(template)
    except jinja2.TemplateSyntaxError as error:
        raise _refusal(f"line {error.lineno} of the template is not valid", error) from None


def _refusal(what: str, error: Exception) -> RequestError:
    name = "" if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: "
    return RequestError(f"chat template: {what}: {name}{error}", param="messages")


@functools.cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks what the model wrote, for training; it renders as is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes <, >, & and ' for HTML, which a prompt must not have."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.datetime.now().strftime(layout)
