"""What the processes of a race run; a module of its own, so that spawned processes can import it."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.synchronize import Barrier

from dagster_versioned.errors import AlreadyExists, PreconditionFailed
from dagster_versioned.storage import ObjectStore

Attempt = Callable[[ObjectStore, str, int], bool]


def create(store: ObjectStore, key: str, who: int) -> bool:
    """Whether ``who`` was the one to create the object."""
    try:
        store.put_if_absent(key, b"%d" % who)
    except AlreadyExists:
        return False
    return True


def swap(store: ObjectStore, key: str, who: int) -> bool:
    """Whether ``who`` replaced the object that the race began with."""
    try:
        store.put_if_match(key, b"%d" % who, store.get(f"{key}.etag").decode())
    except PreconditionFailed:
        return False
    return True


def add_one(store: ObjectStore, key: str, rounds: int) -> None:
    """Add 1 to the number in the object, ``rounds`` times, by compare-and-swap."""
    for _ in range(rounds):
        while True:
            data, info = store.get_with_info(key)
            try:
                store.put_if_match(key, b"%d" % (int(data) + 1), info.etag)
                break
            except PreconditionFailed:
                continue


def among_threads(store: ObjectStore, attempt: Attempt, keys: list[str], threads: int = 16) -> dict[str, list[int]]:
    """For each key, who of ``threads`` threads succeeded."""
    with ThreadPoolExecutor(threads) as pool:
        return {
            key: [who for who, won in enumerate(pool.map(partial(attempt, store, key), range(threads))) if won]
            for key in keys
        }


def among_processes(store: ObjectStore, attempts: dict[str, Attempt], processes: int = 8) -> dict[str, list[int]]:
    """For each key, who of ``processes`` processes, each with its own copy of the store, succeeded at its attempt."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    results = context.SimpleQueue()
    racers = [context.Process(target=_race, args=(store, attempts, who, barrier, results)) for who in range(processes)]
    for racer in racers:
        racer.start()
    wins = dict(results.get() for _ in racers)
    for racer in racers:
        racer.join()
    return {key: [who for who in range(processes) if key in wins[who]] for key in attempts}


def _race(store: ObjectStore, attempts: dict[str, Attempt], who: int, barrier: Barrier, results) -> None:
    won: list[str] = []
    try:
        for key, attempt in attempts.items():
            barrier.wait(240)
            if attempt(store, key, who):
                won.append(key)
    finally:
        results.put((who, won))
