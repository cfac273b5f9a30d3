//! The life of one client: calls, queues of events, and the task that connects and reconnects.

pub(crate) mod driver;
pub(crate) mod event_queue;
pub(crate) mod shared;
