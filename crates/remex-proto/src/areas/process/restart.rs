//! When a program is run again after it has ended.

use serde::{Deserialize, Serialize};

/// When a program is run again after it has ended.
///
/// All runs are one process with one output. An unknown member is an error: what is asked for is done or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Restart {
    /// After which ends.
    pub policy: RestartPolicy,
    /// How often at most; absent: without end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_restarts: Option<u32>,
}

/// After which ends a program is run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub enum RestartPolicy {
    /// Those with another exit code than 0, or by a signal.
    OnFailure,
    /// All.
    Always,
}

impl Restart {
    /// Runs it again when it fails.
    #[must_use]
    pub const fn on_failure() -> Self {
        Self { policy: RestartPolicy::OnFailure, max_restarts: None }
    }

    /// Runs it again whenever it ends.
    #[must_use]
    pub const fn always() -> Self {
        Self { policy: RestartPolicy::Always, max_restarts: None }
    }

    /// Runs it again so many times at most.
    #[must_use]
    pub const fn at_most(self, restarts: u32) -> Self {
        Self { max_restarts: Some(restarts), ..self }
    }
}
