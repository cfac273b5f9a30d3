//! Parses times: `5m` ago, `14:30`, `2026-11-15T14:30:00Z`.
//!
//! Start at [`moment`].

use time::{Date, Duration, Month, OffsetDateTime, PrimitiveDateTime, Time, UtcOffset};

use crate::render::{failure::InvalidArg, text::duration};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Parses a time, and returns it in milliseconds since 1970.
///
/// A time without a zone is in the local zone. Must be called before other threads exist: only then can the local zone
/// be read safely.
pub(crate) fn moment(text: &str) -> Result<u64, InvalidArg> {
    let offset = |at| UtcOffset::local_offset_at(at).unwrap_or(UtcOffset::UTC);
    let moment = parse(text, OffsetDateTime::now_utc(), offset).ok_or_else(|| {
        InvalidArg::new(
            "it is not a time",
            "write how long ago, such as `30s` or `5m`, a time of day such as `14:30`, or a date and time such as \
             `2026-11-15T14:30:00Z`",
        )
    })?;
    Ok(u64::try_from(moment.unix_timestamp_nanos() / 1_000_000).unwrap_or_default())
}

/// The end of a range of times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Until {
    at_ms: u64,
    /// Whether it is a time of day, of whichever day.
    is_time_of_day: bool,
}

impl Until {
    /// Returns the end of a range that begins at `since`, in milliseconds since 1970.
    ///
    /// A time of day is the last one, unless that was before the range: then it is the next.
    pub(crate) fn after(self, since: Option<u64>) -> u64 {
        let is_before = since.is_some_and(|since| self.at_ms < since);
        if self.is_time_of_day && is_before { self.at_ms + DAY_MS } else { self.at_ms }
    }
}

/// Parses the end of a range of times, as [`moment`].
pub(crate) fn until(text: &str) -> Result<Until, InvalidArg> {
    Ok(Until { at_ms: moment(text)?, is_time_of_day: time_of_day(text).is_some() })
}

/// Parses a time that has passed; a day for clocks that differ.
pub(crate) fn past_moment(text: &str) -> Result<u64, InvalidArg> {
    let latest = OffsetDateTime::now_utc() + Duration::DAY;
    moment(text).and_then(|moment| {
        if i128::from(moment) > latest.unix_timestamp_nanos() / 1_000_000 {
            return Err(InvalidArg::new("it is in the future", "check the date"));
        }
        Ok(moment)
    })
}

fn parse(
    text: &str,
    now: OffsetDateTime,
    offset: impl Fn(OffsetDateTime) -> UtcOffset,
) -> Option<OffsetDateTime> {
    if let Ok(ago) = duration(text) {
        return now.checked_sub(Duration::try_from(ago).ok()?);
    }
    let local = |at: PrimitiveDateTime| {
        // The offset depends on the time itself; near a daylight saving change this is a guess.
        let guess = at.assume_offset(offset(at.assume_utc()));
        at.assume_offset(offset(guess))
    };
    if let Some(time) = time_of_day(text) {
        let today = now.to_offset(offset(now)).date();
        let moment = local(PrimitiveDateTime::new(today, time));
        // The most recent time that the clock showed this.
        return if moment <= now {
            Some(moment)
        } else {
            Some(local(PrimitiveDateTime::new(today.previous_day()?, time)))
        };
    }
    let (date, rest) = text.split_at_checked(10)?;
    let date = calendar_date(date)?;
    let Some(rest) = rest.strip_prefix(['T', 't', ' ']) else {
        return rest.is_empty().then(|| local(PrimitiveDateTime::new(date, Time::MIDNIGHT)));
    };
    let zone = rest.find(['Z', 'z', '+', '-']).unwrap_or(rest.len());
    let (time, zone) = rest.split_at(zone);
    let at = PrimitiveDateTime::new(date, time_of_day(time)?);
    match zone {
        "" => Some(local(at)),
        "Z" | "z" => Some(at.assume_utc()),
        _ => Some(at.assume_offset(zone_offset(zone)?)),
    }
}

