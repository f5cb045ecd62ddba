"""CrypTen's communicator interface over our transport: one round for every collective.

The collectives move shares. So they work only inside `masked_openings`, for CrypTen's protocol code that opens
nothing but masked values. Anywhere else they raise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from operator import add, xor
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from protocols.errors import Unavailable, UndeclaredRelease
from protocols.net.transport import Array, Spec

if TYPE_CHECKING:
    from protocols.session.runtime import Session

_MOST_DIMENSIONS = 8


class Communicator:
    """What CrypTen gets when it asks for its communicator."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._masked = False

    def __getattr__(self, name: str) -> NoReturn:
        raise Unavailable(f"CrypTen's communicator: {name}")

    @contextmanager
    def masked_openings(self) -> Iterator[None]:
        before, self._masked = self._masked, True
        try:
            yield
        finally:
            self._masked = before

    def get_rank(self) -> int:
        return self._session.rank

    def get_world_size(self) -> int:
        return self._session.parties

    def get_name(self) -> str:
        return f"rank{self._session.rank}"

    def barrier(self) -> None:
        self._session.party.open_masked("barrier", [np.zeros(1, np.uint8)])

    def all_reduce(self, input: Any, op: Any = None, batched: bool = False) -> Any:
        """The sum (or exclusive or) of everyone's tensors, at everyone: one round, batched or not."""
        totals = [_combine(parts, op) for parts in self._everyones("all_reduce", _listed(input))]
        return totals if batched else totals[0]

    def reduce(self, input: Any, dst: int, op: Any = None, batched: bool = False) -> Any:
        """As `all_reduce`, at party `dst` alone."""
        gathered = self._to_one("reduce", _listed(input), dst)
        if gathered is None:
            return None
        totals = [_combine(parts, op) for parts in gathered]
        return totals if batched else totals[0]

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return self._everyones("all_gather", [tensor])[0]

    def gather(self, tensor: torch.Tensor, dst: int) -> list[Any]:
        gathered = self._to_one("gather", [tensor], dst)
        return [None] if gathered is None else gathered[0]

    def broadcast(self, input: Any, src: int, group: Any = None, batched: bool = False) -> Any:
        self._guard("broadcast")
        party = self._session.party
        arrays = [_array(tensor) for tensor in _listed(input)]
        if party.rank == src:
            party.broadcast("broadcast", arrays, {})
            return input
        came = party.broadcast("broadcast", None, {src: [Spec.of(array) for array in arrays]})[src]
        for tensor, array in zip(_listed(input), came, strict=True):
            tensor.copy_(torch.from_numpy(array))
        return input

    def scatter(self, scatter_list: Any, src: int, size: Any = None, device: Any = None) -> torch.Tensor:
        self._guard("scatter")
        party = self._session.party
        if party.rank == src:
            send = {peer: [_array(scatter_list[peer])] for peer in party.others}
            party.transport.exchange("scatter", send, {})
            own: torch.Tensor = scatter_list[src]
            return own
        shape = tuple(size if size is not None else scatter_list[party.rank].size())
        return torch.from_numpy(party.transport.exchange("scatter", {}, {src: [Spec("<i8", shape)]})[src][0])

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        self._guard("send")
        self._session.party.transport.exchange("send", {dst: [_array(tensor)]}, {})

    def recv(self, tensor: torch.Tensor, src: int) -> torch.Tensor:
        self._guard("recv")
        came = self._session.party.transport.exchange("send", {}, {src: [Spec.of(_array(tensor))]})
        return torch.from_numpy(came[src][0])

    def broadcast_obj(self, obj: Any, src: int, group: Any = None) -> Any:
        """Broadcast the size of a tensor, which is public, and nothing else."""
        party = self._session.party
        packed = np.full(_MOST_DIMENSIONS, -1, np.int64)
        if party.rank == src:
            sizes = isinstance(obj, tuple) and len(obj) <= _MOST_DIMENSIONS
            if not sizes or not all(isinstance(length, int) and 0 <= length < 1 << 31 for length in obj):
                raise UndeclaredRelease("broadcast_obj sends sizes of tensors only")
            packed[: len(obj)] = obj
        packed = party.publish("size", src, packed if party.rank == src else None, Spec.of(packed))
        return torch.Size(length for length in packed.tolist() if length >= 0)

    def _guard(self, what: str) -> None:
        if not self._masked:
            raise UndeclaredRelease(f"the communicator's {what} moves shares; use Session.open with a release")

    def _everyones(self, step: str, tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        """For each tensor, all parties' versions of it, at every party."""
        self._guard(step)
        party = self._session.party
        arrays = [_array(tensor) for tensor in tensors]
        specs = [Spec.of(array) for array in arrays]
        return _by_tensor(
            {party.rank: arrays} | party.broadcast(step, arrays, {peer: specs for peer in party.others})
        )

    def _to_one(self, step: str, tensors: list[torch.Tensor], dst: int) -> list[list[torch.Tensor]] | None:
        """The same as `_everyones`, but at party `dst` alone; None elsewhere."""
        self._guard(step)
        party = self._session.party
        arrays = [_array(tensor) for tensor in tensors]
        if party.rank != dst:
            party.transport.exchange(step, {dst: arrays}, {})
            return None
        specs = [Spec.of(array) for array in arrays]
        return _by_tensor({dst: arrays} | party.transport.exchange(step, {}, {peer: specs for peer in party.others}))


def _by_tensor(told: dict[int, list[Array]]) -> list[list[torch.Tensor]]:
    """For each tensor, its versions in order of rank."""
    return [
        [torch.from_numpy(version) for version in same] for same in zip(*(told[r] for r in sorted(told)), strict=True)
    ]


def _listed(tensors: Any) -> list[torch.Tensor]:
    return tensors if isinstance(tensors, list) else [tensors]


def _array(tensor: torch.Tensor) -> Array:
    array: Array = tensor.contiguous().numpy()
    return array


def _combine(parts: list[torch.Tensor], op: Any) -> torch.Tensor:
    return reduce(xor if op == torch.distributed.ReduceOp.BXOR else add, parts)
