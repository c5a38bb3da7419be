"""Tune a training loop that is not JAX: `python examples/tune_anything.py [--small]`, with scikit-learn installed.

Eight linear classifiers of digits are trained by stochastic gradient descent. Population Based Training tunes their
learning rate, their regularisation and its norm while they train; the best one is tested on digits that neither the
training nor the selection has seen.
"""

import argparse
from copy import deepcopy
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

import rookery
from rookery.hyperparams import Choice, LogUniform

SPACE = {
    "eta0": LogUniform(1e-6, 1.0),
    "alpha": LogUniform(1e-7, 1e-1),
    "penalty": Choice("l1", "l2"),
    "learning_rate": "constant",
}


def main(small: bool, run_dir: Path) -> None:
    """Train, tune and test."""
    images, digits = load_digits(return_X_y=True)
    train, select, test = slice(0, 1000), slice(1000, 1400), slice(1400, None)
    tuner = rookery.populations.Tuner(SPACE, population_size=4 if small else 8, seed=0)
    models = [SGDClassifier(random_state=member) for member, _ in enumerate(tuner.ask())]
    run_dir.mkdir(parents=True, exist_ok=True)
    scores = []
    for _ in range(3 if small else 30):
        for model, hyper in zip(models, tuner.ask(), strict=True):
            model.set_params(**hyper)
            model.partial_fit(images[train], digits[train], classes=np.arange(10))
        scores = [model.score(images[select], digits[select]) for model in models]
        best = deepcopy(models[int(np.argmax(scores))])
        models = [deepcopy(models[parent]) for parent in tuner.tell(scores)]
        tuner.save(run_dir / "tuner.json")
    print(f"selected: {max(scores):.3f}, on other digits: {best.score(images[test], digits[test]):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a second")
    parser.add_argument("--run-dir", default="runs/example-tuner", help="folder of the tuner's file")
    arguments = parser.parse_args()
    main(arguments.small, Path(arguments.run_dir))
