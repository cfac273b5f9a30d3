//! Finds the processes of one environment by name, including those of other clients.
//!
//! Start at [`find`].

use remex_client::{
    Client,
    process::{NameRank, NamedProcess as _, ProcessInfo, ProcessRef, find_by_name},
};

use crate::{answer::ToolError, environment::Environment};

/// Lists the processes of this identity, the newest first; in a sandbox, only those that are in it for certain.
pub(crate) async fn list(environment: &Environment, client: &Client) -> Result<Vec<ProcessInfo>, ToolError> {
    let mut processes = client.processes().await?;
    if environment.is_confined() {
        // Input to an unconfined shell of another client would escape the sandbox.
        processes.retain(|process| process.session_id == client.session_id());
    }
    processes.sort_by_key(|process| std::cmp::Reverse(process.started_at_ms));
    Ok(processes)
}

/// Finds the process with this name: of several the one that runs, or else one that has left something running, or else
/// the one that started last.
///
/// A model knows whole names, so that a prefix is a mistake.
pub(crate) async fn find(
    environment: &Environment,
    client: &Client,
    name: &str,
) -> Result<(ProcessRef, ProcessInfo), ToolError> {
    let processes = list(environment, client).await?;
    let found = find_by_name(&processes, name).into_iter().next();
    let Some(found) = found.filter(|process| process.name_rank(name) == Some(NameRank::Name)) else {
        let known: Vec<_> = processes.iter().take(20).map(|process| process.process_id.as_str()).collect();
        let hint = match known.as_slice() {
            [] => "there are no processes on this environment; start one with `run_command`".to_owned(),
            known => format!("choose one of: {}", known.join(", ")),
        };
        return Err(ToolError::new(format!("there is no process `{name}`")).with_hint(hint));
    };
    Ok((client.process_ref(found.session_id.clone(), found.process_id.clone()), found.clone()))
}

/// Returns a name for a command that none has yet: its first word and some random letters.
pub(crate) fn name_for(command: &str) -> String {
    let word = command.split_whitespace().find(|word| !word.contains('=')).unwrap_or("command");
    let word = word.rsplit('/').next().unwrap_or(word);
    let word: String =
        word.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(20).collect();
    let word = if word.is_empty() { "command" } else { &word };
    let mut random = [0; 3];
    // Without random bytes the name may be taken, which the server reports.
    let _ = getrandom::fill(&mut random);
    format!("{word}-{:02x}{:02x}{:02x}", random[0], random[1], random[2])
}

/// Rejects a name that cannot be typed.
pub(crate) fn check_name(name: &str) -> Result<(), ToolError> {
    let is_word = !name.is_empty()
        && name.len() <= 64
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if is_word {
        return Ok(());
    }
    Err(ToolError::new(format!("`{name}` cannot be the name of a process"))
        .with_hint("use up to 64 letters, digits, `-`, `_` and `.`, beginning with a letter or a digit"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_begin_with_the_program_and_are_accepted() {
        for (command, prefix) in [
            ("make test", "make-"),
            ("RUST_LOG=debug /usr/bin/cargo run", "cargo-"),
            ("'quoted'", "quoted-"),
            ("(exit 3)", "exit-"),
            ("", "command-"),
            ("ä", "command-"),
        ] {
            let name = name_for(command);
            assert!(name.starts_with(prefix), "{name}");
            assert_eq!(check_name(&name), Ok(()), "{name}");
        }
        assert_ne!(name_for("make"), name_for("make"));
    }

    #[test]
    fn names_that_cannot_be_typed_are_refused() {
        for name in ["", "-rf", "a b", "a/b", &"x".repeat(65)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
