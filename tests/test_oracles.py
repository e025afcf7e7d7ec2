"""No part without a slow, obvious oracle: which test holds each of them against its equations, written out."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rwalk.data.samplers import SAMPLERS
from rwalk.parts import VARIANTS, parts

ORACLES = {
    "vanilla": "test_fleet.py::test_vanilla_is_a_plain_pytorch_loop",
    "ewc": "test_methods.py::test_ewc_sums_the_penalties_of_all_tasks",
    "ewc-online": "test_passes.py::test_online_ewc_is_schwarzs_recursion",
    "ewc++": "test_methods.py::test_ewcpp_is_a_moving_average_over_all_steps",
    "pi": "test_methods.py::test_pi_is_zenkes_equations",
    "rwalk": "test_methods.py::test_rwalk_is_the_papers_equations",
    "rwalk-2018": "test_methods.py::test_rwalk_2018_is_the_public_codes_equations",
    "rwalk-euclidean": "test_methods.py::test_the_ablations_of_rwalk_differ_in_the_scores_denominator_alone",
    "rwalk-undivided": "test_methods.py::test_the_ablations_of_rwalk_differ_in_the_scores_denominator_alone",
    "mas": "test_passes.py::test_mas_is_the_mean_size_of_the_outputs_gradient",
    "l2": "test_methods.py::test_l2_is_the_squared_distance_to_where_a_task_ended",
    "lwf": "test_losses.py::test_lwf_is_li_and_hoiems_sum",
    "icarl": "test_icarl.py::test_the_loss_is_rebuffis_sum_over_outputs",
    "icarl-hb1": "test_icarl.py::test_hybrid_1_differs_in_the_classifier_alone",
    "icarl-2020": "test_icarl.py::test_icarl_of_2020_is_torchs_mean_over_the_outputs_so_far",
    "er": "test_losses.py::test_er_is_the_mean_over_new_and_kept_alike",
    "er-tasks": "test_scenarios.py::test_er_by_tasks_weighs_the_new_as_one_of_all_tasks",
    "er-ace": "test_losses.py::test_er_ace_is_caccias_sum",
    "der": "test_losses.py::test_der_and_derpp_are_buzzegas_sums",
    "der++": "test_losses.py::test_der_and_derpp_are_buzzegas_sums",
    "gdumb": "test_afresh.py::test_every_task_is_a_plain_training_of_a_new_network",
    "joint": "test_afresh.py::test_every_task_is_a_plain_training_of_a_new_network",
    "gem": "test_gem.py::test_gem_is_the_nearest_gradient_that_keeps_every_constraint",
    "a-gem": "test_gem.py::test_a_gem_is_the_nearest_gradient_that_keeps_its_one_constraint",
    "ridge": "test_solvers.py::test_ridge_is_one_solve_over_all_data",
    "slda": "test_solvers.py::test_slda_is_bayes_rule_for_gaussians_of_one_covariance",
    "uniform": "test_samplers.py::test_uniform_draws_all_alike",
    "plane": "test_samplers.py::test_plane_distance_draws_by_the_inverse_distance",
    "entropy": "test_samplers.py::test_entropy_draws_by_the_entropy",
    "mof": "test_samplers.py::test_herding_equals_algorithm_4",
    "mof-plain": "test_samplers.py::test_herding_equals_algorithm_4",
    "plane-top": "test_samplers.py::test_top_takes_the_best_in_order",
    "entropy-top": "test_samplers.py::test_top_takes_the_best_in_order",
    "reservoir": "test_reservoir.py::test_a_fleet_holds_what_vitters_algorithm_holds_at_every_step",
}


def test_every_part_has_an_oracle() -> None:
    assert ORACLES.keys() == {*parts(), *VARIANTS, *SAMPLERS, "mof-plain", "reservoir"}


@pytest.mark.parametrize("oracle", sorted(set(ORACLES.values())))
def test_the_oracle_is_there(oracle: str) -> None:
    file, _, name = oracle.partition("::")
    tree = ast.parse((Path(__file__).parent / file).read_text(encoding="utf-8"))
    assert [each.name for each in tree.body if isinstance(each, ast.FunctionDef)].count(name) == 1
