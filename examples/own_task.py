"""A task of your own in an experiment file, and its numbers: least squares whose exact solution is known.

Each peer has rows (A_i, b_i) and minimises |A_i x - b_i|^2 / 2m; `evaluate` returns what the record and figures hold
under these names, and `residual` is a metric of (model, task), measured at the averaged model and at each peer.
"""

import numpy as np

import fedgossip
from fedgossip import Update
from fedgossip.base.vectors import frozen


class LeastSquares:
    def __init__(self, n, seed, dim=5, rows=20, step=0.1):
        self.length, self.dtype, self.schema = dim, np.dtype(np.float64), f"least-squares-{dim}"
        random = np.random.default_rng(seed)
        self.a, self.step = random.standard_normal((n, rows, dim)), step
        self.b = self.a @ random.standard_normal(dim) + random.standard_normal((n, rows))
        self.best = np.linalg.lstsq(self.a.reshape(-1, dim), self.b.reshape(-1), rcond=None)[0]

    def initial(self, node):
        return frozen(np.zeros(self.length))

    def gradient(self, node, x):
        return self.a[node].T @ (self.a[node] @ x - self.b[node]) / len(self.b[node])

    def train(self, jobs):
        found = [-self.step * self.gradient(job.node, job.vector) for job in jobs]
        return [Update(frozen(one), len(self.b[0]), {"loss": float(one @ one), "steps": 1}) for one in found]

    def evaluate(self, vectors):
        return [{"loss": self.loss(x), "away": float(np.linalg.norm(x - self.best))} for x in vectors]

    def loss(self, x):
        return float(np.mean((self.a @ x - self.b) ** 2)) / 2


def residual(model, task):
    return float(np.linalg.norm(np.mean([task.gradient(node, model) for node in range(len(task.b))], axis=0)))


if __name__ == "__main__":
    metrics = ["away?better=lower", "own_task:residual?of=model&better=lower"]
    task = {"kind": "own_task:LeastSquares", "options": {"dim": 3}, "metrics": metrics}
    run = fedgossip.simulate({"rounds": 60, "topology": {"graph": "ring", "n": 8}, "task": task})
    print("distance to the solution:", round(run.summary["score"]["averaged"], 3))
    print("gradient at the averaged model:", round(run.network()[-1].metrics["residual"], 3))
