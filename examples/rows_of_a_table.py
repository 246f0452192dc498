"""A model of a million rows at two servers: four workers pull and push the rows that their batches need.

A recommender in ten lines of numpy: every user and every item is a row, and a rating is the product of two.  The class
is all that fedgossip asks of a model of your own that is a table.
"""

import numpy as np

import fedgossip
from fedgossip.base.keyed_rows import KeyedTable, frozen_keys, united
from fedgossip.base.vectors import frozen
from fedgossip.core.task import Update

USERS, ROWS, WIDTH, BATCH, ROUNDS = 600_000, 1_000_000, 16, 100, 200


class Ratings:
    """core.task.RowTask: a rating is 1 where user and item are of one kind (their numbers modulo 2), else -1."""

    dtype = np.dtype(np.float32)
    schema = "ratings"

    def __init__(self) -> None:
        self.table = KeyedTable(ROWS, WIDTH, seed=1, scale=0.3)
        self.watched = united(*(self.keys(node, -1, 1) for node in range(4)))
        self.length = self.watched.size * WIDTH

    def pairs(self, node, round):
        """Few users and items are in most ratings, as in life."""
        drawn = fedgossip.base.seeds.stream(1, "ratings", node, round + 1).random((2, BATCH)) ** 3
        return (drawn[0] * 200).astype(int), USERS + (drawn[1] * 200).astype(int)

    def keys(self, node, round, batches):
        return frozen_keys(np.unique(np.concatenate(self.pairs(node, round))))

    def initial(self, node):
        return self.table.first(self.watched)

    def gradients(self, jobs):
        return [self.gradient(job) for job in jobs]

    train = gradients

    def gradient(self, job):
        rows, gradient = job.vector.reshape(-1, WIDTH), np.zeros((len(job.keys), WIDTH), np.float32)
        users, items = (np.searchsorted(job.keys, ids) for ids in self.pairs(job.node, job.round))
        away = self.away(rows, users, items, *self.pairs(job.node, job.round))
        np.add.at(gradient, users, away[:, None] * rows[items] / BATCH)
        np.add.at(gradient, items, away[:, None] * rows[users] / BATCH)
        return Update(frozen(gradient.reshape(-1)), BATCH, {"loss": float(np.mean(away**2)), "rows": BATCH})

    def away(self, rows, users, items, user_ids, item_ids):
        return (rows[users] * rows[items]).sum(axis=1) - np.where(user_ids % 2 == item_ids % 2, 1, -1)

    def error(self, rows, node):
        ids = self.pairs(node, -1)
        return np.mean(self.away(rows, *(np.searchsorted(self.watched, one) for one in ids), *ids) ** 2)

    def evaluate(self, vectors):
        rows = [vector.reshape(-1, WIDTH) for vector in vectors]
        return [{"loss": float(np.mean([self.error(one, node) for node in range(4)]))} for one in rows]


def learn(workers):
    """Return the run of that many workers; each has ratings of its own, and all are tested on those of four."""
    server = {"servers": 2, "filters": ["key-cache", "threshold:0.001"]}
    parallel = {"method": "parameter-server", "descent": "adagrad", "workers": workers, "server": server}
    plan = {"rounds": ROUNDS, "train": {"lr": 0.3}, "eval": {"every": 50}, "parallel": parallel}
    return fedgossip.simulate(plan, task=Ratings())


run = learn(4)
for row in run.rows:
    if getattr(row, "test_loss", None) is not None:
        print(f"round {row.round:3}: squared error {row.test_loss:.3f}")
sent = sum(row.bytes_sent for row in run.rows if getattr(row, "peer", 9) < 4 and hasattr(row, "bytes_sent"))
print(f"a worker sends {sent / 4 / ROUNDS / 1e3:.0f} kB a round; the whole table is {ROWS * WIDTH * 4 / 1e6:.0f} MB")
alone, together = learn(1).summary["test_loss"], run.summary["test_loss"]
print(f"alone {alone:.3f}, together {together:.3f}: gain over alone {1 - together / alone:.0%}")
