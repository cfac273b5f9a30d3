//! Limits of `remex run`, as people type them: `memory=512M`, `cpu=10s`.

use std::num::NonZeroU64;

use remex::units::{parse_duration, parse_size};
use remex_client::process::ResourceLimits;

use crate::render::failure::{Failure, InvalidArg};

/// The names, each with what it limits.
pub(super) const NAMES: [(&str, &str); 5] = [
    ("cpu", "CPU time of each process, such as 10s"),
    ("memory", "memory, such as 512M"),
    ("files", "open files of each process"),
    ("processes", "processes and threads"),
    ("file-size", "size of each file it writes, such as 1G"),
];

/// One limit: its name in [`NAMES`] and its value in seconds, bytes or things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    name: &'static str,
    value: NonZeroU64,
}

/// Parses `NAME=VALUE`.
pub(crate) fn limit(text: &str) -> Result<Limit, InvalidArg> {
    let names = || NAMES.map(|(name, _)| format!("`{name}`")).join(", ");
    let Some((name, value)) = text.split_once('=') else {
        return Err(InvalidArg::new("a limit needs a value", "write `NAME=VALUE`, such as `memory=512M`"));
    };
    let Some((name, _)) = NAMES.into_iter().find(|(known, _)| *known == name) else {
        return Err(InvalidArg::new(
            format!("`{name}` cannot be limited"),
            format!("use one of {}", names()),
        ));
    };
    let (parsed, hint) = match name {
        "cpu" => (seconds(value), "give at least one whole second, with its unit, such as `10s` or `5m`"),
        "memory" | "file-size" => {
            (size(value), "give a size of at least one byte, such as `64K`, `512M` or `2GiB`")
        }
        _ => (value.parse().ok(), "give a number of at least 1"),
    };
    match parsed.and_then(NonZeroU64::new) {
        Some(value) => Ok(Limit { name, value }),
        None => Err(InvalidArg::new(format!("`{value}` is not a limit for `{name}`"), hint)),
    }
}

/// Combines limits; refuses several with the same name.
pub(crate) fn combined(limits: &[Limit]) -> Result<ResourceLimits, Failure> {
    for (at, Limit { name, .. }) in limits.iter().enumerate() {
        if limits[..at].iter().any(|earlier| earlier.name == *name) {
            let what = format!("`--limit {name}` is given more than once");
            return Err(Failure::usage(what, "give each limit once"));
        }
    }
    let value = |name: &str| limits.iter().find(|limit| limit.name == name).map(|limit| limit.value);
    let mut combined = ResourceLimits::default();
    combined.cpu_seconds = value("cpu");
    combined.memory_bytes = value("memory");
    combined.open_files = value("files");
    combined.processes = value("processes");
    combined.file_bytes = value("file-size");
    Ok(combined)
}

fn seconds(text: &str) -> Option<u64> {
    let time = parse_duration(text)?;
    (time.subsec_nanos() == 0).then_some(time.as_secs())
}

/// Parses `64K`, `512M`, `2G`, `1T`, the same with `iB`, or bytes; a unit is 1024 of the one below.
pub(super) fn size(text: &str) -> Option<u64> {
    match text.chars().last()? {
        'K' | 'M' | 'G' | 'T' => parse_size(&format!("{text}iB")),
        digit if digit.is_ascii_digit() => parse_size(&format!("{text}B")),
        _ => parse_size(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<u64, String> {
        limit(text).map(|limit| limit.value.get()).map_err(|error| error.to_string())
    }

    #[test]
    fn limits_have_the_units_of_what_they_limit() {
        for (text, expected) in [
            ("cpu=10s", 10),
            ("cpu=2m", 120),
            ("memory=512M", 512 << 20),
            ("memory=512MiB", 512 << 20),
            ("memory=4096", 4096),
            ("file-size=1G", 1 << 30),
            ("files=256", 256),
            ("processes=1", 1),
        ] {
            assert_eq!(parsed(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn an_invalid_limit_is_explained() {
        for (text, part) in [
            ("memory", "write `NAME=VALUE`"),
            (
                "disk=1G",
                "`disk` cannot be limited; use one of `cpu`, `memory`, `files`, `processes`, `file-size`",
            ),
            ("cpu=500ms", "`500ms` is not a limit for `cpu`; give at least one whole second"),
            ("cpu=0s", "at least one whole second"),
            ("memory=0", "at least one byte"),
            ("memory=1.5G", "`1.5G` is not a limit for `memory`"),
            ("memory=-1", "at least one byte"),
            ("files=0", "at least 1"),
            ("files=-1", "at least 1"),
            ("processes=99999999999999999999", "at least 1"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn each_limit_is_given_once() {
        let limits = ["memory=1K", "files=7"].map(|text| limit(text).unwrap());
        let number = |number| NonZeroU64::new(number).unwrap();
        let expected = ResourceLimits::default().memory_bytes(number(1024)).open_files(number(7));
        assert_eq!(combined(&limits).unwrap(), expected);
        let twice = ["files=5", "memory=1K", "files=7"].map(|text| limit(text).unwrap());
        assert_eq!(combined(&twice).unwrap_err().message(), "`--limit files` is given more than once");
    }
}
