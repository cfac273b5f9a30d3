//! The trace that calls belong to.

use remex_proto::TraceContext;

tokio::task_local! {
    static TRACE: TraceContext;
}

/// Runs a future whose calls, of any client, belong to a trace: the server's log lines and spans then carry its id.
///
/// It overrides [`Options::trace`](crate::Options::trace), and has no effect on tasks that the future spawns.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Command, TraceContext, with_trace};
///
/// let trace = TraceContext::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None)?;
/// let output = with_trace(trace, Command::new("date").output(&client)).await?;
/// assert!(output.exit.success());
/// # Ok(()) }
/// ```
pub async fn with_trace<F: IntoFuture>(trace: TraceContext, future: F) -> F::Output {
    TRACE.scope(trace, future.into_future()).await
}

/// Returns the trace of the current task.
pub(crate) fn current() -> Option<TraceContext> {
    TRACE.try_with(Clone::clone).ok()
}
