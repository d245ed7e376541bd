"""Calibration files: whole or not at all, and clear errors for what is not one."""

import json
import os
import stat

import pytest

from parlay.calibrate.file import identity, load_calibration, save_calibration, summarise
from parlay.errors import UsageError
from parlay.rates.calibration_file import Calibration, Gemm, MeasuredDevice


def example(**fields):
    samples = (1.0e-3, 1.1e-3, 1.2e-3)
    gemm = Gemm(dtype="bf16", m=64, n=64, k=64, flops=2.0 * 64**3, seconds=summarise(samples), samples_s=samples)
    given = {
        "created": "2026-11-29T12:00:00Z",
        "tool": {"name": "parlay", "version": "0"},
        "device": MeasuredDevice(name="NVIDIA H100 80GB HBM3", vendor="nvidia"),
        "compute": (gemm,),
    }
    return Calibration(**(given | fields))


def test_a_file_comes_back_as_it_was(tmp_path):
    path = tmp_path / "c.json"
    saved = save_calibration(example(), path)
    assert load_calibration(path) == saved
    assert saved.id == identity(example())
    assert saved.compute[0].seconds.median == 1.1e-3
    assert saved.compute[0].seconds.mad == pytest.approx(1e-4)


def test_the_id_covers_everything_but_the_notes():
    assert identity(example()) == identity(example(notes="rack 12"))
    assert identity(example()) != identity(example(complete=True))


def test_the_mode_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        save_calibration(example(), tmp_path / "c.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "c.json").stat().st_mode) == 0o640


def test_a_failed_write_leaves_the_file_before_and_nothing_beside(tmp_path, monkeypatch):
    path = tmp_path / "c.json"
    first = save_calibration(example(), path)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left") as caught:
        save_calibration(example(complete=True), path)
    assert "untouched" in caught.value.hint
    assert load_calibration(path) == first
    assert [p.name for p in tmp_path.iterdir()] == ["c.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ('{"kind": "calibration", "schema_ver', "not valid JSON"),
        ("[1, 2]", "not a calibration"),
        ('{"kind": "plan"}', "not a calibration"),
        ('{"kind": "calibration", "schema_version": 2}', "schema version 2"),
        ('{"kind": "calibration", "schema_version": 1}', "is missing"),
        ('{"kind": "calibration", "schema_version": 1, "launch_s": {"eager": NaN}}', "NaN"),
    ],
)
def test_what_is_not_a_calibration_is_refused(tmp_path, text, message):
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        load_calibration(path)
    assert str(path) in caught.value.where


def test_wrong_values_name_their_key(tmp_path):
    data = example().model_dump(mode="json")
    data["compute"][0]["seconds"]["median"] = -1
    path = tmp_path / "c.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError) as caught:
        load_calibration(path)
    assert "median" in caught.value.where


def test_a_missing_folder_is_said(tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        save_calibration(example(), tmp_path / "no" / "c.json")
