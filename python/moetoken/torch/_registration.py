"""How a function becomes an operator: the dispatcher's, autograd's, vmap's and autocast's rules.

Every operator is registered with torch.library as ``torch.ops.moetoken.*``, for what traces
(torch.compile, torch.export, fake tensors) and for who calls it there. The functions of the package
go another way where that is possible: directly where no rule has anything to do, else through an
autograd.Function, which has the forward-mode rule that torch.library's operators cannot have.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, NamedTuple, Optional, Sequence, get_type_hints

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._arrays import flag
from ._checks import check_tensor
from ._direct import IS_PLAIN, IS_PLAIN_BUT_RECORDED, is_plain, plainness

__all__ = ["Rules", "is_forward_mode", "register"]

_HALF = (torch.float16, torch.bfloat16)
_LIBRARY = torch.library.Library("moetoken", "FRAGMENT")  # as long as the operators live
_is_compiling = torch.compiler.is_compiling
_is_autocasting = torch._C._is_any_autocast_enabled
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


class Rules(NamedTuple):
    """What an operator needs beside its function: see the guide of torch.autograd.Function."""

    outputs: Callable[..., Any]  # empty tensors of the right shapes
    context: Optional[Callable[..., None]] = None  # (ctx, inputs, outputs)
    backward: Optional[Callable[..., tuple[Any, ...]]] = None  # (ctx, *gradients)
    jvp: Optional[Callable[..., tuple[Any, ...]]] = None  # (ctx, *tangents)
    widen: Optional[tuple[Sequence[int], Sequence[int]]] = None  # places of token-like, probs-like
    direct: Optional[Callable[..., Any]] = None  # all of it in C, for plain tensors
    nothing_like: int = 0  # place of the tensor whose type an output has that is not wanted


def is_forward_mode() -> bool:
    """Whether forward-mode derivatives are being computed: rules then keep what these need."""
    return forward_ad._current_level >= 0


def _first(values: Sequence[Any], places: Sequence[int]) -> Optional[Tensor]:
    return next((values[i] for i in places if values[i] is not None), None)


def _widened(values: Sequence[Any], rule: tuple[Sequence[int], Sequence[int]]) -> list[Any]:
    """Types that the operators take together, where autocast has left others: the wider one wins.

    Under autocast a layer's weights are of the narrow type while its tokens may still be float32.
    """
    given = list(values)
    tokens, probs = ([i for i in places if given[i] is not None] for places in rule)
    if not tokens:
        return given
    wide = functools.reduce(torch.promote_types, (given[i].dtype for i in tokens))
    for i in tokens:
        given[i] = given[i].to(wide)
    for i in probs:
        if given[i].dtype != wide and not (wide in _HALF and given[i].dtype == torch.float32):
            given[i] = given[i].to(torch.float32 if wide in _HALF else wide)
    return given


def _kinds(compute: Callable[..., Any]) -> list[tuple[int, str, Any]]:
    """(place, name, kind) of the tensors and flags that a function takes."""
    hints = get_type_hints(compute)
    found = [(i, name, hints[name]) for i, name in enumerate(inspect.signature(compute).parameters)]
    return [one for one in found if one[2] in (bool, Tensor, Optional[Tensor])]


def _checked(values: tuple[Any, ...], kinds: Sequence[tuple[int, str, Any]]) -> tuple[Any, ...]:
    """Values of the right kinds: tensors or, where that is allowed, None; True or False."""
    for place, name, kind in kinds:
        value = values[place]
        if kind is not bool:
            if value is not None or kind is Tensor:
                check_tensor(name, value)
        elif value is not True and value is not False:
            values = (*values[:place], flag(name, value), *values[place + 1 :])
    return values


def _check_devices(values: Sequence[Any]) -> None:
    """Tensors on several devices: one of them without memory would leave results unwritten."""
    devices = {value.device.type for value in values if isinstance(value, Tensor)}
    if len(devices) > 1:
        raise ValueError(f"tensors are on {' and '.join(sorted(devices))}, expected one device")


def _one_by_one(
    call: Callable[..., Any],
    outputs: Callable[..., Any],
    size: int,
    places: Sequence[Optional[int]],
    values: Sequence[Any],
) -> Any:
    """vmap: the call for each item of the batch, and where the batch is in the results."""
    fronted = [
        value if place is None else value.movedim(place, 0) for value, place in zip(values, places)
    ]
    if size == 0:
        ones = [v if p is None else v.new_zeros(v.shape[1:]) for v, p in zip(fronted, places)]
        found = outputs(*ones)
        if isinstance(found, Tensor):
            return found.new_empty((0, *found.shape)), 0
        return tuple(one.new_empty((0, *one.shape)) for one in found), (0,) * len(found)
    items = [
        call(*(v if p is None else v[i] for v, p in zip(fronted, places))) for i in range(size)
    ]
    if isinstance(items[0], Tensor):
        return torch.stack(items), 0
    return tuple(torch.stack(parts) for parts in zip(*items)), (0,) * len(items[0])


def _function(name: str, compute: Callable[..., Any], rules: Rules) -> Any:
    """The autograd.Function of an operator."""
    function: Any

    def forward(*values: Any) -> tuple[Tensor, ...]:
        return compute(*values)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        results = _mark_whole_numbers(ctx, output)
        ctx.outputs = [(r.shape, r.dtype) if r.is_floating_point() else None for r in results]
        ctx.is_single = results is not output
        if rules.context is not None:
            rules.context(ctx, inputs, output)

    def jvp(ctx: Any, *tangents: Any) -> Any:
        """The rule, with zeros for outputs that do not change: PyTorch fails on None there."""
        found = zip(rules.jvp(ctx, *tangents), ctx.outputs)  # type: ignore[misc]
        results = tuple(
            torch.zeros(kind[0], dtype=kind[1]) if tangent is None and kind else tangent
            for tangent, kind in found
        )
        return results[0] if ctx.is_single else results

    def vmap(info: Any, in_dims: tuple[Any, ...], *values: Any) -> Any:
        return _one_by_one(function.apply, rules.outputs, info.batch_size, in_dims, values)

    methods: dict[str, Callable[..., Any]] = {
        "forward": forward,
        "setup_context": setup_context,
        "vmap": vmap,
    }
    if rules.backward is not None:
        methods["backward"] = rules.backward
    if rules.jvp is not None:
        methods["jvp"] = jvp
    function = type(
        name, (torch.autograd.Function,), {key: staticmethod(m) for key, m in methods.items()}
    )
    return function


def _mark_whole_numbers(ctx: Any, output: Any) -> tuple[Tensor, ...]:
    """The outputs, of which those without a derivative are made known."""
    results = (output,) if isinstance(output, Tensor) else output
    whole = [r for r in results if r is not None and not r.is_floating_point()]
    ctx.mark_non_differentiable(*whole)
    return results


def _recording_function(name: str, compute: Callable[..., Any], rules: Rules) -> Any:
    """The autograd.Function for backward derivatives of plain tensors, and nothing else: without a
    setup_context, whose arguments PyTorch binds anew in every call, for 20 microseconds."""

    def forward(ctx: Any, *values: Any) -> Any:
        output = compute(*values)
        _mark_whole_numbers(ctx, output)
        if rules.context is not None:
            rules.context(ctx, values, output)
        return output

    backward: Any = rules.backward
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (torch.autograd.Function,), methods)


def _first_directly(direct: Callable[..., Any], compute: Callable[..., Any]) -> Any:
    """The operator's function on plain tensors: in C, or the long way where that does not know."""

    def run(*values: Any) -> Any:
        found = direct(*values)
        return compute(*values) if found is NotImplemented else found

    return run


