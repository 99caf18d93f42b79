"""Real SGLang releases behind the protocol, and our model of their rules held against them.

`pytest -m sglang` needs interpreters that hold a release each: SGLANG_PYTHONS="0.5.17=/path/to/python 0.5.18=...".
SGLANG_HISTORIES is the number of random histories per release (default 25), SGLANG_SEED the first one's seed, and
SGLANG_OPTIONS goes to the driver.
"""

from __future__ import annotations

import base64
import json
import os
import random
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mamba_replay_check.engines.sglang_model as sglang_model
import pytest
from mamba_replay_check.checker.geometry import Geometry
from mamba_replay_check.engines.base import Snapshots
from mamba_replay_check.engines.sglang_rules import (
    SGLANG_0_5_17,
    SGLANG_0_5_18,
    SGLANG_0_5_19,
    SGLANG_0_5_23,
    EngineStopped,
    Rules,
)

pytestmark = pytest.mark.sglang

RULES: dict[str, Rules] = {
    "0.5.17": SGLANG_0_5_17,
    "0.5.18": SGLANG_0_5_18,
    "0.5.19": SGLANG_0_5_19,
    "0.5.20": SGLANG_0_5_19,
    "0.5.21": SGLANG_0_5_23,
    "0.5.22": SGLANG_0_5_23,
    "0.5.23": SGLANG_0_5_23,
}

DRIVER = Path(sglang_model.__file__).parent / "drivers" / "sglang"

OPTIONS = os.environ.get("SGLANG_OPTIONS", "").split()

PYTHONS = dict(pair.split("=", 1) for pair in os.environ.get("SGLANG_PYTHONS", "").split())


class DriverError(RuntimeError):
    """The driver answered a call with an error; its words."""


Take = dict[str, Any]


@dataclass
class Client:
    """The checker's side of the protocol, as little of it as the tests need."""

    process: subprocess.Popen[str]
    takes: list[Take] = field(default_factory=list)
    layers: list[dict[str, list[int]]] = field(default_factory=list)

    @classmethod
    def start(cls, python: str) -> Client:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        return cls(subprocess.Popen([python, str(DRIVER), *OPTIONS], text=True, **pipes))

    def call(self, name: str, **keys: Any) -> dict[str, Any]:
        """One exchange. Every take is granted, and noted with its `index` and `conv_end`."""
        self._write({"call": name, **keys})
        while True:
            answer = json.loads(self.process.stdout.readline() or '{"error": "the driver ended"}')
            if "take" not in answer:
                break
            number = len(self.takes)
            self.takes.append(answer["take"])
            grant: dict[str, Any] = {"snapshot": number}
            if self.layers:
                grant["state"] = [packed_layer(layer, number) for layer in self.layers]
            self._write(grant)
        if "error" in answer:
            raise DriverError(answer["error"])
        return answer

    def open(self, geometry: Geometry, tokens: int, layers: Sequence[dict[str, list[int]]] = ()) -> None:
        self.takes, self.layers = [], list(layers)
        sizes = {name: getattr(geometry, name) for name in ("chunk", "page", "dcp", "interval")}
        kind = {"payload": "tensors", "dtype": "float32", "layers": self.layers} if layers else {"payload": "tag"}
        self.call("open", geometry=sizes, tokens=tokens, **kind)

    def close(self) -> int:
        self.call("close")
        return self.process.wait(timeout=60)

    def _write(self, message: dict[str, Any]) -> None:
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()


def packed_layer(layer: dict[str, list[int]], number: int) -> dict[str, Any]:
    """A state in which every element differs, and tells the snapshot: number + element / 1024."""
    packed = {}
    for name, shape in layer.items():
        elements = 1
        for size in shape:
            elements *= size
        values = [number + element / 1024 for element in range(elements)]
        data = base64.b64encode(struct.pack(f"<{elements}f", *values)).decode()
        packed[name] = {"dtype": "float32", "shape": list(shape), "data": data}
    return packed


def unpacked(tensor: dict[str, Any]) -> list[float]:
    data = base64.b64decode(tensor["data"])
    if tensor["dtype"] == "bfloat16":  # the upper half of a float32
        halves = struct.unpack(f"<{len(data) // 2}H", data)
        data = struct.pack(f"<{len(halves)}I", *(half << 16 for half in halves))
    return list(struct.unpack(f"<{len(data) // 4}f", data))


