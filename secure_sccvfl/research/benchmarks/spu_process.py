"""One process of SPU for launch/bench.py: steps of logistic regression with momentum, as its users write them in jax.

    PYTHON spu_process.py SETTINGS

SETTINGS is JSON: rank, addresses of the parties, folder (with inputs.npz; shares and each party's row are left in it)
and repeats, the steps that are timed after one that is not.

Runs in a Python that has SPU (`make peers`), not in the project's: the two need different numpy. So nothing of the
project is imported here. Links are plain: brpc over loopback, no TLS. Rank 0 makes the shares of all inputs, which no
deployment would do; that is before the clock starts.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

PARTIES = 3
VALUES = ("rows", "label", "weight", "velocity", "bias", "bias_velocity")


def main(settings: dict[str, Any]) -> None:
    import spu

    folder, rank = Path(settings["folder"]), settings["rank"]
    link = _linked(settings, spu.link)
    with np.load(folder / "inputs.npz") as kept:
        given = dict(kept)
    rate, momentum = float(given["rate"]), float(given["momentum"])
    columns = given["rows"].shape[1]
    zero, flat = np.zeros((columns, 1), np.float32), np.zeros((1, 1), np.float32)
    values = [given["rows"].astype(np.float32), given["label"].astype(np.float32)[:, None], zero, zero, flat, flat]
    config = spu.RuntimeConfig(protocol=spu.ProtocolKind.ABY3, field=spu.FieldType.FM64)
    program = _compiled(spu, values, rate, momentum)
    runtime, exchange = spu.Runtime(link, config), spu.Io(PARTIES, config)
    _put_in_secret(spu, exchange, runtime, link, values, rank, folder)

    def step(machine: Any) -> None:
        machine.run(program)
        for name, made in zip(VALUES[2:], program.output_names, strict=True):
            machine.set_var(name, machine.get_var(made))

    seconds, processor = [], []
    for number in range(settings["repeats"] + 1):
        link.barrier()
        start, busy = time.perf_counter(), time.process_time()
        step(runtime)
        if number:
            seconds.append(time.perf_counter() - start)
            processor.append(time.process_time() - busy)
    opened = _opened(spu, exchange, runtime, link)
    row = {"seconds": seconds, "processor": processor, "memory": _peak_memory(), "weight": opened.tolist()}
    (folder / f"row-{rank}.json").write_text(json.dumps(row))
    config.enable_pphlo_profile = True  # says how many bytes and messages a run takes
    profiled = spu.Runtime(link, config)
    for name in VALUES:
        profiled.set_var(name, runtime.get_var(name))
    step(profiled)
    link.barrier()
    link.stop_link()


def _linked(settings: dict[str, Any], links: Any) -> Any:
    described = links.Desc()
    for rank, address in enumerate(settings["addresses"]):
        described.add_party(f"p{rank}", address)
    return links.create_brpc(described, settings["rank"])


def _compiled(spu: Any, values: list[np.ndarray], rate: float, momentum: float) -> Any:
    import jax
    import jax.numpy as jnp
    from spu.utils import frontend

    def step(rows: Any, label: Any, weight: Any, velocity: Any, bias: Any, bias_velocity: Any) -> Any:
        residual = jax.nn.sigmoid(rows @ weight + bias) - label
        velocity = momentum * velocity - rate / len(label) * (rows.T @ residual)
        bias_velocity = momentum * bias_velocity - 4 * rate * jnp.mean(residual)
        return weight + velocity, velocity, bias + bias_velocity, bias_velocity

    secret = [spu.Visibility.VIS_SECRET] * len(values)
    program, _ = frontend.compile(
        frontend.Kind.JAX, step, values, {}, list(VALUES), secret, lambda made: [f"new {k}" for k in range(len(made))]
    )
    return program


def _put_in_secret(
    spu: Any, exchange: Any, runtime: Any, link: Any, values: list[np.ndarray], rank: int, folder: Path
) -> None:
    if rank == 0:
        shares = [exchange.make_shares(value, spu.Visibility.VIS_SECRET) for value in values]
        for other in range(PARTIES):
            parts = [(share[other].meta, share[other].share_chunks) for share in shares]
            (folder / f"share-{other}").write_bytes(pickle.dumps(parts))
    link.barrier()
    for name, part in zip(VALUES, pickle.loads((folder / f"share-{rank}").read_bytes()), strict=True):
        runtime.set_var(name, _share(spu, *part))


def _opened(spu: Any, exchange: Any, runtime: Any, link: Any) -> np.ndarray:
    own = runtime.get_var("weight")
    text = pickle.dumps((own.meta, own.share_chunks)).hex()  # the link takes text alone
    shares = [pickle.loads(bytes.fromhex(part)) for part in link.all_gather(text)]
    weight: np.ndarray = exchange.reconstruct([_share(spu, *part) for part in shares])
    return weight


def _peak_memory() -> int:
    """In bytes, as `measuring.py` measures it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def _share(spu: Any, meta: bytes, chunks: list[bytes]) -> Any:
    share = spu.libspu.Share()
    share.meta, share.share_chunks = meta, chunks
    return share


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