def _kernel(compute: Callable[..., Any], rules: Rules) -> Callable[..., Any]:
    """What the dispatcher calls: all outputs are tensors, those that are not wanted empty."""
    if rules.direct is None:
        return compute
    run = _first_directly(rules.direct, compute)

    def kernel(*values: Any) -> Any:
        results = run(*values)
        if isinstance(results, Tensor):
            return results
        like = values[rules.nothing_like]
        return tuple(like.new_empty(0) if result is None else result for result in results)

    return kernel


def _refuse_forward_mode(name: str) -> None:
    raise NotImplementedError(
        f"torch.compile and torch.export have no forward-mode derivative of {name}: "
        "compute it outside of them"
    )


def register(
    name: str, compute: Callable[..., Any], rules: Rules
) -> tuple[Any, Callable[..., Any]]:
    """The operator torch.ops.moetoken.<name>, for CPU tensors, and the function for all calls."""
    # Without a kernel: custom_op's own would be asked each time whether its outputs are inputs.
    operator: Any = torch.library.custom_op(
        f"moetoken::{name}", compute, mutates_args=(), device_types=()
    )
    _LIBRARY.impl(name, _kernel(compute, rules), "CPU")

    @operator.register_fake
    def _(*values: Any) -> tuple[Tensor, ...]:
        _check_devices(values)
        return rules.outputs(*values)

    if rules.backward is not None:
        operator.register_autograd(rules.backward, setup_context=rules.context)
    if hasattr(operator, "register_vmap"):  # since PyTorch 2.5

        @operator.register_vmap
        def _(info: Any, in_dims: tuple[Any, ...], *values: Any) -> Any:
            return _one_by_one(operator, rules.outputs, info.batch_size, in_dims, values)

    run = compute if rules.direct is None else _first_directly(rules.direct, compute)
    if rules.backward is None:

        def unrecorded(*values: Any) -> Any:
            return run(*values) if is_plain(values) else operator(*values)

        return operator, unrecorded

    def below(*values: Any) -> tuple[Tensor, ...]:
        return compute(*values) if is_plain(values) else operator(*values)

    function: Any = _function(name, below, rules)
    recording: Any = _recording_function(name, run, rules)
    kinds = _kinds(compute)

    def traced(*values: Any) -> Any:
        if is_forward_mode():
            _refuse_forward_mode(name)
        return operator(*values)

    def call(*values: Any) -> Any:
        is_traced = _is_compiling()
        plain = 0 if is_traced or forward_ad._current_level >= 0 else plainness(*values)
        if plain == IS_PLAIN and rules.direct is not None and not _is_autocasting():
            found = rules.direct(*values)
            if found is not NotImplemented:
                return found
        values = _checked(values, kinds)
        if rules.widen is not None and torch.is_autocast_enabled("cpu"):
            values = tuple(_widened(values, rules.widen))
        if is_traced:
            return traced(*values)
        if plain == IS_PLAIN:
            return compute(*values)
        return (recording if plain == IS_PLAIN_BUT_RECORDED else function).apply(*values)

    if rules.widen is not None:
        _register_autocast(name, operator, rules.widen)
    return operator, call


def _register_autocast(name: str, operator: Any, rule: tuple[Sequence[int], Sequence[int]]) -> None:
    """The rule for who calls torch.ops.moetoken.* under autocast."""

    def autocast(_: Any, *values: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return operator(*_widened(values, rule))

    _LIBRARY.impl(name, autocast, "AutocastCPU", with_keyset=True)
