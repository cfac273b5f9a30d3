//! `remex gc`: removes the logs of durable processes that are no longer needed.

use std::{collections::BTreeSet, path::Path, time::Duration};

use remex_base::clock::millis;
use remex_proto::process::{Collect, Collected, CollectedProcess, Scope};
use serde::Serialize;

use super::Outcome;
use crate::{
    args::{
        gc::Flags,
        shared::{Format, OnOrigin},
    },
    remote::{endpoint::DefaultEndpoint, probe::is_unknown_method, processes::Processes, user_server},
    render::{
        failure::Failure,
        print,
        text::{age, amount, now_ms, plain},
    },
};

pub(crate) async fn run(flags: &Flags) -> Outcome {
    let request = Collect {
        scope: if flags.all_identities { Scope::All } else { Scope::Identity },
        older_than_ms: flags.older_than.map(millis),
        keep_bytes: flags.keep_bytes,
        dry_run: flags.dry_run,
    };
    match &flags.state {
        Some(state) => {
            // REMEX_ON selects where commands run that name nothing themselves.
            if flags.on.on.is_some() && flags.on.origin == OnOrigin::Flag {
                let what = "`--state` and `--on` exclude each other";
                return Err(Failure::usage(what, "omit one of them"));
            }
            report(&in_directory(state, &request)?, &request, &flags.format)?;
        }
        None => {
            let Some(endpoint) = flags.on.find(DefaultEndpoint::RunningUserServer).await? else {
                print::note(user_server::not_running().await.message());
                if flags.format.json {
                    print::json(&Listing::of(&Collected::default(), &request))?;
                }
                return Ok(0);
            };
            let client = endpoint.connect(|_| {}).await?;
            let collected = client.call(request.clone()).await.map_err(|error| {
                if is_unknown_method(&error) {
                    let hint = "update remex on that host, or use `remex prune`";
                    return Failure::new("this server cannot collect logs", hint)
                        .because("it has no method `process/collect`");
                }
                error.into()
            })?;
            let said = report(&collected, &request, &flags.format);
            if !request.dry_run {
                let sessions: BTreeSet<_> =
                    collected.processes.iter().map(|process| process.session_id.as_str()).collect();
                Processes::list(&client).await?.end_empty(&sessions).await?;
            }
            said?;
            let _ = client.end().await;
        }
    }
    Ok(0)
}

#[cfg(target_os = "linux")]
fn in_directory(state: &Path, request: &Collect) -> Result<Collected, Failure> {
    remex_engine::collect_state(state, request)
        .map_err(|error| Failure::new("cannot collect logs", error.hint()).because(error.message()))
}

#[cfg(not(target_os = "linux"))]
fn in_directory(_: &Path, _: &Collect) -> Result<Collected, Failure> {
    crate::remote::local_server::check().map(|()| Collected::default())
}

/// The JSON of `gc`; docs/json.md documents it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listing<'a> {
    dry_run: bool,
    /// The first of those that are removed; `count` has all.
    processes: Vec<ProcessJson<'a>>,
    count: u64,
    freed_bytes: u64,
    kept_count: u64,
    kept_bytes: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProcessJson<'a> {
    process_id: &'a str,
    session_id: &'a str,
    identity: Option<&'a str>,
    ended_at_ms: u64,
    log_bytes: u64,
}

impl<'a> Listing<'a> {
    fn of(collected: &'a Collected, request: &Collect) -> Self {
        let processes = collected.processes.iter().map(|process| ProcessJson {
            process_id: &process.process_id,
            session_id: &process.session_id,
            identity: process.identity.as_deref(),
            ended_at_ms: process.ended_at_ms,
            log_bytes: process.bytes,
        });
        Self {
            dry_run: request.dry_run,
            processes: processes.collect(),
            count: collected.count,
            freed_bytes: collected.bytes,
            kept_count: collected.kept_count,
            kept_bytes: collected.kept_bytes,
        }
    }
}

fn report(collected: &Collected, request: &Collect, format: &Format) -> Result<(), Failure> {
    if format.json {
        return print::json(&Listing::of(collected, request));
    }
    let verb = if request.dry_run { "would remove" } else { "removed" };
    let mut text = String::new();
    for process in &collected.processes {
        text.push_str(&format!("{verb} {}\n", described(process)));
    }
    match collected.count - (collected.processes.len() as u64).min(collected.count) {
        0 => {}
        more => text.push_str(&format!("{verb} {more} more\n")),
    }
    let frees = if request.dry_run { "would free" } else { "freed" };
    let kept = match collected.kept_count {
        0 => String::new(),
        count => format!("; kept {}, {}", processes(count), amount(collected.kept_bytes)),
    };
    text.push_str(&format!("{frees} {} of {}{kept}\n", amount(collected.bytes), processes(collected.count)));
    print::out(text)
}

fn described(process: &CollectedProcess) -> String {
    let ago = Duration::from_millis(now_ms().saturating_sub(process.ended_at_ms));
    let identity = process.identity.as_deref().map(|identity| format!(" of {}", plain(identity)));
    format!(
        "`{}`{} (ended {} ago, {})",
        plain(&process.process_id),
        identity.unwrap_or_default(),
        age(ago),
        amount(process.bytes)
    )
}

fn processes(count: u64) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}
