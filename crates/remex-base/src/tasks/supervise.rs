//! Contains panics: each is a bug of the server, is logged once, and ends only the task or work that it occurred in.
//!
//! Tasks run under [`supervise`], work on other threads under [`catch_panic`]. Guards with `Drop` release
//! resources after a panic, never statements after an `await`. A poisoned lock is not an error: the next holder
//! uses the state as it is, and the owner of the broken state ends.

use std::{
    any::Any,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::Poll,
};

use remex_proto::{ErrorKind, RpcError};

use crate::trace::LOG_TARGET;

/// The error of a task or function that panicked; the panic was logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the work panicked, which is a defect of the server; its log says where")]
pub struct Panicked;

/// Runs a task until it ends or panics.
///
/// The task is boxed: a future that contains another doubles its size, and there are many process tasks.
pub fn supervise<T>(task: impl Future<Output = T>) -> impl Future<Output = Result<T, Panicked>> {
    let mut task = Box::pin(task);
    // After a panic, the task is dropped and not used again.
    poll_fn(move |context| match catch_panic(|| task.as_mut().poll(context)) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
        Err(Panicked) => Poll::Ready(Err(Panicked)),
    })
}

/// The rest of a task, on the heap.
pub type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs a phase of a task, and then the one that it returns.
///
/// The memory of the first is freed before the second: as one future, both would have their space for as long as the task
/// lives, and a start needs far more than what follows it.
pub fn in_phases(first: impl Future<Output = Option<Running>> + Send + 'static) -> Running {
    let first = Box::pin(first);
    Box::pin(async move {
        if let Some(next) = first.await {
            next.await;
        }
    })
}

/// Calls a function and logs a panic in it.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| log(&*payload))
}

/// Returns the answer to a request whose handler panicked.
pub fn defect() -> RpcError {
    RpcError::new(ErrorKind::Internal, "request handler panicked")
        .with_hint("this is a defect of the server; report it with the server's log")
}

fn log(payload: &(dyn Any + Send)) -> Panicked {
    let text = payload.downcast_ref::<&str>().copied();
    let error = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    tracing::error!(
        target: LOG_TARGET,
        error = error.unwrap_or("unknown"),
        "a task panicked: this is a defect of the server"
    );
    Panicked
}

/// Panics if `name` contains `mark` followed by a path, as soon as a file with that path exists.
#[cfg(any(test, feature = "testing"))]
pub async fn break_once(mark: &str, name: &str) {
    let Some((_, path)) = name.split_once(mark) else { return };
    while !std::path::Path::new(path).exists() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("a test asked for it");
}

/// Panics if `name` contains `mark`, so that tests can trigger a panic at a named point.
#[cfg(any(test, feature = "testing"))]
pub fn break_at(mark: &str, name: &str) {
    assert!(!name.contains(mark), "a test asked for it");
}
