//! Parses signals, by name or number.

use remex_client::process::SignalName;

use crate::render::failure::InvalidArg;

/// The numbers of signals that are the same on all Linux architectures.
pub(crate) const NUMBERS: [(u8, SignalName); 29] = [
    (1, SignalName::Hup),
    (2, SignalName::Int),
    (3, SignalName::Quit),
    (4, SignalName::Ill),
    (5, SignalName::Trap),
    (6, SignalName::Abrt),
    (7, SignalName::Bus),
    (8, SignalName::Fpe),
    (9, SignalName::Kill),
    (10, SignalName::Usr1),
    (11, SignalName::Segv),
    (12, SignalName::Usr2),
    (13, SignalName::Pipe),
    (14, SignalName::Alrm),
    (15, SignalName::Term),
    (17, SignalName::Chld),
    (18, SignalName::Cont),
    (19, SignalName::Stop),
    (20, SignalName::Tstp),
    (21, SignalName::Ttin),
    (22, SignalName::Ttou),
    (23, SignalName::Urg),
    (24, SignalName::Xcpu),
    (25, SignalName::Xfsz),
    (26, SignalName::Vtalrm),
    (27, SignalName::Prof),
    (28, SignalName::Winch),
    (29, SignalName::Io),
    (31, SignalName::Sys),
];

/// Returns the signal in `-9`, `-KILL` or `-SIGKILL`, as `kill` accepts it.
pub(crate) fn short_signal(word: &str) -> Option<&str> {
    let signal = word.strip_prefix('-')?;
    // Lower-case letters are options of `remex kill`.
    let is_signal = !signal.contains(|letter: char| letter.is_ascii_lowercase());
    (is_signal && self::signal(signal).is_ok()).then_some(signal)
}

/// Parses `TERM`, `SIGTERM`, `term` or `15`.
pub(crate) fn signal(text: &str) -> Result<SignalName, InvalidArg> {
    let unknown = InvalidArg::new(
        "there is no such signal",
        "use a name such as `TERM` or `INT`, or its number on Linux",
    );
    if let Ok(number) = text.parse::<u8>() {
        let found = NUMBERS.iter().find(|(listed, _)| *listed == number);
        return found.map(|(_, signal)| *signal).ok_or(unknown);
    }
    text.to_ascii_uppercase().parse().map_err(|_| unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_goes_by_name_or_number() {
        for text in ["TERM", "SIGTERM", "term", "sigterm", "15"] {
            assert_eq!(signal(text), Ok(SignalName::Term), "{text}");
        }
        for wrong in ["", "0", "16", "999", "-9", "NO"] {
            assert!(signal(wrong).is_err(), "{wrong}");
        }
    }
    #[test]
    fn a_signal_may_be_an_option_of_its_own() {
        for (word, signal) in [("-9", "9"), ("-KILL", "KILL"), ("-SIGHUP", "SIGHUP")] {
            assert_eq!(short_signal(word), Some(signal));
        }
        for other in ["-t", "-s", "--9", "-999", "-NO", "-", "9", "-h", "-V", "-term"] {
            assert_eq!(short_signal(other), None, "{other}");
        }
    }
}
