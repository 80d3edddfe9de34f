"""SmolLM2-135M beside llama.cpp: prompt and decode rates on the same file and the same number of threads.

plait goes through its public front, so that its figures include scheduling, sampling and text; llama.cpp's are its
model calls and an argmax alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.peer import Peer, PeerMissing
from benchmarks.report import Row, alternate, num_threads, print_rows, rate_row
from plait.pipelines import LLM, SamplingParams
from plait.pipelines.model_files import find_model

MODEL = "smollm2"
# Ids that are ordinary words in this vocabulary of 49152.
TOKEN_IDS = (1000, 40000)


@dataclass(frozen=True)
class Case:
    """One shape of work; `goal` is the share of llama.cpp's speed to reach."""

    name: str
    sequences: int
    prompt_tokens: int
    new_tokens: int
    goal: float | None

    @property
    def tokens(self) -> int:
        """What the round is worth: the prompt of a prefill, else everything that was generated."""
        return self.prompt_tokens if self.new_tokens == 1 else self.sequences * self.new_tokens


CASES = (
    Case("prefill 512", 1, 512, 1, None),
    Case("decode, batch 1", 1, 1, 128, 0.5),
    Case("decode, batch 8", 8, 1, 64, 0.5),
)


def _plait_side(llm: LLM, case: Case) -> Callable[[], float]:
    """A side that returns tokens per second. Prompts are new in every round: a cached prefix would be no work."""
    random = np.random.default_rng(0)
    params = SamplingParams(max_tokens=case.new_tokens, temperature=0.0, ignore_eos=True)

    def run() -> float:
        prompts = random.integers(*TOKEN_IDS, (case.sequences, case.prompt_tokens)).tolist()
        start = time.perf_counter()
        completions = llm.generate(prompts, params)
        seconds = time.perf_counter() - start
        counts = [len(completion.token_ids) for completion in completions]
        assert counts == [case.new_tokens] * case.sequences, f"{case.name}: {counts} tokens came back"
        return case.tokens / seconds

    return run


def _peer_side(peer: Peer, case: Case) -> Callable[[], float]:
    def run() -> float:
        answer = peer.ask(case.name)
        return float(answer["tokens"]) / float(answer["seconds"])

    return run


def _peer_lines(peer: Peer) -> list[str]:
    about = peer.description
    buffers = "; ".join(about["buffers"]) or "no buffer reported"
    amx = "AMX buffers" if about["amx"] else "no AMX buffers: the slower peer, against which no goal counts"
    return [
        f"llama.cpp (llama-cpp-python {about['version']}), {about['compiler']}; {amx}",
        f"{about['system']}; {buffers}",
    ]


def _note(peer: Peer | None) -> str:
    """Why a row meets no goal: the fastest llama.cpp is clang's with AMX buffers, and nothing else stands for it."""
    if peer is None:
        return "not measured"
    fastest = peer.description["amx"] and "clang" in peer.description["compiler"]
    return "" if fastest else "slower peer"


def _row(llm: LLM, case: Case, peer: Peer | None) -> Row:
    sides = [_plait_side(llm, case)] + ([_peer_side(peer, case)] if peer else [])
    plait, *theirs = alternate(sides)
    other = theirs[0] if theirs else None
    return rate_row(case.name, plait, other, "tok/s", "llama.cpp", goal=case.goal, note=_note(peer))


def run() -> list[Row]:
    """Measure every case, print the table and return its rows."""
    peer, lines = None, []
    try:
        peer = Peer("llama", "llama.py", [str(find_model(MODEL)), str(num_threads())])
        lines = _peer_lines(peer)
    except PeerMissing as missing:
        lines = [f"{missing}: not measured"]
    llm = LLM(MODEL, max_length=2048, max_batch_size=8, threads=num_threads())
    rows = [_row(llm, case, peer) for case in CASES]
    if peer:
        peer.close()
    print_rows("SmolLM2-135M-Instruct, Q4_1", rows, lines)
    return rows
