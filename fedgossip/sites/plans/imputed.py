"""A kind of fit of tables whose empty cells are drawn: an imputation and K fits in one run, with one approval.

A kind that can be fitted so has an `ImputedFits` in its `SumsRun`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedgossip.base.errors import ConfigError
from fedgossip.base.vectors import Vector
from fedgossip.core.machine import NodeId
from fedgossip.core.task import WholeModel
from fedgossip.data.agreed.agreed_table import AgreedTable
from fedgossip.data.table_files import TableFile
from fedgossip.experiment import FederatedExperiment
from fedgossip.sites.fits.imputation.chained_equations import ImputationLayout, imputation_design, read_cells
from fedgossip.sites.fits.imputation.imputed_sums import ImputedLayout, ImputedRecords, ImputedTask
from fedgossip.sites.fits.imputation.rubin import ImputedCells, Pooling
from fedgossip.sites.plans.sums import SumsRun


def imputed_run(run: SumsRun) -> SumsRun:
    """Return the run of an imputation and of a fit to each of its tables.  Raises ConfigError for another kind."""
    if (imputed := run.imputed) is None:
        text = f"{run.name}: not fitted to imputed tables"
        raise ConfigError(text, 'Of imputed tables glm:... is fitted: set data.missing = "mean" or "drop".')

    def layout(experiment: FederatedExperiment, agreed: AgreedTable) -> ImputedLayout:
        fit = run.layout(experiment, agreed)
        design = imputation_design(agreed, experiment.seed, experiment.objective.kind)
        return ImputedLayout(ImputationLayout(design), fit, run.rounds(fit))

    def read(layout: ImputedLayout, agreed: AgreedTable, file: TableFile) -> ImputedRecords:
        records = run.read(layout.fit, agreed, file)
        return ImputedRecords(records, read_cells(layout.imputation.design, agreed, file))

    def task(layout: ImputedLayout, sites: Mapping[NodeId, ImputedRecords], suppress: int) -> ImputedTask:
        def completed(records: Any, features: Any) -> Any:
            return imputed.records(layout.fit, records, features)

        def task_of(sites: Mapping[NodeId, Any]) -> Any:
            return run.task(layout.fit, sites, suppress)

        return ImputedTask(layout, sites, completed, task_of)

    def result(layout: ImputedLayout, agreed: AgreedTable, vector: Vector, least: int) -> Any:
        if not layout.check(vector):
            return None
        return imputed.result(layout.fit, agreed, layout.fits(vector), least, _pooling(layout, agreed))

    def model(layout: ImputedLayout, agreed: AgreedTable, vector: Vector) -> WholeModel | None:
        found = result(layout, agreed, vector, 1)
        return None if found is None else imputed.model(found, agreed)

    return replace(
        run, layout=layout, rounds=lambda layout: layout.rounds, read=read, task=task, result=result, model=model
    )


def _pooling(layout: ImputedLayout, agreed: AgreedTable) -> Pooling:
    d, known = layout.imputation.design, {one.name: one for one in agreed.columns}
    cells = tuple(ImputedCells(one.name, one.model, known[one.name].missing or 0) for one in d.imputed)
    return Pooling(sets=d.sets, iterations=d.iterations, imputed=cells, filled=d.filled)
