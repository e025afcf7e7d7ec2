"""The Fisher of a model's own predictions on probes, against the equations written out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rwalk import EWC, Guard
from rwalk.guard import importance
from rwalk.guard.drift.probes import Probes
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


def llama() -> Any:
    config = transformers.LlamaConfig(vocab_size=64, tie_word_embeddings=True, num_key_value_heads=1, **SHAPE)
    return transformers.LlamaForCausalLM(config)


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def bert() -> Any:
    config = transformers.BertConfig(vocab_size=64, max_position_embeddings=32, num_labels=3, **SHAPE)
    return transformers.BertForSequenceClassification(config)


IDS = torch.randint(64, (12, 8), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(8) < torch.tensor([8, 5, 7, 3, 8, 2, 8, 1, 4, 8, 6, 8])[:, None]).long()
CASES: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "Llama, tied": (llama, IDS),
    "GPT-2": (gpt2, IDS),
    "GPT-2, padded": (gpt2, {"input_ids": IDS, "attention_mask": MASK}),
    "BERT": (bert, IDS),
    "images": (Image, torch.randn(9, 2, 8, 8, generator=torch.Generator().manual_seed(0))),
}


def made(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return build().eval()


def measured(model: nn.Module, method: Method, inputs: Any, **options: Any) -> dict[str, Tensor]:
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), method)
    probes = Probes(inputs, **options)
    probes.keep(model)
    found = importance.of_probes(guard._state, model, probes)
    guard.detach()
    return {state.name: square[0] for state, square in found.items()}


def predictions(model: nn.Module, inputs: Any, row: int) -> Tensor:
    """[predictions, classes] of one example, without those that are masked."""
    if isinstance(inputs, Mapping):
        logits = model(**{name: each[row : row + 1] for name, each in inputs.items()}).logits[0]
        masked: Tensor = logits[inputs["attention_mask"][row].bool()]
        return masked
    output = model(inputs[row : row + 1])
    logits = output if isinstance(output, Tensor) else output.logits
    return logits.reshape(-1, logits.shape[-1])


def written_out(model: nn.Module, method: Method, inputs: Any) -> dict[str, Tensor]:
    """EWC: the mean over examples of (Σ_t ∂ log p(y_t))² / T; MAS: of |∂ Σ_t ‖f_t‖² / T|."""
    names = [name for name, _ in model.named_parameters()]
    parameters = list(model.parameters())
    total = {name: torch.zeros_like(each) for name, each in model.named_parameters()}
    tensors = inputs["input_ids"] if isinstance(inputs, Mapping) else inputs
    draws = torch.Generator().manual_seed(0)
    for row in range(len(tensors)):
        logits = predictions(model, inputs, row)
        count = tensors.shape[1] if isinstance(inputs, Mapping) else len(logits)
        drawn = torch.rand(count, generator=draws)[: len(logits)]
        if method.of_outputs:
            goal = logits.square().sum() / len(logits)
        else:
            labels = (logits.softmax(-1).cumsum(-1) < drawn[:, None]).sum(-1).clamp(max=logits.shape[-1] - 1)
            goal = logits.log_softmax(-1)[torch.arange(len(logits)), labels].sum() / len(logits) ** 0.5
        slopes = torch.autograd.grad(goal, parameters, allow_unused=True)
        for name, slope in zip(names, slopes, strict=True):
            if slope is not None:
                total[name] += (slope.abs() if method.of_outputs else slope.square()) / len(tensors)
    return total


@pytest.mark.parametrize("method", [EWC(), MAS()], ids=["EWC", "MAS"])
@pytest.mark.parametrize("case", CASES)
def test_fisher_of_probes_is_the_mean_over_examples_and_leaves_no_trace(case: str, method: Method) -> None:
    build, inputs = CASES[case]
    model = made(build)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    found, expected = measured(model, method, inputs), written_out(model, method, inputs)
    assert expected.keys() - found.keys() <= {"idle"}
    for name, square in found.items():
        torch.testing.assert_close(square, expected[name], rtol=2e-3, atol=1e-8)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_fisher_of_probes_skips_frozen_weights() -> None:
    model: Any = made(Image)
    model.first.requires_grad_(False)
    found = measured(model, EWC(), CASES["images"][1])
    assert "first.weight" not in found and not model.first.weight.requires_grad


def test_fisher_under_autocast_is_nearly_that_in_float32() -> None:
    """Labels are drawn from predictions, which differ a little."""
    model = made(llama)

    def predict(model: Any, batch: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            logits: Tensor = model(batch, use_cache=False).logits
        return logits

    narrow, exact = measured(model, EWC(), IDS, call=predict), measured(model, EWC(), IDS)
    ours, theirs = (torch.cat([each[name].flatten() for name in exact]) for each in (narrow, exact))
    assert F.cosine_similarity(ours, theirs, dim=0) > 0.99
