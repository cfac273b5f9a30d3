//! A question to the person at the terminal, before something that cannot be undone.

use std::io::{self, IsTerminal as _, Write as _};

/// Tells whether there is somebody to ask: a script must not hang on a question.
pub(crate) fn is_possible() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks a question; only `y` and `yes` count as a yes.
pub(crate) async fn ask(question: &str) -> bool {
    let _ = io::stderr().write_all(format!("remex: {question} [y/N] ").as_bytes());
    // A thread of its own, so that signals are heard meanwhile.
    let answer = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        io::stdin().read_line(&mut line).map(|_| line)
    });
    let answer = answer.await.ok().and_then(Result::ok).unwrap_or_default();
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}
