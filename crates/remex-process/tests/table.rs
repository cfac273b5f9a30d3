//! The table of decisions about sandboxes, tried in real jails.

#![allow(
    unsafe_code,
    clippy::unwrap_used,
    reason = "a filter of system calls; and in a test it is the assertion"
)]

mod harness;
mod inmate;

use std::{
    fs::{self, OpenOptions, Permissions},
    io,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use inmate::{confined, jail, orders, own_files, report, reports, resolved};
use remex_process::JailError;
use remex_proto::sandbox::{Access, Context, Entry, EntryPath, FileSystem, Permissions as Profile};
use remex_sandbox::{
    Action, SystemHost,
    testing::{Case, Expected, Scenario, scenarios},
};

/// What the confined program runs as.
#[test]
fn inside() {
    for line in orders().iter().flat_map(|orders| orders.lines()) {
        let (action, path) = line.split_once(' ').unwrap();
        let result = attempt(action, Path::new(path));
        report(&format!("{line}: {}", result.map_or_else(|error| error.to_string(), |()| "done".to_owned())));
    }
}

/// Tries an action, and undoes it.
fn attempt(action: &str, path: &Path) -> io::Result<()> {
    match action {
        "read" if path.is_dir() => fs::read_dir(path).map(drop),
        "read" => fs::read(path).map(drop),
        "write" if path.is_dir() => {
            let mode = fs::metadata(path)?.permissions().mode();
            fs::set_permissions(path, Permissions::from_mode(mode))
        }
        "write" => OpenOptions::new().append(true).open(path).map(drop),
        "create" => {
            let missing: Vec<_> = path.ancestors().skip(1).take_while(|path| !path.exists()).collect();
            fs::create_dir_all(path.parent().unwrap())?;
            if path.exists() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            // Creates what a link leads to.
            OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
            fs::remove_file(fs::canonicalize(path)?)?;
            missing.into_iter().try_for_each(fs::remove_dir)
        }
        "remove" => {
            let mut aside = path.as_os_str().to_owned();
            aside.push("-aside");
            fs::rename(path, &aside)?;
            fs::rename(aside, path)
        }
        other => panic!("`{other}` is no action"),
    }
}

fn order(case: &Case) -> String {
    let action = match case.action {
        Action::Read => "read",
        Action::Write => "write",
        Action::Create => "create",
        Action::Remove => "remove",
    };
    format!("{action} {}", case.path.display())
}

/// Lets the confined program read itself.
fn allow_program(context: &mut Context) {
    let Profile::Managed { file_system: FileSystem::Restricted { entries }, .. } = &mut context.permissions
    else {
        panic!("the table has restricted profiles only");
    };
    entries.extend(own_files().into_iter().map(|file| Entry {
        path: EntryPath::Path { path: file.into() },
        access: Access::Read,
        missing_path_behavior: None,
    }));
}

/// Returns where the jail differs from the table.
async fn differences(scenario: &Scenario) -> Vec<String> {
    let (cases, obstacles) = match &scenario.expected {
        Expected::Refused(_) => return Vec::new(),
        Expected::Resolved { cases, obstacles } => (cases, obstacles),
    };
    let policy = resolved(scenario);
    let tried: Vec<_> = cases.iter().filter(|case| !case.is_beyond_mounts).collect();
    for case in &tried {
        assert_eq!(
            case.decide(&policy, &SystemHost).unwrap(),
            case.is_allowed,
            "{}: {case:?}",
            scenario.name
        );
    }
    let orders: Vec<_> = tried.iter().map(|case| order(case)).collect();
    let started = harness::spawner().start(confined(jail(policy), "inside", &orders.join("\n"))).await;
    let child = match started {
        Ok(child) => child,
        // A part of the profile that cannot be enforced without namespaces.
        Err(error) if has_no_namespaces() => {
            let is_refused =
                matches!(error.jail.as_deref(), Some(JailError::Inexpressible { .. } | JailError::Policy(_)));
            assert!(is_refused, "{}: {error}", scenario.name);
            return Vec::new();
        }
        Err(error) => {
            let is_obstacle = matches!(error.jail.as_deref(), Some(JailError::Policy(_)));
            assert!(is_obstacle && !obstacles.is_empty(), "{}: {error}", scenario.name);
            return Vec::new();
        }
    };
    assert_eq!(obstacles, &[] as &[PathBuf], "{}", scenario.name);
    let (output, status) = harness::finish(child).await;
    assert_eq!(status.code, 0, "{}: {output}", scenario.name);
    let reports = reports(&output);
    assert_eq!(reports.len(), tried.len(), "{}: {output}", scenario.name);
    if has_no_namespaces() {
        report(&scenario.name);
    }
    let differs = |(case, report): (&&Case, &str)| {
        // What is missing cannot be read, but nothing keeps a process from it.
        let is_missing = case.action == Action::Read && !case.path.exists();
        let is_done = report.ends_with(": done") || is_missing && case.is_allowed;
        (is_done != case.is_allowed).then(|| format!("{}: {report}", scenario.name))
    };
    tried.iter().zip(reports).filter_map(differs).collect()
}

/// The variable that says that namespaces are forbidden.
const NO_NAMESPACES: &str = "REMEX_TEST_NO_NAMESPACES";

fn has_no_namespaces() -> bool {
    std::env::var_os(NO_NAMESPACES).is_some()
}

#[test]
fn without_namespaces_started_processes_are_confined_by_the_table() {
    if has_no_namespaces() || orders().is_some() || !inmate::has_landlock() {
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(NO_NAMESPACES, "").args(["--nocapture", "the_jail_allows_exactly_what_the_table_says"]);
    // SAFETY: only system calls, and nothing is allocated.
    unsafe { command.pre_exec(inmate::forbid_namespaces) };
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(!reports(&text).is_empty(), "no profile of the table is started: {text}");
}

#[tokio::test]
async fn the_jail_allows_exactly_what_the_table_says() {
    let parent = fs::canonicalize(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let directory = tempfile::tempdir_in(parent).unwrap();
    let mut found = Vec::new();
    for (number, _) in scenarios(directory.path()).iter().enumerate() {
        let base = directory.path().join(number.to_string());
        fs::create_dir(&base).unwrap();
        let mut scenario = scenarios(&base).swap_remove(number);
        scenario.tree.create(&base).unwrap();
        allow_program(&mut scenario.context);
        found.extend(differences(&scenario).await);
    }
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}
