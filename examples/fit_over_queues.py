"""Five hospitals fit a logistic regression over queues, by secure sums; any transport of frames would do."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from fedgossip import load_experiment
from fedgossip.data.agreed.sums_task import encoded
from fedgossip.secure import SumClient, SumServer, sign_card
from fedgossip.sites.plans import given_sums


def together(function, encoding, experiment):
    """Return a function's result; each site is a thread here, and a machine in a real fit."""
    keys, boss = [os.urandom(32) for _ in range(5)], os.urandom(32)
    cards, replies, inboxes = [sign_card(key) for key in keys], Queue(), [Queue() for _ in keys]

    def take_part(site):
        client = SumClient(keys[site], cards, sign_card(boss), encoding, task="ward", entropy=os.urandom)
        send, receive = lambda frame: replies.put((site, frame)), lambda: inboxes[site].get(timeout=60)
        with given_sums.FramedSums(client, send, receive) as sums:
            return function(experiment, site, sums)

    with ThreadPoolExecutor(5) as threads:
        results = threads.map(take_part, range(5))
        server = SumServer(boss, cards, encoding, task="ward")
        given_sums.serve_sums(server, lambda site, frame: inboxes[site].put(frame), lambda: replies.get(timeout=60))
        return next(results)


if __name__ == "__main__":  # in the folder that  fedgossip init hospitals  makes
    settings = ["model.source=glm:logistic", "data.scale=federated", "data.categories=agreed"]
    experiment = load_experiment("experiment.toml", settings)
    table = together(given_sums.agree_by_sums, given_sums.encoding_of_agreement(experiment), experiment)
    Path(experiment.data.agreed).write_bytes(encoded(table))
    fit = together(given_sums.fit_by_sums, given_sums.encoding_of_fit(experiment), experiment)
    Path("fit.json").write_bytes(encoded(fit))
    print("\n".join(f"{one.name}: {one.estimate:.4f} +- {one.error:.4f}" for one in fit.coefficients))
