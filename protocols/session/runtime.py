"""`Session`: CrypTen on our dealer, randomness, transport and releases. The only module that imports crypten.

Inside a session (a context manager), secret-shared values are CrypTen's `MPCTensor`s; docs/crypten.md lists the
functions that are available. CrypTen's internals are replaced where they are unsafe, wrong or slow:

- its generators by ChaCha20 streams, its ring of zero shares by one over all pairs;
- its tuple provider by our dealer (TFP and TTP cannot be reached, whatever its configuration);
- its products, truncation, comparison, sigmoid and tanh by those of this package;
- every way to a plain value (`get_plain_text`, `reveal`, printing, pickling, the communicator's collectives) by an
  error. `Session.open(value, release)` is the only one left.

The replacements are installed once per process and find their session in a context variable. So sessions may follow
each other, or run in different threads. `stock_crypten` returns CrypTen unchanged, for the benchmark and for tests,
in a process that never opens a session.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import sys
import threading
import types
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Token
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.authentication.shares import Authenticated
from secure_sccvfl.protocols.config import CRYPTEN
from secure_sccvfl.protocols.dealing.matching import Aligned, Bounds, Pseudonyms
from secure_sccvfl.protocols.dealing.party import Party, agree_on_keys
from secure_sccvfl.protocols.dealing.randomness import fresh_key
from secure_sccvfl.protocols.dealing.tuples import Request
from secure_sccvfl.protocols.dealing.verification import MacKey
from secure_sccvfl.protocols.errors import (
    LogError,
    PeerError,
    ProtocolError,
    RangeError,
    UndeclaredRelease,
    reason_for_peers,
    waited_for,
)
from secure_sccvfl.protocols.net.link import Activity
from secure_sccvfl.protocols.net.transport import Array, Cost, Spec, Transport
from secure_sccvfl.protocols.operations import arithmetic, comparison, inputs, noise, sigmoid
from secure_sccvfl.protocols.operations.inputs import Groups
from secure_sccvfl.protocols.operations.noise import NoiseKind
from secure_sccvfl.protocols.operations.sigmoid import Name as SeriesName
from secure_sccvfl.protocols.records.key_mark import KeyMark
from secure_sccvfl.protocols.records.releases import Receipt, Release, ReleaseDesk, ReleasePlan
from secure_sccvfl.protocols.records.transcript import Transcript
from secure_sccvfl.protocols.ring import FRACTION_BITS, WIDE_BITS, RingArray, Share
from secure_sccvfl.protocols.session import binding, binding_tensors, tensors
from secure_sccvfl.protocols.session.rows import encoded
from secure_sccvfl.protocols.session.tensors import CURRENT

if TYPE_CHECKING:
    from secure_sccvfl.protocols.session.shards import RowShards


def _import_crypten() -> Any:
    """Import crypten with a stand-in for the one module that current torch breaks.

    A wheel of this project brings its own copy (setup.py), which is used where version `CRYPTEN` is not installed.
    """
    bundled = str(Path(__file__).parents[2] / "bundled")
    try:
        installed = importlib.metadata.version("crypten") == CRYPTEN
    except importlib.metadata.PackageNotFoundError:
        installed = False
    if "crypten" not in sys.modules:
        stand_in = types.ModuleType("crypten.nn.onnx_converter")

        def unavailable(*args: Any, **kwargs: Any) -> NoReturn:
            raise ProtocolError("CrypTen's ONNX import is not available with this version of torch")

        for name in ("from_onnx", "from_pytorch", "from_tensorflow"):
            setattr(stand_in, name, unavailable)
        stand_in.TF_AND_TF2ONNX = False  # type: ignore[attr-defined]
        sys.modules["crypten.nn.onnx_converter"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not installed:
            sys.path.insert(0, bundled)
        try:
            import crypten
            import crypten.mpc.primitives.circuit
            import crypten.mpc.primitives.converters
        except ModuleNotFoundError as error:
            raise ProtocolError(f"{error.name} is not installed; run `make env`") from None
        finally:
            if not installed:
                sys.path.remove(bundled)
    return crypten


crypten = _import_crypten()
MPCTensor = crypten.mpc.MPCTensor

_LONGEST_ANNOUNCEMENT = 1 << 20
_SHORT_INTEGERS = (np.dtype(np.int8), np.dtype(np.int16))
_installed = False
_INSTALLING = threading.Lock()


def stock_crypten() -> Any:
    """CrypTen unchanged, unsafe defaults included: for comparison only."""
    if _installed:
        raise ProtocolError("this process has opened a session; stock CrypTen needs a separate process")
    return crypten


def _install() -> None:
    """Replace what CrypTen does, once in this process."""
    global _installed
    with _INSTALLING:
        if not _installed:
            binding.install(crypten)
            _installed = True


def tensor_of(elements: Share, bits: int) -> Any:
    """A CrypTen tensor of a share that `share_of` returned: for values saved between sessions."""
    _install()
    array = elements if isinstance(elements, Authenticated) else np.array(elements, copy=None, order="C")
    return binding_tensors.handle(binding_tensors.held(array, bits))


class Session:
    """One party's session of a secure computation."""

    def __init__(
        self,
        transport: Transport,
        config: Any,
        plan: ReleasePlan,
        log: Path | None = None,
        transcript: Transcript | None = None,
        mac_key: MacKey | None = None,
        mark: KeyMark | None = None,
    ) -> None:
        """Takes a connected transport; `log` is where releases.jsonl will be written.

        mac_key: with active security, this party's part of the MAC key of the model that the session uses, if any.
        mark: next to what is saved under the key.
        """
        self._mac_key, self._mark = mac_key, mark
        self._transport, self._config = transport, config
        self._desk = ReleaseDesk(plan, transport.parties, log)
        self._plan, self._transcript = plan, transcript
        self.activity = Activity()
        """For people who watch this session."""
        self.folder = log.parent if log is not None else None
        """Where this party keeps the files of the run."""
        self._token: Token[Session | None] | None = None
        self._party: Party | None = None
        self.rank, self.parties = transport.node, transport.parties
        self.openings = tensors.Openings(self)
        self.operations: Counter[str] = Counter()
        """How often each operator of CrypTen was called."""
        self.committed: dict[tuple[int, str], Any] = {}
        """With active security: tensors of training records that owners have proven, by owner and name."""
        self.shards: RowShards | None = None
        """The workers of this party, if tensors with a row for each record lie in shards."""

    def __repr__(self) -> str:
        return f"<Session: party {self.rank} of {self.parties}>"

    def __enter__(self) -> Session:
        _install()
        try:
            self._compare("release plan", self._plan.digest(), "plans other releases")
            keys = agree_on_keys(self._transport, self._config)
            self._party = Party(self._transport, keys, self._config.active, self._mac_key, self._mark)
        except BaseException as error:
            self._transport.abort(reason_for_peers(error), waited_for(error))
            raise
        self._token = CURRENT.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        party, self._party = self._party, None
        if self._token is not None:
            CURRENT.reset(self._token)
            self._token = None
        if error is not None or party is None:
            if self.shards is not None:
                self.shards.close()
            self._transport.abort(reason_for_peers(error), waited_for(error))
            return
        try:
            if self.shards is not None:
                self.shards.end()
            head = bytes.fromhex(self._desk.chain.head)
            self._compare("compare release logs", head, "has another log of releases", LogError)
            if party.active:
                party.verify("check at the end")
            party.compared("end", {}, {})
            party.tuples.end()
            self._transport.finish()
        except BaseException as late:
            self._transport.abort(reason_for_peers(late), waited_for(late))
            raise

    @property
    def party(self) -> Party:
        """The `Party` that protocols of this package run on."""
        if self._party is None:
            raise ProtocolError("the session is not open")
        return self._party

    @property
    def active(self) -> bool:
        """Whether every opened value is authenticated."""
        return bool(self._config.active)

    @property
    def tall(self) -> Any:
        """The maker of tensors with a row for each record: the shards, if any, or this session."""
        return self if self.shards is None else self.shards

    # from plain to secret and back

    def share(
        self, values: Any = None, *, owner: int, shape: Sequence[int] | None = None, bits: int = FRACTION_BITS
    ) -> Any:
        """A shared tensor of a value of `owner`; the others pass only its shape.

        Values that are not finite or do not fit raise at the owner before anything is shared. `bits=0` keeps
        integers exact (counts).
        """
        binding_tensors.encoder_of(bits)  # raises at every party before anything is drawn
        if self.party.active:
            elements = ring.encode(values, bits) if self.rank == owner else None
            size = tuple(elements.shape if shape is None and elements is not None else shape or ())
            (share,) = self.party.inputs("shared value", [(owner, elements, size)])
            return self.wrap(share, bits)
        if self.rank == owner:
            if values is None:
                raise ProtocolError("the owner must give the values to share")
            elements = ring.encode(values, bits)
            if shape is not None and tuple(shape) != elements.shape:
                raise ProtocolError(f"values of shape {elements.shape} were declared as {tuple(shape)}")
            zeros = self.party.zero_share((elements.size,))
            return self.wrap((elements.reshape(-1) + zeros).reshape(elements.shape), bits)
        if shape is None:
            raise ProtocolError("parties other than the owner must give the shape")
        return self.zeros(shape, bits)

    def owned(
        self,
        values: Any = None,
        *,
        owner: int,
        shape: Sequence[int],
        bits: int = FRACTION_BITS,
        limit: float = ring.INPUT_LIMIT,
    ) -> Any:
        """A value that `owner` knows, as a tensor; the others pass only its shape. Nothing is sent.

        The owner's share is the value, the others' are 0: what is opened of it later is under a mask, or under fresh
        shares of zero. `crypten.cat` along the last axis keeps the blocks of several owners apart. With `bits=0` an
        array of short integers is kept as it is, without a copy. A value beyond `limit` raises at the owner.
        """
        binding_tensors.encoder_of(bits)
        elements = None
        if self.rank == owner:
            if values is None:
                raise ProtocolError("the owner must give the values to share")
            short = bits == 0 and isinstance(values, np.ndarray) and values.dtype in _SHORT_INTEGERS
            elements = values if short else encoded(values, bits, limit)
            if tuple(shape) != elements.shape:
                raise ProtocolError(f"values of shape {elements.shape} were declared as {tuple(shape)}")
        return binding_tensors.of(tensors.Owned(tuple(shape[:-1]), [(owner, elements, shape[-1])], bits))

    def public(self, values: Any, bits: int = FRACTION_BITS) -> Any:
        elements = ring.encode(values, bits)
        if self.party.active:
            return self.wrap(Authenticated.public(elements), bits)
        return self.wrap(elements if self.rank == 0 else np.zeros_like(elements), bits)

    def zeros(self, shape: Sequence[int], bits: int = FRACTION_BITS) -> Any:
        """Fresh shares of zero, as a tensor: added to what one party knows, they share it. No round."""
        return self.wrap(self.party.zero_share(tuple(shape)), bits)

    def flush(self) -> None:
        self.openings.flush()

    def open(
        self, value: Any, release: Release, receipt: Receipt | None = None, *, among: Collection[int] | None = None
    ) -> torch.Tensor | None:
        """The plain value at the receivers of a declared release, None elsewhere. Two rounds.

        The release is on disk before a share is sent. Shares are made fresh first, so that they reveal nothing beyond
        their sum. Before that the parties check that they received the same and asked the dealer for the same
        (`Party.confirm`). A release that an event pays for needs the receipt of that charge. `among`: the parties
        whose shares add up to the value; the others send none.
        """
        return self.open_each([(value, release)], receipt, among=among)[0]

    def open_each(
        self,
        pairs: Sequence[tuple[Any, Release]],
        receipt: Receipt | None = None,
        *,
        among: Collection[int] | None = None,
    ) -> list[torch.Tensor | None]:
        """Several values, each at the receivers of its own release only, in the same two rounds.

        `receipt` belongs to the charge that pays for all of them. `among`: as for `open`.
        """
        if any(not isinstance(value, MPCTensor) for value, _ in pairs):
            kinds = ", ".join(type(value).__name__ for value, _ in pairs)
            raise ProtocolError(f"only shared tensors can be opened, not {kinds}")
        elements = [share_of(value) for value, _ in pairs]
        admissions = self._desk.admit_all([(r, w.shape) for (_, r), w in zip(pairs, elements, strict=True)], receipt)
        with self._transport.meter.scope("open"):
            if self.shards is not None:
                self.shards.confirm("before a release of the head group")
            shares = [w.reshape(-1) + self.party.zero_share((w.size,), among) for w in elements]
            totals = self.party.collect_all(list(zip(admissions, shares, strict=True)), among)
        for (_, release), total, w in zip(pairs, totals, elements, strict=True):
            if self._transcript is not None and total is not None:
                self._transcript.release(release.name, total.reshape(w.shape))
        return [
            None if total is None else _plain(total, bits_of(value)).reshape(w.shape)
            for total, w, (value, _) in zip(totals, elements, pairs, strict=True)
        ]

    def announce(self, values: Mapping[str, float], release: Release) -> dict[str, float]:
        """Every party sends all others these plain numbers; returns those of all. Two rounds.

        Use it for values that are public or follow from an earlier release. They are declared and recorded like a
        release. Each number takes 8 bytes whatever its value, so the length of a message follows from the names
        alone. Names must be public.
        """
        if set(release.receivers) != set(range(self.parties)):
            raise UndeclaredRelease(f"release {release.name!r} is announced, so it must go to every party")
        with self._transport.meter.scope("announce"):
            names = np.frombuffer(json.dumps(list(values)).encode(), np.uint8)
            numbers = np.array(list(values.values()), "<f8")
            if not np.isfinite(numbers).all():
                raise ProtocolError(f"release {release.name!r}: a number to announce is not finite")
            size, others = np.array([names.size, numbers.size]), self.party.others
            specs = {rank: [Spec.of(size)] for rank in others}
            received = self.party.compared(release.name, {rank: [size] for rank in others}, specs)
            sizes = [size if rank == self.rank else received[rank][0] for rank in range(self.parties)]
            if any(not 0 <= int(length) <= _LONGEST_ANNOUNCEMENT for size in sizes for length in size):
                raise ProtocolError(f"release {release.name!r}: an announcement is too long")
            self._desk.admit(release, (int(sum(size[1] for size in sizes)),))
            wanted = {
                rank: [Spec("|u1", (int(sizes[rank][0]),)), Spec("<f8", (int(sizes[rank][1]),))] for rank in others
            }
            received = self.party.broadcast(release.name, [names, numbers], wanted)
            parts = [[names, numbers] if rank == self.rank else received[rank] for rank in range(self.parties)]
        announced: dict[str, float] = {}
        for rank, (text, figures) in enumerate(parts):
            try:
                keys = [str(key) for key in json.loads(text.tobytes())]
                part = dict(zip(keys, figures.tolist(), strict=True))
                readable = len(part) == len(keys) and bool(np.isfinite(figures).all())
            except (ValueError, TypeError):
                readable = False
            if not readable:
                raise PeerError(f"party {rank}", release.name, "sent an announcement that cannot be read")
            if announced.keys() & part.keys():
                raise PeerError(f"party {rank}", release.name, "announced what another party had announced")
            announced.update(part)
        return announced

    # operations of our own

    def sigmoid(self, value: Any, bound: float | None = None, bits: int | None = None) -> Any:
        """Sigmoid to within 5e-4. One round if |value| <= bound is certain; otherwise values are clamped first.

        A long value with a bound takes two rounds: up to 22 by small ring elements, up to 46 to within 1e-7
        (protocols/operations/sigmoid.py). The result has 28 fractional bits then, otherwise 32; products of usual
        values bring it back to 16. With `bits` the result has this fraction and waits for one round, whatever the
        fraction of the value: the series takes it as it is. It is not part of CrypTen's autograd; `value.sigmoid()`
        is, and always clamps.
        """
        self.operations["sigmoid"] += 1
        if bits is not None:
            if bound is None:
                raise ProtocolError("a sigmoid with a chosen fraction needs a bound")
            return self._series("sigmoid", value, bound, bits)
        if bound is not None and bits_of(value) not in tensors.USUAL:
            kernel = sigmoid.sigmoid if bound <= sigmoid.BOUND else sigmoid.fine_sigmoid
            if bound > sigmoid.FINE_BOUND:
                raise RangeError(f"no sigmoid is precise beyond {sigmoid.FINE_BOUND:g}")
            return self.wrap(kernel(self.party, share_of(value), bits_of(value)), sigmoid.SIGMOID_BITS)
        return self._bounded("sigmoid", value, bound, 12.0)

    def tanh(self, value: Any, bound: float | None = None) -> Any:
        """The hyperbolic tangent; the same choice as for `sigmoid`."""
        self.operations["tanh"] += 1
        return self._bounded("tanh", value, bound, 6.0)

    def log_cosh(self, value: Any, bound: float) -> Any:
        """log(2 cosh(value / 2)), the even part of the logistic loss, for |value| <= bound; 32 fractional bits."""
        return self._bounded("log_cosh", value, bound, bound)

    def clamp(self, value: Any, bound: float) -> Any:
        """The value, or the nearer end of [-bound, bound]. One comparison and one product."""
        with self._transport.meter.scope("clamp"):
            margins = self._margins(value, bound)
            outside = comparison.negative(self.party, margins)
            # x + [x < -bound] (-bound - x) + [x > bound] (bound - x)
            margins[0] = margins[0] * -1
            moved = arithmetic.bilinear(self.party, "mul", outside, margins)
            elements = share_of(value)
            return self.wrap((elements.reshape(-1) + moved[0] + moved[1]).reshape(elements.shape), bits_of(value))

    def all_ones(self, bits: Array) -> Any:
        """Whether all bits of a row are 1, where the exclusive or of the parties' bits is meant; integers.

        A round for each halving of the row, and one more (protocols/operations/comparison.py).
        """
        self.operations["all_ones"] += 1
        return self.wrap(comparison.all_ones(self.party, bits), 0)

    def proven_bits(self, own: Array, widths: Sequence[int], groups: Sequence[Groups] | None = None) -> list[Any]:
        """Bits that each party knows (rows x its width), by rank, with a proof that they are bits; one round.

        With active security only (protocols/operations/inputs.py). groups: ranges of each party's columns that are
        one-hot rows. own: the bits of this party.
        """
        self.operations["proven_bits"] += 1
        shares = inputs.proven_bits(self.party, own, len(own), widths, groups)
        return [self.wrap(share, 0) for share in shares]

    def veil(self, columns: int, bits: int) -> Any:
        """Of the last match: zeros where all parties have a record, else uniform ring elements; from the dealer."""
        self.operations["veil"] += 1
        return self.wrap(self.party.tuples.veil(columns), bits)

    def match(self, pseudonyms: Pseudonyms, bounds: Bounds | None) -> Aligned:
        """The rows of the own records in the common table, assigned by the dealer, and shares of the mask."""
        return self.party.tuples.match(pseudonyms, bounds, self.party.local.draw())

    def forget(self, tensor: Any) -> None:
        """Let the dealer discard the masks of a pinned tensor; no product with it may follow."""
        if self.shards is not None and not isinstance(tensor, MPCTensor):
            return self.shards.forget(tensor)
        self.flush()  # products that wait still need them
        for number in set(tensors.numbers(binding_tensors.value_of(tensor))):
            self.party.tuples.forget(number)

    def tell_all(self, step: str, flag: int) -> list[int]:
        """One public number below 256 from each party to all, by rank: for agreeing on the next step."""
        received = self._to_all(step, np.array([flag], np.uint8))
        return [flag if rank == self.rank else int(received[rank][0]) for rank in range(self.parties)]

    def barrier(self) -> None:
        self.tell_all("barrier", 0)

    def swap_bytes(self, step: str, message: bytes) -> list[bytes]:
        """Public bytes of every party, the same number from each, by rank."""
        received = self._to_all(step, np.frombuffer(message, np.uint8))
        return [message if rank == self.rank else received[rank].tobytes() for rank in range(self.parties)]

    def swap_texts(self, step: str, message: bytes) -> list[bytes]:
        """Public bytes of every party, of any length, by rank. Two rounds, or one if all are empty."""
        sizes = [int.from_bytes(size, "big") for size in self.swap_bytes(step, len(message).to_bytes(8, "big"))]
        longest = max(sizes)
        if longest > _LONGEST_ANNOUNCEMENT:
            raise ProtocolError(f"{step}: the announcement of a party is too long")
        if longest == 0:
            return [b""] * self.parties
        padded = self.swap_bytes(step, message.ljust(longest, b"\0"))
        return [text[:size] for text, size in zip(padded, sizes, strict=True)]

    def agree_on_name(self) -> str:
        """A public name that no party chooses: a hash of random ring elements of all parties. Two rounds, 80 bytes to
        each.

        Every party first sends a hash commitment of its ring elements, then the ring elements. A party that waits for
        the others' ring elements is bound to its own by then, so the name is uniform if one party is honest. The
        second round also compares what was received, so that all honest parties have received the same commitments.
        """
        contribution, others = np.frombuffer(fresh_key(), np.uint8), self.party.others
        promised = self._to_all("commitment to the name of the run", _commitment(self.rank, contribution))
        specs = {rank: [Spec.of(contribution)] for rank in others}
        received = self.party.compared("name of the run", {rank: [contribution] for rank in others}, specs)
        for rank in others:
            if not np.array_equal(_commitment(rank, received[rank][0]), promised[rank]):
                raise PeerError(f"party {rank}", "name of the run", "sent other bytes than it had committed to")
        elements = [contribution if rank == self.rank else received[rank][0] for rank in range(self.parties)]
        return hashlib.sha256(b"name of the run" + b"".join(part.tobytes() for part in elements)).hexdigest()

    def declared(self, name: str) -> Release:
        if name not in self._plan.releases:
            raise UndeclaredRelease(f"release {name!r} is not in the run plan")
        return self._plan.releases[name]

    # running

    def repeat(self, times: int, requests: list[Request] | None = None) -> Iterator[int]:
        """Count the passes of a loop in which every pass makes the same requests; the dealer works ahead.

        `requests`, a list that is empty at first, remembers the requests of a pass until the next such loop.
        """
        for number in self.party.tuples.repeat(times, requests):
            yield number
            self.flush()  # what a pass has asked for belongs to it

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """Wait this long for the others inside: for phases of long local work."""
        usual, self._transport.deadline = self._transport.deadline, seconds
        try:
            yield
        finally:
            self._transport.deadline = usual

    @contextmanager
    def measure(self, protocol: str) -> Iterator[Cost]:
        """Count rounds and bytes of what runs inside under a name."""
        with self._transport.meter.scope(protocol) as cost:
            yield cost

    @property
    def costs(self) -> dict[str, Cost]:
        return self._transport.meter.by_protocol

    @property
    def total_cost(self) -> Cost:
        return self._transport.meter.total

    @property
    def released(self) -> list[dict[str, Any]]:
        """The releases so far, as in the log."""
        return list(self._desk.chain.entries)

    def wrap(self, elements: Share, bits: int) -> Any:
        return tensor_of(elements, bits)

    @staticmethod
    def fraction(value: Any) -> int:
        return bits_of(value)

    def with_fraction(self, value: Any, bits: int) -> Any:
        """The same ring elements with another number of fractional bits: the value times a power of two, exactly."""
        return value.with_fraction(bits)

    def noise_table(
        self, kind: NoiseKind, sigma: float, rows: int, holders: Sequence[Collection[int]], bits: int
    ) -> Any:
        """Fresh noise values of deviation sigma (rows x columns); holders: of each column; no round."""
        return self.wrap(noise.noise_share(self.party, kind, sigma * 2.0**bits, rows, holders), bits)

    def noise(self, kind: NoiseKind, sigma: float, count: int, holders: Collection[int], bits: int) -> Any:
        """A vector of `count` fresh noise values of deviation sigma, from the dealer and from `holders`; no round."""
        share = noise.noise_share(self.party, kind, sigma * 2.0**bits, count, [holders])
        return self.wrap(share[:, 0], bits)

    def _series(self, name: SeriesName, value: Any, bound: float, bits: int) -> Any:
        """A series of a value of any fraction; waits for a round."""
        elements, have = share_of(value), bits_of(value)
        start = partial(sigmoid.evaluation, name=name, x=elements, bound=bound, bits=have, wanted=bits)
        return binding_tensors.of(tensors.Late(name, elements.shape, bits, start))

    def _bounded(self, name: SeriesName, value: Any, bound: float | None, usual: float) -> Any:
        with self._transport.meter.scope(name):
            elements = arithmetic.rescale(self.party, share_of(value), bits_of(value), FRACTION_BITS)
            if bound is None:
                elements, bound = share_of(self.clamp(self.wrap(elements, FRACTION_BITS), usual)), usual
            return self.wrap(sigmoid.evaluate(self.party, name, elements, bound), WIDE_BITS)

    def _margins(self, value: Any, bound: float) -> RingArray:
        """Shares of value + bound and of bound - value: both are positive inside the range."""
        elements = share_of(value).reshape(-1)
        margins = np.stack([elements, -elements])
        if self.party.adds_public:
            margins += ring.encode(np.array([bound]), bits_of(value))
        return margins

    def _compare(self, step: str, digest: bytes, reason: str, error: type[Exception] | None = None) -> None:
        for rank, theirs in self._to_all(step, np.frombuffer(digest, dtype=np.uint8)).items():
            if theirs.tobytes() != digest:
                if error is not None:
                    raise error(f"party {rank}: {reason} (step: {step})")
                raise PeerError(f"party {rank}", step, reason)

    def _to_all(self, step: str, array: Array) -> dict[int, Array]:
        """The public values of all other parties, all of the same shape."""
        others = [rank for rank in range(self.parties) if rank != self.rank]
        send, receive = [array], {rank: [Spec.of(array)] for rank in others}
        if self._party is not None:
            received = self._party.broadcast(step, send, receive)
        else:
            received = self._transport.exchange(step, {rank: send for rank in others}, receive)
        return {rank: received[rank][0] for rank in others}


def _commitment(rank: int, elements: Array) -> Array:
    """A hash that binds a party to random ring elements and, since they have 256 bits, hides them."""
    return np.frombuffer(
        hashlib.sha256(f"commitment of party {rank} ".encode() + elements.tobytes()).digest(), np.uint8
    )


def _plain(total: RingArray, bits: int) -> torch.Tensor:
    return torch.from_numpy(total if bits == 0 else ring.decode(total, bits))


def share_of(value: Any) -> Share:
    return binding_tensors.share_in(value)


def bits_of(value: Any) -> int:
    return int(value.encoder._precision_bits)
