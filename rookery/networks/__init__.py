"""Neural networks as pairs of pure functions. Only modules of this package import flax."""

from rookery.networks.base import ApplyFn, Core, InitFn, Network, RecurrentApplyFn, input_vector
from rookery.networks.dense import ACTIVATIONS, Mlp, activated, mlp
from rookery.networks.encoders import Encoded, EncodeFn, Encoder, NetworkT, with_encoder
from rookery.networks.parameters import freeze_inputs
from rookery.networks.precision import Precision, call_in, computing_in, hidden_product
from rookery.networks.recurrent import RecurrentMlp, core
from rookery.networks.residual import ResidualMlp, simba
from rookery.networks.table import NETWORKS, NetworkName, filled, policy_and_value, space_of
from rookery.networks.twins import Stacked, first_twin, mean_twin, separate_twins, smaller_twin, stack_twins, twin
from rookery.networks.weights import orthogonal

__all__ = [
    "ACTIVATIONS",
    "NETWORKS",
    "ApplyFn",
    "Core",
    "EncodeFn",
    "Encoded",
    "Encoder",
    "InitFn",
    "Mlp",
    "Network",
    "NetworkName",
    "NetworkT",
    "Precision",
    "RecurrentApplyFn",
    "RecurrentMlp",
    "ResidualMlp",
    "Stacked",
    "activated",
    "call_in",
    "computing_in",
    "core",
    "filled",
    "first_twin",
    "freeze_inputs",
    "hidden_product",
    "input_vector",
    "mean_twin",
    "mlp",
    "orthogonal",
    "policy_and_value",
    "separate_twins",
    "simba",
    "smaller_twin",
    "space_of",
    "stack_twins",
    "twin",
    "with_encoder",
]
