-- A row for each adult: at the start of the first observation, and whether type 2 diabetes begins in it.
SELECT
    CAST(substr(CAST(o.observation_period_start_date AS TEXT), 1, 4) AS INTEGER) - p.year_of_birth AS age,
    CASE p.gender_concept_id WHEN 8507 THEN 'male' WHEN 8532 THEN 'female' END AS sex,
    (
        SELECT m.value_as_number FROM measurement m
        WHERE m.person_id = p.person_id AND m.measurement_concept_id = 3038553
            AND m.measurement_date <= o.observation_period_start_date
        ORDER BY m.measurement_date DESC, m.measurement_id DESC LIMIT 1
    ) AS bmi,
    CASE WHEN EXISTS (
        SELECT 1 FROM condition_occurrence c
        WHERE c.person_id = p.person_id AND c.condition_concept_id = 201826
            AND c.condition_start_date BETWEEN o.observation_period_start_date AND o.observation_period_end_date
    ) THEN 'yes' ELSE 'no' END AS diabetes
FROM person p
JOIN observation_period o ON o.observation_period_id = (
    SELECT f.observation_period_id FROM observation_period f WHERE f.person_id = p.person_id
    ORDER BY f.observation_period_start_date, f.observation_period_id LIMIT 1
)
WHERE CAST(substr(CAST(o.observation_period_start_date AS TEXT), 1, 4) AS INTEGER) - p.year_of_birth >= 18
ORDER BY p.person_id
