"""The model without a file: what it answers, alone and in a batch, and how its name is read."""

from __future__ import annotations

import time

import pytest

from plait.framework.errors import ConfigError, LoadError
from plait.jit.compiled import CompiledCallable
from plait.pipelines.builtin import open_model
from plait.pipelines.llm import LLM
from plait.pipelines.sampling import SamplingParams
from plait.pipelines.tokenizer import Tokenizer

NINE = SamplingParams(max_tokens=9, temperature=0.0)


@pytest.fixture(scope="module")
def echo() -> LLM:
    return LLM("echo", max_batch_size=4)


def test_it_counts_from_the_last_byte_and_starts_over(echo: LLM) -> None:
    endless = echo.generate("a", SamplingParams(max_tokens=2000))[0]
    assert endless.text == "".join(f" {(ord('a') + k) % 1000}" for k in range(2000))
    assert endless.finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "text", "num_tokens"), [("3", " three two one", 4), ("wait 1", " one", 2), ("0", "", 1)]
)
def test_a_digit_is_counted_down(echo: LLM, prompt: str, text: str, num_tokens: int) -> None:
    answer = echo.generate(prompt, NINE)[0]
    assert (answer.text, answer.finish_reason, len(answer.token_ids)) == (text, "stop", num_tokens)


def test_an_emoji_takes_four_tokens(echo: LLM) -> None:
    pieces = [piece.text for piece in echo.stream("why?", SamplingParams(max_tokens=8))]
    assert pieces == ["", "", "", "😀"] * 2


def test_a_batch_answers_as_each_prompt_alone(echo: LLM) -> None:
    prompts = ["abc", "9", "x" * 700 + "z", "why?", "-", "2"]
    alone = [echo.generate(prompt, NINE)[0] for prompt in prompts]
    assert echo.generate(prompts, NINE) == alone
    assert len({answer.text for answer in alone}) == len(prompts)


def test_the_answer_to_a_chat_follows_from_its_last_message(echo: LLM) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "count 2"}]
    assert echo.generate(messages, NINE)[0].text == " two one"


def test_it_is_compiled_as_any_other_model(echo: LLM) -> None:
    assert isinstance(echo.engine.runner.compiled, CompiledCallable)  # type: ignore[attr-defined]


def test_a_step_takes_the_delay_of_the_name() -> None:
    llm = LLM("echo?delay_ms=20")
    start = time.monotonic()
    assert llm.generate("a", SamplingParams(max_tokens=3))[0].text == " 97 98 99"
    assert time.monotonic() - start >= 0.06  # a lower bound only: sleeping never ends early


@pytest.mark.parametrize("query", ["delay=3", "delay_ms=nan", "delay_ms=-1", "delay_ms=", "delay_ms=1e9"])
def test_options_are_checked(query: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        open_model(f"echo?{query}")


def test_other_names_are_files() -> None:
    with pytest.raises(LoadError, match="not found"):
        open_model("echoes?delay_ms=10")


def test_every_byte_is_a_token() -> None:
    tokenizer = Tokenizer.from_gguf(open_model("echo").metadata)
    text = "".join(map(chr, range(0x250))) + "😀"
    ids = tokenizer.encode(text)
    assert bytes(ids) == text.encode()
    assert tokenizer.decode(ids) == text
