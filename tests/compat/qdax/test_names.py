"""QDax's documented names, with the order and the defaults of their arguments."""

import inspect
from typing import Any

import pytest

from rookery.compat import qdax
from rookery.compat.qdax import (
    DIAYN,
    PBT,
    PBTSAC,
    PBTTD3,
    SAC,
    TD3,
    DiaynConfig,
    DistributedMAPElites,
    MAPElites,
    MapElitesRepertoire,
    PBTEmitter,
    QDTransition,
    ReplayBuffer,
    Transition,
    do_iteration_fn,
    environments,
    warmstart_buffer,
)

EMPTY = inspect.Parameter.empty
DEFAULTS: dict[str, Any] = {"deterministic": False, "selector": None, "evaluation": False, "add_log_p_z": True}
DEFAULTS |= {"batch_of_extra_scores": None, "x_label": "Environment steps", "repertoire_init": MapElitesRepertoire.init}
DEFAULTS |= {"one_extra_score": None, "keys_extra_scores": ()}
DEFAULTS |= dict.fromkeys(["repertoire_descriptors", "ax", "vmin", "vmax"])
PLAY = "env_state training_state env deterministic evaluation"
CENTROIDS = "num_descriptors num_init_cvt_samples num_centroids minval maxval key"
DRAWN = "centroids repertoire_fitnesses"
EMITTED = "genotypes fitnesses descriptors extra_scores"
WARM = "replay_buffer training_state env_state play_step_fn num_warmstart_steps env_batch_size"
ITERATION = "training_state env_state replay_buffer env_batch_size grad_updates_per_step play_step_fn update_fn"
SIGNATURES = [
    (PBT, "population_size num_best_to_replace_from num_worse_to_replace"),
    (PBT.update_states_and_buffer, "key population_returns training_state replay_buffer"),
    (PBT.update_states_and_buffer_pmap, "key population_returns training_state replay_buffer"),
    *((kind, "config action_size") for kind in (SAC, TD3, PBTSAC, PBTTD3, DIAYN)),
    *((kind.init, "key action_size observation_size") for kind in (SAC, TD3, PBTSAC, PBTTD3)),
    *((kind.update, "training_state replay_buffer") for kind in (SAC, TD3, PBTSAC, PBTTD3, DIAYN)),
    *((kind.play_step_fn, PLAY) for kind in (SAC, TD3, PBTSAC, PBTTD3)),
    *((kind.play_qd_step_fn, PLAY) for kind in (SAC, TD3)),
    *((kind.get_init_fn, "population_size action_size observation_size buffer_size") for kind in (PBTSAC, PBTTD3)),
    *((kind.get_eval_fn, "eval_env") for kind in (PBTSAC, PBTTD3)),
    *((kind.get_eval_qd_fn, "eval_env descriptor_extraction_fn") for kind in (PBTSAC, PBTTD3)),
    *((kind.get_train_fn, "env num_iterations env_batch_size grad_updates_per_step") for kind in (PBTSAC, PBTTD3)),
    (SAC.select_action, "obs policy_params key deterministic"),
    (TD3.select_action, "obs policy_params key expl_noise deterministic"),
    (SAC.eval_policy_fn, "training_state eval_env_first_state play_step_fn"),
    (SAC.eval_qd_policy_fn, "training_state eval_env_first_state play_step_fn descriptor_extraction_fn"),
    (PBTEmitter, "pbt_agent config env variation_fn selector"),
    (PBTEmitter.init, f"key repertoire {EMITTED}"),
    (PBTEmitter.emit, "repertoire emitter_state key"),
    (PBTEmitter.state_update, f"emitter_state repertoire {EMITTED}"),
    (MAPElites, "scoring_function emitter metrics_function repertoire_init"),
    (qdax.MixingEmitter, "mutation_fn variation_fn variation_percentage batch_size selector"),
    (MAPElites.init, "genotypes centroids key"),
    (MAPElites.update, "repertoire emitter_state key"),
    (DistributedMAPElites.get_distributed_init_fn, "centroids devices"),
    (DistributedMAPElites.get_distributed_update_fn, "num_iterations devices"),
    (MapElitesRepertoire.init_default, "genotype centroids one_extra_score keys_extra_scores"),
    (MapElitesRepertoire.add, "batch_of_genotypes batch_of_descriptors batch_of_fitnesses batch_of_extra_scores"),
    (qdax.compute_cvt_centroids, CENTROIDS),
    (qdax.compute_euclidean_centroids, "grid_shape minval maxval"),
    (qdax.sac_pbt_variation_fn, "training_state1 training_state2 key iso_sigma line_sigma"),
    (qdax.td3_pbt_variation_fn, "training_state1 training_state2 key iso_sigma line_sigma"),
    (qdax.default_qd_metrics, "repertoire qd_offset"),
    (DIAYN.init, "key action_size observation_size descriptor_size"),
    (DIAYN.select_action, "obs policy_params key deterministic"),
    (DIAYN.play_step_fn, "env_state training_state skills env deterministic"),
    (DIAYN.eval_policy_fn, "training_state eval_env_first_state play_step_fn env_batch_size"),
    (DIAYN._compute_diversity_reward, "transition discriminator_params add_log_p_z"),
    (ReplayBuffer.init, "buffer_size transition"),
    (ReplayBuffer.insert, "transitions"),
    (ReplayBuffer.sample, "key sample_size"),
    (Transition.init_dummy, "observation_dim action_dim"),
    (Transition.flatten, ""),
    (Transition.from_flatten, "flattened_transition transition"),
    (qdax.CSVLogger, "filename header"),
    (qdax.CSVLogger.log, "metrics"),
    (qdax.plot_2d_map_elites_repertoire, f"{DRAWN} minval maxval repertoire_descriptors ax vmin vmax"),
    (qdax.plot_map_elites_results, "env_steps metrics repertoire min_descriptor max_descriptor x_label"),
    (qdax.plot_skills_trajectory, "trajectories skills min_values max_values"),
    (QDTransition.init_dummy, "observation_dim action_dim descriptor_dim"),
    (warmstart_buffer, WARM),
    (do_iteration_fn, ITERATION),
]


