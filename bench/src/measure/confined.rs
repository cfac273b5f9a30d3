//! What confinement costs a start, and what a confined process holds while it idles.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Figures, Goal, Measure, Row, Scale, Tally, Unit};
use crate::{Stdio, client::Client, message::Message, server::Server, stats::percentile_us};

const WARM_UP: usize = 20;

pub(super) const SPAWN: Measure = Measure {
    name: "spawn-confined",
    server: spawn,
    bare: None,
    rows: &[
        Row::alone("`/bin/true` in a sandbox, p50", Unit::Microseconds, "p50", Goal::None),
        Row::alone("`/bin/true` in a sandbox, p99", Unit::Microseconds, "p99", Goal::None),
        Row::alone("its p50, over that without a sandbox", Unit::Count, "ratio", Goal::AtMost(3.0)),
        Row::alone("start until its answer, in a sandbox, p50", Unit::Microseconds, "start", Goal::None),
        Row::alone("the same, over that without a sandbox", Unit::Count, "start-ratio", Goal::AtMost(3.0)),
    ],
};

/// Returns the sandbox that Codex asks for by default, with one writable directory.
pub(super) fn profile(root: &str, patterns: &[&str]) -> Value {
    let special =
        |access: &str, value| json!({"path": {"type": "special", "value": value}, "access": access});
    let mut entries =
        vec![special("read", json!({"kind": "root"})), special("write", json!({"kind": "project_roots"}))];
    for name in [".git", ".agents", ".codex", ".aws"] {
        let mut entry = special("read", json!({"kind": "project_roots", "subpath": name}));
        entry["missing_path_behavior"] = json!("skip");
        entries.push(entry);
    }
    entries.extend(
        patterns
            .iter()
            .map(|pattern| json!({"path": {"type": "glob_pattern", "pattern": pattern}, "access": "deny"})),
    );
    json!({
        "permissions": {
            "type": "managed",
            "file_system": {"type": "restricted", "entries": entries},
            "network": "restricted",
        },
        "windowsSandboxLevel": "disabled",
        "workspaceRoots": [root],
    })
}

/// Runs `/bin/true` with and without a sandbox, in turns.
fn spawn(server: &Server, scale: &Scale) -> Result<Figures> {
    let workspace = TempDir::new()?;
    let confined = profile(&format!("file://{}", workspace.path().display()), &[]);
    let mut client = server.connect()?;
    for _ in 0..WARM_UP {
        once(&mut client, &Value::Null)?;
        once(&mut client, &confined)?;
    }
    let (mut open_starts, mut open_runs) = (Vec::new(), Vec::new());
    let (mut starts, mut runs) = (Vec::new(), Vec::new());
    for _ in 0..scale.spawns {
        let (start, run) = once(&mut client, &Value::Null)?;
        open_starts.push(start);
        open_runs.push(run);
        let (start, run) = once(&mut client, &confined)?;
        starts.push(start);
        runs.push(run);
    }
    let (start, run) = (percentile_us(&mut starts, 50), percentile_us(&mut runs, 50));
    Ok(vec![
        ("p50", run),
        ("p99", percentile_us(&mut runs, 99)),
        ("ratio", run / percentile_us(&mut open_runs, 50)),
        ("start", start),
        ("start-ratio", start / percentile_us(&mut open_starts, 50)),
    ])
}

/// Returns how long the answer to the start took, and the whole run.
fn once(client: &mut Client, sandbox: &Value) -> Result<(Duration, Duration)> {
    let begin = Instant::now();
    let process = client.start_in(sandbox, &["/bin/true"], Stdio::Pipe)?;
    let (mut tally, mut started) = (Tally::of(process), None);
    loop {
        let message = client.next_message()?;
        if let Message::Reply { .. } = &message {
            started.get_or_insert_with(|| begin.elapsed());
        }
        if tally.note(&message)? {
            return Ok((started.unwrap_or_default(), begin.elapsed()));
        }
    }
}
