"""An algorithm of your own, two-tap gossip, which remembers the round before and so agrees sooner on a ring:

    x  <-  om W x + (1 - om) (x of the round before),   om = 2 / (1 + sqrt(1 - slem^2))

`algorithm.name = "module:Class"` takes it everywhere.  This one is built in too, as `algorithm.name = "two-tap"`.
Source: Muthukrishnan, Ghosh and Schultz, Theory of Computing Systems 31 (1998), first- and second-order diffusive
methods.
"""

from dataclasses import dataclass, replace

import fedgossip
from fedgossip.algorithms.gossip.dsgd import DSGD
from fedgossip.base.vectors import Vector, linear


@dataclass(frozen=True)
class Taps:
    x: Vector
    before: Vector


class TwoTap(DSGD):
    def __init__(self, slem):
        self.om = 2 / (1 + (1 - slem**2) ** 0.5)

    def start(self, x):
        return Taps(x, x)

    def mixed(self, state, mixed):
        return Taps(linear((self.om, mixed[0]), (1 - self.om, state.before)), state.x)

    def corrected(self, state, differences):
        return replace(state, x=linear((1, state.x), (self.om, differences[0])))

    def rejoined(self, state, model):
        return self.start(model)


if __name__ == "__main__":
    slem = fedgossip.spectrum(fedgossip.build(fedgossip.resolve("ring", 16))).slem
    for algorithm in ({"name": "dsgd"}, {"name": "two_tap:TwoTap", "options": {"slem": slem}}):
        problem = {"topology": {"graph": "ring", "n": 16}, "task": {"kind": "averaging", "dtype": "float64"}}
        run = fedgossip.simulate({"rounds": 40, "algorithm": algorithm, **problem})
        print(f"{algorithm['name']:16} disagreement after 40 rounds: {run.summary['consensus_distance']:.1e}")
