"""The Fisher of single examples, from one pass over a batch: the same as one pass each, whatever the model is."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rwalk import EWC, Guard, own_samples
from rwalk.guard.drift.probes import Probes
from rwalk.guard.importance import fisher, measure
from rwalk.guard.importance.attention import PlainAttention
from rwalk.guard.importance.fisher import Squares
from rwalk.methods import Method
from rwalk.methods.mas import MAS

transformers = pytest.importorskip("transformers")
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def kept(model: nn.Module, inputs: Any, **options: Any) -> Probes:
    probes = Probes(inputs, **options)
    probes.keep(model)
    return probes


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
    found: Squares = fisher.of_probes(model, guard._learned.guarded, method, kept(model, probes))
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
        fisher.of_probes(model, guard._learned.guarded, EWC(), kept(model, ids))

    def seconds(work: Callable[[], None]) -> float:
        start = process_time()
        work()
        return process_time() - start

    slow, fast = (min(seconds(each) for _ in range(3)) for each in (one_by_one, in_batches))
    assert fast < slow * len(ids) / 32 / 10


# Sequences


def tiny_model() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=2,
        tie_word_embeddings=True,
    )  # fmt: skip
    model: torch.nn.Module = transformers.LlamaForCausalLM(config)
    return model


def test_the_fisher_of_sequences_is_batched_and_the_same_as_one_by_one() -> None:
    model = tiny_model()
    probes = own_samples(model, None, 12, tokens=8)
    assert probes["input_ids"].shape == (12, 8) and (probes["input_ids"][:, 0] == 1).all()
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), EWC())
    pieces = guard._learned.guarded
    batched = fisher.of_probes(model, pieces, EWC(), kept(model, probes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fisher, "_squares", lambda *given: fisher._one_by_one(*given))
        single = fisher.of_probes(model, pieces, EWC(), kept(model, probes))
    assert len(batched) == len(pieces)
    for piece in pieces:
        torch.testing.assert_close(batched[piece], single[piece], rtol=1e-3, atol=1e-9)


def test_the_fisher_is_batched_under_autocast(caplog: pytest.LogCaptureFixture) -> None:
    """Torch's own attention cannot be differentiated by torch.func there; that would be one pass per sequence."""
    model = tiny_model()

    def predict(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits: torch.Tensor = model(**batch, use_cache=False).logits
        return logits

    probes = own_samples(model, None, 12, tokens=8)
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), EWC())
    pieces = guard._learned.guarded
    narrow = fisher.of_probes(model, pieces, EWC(), kept(model, probes, call=predict))
    assert not caplog.records, "it says so where it cannot be batched"
    exact = fisher.of_probes(model, pieces, EWC(), kept(model, probes))
    together = [torch.cat([each[piece].flatten() for piece in pieces]) for each in (narrow, exact)]
    assert F.cosine_similarity(*together, dim=0) > 0.99  # labels are drawn from predictions, which differ a little


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True}])
@pytest.mark.parametrize("mask", [None, "bool", "float"])
def test_plain_attention_is_torchs(options: dict[str, Any], mask: str | None) -> None:
    if mask and "is_causal" in options:
        return  # torch refuses both
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 5, 3, generator=generator)
    key, value = torch.randn(2, 2, 2 if "enable_gqa" in options else 4, 6, 3, generator=generator)
    seen = torch.rand(5, 6, generator=generator) < 0.7
    seen[:, 0] = True
    given = {None: None, "bool": seen, "float": seen.float().log()}[mask]
    expected = F.scaled_dot_product_attention(query, key, value, given, **options)
    with PlainAttention():
        found = F.scaled_dot_product_attention(query, key, value, given, **options)
    torch.testing.assert_close(found, expected)


def test_a_batch_of_sequences_takes_a_fraction_of_the_time_of_one_pass_each() -> None:
    """Some ten times less here; more on a GPU, where a pass of one sequence is mostly waiting."""
    model = tiny_model()
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), EWC())
    ids = torch.randint(128, (128, 16), generator=torch.Generator().manual_seed(0))

    def one_by_one() -> object:
        losses = (F.cross_entropy(model(row[None]).logits[0, :-1], row[1:]) for row in ids)
        return measure.data_fisher(model, guard._learned.guarded, EWC(), losses)

    def batched() -> object:
        return fisher.of_probes(model, guard._learned.guarded, EWC(), kept(model, ids))

    def seconds(measured: Callable[[], object]) -> float:
        start = process_time()
        measured()
        return process_time() - start

    slow, fast = (min(seconds(each) for _ in range(3)) for each in (one_by_one, batched))
    assert fast < slow / 5
