//! Computes CPU and output rates from two consecutive listings.
//!
//! Pure: time is an argument. Start at [`Rates`].

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::state::Key;
use crate::remote::processes::Row;

/// The rates of one process; unknown until it was listed twice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rate {
    /// Percent of one CPU.
    pub(super) cpu_percent: Option<f64>,
    /// Bytes of output per second.
    pub(super) said: Option<u64>,
}

/// The values at the last listing.
#[derive(Debug, Default)]
pub(super) struct Rates {
    last: BTreeMap<Key, Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Instant,
    cpu_ms: Option<u64>,
    output_bytes: u64,
}

impl Rates {
    /// Compares with the last listing of the same server; removed processes are dropped.
    pub(super) fn update(&mut self, server: usize, rows: &[Row], at: Instant) -> Vec<Rate> {
        let (last, others) =
            std::mem::take(&mut self.last).into_iter().partition(|(key, _)| key.server == server);
        let last: BTreeMap<Key, Seen> = last;
        self.last = others;
        let rates = rows.iter().map(|row| {
            let now = Seen { at, cpu_ms: row.entry.cpu_ms, output_bytes: row.output_bytes() };
            let key = Key::of(server, row);
            let rate = last.get(&key).map_or_else(Rate::default, |before| rate(*before, now));
            self.last.insert(key, now);
            rate
        });
        rates.collect()
    }
}

#[allow(clippy::cast_precision_loss)] // Three digits are shown.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Neither negative nor larger than the output.
fn rate(before: Seen, now: Seen) -> Rate {
    let time = now.at.saturating_duration_since(before.at);
    if time < Duration::from_millis(1) {
        return Rate::default();
    }
    let cpu = before.cpu_ms.zip(now.cpu_ms);
    // CPU time decreases when a child exits.
    let cpu = cpu.map(|(before, now)| now.saturating_sub(before));
    let said = now.output_bytes.saturating_sub(before.output_bytes);
    Rate {
        cpu_percent: cpu.map(|ms| ms as f64 / time.as_secs_f64() / 10.0),
        said: Some((said as f64 / time.as_secs_f64()) as u64),
    }
}

#[cfg(test)]
mod tests {
    use remex_client::process::State;

    use super::*;
    use crate::remote::processes::tests::process;

    fn row(cpu_ms: Option<u64>, said: u64) -> Row {
        let mut row = process("s", "p", State::Running);
        (row.entry.cpu_ms, row.entry.produced.stdout) = (cpu_ms, said);
        row
    }

    #[test]
    fn a_rate_is_the_difference_of_two_listings() {
        let (start, mut rates) = (Instant::now(), Rates::default());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(rates.update(0, &[row(Some(100), 10)], at(0)), [Rate::default()]);
        let expected = Rate { cpu_percent: Some(150.0), said: Some(500) };
        assert_eq!(rates.update(0, &[row(Some(3_100), 1_010)], at(2_000)), [expected]);
        // A child that used CPU time has exited; then all have.
        let expected = Rate { cpu_percent: Some(0.0), said: Some(0) };
        assert_eq!(rates.update(0, &[row(Some(50), 1_010)], at(3_000)), [expected]);
        let expected = Rate { cpu_percent: None, said: Some(0) };
        assert_eq!(rates.update(0, &[row(None, 1_010)], at(4_000)), [expected]);
        assert_eq!(rates.update(0, &[row(None, 1_010)], at(4_000)), [Rate::default()]);
        assert_eq!(rates.update(0, &[], at(5_000)), []);
        assert_eq!(rates.update(0, &[row(Some(0), 0)], at(6_000)), [Rate::default()]);
    }
}
