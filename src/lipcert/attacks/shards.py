"""Work in shards of fixed examples, in this process or in several; the findings are the same.

A shard is up to SHARD examples and one radius; what is random in it depends on the seed and on both. Every process
computes with one thread, so that sums are added in the same order whoever computes a shard. Shards depend on
nothing but what smaller radii found: a finished one need never be repeated.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lipcert.attacks.attack import Method, attack
from lipcert.attacks.evidence import Finding

SHARD = 32


@dataclass(frozen=True)
class Shard:
    """Examples to attack within one radius. Arrays, since those travel between processes by themselves."""

    name: str
    indices: list[int]
    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    radius: float
    method: Method
    seed: int


@dataclass(frozen=True)
class Done:
    """A finished shard, and the processor seconds it took."""

    shard: Shard
    findings: list[Finding]
    cpu_seconds: float


class Attacker(Protocol):
    """Finishes shards, in any order."""

    def __call__(self, shards: Sequence[Shard]) -> Iterator[Done]: ...


def attack_shard(network: nn.Module, shard: Shard) -> Done:
    """Attack the examples of one shard, all at once."""
    began = time.process_time()
    result = attack(
        network,
        torch.from_numpy(shard.images),
        torch.from_numpy(shard.labels),
        eps=shard.radius,
        method=shard.method,
        seed=shard.seed,
        indices=torch.tensor(shard.indices),
    )
    fell = (result.broken | ~result.correct).tolist()  # wrong at distance 0 is wrong within every radius
    findings = [
        Finding(
            index,
            fell[position],
            result.by[position],
            float(result.distances[position]) if fell[position] else None,
            int(result.predictions[position]) if fell[position] else None,
        )
        for position, index in enumerate(shard.indices)
    ]
    return Done(shard, findings, time.process_time() - began)


@contextmanager
def attackers(network: nn.Module, jobs: int) -> Iterator[Attacker]:
    """A function that finishes shards with ``jobs`` processes; one job is this process. They end with the block."""
    torch.set_num_threads(1)
    if jobs == 1:
        yield lambda shards: (attack_shard(network, shard) for shard in shards)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(pickle.dumps(network),))

    def finish(shards: Sequence[Shard]) -> Iterator[Done]:
        for future in as_completed([pool.submit(_work, shard) for shard in shards]):
            yield future.result()

    try:
        yield finish
    except BaseException as error:
        for child in multiprocessing.active_children():  # or they would first finish what they have begun
            child.kill()
        if isinstance(error, BrokenProcessPool):
            raise OSError(
                f"the {jobs} processes must run to the end; got one that died, perhaps for lack of memory. What is "
                "finished is kept: run the same command again, with fewer --jobs."
            ) from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


_network: nn.Module | None = None  # of a worker process


def _begin(pickled: bytes) -> None:
    global _network
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process hears it and ends the others
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)  # nobody is left to hand the result to

    threading.Thread(target=follow, daemon=True).start()
    torch.set_num_threads(1)
    _network = pickle.loads(pickled)


def _work(shard: Shard) -> Done:
    assert _network is not None
    return attack_shard(_network, shard)
