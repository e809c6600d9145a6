"""Ten handwritten digits: probabilities that mean what they say, and the rows that a second look is worth.

Run: python examples/ten_classes.py --rows 400
"""

import argparse

import numpy as np
from sklearn.datasets import load_digits

import flashgp as fgp


def main(rows: int = 400, classes: int = 10) -> dict[str, float]:
    """Scores of the rows that are held out, by name."""
    x, y = load_digits(n_class=classes, return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:rows], order[rows : rows + 300]

    kernel = 1.0 * fgp.kernels.SquaredExponential(lengthscale=8.0)
    model = fgp.GPClassifier(kernel, standardise="none")
    model.fit(x[train] / 6.0, y[train])  # pixels of 0 to 16, in units of their deviation: one lengthscale for all
    probability = model.predict_proba(x[test] / 6.0)

    likely = probability[np.arange(len(test)), y[test]]
    scores = {"accuracy": float((probability.argmax(1) == y[test]).mean()), "log loss": float(-np.log(likely).mean())}
    print(", ".join(f"{name} {value:.3f}" for name, value in scores.items()))
    for row in probability.max(1).argsort()[:3]:
        first, second = probability[row].argsort()[::-1][:2]
        print(
            f"row {test[row]}: {first} ({probability[row, first]:.0%}) or {second} ({probability[row, second]:.0%})?"
            f" It is {y[test[row]]}"
        )
    return scores


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400, help="that are learnt from")
    main(parser.parse_args().rows)
