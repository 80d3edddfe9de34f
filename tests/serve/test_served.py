"""SmolLM2 behind `plait serve`: what clients receive is what the model says, whoever else is being served."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from plait.serve.client import Client
from tests.serve.servers import ServeProcess, needs_model

pytestmark = [needs_model, pytest.mark.slow]

PROMPTS = [
    "Name three rivers.",
    "What is the capital of France?",
    "Write a haiku about snow.",
    "Count from one to ten.",
    "Why is the sky blue? " * 12,
    "Tell me a joke.",
    "List four colours and a use of each.",
    "Translate 'good morning' to French.",
]
QUESTION = [{"role": "user", "content": "Name three rivers."}]


def chat(served: ServeProcess, **fields: Any) -> Any:
    body = {"model": "smollm2", "messages": QUESTION, "temperature": 0} | fields
    return httpx.post(served.url + "/v1/chat/completions", json=body, timeout=120).json()


def streamed(served: ServeProcess, **fields: Any) -> tuple[str, str]:
    client = openai.OpenAI(base_url=served.url + "/v1", api_key="x", max_retries=0)
    ask: Any = client.chat.completions.create
    text, reason = "", ""
    for chunk in ask(model="smollm2", messages=QUESTION, temperature=0, stream=True, **fields):
        text += chunk.choices[0].delta.content or ""
        reason = chunk.choices[0].finish_reason or reason
    return text, reason


def test_eight_clients_receive_what_each_gets_alone(smollm2: ServeProcess) -> None:
    def ask(index: int, delay_s: float) -> str:
        time.sleep(delay_s)
        with Client(smollm2.url) as client:
            return "".join(client.chat(PROMPTS[index], model="smollm2", temperature=0, max_tokens=40))

    alone = [ask(index, 0) for index in range(8)]
    assert len(set(alone)) == 8
    for step_s in (0.0, 0.05):
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(ask, range(8), [index * step_s for index in range(8)]))
        assert together == alone


@pytest.mark.case("S01")
def test_a_stop_string_out_of_the_answer_itself(smollm2: ServeProcess) -> None:
    answer = chat(smollm2, max_tokens=40)["choices"][0]["message"]["content"]
    part = answer[len(answer) // 2 - 4 : len(answer) // 2 + 5]
    expected = answer[: answer.index(part)]
    for stop in (part, [part], ["zzz", part]):
        choice = chat(smollm2, max_tokens=40, stop=stop)["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (expected, "stop")
        assert streamed(smollm2, max_tokens=40, stop=stop) == (expected, "stop")


@pytest.mark.case("S02")
def test_a_held_tail_is_flushed_before_the_end(smollm2: ServeProcess) -> None:
    answer = chat(smollm2, max_tokens=20)
    text = answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "length"
    assert streamed(smollm2, max_tokens=20, stop=[text[-3:] + "~~never"]) == (text, "length")


@pytest.mark.case("S42")
def test_an_answer_that_ends_by_itself_at_the_limit_stopped(smollm2: ServeProcess) -> None:
    whole = chat(smollm2)
    assert whole["choices"][0]["finish_reason"] == "stop"
    count = whole["usage"]["completion_tokens"]
    assert chat(smollm2, max_tokens=count) | {"id": "", "created": 0} == whole | {"id": "", "created": 0}
    assert chat(smollm2, max_tokens=count - 1)["choices"][0]["finish_reason"] == "length"
    assert chat(smollm2, max_tokens=1)["usage"]["completion_tokens"] == 1


@pytest.mark.case("S25")
def test_too_long_is_refused_at_once_and_disturbs_nobody(smollm2: ServeProcess) -> None:
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(chat, smollm2, max_tokens=20)
        for length in (512, 513, 20_000):
            body = {"model": "smollm2", "prompt": [1] * length}
            error = httpx.post(smollm2.url + "/v1/completions", json=body, timeout=30).json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert str(length) in error["message"] and "512" in error["message"]
        assert beside.result()["usage"]["completion_tokens"] == 20
    body = {"model": "smollm2", "prompt": [1] * 500, "max_tokens": 100, "ignore_eos": True, "temperature": 0}
    clamped = httpx.post(smollm2.url + "/v1/completions", json=body, timeout=60).json()
    assert clamped["choices"][0]["finish_reason"] == "length" and clamped["usage"]["total_tokens"] == 512


@pytest.mark.case("S35")
def test_the_edges_of_sampling_work(smollm2: ServeProcess) -> None:
    greedy = chat(smollm2, max_tokens=8)["choices"][0]["message"]["content"]
    for fields in ({"temperature": 1e-6}, {"temperature": 2, "top_p": 0}, {"temperature": 2, "top_k": 1}):
        assert chat(smollm2, max_tokens=8, **fields)["choices"][0]["message"]["content"] == greedy
    drawn = [chat(smollm2, max_tokens=8, temperature=2, top_k=10**6, seed=0, n=2)["choices"] for _ in range(2)]
    assert drawn[0] == drawn[1] and drawn[0][0]["message"] != drawn[0][1]["message"]
