//! Parses and formats times, sizes and text for terminals.

use std::time::Duration;

pub(crate) use remex_base::clock::now_ms;
use remex_base::quote::shell_word;
use unicode_width::UnicodeWidthStr as _;

use crate::render::failure::InvalidArg;

/// Parses `500ms`, `10s`, `5m`, `24h` or `7d`.
pub(crate) fn duration(text: &str) -> Result<Duration, InvalidArg> {
    remex::units::parse_duration(text).ok_or_else(|| {
        InvalidArg::new(
            "it is not a number with a unit",
            "write a time such as `500ms`, `10s`, `5m`, `24h` or `7d`",
        )
    })
}

/// Formats a duration in at most six characters: `0.3s`, `42s`, `5m03s`, `3h20m`, `12d`.
pub(crate) fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{:.1}s", time.as_secs_f64().min(9.9)),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Formats a number of bytes in at most seven characters: `512B`, `1.5KiB`, `20MiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    #[allow(clippy::cast_precision_loss)] // One digit after the point is shown.
    let mut amount = bytes as f64 / 1024.0;
    let mut unit = 0;
    while amount >= 1000.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    if amount < 9.95 { format!("{amount:.1}{}", UNITS[unit]) } else { format!("{amount:.0}{}", UNITS[unit]) }
}

/// Formats a number of bytes for a sentence: `512 bytes`, `59 MiB`.
pub(crate) fn amount(bytes: u64) -> String {
    match bytes {
        1 => "1 byte".to_owned(),
        0..1024 => format!("{bytes} bytes"),
        _ => {
            let size = size(bytes);
            let unit = size.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(size.len());
            format!("{} {}", &size[..unit], &size[unit..])
        }
    }
}

/// Formats a duration for a sentence: `0.3 s`, `42 s`, `5 min 3 s`, `2 h`, `3 d 4 h`.
pub(crate) fn span(time: Duration) -> String {
    let parts = |large, large_unit, small, small_unit| match small {
        0 => format!("{large} {large_unit}"),
        _ => format!("{large} {large_unit} {small} {small_unit}"),
    };
    match time.as_secs() {
        0..10 => format!("{:.1} s", time.as_secs_f64().clamp(0.1, 9.9)),
        seconds @ 10..60 => format!("{seconds} s"),
        seconds @ 60..3600 => parts(seconds / 60, "min", seconds % 60, "s"),
        seconds @ 3600..86_400 => parts(seconds / 3600, "h", seconds / 60 % 60, "min"),
        seconds => parts(seconds / 86_400, "d", seconds / 3600 % 24, "h"),
    }
}

/// Formats a command line, quoted for a shell, with control characters replaced.
pub(crate) fn line(argv: &[String]) -> String {
    argv.iter().map(|word| shell_word(&plain(word)).into_owned()).collect::<Vec<_>>().join(" ")
}

/// Returns the width of a text in terminal columns: East Asian characters and emoji take two.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Truncates a text to this many columns, ending with `…`.
pub(crate) fn within(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    beginning(text, columns.saturating_sub(1)).to_owned() + "…"
}

/// Returns the longest prefix that fits into this many columns.
pub(crate) fn beginning(text: &str, columns: usize) -> &str {
    // Measured as a whole, because combining characters change the one before.
    let fits = |end: &usize| width(&text[..*end]) <= columns;
    let ends = text.char_indices().map(|(start, letter)| start + letter.len_utf8());
    &text[..ends.take_while(fits).last().unwrap_or_default()]
}

/// Pads a text with spaces to this many columns.
pub(crate) fn padded(text: &str, columns: usize) -> String {
    let missing = columns.saturating_sub(width(text));
    format!("{text}{}", " ".repeat(missing))
}

/// Replaces control characters, so that untrusted text cannot move the cursor, reorder characters or hide them.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|letter| if is_control(letter) { '\u{fffd}' } else { letter }).collect()
}

/// Returns whether a character controls the terminal instead of being displayed.
pub(crate) fn is_control(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_short() {
        for (ms, text) in
            [(300, "0.3s"), (9_999, "9.9s"), (42_000, "42s"), (303_000, "5m03s"), (12_000_000, "3h20m")]
        {
            assert_eq!(age(Duration::from_millis(ms)), text);
        }
        for (bytes, text) in [
            (512, "512B"),
            (1536, "1.5KiB"),
            (20 << 20, "20MiB"),
            (1023 << 10, "1.0MiB"),
            (u64::MAX, "16EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn amounts_and_spans_are_words_of_a_sentence() {
        for (bytes, text) in [(1, "1 byte"), (512, "512 bytes"), (1536, "1.5 KiB"), (59 << 20, "59 MiB")] {
            assert_eq!(amount(bytes), text);
        }
        for (ms, text) in [
            (40, "0.1 s"),
            (4_300, "4.3 s"),
            (42_900, "42 s"),
            (303_000, "5 min 3 s"),
            (3_600_000, "1 h"),
            (273_600_000, "3 d 4 h"),
        ] {
            assert_eq!(span(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn wide_characters_take_two_columns() {
        for (text, columns) in [("build", 5), ("構築", 4), ("🚀", 2), ("e\u{301}", 1), ("", 0)] {
            assert_eq!(width(text), columns, "{text}");
            assert_eq!(width(&padded(text, 8)), 8, "{text}");
        }
        assert_eq!(within("構築build", 9), "構築build");
        assert_eq!(within("構築build", 8), "構築bui…");
        assert_eq!(within("構築build", 4), "構…");
        assert_eq!(within("構築build", 1), "…");
    }

    #[test]
    fn a_duration_needs_a_unit() {
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        for wrong in ["", "5", "m", "5 m", "-1s", "99999999999999999999s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn words_are_quoted_and_control_characters_escaped() {
        let argv = ["sh", "-c", "echo 'hi'", "\u{1b}[2J", "\u{202e}x", ""].map(str::to_owned);
        assert_eq!(line(&argv), r"sh -c 'echo '\''hi'\''' '�[2J' '�x' ''");
    }
}
