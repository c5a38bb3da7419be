"""Programs compiled for a GPU that is described, not present, and the count of their kernels."""

import collections

import jax
import pytest

from benchmarks import described_gpu, plan_gpu
from benchmarks.kernels import Loop, collectives, count_kernels, custom_calls

TINY = "--hidden-sizes 8 --num-envs 4 --eval-episodes 2"
OFF_POLICY = f"--population 2 {TINY} --steps-per-generation 8 --batch-size 8 --buffer-size 64 --warmup-steps 4"
ON_POLICY = f"--population 2 {TINY} --rollout-length 4 --minibatches 2 --evaluate-every 1"
GENERATIONS = {
    "pbt-sac": f"--env point_maze {OFF_POLICY}",
    "sac": f"--env point_maze --network simba --critic-hidden-sizes 8 8 {OFF_POLICY}",
    "pbt-td3": f"--env point_maze {OFF_POLICY}",
    "me-pbt-td3": f"--env point_trap --ga-population 2 --grid 4 4 {OFF_POLICY}",
    "diayn": f"--env point_room --updates-per-step 0.5 {OFF_POLICY}",
    "map-elites": "--env point_trap --batch-size 4 --grid 4 4 --eval-episodes 2 --hidden-sizes 8",
    "pbt-ppo": f"--env point_maze {ON_POLICY}",
    "pbt-ippo": f"--member agent {ON_POLICY}",
}
"""Kind of run -> flags of a tiny one."""
HOST = ("callback", "lapack", "host")
"""Parts of the names of custom calls on the host; those of the GPU's libraries, such as cusolver, may occur."""


@pytest.mark.skipif(bool(described_gpu.missing()), reason=described_gpu.missing() or "")
@pytest.mark.parametrize("kind", GENERATIONS)
def test_a_generation_of_every_kind_compiles_for_a_gpu_and_stays_on_it(kind: str):
    text = described_gpu.compile_generation([kind, *GENERATIONS[kind].split()]).text
    assert not [name for name in custom_calls(text) if any(part in name.lower() for part in HOST)]
    assert "f64[" not in text
    assert not {"infeed", "outfeed", "send", "recv"} & set(count_kernels(text).kinds)


@pytest.mark.skipif(bool(described_gpu.missing()), reason=described_gpu.missing() or "")
def test_an_odd_number_of_delayed_updates_needs_no_conditional_and_is_grouped():
    words = "pbt-td3 --env point_maze --num-envs 9 --steps-per-generation 18 --population 2 --hidden-sizes 8"
    text = described_gpu.compile_generation([*words.split(), *"--eval-episodes 2 --buffer-size 64".split()]).text
    counted = count_kernels(text)
    assert "conditional" not in counted.kinds
    assert [loop.kernels > 20 for loop in counted.loops if loop.trips == 4] == [True]  # groups of two, and one update


BODY = """
%body (state: (s32[], f32[4])) -> (s32[], f32[4]) {
  %state = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %next = s32[] fusion(%i), kind=kLoop, calls=%fused
  %x = f32[4]{0} get-tuple-element(%state), index=1
  %y = f32[4]{0} custom-call(%x), custom_call_target="__cublas$gemm"
  ROOT %tuple = (s32[], f32[4]) tuple(%next, %y)
}
"""
NESTED = """
%outer (state: (s32[], f32[4])) -> (s32[], f32[4]) {
  %state = (s32[], f32[4]) parameter(0)
  %inner = (s32[], f32[4]) while(%state), condition=%test, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  ROOT %copied = (s32[], f32[4]) copy(%inner)
}
"""
BRANCHES = """
%short (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  ROOT %one = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused
}

%long (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %one = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused
  %two = f32[4]{0} copy(%one)
  ROOT %three = f32[4]{0} fusion(%two), kind=kInput, calls=%fused
}
"""
FUSED = """
%fused (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %twice = f32[4]{0} add(%x, %x)
  ROOT %sine = f32[4]{0} sine(%twice)
}
"""


def program(*instructions: str, functions: str = "") -> str:
    lines = "\n".join(f"  {line}" for line in ("%x = f32[4]{0} parameter(0)", *instructions))
    return f"HloModule tiny, is_scheduled=true\n{FUSED}{functions}\nENTRY %main (x: f32[4]) -> f32[4] {{\n{lines}\n}}\n"


