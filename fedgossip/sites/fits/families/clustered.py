"""Records in clusters, such as a patient's visits: those that count, and the sums of clusters that few of them share.

Sums whose weights depend on a cluster's size disclose those of each size: with theta, or the correlation, at one value
after another, they are a rational function whose poles give the sizes n and the sums of each.  Each size therefore has
no clusters, or `data.suppress` at three sites; and at each site none or as many, whatever is said of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

import numpy as np
import numpy.typing as npt

from fedgossip.base.errors import ConfigError
from fedgossip.data.agreed.agreed_table import AgreedTable, read_clusters
from fedgossip.data.agreed.column_sums import SITES
from fedgossip.data.table_files import TableFile
from fedgossip.sites.fits.design_columns import check_outside
from fedgossip.sites.fits.families.family import (
    FamilyDesign,
    Numbers,
    PooledRound,
    SumBlock,
    option_number,
    read_sample,
)
from fedgossip.sites.fits.few_values import terms_of
from fedgossip.sites.fits.glm.glm import Values

MOST = 50
"""Maximum number of records of a cluster."""
LAST = "{} of {} records count: where few clusters of a site have as many records, their last ones are left out"


@dataclass(frozen=True, eq=False)
class ClusteredSample:
    """One site's records: x [m, p + 1] scaled, with its ones; y [m]; cluster [m], from 0."""

    x: Values
    y: Values
    cluster: npt.NDArray[np.int64]

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Number of records of each cluster."""
        return np.bincount(self.cluster)

    def summed(self, values: Values) -> Values:
        """Return the sums of rows [m, q] over each cluster, [c, q]."""
        found = np.zeros((len(self.sizes), values.shape[1]))
        np.add.at(found, self.cluster, values)
        return found


def check_by(options: Mapping[str, str], agreed: AgreedTable, family: str) -> None:
    """Raise ConfigError for an unsuitable column of clusters, or number of their first records."""
    check_outside(agreed, options["by"], f"{family}?by={options['by']}")
    option_number(f"{family}?", "first", options.get("first", "2"), 2, MOST)


def read_clustered(d: FamilyDesign, agreed: AgreedTable, file: TableFile, kind: str) -> ClusteredSample:
    """Return the counted records of a site.  Raises ConfigError as `read_sample`, and for too large clusters."""
    found, by = read_sample(d, agreed, file, kind), d.options["by"]
    cluster = read_clusters(file, agreed, by)
    order = np.argsort(cluster, kind="stable")
    before = np.empty(len(order), np.int64)
    before[order] = np.arange(len(order)) - np.searchsorted(cluster[order], cluster[order])
    sizes = np.minimum(np.bincount(cluster), int(d.options.get("first", len(order))))
    if sizes.max() > MOST:
        text = f"column {by!r}: {sizes.max()} records have one value; there are at most {MOST}"
        raise ConfigError(text, f"Take the first of each alone, in the plan of all:  {_with_first(d, MOST)}")
    kept = before < enough_of_each(sizes, agreed.suppress)[cluster]
    _, cluster = np.unique(cluster[kept], return_inverse=True)
    return ClusteredSample(found.x[kept], found.y[kept, 0], cluster)


def cluster_blocks(d: FamilyDesign) -> Mapping[str, SumBlock]:
    """Return the counts of the first round: clusters of each size, sites with any, clusters with each value."""
    sizes = SumBlock(most_of(d), counts=True)
    return {"clusters": sizes, "at": sizes, "carriers": SumBlock(len(carriers_of(d)), counts=True)}


def cluster_counts(d: FamilyDesign, site: ClusteredSample) -> Numbers:
    """Return a site's numbers of `cluster_blocks`."""
    clusters = np.bincount(site.sizes, minlength=most_of(d) + 1)[1:]
    x = site.x[:, 1:]
    zero = [(x[:, places] == 0).all(axis=1) for places in categories_of(d).values()]
    classes = [site.y == k for k in range(len(d.classes))]
    carry = np.zeros((len(site.sizes), len(carriers_of(d))), bool)
    np.logical_or.at(carry, site.cluster, np.column_stack([x > 0, x < 0, *zero, *classes]))
    return {"clusters": clusters, "at": clusters > 0, "carriers": carry.sum(axis=0)}


