//! Times and sizes as people write them in flags and files: `500ms`, `24h`, `64MiB`.
//!
//! Pure. Formatted values can be parsed back.

use std::time::Duration;

use remex_base::clock::millis;

const TIMES: [(&str, u64); 5] =
    [("d", 24 * 3600 * 1000), ("h", 3600 * 1000), ("m", 60 * 1000), ("s", 1000), ("ms", 1)];

const SIZES: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Reads a time such as `500ms`, `10s`, `5m`, `24h` or `7d`.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(remex::units::parse_duration("5m"), Some(Duration::from_secs(300)));
/// assert_eq!(remex::units::parse_duration("5 minutes"), None);
/// ```
pub fn parse_duration(text: &str) -> Option<Duration> {
    let is_compact = !text.contains(' ');
    parse(text, &TIMES).filter(|_| is_compact).map(Duration::from_millis)
}

/// Writes a time with the largest unit up to hours that leaves a whole number; drops what is below a
/// millisecond.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(remex::units::show_duration(Duration::from_secs(24 * 3600)), "24h");
/// assert_eq!(remex::units::show_duration(Duration::from_millis(1500)), "1500ms");
/// ```
pub fn show_duration(time: Duration) -> String {
    let ms = millis(time);
    if ms == 0 { "0s".to_owned() } else { show(ms, &TIMES[1..]) }
}

/// Reads a number of bytes such as `64MiB`, `64 MiB` or `512B`.
///
/// ```
/// assert_eq!(remex::units::parse_size("64 MiB"), Some(64 << 20));
/// assert_eq!(remex::units::parse_size("64MB"), None);
/// ```
pub fn parse_size(text: &str) -> Option<u64> {
    parse(text, &SIZES)
}

/// Writes a number of bytes with the largest unit that leaves a whole number.
///
/// ```
/// assert_eq!(remex::units::show_size(64 << 20), "64MiB");
/// assert_eq!(remex::units::show_size(1000), "1000B");
/// ```
pub fn show_size(bytes: u64) -> String {
    if bytes == 0 { "0B".to_owned() } else { show(bytes, &SIZES) }
}

fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let split = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let (_, factor) = units.iter().find(|(word, _)| *word == unit.trim_start_matches(' '))?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

fn show(amount: u64, units: &[(&str, u64)]) -> String {
    let fitting = units.iter().find(|(_, factor)| amount.is_multiple_of(*factor));
    let (word, factor) = fitting.expect("the smallest unit is 1");
    format!("{}{word}", amount / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_units_can_be_parsed_back() {
        for ms in [0, 1, 999, 1000, 1001, 60_000, 3_600_000, 86_400_000, u64::MAX] {
            let time = Duration::from_millis(ms);
            assert_eq!(parse_duration(&show_duration(time)), Some(time), "{ms}");
        }
        for bytes in [0, 1, 1023, 1024, 1 << 20, (1 << 20) + 1, 1026 << 20, 1 << 40, u64::MAX] {
            assert_eq!(parse_size(&show_size(bytes)), Some(bytes), "{bytes}");
        }
    }

    #[test]
    fn values_without_a_unit_or_that_overflow_are_refused() {
        for text in ["", "5", "s", "-5s", "5 s s", "5S", "1.5s", "18446744073709551615d"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
        for text in ["", "5", "MiB", "5MB", "5mib", "18446744073709551615KiB"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
