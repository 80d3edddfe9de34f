"""The served model against reference numbers of an independent float32 implementation over the same weights.

tests/data/smollm2_golden.json: twelve prompts with greedy continuations, margins between the best two logits, and
logits at the last prompt position.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plait.framework.config import override
from plait.framework.conversion import from_numpy
from plait.framework.errors import FormatError, LoadError
from plait.framework.op import TABLE
from plait.framework.tensor import Tensor
from plait.jit.runner import runner as eager
from plait.pipelines.architectures.llama import ARCHITECTURES, LlamaConfig
from plait.pipelines.gguf import GGUFFile
from plait.pipelines.llm import LLM
from plait.pipelines.model_runner import step_arrays
from plait.pipelines.registry import find_architecture, load_model
from plait.pipelines.sampling import SamplingParams
from plait.pipelines.scheduler import Sequence, Slice
from plait.pipelines.weights import load_weights

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "smollm2_golden.json").read_text(encoding="utf-8"))
PROMPTS: list[dict[str, Any]] = GOLDEN["prompts"]
LONG = next(p for p in PROMPTS if p["name"] == "long_600")


@pytest.fixture(scope="module")
def exact(smollm2_path: Path) -> LLM:
    return LLM(smollm2_path, activation_mode="exact", max_length=1024)


@pytest.fixture(scope="module")
def int8(smollm2_path: Path) -> LLM:
    return LLM(smollm2_path, activation_mode="int8", max_length=1024)


def all_logits(llm: LLM, tokens: list[int], first: int = 0) -> np.ndarray:
    """Logits at every position from `first` on, in one step: each one is a sequence of one row over shared pages."""
    pool, size = llm.engine.scheduler.pool, llm.options.kv_cache_page_size
    pages = pool.allocate(-(-len(tokens) // size))
    shared = Sequence("probe", tokens, SamplingParams(), 0, len(tokens), len(tokens), pages=pages)
    try:
        rows = [Slice(shared, 0, first + 1), *(Slice(shared, i, i + 1) for i in range(first + 1, len(tokens)))]
        return np.array(llm.engine.runner.run(rows))
    finally:
        pool.free(pages)


def nll(logits: np.ndarray, tokens: list[int]) -> float:
    wide = logits[:-1].astype(np.float64)
    top = wide.max(-1)
    logsumexp = top + np.log(np.exp(wide - top[:, None]).sum(-1))
    return float((logsumexp - wide[np.arange(len(wide)), tokens[1:]]).mean())


def continuations(llm: LLM, prompts: list[dict[str, Any]]) -> list[list[int]]:
    params = [SamplingParams(temperature=0, max_tokens=len(p["greedy"])) for p in prompts]
    return [answer.token_ids for answer in llm.generate([p["ids"] for p in prompts], params)]


@pytest.mark.slow
def test_exact_mode_reproduces_every_reference_continuation(exact: LLM) -> None:
    assert continuations(exact, PROMPTS) == [p["greedy"] for p in PROMPTS]


@pytest.mark.slow
@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: p["name"])
def test_exact_logits_are_within_a_thousandth(exact: LLM, prompt: dict[str, Any]) -> None:
    logits = all_logits(exact, prompt["ids"], len(prompt["ids"]) - 1)[0]
    ids, expected = zip(*prompt["top5"], strict=True)
    assert np.argsort(-logits, kind="stable")[:5].tolist() == list(ids)
    np.testing.assert_allclose(logits[list(ids)], expected, atol=1e-3)
    np.testing.assert_allclose(logits[GOLDEN["logit_probe_ids"]], prompt["probe"], atol=1e-3)


@pytest.mark.slow
def test_int8_mode_picks_the_reference_token_wherever_it_is_clear(int8: LLM) -> None:
    """Fed with the reference's own tokens; a step is clear when the best two logits are 0.6 apart."""
    wrong, checked = [], 0
    for prompt in PROMPTS:
        greedy, start = prompt["greedy"], len(prompt["ids"]) - 1
        logits = all_logits(int8, prompt["ids"] + greedy[:-1], start)
        for step, (token, margin) in enumerate(zip(greedy, prompt["margins"], strict=True)):
            if margin >= 0.6:
                checked += 1
                wrong += [(prompt["name"], step, margin)] if int(logits[step].argmax()) != token else []
    assert checked > 380 and wrong == []


