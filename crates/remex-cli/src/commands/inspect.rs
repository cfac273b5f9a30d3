//! `remex inspect`: prints everything that the server knows about a process.

use std::time::Duration;

use super::{
    Outcome,
    process_json::{Listing, ProcessJson},
};
use crate::{
    args::inspect::Flags,
    remote::{
        endpoint::DefaultEndpoint,
        processes::{Processes, Row},
    },
    render::{
        local_time::Zone,
        print::{self, Colour, Tone},
        text::{age, line, now_ms, padded, plain, size},
    },
};

/// The width of the names of the fields.
const FIELD_COLUMNS: usize = 12;

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let endpoint = flags.on.endpoint(DefaultEndpoint::RunningUserServer).await?;
    let client = endpoint.connect(|_| {}).await?;
    let processes = Processes::list(&client).await?;
    let _ = client.end().await;
    let rows = processes.find_all(&flags.names)?;
    if flags.format.json {
        let processes = rows.iter().map(|row| ProcessJson::of(&endpoint.name, row)).collect();
        print::json(&Listing { processes })?;
        return Ok(0);
    }
    let (now, colour) = (now_ms(), Colour::of_stdout());
    let shown: Vec<_> = rows.iter().map(|row| described(&endpoint.name, row, now, colour)).collect();
    print::out(shown.join("\n"))?;
    Ok(0)
}

/// Describes a process, one line for each field.
fn described(environment: &str, row: &Row, now_ms: u64, colour: Colour) -> String {
    let fields = fields(environment, row, now_ms);
    fields
        .map(|(field, value)| colour.paint(Tone::Bold, &padded(field, FIELD_COLUMNS)) + &value + "\n")
        .collect()
}

fn fields(environment: &str, row: &Row, now_ms: u64) -> impl Iterator<Item = (&'static str, String)> {
    let entry = &row.entry;
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let cwd = entry.cwd.native().map_or_else(|_| entry.cwd.to_uri(), |path| path.display().to_string());
    let living: Vec<_> = entry.living_pids.iter().map(u32::to_string).collect();
    let cpu = entry.cpu_ms.map(|ms| age(Duration::from_millis(ms)));
    let fields = [
        ("name", Some(plain(&row.name))),
        ("command", Some(line(&entry.argv))),
        ("directory", Some(plain(&cwd))),
        ("user", entry.user.as_deref().map(plain)),
        ("state", Some(state(row))),
        ("pid", entry.pid.filter(|_| row.is_running()).map(|pid| pid.to_string())),
        ("alive", (!living.is_empty()).then(|| format!("{} (pids {})", living.len(), living.join(", ")))),
        ("started", Some(moment(entry.started_at_ms, now_ms))),
        ("exited", entry.ended_at_ms.map(|at| moment(at, now_ms))),
        ("ran for", entry.ended_at_ms.map(|_| age(row.age(now_ms)))),
        ("CPU time", cpu),
        ("memory", entry.resident_bytes.map(size)),
        ("output", Some(output(row))),
        ("terminal", Some(yes(entry.has_terminal))),
        ("durable", Some(yes(entry.durable))),
        ("labels", (!entry.labels.is_empty()).then(|| labels(row))),
        ("environment", Some(plain(environment))),
        ("session", Some(session(row))),
        ("client", Some(client(row, now_ms))),
    ];
    fields.into_iter().filter_map(|(field, value)| Some((field, value?)))
}

/// Describes its state, and how it ended: `running`, `exited with code 3`.
fn state(row: &Row) -> String {
    let state = if row.is_running() {
        row.outcome()
    } else {
        let clause = row.exit_clause();
        clause.strip_prefix("it ").map(str::to_owned).unwrap_or(clause)
    };
    match row.survivors() {
        Some(survivors) => format!("{state}, {survivors}"),
        None => state,
    }
}

/// Formats a time with how long ago it was.
fn moment(ms: u64, now_ms: u64) -> String {
    let ago = age(Duration::from_millis(now_ms.saturating_sub(ms)));
    format!("{} ({ago} ago)", Zone::Local.column(i64::try_from(ms).unwrap_or(i64::MAX)))
}

/// Describes how much it has written to which stream.
fn output(row: &Row) -> String {
    let said = &row.entry.produced;
    let streams = [("stdout", said.stdout), ("stderr", said.stderr), ("terminal", said.pty)];
    let written: Vec<_> = streams
        .iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(name, bytes)| format!("{} {name}", size(*bytes)))
        .collect();
    match written[..] {
        [] => "none".to_owned(),
        _ => format!("{}; the server keeps {}", written.join(", "), size(row.entry.retained_bytes)),
    }
}

fn labels(row: &Row) -> String {
    let label = |(name, value): (&String, &String)| plain(&format!("{name}={value}"));
    row.entry.labels.iter().map(label).collect::<Vec<_>>().join(", ")
}

fn session(row: &Row) -> String {
    let id = plain(&row.entry.session_id);
    match &row.session_name {
        Some(name) => format!("{} (id {id})", plain(name)),
        None => id,
    }
}

/// Describes the client of its session.
fn client(row: &Row, now_ms: u64) -> String {
    let name = plain(&row.client_name);
    match (row.attached, row.expires_at_ms) {
        (true, _) => format!("{name}, connected"),
        (false, None) => format!("{name}, not connected"),
        (false, Some(at)) => {
            let left = age(Duration::from_millis(at.saturating_sub(now_ms)));
            format!("{name}, not connected; the session ends in {left} unless it reconnects")
        }
    }
}