@pytest.mark.parametrize(("function", "names"), SIGNATURES, ids=lambda value: getattr(value, "__qualname__", ""))
def test_arguments_have_the_documented_names_and_order(function: Any, names: str):
    parameters = {name: it.default for name, it in inspect.signature(function).parameters.items() if name != "self"}
    assert list(parameters) == names.split()
    assert parameters == {name: DEFAULTS.get(name, EMPTY) for name in parameters}


SIZES = {"critic_hidden_layer_size": (256, 256), "policy_hidden_layer_size": (256, 256)}
SHARED = {
    "batch_size": EMPTY,
    "episode_length": EMPTY,
    "tau": 0.005,
    "normalize_observations": False,
    "alpha_init": 1.0,
}
ONE_SAC = {**SHARED, **SIZES, "fix_alpha": False, "learning_rate": 3e-4, "discount": 0.97, "reward_scaling": 1.0}
TD3_SHARED = {"episode_length": 1000, "batch_size": 256, "policy_delay": 2, "reward_scaling": 1.0, **SIZES}
ONE_TD3 = {**TD3_SHARED, "soft_tau_update": 0.005, "expl_noise": 0.1, "critic_learning_rate": 3e-4, "noise_clip": 0.5}
EMITTER = "buffer_size num_training_iterations env_batch_size grad_updates_per_step pg_population_size_per_device "
EMITTER += "ga_population_size_per_device num_devices fraction_best_to_replace_from fraction_to_replace_from_best "
EMITTER += "fraction_to_replace_from_samples fraction_sort_exchange"


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (qdax.PBTSacConfig, {**SHARED, **SIZES, "fix_alpha": False}),
        (qdax.SacConfig, ONE_SAC),
        (DiaynConfig, {**ONE_SAC, "num_skills": 5, "descriptor_full_state": False}),
        (qdax.PBTTD3Config, {**TD3_SHARED, "soft_tau_update": 0.005}),
        (qdax.TD3Config, {**ONE_TD3, "policy_learning_rate": 3e-4, "discount": 0.99, "policy_noise": 0.2}),
        (qdax.PBTEmitterConfig, dict.fromkeys(EMITTER.split(), EMPTY)),
        (Transition, dict.fromkeys("obs next_obs rewards dones truncations actions".split(), EMPTY)),
    ],
)
def test_configurations_have_the_documented_fields_and_defaults(config: Any, fields: dict[str, Any]):
    assert {name: it.default for name, it in inspect.signature(config).parameters.items()} == fields


def test_environments_are_created_with_the_documented_options():
    parameters = inspect.signature(environments.create).parameters
    options = {"batch_size": None, "episode_length": 1000, "auto_reset": True, "eval_metrics": False}
    options |= {"env_name": EMPTY, "fixed_init_state": False, "backend": "spring"}
    assert {name: it.default for name, it in parameters.items() if name != "overrides"} == options
