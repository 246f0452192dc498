"""[data] of an experiment file: examples, their partition, and the common scale of tables of several sites.

The section [task]: the problem and its metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec

from fedgossip.base.limits import ABOVE_0, MOST, KnownNames, OneOf, Within
from fedgossip.core import run_format
from fedgossip.data import data
from fedgossip.data.columns.table_schema import AGREED, FEDERATED, LEVELS, MISSING, REFUSE, TEST
from fedgossip.data.custom import NamesCode
from fedgossip.data.objectives import AS_THE_DATA, CODE, CONVEX, KINDS, LOOP, SPARSE, SUMS
from fedgossip.learning.one_model.flat import LORA

SHARE = 0.9
"""The largest share of examples that can be kept apart."""

RANK, NAMED = "rank", "named"

OF_STATISTICS = ("scale", "agreed", "missing", "categories", "columns", "suppress")
"""Keys of statistics that sites agree on."""

OF_JUDGING = ("groups", "site_scores")
"""Keys of the joint evaluation of a model by sites."""


LATER_KEYS = ("validation", "buckets", "levels", "file", "common")
"""Keys that runs from before them do not have."""


def is_standard(source: str) -> bool:
    """Return whether a source requests scaled columns: scale=standard."""
    return ("scale", "standard") in parse_qsl(source.partition("?")[2])


class DataSection(msgspec.Struct, forbid_unknown_fields=True):
    """[data]: the examples, and their partition."""

    source: Annotated[str, data.CODE, KnownNames({one.form: one.what for one in data.SOURCES.values()})] = "digits"
    """A source below (docs/use/data.md), or `module:function`; with {peer} in it, each peer reads a file of its own:
    csv:site-{peer}.csv?label=COLUMN."""
    buckets: list[int] = msgspec.field(default_factory=list)
    """Of a source of lines: lengths in characters, ascending, the end of a line counted.  A step draws its lines from
    one bucket and pads them to its length; longer ones than the last are cut.  Empty: 16, 32, 64, 128."""
    partition: Annotated[dict[str, Any], NamesCode()] = msgspec.field(default_factory=lambda: {"kind": "iid"})
    """Partition of the examples: of kind `iid`, `dirichlet` (`alpha`, `min_size`), `shard` (`shards_per_peer`),
    `pathological` (`classes_per_peer`), `similar` (`share` at random, the rest by label), `size-skewed` (`exponent` or
    `sigma`), `natural` (whole groups), `own` (for a source with {peer}, or for a
    `module:function` of the client's number); `module:function`, your own
    (docs/use/experiments.md)."""
    test: Annotated[float | str, data.CODE] = 0.2
    """The common test set: a share of the examples, between 0 and 1; or "own", the one that the source brings (MNIST's
    t10k files); or another source, as a source with {peer} needs."""
    common: Annotated[float | str, NamesCode((data.RANDOM, *data.SOURCES).__contains__)] = f"{data.RANDOM}:500"
    """The examples that all participants of feddf and fedmd answer, without labels: `random:500`, so many drawn by the
    seed in the range of the test set; another source; or a share of the training examples, which no participant then
    has, between 0 and 1 (docs/use/unlike.md)."""
    local_test: float = 0.0
    """Share of each client's examples held out for tests of the received model.  The coordinator receives the mean of
    all, except with record privacy (coordinator.privacy)."""
    scale: Annotated[str, OneOf(("source", TEST, FEDERATED))] = "source"
    """source: as the source specifies.  test, of sources with {peer} and of each one's own by an invite: columns have
    mean 0 and deviation 1 over the common test set of all; scale=standard of such a source selects it.  federated, of
    CSV files with {peer}: columns are found by their names and have mean 0 and deviation 1 over all sites, by the
    statistics of `fedgossip data agree`."""
    agreed: str = run_format.AGREED
    """The file of these statistics, beside the experiment's."""
    missing: Annotated[str, OneOf(MISSING)] = REFUSE
    """With scale = "federated", an empty cell of a feature: refuse; mean, that of its column over all sites; indicator,
    the same with a further feature that is 1 where a cell is empty, if at least `suppress` records at three sites or
    more have such a cell; drop, rows with an empty cell, or an empty label, are left out and counted."""
    categories: Annotated[str, OneOf((REFUSE, AGREED))] = REFUSE
    """With scale = "federated", columns of words: refuse, or agreed, a feature for each category of the common test
    file or of data.columns."""
    columns: dict[str, Any] = msgspec.field(default_factory=dict)
    """With scale = "federated", declarations of columns: "heart rate" = { unit = "1/min", low = 0, high = 300 }, sex =
    { categories = ["f", "m"] }.  A site's file has the unit in its first line: heart rate [1/min].  Further rules bring
    cells into the common form: aliases, missing, synonyms, recode, date, since, factor, units, order, cuts, merge, rest
    (docs/sites/tables.md)."""
    file: dict[str, str] = msgspec.field(default_factory=dict)
    """The format of tables, where it is not to be detected: delimiter, decimal, encoding, sheet; short for options of
    that name in data.source and data.test.  A site's own format is declared beside its table (docs/sites/tables.md)."""
    suppress: Annotated[int, Within(1, MOST)] = 5
    """With scale = "federated": no count of fewer records is published, nor what one could be computed from, and a
    site with fewer takes no part."""
    levels: Annotated[int, Within(2, 1000)] = LEVELS
    """With scale = "federated": a column of numbers with at most so many different ones counts as one of categories
    where rare ones are refused: codes such as 0 and 1."""
    groups: str = ""
    """A column of the sites' own CSV files, such as sex, that groups the records of `fedgossip evaluate` by its values,
    with a score for each group; a feature or not.  Empty: no groups."""
    site_scores: Annotated[str, OneOf((RANK, NAMED))] = RANK
    """What `fedgossip evaluate` reports of single sites.  rank: anonymous scores to a hundredth, the worst first;
    named: the score and the number of records of each site."""
    validation: Annotated[float, Within(0, SHARE)] = 0.0
    """Share of the training examples excluded from training, drawn by the seed before the partition: eval.on =
    "validation" measures on them, so that hyperparameters are chosen without the test set."""

    @property
    def by_test(self) -> bool:
        """Whether examples of each one's own are scaled by the common test set."""
        own = self.partition.get("kind") == "own" and self.scale != FEDERATED
        return self.scale == TEST or (own and any(map(is_standard, (self.source, str(self.test)))))

    @property
    def without_statistics(self) -> Sequence[str]:
        """The keys of statistics, where there are none: runs from before them have the same hash."""
        return [key for key in self._usual(OF_STATISTICS) if self.scale != FEDERATED]

    @property
    def unset(self) -> Sequence[str]:
        """The keys that are left out of a run's hash: runs from before them have the same."""
        return (*self._usual(LATER_KEYS), *self.without_statistics, *self._usual(OF_JUDGING))

    def _usual(self, keys: Sequence[str]) -> Sequence[str]:
        usual = DataSection()
        return [key for key in keys if getattr(self, key) == getattr(usual, key)]


TASKS = (AS_THE_DATA, *KINDS, CONVEX, "averaging", "quadratic", SPARSE, LOOP, *SUMS)


class TaskSection(msgspec.Struct, forbid_unknown_fields=True):
    """[task]: the problem and its metric; or a problem with a known answer (pure numpy)."""

    kind: Annotated[str, NamesCode(), OneOf(TASKS, own=True)] = AS_THE_DATA
    """learning: the data of the source; convex: a linear model of it that can be certified, without torch
    (docs/use/convex.md); averaging, quadratic: problems with a known answer, without torch; sparse-logistic: drawn
    clicks, with rows at parameter servers, else whole tables; loop: a training loop of your own (docs/use/own-loop.md);
    `module:Class`: a task of your own, with the methods of LocalTask (docs/use/experiments.md); statistics, evaluation:
    set by `fedgossip data agree` and `fedgossip evaluate`."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Options of a task of your own, beside n, seed and rounds."""
    loss: Annotated[str, CODE] = ""
    """`cross-entropy`, `mse`, `mae`, `huber`, `bce`; `module:function`, of (outputs, labels), the mean over a batch;
    empty: the kind's own, cross-entropy, mse or bce (docs/use/tasks.md).  Convex: `hinge`, `logistic`, `squares`,
    `lasso`."""
    lam: Annotated[float, Within(ABOVE_0)] = 1e-3
    """Convex: weight of lam/2 |w|^2 beside the mean loss; smaller fits closer, and takes more rounds."""
    smooth: Annotated[float, Within(ABOVE_0)] = 0.1
    """Lasso: beside lam |w|_1 stands lam smooth/2 |w|^2, without which nothing could be certified; smaller is nearer
    to the lasso, and takes more rounds."""
    positive: str = ""
    """Convex, hinge and logistic: the class to separate from all others, where the source has more than two."""
    metrics: Annotated[list[str], CODE] = msgspec.field(default_factory=list)
    """`accuracy`, `f1`, `auroc`, `rmse`, `mae`, `r2`, `loss`, `gap`; `module:function?better=lower`, of arrays
    (outputs, labels), with of=model of (model, task), of any task; of a loop or task of your own the names of numbers
    that it reports; the first is the score of reports.  Empty: the kind's own (docs/use/tasks.md)."""
    exchange: Annotated[str, OneOf(("", *LORA))] = ""
    """Loop: how adapters (lora_A, lora_B) travel: `lora`, which is `lora:ffa`; `lora:both`, `lora:product`
    (docs/use/own-loop.md); empty: as the script's join, or else like all parameters."""
    dim: Annotated[int, Within(1, MOST)] = 1
    """Averaging, quadratic: numbers in a vector.  Sparse-logistic: features, each a row of the model."""
    dtype: Annotated[str, OneOf(("float32", "float64"))] = "float32"
    """Averaging, quadratic: their type; learning is always float32."""
    eta: float = 0.1
    """Quadratic: step size."""
    sigma: float = 0.0
    """Quadratic: standard deviation of the gradient noise per coordinate."""
    placement: str = "smooth"
    """Quadratic: order of the targets b_i along the node ids: `smooth`, `alternating`, `random`."""
    examples: Annotated[int, Within(1, 10**7)] = 1000
    """Sparse-logistic: examples of each worker."""
    nonzeros: Annotated[int, Within(1, 10**4)] = 20
    """Sparse-logistic: features of an example."""
