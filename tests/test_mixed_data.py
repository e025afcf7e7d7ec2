"""Old examples mixed into new ones: the share is exact in every epoch, and all old ones take their turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from rwalk import InputError, mix


@pytest.mark.parametrize(("new", "old", "ratio"), [(90, 40, 0.1), (10, 3, 0.5), (7, 100, 0.3), (5, 1, 0.01)])
def test_every_epoch_has_all_new_and_its_share_of_old(new: int, old: int, ratio: float) -> None:
    data = mix([("new", n) for n in range(new)], [("old", n) for n in range(old)], ratio)
    expected = max(1, round(new * ratio / (1 - ratio)))
    used: Counter[tuple[str, int]] = Counter()
    for epoch in range(12):
        data.set_epoch(epoch)
        found = Counter(data[n] for n in range(len(data)))
        assert len(data) == new + expected and all(found["new", n] == 1 for n in range(new))
        used += Counter({each: count for each, count in found.items() if each[0] == "old"})
        counts = [used["old", n] for n in range(old)]
        assert sum(counts) == (epoch + 1) * expected and max(counts) - min(counts) <= 1
    again = mix([("new", n) for n in range(new)], [("old", n) for n in range(old)], ratio)
    again.set_epoch(11)
    assert [again[n] for n in range(len(again))] == [data[n] for n in range(len(data))]
    assert data[-1] == data[len(data) - 1]
    with pytest.raises(IndexError):
        data[len(data)]


def test_datasets_of_hugging_face_and_a_shuffling_loader() -> None:
    datasets = pytest.importorskip("datasets")
    new = datasets.Dataset.from_dict({"text": [f"new {n}" for n in range(18)]})
    old = datasets.Dataset.from_dict({"text": [f"old {n}" for n in range(5)]})
    loader = DataLoader(mix(new, old, 0.1), batch_size=4, shuffle=True)
    texts = [text for batch in loader for text in batch["text"]]
    assert len(texts) == 20 and sum(text.startswith("old") for text in texts) == 2


def test_workers_that_live_on_take_other_old_examples_in_every_epoch() -> None:
    data = mix([100, 101], [0, 1, 2], ratio=0.3)
    loader = DataLoader(data, num_workers=1, persistent_workers=True)
    seen = []
    for epoch in range(3):
        data.set_epoch(epoch)
        seen += [int(each) for each in loader if each < 100]
    assert sorted(seen) == [0, 1, 2]


def test_a_trainer_gets_other_old_examples_in_every_epoch(tmp_path: object) -> None:
    transformers = pytest.importorskip("transformers")
    seen: list[int] = []

    class Model(torch.nn.Linear):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
            seen.extend(x[:, 0].int().tolist())
            return {"loss": super().forward(x).mean()}

    def rows(numbers: range) -> list[dict[str, object]]:
        return [{"x": torch.tensor([float(n), 1.0]), "labels": 0} for n in numbers]

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), num_train_epochs=3, per_device_train_batch_size=4, use_cpu=True, report_to=[],
        disable_tqdm=True, save_strategy="no", logging_strategy="no",
    )  # fmt: skip
    data = mix(rows(range(100, 109)), rows(range(9)), ratio=0.25)
    transformers.Trainer(Model(2, 1), arguments, train_dataset=data).train()
    assert sorted(n for n in seen if n < 100) == list(range(9))  # three in each of three epochs


def test_loaders_alternate_batches_and_go_on_where_they_stopped() -> None:
    new = DataLoader(torch.arange(100, 118), batch_size=2)
    old = DataLoader(torch.arange(8), batch_size=2)
    both = mix(new, old, ratio=0.25)
    epochs = [[batch.tolist() for batch in both] for _ in range(2)]
    for epoch in epochs:
        assert len(epoch) == len(both) == 12
        assert [batch for batch in epoch if batch[0] >= 100] == [[n, n + 1] for n in range(100, 118, 2)]
        assert all(any(batch[0] < 100 for batch in epoch[n : n + 4]) for n in range(0, 12, 4))
    assert [batch for epoch in epochs for batch in epoch if batch[0] < 100] == [
        [0, 1], [2, 3], [4, 5], [6, 7], [0, 1], [2, 3],
    ]  # fmt: skip


class Endless(IterableDataset[int]):
    """Data without a length, of which a loader nevertheless has the attribute."""

    def __iter__(self) -> Iterator[int]:
        yield 0


def test_what_cannot_be_mixed_is_refused() -> None:
    loader = DataLoader(torch.arange(4))
    for wrong, reason in (
        (lambda: mix([1], [2], 0), "above 0 and below 1"),
        (lambda: mix([1], [2], 1), "above 0 and below 1"),
        (lambda: mix(loader, [1]), "two datasets or two loaders"),
        (lambda: mix([1], []), "old data are empty"),
        (lambda: mix(iter([1]), [1]), "no length"),
        (lambda: mix(DataLoader(Endless()), loader), "no length"),
    ):
        with pytest.raises(InputError, match=reason):
            wrong()