@pytest.fixture(scope="module", params=list(RULES))
def release(request: pytest.FixtureRequest) -> str:
    if request.param not in PYTHONS:
        pytest.skip(f"SGLANG_PYTHONS names no Python with SGLang {request.param}")
    return request.param


@pytest.fixture(scope="module")
def client(release: str) -> Iterator[Client]:
    client = Client.start(PYTHONS[release])
    yield client
    if client.process.poll() is None:
        assert client.close() == 0


SEED_CASE = Geometry(64, 64, 8, 256)


def serve(client: Client, prompt: Sequence[int], *cuts: int) -> dict[str, Any]:
    found = client.call("match", tokens=list(prompt))
    start = found["cached_tokens"]
    for end in [*(cut for cut in cuts if cut > start), len(prompt)]:
        client.call("extend", request=found["request"], start=start, end=end)
        start = end
    client.call("finish", request=found["request"])
    return found


def test_hello_names_the_release(client: Client, release: str) -> None:
    answer = client.call("hello", protocol=1)
    assert answer["versions"]["sglang"] == release
    assert answer["payloads"] == ["tag", "tensors"]


def test_the_case_of_34808(client: Client, release: str) -> None:
    """0.5.17 resumes at 19968 from a state that has absorbed 20416 tokens; 0.5.18 corrected it."""
    client.open(SEED_CASE, 20_450)
    serve(client, range(20_450), 16_384)
    found = client.call("match", tokens=list(range(20_450)))
    depth = 20_416 if release == "0.5.17" else 19_968
    assert (found["cached_tokens"], found["claimed_depth"], found["snapshot"]) == (19_968, depth, 1)
    take = client.takes[1]
    assert 16_384 + 64 * take["index"] == take["conv_end"] == depth


def test_an_assertion_of_sglang_is_told_in_its_own_words(client: Client, release: str) -> None:
    """And the driver goes on: the next cell is right."""
    with pytest.raises(DriverError, match="AssertionError: For SSM models"):
        client.call("open", geometry={"chunk": 64, "page": 48, "dcp": 1, "interval": 192}, payload="tag", tokens=600)
    with pytest.raises(DriverError, match="no cache is open"):
        client.call("match", tokens=[1, 2, 3])
    test_the_case_of_34808(client, release)


def test_a_pass_that_sglang_stops(client: Client, release: str) -> None:
    """34808 asks for a depth on the checkpoint grid, counted from the pass's start, and then asserts it from 0."""
    client.open(SEED_CASE, 2_000)
    request = client.call("match", tokens=list(range(1_200)))["request"]
    client.call("extend", request=request, start=0, end=100)
    if release == "0.5.18":
        with pytest.raises(DriverError, match=r"AssertionError: assert i % chunk_size == 0"):
            client.call("extend", request=request, start=100, end=1_200)
    else:
        client.call("extend", request=request, start=100, end=1_200)
    test_the_case_of_34808(client, release)


def test_the_case_of_39115(client: Client, release: str) -> None:
    """A prefill cut at 64 and ended at 605: the state stands at 576, the tree names 512; corrected in 0.5.21."""
    client.open(SEED_CASE, 700)
    serve(client, range(605), 64)
    found = client.call("match", tokens=list(range(700)))
    wrong = release in ("0.5.17", "0.5.18", "0.5.19", "0.5.20")
    assert (found["cached_tokens"], found.get("claimed_depth")) == (512, 576 if wrong else 512)


def test_the_case_of_35412(client: Client, release: str) -> None:
    """Decode snapshots every 256 steps on a tree page of 512: 768 has no node; corrected in 0.5.19."""
    client.open(SEED_CASE, 900)
    prompt = list(range(500))
    request = client.call("match", tokens=prompt)["request"]
    client.call("extend", request=request, start=0, end=500)
    steps = [10_000 + step for step in range(300)]
    for token in steps:
        client.call("decode", request=request, token=token)
    client.call("finish", request=request)
    found = client.call("match", tokens=[*prompt, *steps, 1])
    wrong = release in ("0.5.17", "0.5.18")
    assert (found["cached_tokens"], found.get("claimed_depth")) == (512, 768 if wrong else 512)


