"""Write parlay/estimate/record.json: measured over predicted seconds of every packaged run of tiers A and B.

python scripts/record_errors.py
"""

from __future__ import annotations

import dataclasses
import json

from parlay.estimate.estimate import price_time
from parlay.estimate.record import RECORD_FILE, features_of
from parlay.layouts.layout import Layouts
from parlay.rates.choose import rates_for
from parlay.validation.mapping import Unmapped, map_run
from parlay.validation.measured import measured_step
from parlay.validation.runs import packaged_runs


def main() -> None:
    """Predict every run and write the record."""
    rows = []
    for run in packaged_runs():
        case = map_run(run) if run.tier in ("A", "B") else None
        if case is None or isinstance(case, Unmapped):
            continue
        seconds = measured_step(case).step_s
        if seconds is None:
            continue
        time = price_time(case.model, case.cluster, case.workload, Layouts.of(case.layout), rates_for(case.cluster))
        features = dataclasses.asdict(features_of(case.model, case.cluster, case.workload, case.layout))
        name = f"{case.model.name} on {case.layout.gpus} x {case.cluster.device.id}, {case.workload.precision}, {case.layout}"
        ratio = seconds / (float(time.step[0]) * case.scale)
        rows.append({**features, "name": name, "run": run.id, "measured_over_predicted": round(ratio, 4)})
    lines = ",\n".join(json.dumps(row) for row in rows)
    RECORD_FILE.write_text('{"source": "parlay/validation/data, tiers A and B", "runs": [\n' + lines + "\n]}\n", encoding="utf-8")
    print(f"{len(rows)} runs")


if __name__ == "__main__":
    main()
