"""Writes the two tables of the tutorial: invented patients of two clinics.

    python docs/tutorials/clinics.py FOLDER

Readmission depends on age, glucose, earlier stays and smoking. In the data, men were readmitted
more often than women with the same values, and the northern clinic's patients are older. Glucose is
sometimes missing.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

ROWS = {"north": 3000, "south": 2400}
COLUMNS = "patient_id,sex,age,bmi,glucose,prior_stays,smoker,readmitted"


def table(name: str) -> str:
    """One clinic's table as CSV text."""
    draw = random.Random(f"clinics {name}")
    lines = [COLUMNS]
    for number in range(ROWS[name]):
        male = draw.random() < (0.45 if name == "north" else 0.55)
        age = min(95, max(18, round(draw.gauss(66 if name == "north" else 52, 14))))
        bmi = draw.gauss(27, 4)
        glucose = draw.gauss(5.6 + 0.02 * (age - 55), 1.2)
        stays = min(9, int(draw.expovariate(0.8)))
        smoker = draw.random() < (0.34 if male else 0.24)
        score = 0.05 * (age - 58) + 0.9 * (glucose - 5.6) + 0.7 * (stays - 0.8) + 0.6 * smoker
        score += 0.5 * male - 0.2
        again = draw.random() < 1 / (1 + math.exp(-1.2 * score))
        values = [
            f"{name[0].upper()}{10000 + number}",
            "male" if male else "female",
            age,
            f"{bmi:.1f}",
            f"{glucose:.1f}" if draw.random() > 0.05 else "",
            stays,
            "yes" if smoker else "no",
            "yes" if again else "no",
        ]
        lines.append(",".join(map(str, values)))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for clinic in ROWS:
        (folder / f"{clinic}.csv").write_text(table(clinic))