@pytest.mark.slow
def test_int8_logits_stay_near_the_reference(int8: LLM) -> None:
    """The bound is what an independent program with blocks of 32 shows; the rms says how much of it is noise."""
    found = [all_logits(int8, p["ids"], len(p["ids"]) - 1)[0] for p in PROMPTS]
    errors = np.array([row[id_] - value for row, p in zip(found, PROMPTS, strict=True) for id_, value in p["top5"]])
    assert np.sqrt((errors**2).mean()) < 0.17
    assert np.abs(errors).max() <= 0.28


@pytest.mark.slow
def test_mean_negative_log_likelihood_of_a_long_text(exact: LLM, int8: LLM) -> None:
    assert abs(nll(all_logits(exact, LONG["ids"]), LONG["ids"]) - LONG["mean_nll"]) < 1e-4
    assert abs(nll(all_logits(int8, LONG["ids"]), LONG["ids"]) - LONG["mean_nll"]) < 0.02


@pytest.mark.slow
def test_the_interpreter_gives_exact_modes_tokens(smollm2_path: Path) -> None:
    with override(jit=0):
        llm = LLM(smollm2_path, activation_mode="exact", max_length=64)
        (answer,) = llm.generate([PROMPTS[0]["ids"]], SamplingParams(temperature=0, max_tokens=6))
    assert answer.token_ids == PROMPTS[0]["greedy"][:6]


@pytest.mark.slow
@pytest.mark.system(42)
def test_eight_prompts_admitted_at_different_steps_equal_each_alone(int8: LLM) -> None:
    prompts = [p for p in PROMPTS if p["name"] != "long_600"][:8]
    params = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
    alone = [int8.generate([p["ids"]], params)[0].token_ids for p in prompts]
    streams, found, widest = [], {}, 0
    answers: dict[str, Any] = {}
    for prompt in prompts:
        answers |= int8._submit([(prompt["ids"], params)])
        streams += [event for event in int8.engine.step()]
    while int8.engine.has_work:
        events = int8.engine.step()
        widest = max(widest, len(events))
        streams += events
    for event in streams:
        found.setdefault(event.request_id, []).append(event.token)
    assert [found[request_id] for request_id in answers] == alone
    assert widest >= 6


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["exact", "int8"])
def test_a_rows_logits_are_the_same_bits_however_the_prompt_is_cut(mode: str, request: pytest.FixtureRequest) -> None:
    llm: LLM = request.getfixturevalue(mode)
    tokens = LONG["ids"][:100]
    whole = all_logits(llm, tokens, 99)[0]
    np.testing.assert_array_equal(all_logits(llm, tokens)[99], whole)
    pool = llm.engine.scheduler.pool
    pages = pool.allocate(4)
    sequence = Sequence("cut", tokens, SamplingParams(), 0, 100, 100, pages=pages)
    for start, end in ((0, 1), (1, 40), (40, 97), (97, 100)):
        last = llm.engine.runner.run([Slice(sequence, start, end)])[0]
    pool.free(pages)
    np.testing.assert_array_equal(last, whole)


@pytest.mark.slow
def test_a_decode_layer_is_at_most_eight_launches_and_no_host_call(exact: LLM, int8: LLM) -> None:
    for llm in (exact, int8):
        compiled = llm.engine.runner.compiled
        layers = llm.engine.runner.model.config.num_layers
        assert compiled.host_calls == []
        assert len(compiled.launches) <= 8 * layers + 6


@pytest.mark.slow
def test_a_step_enters_native_code_once_and_interprets_nothing(int8: LLM) -> None:
    runner, pool = int8.engine.runner, int8.engine.scheduler.pool
    pages = pool.allocate(1)
    sequence = Sequence("once", [504], SamplingParams(), 0, 1, 1, pages=pages)
    arguments = [*(from_numpy(array) for array in step_arrays([Slice(sequence, 0, 1)])), runner.cache]
    runner.compiled(*arguments)
    before = (eager.counters.kernels, eager.counters.host_records)
    entered: list[Any] = []
    sys.setprofile(lambda frame, event, argument: entered.append(argument) if event == "c_call" else None)
    try:
        runner.compiled(*arguments)
    finally:
        sys.setprofile(None)
    pool.free(pages)
    assert [call.__name__ for call in entered if call is not sys.setprofile] == ["enter"]
    assert (eager.counters.kernels, eager.counters.host_records) == before


