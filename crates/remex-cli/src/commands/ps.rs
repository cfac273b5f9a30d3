//! `remex ps`: lists processes, including background ones.

use std::{io::IsTerminal as _, time::Duration};

use super::{
    Outcome,
    process_json::{Listing, ProcessJson},
};
use crate::{
    args::ps::{Filter, Flags, StateFilter},
    remote::{
        endpoint::{self, DefaultEndpoint, Endpoint},
        processes::{Processes, Row},
        user_server,
    },
    render::{
        failure::Failure,
        print,
        text::{age, line, now_ms, plain, size, within},
    },
};

/// Longer names are truncated on terminals; a prefix is enough to refer to a process.
const NAME_COLUMNS: usize = 20;

/// A process, and the name of its environment.
struct Listed {
    environment: String,
    row: Row,
}

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let (mut rows, code) = if flags.all_envs {
        everywhere().await?
    } else {
        let Some(endpoint) = flags.on.find(DefaultEndpoint::RunningUserServer).await? else {
            print::note(user_server::not_running().await.message());
            return print(flags, &[]).map(|()| 0);
        };
        if !flags.quiet && !flags.format.json {
            flags.on.note_default();
        }
        (list(&endpoint).await?, 0)
    };
    let all = rows.len();
    rows.retain(|listed| matches(&flags.filter, &listed.row));
    let matching = rows.len();
    // `--state` itself determines whether exited processes are included.
    rows.retain(|listed| flags.all || !flags.filter.state.is_empty() || listed.row.is_alive());
    if rows.is_empty() && all > 0 && !flags.quiet {
        print::note(match (matching, flags.filter.is_empty()) {
            (0, _) => "no process matches",
            (_, true) => "no processes are running; `remex ps --all` includes exited ones",
            (_, false) => "no process that matches is running; `remex ps --all` includes exited ones",
        });
    }
    print(flags, &rows).map(|()| code)
}

/// Returns whether a filter selects a process.
fn matches(filter: &Filter, row: &Row) -> bool {
    let has_name = |pattern: &String| {
        wildcard_matches(pattern, &row.name) || wildcard_matches(pattern, &row.entry.process_id)
    };
    let has_state = |state: &StateFilter| match state {
        StateFilter::Running => row.is_running(),
        StateFilter::Exited => !row.is_running(),
        StateFilter::Failed => !row.is_running() && row.entry.exit_code != Some(0),
        StateFilter::Left => row.survivors().is_some(),
    };
    let label = |name: &str| row.entry.labels.get(name);
    (filter.name.is_empty() || filter.name.iter().any(has_name))
        && filter.label.iter().all(|wanted| {
            label(&wanted.name).is_some_and(|value| wanted.value.as_ref().is_none_or(|text| text == value))
        })
        && (filter.state.is_empty() || filter.state.iter().any(has_state))
        && filter.since.is_none_or(|since| row.entry.started_at_ms >= since)
}

/// Returns whether a text matches a pattern in which `*` stands for any text and `?` for any character.
fn wildcard_matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<_>, Vec<_>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut read) = (0, 0);
    // Where the last `*` is, and how much of the text it stands for ends.
    let mut star = None;
    while read < text.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, read));
                at += 1;
            }
            Some(letter) if *letter == '?' || *letter == text[read] => (at, read) = (at + 1, read + 1),
            _ => match star {
                Some((star_at, end)) => {
                    (at, read) = (star_at + 1, end + 1);
                    star = Some((star_at, end + 1));
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|letter| *letter == '*')
}

async fn list(endpoint: &Endpoint) -> Result<Vec<Listed>, Failure> {
    let client = endpoint.connect(|_| {}).await?;
    let rows = Processes::list(&client).await?.rows;
    let _ = client.end().await;
    Ok(rows.into_iter().map(|row| Listed { environment: endpoint.name.clone(), row }).collect())
}

