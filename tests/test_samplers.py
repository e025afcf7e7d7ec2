"""One contract for all samplers, exact distributions for random ones, a literal Algorithm 4 for herding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from rwalk.data.samplers import SAMPLERS, entropy, mean_of_features, plane_distance, select, uniform
from rwalk.errors import InputError

RUNS, EXAMPLES = 3, 40

every_sampler = pytest.mark.parametrize("name", SAMPLERS)
random_samplers = pytest.mark.parametrize("name", ["uniform", "plane", "entropy"])


def seeded(*seeds: int) -> list[Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


@pytest.fixture
def evidence() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "features": torch.rand(RUNS, EXAMPLES, 8, generator=generator),
        "weights": torch.randn(RUNS, 8, generator=generator),
        "logits": torch.randn(RUNS, EXAMPLES, 5, generator=generator),
    }


def literal_herding(features: Tensor, m: int, unit: bool = True) -> list[int]:
    """iCaRL's Algorithm 4 as it is written, for one class; the first of equally good examples."""
    phi = [x / (np.linalg.norm(x) or 1.0) if unit else x for x in features.double().numpy()]
    mu = sum(phi) / len(phi)
    kept: list[int] = []
    for k in range(1, m + 1):
        total = sum((phi[i] for i in kept), np.zeros_like(mu))
        distance = {i: np.linalg.norm(mu - (total + x) / k) for i, x in enumerate(phi) if i not in kept}
        least = min(distance.values())
        kept.append(next(i for i in distance if distance[i] <= least + 1e-12))
    return kept


# The contract


@random_samplers
def test_other_seeds_keep_other_examples(name: str, evidence: dict[str, Tensor]) -> None:
    one, other = (select(name, EXAMPLES, 10, seeded(*seeds), **evidence) for seeds in ((1, 2, 3), (4, 5, 6)))
    assert not torch.equal(one, other)


@every_sampler
def test_needs_what_it_says_and_no_more(name: str, evidence: dict[str, Tensor]) -> None:
    needs = SAMPLERS[name].needs
    needed = {need: evidence[need] for need in needs}
    assert torch.equal(
        select(name, EXAMPLES, 5, seeded(1, 2, 3), **needed),
        select(name, EXAMPLES, 5, seeded(1, 2, 3), **evidence),
    )
    for need in needs:
        with pytest.raises(InputError, match=f"sampler '{name}' needs {need}"):
            select(name, EXAMPLES, 5, seeded(1, 2, 3), **{**needed, need: None})


@every_sampler
@pytest.mark.parametrize("m", [3, EXAMPLES])
def test_broken_examples_are_the_last_resort(name: str, m: int, evidence: dict[str, Tensor]) -> None:
    if not SAMPLERS[name].needs:
        pytest.skip("looks at no example")
    for example, value in ((0, torch.nan), (11, torch.inf), (12, -torch.inf)):
        evidence["features"][:, example] = value
        evidence["logits"][:, example] = value
    for run in select(name, EXAMPLES, m, seeded(1, 2, 3), **evidence).tolist():
        assert {0, 11, 12}.isdisjoint(run[: EXAMPLES - 3])
        assert len(set(run)) == m


@every_sampler
def test_nothing_sound_still_fills_the_memory(name: str, evidence: dict[str, Tensor]) -> None:
    broken = {need: torch.full_like(tensor, torch.nan) for need, tensor in evidence.items()}
    for run in select(name, EXAMPLES, 10, seeded(1, 2, 3), **broken).tolist():
        assert len(set(run)) == 10


@every_sampler
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_keeps_what_a_cpu_keeps(name: str, evidence: dict[str, Tensor]) -> None:
    there = {need: tensor.cuda() for need, tensor in evidence.items()}
    kept = select(name, EXAMPLES, 20, seeded(1, 2, 3), **there)
    assert kept.is_cuda or name == "uniform"
    assert torch.equal(kept.cpu(), select(name, EXAMPLES, 20, seeded(1, 2, 3), **evidence))


