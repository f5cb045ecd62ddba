"""Processes that are forked from one that has imported everything share nothing that must differ."""

import ssl
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from launch.nursery import Program, context, prepare
from protocols.gaussian import discrete_gaussian
from protocols.randomness import fresh_key


def draw(there: Connection) -> None:
    """What a forked process draws from every generator that protocols use; and whether torch came along."""
    there.send(
        {
            "key": fresh_key(),
            "noise": discrete_gaussian(1e6, (8,)).tobytes(),
            "tls": ssl.RAND_bytes(16),
            "agreement": X25519PrivateKey.generate().private_bytes_raw(),
            "preloaded": "torch" in sys.modules,
        }
    )


def test_forked_processes_draw_different_randomness() -> None:
    prepare({})
    ends = [context.Pipe() for _ in range(3)]
    processes = [context.Process(target=draw, args=(there,)) for _, there in ends]
    for process in processes:
        process.start()
    seen = [here.recv() for here, _ in ends]
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    assert all(drawn.pop("preloaded") for drawn in seen)
    for name in seen[0]:
        assert len({drawn[name] for drawn in seen}) == len(seen), name


def test_a_program_that_fails_says_so_in_its_log(tmp_path: Path) -> None:
    program = Program("party 0", "run_party", ["--rank", "0"], tmp_path / "log", {})
    program.wait(60)
    assert program.returncode == 2
    assert "--config" in (tmp_path / "log").read_text()