def test_tensors_go_through_sglangs_own_slots(client: Client) -> None:
    layers = [{"recurrent": [2, 16, 8], "window": [3, 64]}] * 2
    client.open(Geometry(64, 64, 1, 256), 1_000, layers)
    serve(client, range(1_000), 512)
    found = client.call("match", tokens=list(range(1_000)))
    assert found["snapshot"] == 1
    assert len(found["state"]) == 2
    for layer, sent in zip(found["state"], [packed_layer(one, 1) for one in layers], strict=True):
        assert layer["recurrent"]["dtype"] == "float32"
        assert layer["recurrent"]["shape"] == [2, 16, 8]
        assert unpacked(layer["recurrent"]) == unpacked(sent["recurrent"])
        # SGLang keeps windows in bfloat16: 8 bits of every element.
        assert layer["window"]["dtype"] == "bfloat16"
        assert unpacked(layer["window"]) == pytest.approx(unpacked(sent["window"]), rel=2**-8)


# The model against the release.


@dataclass
class Noted(Snapshots):
    """Counts what the model takes, as the client counts what the release takes."""

    takes: list[Take]

    def take(self, index: int | None, conv_end: int) -> int:
        self.takes.append({"index": index, "conv_end": conv_end})
        return len(self.takes) - 1


class Model:
    """The model, answering as the protocol does."""

    def __init__(self, geometry: Geometry, rules: Rules) -> None:
        self._engine = sglang_model.SGLangModel(geometry, rules)
        self.takes: list[Take] = []
        self._seen = 0

    def call(self, name: str, **keys: Any) -> dict[str, Any]:
        if name == "match":
            match = self._engine.match(keys["tokens"])
            answer = {"request": match.request, "cached_tokens": match.cached_tokens, "snapshot": match.payload}
            return answer if match.payload is None else {**answer, "claimed_depth": match.claimed_depth}
        if name == "finish":
            self._engine.finish(**keys)
        else:
            getattr(self._engine, name)(**keys, snapshots=Noted(self.takes))
        donations = self._engine.donations[self._seen :]
        self._seen += len(donations)
        told = [{**vars_of(one), "fate": one.fate.value} for one in donations]
        return {"donations": told} if told else {}


def vars_of(donation: Any) -> dict[str, Any]:
    return {name: getattr(donation, name) for name in ("request", "claimed_depth", "node_depth")}


class Parted(Exception):
    """Model and release did not answer alike: (what differs, the model's, the release's)."""


@dataclass
class Both:
    """The release and the model, asked the same."""

    client: Client
    model: Model
    log: list[str] = field(default_factory=list)

    def call(self, name: str, **keys: Any) -> dict[str, Any]:
        shown = {**keys, "tokens": len(keys["tokens"])} if "tokens" in keys else keys
        self.log.append(f"{name} {shown}")
        said = self._asked(self.model, name, keys)
        answer = self._asked(self.client, name, keys)
        if "error" in said or "error" in answer:
            if ("error" in said) != ("error" in answer):
                raise Parted("stop", said, answer)
            self.log.append(f"stopped {answer}")
            raise StopIteration
        if self.model.takes != self.client.takes:
            raise Parted("take", self.model.takes[-1:], self.client.takes[-1:])
        for key in sorted({*said, *answer}):
            if said.get(key) != answer.get(key):
                raise Parted(key, said.get(key), answer.get(key))
        if cached := answer.get("cached_tokens"):
            self.log.append("resumed right" if answer["claimed_depth"] == cached else "resumed wrong")
        return answer

    @staticmethod
    def _asked(side: Any, name: str, keys: dict[str, Any]) -> dict[str, Any]:
        try:
            return side.call(name, **keys)
        except (DriverError, EngineStopped) as stopped:
            return {"error": str(stopped)}


def random_geometry(rng: random.Random) -> Geometry:
    chunk = rng.choice([64, 64, 64, 128, 256])
    page = rng.choice([1, 16, 32, 64, 64, 128, 256])
    cache_chunk = max(chunk, page)
    return Geometry(chunk, page, rng.choice([1, 2, 4, 8]), cache_chunk * rng.choice([1, 1, 2, 4]))


@dataclass
class Running:
    """A request of a random history: the passes over its prompt that are left, then the decode steps."""

    number: int
    prompt: list[int]
    absorbed: int
    decoded: list[int]


def play(rng: random.Random, both: Both, geometry: Geometry) -> None:
    """A random history: turns that continue, fork or repeat earlier ones, two at a time now and then."""
    known: list[list[int]] = [[]]
    running: list[Running] = []
    for turn in range(rng.randint(2, 6)):
        if running and rng.random() < 0.8:
            while running:
                step(rng, both, geometry, running, known)
        running.append(admit(rng, both, geometry, known, turn))
        for _ in range(rng.randint(0, 4)):
            if running:
                step(rng, both, geometry, running, known)
    while running:
        step(rng, both, geometry, running, known)