def test_a_fusion_is_one_kernel_and_names_of_memory_are_none():
    text = program(
        "%c = f32[4]{0} constant({1, 2, 3, 4})",
        "%f = f32[4]{0} fusion(%x, %c), kind=kLoop, calls=%fused",
        "%b = f32[2,2]{1,0} bitcast(%f)",
        '%m = (f32[2,2]{1,0}, s8[64]{0}) custom-call(%b), custom_call_target="__cublas$gemm"',
        "ROOT %g = f32[2,2]{1,0} get-tuple-element(%m), index=0",
    )
    assert count_kernels(text).kinds == {"fusion": 1, "custom-call": 1}
    assert custom_calls(text) == ["__cublas$gemm"]


def test_a_loop_counts_as_often_as_it_repeats():
    loop = '%w = (s32[], f32[4]) while(%t), condition=%test, body=%body, backend_config={"known_trip_count":{"n":"7"}}'
    counted = count_kernels(program(loop, functions=BODY))
    assert counted.kinds == {"fusion": 7, "custom-call": 7}
    assert counted.loops == (Loop("body", 7, 2),)
    assert not counted.unknown


def test_loops_in_loops_multiply():
    loop = '%w = (s32[], f32[4]) while(%t), condition=%test, body=%outer, backend_config={"known_trip_count":{"n":"3"}}'
    counted = count_kernels(program(loop, functions=BODY + NESTED))
    assert counted.kinds == {"fusion": 15, "custom-call": 15, "copy": 3}
    assert counted.loops == (Loop("outer", 3, 11), Loop("body", 5, 2))
    assert counted.total == 33


def test_a_loop_of_unknown_length_counts_once_and_is_named():
    counted = count_kernels(program("%w = (s32[], f32[4]) while(%t), condition=%test, body=%body", functions=BODY))
    assert counted.total == 2
    assert counted.unknown == (Loop("body", None, 2),)


@pytest.mark.parametrize(
    "branches", ["branch_computations={%short, %long}", "true_computation=%long, false_computation=%short"]
)
def test_of_a_conditional_the_longest_branch_counts(branches: str):
    counted = count_kernels(program(f"ROOT %r = f32[4]{{0}} conditional(%p, %x, %x), {branches}", functions=BRANCHES))
    assert counted.kinds == {"fusion": 2, "copy": 1, "conditional": 1}


def test_a_call_counts_as_what_it_calls():
    counted = count_kernels(program("ROOT %r = f32[4]{0} call(%x), to_apply=%long", functions=BRANCHES))
    assert counted.kinds == {"fusion": 2, "copy": 1}


def test_an_asynchronous_operation_counts_once():
    counted = count_kernels(
        program(
            "%s = (f32[4]{0}, f32[8]{0}) all-gather-start(%x), dimensions={0}",
            "%d = f32[8]{0} all-gather-done(%s)",
            "%c = (f32[8]{0}, f32[8]{0}, u32[]) copy-start(%d)",
            "ROOT %e = f32[8]{0} copy-done(%c)",
        )
    )
    assert counted.kinds == {"all-gather-start": 1, "copy-start": 1}
    assert collectives(counted) == 1


def test_the_kinds_of_an_empty_program_are_none():
    assert count_kernels(program()).kinds == collections.Counter()


def test_jax_allocates_a_fraction_of_a_gpu(monkeypatch):
    for name in described_gpu._FRACTIONS:
        monkeypatch.delenv(name, raising=False)
    assert described_gpu.find("H100").available == int(0.75 * 84_942_979_072)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    assert described_gpu.find("h100_pcie").available == int(0.9 * 84_942_979_072)


@pytest.mark.skipif(bool(described_gpu.missing()), reason=described_gpu.missing() or "")
def test_a_plan_shows_memory_and_kernels(capsys, monkeypatch):
    before = jax.config.values["jax_default_matmul_precision"]
    plan_gpu.main("a100", "pbt-sac", *GENERATIONS["pbt-sac"].split(), "--devices", "2")
    jax.config.update("jax_default_matmul_precision", before)
    out = capsys.readouterr().out
    assert "that JAX may use of 85.1 GB" in out
    assert "fits: " in out
    assert "kernels  " in out
    assert "compilation  " in out
