//! Makes a program redraw its screen.

use std::{num::NonZeroU16, time::Duration};

use remex_client::process::{ProcessRef, TerminalSize};
use tokio::task::JoinHandle;

use super::{status, terminal};

/// How long to wait for a program to redraw after a resize; some never do.
const REDRAW_TIMEOUT: Duration = Duration::from_secs(1);

/// A redraw counts as finished after this time without output.
const REDRAW_PAUSE: Duration = Duration::from_millis(100);

/// Starts to make a process redraw.
pub(crate) fn start(process: ProcessRef) -> JoinHandle<()> {
    status::on_redraw();
    tokio::spawn(redraw(process))
}

/// Waits for a redraw before this program ends: the process must not keep the temporary size.
pub(super) async fn finish(redraw: JoinHandle<()>) {
    let _ = tokio::time::timeout(REDRAW_TIMEOUT + REDRAW_PAUSE * 2, redraw).await;
}

/// Resizes the terminal of the process to the size of this one, by way of another size to force a full redraw.
///
/// The last output rarely makes up a whole screen, and a program does not redraw if the size is unchanged.
async fn redraw(process: ProcessRef) {
    let size = terminal::size();
    let other = NonZeroU16::new(size.cols.get().saturating_sub(1)).unwrap_or(size.cols);
    let newest = process.cursor_before_newest(0).await;
    if process.resize(TerminalSize { cols: other, ..size }).await.is_ok()
        && let Ok(newest) = newest
    {
        // Wait in between: the program would not notice two resizes in a row.
        let _ = process.settle(newest, REDRAW_TIMEOUT, REDRAW_PAUSE).await;
    }
    // The window may have been resized meanwhile.
    let _ = process.resize(terminal::size()).await;
}
