//! How the parts of a step are written as JSON: camelCase, and durations as whole milliseconds.

use std::time::Duration;

use remex_base::clock;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Progress;
use crate::api::process::Exit;

/// A [`Progress`], with an error as the sentences that a person or a model reads.
#[derive(Serialize)]
#[serde(tag = "state", rename_all = "camelCase")]
enum ProgressJson<'a> {
    Running,
    Exited(&'a Exit),
    Ended(&'a Exit),
    Lost { message: String, hint: Option<&'a str> },
}

impl Serialize for Progress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let json = match self {
            Progress::Running => ProgressJson::Running,
            Progress::Exited(exit) => ProgressJson::Exited(exit),
            Progress::Ended(exit) => ProgressJson::Ended(exit),
            Progress::Lost(error) => ProgressJson::Lost { message: error.message(), hint: error.hint() },
        };
        json.serialize(serializer)
    }
}

pub(super) fn millis<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    clock::millis(*duration).serialize(serializer)
}

/// For `#[serde(with)]` on a duration that may be absent.
pub(super) mod optional_millis {
    use super::{Deserialize as _, Deserializer, Duration, Serialize as _, Serializer, clock};

    #[allow(clippy::ref_option, reason = "serde passes a reference to the field")]
    pub(in super::super) fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        duration.map(clock::millis).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}
