"""Chat templates against the reference renderings, their helpers, and the sandbox."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from plait.framework.errors import RequestError
from plait.pipelines.chat_template import render
from plait.pipelines.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.system(38)
@pytest.mark.parametrize("name", ["chat_single", "chat_system_multi", "chat_unicode"])
def test_prompts_equal_the_reference(name: str, smollm2_tokenizer: Tokenizer, smollm2_tokens: dict[str, Any]) -> None:
    prompt = next(p for p in smollm2_tokens["prompts"] if p["name"] == name)
    assert smollm2_tokenizer.chat_template is not None
    assert render(smollm2_tokenizer.chat_template, prompt["messages"]) == prompt["text"]


@pytest.mark.system(38)
def test_values_and_the_generation_flag_reach_the_template() -> None:
    template = "{{ bos_token }}{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}"
    assert render(template, HELLO, bos_token="<s>") == "<s>hello>"
    assert render(template, HELLO, add_generation_prompt=False, bos_token="<s>") == "<s>hello"


@pytest.mark.system(38)
def test_block_lines_leave_no_blanks() -> None:
    assert render("a\n  {% if true %}\nb\n  {% endif %}\nc", HELLO) == "a\nb\nc"


@pytest.mark.system(38)
def test_json_is_written_without_html_escapes() -> None:
    assert render("{{ value | tojson }}", HELLO, value={"a": "<é&'>"}) == '{"a": "<é&\'>"}'
    assert render("{{ value | tojson(indent=1) }}", HELLO, value=[1]) == "[\n 1\n]"


@pytest.mark.system(38)
def test_loop_controls_dates_and_generation_marks_work() -> None:
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", HELLO) == "01"
    assert render("{{ strftime_now('%Y') }}", HELLO) in {str(datetime.date.today().year + step) for step in (-1, 0, 1)}
    assert render("a{% generation %}{{ 1 + 1 }}{% endgeneration %}b", HELLO) == "a2b"


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("a\n{% if %}", "line 2"),
        ("{{ nothing.content }}", "nothing"),
        ("{{ messages + 1 }}", "TypeError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content | tojson(indent='x', sort_keys=nope.nope) }}", "nope"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ render.__globals__ }}", "render"),
        ("{% include '/etc/passwd' %}", "no loader"),
    ],
)
def test_a_template_that_fails_is_a_request_error(template: str, found: str) -> None:
    messages = [dict(message) for message in HELLO]
    with pytest.raises(RequestError) as caught:
        render(template, messages)
    assert found in str(caught.value) and "\n" not in str(caught.value)
    assert (caught.value.param, caught.value.status) == ("messages", 400)
    assert messages == HELLO
