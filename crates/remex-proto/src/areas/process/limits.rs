//! Resource limits of a process.

use std::{fmt, num::NonZeroU64};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
};
use serde_json::Number;

/// Resource limits of a process; an absent member means no limit beyond those of the host.
///
/// Unlike elsewhere, an unknown member is an error: a limit that is asked for is enforced or refused.
/// `processLimits` of `environment/info` says how the server enforces each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct ResourceLimits {
    /// CPU time of each process in seconds; then SIGXCPU, and SIGKILL a second later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<NonZeroU64>,
    /// Memory of the process and its descendants together (cgroup), or address space of each of them (rlimit).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<NonZeroU64>,
    /// Open files of each process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<NonZeroU64>,
    /// Processes and threads: of the process and its descendants together (cgroup), or of the whole user (rlimit).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<NonZeroU64>,
    /// The size of each file that they write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_bytes: Option<NonZeroU64>,
}

impl ResourceLimits {
    /// The names of the members.
    pub const MEMBERS: [&str; 5] = ["cpuSeconds", "memoryBytes", "openFiles", "processes", "fileBytes"];

    /// Returns whether nothing is limited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Limits the CPU time of each process, in seconds.
    #[must_use]
    pub fn cpu_seconds(self, seconds: NonZeroU64) -> Self {
        Self { cpu_seconds: Some(seconds), ..self }
    }

    /// Limits the memory of the process and its descendants together (cgroup), or the address space of each of them
    /// (rlimit).
    #[must_use]
    pub fn memory_bytes(self, bytes: NonZeroU64) -> Self {
        Self { memory_bytes: Some(bytes), ..self }
    }

    /// Limits the open files of each process.
    #[must_use]
    pub fn open_files(self, files: NonZeroU64) -> Self {
        Self { open_files: Some(files), ..self }
    }

    /// Limits the processes and threads: of the process and its descendants together (cgroup), or of the whole user
    /// (rlimit).
    #[must_use]
    pub fn processes(self, processes: NonZeroU64) -> Self {
        Self { processes: Some(processes), ..self }
    }

    /// Limits the size of each file that they write.
    #[must_use]
    pub fn file_bytes(self, bytes: NonZeroU64) -> Self {
        Self { file_bytes: Some(bytes), ..self }
    }

    fn member(&mut self, name: &str) -> Option<&mut Option<NonZeroU64>> {
        match name {
            "cpuSeconds" => Some(&mut self.cpu_seconds),
            "memoryBytes" => Some(&mut self.memory_bytes),
            "openFiles" => Some(&mut self.open_files),
            "processes" => Some(&mut self.processes),
            "fileBytes" => Some(&mut self.file_bytes),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for ResourceLimits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Members)
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = ResourceLimits;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with resource limits")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ResourceLimits, A::Error> {
        let mut limits = ResourceLimits::default();
        while let Some(name) = map.next_key::<String>()? {
            let Some(member) = limits.member(&name) else {
                let known = ResourceLimits::MEMBERS.map(|name| format!("`{name}`")).join(", ");
                return Err(A::Error::custom(format!("unknown member `{name}` of `limits`; known: {known}")));
            };
            if member.is_some() {
                return Err(A::Error::custom(format!("`limits.{name}` is there twice")));
            }
            *member = match map.next_value()? {
                Amount::Absent => None,
                Amount::Number(number) => Some(number),
                Amount::Other(found) => {
                    let most = u64::MAX;
                    return Err(A::Error::custom(format!(
                        "`limits.{name}` must be a whole number from 1 to {most}, not {found}"
                    )));
                }
            };
        }
        Ok(limits)
    }
}

/// The value of a member.
enum Amount {
    Absent,
    Number(NonZeroU64),
    /// What is there instead.
    Other(String),
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Found {
            Absent(()),
            Number(Number),
            Flag(bool),
            Other(IgnoredAny),
        }
        Ok(match Found::deserialize(deserializer)? {
            Found::Absent(()) => Amount::Absent,
            Found::Number(number) => match number.as_u64().and_then(NonZeroU64::new) {
                Some(number) => Amount::Number(number),
                None => Amount::Other(number.to_string()),
            },
            Found::Flag(flag) => Amount::Other(flag.to_string()),
            Found::Other(_) => Amount::Other("a string, a list or an object".to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ResourceLimits, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn limits_round_trip() {
        let all = r#"{"cpuSeconds":1,"memoryBytes":2,"openFiles":3,"processes":4,"fileBytes":18446744073709551615}"#;
        let limits = parse(all).unwrap();
        assert_eq!(limits.file_bytes, NonZeroU64::new(u64::MAX));
        assert_eq!(serde_json::to_string(&limits).unwrap(), all);
        assert!(parse("{}").unwrap().is_empty());
        assert!(parse(r#"{"openFiles":null}"#).unwrap().is_empty());
    }

    #[test]
    fn a_wrong_member_is_named() {
        for (text, part) in [
            (r#"{"memory":1}"#, "unknown member `memory` of `limits`; known: `cpuSeconds`, `memoryBytes`"),
            (
                r#"{"openFiles":0}"#,
                "`limits.openFiles` must be a whole number from 1 to 18446744073709551615, not 0",
            ),
            (
                r#"{"openFiles":-5}"#,
                "`limits.openFiles` must be a whole number from 1 to 18446744073709551615, not -5",
            ),
            (r#"{"fileBytes":1.5}"#, "not 1.5"),
            (r#"{"fileBytes":18446744073709551616}"#, "`limits.fileBytes`"),
            (
                r#"{"cpuSeconds":"10"}"#,
                "`limits.cpuSeconds` must be a whole number from 1 to 18446744073709551615, not a string",
            ),
            (r#"{"cpuSeconds":true}"#, "not true"),
            (r#"{"cpuSeconds":[1]}"#, "not a string, a list or an object"),
            (r#"{"cpuSeconds":1,"cpuSeconds":2}"#, "`limits.cpuSeconds` is there twice"),
            ("7", "an object with resource limits"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