@every_sampler
def test_impossible_requests_are_refused(name: str, evidence: dict[str, Tensor]) -> None:
    with pytest.raises(InputError, match="cannot keep -1 exemplars"):
        select(name, EXAMPLES, -1, seeded(1, 2, 3), **evidence)
    if SAMPLERS[name].needs:
        with pytest.raises(InputError, match="cannot have shape"):
            select(name, EXAMPLES, 5, seeded(1, 2), **evidence)


def test_unknown_samplers_are_refused() -> None:
    with pytest.raises(InputError, match="unknown sampler 'unifrom': did you mean 'uniform'"):
        select("unifrom", 3, 1, seeded(0))


# The distributions


def draws_agree(first: Tensor, second: Tensor, q: Tensor) -> bool:
    """Pearson's χ² of pairs drawn without replacement against q_i · q_j / (1 − q_i), within 5 σ."""
    n, draws = len(q), len(first)
    expected = draws * q[:, None] * q / (1 - q[:, None])
    off_diagonal = ~torch.eye(n, dtype=torch.bool)
    observed = torch.bincount(first * n + second, minlength=n * n).view(n, n).double()
    freedom = n * (n - 1) - 1
    chi_square = ((observed - expected).square() / expected)[off_diagonal].sum()
    return float(chi_square) < freedom + 5 * (2 * freedom) ** 0.5


def many_draws(sampler: Callable[[int, list[Generator]], Tensor]) -> tuple[Tensor, Tensor]:
    kept = sampler(2, seeded(*range(8000)))
    assert torch.equal(sampler(1, seeded(*range(8000))), kept[:, :1])
    return kept[:, 0], kept[:, 1]


def test_uniform_draws_all_alike() -> None:
    assert draws_agree(*many_draws(lambda m, g: uniform(5, m, g)), torch.full((5,), 0.2))


def test_plane_distance_draws_by_the_inverse_distance() -> None:
    distance = torch.tensor([0.5, 1.0, 2.0, 4.0, -3.0])
    q = torch.tensor([2.0, 1.0, 0.5, 0.25, 2.0]).double()  # the wrong side counts as nearest
    first, second = many_draws(lambda m, g: plane_distance(distance.expand(len(g), 5), m, g))
    assert draws_agree(first, second, q / q.sum())


def test_entropy_draws_by_the_entropy() -> None:
    logits = torch.tensor([[0.0, 0, -torch.inf], [2, 0, -torch.inf], [3, 0, 1], [0, 0, 0], [1, -1, 0]])
    p = logits.double().softmax(-1)
    h = -(p * p.log()).nan_to_num().sum(-1)
    first, second = many_draws(lambda m, g: entropy(logits.expand(len(g), 5, 3), m, g))
    assert draws_agree(first, second, h / h.sum())


def test_draws_of_a_wrong_distribution_are_told_apart() -> None:
    first, second = many_draws(lambda m, g: uniform(5, m, g))
    assert not draws_agree(first, second, torch.tensor([0.22, 0.22, 0.22, 0.22, 0.12]))


@pytest.mark.parametrize("d", [0.0, -1.0, 2.0, 1e-45])
def test_equal_distances_draw_like_uniform(d: float) -> None:
    drawn = plane_distance(torch.full((2, 9), d), 5, seeded(1, 2))
    assert torch.equal(drawn, uniform(9, 5, seeded(1, 2)))


def test_certain_outputs_draw_like_uniform() -> None:
    logits = torch.full((2, 9, 3), -torch.inf)
    logits[..., 1] = 7.0
    assert torch.equal(entropy(logits, 5, seeded(1, 2)), uniform(9, 5, seeded(1, 2)))


def test_certain_examples_come_after_uncertain_ones() -> None:
    logits = torch.tensor([[5.0, -torch.inf], [50.0, 0], [0, 0], [-torch.inf, 1]]).expand(20, 4, 2)
    for run in entropy(logits, 4, seeded(*range(20))).tolist():
        assert set(run[:2]) == {1, 2}


def test_top_takes_the_best_in_order() -> None:
    distance = torch.tensor([[4.0, 1.0, 3.0, -2.0], [1.0, 2.0, 3.0, 4.0]])
    assert plane_distance(distance, 3, top=True).tolist() == [[1, 3, 2], [0, 1, 2]]
    logits = torch.tensor([[[3.0, 0], [0, 0], [1, 0]]])
    assert entropy(logits, 3, top=True).tolist() == [[1, 2, 0]]


