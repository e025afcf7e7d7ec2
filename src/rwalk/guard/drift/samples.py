"""What a generative model says by itself: probes for those who have no old data at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rwalk.errors import InputError
from rwalk.guard.drift import divergences
from rwalk.guard.drift.batches import TOKENS, device_of
from rwalk.guard.drift.eval_mode import eval_mode


@torch.no_grad()
def own_samples(
    model: nn.Module, tokenizer: Any, n: int, tokens: int = 256, seed: int = 0, temperature: float = 1.0
) -> dict[str, Tensor]:
    """Sequences drawn from a language model, from its start token on: {"input_ids": [n, tokens]}.

    tokenizer    of whose tokens the first is asked for; or that token's number itself
    tokens       in each sequence; where the model ends a text, it goes on with another
    seed         of the draws; torch's own random numbers are left as they were

    A model of Hugging Face generates by itself; any other is called once per token, with all tokens so far.
    """
    for name, number in (("n", n), ("tokens", tokens)):
        if type(number) is not int or number < 1:
            raise InputError(f"{name} must be a whole number, at least 1, not {number!r}")
    first = _first_token(model, tokenizer)
    device = device_of(model)
    rows = max(1, 16 * TOKENS // tokens)
    with eval_mode(model):
        torch.manual_seed(seed)
        parts = [
            _drawn(model, torch.full((min(rows, n - start), 1), first, device=device), tokens, temperature)
            for start in range(0, n, rows)
        ]
    return {"input_ids": torch.cat(parts)}


def _drawn(model: nn.Module, ids: Tensor, tokens: int, temperature: float) -> Tensor:
    if tokens == 1:
        return ids
    if hasattr(model, "generate"):
        options = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        length = {"min_new_tokens": tokens - 1, "max_new_tokens": tokens - 1, "pad_token_id": int(ids[0, 0])}
        generate: Any = model.generate
        drawn: Tensor = generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options, **length)
        return drawn
    while ids.shape[1] < tokens:
        (logits,) = divergences.picked(model(ids), None).values()
        logits = logits[:, -1].float() / temperature
        ids = torch.cat([ids, logits.softmax(-1).multinomial(1)], 1)
    return ids


def _first_token(model: Any, tokenizer: Any) -> int:
    if type(tokenizer) is int:
        return tokenizer
    for holder in (tokenizer, getattr(model, "config", None)):
        for name in ("bos_token_id", "eos_token_id"):
            found = getattr(holder, name, None)
            if type(found) is int:
                return found
    raise InputError("nobody knows the token that a text starts with: give its number in place of the tokenizer")