def opened_counts(d: FamilyDesign) -> str:
    return (
        f"first the number of records, those of clusters by {d.options['by']} of 1 to {most_of(d)} records and of "
        "sites with any, and of clusters with each category"
    )


def alone_or_few(d: FamilyDesign, site: ClusteredSample, first: PooledRound) -> str:
    """Return, in words, why sums of clusters would disclose this site's, or few; "" for no reason."""
    own = cluster_counts(d, site)["carriers"]
    named = zip(carriers_of(d), np.asarray(own).tolist(), first["carriers"].tolist(), strict=True)
    numbers = {name for name, _ in terms_of(d)} & {*d.columns}
    alone = next((name for name, mine, every in named if mine == every and mine and name not in numbers), "")
    return f"clusters with {alone} are of no other site" if alone else few_clusters(d, first)[0]


def enough_of_each(sizes: npt.NDArray[np.int64], least: int) -> npt.NDArray[np.int64]:
    """Return how many records of each cluster count, so that each number is of `least` clusters of the site, or none.

    The sums of a size that one site alone has are that site's, whatever the coordinator says of others; of fewer than
    `least` of its clusters, these clusters'.
    """
    found = sizes.copy()
    there = [0, *np.unique(sizes).tolist()]
    for size, below in zip(there[:0:-1], there[-2::-1], strict=True):
        if np.count_nonzero(found == size) < least:
            found[found == size] = below
    return found


def most_of(d: FamilyDesign) -> int:
    """Return the maximum number of records of a cluster."""
    return int(float(d.options.get("first", MOST)))


def categories_of(d: FamilyDesign) -> dict[str, list[int]]:
    """Return the columns of categories, each with its indices in the design."""
    return {name: places for name, places in terms_of(d) if name not in d.columns}


def carriers_of(d: FamilyDesign) -> Sequence[str]:
    """Return the column of each number of clusters: with a value above its mean, below, of the reference category, of
    each class of the outcome.
    """
    return [*d.columns, *d.columns, *categories_of(d), *(f"{d.outcome}={one}" for one in d.classes)]


def few_clusters(d: FamilyDesign, first: PooledRound) -> tuple[str, str]:
    """Return the value that too few clusters share, and the advice; "" for none."""
    by, clusters, at = d.options["by"], first["clusters"], first["at"]
    other = f"Take glm:{d.options.get('family', 'linear')}, or another column."

    def enough(sizes: slice) -> bool:
        return bool(clusters[sizes].sum() >= d.suppress and at[sizes].max() >= SITES)

    few = [n for n in (np.flatnonzero(clusters) + 1).tolist() if not enough(slice(n - 1, n))]
    if few:
        cut = next((k for k in range(few[0], 1, -1) if enough(slice(k - 1, None))), 0)
        which = f"clusters by {by} of {', '.join(map(str, few))} record{'' if few == [1] else 's'}"
        text = (
            f"{which}: fewer than {d.suppress}, or at fewer than {SITES} sites; sums of each size would disclose them"
        )
        return text, f"Take the first records of each alone:  {_with_first(d, cut)}" if cut else other
    if not clusters[1:].any():
        return f"each cluster by {by} has one record: nothing is common to several", other
    rare = [name for name, many in zip(carriers_of(d), first["carriers"], strict=True) if 0 < many < d.suppress]
    if rare:
        text = f"column {rare[0]!r}: a value, or all above or below its mean, is of fewer than {d.suppress} clusters"
        return (
            f"{text} by {by}",
            "A coefficient of it would disclose them: leave the column out, or put values together.",
        )
    return "", ""


def _with_first(d: FamilyDesign, first: int) -> str:
    """Return model.source with the first records of each cluster alone."""
    return f"{d.family}?{urlencode(dict(sorted({**d.options, 'first': str(first)}.items())))}"
