"""Five hospitals fit a logistic regression over queues, by secure sums; any transport of frames would do."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import numpy as np

from fedgossip import load_experiment
from fedgossip.data.agreed.sums_task import encoded
from fedgossip.secure import SumClient, SumServer, sign_card
from fedgossip.sites.plans import given_sums

SITES = 5
EXPERIMENT = """
name = "ward"
model = { source = "glm:logistic" }
coordinator = { clients = 5 }
[data]
source = "csv:site-{peer}.csv?label=ill"
test = "csv:test.csv?label=ill"
partition = { kind = "own" }
scale = "federated"
categories = "agreed"
"""


def patients(name, seed):
    """Draw patients, of whom the odds of illness double with ten years."""
    rng = np.random.default_rng(seed)
    ages = rng.integers(30, 90, 200)
    ill = rng.random(200) < 1 / (1 + 2 ** ((60 - ages) / 10))
    rows = [f"{age},{'yes' if one else 'no'}" for age, one in zip(ages, ill, strict=True)]
    Path(name).write_text("\n".join(["age,ill", *rows]))


class QueueSums:
    """A site's side: `sum` replies to the coordinator's frames, until it receives the sum of all sites' numbers."""

    def __init__(self, client, outbox, inbox):
        self.client, self.outbox, self.inbox, self.round = client, outbox, inbox, 0

    def sum(self, numbers):
        self.round += 1
        self.client.give(self.round, numbers)
        self.outbox.put((self.client.place, b"ready"))
        while isinstance(frame := self.inbox.get(timeout=60), bytes):
            if (reply := self.client.answer(frame)) is not None:
                self.outbox.put((self.client.place, reply))
        return frame


def coordinate(server, outbox, inboxes):
    """The coordinator's side: a round whenever all sites are ready, until one has ended."""
    for number in range(1, 1000):
        if any(outbox.get(timeout=60)[1] == b"end" for _ in inboxes):
            return
        frames = server.begin(number, range(SITES))
        while frames:
            for site, frame in frames.items():
                inboxes[site].put(frame)
            frames = {}
            while server.waiting and not frames:
                frames = server.take(*outbox.get(timeout=60))
        for inbox in inboxes:
            inbox.put(list(server.sum))


def together(function, encoding, experiment):
    """Return the result of every site, each in a thread of its own, as on its own machine."""
    keys, boss = [os.urandom(32) for _ in range(SITES)], os.urandom(32)
    cards, outbox, inboxes = [sign_card(key) for key in keys], Queue(), [Queue() for _ in keys]

    def take_part(site):
        client = SumClient(keys[site], cards, sign_card(boss), encoding, task="ward", entropy=os.urandom)
        try:
            return function(experiment, site, QueueSums(client, outbox, inboxes[site]))
        finally:
            outbox.put((site, b"end"))

    with ThreadPoolExecutor(SITES + 1) as threads:
        results = [threads.submit(take_part, site) for site in range(SITES)]
        threads.submit(coordinate, SumServer(boss, cards, encoding, task="ward"), outbox, inboxes).result()
        return [one.result() for one in results]


if __name__ == "__main__":
    for site in range(SITES):
        patients(f"site-{site}.csv", site)
    patients("test.csv", 99)
    Path("ward.toml").write_text(EXPERIMENT)
    experiment = load_experiment("ward.toml")
    table, *_ = together(given_sums.agree_by_sums, given_sums.encoding_of_agreement(experiment), experiment)
    Path(experiment.data.agreed).write_bytes(encoded(table))
    fit, *_ = together(given_sums.fit_by_sums, given_sums.encoding_of_fit(experiment), experiment)
    Path("fit.json").write_bytes(encoded(fit))
    age = fit.coefficients[1].estimate
    print(f"ten years: odds {np.exp(10 * age):.2f} times larger, drawn as 2.00")
