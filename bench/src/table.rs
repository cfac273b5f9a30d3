//! Turns figures into a table for people and into JSON for programs.

use serde_json::{Value, json};

use crate::{
    measure::{Goal, Measure, Row, Unit},
    results::{BARE, Results},
};

const MISSING: &str = "–";

/// Returns the table in Markdown, one line for each figure.
pub(crate) fn markdown(measures: &[&Measure], subjects: &[&str], results: &Results) -> String {
    let mut lines = vec![header(subjects)];
    for measure in measures {
        lines.extend(measure.rows.iter().map(|row| cells(measure, row, subjects, results)));
    }
    let widths: Vec<_> = (0..lines[0].len())
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    lines.insert(1, widths.iter().map(|width| "-".repeat(*width)).collect());
    lines.iter().map(|line| format!("| {} |\n", align(line, &widths))).collect()
}

/// Returns the same figures, with the values of every round.
pub(crate) fn json(measures: &[&Measure], subjects: &[&str], results: &Results) -> Value {
    let rows = measures.iter().flat_map(|measure| measure.rows.iter().map(move |row| (measure, row)));
    rows.map(|(measure, row)| {
        let bare = row.bare.and_then(|figure| results.median(measure.name, figure, BARE));
        let of_subjects = subjects.iter().map(|subject| {
            let value = results.median(measure.name, row.figure, subject);
            let verdict = json!({
                "value": value,
                "rounds": results.rounds(measure.name, row.figure, subject),
                "ratio": ratio(value, bare),
                "reached": reached(row.goal, value, bare),
            });
            ((*subject).to_owned(), verdict)
        });
        json!({
            "measure": measure.name,
            "what": row.what,
            "unit": suffix(row.unit).trim(),
            "goal": goal(row),
            "bare": bare,
            "subjects": Value::Object(of_subjects.collect()),
        })
    })
    .collect()
}

fn header(subjects: &[&str]) -> Vec<String> {
    let mut cells = vec!["what", "goal", "bare"];
    for subject in subjects {
        cells.extend([subject, "ratio", "reached"]);
    }
    cells.into_iter().map(str::to_owned).collect()
}

fn cells(measure: &Measure, row: &Row, subjects: &[&str], results: &Results) -> Vec<String> {
    let bare = row.bare.and_then(|figure| results.median(measure.name, figure, BARE));
    let mut cells = vec![row.what.to_owned(), goal(row), show(bare, row.unit)];
    for subject in subjects {
        let value = results.median(measure.name, row.figure, subject);
        cells.push(show(value, row.unit));
        cells.push(ratio(value, bare).map_or(MISSING.to_owned(), |ratio| format!("{ratio:.2}")));
        cells.push(match reached(row.goal, value, bare) {
            Some(true) => "yes".to_owned(),
            Some(false) => "NO".to_owned(),
            None => MISSING.to_owned(),
        });
    }
    cells
}

/// Text to the left, figures to the right.
fn align(cells: &[String], widths: &[usize]) -> String {
    let padded = cells.iter().zip(widths).enumerate().map(|(column, (cell, &width))| match column {
        0 | 1 => format!("{cell:<width$}"),
        _ => format!("{cell:>width$}"),
    });
    padded.collect::<Vec<_>>().join(" | ")
}

fn ratio(value: Option<f64>, bare: Option<f64>) -> Option<f64> {
    Some(value? / bare?)
}

/// Returns `None` where there is no goal or no figure.
fn reached(goal: Goal, value: Option<f64>, bare: Option<f64>) -> Option<bool> {
    match goal {
        Goal::None => None,
        Goal::RatioAtMost(limit) => Some(ratio(value, bare)? <= limit),
        Goal::RatioAtLeast(limit) => Some(ratio(value, bare)? >= limit),
        Goal::AtMost(limit) => Some(value? <= limit),
        Goal::Yes => Some(value? == 1.0),
    }
}

fn goal(row: &Row) -> String {
    match row.goal {
        Goal::None => MISSING.to_owned(),
        Goal::RatioAtMost(limit) => format!("≤ {limit} × bare"),
        Goal::RatioAtLeast(limit) => format!("≥ {limit} × bare"),
        Goal::AtMost(limit) => format!("≤ {limit}{}", suffix(row.unit)),
        Goal::Yes => "yes".to_owned(),
    }
}

fn show(value: Option<f64>, unit: Unit) -> String {
    let Some(value) = value else { return MISSING.to_owned() };
    let suffix = suffix(unit);
    match unit {
        Unit::YesOrNo if value == 1.0 => "yes".to_owned(),
        Unit::YesOrNo => "no".to_owned(),
        // A figure this small would lose half of itself.
        Unit::Microseconds if value < 10.0 => format!("{value:.1}{suffix}"),
        Unit::Microseconds | Unit::PerSecond | Unit::MibPerSecond => format!("{value:.0}{suffix}"),
        Unit::Milliseconds | Unit::Kib | Unit::Mib => format!("{value:.1}{suffix}"),
        Unit::Seconds | Unit::Count => format!("{value:.2}{suffix}"),
    }
}

fn suffix(unit: Unit) -> &'static str {
    match unit {
        Unit::Microseconds => " µs",
        Unit::Milliseconds => " ms",
        Unit::Seconds => " s",
        Unit::PerSecond => " /s",
        Unit::MibPerSecond => " MiB/s",
        Unit::Kib => " KiB",
        Unit::Mib => " MiB",
        Unit::Count | Unit::YesOrNo => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURE: Measure = Measure {
        name: "m",
        server: |_, _| Ok(Vec::new()),
        bare: None,
        rows: &[
            Row {
                what: "speed",
                unit: Unit::MibPerSecond,
                figure: "rate",
                bare: Some("rate"),
                goal: Goal::RatioAtLeast(0.3),
            },
            Row { what: "ends", unit: Unit::YesOrNo, figure: "ends", bare: None, goal: Goal::Yes },
        ],
    };

    #[test]
    fn the_table_shows_medians_ratios_and_what_is_missing() {
        let mut results = Results::default();
        for rate in [90.0, 40.0, 50.0] {
            results.add("m", "remex", &[("rate", rate)]);
            results.add("m", BARE, &[("rate", 2.0 * rate)]);
        }
        results.add("m", "other", &[("rate", 10.0), ("ends", 0.0)]);
        let expected = "\
| what  | goal         |      bare |    remex | ratio | reached |    other | ratio | reached |
| ----- | ------------ | --------- | -------- | ----- | ------- | -------- | ----- | ------- |
| speed | ≥ 0.3 × bare | 100 MiB/s | 50 MiB/s |  0.50 |     yes | 10 MiB/s |  0.10 |      NO |
| ends  | yes          |         – |        – |     – |       – |       no |     – |      NO |
";
        assert_eq!(markdown(&[&MEASURE], &["remex", "other"], &results), expected);
    }
}
