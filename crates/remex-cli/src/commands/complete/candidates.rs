//! Completion candidates: commands, options, environments, processes and paths.
//!
//! The user is typing, so this takes at most [`DEADLINE`]: it prints only candidates, starts no server, runs no program of
//! an environment, and prompts for nothing. Start at [`candidates`]; [`Line`] finds out what can be completed.

use std::time::Duration;

use remex::environments::configured;
use remex_client::Target;

use super::paths;
use crate::{
    args::{
        line::{Candidate, Expected, Line},
        signal,
    },
    remote::{
        endpoint::Endpoint,
        processes::Processes,
        user_server::{self, ServerStatus},
    },
    render::text,
};

/// The time limit; candidates that are not found by then are not offered.
const DEADLINE: Duration = Duration::from_secs(1);

/// Returns the candidates for the last of these words; the first is `remex`.
pub(crate) async fn candidates(words: &[String]) -> Vec<Candidate> {
    let line = Line::read(words);
    let found = tokio::time::timeout(DEADLINE, values(&line)).await.unwrap_or_default();
    let mut found: Vec<_> = found
        .into_iter()
        .map(|candidate| Candidate::new(format!("{}{}", line.before, candidate.word), candidate.about))
        // Leave out names with control characters, such as newlines.
        .filter(|candidate| {
            candidate.word.starts_with(line.word) && text::plain(&candidate.word) == candidate.word
        })
        .collect();
    found.sort();
    found.dedup_by(|one, other| one.word == other.word);
    found
}

async fn values(line: &Line<'_>) -> Vec<Candidate> {
    match &line.expected {
        Expected::Nothing => Vec::new(),
        Expected::Words(words) => words.clone(),
        Expected::Environment => environments(""),
        Expected::Signal => signal::NUMBERS
            .iter()
            .map(|(_, name)| Candidate::new(name.name().trim_start_matches("SIG"), ""))
            .collect(),
        Expected::Process => processes(line.on.as_deref()).await.unwrap_or_default(),
        Expected::Program => paths::programs(line.value),
        Expected::LocalPath => paths::here(line.value),
        Expected::ProcessOrPath if line.value.contains(':') => paths::anywhere(line.value).await,
        Expected::ProcessOrPath => {
            let mut found = processes(line.on.as_deref()).await.unwrap_or_default();
            found.extend(environments(":"));
            found
        }
        Expected::Path => {
            let mut found = paths::anywhere(line.value).await;
            if !line.value.contains([':', '/']) {
                found.extend(environments(":"));
            }
            found
        }
    }
}

/// Returns the names of the environments, each with `suffix`.
fn environments(suffix: &str) -> Vec<Candidate> {
    let Ok(configured) = configured(|name| std::env::var_os(name)) else { return Vec::new() };
    let all = configured.definitions.environments;
    all.into_iter().map(|one| Candidate::new(format!("{}{suffix}", one.id), one.target.to_string())).collect()
}

/// Returns the processes of a server, if it can be queried.
async fn processes(on: Option<&str>) -> Option<Vec<Candidate>> {
    let endpoint = match on {
        Some(word) if word != "local" => quiet_endpoint(word)?,
        _ => match user_server::find().await {
            Ok(ServerStatus::Running(socket)) => Endpoint::user_server(socket),
            _ => return None,
        },
    };
    let client = endpoint.connect(|options| options.connect_timeout = DEADLINE).await.ok()?;
    let rows = Processes::list(&client).await.ok()?.rows;
    let found = rows
        .iter()
        .map(|row| Candidate::new(&row.name, format!("{}: {}", row.state(), text::line(&row.entry.argv))));
    Some(found.collect())
}

/// Finds an environment or address that is reached without a program, which might prompt for a password or start a
/// server.
pub(super) fn quiet_endpoint(word: &str) -> Option<Endpoint> {
    let endpoint = Endpoint::named(word).ok()?;
    (!matches!(endpoint.target, Target::Program(_))).then_some(endpoint)
}