def admit(rng: random.Random, both: Both, geometry: Geometry, known: list[list[int]], turn: int) -> Running:
    stem = rng.choice(known)
    keep = rng.choice([len(stem), rng.randint(0, len(stem)), len(stem) // geometry.tree_page * geometry.tree_page])
    grown = rng.choice([rng.choice(lengths(geometry)), rng.randint(1, 3 * geometry.checkpoint_grid)])
    prompt = stem[: min(keep, 6_000)] + [1_000_000 * (turn + 1) + n for n in range(grown)]
    # A decode step costs most: cross one or two intervals, but only when the prompt ends near one.
    near = -len(prompt) % geometry.interval
    crossing = near + rng.choice([-1, 0, 1, geometry.interval])
    steps = rng.choice([0, rng.randint(0, 3), crossing if 0 <= crossing < 300 else 1])
    found = both.call("match", tokens=prompt)
    decoded = [10_000_000 + 1_000 * turn + n for n in range(steps)]
    return Running(found["request"], prompt, found["cached_tokens"], decoded)


def step(rng: random.Random, both: Both, geometry: Geometry, running: list[Running], known: list[list[int]]) -> None:
    """One pass, or all decode steps and the end, of one running request."""
    one = rng.choice(running)
    left = len(one.prompt) - one.absorbed
    if left:
        length = min(left, rng.choice([left, left, rng.choice(lengths(geometry)), rng.randint(1, left)]))
        both.call("extend", request=one.number, start=one.absorbed, end=one.absorbed + length)
        one.absorbed += length
        return
    for token in one.decoded:
        both.call("decode", request=one.number, token=token)
    both.call("finish", request=one.number)
    running.remove(one)
    known.append(one.prompt + one.decoded)


def lengths(geometry: Geometry) -> list[int]:
    """Lengths on and beside what matters."""
    sizes = (1, geometry.chunk, geometry.cache_chunk, geometry.tree_page, geometry.checkpoint_grid)
    return [size + more for size in sizes for more in (0, 1, -1) if size + more > 0]


def compare(client: Client, release: str, seed: int) -> tuple[Geometry, list[str], Parted | None]:
    """One history on both sides: its geometry, its calls, and where they part, if they do."""
    rng = random.Random(seed)
    geometry = random_geometry(rng)
    client.open(geometry, 16_000)
    both = Both(client, Model(geometry, RULES[release]))
    try:
        play(rng, both, geometry)
    except StopIteration:
        pass  # both stopped here
    except Parted as parted:
        return geometry, both.log, parted
    return geometry, both.log, None


def test_the_model_agrees(client: Client, release: str) -> None:
    first = int(os.environ.get("SGLANG_SEED", "0"))
    for seed in range(first, first + int(os.environ.get("SGLANG_HISTORIES", "25"))):
        geometry, log, parted = compare(client, release, seed)
        assert parted is None, f"seed {seed}, {geometry}: {parted.args}\n" + "\n".join(log)


def survey(release: str, first: int, count: int) -> None:
    """Every disagreement of a range of seeds, the shortest history of each kind: `python FILE RELEASE FIRST COUNT`."""
    client = Client.start(PYTHONS[release])
    kinds: dict[str, list[tuple[int, Geometry, list[str], Parted]]] = {}
    agreed = 0
    seen: Counter[str] = Counter()
    for seed in range(first, first + count):
        geometry, log, parted = compare(client, release, seed)
        seen.update(line.split()[0] if line.split()[0] != "resumed" else line for line in log)
        seen["take"] += len(client.takes)
        if parted is None:
            agreed += 1
            continue
        call = log[-1].split()[0]
        kinds.setdefault(f"{call}: {parted.args[0]}", []).append((seed, geometry, log, parted))
    print(f"{release}: {agreed} of {count} histories agree; {dict(seen)}")
    for kind, cases in kinds.items():
        seed, geometry, log, parted = min(cases, key=lambda case: len(case[2]))
        print(f"- {kind}: {len(cases)} times; seed {seed}, {geometry}")
        print(f"    model {parted.args[1]}\n    release {parted.args[2]}")
        print("\n".join(f"    {line}" for line in log[-12:]))
    client.close()


if __name__ == "__main__":
    survey(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
