"""Columns of well-known surveys whose short names mean nothing to an outsider, and their codes.

A survey is recognised by several of its columns, so that a column called DIS or MAR in another
table is not mistaken for one of them. The names and codes are those of the surveys' published data
dictionaries: the American Community Survey (public use microdata sample), the National Health and
Nutrition Examination Survey, and the Behavioral Risk Factor Surveillance System.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

RECOGNISED = 3  # columns of a survey that have to be there


@dataclass(frozen=True)
class Known:
    """A column of a survey.

    `kind` is a kind of `name_hints.PROTECTED`, or empty. `codes` are the meanings of its values
    where all are known. `numbered`: the numbers are names of categories, not amounts.
    """

    meaning: str
    kind: str = ""
    codes: Mapping[str, str] = field(default_factory=dict)
    numbered: bool = True


_YES_NO = {"1": "yes", "2": "no"}
_SEX = {"1": "male", "2": "female"}

_CENSUS = {
    "AGEP": Known("age", "age", numbered=False),
    "SEX": Known("sex", "sex", _SEX),
    "RAC1P": Known(
        "race",
        "race",
        {
            "1": "White",
            "2": "Black or African American",
            "3": "American Indian",
            "4": "Alaska Native",
            "5": "American Indian or Alaska Native, tribe not specified or several",
            "6": "Asian",
            "7": "Native Hawaiian or other Pacific Islander",
            "8": "another race",
            "9": "two or more races",
        },
    ),
    "RAC2P": Known("race, in detail", "race"),
    "RAC3P": Known("race, in detail", "race"),
    "HISP": Known("Hispanic origin", "race"),
    "MAR": Known(
        "marital status",
        "marital status",
        {
            "1": "married",
            "2": "widowed",
            "3": "divorced",
            "4": "separated",
            "5": "never married",
        },
    ),
    "CIT": Known(
        "citizenship",
        "nationality",
        {
            "1": "born in the United States",
            "2": "born in a territory of the United States",
            "3": "born abroad of American parents",
            "4": "naturalised citizen",
            "5": "not a citizen",
        },
    ),
    "NATIVITY": Known("nativity", "nationality", {"1": "native", "2": "foreign born"}),
    "POBP": Known("place of birth", "nationality"),
    "WAOB": Known("world area of birth", "nationality"),
    "ANC1P": Known("ancestry", "nationality"),
    "ANC2P": Known("second ancestry", "nationality"),
    "DIS": Known("disability", "disability", {"1": "with a disability", "2": "without"}),
    "DEAR": Known("hearing difficulty", "disability", _YES_NO),
    "DEYE": Known("vision difficulty", "disability", _YES_NO),
    "DREM": Known("cognitive difficulty", "disability", _YES_NO),
    "DPHY": Known("ambulatory difficulty", "disability", _YES_NO),
    "DDRS": Known("self-care difficulty", "disability", _YES_NO),
    "DOUT": Known("independent living difficulty", "disability", _YES_NO),
    "COW": Known("class of worker"),
    "OCCP": Known("occupation"),
    "INDP": Known("industry"),
    "RELP": Known("relationship to the reference person"),
    "RELSHIPP": Known("relationship to the reference person"),
    "ESP": Known("employment status of parents"),
    "ESR": Known("employment status"),
    "MIG": Known("mobility status"),
    "MIL": Known("military service"),
    "ANC": Known("how ancestry was recorded"),
    "LANP": Known("language spoken at home"),
    "JWTR": Known("means of transportation to work"),
    "JWTRNS": Known("means of transportation to work"),
    "PUMA": Known("area"),
    "POWPUMA": Known("area of work"),
    "ST": Known("state"),
    "SCHL": Known("education, in ascending order", numbered=False),
    "WKHP": Known("hours worked per week", numbered=False),
    "PINCP": Known("income", numbered=False),
    "JWMNP": Known("minutes of travel to work", numbered=False),
    "POVPIP": Known("income as a share of the poverty level", numbered=False),
}
_EXAMINATION = {
    "RIAGENDR": Known("sex", "sex", _SEX),
    "RIDAGEYR": Known("age", "age", numbered=False),
    "RIDRETH1": Known(
        "race or Hispanic origin",
        "race",
        {
            "1": "Mexican American",
            "2": "other Hispanic",
            "3": "non-Hispanic White",
            "4": "non-Hispanic Black",
            "5": "another race or several",
        },
    ),
    "RIDRETH3": Known(
        "race or Hispanic origin",
        "race",
        {
            "1": "Mexican American",
            "2": "other Hispanic",
            "3": "non-Hispanic White",
            "4": "non-Hispanic Black",
            "6": "non-Hispanic Asian",
            "7": "another race or several",
        },
    ),
    "DMDMARTL": Known("marital status", "marital status"),
    "DMDCITZN": Known("citizenship", "nationality"),
    "DMDBORN4": Known("country of birth", "nationality"),
    "DMDEDUC2": Known("education, in ascending order", numbered=False),
    "INDFMPIR": Known("income as a share of the poverty level", numbered=False),
    "BMXBMI": Known("body mass index", numbered=False),
}
_RISK_FACTORS = {
    "SEXVAR": Known("sex", "sex", _SEX),
    "_SEX": Known("sex", "sex", _SEX),
    "_AGEG5YR": Known("age in steps of five years", "age", numbered=False),
    "_AGE80": Known("age", "age", numbered=False),
    "_RACE": Known("race or Hispanic origin", "race"),
    "_IMPRACE": Known("race or Hispanic origin", "race"),
    "MARITAL": Known("marital status", "marital status"),
    "VETERAN3": Known("veteran", codes=_YES_NO),
    "EDUCA": Known("education, in ascending order", numbered=False),
    "GENHLTH": Known("general health, from excellent to poor", numbered=False),
    "_STATE": Known("state"),
}
SURVEYS: dict[str, Mapping[str, Known]] = {
    "the American Community Survey": _CENSUS,
    "the National Health and Nutrition Examination Survey": _EXAMINATION,
    "the Behavioral Risk Factor Surveillance System": _RISK_FACTORS,
}


def recognised(names: Iterable[str]) -> tuple[str, Mapping[str, Known]]:
    """Return the survey that columns of these names come from, and those of its columns.

    >>> survey, found = recognised(["AGEP", "SEX", "RAC1P", "weight"])
    >>> survey, list(found), found["SEX"].codes
    ('the American Community Survey', ['AGEP', 'SEX', 'RAC1P'], {'1': 'male', '2': 'female'})
    >>> recognised(["MAR", "DIS", "weight"])
    ('', {})
    """
    there = list(names)
    best: tuple[str, Mapping[str, Known]] = ("", {})
    for survey, columns in SURVEYS.items():
        found = {name: columns[name] for name in there if name in columns}
        if len(found) >= max(RECOGNISED, len(best[1]) + 1):
            best = survey, found
    return best


def codes_text(known: Known, values: Iterable[str]) -> str:
    """The meanings of a column's values; empty if the values are not exactly the survey's.

    Values of which some are missing may have been merged and numbered again.

    >>> codes_text(Known("sex", "sex", _SEX), ["2", "1"])
    '1 = male, 2 = female'
    """
    if not known.codes or set(values) != set(known.codes):
        return ""
    return ", ".join(f"{code} = {text}" for code, text in known.codes.items())
