//! What survives a server: its state directory, the keeper, and the systemd unit around them.
//!
//! Start at [`check`].

use std::time::Duration;

use remex_client::{Client, Command, Error};
use remex_proto::environment::{Keeper, State};

use super::host::Host;
use crate::{
    remote::unit::{Manager, Unit},
    render::{
        finding::{Finding, Verdict},
        text::{plain, size},
    },
};

const NAME: &str = "durable processes";

/// From this part of the quota on, logs of closed processes are about to be deleted.
const NEARLY_FULL_PERCENT: u64 = 90;

/// Checks what a server keeps, and whether it survives the unit and the logout, within a limit of its own: a keeper that
/// does not respond may have used up that of the checks before.
pub(super) async fn check(client: &Client, limit: Duration) -> Vec<Finding> {
    tokio::time::timeout(limit, findings(client)).await.unwrap_or_else(|_| {
        vec![
            Finding::new(NAME, Verdict::Failed, "timed out")
                .with_hint("raise `--timeout`, or find out what blocks the server"),
        ]
    })
}

async fn findings(client: &Client) -> Vec<Finding> {
    let state = client.durable_state().await;
    let keeper = state.as_ref().ok().and_then(|state| state.as_ref()?.keeper.clone());
    let mut findings = vec![kept(&state)];
    if let Ok(Some(State { directory: Some(_), .. })) = &state {
        findings.push(self::keeper(keeper.as_ref()));
    }
    if let Some(keeper) = keeper {
        findings.extend(unit(client, &keeper).await);
    }
    findings
}

/// Reports whether processes are kept, where, and how much of the quota that takes.
fn kept(state: &Result<Option<State>, Error>) -> Finding {
    let state = match state {
        Ok(None) => {
            return Finding::ok(NAME, "none: this server has no state directory, so processes end with it");
        }
        Ok(Some(state)) => state,
        Err(error) => return Finding::new(NAME, Verdict::Skipped, plain(&error.message())),
    };
    let Some(directory) = &state.directory else {
        return Finding::ok(NAME, "kept; with the scope `metrics`, the server also says where");
    };
    let directory = directory.native().map_or_else(|_| directory.to_uri(), |path| path.display().to_string());
    let count = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let counts =
        format!("{} running, {} ended", count(state.running_processes), count(state.ended_processes));
    let place = plain(&directory);
    match (state.used_bytes, state.quota_bytes) {
        (Some(used), Some(quota)) if quota > 0 => {
            let percent = u128::from(used) * 100 / u128::from(quota);
            let what = format!("{counts}; {} of {} ({percent} %) used in `{place}`", size(used), size(quota));
            if percent >= u128::from(NEARLY_FULL_PERCENT) {
                return Finding::new(NAME, Verdict::Warning, what).with_hint(
                    "remove ended processes with `remex prune`, or raise `disk_bytes` of the server",
                );
            }
            Finding::ok(NAME, what)
        }
        _ => Finding::ok(NAME, format!("{counts}; in `{place}`")),
    }
}

/// Reports whether the process that runs durable processes responds.
fn keeper(keeper: Option<&Keeper>) -> Finding {
    const NAME: &str = "keeper";
    match keeper {
        None => Finding::new(NAME, Verdict::Warning, "it has died, and the server starts another one")
            .with_hint("see `keeper.log` in the state directory"),
        Some(Keeper { pid, responds: false, .. }) => {
            Finding::new(NAME, Verdict::Failed, format!("it does not respond (pid {pid})"))
                .with_hint(format!("if it is suspended, `kill -CONT {pid}` on that host resumes it"))
        }
        Some(Keeper { pid, version, .. }) => {
            let version = version.as_deref().map(|version| format!(", remex {}", plain(version)));
            Finding::ok(NAME, format!("responds (pid {pid}{})", version.unwrap_or_default()))
        }
    }
}

/// Reports what systemd ends together with the server, or at the logout.
async fn unit(client: &Client, keeper: &Keeper) -> Option<Finding> {
    let host = Host::There(client);
    let of = async |path: String| Unit::of(&host.read(&path).await?);
    let server = of("/proc/self/cgroup".to_owned()).await;
    let kept = of(format!("/proc/{}/cgroup", keeper.pid)).await?;
    let is_ended_with_server = server.as_ref() == Some(&kept) && kept.is_service();
    let kill_mode = if is_ended_with_server { kill_mode(client, &kept).await } else { None };
    let lingers = kept.manager == Manager::System || lingers(client).await;
    Some(judge(server.as_ref(), &kept, kill_mode.as_deref(), lingers))
}

