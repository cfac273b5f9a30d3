//! Whether certificates are valid now, and for how long.
//!
//! Start at [`outdated`].

use std::{path::Path, time::Duration};

use remex_rpc::tls::Validity;

use crate::render::{finding::Verdict, text};

/// A certificate that is valid for less than this should be renewed.
const SOON: Duration = Duration::from_secs(14 * 24 * 3600);

/// The hint for an invalid certificate.
pub(super) const REMEDY: &str = "renew it; with your own CA, use `remex cert new`";

/// Returns what is wrong with the dates in a PEM file, in words that follow its name; `None` also for files that cannot
/// be read, which fail elsewhere. Blocks.
pub(super) fn outdated(path: &Path) -> Option<(Verdict, String)> {
    let validity = Validity::of_file(path).ok()?;
    let now = i64::try_from(text::now_ms() / 1000).unwrap_or(i64::MAX);
    let left = validity.not_after.saturating_sub(now);
    match u64::try_from(left) {
        Err(_) | Ok(0) => Some((Verdict::Failed, "has expired".to_owned())),
        Ok(_) if validity.not_before > now => Some((Verdict::Failed, "is not valid yet".to_owned())),
        Ok(left) if left < SOON.as_secs() => {
            Some((Verdict::Warning, format!("expires in {}", text::age(Duration::from_secs(left)))))
        }
        Ok(_) => None,
    }
}
