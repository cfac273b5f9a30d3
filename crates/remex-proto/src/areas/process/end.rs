//! Signals and the end of a process.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::base::lenient::null_as_default;

/// `process/signal`: a signal for the process group of the child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Signal {
    /// The process.
    pub process_id: String,
    /// Another session of the same identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing.
    /// Absent: whichever runs now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// `interrupt`, or a POSIX name with or without `SIG`.
    pub signal: SignalName,
}

macro_rules! signals {
    ($($variant:ident = $name:literal,)*) => {
        /// A signal by its POSIX name; the number depends on the operating system.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs)] // The names are those of POSIX.
        pub enum SignalName {
            $($variant,)*
        }

        impl SignalName {
            /// Every signal that has a name here.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the full name, such as `SIGTERM`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!("SIG", $name),)*
                }
            }
        }
    };
}

signals! {
    Abrt = "ABRT",
    Alrm = "ALRM",
    Bus = "BUS",
    Chld = "CHLD",
    Cont = "CONT",
    Fpe = "FPE",
    Hup = "HUP",
    Ill = "ILL",
    Int = "INT",
    Io = "IO",
    Kill = "KILL",
    Pipe = "PIPE",
    Poll = "POLL",
    Prof = "PROF",
    Quit = "QUIT",
    Segv = "SEGV",
    Stop = "STOP",
    Sys = "SYS",
    Term = "TERM",
    Trap = "TRAP",
    Tstp = "TSTP",
    Ttin = "TTIN",
    Ttou = "TTOU",
    Urg = "URG",
    Usr1 = "USR1",
    Usr2 = "USR2",
    Vtalrm = "VTALRM",
    Winch = "WINCH",
    Xcpu = "XCPU",
    Xfsz = "XFSZ",
}

impl fmt::Display for SignalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no signal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown signal `{word}`; use `interrupt` or a POSIX name such as `TERM` or `SIGTERM`")]
pub struct UnknownSignal {
    /// The word as given.
    pub word: String,
}

impl FromStr for SignalName {
    type Err = UnknownSignal;

    fn from_str(word: &str) -> Result<Self, UnknownSignal> {
        if word == "interrupt" {
            return Ok(Self::Int);
        }
        let short = word.strip_prefix("SIG").unwrap_or(word);
        let is_named = |signal: &&Self| signal.name()["SIG".len()..] == *short;
        Self::ALL.iter().find(is_named).copied().ok_or_else(|| UnknownSignal { word: word.to_owned() })
    }
}

impl Serialize for SignalName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // The one word that servers of the base dialect know.
        serializer.serialize_str(if *self == Self::Int { "interrupt" } else { self.name() })
    }
}

impl<'de> Deserialize<'de> for SignalName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// `process/terminate`: ends the process and its whole tree. An unknown or ended process is not an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Terminate {
    /// The process.
    pub process_id: String,
    /// Another session of the same identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing.
    /// Absent: whichever runs now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// How to end it; absent: `SIGKILL` at once.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "TerminateMode::is_force")]
    pub mode: TerminateMode,
    /// Which of its descendants to end; absent: depends on its state.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "TerminateScope::is_usual")]
    pub scope: TerminateScope,
}

/// How much of a process is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum TerminateScope {
    /// The whole tree of a running process, the group and session of one that has exited, nothing of a closed one.
    #[default]
    Usual,
    /// Every live process that it started, whatever its own state.
    Tree,
}

impl TerminateScope {
    fn is_usual(&self) -> bool {
        *self == Self::Usual
    }
}

/// How a process is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum TerminateMode {
    /// SIGKILL at once.
    #[default]
    Force,
    /// SIGTERM, then SIGKILL for the processes that remain.
    #[serde(rename_all = "camelCase")]
    Graceful {
        /// The time between the two.
        timeout_ms: u64,
    },
}

impl TerminateMode {
    fn is_force(&self) -> bool {
        *self == Self::Force
    }
}

/// The answer to [`Terminate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Terminated {
    /// Whether the process was still running when the request arrived.
    pub running: bool,
}

/// `process/restart`: ends the process and its whole tree, and starts it again under its id, as it was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StartAgain {
    /// The process; it may have ended already.
    pub process_id: String,
    /// Another session of the same identity, to which no client is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The start that is meant, as its answer named it: if the process was restarted since, the request fails and does nothing.
    /// Absent: whichever runs now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// How long its tree may take to end after SIGTERM; absent: it is killed at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// Makes the restart idempotent: repeating it with the same id returns the first outcome. It is the `startId` of the new
    /// start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_id: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_goes_by_its_short_and_its_long_name() {
        assert_eq!("interrupt".parse(), Ok(SignalName::Int));
        assert_eq!("TERM".parse(), Ok(SignalName::Term));
        assert_eq!("SIGTERM".parse(), Ok(SignalName::Term));
        for word in ["", "SIG", "term", "SIGSIGTERM", "kill", "15"] {
            let error = word.parse::<SignalName>().unwrap_err();
            assert!(error.to_string().starts_with(&format!("unknown signal `{word}`")));
        }
    }

    #[test]
    fn terminate_is_forceful_by_default() {
        let mode = |text: &str| serde_json::from_str::<Terminate>(text).map(|terminate| terminate.mode);
        assert_eq!(mode(r#"{"processId":"p"}"#).unwrap(), TerminateMode::Force);
        assert_eq!(mode(r#"{"processId":"p","mode":null}"#).unwrap(), TerminateMode::Force);
        assert_eq!(mode(r#"{"processId":"p","mode":"force"}"#).unwrap(), TerminateMode::Force);
        assert_eq!(
            mode(r#"{"processId":"p","mode":{"graceful":{"timeoutMs":7}}}"#).unwrap(),
            TerminateMode::Graceful { timeout_ms: 7 }
        );
        for wrong in
            [r#""gentle""#, r#""graceful""#, r#"{"graceful":{"timeoutMs":-1}}"#, r#"{"graceful":{}}"#]
        {
            assert!(mode(&format!(r#"{{"processId":"p","mode":{wrong}}}"#)).is_err(), "{wrong}");
        }
    }
}
