//! The figures of all rounds.

use std::collections::HashMap;

use crate::stats::median;

/// The name of the subject that is no server.
pub(crate) const BARE: &str = "bare";
pub(crate) const REMEX: &str = "remex";
/// The name of the subject that is compared with [`REMEX`] instead of [`BARE`].
pub(crate) const DURABLE: &str = "durable remex";

/// Every value by measurement, figure and subject, in the order of the rounds.
#[derive(Default)]
pub(crate) struct Results {
    values: HashMap<(String, String, String), Vec<f64>>,
}

impl Results {
    pub(crate) fn add(&mut self, measure: &str, subject: &str, figures: &[(&str, f64)]) {
        for (figure, value) in figures {
            self.values.entry(key(measure, figure, subject)).or_default().push(*value);
        }
    }

    pub(crate) fn rounds(&self, measure: &str, figure: &str, subject: &str) -> &[f64] {
        self.values.get(&key(measure, figure, subject)).map_or(&[], Vec::as_slice)
    }

    /// Returns `None` when no round succeeded.
    pub(crate) fn median(&self, measure: &str, figure: &str, subject: &str) -> Option<f64> {
        median(self.rounds(measure, figure, subject))
    }
}

fn key(measure: &str, figure: &str, subject: &str) -> (String, String, String) {
    (measure.to_owned(), figure.to_owned(), subject.to_owned())
}
