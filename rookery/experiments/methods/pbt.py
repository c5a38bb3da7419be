"""Population Based Training."""

from dataclasses import dataclass, field, replace
from typing import Annotated

from rookery.distributed import layout
from rookery.distributed.mesh import Mesh
from rookery.experiments.config import ISLAND_RULES, IslandsConfig, Rule
from rookery.experiments.methods.independent import describe
from rookery.experiments.parts import learner_of, mesh_of
from rookery.experiments.spec import Built, Method, RunSpec
from rookery.populations.config import PbtConfig, check_population
from rookery.populations.pbt import pbt
from rookery.settings import Within, check_fields, expand_paths
from rookery.storage.lineage import Schedule


@dataclass(frozen=True)
class Settings:
    """The settings of Population Based Training."""

    population: Annotated[int, Within(1)] = 8
    """P, number of members (a multiple of the number of devices)."""
    replay_schedule: str | None = None
    """Run directory; one new agent trains, without selection, with the hyper-parameters that the ancestors of its best
    member had in each generation; the same as in `rookery train sac`."""
    init_from: str | None = None
    """Run directory; every member starts from the parameters of its best member. Task and network settings that are not
    given are taken from that run."""
    skill: Annotated[int | None, Within(0)] = None
    """Number of the skill of `--init-from` to start from (0 to the number of skills - 1), if that run discovered skills
    and this one does not."""
    pbt: PbtConfig = field(default_factory=PbtConfig)
    islands: IslandsConfig = field(default_factory=IslandsConfig)

    def __post_init__(self) -> None:
        check_fields(self)
        expand_paths(self, "init_from", "replay_schedule")


def build(spec: RunSpec[Settings], _: Schedule | None, over: Mesh | None, populations: int) -> Built:
    """Build the program; see `Method.build`."""
    settings = spec.method
    check_population(settings.pbt, settings.population)  # before the environment is made, which may take seconds
    mesh = mesh_of(spec.environment, over, population=settings.population)
    spec, learner, space = learner_of(spec, mesh, None, populations)
    config = settings.pbt
    if config.is_automatic and config.rounds_until is None:
        config = replace(config, rounds_until=spec.run.generations)
    program = pbt(learner, space, settings.population, config, layout.placement(mesh, spec.environment.exact))
    return Built(program, mesh, space, learner, spec)


SOURCE = "Jaderberg 2017 (arXiv:1711.09846)"
_TRUNCATION = ("replace_fraction", "replace_count", "best_fraction", "best_count")
RULES = (
    *ISLAND_RULES,
    Rule(
        "pbt",
        ("perturb", "exploit_interval", "burn_in", "inherit_buffer"),
        lambda pbt: pbt.exploit != "none",
        "with another {exploit} than none",
    ),
    Rule("pbt", ("round_patience", "rounds_until"), lambda pbt: pbt.is_automatic, "with {exploit_interval} auto"),
    Rule("pbt", ("frequencies",), lambda pbt: pbt.exploit == "multi-frequency", "with {exploit} multi-frequency"),
    Rule("pbt", ("threshold_std", "threshold_abs"), lambda pbt: pbt.exploit == "threshold", "with {exploit} threshold"),
    Rule("pbt", _TRUNCATION, lambda pbt: pbt.exploit == "truncation", "with {exploit} truncation"),
    Rule("pbt", ("replace_fraction",), lambda pbt: pbt.replace_count is None, "without {replace_count}"),
    Rule("pbt", ("best_fraction",), lambda pbt: pbt.best_count is None, "without {best_count}"),
    Rule(
        "pbt",
        ("perturb_factors", "resample_probability"),
        lambda pbt: pbt.exploit != "none" and pbt.perturb == "perturb",
        "with {perturb} perturb",
    ),
)

METHOD = Method(
    name="pbt-{agent}",
    title="Population Based Training of {agents}.",
    sources=(SOURCE,),
    subject="population based training (PBT)",
    guide="pbt",
    settings=Settings(),
    build=build,
    describe=describe,
    trains=lambda row: not row.wrapper.is_team,
    rules=RULES,
)
