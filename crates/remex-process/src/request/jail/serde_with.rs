//! Modules for `#[serde(with = "…")]` on the fields of jails and their errors.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::{JailError, Step};

/// The policy of a jail.
pub(super) mod policy {
    use std::sync::Arc;

    use remex_sandbox::Policy;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(crate) fn serialize<S: Serializer>(policy: &Arc<Policy>, serializer: S) -> Result<S::Ok, S::Error> {
        policy.as_ref().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Policy>, D::Error> {
        Policy::deserialize(deserializer).map(Arc::new)
    }
}

/// The paths that a jail hides.
pub(super) mod hidden {
    use std::{path::PathBuf, sync::Arc};

    use remex_sandbox::os_bytes::OsBytes;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(crate) fn serialize<S: Serializer>(paths: &Arc<[PathBuf]>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|path| OsBytes::from(path.as_path())))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<[PathBuf]>, D::Error> {
        let paths = Vec::<OsBytes<'_>>::deserialize(deserializer)?.into_iter().map(OsBytes::into_path);
        // Another process would resolve a relative path in its own working directory, and hide the wrong path.
        let absolute = |path: PathBuf| match path.is_absolute() {
            true => Ok(path),
            false => Err(D::Error::custom(format!("the hidden path `{}` is relative", path.display()))),
        };
        paths.map(absolute).collect()
    }
}

/// The reason why there are no namespaces.
///
/// It is always a failed step; anything else could be nested without end in what a peer sends.
pub(super) mod failed_step {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer, ser::Error as _};

    use super::{FailedStep, JailError};

    pub(crate) fn serialize<S: Serializer>(error: &JailError, serializer: S) -> Result<S::Ok, S::Error> {
        let JailError::Step { step, path, errno } = error else {
            return Err(S::Error::custom("only a failed step can be the reason why there are no namespaces"));
        };
        FailedStep { step: *step, path: path.clone(), errno: *errno }.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Box<JailError>, D::Error> {
        let FailedStep { step, path, errno } = FailedStep::deserialize(deserializer)?;
        Ok(Box::new(JailError::Step { step, path, errno }))
    }
}

/// A [`JailError::Step`].
#[derive(Deserialize, Serialize)]
struct FailedStep {
    step: Step,
    #[serde(with = "remex_sandbox::os_bytes::option")]
    path: Option<PathBuf>,
    errno: i32,
}
