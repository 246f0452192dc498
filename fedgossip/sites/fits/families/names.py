"""Every family of statistics, a line each, by the first word of model.source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedgossip.sites.fits.families.correlations import Correlations
from fedgossip.sites.fits.families.elastic_net import ElasticNet
from fedgossip.sites.fits.families.family import SumsFamily
from fedgossip.sites.fits.families.likelihoods import Firth, Likelihood, LikelihoodFamily, NegativeBinomial, Weibull
from fedgossip.sites.fits.families.meta_analysis import MetaAnalysis
from fedgossip.sites.fits.families.multinomial import Multinomial, Ordinal
from fedgossip.sites.fits.families.table_one import TableOne

LIKELIHOODS: Sequence[Likelihood] = Multinomial(), Ordinal(), NegativeBinomial(), Firth(), Weibull()

_ALL: Sequence[SumsFamily] = (
    TableOne(),
    Correlations(),
    MetaAnalysis(),
    ElasticNet(),
    *map(LikelihoodFamily, LIKELIHOODS),
)

FAMILIES: Mapping[str, SumsFamily] = {one.name: one for one in _ALL}
