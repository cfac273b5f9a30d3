//! `remex ps`: which processes there are, also those that were left running.

use std::{collections::BTreeMap, io::IsTerminal as _};

use clap::Args;
use remex_proto::process::{ExitCause, State};
use serde::Serialize;

use super::Outcome;
use crate::{
    failure::Failure,
    find::{Processes, Row},
    own,
    place::{On, Otherwise},
    print::{self, Format},
    text::{age, line, now_ms, plain, size},
};

/// Flags of `remex ps`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    #[command(flatten)]
    on: On,

    /// Show also what has ended and is still remembered
    #[arg(short, long)]
    all: bool,

    /// Print names alone, one a line, for scripts
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,

    #[command(flatten)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  What was left running on this machine:
    remex ps
  Also what has ended:
    remex ps --all
  On another machine, for a program:
    remex ps --on build --json
  End everything that runs:
    remex ps -q | xargs -r remex kill --tree
";

/// The longest name that is shown whole on a terminal; its beginning is enough to name it.
const NAME_CHARACTERS: usize = 20;

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let Some(place) = flags.on.find(Otherwise::OwnIfThere).await? else {
        print::note(own::not_running().await.what());
        return print(flags, &[]).map(|()| 0);
    };
    let client = place.connect(|_| {}).await?;
    let mut rows = Processes::list(&client).await?.rows;
    let _ = client.end().await;
    let all = rows.len();
    rows.retain(|row| flags.all || row.lives());
    if rows.is_empty() && all > 0 && !flags.quiet {
        print::note("nothing is running; `remex ps --all` shows what has ended");
    }
    print(flags, &rows).map(|()| 0)
}

fn print(flags: &Flags, rows: &[Row]) -> Result<(), Failure> {
    if flags.format.json {
        return print::json(&Listing { processes: rows.iter().map(Shown::of).collect() });
    }
    if flags.quiet {
        let names: String = rows.iter().map(|row| plain(&row.name) + "\n").collect();
        return print::out(names);
    }
    let now = now_ms();
    let short = std::io::stdout().is_terminal();
    let rows: Vec<_> = rows.iter().map(|row| cells(row, now, short)).collect();
    print::table(["NAME", "STATE", "PID", "AGE", "CPU", "MEM", "OUT", "COMMAND"], &rows)
}

fn cells(row: &Row, now_ms: u64, short: bool) -> [String; 8] {
    let entry = &row.entry;
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let mut name = plain(&row.name);
    if short && name.chars().count() > NAME_CHARACTERS {
        name = name.chars().take(NAME_CHARACTERS - 1).chain(['…']).collect();
    }
    [
        name,
        row.state(),
        or_dash(pid(row)),
        age(row.age(now_ms)),
        or_dash(entry.cpu_ms.map(|ms| age(std::time::Duration::from_millis(ms)))),
        or_dash(entry.resident_bytes.map(size)),
        size(row.said_bytes()),
        line(&entry.argv),
    ]
}

/// Names its own process, or what lives of one that has ended.
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
    processes: Vec<Shown<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    name: &'a str,
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

impl<'a> Shown<'a> {
    fn of(row: &'a Row) -> Self {
        let entry = &row.entry;
        Self {
            name: &row.name,
            process_id: &entry.process_id,
            session_id: &entry.session_id,
            session_name: row.session_name.as_deref(),
            client_name: &row.client_name,
            attached: row.attached,
            expires_at_ms: row.expires_at_ms,
            argv: &entry.argv,
            cwd: entry.cwd.native().map_or_else(|_| entry.cwd.to_uri(), |path| path.display().to_string()),
            pid: entry.pid,
            tty: entry.tty,
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