fn judge(server: Option<&Unit>, kept: &Unit, kill_mode: Option<&str>, lingers: bool) -> Finding {
    const NAME: &str = "systemd unit";
    const HINT: &str = "set `KillMode=process` in the unit, and reload it with `systemctl daemon-reload`";
    let name = plain(&kept.name);
    let warn = |what: String| Finding::new(NAME, Verdict::Warning, what).with_hint(HINT);
    match (server == Some(kept) && kept.is_service(), kill_mode) {
        (true, Some("process" | "none")) if lingers => {
            Finding::ok(NAME, format!("restarting `{name}` leaves the keeper and its processes alone"))
        }
        (true, None) => warn(format!(
            "restarting `{name}` kills the keeper and its processes, unless it has `KillMode=process`"
        )),
        (true, Some(mode)) if !matches!(mode, "process" | "none") => warn(format!(
            "`{name}` has `KillMode={}`: restarting it kills the keeper and its processes",
            plain(mode)
        )),
        _ if !lingers => Finding::new(
            NAME,
            Verdict::Warning,
            format!("`{name}`, which has the keeper, ends when you log out"),
        )
        .with_hint("run `loginctl enable-linger`"),
        _ => Finding::ok(NAME, format!("the keeper has its own, `{name}`")),
    }
}

async fn kill_mode(client: &Client, unit: &Unit) -> Option<String> {
    let arguments = [unit.manager.flag(), "show", "--property=KillMode", "--value", "--", &unit.name];
    let output = Command::new("systemctl").args(arguments).durable(false).output(client).await.ok()?;
    let mode = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (!mode.is_empty()).then_some(mode)
}

/// Returns whether the user's manager runs on after the logout, as far as that can be found out.
async fn lingers(client: &Client) -> bool {
    let script = "test ! -d /var/lib/systemd || test -e \"/var/lib/systemd/linger/$(id -un)\"";
    match Command::shell(script).durable(false).output(client).await {
        Ok(output) => output.exit.code == 0,
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(path: &str) -> Unit {
        Unit::of(&format!("0::{path}\n")).expect("it has a unit")
    }

    #[test]
    fn a_keeper_in_the_unit_of_the_server_survives_it_only_with_the_right_kill_mode() {
        let server = unit("/system.slice/remex.service");
        let scope = unit("/system.slice/run-r1.scope");
        for (kept, mode, lingers, verdict, part) in [
            (&server, Some("process"), true, Verdict::Ok, "leaves the keeper"),
            (
                &server,
                Some("control-group"),
                true,
                Verdict::Warning,
                "`KillMode=control-group`: restarting it kills",
            ),
            (&server, Some("mixed"), false, Verdict::Warning, "`KillMode=mixed`: restarting it kills"),
            (&server, None, true, Verdict::Warning, "unless it has `KillMode=process`"),
            (&server, Some("process"), false, Verdict::Warning, "when you log out"),
            (&scope, None, true, Verdict::Ok, "its own, `run-r1.scope`"),
            (&scope, None, false, Verdict::Warning, "when you log out"),
        ] {
            let found = judge(Some(&server), kept, mode, lingers);
            assert_eq!(found.verdict, verdict, "{kept:?} {mode:?} {lingers}");
            assert!(found.what.contains(part), "{}", found.what);
        }
    }

    #[test]
    fn a_nearly_full_quota_is_a_warning() {
        let state = |used: u64| {
            let mut state = State::default();
            state.directory = Some(std::path::PathBuf::from("/state").into());
            (state.used_bytes, state.quota_bytes) = (Some(used), Some(1 << 30));
            (state.running_processes, state.ended_processes) = (Some(2), Some(5));
            kept(&Ok(Some(state)))
        };
        let half = state(1 << 29);
        assert_eq!(half.what, "2 running, 5 ended; 512MiB of 1.0GiB (50 %) used in `/state`");
        assert_eq!((half.verdict, state(1 << 30).verdict), (Verdict::Ok, Verdict::Warning));
        assert_eq!(state(u64::MAX).verdict, Verdict::Warning, "a lowered quota may be exceeded");
        let silent = keeper(Some(&Keeper::default()));
        assert_eq!(silent.verdict, Verdict::Failed);
    }
}
