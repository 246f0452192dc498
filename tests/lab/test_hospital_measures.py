"""What judges and divides the tables of hospitals, by hand."""

from __future__ import annotations

import functools
import operator
from pathlib import Path

import numpy as np
import pytest

from fedgossip.base.errors import ConfigError
from fedgossip.lab.repro import hospital_measures
from fedgossip.lab.repro.hospital_measures import FOLDS, HospitalRecords, logistic_accuracy
from fedgossip.lab.repro.run_measures import renewal_minutes


def test_concordance_is_harrells() -> None:
    """Events at 1 and 2, a censored record at 2 and one at 3: pairs (0, 1), (0, 2), (0, 3), (1, 2), (1, 3)."""
    site = HospitalRecords(["x", "time", "event"], np.array([[0, 1, 1], [0, 2, 1], [0, 2, 0], [0, 3, 0]], np.float64))
    judge = hospital_measures._concordance
    assert judge(site, np.array([4.0, 3.0, 2.0, 1.0])) == 1.0 and judge(site, np.zeros(4)) == 0.5
    assert judge(site, np.array([1.0, 4.0, 2.0, 0.0])) == pytest.approx(3 / 5)  # (0, 1) and (0, 2) are the wrong way


def test_a_record_is_held_out_in_one_fold_alone() -> None:
    site = HospitalRecords(["x"], np.arange(10.0)[:, None])
    held = [site.part(fold, held=True).rows.ravel().tolist() for fold in range(FOLDS)]
    assert sorted(functools.reduce(operator.iadd, held, [])) == site.rows.ravel().tolist()
    for fold in range(FOLDS):
        assert not set(held[fold]) & set(site.part(fold, held=False).rows.ravel())


def test_without_the_tables_the_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hospital_measures._sites.cache_clear()
    monkeypatch.setenv("FEDGOSSIP_DATA", str(tmp_path))
    with pytest.raises(ConfigError, match="no hospitals/heart in the folder FEDGOSSIP_DATA"):
        logistic_accuracy()
    (tmp_path / "hospitals" / "heart").mkdir(parents=True)
    (tmp_path / "hospitals" / "heart" / "train-0.csv").write_text("x0,sick\n1,yes\n")
    with pytest.raises(ConfigError, match=r"train-0\.csv"):
        logistic_accuracy()


def test_devices_without_a_pause_send_by_renewal() -> None:
    """All have sent twice after 930 s = 15.5 min; by then 6 * 5 + 5 * 3 + 5 * 2 updates were sent."""
    assert renewal_minutes(55) == pytest.approx(15.5)
