//! The request of a start, saved for restarts. Start at [`StartRequest`].

use std::{fmt, sync::Arc};

use remex_access::scope::Floor;
use remex_proto::{ErrorKind, RpcError, environment, process::Start};
use serde::{Deserialize, Serialize};

use super::{as_user::AsUser, managed};
use crate::shared::host::Host;

/// The longest request that is saved.
const MOST_BYTES: usize = 256 << 10;

/// The request of a `restartable` start, in memory only because its environment may contain secrets.
#[derive(Clone)]
pub struct StartRequest(Arc<[u8]>);

/// The least confinement that credentials demand of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartFloor {
    /// Of this start.
    pub now: Floor,
    /// Of the first start of the process: what one restart demands beyond that is not demanded of the next.
    pub first: Floor,
}

/// The saved request, with the variables of its login, and the least confinement that its credential demanded.
#[derive(Serialize, Deserialize)]
struct SavedRequest<S> {
    floor: Floor,
    start: S,
}

impl fmt::Debug for StartRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StartRequest({} bytes)", self.0.len())
    }
}

impl StartRequest {
    /// Returns the request to save; `None` if it is not `restartable`, or too long.
    pub(super) fn of(start: &Start, floor: Floor) -> Option<Self> {
        let words: usize = start.words().map(<[u8]>::len).sum();
        let variables: usize = start.env.iter().map(|(name, value)| name.len() + value.len()).sum();
        if !start.restartable || words + variables > MOST_BYTES {
            return None;
        }
        let bytes = serde_json::to_vec(&SavedRequest { floor, start }).ok()?;
        (bytes.len() <= MOST_BYTES).then(|| Self(bytes.into()))
    }

    /// Returns the request that the keeper has saved; `bytes` is empty if there is none.
    pub(super) fn from_keeper(bytes: Vec<u8>) -> Option<Self> {
        (!bytes.is_empty()).then(|| Self(bytes.into()))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns how many bytes it needs in memory.
    pub(super) fn weight(&self) -> usize {
        self.0.len()
    }

    /// Returns the request, and what its credential demanded of it.
    pub fn decode(&self) -> Result<(Start, Floor), RpcError> {
        let saved: SavedRequest<Start> = serde_json::from_slice(&self.0).map_err(|error| {
            let message = format!("cannot read the request that was kept of its start: {error}");
            RpcError::new(ErrorKind::Internal, message).with_hint("start it again yourself")
        })?;
        Ok((saved.start, saved.floor))
    }

    /// Refuses a start that certainly cannot run with the confinement or as the user that it asks for. Creates no
    /// process.
    pub async fn check_confined(
        start: &Start,
        floor: Floor,
        host: &Arc<Host>,
        identity: &Arc<str>,
    ) -> Result<(), RpcError> {
        host.starts().check_any()?;
        let (sandbox, _) = managed::sandbox(start)?;
        if !host.confinement().concerns_processes(&sandbox, floor) {
            host.starts().check_unconfined()?;
            return AsUser::check_account(start, host, identity).await;
        }
        AsUser::check_restart(start)?;
        // The start itself reports what is wrong with the directory.
        let Ok(cwd) = start.cwd.native().map(ToOwned::to_owned) else { return Ok(()) };
        let env = environment::resolve(start.env_policy.as_ref(), &start.env, host.env().iter().cloned());
        let tmpdir = env.into_iter().find_map(|(name, value)| (name == "TMPDIR").then_some(value));
        let (checked, threads) = (Arc::clone(host), host.threads_of(identity));
        let checking = threads.run(move || {
            let confinement = checked.confinement();
            let policy = confinement.resolve_for_process(&sandbox, floor, &cwd, tmpdir.as_deref())?;
            checked.starts().check_policy(&policy)
        });
        checking.await?
    }

    /// Returns the error for a process whose start request was not saved.
    pub fn not_saved(process: &str) -> RpcError {
        let message = format!(
            "cannot restart process `{process}`: the request of its start was not kept; it did not ask for that with \
             `restartable`, was longer than {MOST_BYTES} bytes, or its keeper has ended since"
        );
        RpcError::new(ErrorKind::NotSupported, message)
            .with_hint("end it, and start it again with its command")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn start(value: &str, restartable: bool) -> Start {
        let env = json!({"TOKEN": value});
        let request =
            json!({"processId": "p", "argv": ["a"], "cwd": "file:///", "env": env, "tty": true, "rows": 7});
        let mut start: Start = serde_json::from_value(request).unwrap();
        start.restartable = restartable;
        start
    }

    #[test]
    fn the_whole_request_is_saved_with_its_floor_and_never_printed() {
        let asked = start("s3cret", true);
        let kept = StartRequest::of(&asked, Floor::ReadOnly).unwrap();
        let again = StartRequest::from_keeper(kept.bytes().to_vec()).unwrap();
        assert_eq!(again.decode().unwrap(), (asked, Floor::ReadOnly));
        assert!(!format!("{kept:?}").contains("s3cret"));
    }

    #[test]
    fn a_start_that_is_too_long_or_not_restartable_is_not_saved() {
        assert!(StartRequest::of(&start("x", false), Floor::Unconfined).is_none());
        for len in [MOST_BYTES - 10, 2 * MOST_BYTES] {
            assert!(StartRequest::of(&start(&"x".repeat(len), true), Floor::Unconfined).is_none(), "{len}");
        }
        assert!(StartRequest::of(&start(&"x".repeat(MOST_BYTES / 2), true), Floor::Unconfined).is_some());
        assert!(StartRequest::from_keeper(Vec::new()).is_none());
    }
}
