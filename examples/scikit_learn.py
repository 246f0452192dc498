"""Estimators of scikit-learn as peers, without torch: a linear classifier and k-means, both by `partial_fit`.

A task of one's own has the methods of `fedgossip.core.task.LocalTask`; its vector is all of an estimator's fitted
numbers.  Eight peers have digits of few classes each.
"""

import hashlib

import numpy as np
from sklearn.cluster import MiniBatchKMeans
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from threadpoolctl import threadpool_limits

import fedgossip
from fedgossip.core.task import Update

PEERS, CLASSES, GRAPHS = 8, 10, ("topology.graph=none", "topology.graph=ring")
EXPERIMENT = {"rounds": 10, "topology": {"n": PEERS}}
DIGITS, NAMES = load_digits(return_X_y=True)
X, Y, TEST_X, TEST_Y = DIGITS[:1400] / 16, NAMES[:1400], DIGITS[1400:] / 16, NAMES[1400:]
SHARES = np.argsort(Y, kind="stable").reshape(PEERS, 175)  # sorted by class: two or three classes each


class Linear:
    start = np.zeros(CLASSES * 65)  # weights and intercepts of a logistic classifier

    def fitted(self, vector, mine, seed):
        one = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.05, random_state=seed)
        one.partial_fit(X[:1], Y[:1], classes=np.arange(CLASSES))  # makes its arrays
        table = vector.reshape(CLASSES, 65)
        one.coef_, one.intercept_ = table[:, :64].copy(), table[:, 64].copy()
        one.partial_fit(X[mine], Y[mine])
        return np.column_stack([one.coef_, one.intercept_]).ravel()

    def measured(self, vector):
        table = vector.reshape(CLASSES, 65)
        right = (TEST_X @ table[:, :64].T + table[:, 64]).argmax(1) == TEST_Y
        return {"accuracy": right.mean(), "loss": 1 - right.mean()}


class Centres:
    """The centres of k-means, [20 * 64]; the loss is the mean squared distance of a digit to the nearest."""

    start = X[np.random.default_rng(0).choice(len(X), 20, replace=False)].ravel()

    def fitted(self, vector, mine, seed):
        one = MiniBatchKMeans(20, init=vector.reshape(20, 64), n_init=1, reassignment_ratio=0, random_state=seed)
        return one.partial_fit(X[mine]).cluster_centers_.ravel()

    def measured(self, vector):
        nearest = ((TEST_X[:, None] - vector.reshape(20, 64)) ** 2).sum(2).min(1)
        return {"loss": nearest.mean(), "accuracy": 1 - nearest.mean() / ((TEST_X - X.mean(0)) ** 2).sum(1).mean()}


class Estimators:  # the LocalTask of one of them
    dtype = np.dtype(np.float64)

    def __init__(self, one):
        self.one, self.length = one, len(one.start)
        self.schema = hashlib.sha256(f"{type(one).__name__} {self.length}".encode()).hexdigest()

    def initial(self, node):
        return self.one.start

    def train(self, jobs):
        fitted = [self.one.fitted(job.vector, SHARES[job.node], 1000 * job.node + job.round) for job in jobs]
        return [Update(new - job.vector, 175, {"loss": 0.0}) for new, job in zip(fitted, jobs, strict=True)]

    def evaluate(self, vectors):
        return [self.one.measured(vector) for vector in vectors]


for name, one in (("linear: accuracy", Linear()), ("k-means: variance explained", Centres())):
    with threadpool_limits(1):  # of k-means, which is too small for threads
        runs = [fedgossip.simulate(EXPERIMENT, overrides=[graph], task=Estimators(one)) for graph in GRAPHS]
    alone, ring = (run.summary["score"]["mean_peer"] for run in runs)
    print(f"{name}   alone {alone:.3f}   on a ring {ring:.3f}   gain over alone {ring - alone:+.3f}")
