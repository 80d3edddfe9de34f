"""The llama.cpp side, run by the peer's own Python: `llama.py MODEL THREADS`, then one case name per line of stdin.

Answers in JSON lines, first a description of the build. Times what llama-bench times: llama_decode and the argmax
between steps, through the low-level API. Knows nothing of plait.
"""

import ctypes
import json
import sys
import time
from pathlib import Path

import llama_cpp
import numpy as np

PROMPT_TOKENS = 512
# case -> (sequences, tokens decoded per sequence); prefill has one step of PROMPT_TOKENS
CASES = {"prefill 512": (1, 0), "decode, batch 1": (1, 128), "decode, batch 8": (8, 64)}

log_lines = []


@llama_cpp.llama_log_callback
def keep_log(level, text, user_data):
    log_lines.append(text.decode("utf-8", "replace"))


def open_model(path):
    llama_cpp.llama_log_set(keep_log, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    if not model:
        sys.exit("llama.cpp could not load " + path)
    return model


def open_context(model, threads, sequences):
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = max(2048, 256 * sequences)
    params.n_batch, params.n_ubatch = 2048, 512
    params.n_threads = params.n_threads_batch = threads
    params.n_seq_max, params.no_perf = sequences, True
    return llama_cpp.llama_init_from_model(model, params)


def fill(batch, tokens, position, sequence_of, wants_logits):
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i] = int(token)
        batch.pos[i] = position(i)
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = sequence_of(i)
        batch.logits[i] = wants_logits(i)


def check(status):
    if status != 0:
        sys.exit(f"llama_decode returned {status}")


class Runner:
    """One model, one context per number of sequences, kept between rounds."""

    def __init__(self, path, threads):
        self.model = open_model(path)
        self.threads = threads
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.contexts = {}
        self.random = np.random.default_rng(0)

    def run(self, case):
        """One round of a case: seconds, and the tokens it is worth."""
        sequences, steps = CASES[case]
        if sequences not in self.contexts:
            self.contexts[sequences] = open_context(self.model, self.threads, sequences)
        context = self.contexts[sequences]
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        batch = llama_cpp.llama_batch_init(PROMPT_TOKENS, 0, 1)
        seconds = self.decode(context, batch, sequences, steps) if steps else self.prefill(context, batch)
        llama_cpp.llama_batch_free(batch)
        return {"seconds": seconds, "tokens": sequences * steps or PROMPT_TOKENS}

    def prefill(self, context, batch):
        tokens = self.random.integers(10, self.vocabulary - 10, PROMPT_TOKENS)
        fill(batch, tokens, lambda i: i, lambda i: 0, lambda i: i == PROMPT_TOKENS - 1)
        start = time.perf_counter()
        check(llama_cpp.llama_decode(context, batch))
        llama_cpp.llama_synchronize(context)
        return time.perf_counter() - start

    def decode(self, context, batch, sequences, steps):
        fill(batch, [100 + i for i in range(sequences)], lambda i: 0, lambda i: i, lambda i: True)
        start = time.perf_counter()
        for step in range(steps):
            for i in range(sequences):
                batch.pos[i] = step
            check(llama_cpp.llama_decode(context, batch))
            for i in range(sequences):
                pointer = llama_cpp.llama_get_logits_ith(context, i)
                batch.token[i] = int(np.ctypeslib.as_array(pointer, shape=(self.vocabulary,)).argmax())
        return time.perf_counter() - start


def compiler():
    """What `make peers` noted down; else what the OpenMP library that the kernels are linked to gives away."""
    note = Path(sys.prefix, "compiler.txt")
    if note.is_file():
        return note.read_text().strip()
    for library in (Path(llama_cpp.__file__).parent / "lib").glob("libggml-cpu.so"):
        for name, maker in ((b"libomp.so", "clang"), (b"libgomp.so", "GCC")):
            if name in library.read_bytes():
                return f"{maker} (by its {name.decode()})"
    return "unknown compiler"


def describe():
    log = "".join(log_lines).splitlines()
    return {
        "version": llama_cpp.__version__,
        "compiler": compiler(),
        "system": " ".join(llama_cpp.llama_print_system_info().decode().replace("|", "").split()),
        "buffers": [line.partition(":")[2].strip() for line in log if "model buffer size" in line],
        "amx": any("AMX model buffer" in line for line in log),
    }


def main():
    runner = Runner(sys.argv[1], int(sys.argv[2]))
    print(json.dumps(describe()), flush=True)
    for line in sys.stdin:
        print(json.dumps(runner.run(line.strip())), flush=True)


if __name__ == "__main__":
    main()
