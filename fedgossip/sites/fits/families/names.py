"""Every family of statistics, a line each, by the first word of model.source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedgossip.sites.fits.families.correlations import Correlations
from fedgossip.sites.fits.families.elastic_net import ElasticNet
from fedgossip.sites.fits.families.family import SumsFamily
from fedgossip.sites.fits.families.firth import Firth
from fedgossip.sites.fits.families.likelihoods import Likelihood, LikelihoodFamily
from fedgossip.sites.fits.families.meta_analysis import MetaAnalysis
from fedgossip.sites.fits.families.multinomial import Multinomial
from fedgossip.sites.fits.families.negative_binomial import NegativeBinomial
from fedgossip.sites.fits.families.ordinal import Ordinal
from fedgossip.sites.fits.families.table_one import TableOne
from fedgossip.sites.fits.families.weibull import Weibull

LIKELIHOODS: Sequence[Likelihood] = Multinomial(), Ordinal(), NegativeBinomial(), Firth(), Weibull()

_ALL: Sequence[SumsFamily] = (
    TableOne(),
    Correlations(),
    MetaAnalysis(),
    ElasticNet(),
    *map(LikelihoodFamily, LIKELIHOODS),
)

FAMILIES: Mapping[str, SumsFamily] = {one.name: one for one in _ALL}
