"""Words that are typical of the names and values of certain columns; `guess` uses them.

An entry is a word of a name; a star matches any letters, and a plus joins words that must all
occur. Names are compared in lower case without accents.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from fnmatch import fnmatchcase

PROTECTED = {
    "sex": """
        sex gender *geschlecht sexe sexo genre genero genere geslacht kon kjonn plec sukupuoli
        female male weiblich maennlich mannlich femme mujer riagendr sexvar 性别 性別 пол
    """,
    "race": """
        race ethnic* ethnie rasse raza etnia etnisch* herkunft hautfarbe caste skin+color
        skin+colour rac1p ridreth hispanic latino latina african+american indigenous aboriginal 民族
    """,
    "age": """
        age alter edad idade eta leeftijd alder wiek *lebensalter birth+year year+birth yob
        geburtsjahr birthyear agep ridageyr 年龄 年齢 возраст
    """,
    "religion": "religio* faith konfession confession denomination",
    "nationality": """
        nationalit* citizen* staatsangehorigkeit staatsangehoerigkeit nacionalidad nazionalita
        foreign* auslander auslaender *migrant migration* native+country birth+country
        country+birth country+origin place+birth birthplace nativity muttersprache mother+tongue
        native+language
    """,
    "disability": "disab* handicap* *behindert* *behinderung* discapacidad",
    "orientation": "sexual+orientation lgbt*",
    "marital status": """
        marital* marriage married familienstand civil+status etat+civil estado+civil stato+civile
    """,
}
"""Typical names of protected attributes, the most frequent kind first."""

THINGS = "car vehicle account house building property loan company firm device card policy machine"
"""Words that show that an age or sex is not that of a person."""

LABELS = {
    100: """
        label target outcome y zielvariable zielgroesse zielgrosse ziel cible ground+truth
        groundtruth
    """,
    70: "class klasse response",
    60: """
        readmi* rehosp* wiederaufnahme default* kreditausfall ausfall died dies death dead deceased
        mortal* surviv* expire* verstorben tod deces muerte fallecido deceduto income einkommen
        approv* granted churn* exited attrition kundigung kuendigung fraud* betrug diagnosis
        disease recid* reoffend* rearrest* hired admitted subscribed deposit convert* clicked
        malignan* relapse complication* sepsis dropout passed loan+status credit+risk bad+loan
        good+loan risk delinquen* diabetic cancer stroke pincp
    """,
    30: "status result event flag score prediction",
}
"""Typical names of labels, by score."""

AMOUNTS = (
    "charges charge price cost costs salary wage* revenue los amount value preis kosten gehalt"
)
"""Typical names of labels that are numbers."""

PAST = "previous prior past prev history hist num number count days last before baseline"
"""Words that suggest that a column is not the label."""

CLIENTS = {
    100: "client clients participant",
    80: """
        hospital *krankenhaus klinik* hopital clinic site bank branch filiale banque center centre
        zentrum institution institut* organisation organization org facility provider practice
        praxis school schule university universitat company firma firm store shop station lab
        laboratory plant factory office agency insurer standort party
    """,
    60: "user nutzer device phone sensor writer speaker subject customer kunde vehicle",
    50: """
        state bundesland region province provinz county country land district kanton canton city
        stadt municipality location area zone
    """,
    40: "tier cluster campus course module department dept division team",
}
"""Typical names of columns that identify clients (apart from SUFFIXES), by score."""

CLIENT_ENDS = """
    client hospital *krankenhaus klinik* clinic bank branch filiale school university institution
    organisation organization facility company user device
"""
"""Words that also count at the end of a longer name, unless it contains a word of NO_CLIENT."""

NO_CLIENT = "time days number num count in of per previous prior is has"
SUFFIXES = "id name code nr no key number"

IDENTIFIERS = """
    id ids uuid guid key nr nbr no num number index idx rowid row mrn ssn iban passport account
    record encounter patient *nummer *nr case fall pseudonym hash code
"""
PERSONS = """
    name names surname firstname lastname vorname nachname prenom nom apellido email mail phone
    telephone telefon mobile address adresse street strasse rue dob
"""
CODES = """
    code codes type typ kind category categorie kategorie cat class klasse group gruppe zip plz
    postal postcode icd drg cpt atc ward station department dept region state country city
    district month monat weekday wochentag dayofweek status source disposition job occupation
    beruf position place citizenship birth activity language sector branch product brand channel
    plan id specialty site hospital clinic bank
"""
"""Names of whole numbers that are codes, unless the name contains a word of COUNTS."""

COUNTS = """
    number num n count anzahl nb score days hours years months total sum amount rate size level age
    weight height
"""

POSITIVE = """
    yes y true t 1 ja oui si sim positive pos died dead deceased readmitted default defaulted
    approved accepted granted hired admitted good high churned exited fraud malignant present case
"""
NEGATIVE = """
    no n false f 0 -1 nein non nao negative neg alive survived none rejected denied refused bad low
    stayed benign absent control
"""
NOTHING = """
    unknown|unk|unbekannt|inconnu|inconnue|desconocido|missing|fehlt|none|nil|null|nan|na|n.a.|n.a
    n/a|n/d|nd|k.a.|k. a.|k.a|keine angabe|not available|not recorded|not known|not applicable|tbd
    <na>|#n/a|#n/v|#nv|#null!|#div/0!|#wert!|#value!|#ref!|.|..|...|-|--|---|*|?|??|/
"""
"""Texts that mean a missing value among numbers."""

SENTINELS = ("-9", "-99", "-999", "-9999", "99", "999", "9999", "99999")
"""Numbers that often mean a missing value."""


def name_words(name: str) -> tuple[str, ...]:
    """Return the words of a column's name, in lower case without accents.

    >>> name_words("PatientAge"), name_words("état_civil"), name_words("icd10-code")
    (('patient', 'age'), ('etat', 'civil'), ('icd', '10', 'code'))
    """
    plain = unicodedata.normalize("NFKD", name.replace("ß", "ss"))
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", plain)
    return tuple(re.findall(r"[^\W\d_]+|\d+", spaced.casefold()))


def called(name: str, words: str) -> bool:
    """Whether a name contains one of these words.

    >>> called("patient_age", "age alter"), called("stage", "age alter")
    (True, False)
    >>> called("MaritalStatus", "marital*"), called("Country of birth", "country+birth")
    (True, True)
    """
    own = name_words(name)
    whole = "".join(own)
    for entry in words.split():
        if entry == "y":  # only as the whole name
            found = own == ("y",)
        else:
            parts = entry.split("+")
            found = all(any(fnmatchcase(word, part) for word in own) for part in parts)
            found = found or whole == "".join(parts)
        if found:
            return True
    return False


def rank(name: str, table: Mapping[int, str]) -> int:
    """Return the highest score whose words a name contains; 0 for none."""
    return max((number for number, words in table.items() if called(name, words)), default=0)


def is_nothing(text: str) -> bool:
    """Whether a text means a missing value.

    >>> is_nothing("Keine Angabe"), is_nothing("V57")
    (True, False)
    """
    return text.casefold().strip() in [word.strip() for word in re.split(r"[|\n]", NOTHING)]
