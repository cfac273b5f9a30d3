//! Processes as JSON, for `ps` and `inspect`.

use std::collections::BTreeMap;

use remex_client::process::{ExitCause, State};
use serde::Serialize;

use crate::remote::processes::Row;

/// The JSON of `ps` and `inspect`; docs/json.md documents it.
#[derive(Serialize)]
pub(super) struct Listing<'a> {
    pub(super) processes: Vec<ProcessJson<'a>>,
}

/// One process in it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProcessJson<'a> {
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
    user: Option<&'a str>,
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
    pub(super) fn of(environment: &'a str, row: &'a Row) -> Self {
        let entry = &row.entry;
        Self {
            name: &row.name,
            environment,
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
            user: entry.user.as_deref(),
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
