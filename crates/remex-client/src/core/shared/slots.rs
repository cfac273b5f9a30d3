//! Limits open calls, by class.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::CallClass;

/// How many calls of each kind may be open; together fewer than the 1,024 at which a server stops reading.
const CALLS: usize = 128;
const FILE_CALLS: usize = 256;
const PARKED_CALLS: usize = 384;

/// Limits how many calls of each class may be open, so that slow calls block only their own class.
#[derive(Debug)]
pub(super) struct Slots {
    plain: Arc<Semaphore>,
    /// A file system may hang.
    files: Arc<Semaphore>,
    /// A process may not read its input, and a wait may be long.
    parked: Arc<Semaphore>,
}

impl Slots {
    pub(super) fn new() -> Self {
        Self {
            plain: Arc::new(Semaphore::new(CALLS)),
            files: Arc::new(Semaphore::new(FILE_CALLS)),
            parked: Arc::new(Semaphore::new(PARKED_CALLS)),
        }
    }

    /// Returns the slots of a class; `None` for calls that never wait.
    pub(super) fn of(&self, class: CallClass) -> Option<&Arc<Semaphore>> {
        match class {
            CallClass::Control => None,
            CallClass::Plain => Some(&self.plain),
            CallClass::Files => Some(&self.files),
            CallClass::Parked => Some(&self.parked),
        }
    }
}
