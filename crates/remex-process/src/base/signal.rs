//! Signals by number and by name.

use std::{borrow::Cow, fmt};

/// A signal that can be sent to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signal(i32);

/// If a number has two names, the first one is printed.
const NAMES: &[(&str, i32)] = &[
    ("SIGHUP", libc::SIGHUP),
    ("SIGINT", libc::SIGINT),
    ("SIGQUIT", libc::SIGQUIT),
    ("SIGILL", libc::SIGILL),
    ("SIGTRAP", libc::SIGTRAP),
    ("SIGABRT", libc::SIGABRT),
    ("SIGIOT", libc::SIGABRT),
    ("SIGBUS", libc::SIGBUS),
    ("SIGFPE", libc::SIGFPE),
    ("SIGKILL", libc::SIGKILL),
    ("SIGUSR1", libc::SIGUSR1),
    ("SIGSEGV", libc::SIGSEGV),
    ("SIGUSR2", libc::SIGUSR2),
    ("SIGPIPE", libc::SIGPIPE),
    ("SIGALRM", libc::SIGALRM),
    ("SIGTERM", libc::SIGTERM),
    ("SIGSTKFLT", libc::SIGSTKFLT),
    ("SIGCHLD", libc::SIGCHLD),
    ("SIGCLD", libc::SIGCHLD),
    ("SIGCONT", libc::SIGCONT),
    ("SIGSTOP", libc::SIGSTOP),
    ("SIGTSTP", libc::SIGTSTP),
    ("SIGTTIN", libc::SIGTTIN),
    ("SIGTTOU", libc::SIGTTOU),
    ("SIGURG", libc::SIGURG),
    ("SIGXCPU", libc::SIGXCPU),
    ("SIGXFSZ", libc::SIGXFSZ),
    ("SIGVTALRM", libc::SIGVTALRM),
    ("SIGPROF", libc::SIGPROF),
    ("SIGWINCH", libc::SIGWINCH),
    ("SIGIO", libc::SIGIO),
    ("SIGPOLL", libc::SIGIO),
    ("SIGPWR", libc::SIGPWR),
    ("SIGSYS", libc::SIGSYS),
];

impl Signal {
    /// Hangup: the terminal is closed.
    pub const HUP: Self = Self(libc::SIGHUP);
    /// Interrupt, as Ctrl-C sends it.
    pub const INT: Self = Self(libc::SIGINT);
    /// Quit with a core dump, as Ctrl-\ sends it.
    pub const QUIT: Self = Self(libc::SIGQUIT);
    /// Kill; cannot be caught.
    pub const KILL: Self = Self(libc::SIGKILL);
    /// First user-defined signal.
    pub const USR1: Self = Self(libc::SIGUSR1);
    /// Second user-defined signal.
    pub const USR2: Self = Self(libc::SIGUSR2);
    /// Termination request.
    pub const TERM: Self = Self(libc::SIGTERM);
    /// Continue after a stop.
    pub const CONT: Self = Self(libc::SIGCONT);
    /// Stop; cannot be caught.
    pub const STOP: Self = Self(libc::SIGSTOP);
    /// The terminal window was resized.
    pub const WINCH: Self = Self(libc::SIGWINCH);

    /// Returns the signal with this number, which is 1 to 64 on Linux.
    #[must_use]
    pub fn from_number(number: i32) -> Option<Self> {
        (1..=libc::SIGRTMAX()).contains(&number).then_some(Self(number))
    }

    /// Returns the signal with this name: `TERM`, `SIGTERM` or `sigterm`; real-time ones as `RTMIN+3` or `RTMAX-1`.
    ///
    /// ```
    /// # use remex_process::Signal;
    /// assert_eq!(Signal::from_name("int"), Some(Signal::INT));
    /// assert_eq!(Signal::from_name("SIGNAL"), None);
    /// ```
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_uppercase();
        let bare = name.strip_prefix("SIG").unwrap_or(&name);
        let named = NAMES.iter().find(|(known, _)| known[3..] == *bare).map(|&(_, number)| Self(number));
        named.or_else(|| real_time(bare))
    }

    /// Returns the number that the operating system uses.
    #[must_use]
    pub fn number(self) -> i32 {
        self.0
    }

    /// Returns whether the default action of the signal is to terminate the process.
    #[must_use]
    pub fn ends_by_default(self) -> bool {
        use libc::{SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH};
        ![SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH].contains(&self.0)
    }

    /// Returns the name with its prefix, as in `SIGTERM`.
    #[must_use]
    pub fn name(self) -> Cow<'static, str> {
        match NAMES.iter().find(|&&(_, number)| number == self.0) {
            Some(&(name, _)) => name.into(),
            None if self.0 >= libc::SIGRTMIN() => format!("SIGRTMIN+{}", self.0 - libc::SIGRTMIN()).into(),
            None => format!("SIG{}", self.0).into(),
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

fn real_time(bare: &str) -> Option<Signal> {
    let (first, last) = (libc::SIGRTMIN(), libc::SIGRTMAX());
    let offset = |rest: &str, sign: char| match rest {
        "" => Some(0),
        _ => rest.strip_prefix(sign)?.parse::<u8>().ok().map(i32::from),
    };
    let number = match bare.strip_prefix("RTMIN") {
        Some(rest) => first + offset(rest, '+')?,
        None => last - offset(bare.strip_prefix("RTMAX")?, '-')?,
    };
    (first..=last).contains(&number).then_some(Signal(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_with_and_without_its_prefix_in_any_case() {
        for &(name, number) in NAMES {
            let spellings =
                [name.to_owned(), name[3..].to_owned(), name.to_lowercase(), name[3..].to_lowercase()];
            for spelling in spellings {
                assert_eq!(Signal::from_name(&spelling), Some(Signal(number)), "{spelling}");
            }
        }
    }

    #[test]
    fn every_signal_number_round_trips_through_its_name() {
        for number in (1..=31).chain(libc::SIGRTMIN()..=libc::SIGRTMAX()) {
            let signal = Signal::from_number(number).unwrap();
            assert_eq!(Signal::from_name(&signal.name()), Some(signal));
        }
        assert_eq!(Signal::TERM.name(), "SIGTERM");
    }

    #[test]
    fn an_invalid_signal_has_no_name_and_no_number() {
        for name in [
            "",
            "SIG",
            "SIGSIG",
            "TERMINATE",
            "15",
            "RTMIN+",
            "RTMIN-1",
            "RTMAX+1",
            "RTMIN+99",
            "RTMAX-256",
            "ſIG",
        ] {
            assert_eq!(Signal::from_name(name), None, "{name}");
        }
        for number in [-1, 0, 65, i32::MAX] {
            assert_eq!(Signal::from_number(number), None);
        }
    }
}
