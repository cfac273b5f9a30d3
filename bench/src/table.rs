//! Turns figures into a table for people and into JSON for programs.

use serde_json::{Value, json};

use crate::{
    measure::{Base, Goal, Measure, Row, Unit},
    results::{BARE, DURABLE, REMEX, Results},
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
        let of_subjects = subjects.iter().map(|subject| {
            let Verdict { value, ratio, reached } = Verdict::on(measure, row, subject, results);
            let rounds = results.rounds(measure.name, row.figure, subject);
            let verdict = json!({"value": value, "rounds": rounds, "ratio": ratio, "reached": reached});
            ((*subject).to_owned(), verdict)
        });
        json!({
            "measure": measure.name,
            "what": row.what,
            "unit": suffix(row.unit).trim(),
            "goal": goals(row, subjects),
            "bare": bare(measure, row, results),
            "subjects": Value::Object(of_subjects.collect()),
        })
    })
    .collect()
}

fn header(subjects: &[&str]) -> Vec<String> {
    let mut cells = vec!["what", "goal", "bare"];
    for subject in subjects {
        let ratio = if *subject == DURABLE { "over remex" } else { "ratio" };
        cells.extend([*subject, ratio, "reached"]);
    }
    cells.into_iter().map(str::to_owned).collect()
}

fn cells(measure: &Measure, row: &Row, subjects: &[&str], results: &Results) -> Vec<String> {
    let mut cells =
        vec![row.what.to_owned(), goals(row, subjects), show(bare(measure, row, results), row.unit)];
    for subject in subjects {
        let Verdict { value, ratio, reached } = Verdict::on(measure, row, subject, results);
        cells.push(show(value, row.unit));
        cells.push(ratio.map_or(MISSING.to_owned(), |ratio| format!("{ratio:.2}")));
        cells.push(match reached {
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

/// The figure of one subject, what it is beside that of another, and whether it reaches its goal.
///
/// Each is `None` where a figure or a goal is missing.
struct Verdict {
    value: Option<f64>,
    ratio: Option<f64>,
    reached: Option<bool>,
}

impl Verdict {
    fn on(measure: &Measure, row: &Row, subject: &str, results: &Results) -> Self {
        let value = results.median(measure.name, row.figure, subject);
        let (base, goal) = match (subject, row.goal) {
            (DURABLE, goal) => {
                let is_absolute = matches!(goal, Goal::AtMost(_) | Goal::Yes);
                let goal = if is_absolute { goal } else { row.durable };
                (results.median(measure.name, row.figure, REMEX), goal)
            }
            (_, goal) => match row.base {
                Base::Rust(figure) => (results.median(measure.name, figure, subject), goal),
                Base::Bare(_) | Base::None => (bare(measure, row, results), goal),
            },
        };
        let ratio = value.zip(base.filter(|base| *base != 0.0)).map(|(value, base)| value / base);
        let reached = match goal {
            Goal::None => None,
            Goal::RatioAtMost(limit) => ratio.map(|ratio| ratio <= limit),
            Goal::RatioAtLeast(limit) => ratio.map(|ratio| ratio >= limit),
            Goal::AtMost(limit) => value.map(|value| value <= limit),
            Goal::Yes => value.map(|value| value == 1.0),
        };
        Self { value, ratio, reached }
    }
}

fn bare(measure: &Measure, row: &Row, results: &Results) -> Option<f64> {
    match row.base {
        Base::Bare(figure) => results.median(measure.name, figure, BARE),
        Base::Rust(_) | Base::None => None,
    }
}

/// Returns the goal of a line, and that of a durable server if there is one.
fn goals(row: &Row, subjects: &[&str]) -> String {
    let durable = goal(row.durable, row.unit, REMEX).filter(|_| subjects.contains(&DURABLE));
    let base = if let Base::Rust(_) = row.base { "Rust" } else { BARE };
    let goals: Vec<_> = goal(row.goal, row.unit, base).into_iter().chain(durable).collect();
    if goals.is_empty() { MISSING.to_owned() } else { goals.join(", ") }
}

fn goal(goal: Goal, unit: Unit, base: &str) -> Option<String> {
    match goal {
        Goal::None => None,
        Goal::RatioAtMost(limit) => Some(format!("≤ {limit} × {base}")),
        Goal::RatioAtLeast(limit) => Some(format!("≥ {limit} × {base}")),
        Goal::AtMost(limit) => Some(format!("≤ {limit}{}", suffix(unit))),
        Goal::Yes => Some("yes".to_owned()),
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
                base: Base::Bare("rate"),
                goal: Goal::RatioAtLeast(0.3),
                durable: Goal::RatioAtLeast(0.9),
            },
            Row {
                what: "ends",
                unit: Unit::YesOrNo,
                figure: "ends",
                base: Base::None,
                goal: Goal::Yes,
                durable: Goal::None,
            },
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

    #[test]
    fn a_durable_server_is_compared_with_one_that_is_not() {
        let mut results = Results::default();
        results.add("m", REMEX, &[("rate", 50.0), ("ends", 1.0)]);
        results.add("m", DURABLE, &[("rate", 40.0), ("ends", 1.0)]);
        results.add("m", BARE, &[("rate", 100.0)]);
        let expected = "\
| what  | goal                        |      bare |    remex | ratio | reached | durable remex | over remex | reached |
| ----- | --------------------------- | --------- | -------- | ----- | ------- | ------------- | ---------- | ------- |
| speed | ≥ 0.3 × bare, ≥ 0.9 × remex | 100 MiB/s | 50 MiB/s |  0.50 |     yes |      40 MiB/s |       0.80 |      NO |
| ends  | yes                         |         – |      yes |     – |     yes |           yes |       1.00 |     yes |
";
        assert_eq!(markdown(&[&MEASURE], &[REMEX, DURABLE], &results), expected);
    }
}
