"""Module: names, state, ties, files, tracing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import plait as pl
from plait import nn
from plait.framework import tree_utils
from plait.framework.tensor import Tensor
from plait.jit.layout import TensorLayout
from plait.nn.module import Module


class Block(Module):
    def __init__(self) -> None:
        self.linear = nn.Linear(3, 3)
        self.scale = pl.ones((3,))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scale


class Net(Module):
    def __init__(self) -> None:
        self.blocks = nn.ModuleList([Block(), Block()])
        self.by_name = {"a": nn.RMSNorm(3)}
        self.offset = pl.zeros((3,))
        self.label = "net"

    def forward(self, x: Tensor) -> Tensor:
        return self.by_name["a"](self.blocks(x)) + self.offset

    def double(self, x: Tensor) -> Tensor:
        return x * 2 + self.offset


class Tied(Module):
    def __init__(self) -> None:
        self.embedding = nn.Embedding(7, 4)
        self.head = self.embedding.tied_head()

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embedding(ids))


NAMES = [
    "offset",
    "blocks.0.scale", "blocks.0.linear.weight", "blocks.0.linear.bias",
    "blocks.1.scale", "blocks.1.linear.weight", "blocks.1.linear.bias",
    "by_name.a.weight",
]  # fmt: skip


def arrays(module: Module) -> dict[str, np.ndarray]:
    return {name: np.array(value.numpy()) for name, value in module.parameters}


def test_parameters_are_named_by_path_own_ones_first() -> None:
    net = Net()
    assert [name for name, _ in net.parameters] == NAMES
    assert [name for name, _ in net.local_parameters] == ["offset"]
    assert [name for name, _ in net.children] == ["blocks", "by_name.a"]
    assert [name for name, _ in net.descendants] == [
        "blocks", "blocks.0", "blocks.0.linear", "blocks.1", "blocks.1.linear", "by_name.a",
    ]  # fmt: skip


def test_tree_walks_see_the_same_parameters() -> None:
    assert sorted(tree_utils.paths(Net(), leaf=Tensor)) == sorted(NAMES)


def test_a_tree_round_trip_computes_the_same() -> None:
    net, x = Net(), pl.ones((2, 3))
    leaves, tree = tree_utils.flatten(net, leaf=Tensor)
    twin = tree_utils.unflatten(tree, leaves)
    assert type(twin) is Net and twin is not net and twin.label == "net"
    np.testing.assert_array_equal(twin(x).numpy(), net(x).numpy())


def test_load_state_dict_replaces_every_value() -> None:
    net = Net()
    state = {name: np.full(value.shape, i, np.float32) for i, (name, value) in enumerate(net.parameters)}
    net.load_state_dict(state)
    for name, value in arrays(net).items():
        np.testing.assert_array_equal(value, state[name])


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda state: state.pop("blocks.1.scale"), KeyError, ["blocks.1.scale"]),
        (lambda state: state.update(extra=np.zeros(1, np.float32)), ValueError, ["extra", "strict=False"]),
        (lambda state: state.update(offset=np.zeros(4, np.float32)), ValueError, ["offset", "(4,)", "(3,)"]),
        (lambda state: state.update(offset=np.zeros(3, np.float64)), ValueError, ["offset", "float64", "float32"]),
    ],
)
def test_a_bad_state_names_the_culprit_and_changes_nothing(change, error, words) -> None:
    net = Net()
    before = arrays(net)
    state = {name: value + 1 for name, value in before.items()}
    change(state)
    with pytest.raises(error) as caught:
        net.load_state_dict(state)
    assert all(word in str(caught.value) for word in words)
    for name, value in arrays(net).items():
        np.testing.assert_array_equal(value, before[name])


def test_unused_names_pass_when_not_strict() -> None:
    net = Net()
    net.load_state_dict(arrays(net) | {"extra": np.zeros(1, np.float32)}, strict=False)


def test_map_parameters_makes_a_new_module() -> None:
    net = Net()
    twin = net.map_parameters(lambda name, value: value * 0 + 5)
    assert type(twin) is Net and twin.blocks is not net.blocks
    assert all((value == 5).all() for value in arrays(twin).values())
    assert (arrays(net)["blocks.0.scale"] == 1).all()


@pytest.mark.case("N06")
def test_tied_parameters_show_load_and_save_as_one(tmp_path: Path) -> None:
    model = Tied()
    state = model.state_dict()
    assert state["head.weight"] is state["embedding.weight"]
    weight = np.arange(28, dtype=np.float32).reshape(7, 4)
    model.load_state_dict({"embedding.weight": weight})
    assert model.head.weight is model.embedding.weight
    ids = pl.asarray(np.array([1, 6, 0], np.int32))
    logits = np.array(model(ids).numpy())
    np.testing.assert_array_equal(logits, weight[[1, 6, 0]] @ weight.T)

    model.save(tmp_path / "tied.safetensors")
    assert (tmp_path / "tied.safetensors").stat().st_size < 2 * weight.nbytes + 500
    twin = Tied()
    twin.load(tmp_path / "tied.safetensors")
    assert twin.head.weight is twin.embedding.weight
    np.testing.assert_array_equal(twin(ids).numpy(), logits)


def test_tied_names_with_different_values_are_refused() -> None:
    model = Tied()
    one, other = np.zeros((7, 4), np.float32), np.ones((7, 4), np.float32)
    with pytest.raises(ValueError, match="embedding.weight.*head.weight|head.weight.*embedding.weight"):
        model.load_state_dict({"embedding.weight": one, "head.weight": other})


def test_state_survives_a_file(tmp_path: Path) -> None:
    net, twin = Net(), Net()
    net.save(tmp_path / "net.safetensors")
    twin.load(tmp_path / "net.safetensors")
    for name, value in arrays(twin).items():
        np.testing.assert_array_equal(value, arrays(net)[name])


def test_trace_makes_weights_of_parameters_and_puts_them_back() -> None:
    net = Net()
    before = net.state_dict()
    graph = net.trace(TensorLayout("float32", ("batch", 3)))
    assert graph.name == "Net"
    assert sorted(node.attr("name") for node in graph.weights) == sorted(NAMES)
    assert all(value is before[name] for name, value in net.parameters)


def test_parameters_are_put_back_after_an_error() -> None:
    class Broken(Net):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("as planned")

    net = Broken()
    before = net.state_dict()
    with pytest.raises(RuntimeError, match="as planned"):
        net.trace(TensorLayout("float32", (2, 3)))
    assert all(value is before[name] for name, value in net.parameters)


def test_a_tied_parameter_is_one_weight_of_the_graph() -> None:
    graph = Tied().trace(TensorLayout("int32", ("T",)))
    assert [node.attr("name") for node in graph.weights] == ["embedding.weight"]


def test_compiled_module_equals_eager_for_every_size() -> None:
    net = Net()
    compiled = net.compile(TensorLayout("float32", ("batch", 3)))
    for rows in (1, 2, 17):
        x = pl.asarray(np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32))
        np.testing.assert_allclose(compiled(x).numpy(), net(x).numpy(), rtol=1e-5, atol=1e-6)


def test_another_method_can_be_compiled() -> None:
    net = Net()
    double = net.compile(TensorLayout("float32", ("batch", 3)), method="double")
    np.testing.assert_array_equal(double(pl.ones((2, 3))).numpy(), np.full((2, 3), 2, np.float32))


def test_mappings_name_mesh_axes_and_default_to_replicated() -> None:
    class Split(Module):
        def __init__(self) -> None:
            self.up = nn.Linear(4, 8, parallel="column")
            self.down = nn.QuantizedLinear("q8_0", 32, 8, parallel="row")
            self.scale = pl.ones((4,))

    specs = {name: tuple(mapping.spec) for name, mapping in Split().mappings.items()}
    assert specs == {"scale": (), "up.weight": ("tp", None), "up.bias": ("tp",), "down.weight": (None, "tp")}


def test_repr_shows_the_structure() -> None:
    text = repr(Net())
    assert "blocks: ModuleList(" in text and "weight: float32[3, 3]" in text and "label='net'" in text


def test_a_module_that_holds_its_holder_is_named() -> None:
    net = Net()
    net.blocks[0].owner = net
    with pytest.raises(ValueError, match="blocks.0.owner"):
        dict(net.parameters)


def test_forward_must_be_defined() -> None:
    class Empty(Module):
        pass

    with pytest.raises(NotImplementedError, match="Empty"):
        Empty()()


def test_parameters_loaded_after_compiling_are_the_ones_bound() -> None:
    model = nn.Linear(3, 2, bias=False)
    double = model.compile(TensorLayout("float32", ("n", 3)))
    model.load_state_dict({"weight": np.full((2, 3), 2, np.float32)})
    assert double(pl.ones((1, 3))).tolist() == [[6.0, 6.0]]
    model.load_state_dict({"weight": np.full((2, 3), 5, np.float32)})
    assert double(pl.ones((1, 3))).tolist() == [[6.0, 6.0]], "bound at the first call"
    double.rebind(model.state_dict())
    assert double(pl.ones((1, 3))).tolist() == [[15.0, 15.0]]
