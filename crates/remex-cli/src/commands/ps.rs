//! `remex ps`: lists processes, including background ones.

use std::{collections::BTreeMap, io::IsTerminal as _, time::Duration};

use remex_client::process::{ExitCause, State};
use serde::Serialize;

use super::Outcome;
use crate::{
    args::ps::Flags,
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
    rows.retain(|listed| flags.all || listed.row.is_alive());
    if rows.is_empty() && all > 0 && !flags.quiet {
        print::note("no processes are running; `remex ps --all` includes exited ones");
    }
    print(flags, &rows).map(|()| code)
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
        return print::json(&Listing { processes: rows.iter().map(ProcessJson::of).collect() });
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
    let cells = rows.iter().map(|listed| (environment(&listed.environment), cells(&listed.row, now, short)));
    let [name, state, pid, age, cpu, memory, output, durable, command] = HEADING;
    if flags.all_envs {
        let cells: Vec<_> = cells
            .map(|(environment, [a, b, c, d, e, f, g, h, i])| [environment, a, b, c, d, e, f, g, h, i])
            .collect();
        let heading = ["ENV", name, state, pid, age, cpu, memory, output, durable, command];
        return print::table(heading, &cells);
    }
    print::table(HEADING, &cells.map(|(_, cells)| cells).collect::<Vec<_>>())
}

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

/// The JSON of `ps`; CLI.md documents it.
#[derive(Serialize)]
struct Listing<'a> {
    processes: Vec<ProcessJson<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProcessJson<'a> {
    name: &'a str,
    environment: &'a str,
    process_id: &'a str,
    session_id: &'a str,
    session_name: Option<&'a str>,
    client_name: &'a str,
    attached: bool,
    expires_at_ms: Option<u64>,
    argv: &'a [String],
    cwd: String,
    pid: Option<u32>,
    tty: bool,
    durable: bool,
    labels: &'a BTreeMap<String, String>,
    state: State,
    started_at_ms: u64,
    ended_at_ms: Option<u64>,
    exit_code: Option<i32>,
    signal: Option<&'a str>,
    cause: Option<ExitCause>,
    stdout_bytes: u64,
    stderr_bytes: u64,
    terminal_bytes: u64,
    retained_bytes: u64,
    cpu_ms: Option<u64>,
    resident_bytes: Option<u64>,
    living_pids: &'a [u32],
}

impl<'a> ProcessJson<'a> {
    fn of(listed: &'a Listed) -> Self {
        let row = &listed.row;
        let entry = &row.entry;
        Self {
            name: &row.name,
            environment: &listed.environment,
            process_id: &entry.process_id,
            session_id: &entry.session_id,
            session_name: row.session_name.as_deref(),
            client_name: &row.client_name,
            attached: row.attached,
            expires_at_ms: row.expires_at_ms,
            argv: &entry.argv,
            cwd: entry.cwd.native().map_or_else(|_| entry.cwd.to_uri(), |path| path.display().to_string()),
            pid: entry.pid,
            tty: entry.has_terminal,
            durable: entry.durable,
            labels: &entry.labels,
            state: entry.state,
            started_at_ms: entry.started_at_ms,
            ended_at_ms: entry.ended_at_ms,
            exit_code: entry.exit_code,
            signal: entry.signal.as_deref(),
            cause: entry.cause,
            stdout_bytes: entry.produced.stdout,
            stderr_bytes: entry.produced.stderr,
            terminal_bytes: entry.produced.pty,
            retained_bytes: entry.retained_bytes,
            cpu_ms: entry.cpu_ms,
            resident_bytes: entry.resident_bytes,
            living_pids: &entry.living_pids,
        }
    }
}
