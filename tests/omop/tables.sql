-- The tables and columns of the OMOP common data model, version 5.4, that the cohort reads; of SQLite and PostgreSQL.
CREATE TABLE person (
    person_id INTEGER PRIMARY KEY, gender_concept_id INTEGER NOT NULL, year_of_birth INTEGER NOT NULL
);
CREATE TABLE observation_period (
    observation_period_id INTEGER PRIMARY KEY, person_id INTEGER NOT NULL,
    observation_period_start_date DATE NOT NULL, observation_period_end_date DATE NOT NULL
);
CREATE TABLE condition_occurrence (
    condition_occurrence_id INTEGER PRIMARY KEY, person_id INTEGER NOT NULL,
    condition_concept_id INTEGER NOT NULL, condition_start_date DATE NOT NULL
);
CREATE TABLE measurement (
    measurement_id INTEGER PRIMARY KEY, person_id INTEGER NOT NULL,
    measurement_concept_id INTEGER NOT NULL, measurement_date DATE NOT NULL, value_as_number NUMERIC
);
