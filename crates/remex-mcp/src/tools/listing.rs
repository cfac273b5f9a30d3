//! Lists of processes.

use std::time::Duration;

use remex_base::clock::now_ms;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::{Tools, command::LIST_TIME};
use crate::{
    answer::{Answer, ToolResult},
    processes,
};

/// The parameters of `list_processes`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListProcesses {
    /// Default: all that are connected.
    environment: Option<String>,
    /// Only those that run, or that have ended.
    running: Option<bool>,
    /// Only those whose name or command contains this.
    filter: Option<String>,
}

/// What `list_processes` returns.
#[derive(Debug, Serialize)]
pub(super) struct ListedProcesses {
    processes: Vec<ListedProcess>,
    /// Environments whose processes could not be listed, and why.
    failures: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ListedProcess {
    process: String,
    environment: String,
    running: bool,
    exit_code: Option<i32>,
    command: Vec<String>,
    seconds: u64,
    output_bytes: u64,
}

impl Tools {
    pub(super) async fn list_processes(&self, params: ListProcesses) -> Answer {
        let environments = match &params.environment {
            Some(name) => vec![self.environment(Some(name))?],
            None => {
                let mut environments = vec![self.environment(None)?];
                for other in &self.shared.environments[1..] {
                    if other.was_connected() {
                        environments.push(other);
                    }
                }
                environments
            }
        };
        let (mut listed, mut failures) = (Vec::new(), Vec::new());
        let is_only = environments.len() == 1;
        for environment in environments {
            let listing = async { processes::list(environment, &environment.client().await?).await };
            // One that does not respond must not hide the others; alone, it may take its time to connect.
            let limit = if is_only { Duration::MAX } else { LIST_TIME };
            let found = match timeout(limit, listing).await {
                Ok(Ok(found)) => found,
                Ok(Err(error)) if is_only => return Err(error),
                Ok(Err(error)) => {
                    failures.push(format!("{}: {error}", environment.name()));
                    continue;
                }
                Err(_) => {
                    failures.push(format!("{}: it does not respond", environment.name()));
                    continue;
                }
            };
            let now = now_ms();
            for process in found {
                let is_running = process.is_running();
                let fits = |text: &str| {
                    process.process_id.contains(text) || process.argv.iter().any(|arg| arg.contains(text))
                };
                if params.running.is_some_and(|wanted| wanted != is_running)
                    || params.filter.as_deref().is_some_and(|text| !fits(text))
                {
                    continue;
                }
                let until = process.ended_at_ms.unwrap_or(now);
                listed.push(ListedProcess {
                    running: is_running,
                    environment: environment.name().to_owned(),
                    exit_code: process.exit_code,
                    seconds: until.saturating_sub(process.started_at_ms) / 1000,
                    output_bytes: process.produced.stdout + process.produced.stderr + process.produced.pty,
                    process: process.process_id,
                    command: process.argv,
                });
            }
        }
        let mut lines: Vec<_> = listed.iter().map(ListedProcess::line).collect();
        if lines.is_empty() && failures.is_empty() {
            let is_filtered = params.running.is_some() || params.filter.is_some();
            lines.push(if is_filtered { "no process fits" } else { "there are no processes" }.to_owned());
        }
        lines.extend(failures.iter().map(|failure| format!("[not listed: {failure}]")));
        Ok(ToolResult::new(lines.join("\n"), &ListedProcesses { processes: listed, failures }))
    }
}

impl ListedProcess {
    fn line(&self) -> String {
        let state = match self.exit_code {
            _ if self.running => "running".to_owned(),
            Some(code) => format!("ended with code {code}"),
            None => "ended".to_owned(),
        };
        let command = match self.command.as_slice() {
            [shell, flag, line, ..] if shell.ends_with("sh") && flag == "-c" => line.clone(),
            argv => argv.join(" "),
        };
        let command: String =
            command.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
        format!(
            "{} on {}: {state}, {} s, {} bytes of output: {command}",
            self.process, self.environment, self.seconds, self.output_bytes
        )
    }
}
