"""Classes: labels of any type, probabilities, and how far they can be relied on.

Classification, calibrated, with the estimator of scikit-learn.
"""

from sklearn.datasets import load_iris

import flashgp as fgp

iris = load_iris()
x, labels = iris.data[::5], iris.target_names[iris.target[::5]]

model = fgp.GPClassifier().fit(x, labels)
print(model.classes_, model.predict_proba(x[[0, 12, 24]]).round(2))

table = {"sepal": x[:, 0], "petal": x[:, 2], "kind": labels}
print(fgp.TableModel(starts=1).fit(table, target="kind").verdict)
