"""The PyTorch side, run by the peer's own Python: `torch_tensor.py THREADS`, then `CASE CALLS` per line of stdin.

Answers in JSON lines, first a description, then the seconds of one call. A case is `name:shape`. It never sees plait.
"""

import json
import sys
import time

import torch
import torch.nn.functional as F


def chain(x, w, b):
    return F.gelu(x * w + b, approximate="tanh") * torch.sigmoid(x)


def softmax(x):
    return torch.softmax(x, -1)


def rmsnorm(x, w):
    return F.rms_norm(x, x.shape[-1:], w, 1e-6)


# name -> (function, shapes of its operands)
CASES = {
    "chain": (chain, lambda shape: (shape, shape, shape)),
    "softmax": (softmax, lambda shape: (shape,)),
    "rmsnorm": (rmsnorm, lambda shape: (shape, shape[-1:])),
}


class Runner:
    def __init__(self):
        self.operands = {}

    def run(self, case, calls):
        name, _, extents = case.partition(":")
        function, operand_shapes = CASES[name]
        if case not in self.operands:
            shape = tuple(int(extent) for extent in extents.split("x"))
            self.operands = {case: [torch.randn(each) for each in operand_shapes(shape)]}
        operands = self.operands[case]
        start = time.perf_counter()
        for _ in range(calls):
            function(*operands)
        return {"seconds": (time.perf_counter() - start) / calls}


def main():
    torch.set_num_threads(int(sys.argv[1]))
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    print(json.dumps({"version": torch.__version__, "threads": torch.get_num_threads()}), flush=True)
    runner = Runner()
    for line in sys.stdin:
        case, calls = line.split()
        print(json.dumps(runner.run(case, int(calls))), flush=True)


if __name__ == "__main__":
    main()
