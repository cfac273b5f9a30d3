//! Times in the zone of this machine, or of `TZ`.
//!
//! Start at [`Zone`].

use chrono::{Local, MappedLocalTime, SecondsFormat, TimeZone as _, Utc};

/// The zone in which times are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Zone {
    /// That of this machine.
    #[default]
    Local,
    Utc,
}

impl Zone {
    /// Formats milliseconds since 1970 in RFC 3339, such as `2026-11-15T14:01:02.123+01:00`.
    pub(crate) fn rfc3339(self, ms: i64) -> String {
        let formatted = match self {
            Self::Utc => {
                Utc.timestamp_millis_opt(ms).map(|time| time.to_rfc3339_opts(SecondsFormat::Millis, true))
            }
            Self::Local => {
                Local.timestamp_millis_opt(ms).map(|time| time.to_rfc3339_opts(SecondsFormat::Millis, false))
            }
        };
        known(formatted)
    }

    /// Formats milliseconds since 1970 for a column, such as `2026-11-15 14:01:02 +01:00`; in UTC `2026-11-15 13:01:02Z`.
    pub(crate) fn column(self, ms: i64) -> String {
        let formatted = match self {
            Self::Utc => Utc.timestamp_millis_opt(ms).map(|time| time.format("%F %TZ").to_string()),
            Self::Local => Local.timestamp_millis_opt(ms).map(|time| time.format("%F %T %:z").to_string()),
        };
        known(formatted)
    }
}

/// Returns a time; `-` for one that no calendar has, such as a broken time of a file.
fn known(formatted: MappedLocalTime<String>) -> String {
    formatted.single().unwrap_or_else(|| "-".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_name_their_zone() {
        assert_eq!(Zone::Utc.rfc3339(1_794_747_662_123), "2026-11-15T13:01:02.123Z");
        assert_eq!(Zone::Utc.column(1_794_747_662_123), "2026-11-15 13:01:02Z");
        assert_eq!(Zone::Utc.column(-1), "1969-12-31 23:59:59Z");
        assert_eq!(Zone::Local.rfc3339(i64::MAX), "-");
    }
}