/// Reads `2026-11-15`.
fn calendar_date(text: &str) -> Option<Date> {
    let mut parts = text.split('-');
    let year = number(parts.next()?, 4)?;
    let month = Month::try_from(u8::try_from(number(parts.next()?, 2)?).ok()?).ok()?;
    let day = u8::try_from(number(parts.next()?, 2)?).ok()?;
    if parts.next().is_some() {
        return None;
    }
    Date::from_calendar_date(i32::try_from(year).ok()?, month, day).ok()
}

/// Reads `14:30`, `14:30:05` or `14:30:05.123`.
fn time_of_day(text: &str) -> Option<Time> {
    let (clock, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut parts = clock.split(':');
    let mut part = || parts.next().map(|part| number(part, 2).and_then(|part| u8::try_from(part).ok()));
    let (hour, minute, second) = (part()??, part()??, part().unwrap_or(Some(0))?);
    let is_exact = text.contains('.');
    if parts.next().is_some() || (is_exact && (fraction.is_empty() || fraction.len() > 9)) {
        return None;
    }
    let nanos = if is_exact { number(&format!("{fraction:0<9}"), 9)? } else { 0 };
    Time::from_hms_nano(hour, minute, second, nanos).ok()
}

/// Reads `+01:00` or `-0530`.
fn zone_offset(text: &str) -> Option<UtcOffset> {
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let digits = text.get(1..)?.replace(':', "");
    let hours = i8::try_from(number(digits.get(..2)?, 2)?).ok()?;
    let minutes = i8::try_from(number(digits.get(2..)?, 2)?).ok()?;
    UtcOffset::from_hms(sign * hours, sign * minutes, 0).ok()
}

/// Reads exactly that many digits.
fn number(text: &str, digits: usize) -> Option<u32> {
    let fits = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    fits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::local_time::Zone;

    /// Reads a moment on 2026-11-15 at 13:01:02 UTC, on a machine that is an hour ahead.
    fn read(text: &str) -> Option<String> {
        let now = OffsetDateTime::from_unix_timestamp(1_794_747_662).unwrap();
        let moment = parse(text, now, |_| UtcOffset::from_hms(1, 0, 0).unwrap())?;
        Some(Zone::Utc.rfc3339(i64::try_from(moment.unix_timestamp_nanos() / 1_000_000).unwrap()))
    }

    #[test]
    fn a_time_of_day_before_the_range_is_that_of_the_next_day() {
        let until = |is_time_of_day| Until { at_ms: 5_000, is_time_of_day };
        assert_eq!(until(true).after(None), 5_000);
        assert_eq!(until(true).after(Some(4_000)), 5_000);
        assert_eq!(until(true).after(Some(6_000)), 5_000 + DAY_MS);
        assert_eq!(until(false).after(Some(6_000)), 5_000);
        assert!(super::until("12:00").unwrap().is_time_of_day && !super::until("5m").unwrap().is_time_of_day);
    }

    #[test]
    fn moments_are_times_ago_clock_times_and_dates() {
        for (text, moment) in [
            ("1m", "2026-11-15T13:00:02.000Z"),
            ("14:00", "2026-11-15T13:00:00.000Z"),
            ("14:01:01.5", "2026-11-15T13:01:01.500Z"),
            // A time later today is in the future, so it means yesterday.
            ("14:30", "2026-11-14T13:30:00.000Z"),
            ("2026-11-15", "2026-11-14T23:00:00.000Z"),
            ("2026-11-15 09:30", "2026-11-15T08:30:00.000Z"),
            ("2026-11-15T09:30:00Z", "2026-11-15T09:30:00.000Z"),
            ("2026-11-15T09:30:00.123Z", "2026-11-15T09:30:00.123Z"),
            ("2026-11-15T09:30:00+02:00", "2026-11-15T07:30:00.000Z"),
            ("2026-11-15T09:30:00-05:30", "2026-11-15T15:00:00.000Z"),
        ] {
            assert_eq!(read(text).as_deref(), Some(moment), "{text}");
        }
        for wrong in [
            "",
            "5",
            "25:00",
            "12:60",
            "9:30",
            "12",
            "2026-02-30",
            "2026-11-15T",
            "2026-11-15T09",
            "2026-11-15x",
            "2026-11-15T09:30:00+2",
            "ü026-11-15",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