/// Lists the processes of all environments concurrently; reports unreachable ones, and returns exit code 4 for them.
async fn everywhere() -> Result<(Vec<Listed>, u8), Failure> {
    let configured = endpoint::environments()?;
    let mut looks = Vec::new();
    if let Some(socket) = user_server::running().await? {
        let endpoint = Endpoint::user_server(socket);
        looks.push(("local".to_owned(), tokio::spawn(async move { list(&endpoint).await })));
    }
    for definition in &configured.definitions.environments {
        let name = definition.id.to_string();
        let word = name.clone();
        looks.push((name, tokio::spawn(async move { list(&Endpoint::named(&word)?).await })));
    }
    let (mut rows, mut code) = (Vec::new(), 0);
    for (name, look) in looks {
        let listed = look.await.unwrap_or_else(|error| {
            Err(Failure::new("listing the processes ended early", "report this as a defect")
                .because(error.to_string()))
        });
        match listed {
            Ok(listed) => rows.extend(listed),
            Err(failure) => {
                failure.context(&name).print();
                code = 4;
            }
        }
    }
    Ok((rows, code))
}

fn print(flags: &Flags, rows: &[Listed]) -> Result<(), Failure> {
    if flags.format.json {
        let processes = rows.iter().map(|listed| ProcessJson::of(&listed.environment, &listed.row));
        return print::json(&Listing { processes: processes.collect() });
    }
    if flags.quiet {
        let names: String = rows.iter().map(|listed| plain(&listed.row.name) + "\n").collect();
        return print::out(names);
    }
    let now = now_ms();
    let short = std::io::stdout().is_terminal();
    let default = endpoint::default_environment().ok().flatten();
    let environment = |name: &str| match &default {
        Some(id) if id.as_str() == name => format!("{name} (default)"),
        _ => plain(name),
    };
    let cells: Vec<_> = rows
        .iter()
        .map(|listed| {
            let environment = flags.all_envs.then(|| environment(&listed.environment));
            environment.into_iter().chain(cells(&listed.row, now, short)).collect::<Vec<_>>()
        })
        .collect();
    let heading: Vec<_> = flags.all_envs.then_some("ENV").into_iter().chain(HEADING).collect();
    print::table_within(&heading, &cells, &DISPENSABLE)
}

/// The columns that a narrow terminal does without, the least important first.
const DISPENSABLE: [&str; 6] = ["DURABLE", "OUT", "CPU", "MEM", "AGE", "PID"];

const HEADING: [&str; 9] = ["NAME", "STATE", "PID", "AGE", "CPU", "MEM", "OUT", "DURABLE", "COMMAND"];

fn cells(row: &Row, now_ms: u64, short: bool) -> [String; 9] {
    let entry = &row.entry;
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let mut name = plain(&row.name);
    if short {
        name = within(&name, NAME_COLUMNS);
    }
    let mut state = row.outcome();
    if let Some(ended) = entry.ended_at_ms.filter(|_| !row.is_running()) {
        let ago = Duration::from_millis(now_ms.saturating_sub(ended));
        state.push_str(&format!(", {} ago", age(ago)));
    }
    if let Some(survivors) = row.survivors() {
        state.push_str(&format!(", {survivors}"));
    }
    [
        name,
        state,
        or_dash(pid(row)),
        age(row.age(now_ms)),
        or_dash(entry.cpu_ms.map(|ms| age(Duration::from_millis(ms)))),
        or_dash(entry.resident_bytes.map(size)),
        size(row.output_bytes()),
        row.durability().to_owned(),
        line(&entry.argv),
    ]
}

/// Returns the pid of the process, or those of its living descendants if it has exited.
fn pid(row: &Row) -> Option<String> {
    if row.is_running() {
        return row.entry.pid.map(|pid| pid.to_string());
    }
    let (first, others) = row.entry.living_pids.split_first()?;
    Some(if others.is_empty() { first.to_string() } else { format!("{first} +{}", others.len()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_stand_for_any_text() {
        for (pattern, text) in [
            ("build", "build"),
            ("b*", "build"),
            ("*", ""),
            ("*i?d", "build"),
            ("a*b*c", "a-b-b-c"),
            ("**", "x"),
        ] {
            assert!(wildcard_matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("build", "builder"), ("b?", "build"), ("?", ""), ("*x", "build"), ("", "x")]
        {
            assert!(!wildcard_matches(pattern, text), "{pattern} {text}");
        }
        // Must not take exponential time.
        assert!(!wildcard_matches(&("*a".repeat(50) + "b"), &"a".repeat(1000)));
    }
}
