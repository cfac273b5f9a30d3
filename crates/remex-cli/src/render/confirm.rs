//! Asks the user to confirm an irreversible action.

use std::io::{self, IsTerminal as _, Write as _};

/// Returns whether the user can be asked: a script must not hang on a question.
pub(crate) fn is_possible() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks a question; only `y` and `yes` count as a yes.
pub(crate) async fn ask(question: &str) -> bool {
    let _ = io::stderr().write_all(format!("remex: {question} [y/N] ").as_bytes());
    // In a separate thread, so that signals are handled meanwhile.
    let answer = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        io::stdin().read_line(&mut line).map(|_| line)
    });
    let answer = answer.await.ok().and_then(Result::ok).unwrap_or_default();
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}
