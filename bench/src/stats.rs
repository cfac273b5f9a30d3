//! Order statistics; a mean would let one interruption speak for all.

use std::time::Duration;

/// The duration that `percent` of all are not above, in microseconds.
pub(crate) fn percentile_us(durations: &mut [Duration], percent: usize) -> f64 {
    durations.sort_unstable();
    let rank = (durations.len() * percent).div_ceil(100).max(1);
    durations[rank - 1].as_secs_f64() * 1e6
}

/// The middle of the values, or the mean of the two middle ones; `None` when there are none.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        len if len % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let mut durations: Vec<_> = (1..=200).rev().map(Duration::from_micros).collect();
        let p50 = percentile_us(&mut durations, 50);
        let p99 = percentile_us(&mut durations, 99);
        assert_eq!((p50.round(), p99.round()), (100.0, 198.0));
    }

    #[test]
    fn the_median_ignores_the_order_and_the_extremes() {
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 90.0]), Some(3.0));
        assert_eq!(median(&[]), None);
    }
}
