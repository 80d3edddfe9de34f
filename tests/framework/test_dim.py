"""Symbolic dims compute as the integers they stand for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.framework.dim import Dim, Size, ceil_div, evaluate, product, symbol, symbols_of

NAMES = ("T", "S", "P")
SYMBOLS = {name: symbol(name) for name in NAMES}
values = st.fixed_dictionaries({name: st.integers(1, 50) for name in NAMES})

Expression = Any  # a nested tuple (op, left, right), a name or an int


def expressions() -> st.SearchStrategy[Expression]:
    leaves = st.one_of(st.sampled_from(NAMES), st.integers(-6, 6))
    return st.recursive(leaves, lambda inner: st.tuples(st.sampled_from("+-*/"), inner, inner), max_leaves=8)


def _apply(op: str, left: Any, right: Any) -> Any:
    if op == "+":
        return left + right
    if op == "-":
        return left - right
    return left * right if op == "*" else left // right


def _symbolic(expression: Expression) -> Size:
    if isinstance(expression, tuple):
        return _apply(expression[0], _symbolic(expression[1]), _symbolic(expression[2]))  # type: ignore[no-any-return]
    return SYMBOLS[expression] if isinstance(expression, str) else expression


def _plain(expression: Expression, sizes: dict[str, int]) -> int:
    if isinstance(expression, tuple):
        return _apply(expression[0], _plain(expression[1], sizes), _plain(expression[2], sizes))  # type: ignore[no-any-return]
    return sizes[expression] if isinstance(expression, str) else expression


@given(expressions(), values)
def test_arithmetic_equals_that_of_the_integers(expression: Expression, sizes: dict[str, int]) -> None:
    try:
        expected = _plain(expression, sizes)
    except ZeroDivisionError:
        return
    try:
        found = _symbolic(expression)
    except ZeroDivisionError:
        pytest.fail(f"{expression} divides by zero only symbolically")
    assert evaluate(found, sizes) == expected


@given(expressions(), expressions())
def test_addition_and_multiplication_have_one_normal_form(a: Expression, b: Expression) -> None:
    try:
        x, y = _symbolic(a), _symbolic(b)
    except ZeroDivisionError:
        return
    assert x + y == y + x
    assert x * y == y * x
    assert (x + y) * (x + y) == x * x + 2 * x * y + y * y
    assert (x + y) - y == x
    assert hash(x * y) == hash(y * x)


@given(expressions())
def test_a_constant_is_an_int_never_a_dim(expression: Expression) -> None:
    try:
        size = _symbolic(expression)
    except ZeroDivisionError:
        return
    assert isinstance(size, int) or symbols_of(size)
    assert size - size == 0 and isinstance(size - size, int)


@given(st.integers(1, 40), values)
def test_ceil_div_and_product(by: int, sizes: dict[str, int]) -> None:
    assert evaluate(ceil_div(SYMBOLS["T"], by), sizes) == -(-sizes["T"] // by)
    assert evaluate(product((SYMBOLS["T"], 3, SYMBOLS["S"])), sizes) == sizes["T"] * 3 * sizes["S"]


def test_exact_quotients_stay_polynomials() -> None:
    T, S = SYMBOLS["T"], SYMBOLS["S"]
    assert (T * S * 6) // (2 * T) == 3 * S
    assert (T * 4 + 8) // 4 == T + 2
    assert (T * S + T) // T == S + 1
    assert T // T == 1


def test_a_dim_equals_only_itself() -> None:
    T = SYMBOLS["T"]
    assert symbol("T") == T
    assert T != SYMBOLS["S"]
    assert T != 1
    assert T + 1 != T


@pytest.mark.parametrize("convert", [int, bool, range, lambda d: [0][d]])
def test_a_dim_has_no_integer_value(convert: Any) -> None:
    with pytest.raises(TypeError, match="T is symbolic"):
        convert(SYMBOLS["T"])


def test_a_name_must_be_an_identifier() -> None:
    with pytest.raises(ValueError, match="'2T'.*identifier"):
        symbol("2T")


def test_text_reads_as_a_polynomial() -> None:
    assert str(SYMBOLS["T"]) == "T"
    assert str(2 * SYMBOLS["T"] + 1) in ("2*T + 1", "1 + 2*T")
    assert isinstance(SYMBOLS["T"] * 2, Dim)
