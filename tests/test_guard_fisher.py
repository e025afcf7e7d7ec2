"""The Fisher of single examples, from one pass over a batch: the same as one pass each, whatever the model is."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rwalk import EWC, Guard
from rwalk.guard.drift import inputs
from rwalk.guard.importance import fisher
from rwalk.guard.importance.fisher import Squares
from rwalk.methods import Method
from rwalk.methods.mas import MAS

transformers = pytest.importorskip("transformers")
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


class Image(nn.Module):
    """Convolutions, batch norm, a scale of one number and a shift, and something that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Linear(64, 3)
        self.gain, self.shift, self.idle = (nn.Parameter(torch.rand(n)) for n in (1, 3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.shift + self.gain * self.last(self.norm(self.first(x)).relu().flatten(1))


class Turned(nn.Module):
    """Has its examples second: that a layer's rows are a multiple of them says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.transpose(0, 1)).transpose(0, 1).tanh().mean(1))


class ByHand(nn.Module):
    """Multiplies by its weights, without a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Counting(nn.Module):
    """Positions are counted, and have no dimension of examples."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.last = nn.Embedding(64, 6), nn.Embedding(8, 6), nn.Linear(6, 64)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last((self.words(ids) + self.places(torch.arange(ids.shape[1]))).tanh())


def llama() -> nn.Module:
    config = transformers.LlamaConfig(vocab_size=64, tie_word_embeddings=True, num_key_value_heads=1, **SHAPE)
    return transformers.LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def bert() -> nn.Module:
    config = transformers.BertConfig(vocab_size=64, max_position_embeddings=32, num_labels=3, **SHAPE)
    return transformers.BertForSequenceClassification(config)


IDS = torch.randint(64, (12, 8), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(8) < torch.tensor([8, 5, 7, 3, 8, 2, 8, 1, 4, 8, 6, 8])[:, None]).long()
# The model, its inputs, and whether its layers can tell examples apart.
CASES: dict[str, tuple[Callable[[], nn.Module], Any, bool]] = {
    "Llama, tied": (llama, IDS, True),
    "GPT-2": (gpt2, IDS, True),
    "counted positions": (Counting, IDS, True),
    "GPT-2, padded": (gpt2, {"input_ids": IDS, "attention_mask": MASK}, True),
    "BERT": (bert, IDS, True),
    "images": (Image, torch.randn(9, 2, 8, 8, generator=torch.Generator().manual_seed(0)), True),
    "turned": (Turned, torch.randn(4, 4, 5, generator=torch.Generator().manual_seed(0)), False),
    "by hand": (ByHand, torch.randn(6, 5, generator=torch.Generator().manual_seed(0)), False),
}


def made(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return build().eval()


def by_parameter(model: nn.Module, method: Method, probes: Any) -> dict[str, Tensor]:
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), method)
    found: Squares = fisher.of_probes(model, guard._work.learned.guarded, method, inputs.batches(probes), None)
    guard.detach()
    return {piece.name: square for piece, square in found.items()}


@pytest.mark.parametrize("method", [EWC(), MAS()], ids=["EWC", "MAS"])
@pytest.mark.parametrize("case", CASES)
def test_a_batch_says_the_same_as_its_examples_one_by_one(
    case: str, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, probes, in_layers = CASES[case]
    model = made(build)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    ways = []
    monkeypatch.setattr(fisher, "_in_layers", _noting(ways, fisher._in_layers))
    found = by_parameter(model, method, probes)
    assert (len(ways) > 1) == in_layers
    monkeypatch.setattr(fisher, "_squares", fisher._one_by_one)
    expected = by_parameter(model, method, probes)
    assert found.keys() >= expected.keys()
    for name, square in found.items():
        torch.testing.assert_close(square, expected.get(name, torch.zeros_like(square)), rtol=2e-3, atol=1e-8)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def _noting(ways: list[object], function: Callable[..., Squares]) -> Callable[..., Squares]:
    def noting(*args: Any) -> Squares:
        ways.append(args)
        return function(*args)

    return noting


def test_frozen_weights_stay_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are watched beneath adapters, which have no weights of their own to measure."""
    model = made(Image)
    model.first.requires_grad_(False)
    found = by_parameter(model, EWC(), CASES["images"][1])
    assert "first.weight" not in found and not model.first.weight.requires_grad


def test_a_batch_takes_a_tenth_of_the_time_of_one_pass_per_example() -> None:
    """Of a model whose layers are many and small, as they are to a GPU: there a pass is mostly launching."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.down(F.silu(self.up(self.norm(x))))

    model = made(lambda: nn.Sequential(nn.Embedding(32, 16), *(Layer() for _ in range(20)), nn.Linear(16, 32)))
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), EWC())
    ids = torch.randint(32, (256, 4), generator=torch.Generator().manual_seed(0))

    def one_by_one() -> None:
        for row in ids[:32]:
            model.zero_grad()
            F.cross_entropy(model(row[None]).flatten(0, 1), row).backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.square()

    def in_batches() -> None:
        fisher.of_probes(model, guard._work.learned.guarded, EWC(), inputs.batches(ids), None)

    def seconds(work: Callable[[], None]) -> float:
        start = process_time()
        work()
        return process_time() - start

    slow, fast = (min(seconds(each) for _ in range(3)) for each in (one_by_one, in_batches))
    assert fast < slow * len(ids) / 32 / 10