@pytest.fixture(scope="module")
def model(smollm2_file: GGUFFile) -> Any:
    return load_model(smollm2_file, mode="exact", page_size=32)


@pytest.mark.case("N06")
def test_a_tied_checkpoint_loads_without_a_head_and_shares_one_buffer(model: Any, smollm2_file: GGUFFile) -> None:
    assert "output.weight" not in smollm2_file.tensors and len(smollm2_file.tensors) == 272
    state = model.state_dict()
    assert state["head.weight"] is state["embedding.weight"]
    mapped = smollm2_file.tensors["token_embd.weight"].data
    assert np.shares_memory(state["head.weight"].numpy(), mapped), "the table must be the file's own bytes"


@pytest.mark.slow
@pytest.mark.case("N06")
def test_a_saved_tied_model_reloads_tied_with_the_same_values(
    model: Any, smollm2_file: GGUFFile, tmp_path: Path
) -> None:
    model.save(tmp_path / "model.safetensors")
    table = smollm2_file.tensors["token_embd.weight"].num_bytes
    assert (tmp_path / "model.safetensors").stat().st_size < sum(
        t.num_bytes for t in smollm2_file.tensors.values()
    ) + table // 2
    twin = load_model(smollm2_file, mode="exact", page_size=32)
    twin.load_state(lambda name, current: np.zeros(current.shape, current.dtype.numpy))
    twin.load(tmp_path / "model.safetensors")
    assert twin.head.weight is twin.embedding.weight
    for (name, found), (_, expected) in zip(twin.parameters, model.parameters, strict=True):
        assert np.array_equal(found.numpy(), expected.numpy()), name


def test_every_parameter_comes_from_the_file_or_is_computed(model: Any) -> None:
    names = [name for name, _ in model.parameters]
    assert len(names) == 30 * 7 + 4  # per layer two norms, qkv, output, gate, up, down; embedding, head, norm, rope
    assert {"rope.table", "embedding.weight", "norm.weight", "layers.29.mlp.down.weight"} <= set(names)


def test_the_staged_model_holds_only_rows_of_the_op_table(model: Any) -> None:
    graph = model.trace(*model.cache_params.layouts())
    assert {node.op.name for node in graph.nodes} <= set(TABLE)
    assert len(graph.weights) == 30 * 7 + 3  # the tied head is the embedding's weight


def test_unused_and_missing_tensors_are_named(model: Any, smollm2_file: GGUFFile) -> None:
    (llama,) = ARCHITECTURES
    sources = dict(llama.sources(model))
    renamed = sources | {"norm": ["final_norm"]}
    with pytest.raises(LoadError, match="missing.*final_norm.weight"):
        load_weights(model, smollm2_file, renamed)
    with pytest.raises(LoadError, match="output_norm.weight"):
        load_weights(model, smollm2_file, sources | {"norm": []})
    without = {path: names for path, names in sources.items() if path != "norm"}
    with pytest.raises(LoadError, match="'norm.weight'"):
        load_weights(model, smollm2_file, without)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("llama.block_count", None, "block_count.*None"),
        ("llama.embedding_length", -3, "embedding_length.*-3"),
        ("llama.attention.layer_norm_rms_epsilon", "x", "epsilon.*'x'"),
        ("llama.rope.scaling.type", "yarn", "scaling.type.*'yarn'"),
    ],
)
def test_impossible_metadata_is_refused_by_name(smollm2_file: GGUFFile, field: str, value: Any, words: str) -> None:
    metadata = smollm2_file.metadata | {field: value}
    if value is None:
        del metadata[field]
    with pytest.raises(FormatError, match=words):
        LlamaConfig.read(metadata, {})


def test_an_unknown_architecture_names_the_known_ones() -> None:
    with pytest.raises(LoadError, match="'lama'.*did you mean 'llama'.*known: .*llama"):
        find_architecture("lama")


def test_parameters_declare_how_they_lie_on_a_mesh(model: Any) -> None:
    specs = {name: tuple(mapping.spec) for name, mapping in model.mappings.items()}
    assert specs["layers.3.attention.qkv.weight"] == ("tp", None)
    assert specs["layers.3.attention.output.weight"] == (None, "tp")
    assert specs["layers.3.mlp.gate.weight"] == ("tp", None) and specs["layers.3.mlp.down.weight"] == (None, "tp")
    assert specs["layers.3.mlp_norm.weight"] == (None,)
    assert isinstance(model.state_dict()["norm.weight"], Tensor)
