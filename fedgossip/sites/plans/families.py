"""Statistics of all sites' tables: the run of each family of named sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import parse_qsl

from fedgossip.base.errors import ConfigError, nearest
from fedgossip.base.vectors import Vector
from fedgossip.core import run_format
from fedgossip.core.task import WholeModel
from fedgossip.data.agreed.agreed_table import AgreedTable
from fedgossip.data.objectives import TABLES
from fedgossip.data.table_files import TableFile
from fedgossip.experiment import FederatedExperiment
from fedgossip.sites.fits.families.family import FamilyLayout, FamilyTask, PredictingFamily, SumsFamily, fit_of
from fedgossip.sites.fits.families.names import FAMILIES
from fedgossip.sites.plans.sums import SumsRun, layer_model


def _run_of(family: SumsFamily) -> SumsRun:
    def kinds(source: str) -> Sequence[str]:
        _options(family, source)
        return family.kinds

    def layout(experiment: FederatedExperiment, agreed: AgreedTable) -> FamilyLayout:
        return FamilyLayout(family.design(_options(family, experiment.model.source), agreed), family)

    def read(layout: FamilyLayout, agreed: AgreedTable, file: TableFile) -> Any:
        return family.read(layout.design, agreed, file)

    def model(layout: FamilyLayout, agreed: AgreedTable, vector: Vector) -> WholeModel | None:
        found = cast(PredictingFamily, family).model(layout.design, layout.pooled(vector), agreed)
        return None if found is None else layer_model(layout.design, *found, agreed)

    return SumsRun(
        family.name, TABLES, run_format.TABLES, kinds, layout, lambda layout: layout.rounds, read, FamilyTask, fit_of,
        model=model if family.predicts else None,
    )  # fmt: skip


def _options(family: SumsFamily, source: str) -> dict[str, str]:
    """Return the options in model.source.  Raises ConfigError for an unknown one."""
    found = dict(sorted(parse_qsl(source.partition("?")[2], keep_blank_values=True)))
    for name in found:
        if name not in family.options:
            advice = nearest(name, family.options) if family.options else f'Write model.source = "{family.name}".'
            raise ConfigError(f"model.source = {source!r}: option {name!r} is not known", advice)
    return found


FAMILY_RUNS = tuple(map(_run_of, FAMILIES.values()))
