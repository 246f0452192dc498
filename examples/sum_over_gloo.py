"""A process group of torch.distributed that sums by secure sums: rank 0 receives the sum, and no other rank's numbers.

    torchrun --nproc-per-node 4 sum_over_gloo.py         (without torchrun: three processes, made here)

Rank 0 is a client too, so it can subtract its own numbers: the sum that it receives is of the others.  In a real group
each rank keeps its key, and the cards come from the people, not over the group.
"""

import os
import tempfile
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from fedgossip.secure import Encoding, SumClient, SumServer, sign_card

LARGEST = 1 << 28


def send(frame, to):
    """Send bytes, after their number; None is the end."""
    dist.send(torch.tensor([-1 if frame is None else len(frame)]), to)
    if frame:  # gloo has no message of no bytes
        dist.send(torch.frombuffer(bytearray(frame), dtype=torch.uint8), to)


def receive(source):
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, source)
    if not -1 <= int(size) <= LARGEST:
        raise ValueError(f"a frame of {int(size)} bytes from rank {source}")
    if int(size) <= 0:
        return b"" if size == 0 else None
    frame = torch.empty(int(size), dtype=torch.uint8)
    dist.recv(frame, source)
    return frame.numpy().tobytes()


def secure_sum(client, server, round, values):
    """Return the sum of all ranks' values, at every rank; `server`: at rank 0, else None."""
    ranks = range(dist.get_world_size())
    client.give(round, values)
    if server is None:
        while (frame := receive(0)) is not None:
            send(client.answer(frame) or b"", 0)
        total = torch.empty(client.encoding.length, dtype=torch.float64)
    else:
        frames = server.begin(round, ranks)
        while frames:
            for rank in ranks[1:]:
                send(frames[rank], rank)
            replies = [client.answer(frames[0]) or b"", *(receive(rank) for rank in ranks[1:])]
            frames = {}
            for rank, reply in enumerate(replies):
                frames |= server.take(rank, reply) if reply else {}
        for rank in ranks[1:]:
            send(None, rank)
        total = torch.tensor(np.array(server.sum))
    dist.broadcast(total, 0)
    return total.numpy()


def shared(own):
    """Return every rank's bytes of one length, in the order of ranks."""
    found = [torch.empty(len(own), dtype=torch.uint8) for _ in range(dist.get_world_size())]
    dist.all_gather(found, torch.frombuffer(bytearray(own), dtype=torch.uint8))
    return [one.numpy().tobytes() for one in found]


def main(rank, world, meeting):
    dist.init_process_group("gloo", meeting, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    key, boss = os.urandom(32), os.urandom(32)
    cards, coordinator = shared(sign_card(key)), shared(sign_card(boss))[0]
    words = {"encoding": Encoding(length=4, bound=100.0), "task": "group", "n_min": 3}
    client = SumClient(key, cards, coordinator, entropy=os.urandom, **words)
    server = SumServer(boss, cards, **words) if rank == 0 else None
    for round in (1, 2):
        found = secure_sum(client, server, round, np.full(4, (rank + 1) * 10.0 * round))
        print(f"rank {rank}, round {round}: {np.round(found, 3)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://")
    else:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(main, (3, f"file://{folder}/meeting"), nprocs=3)