def test_half_precision_is_enough() -> None:
    logits = torch.tensor([[[3.0, 0], [0, 0], [1, 0]]], dtype=torch.bfloat16)
    assert entropy(logits, 3, top=True).tolist() == [[1, 2, 0]]
    assert mean_of_features(logits, 3).shape == (1, 3)


def test_random_draws_need_one_generator_a_run() -> None:
    with pytest.raises(InputError, match="one generator per run"):
        plane_distance(torch.ones(2, 3), 1)
    with pytest.raises(InputError, match="2 runs need one random generator each, not 1"):
        entropy(torch.ones(2, 3, 4), 1, seeded(0))


@pytest.mark.parametrize("shape", [(3,), (2, 0), (2, 3, 4, 5)])
def test_scores_of_a_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"expected distance\[R, n\]"):
        plane_distance(torch.ones(shape), 1, top=True)
    with pytest.raises(InputError, match=r"expected logits\[R, n, C\]"):
        entropy(torch.ones(shape), 1, top=True)


def test_a_class_without_examples_is_refused() -> None:
    with pytest.raises(InputError, match="without examples"):
        uniform(0, 1, seeded(0))
    with pytest.raises(InputError, match="without examples"):
        mean_of_features(torch.ones(2, 0, 4), 1)


# Herding


@settings(max_examples=40)
@given(
    n=st.integers(1, 30),
    f=st.integers(2, 20),
    m=st.integers(0, 30),
    rectified=st.booleans(),
    unit=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    seed=st.integers(0, 2**32 - 1),
)
def test_herding_equals_algorithm_4(
    n: int, f: int, m: int, rectified: bool, unit: bool, dtype: torch.dtype, seed: int
) -> None:
    features = torch.randn(2, n, f, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    if rectified:
        features = features.relu() + 0.01 * features.abs()
    expected = [literal_herding(run, min(m, n), unit) for run in features]
    assert mean_of_features(features, m, unit=unit).tolist() == expected


def test_herding_equals_algorithm_4_on_a_large_class() -> None:
    features = torch.rand(1, 600, 64, generator=torch.Generator().manual_seed(0))
    assert mean_of_features(features, 60)[0].tolist() == literal_herding(features[0], 60)


def test_herding_looks_at_directions_alone() -> None:
    features = torch.rand(2, 30, 6, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([1e-30, 1.0, 1e30]).repeat(10)[:, None]
    assert torch.equal(mean_of_features(features * lengths, 30), mean_of_features(features, 30))


def test_plain_herding_looks_at_lengths_too_but_not_at_their_unit() -> None:
    features = torch.rand(1, 30, 6, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([0.1, 1.0, 10.0]).repeat(10)[:, None]
    plain = mean_of_features(features * lengths, 30, unit=False)
    assert plain[0].tolist() == literal_herding(features[0] * lengths, 30, unit=False)
    assert not torch.equal(plain, mean_of_features(features * lengths, 30))
    # A power of two rounds nothing, however large or small it is.
    for unit in (2.0**60, 2.0**-60):
        assert torch.equal(mean_of_features(unit * features * lengths, 30, unit=False), plain)


def test_identical_examples_are_kept_first_come_first_served() -> None:
    features = torch.rand(1, 1, 512, generator=torch.Generator().manual_seed(0)).expand(2, 37, 512)
    assert mean_of_features(features, 37).tolist() == [list(range(37))] * 2


def test_dead_features_are_examples_like_others() -> None:
    assert sorted(mean_of_features(torch.zeros(1, 5, 4), 5)[0].tolist()) == [0, 1, 2, 3, 4]


def test_broken_features_do_not_move_the_mean() -> None:
    features = torch.rand(2, 20, 6, generator=torch.Generator().manual_seed(0))
    broken = torch.cat([features, torch.full((2, 1, 6), torch.nan)], dim=1)
    assert torch.equal(mean_of_features(broken, 20), mean_of_features(features, 20))
    assert mean_of_features(broken, 21)[:, -1].tolist() == [20, 20]


def test_herding_refuses_what_does_not_fit() -> None:
    with pytest.raises(InputError, match="herding needs features"):
        mean_of_features(torch.ones(3), 1)
