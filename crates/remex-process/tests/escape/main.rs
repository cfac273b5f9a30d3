//! Attempts to get out of a jail, made from inside, for each way of confining.

#![allow(unsafe_code, clippy::unwrap_used, reason = "raw system calls; and in a test it is the assertion")]

mod attempts;
#[path = "../harness/mod.rs"]
mod harness;
#[path = "../inmate/mod.rs"]
mod inmate;

use std::{
    fs::{self, File, OpenOptions, Permissions},
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            fs::{PermissionsExt as _, symlink},
            net::{SocketAddr, UnixListener},
            process::CommandExt as _,
        },
    },
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use attempts::{connect_abstract, files, foreign_call, identity, kernel, network, pids, processes};
use inmate::{confined, orders, report, reports};
use remex_process::{Jail, JailMechanism, JailSupport, Start};
use remex_proto::sandbox::{Access, Entry, EntryPath};
use remex_sandbox::{Network, Policy, Preset, Request, SystemHost, resolve, testing::context};
use tempfile::TempDir;

/// What the confined program runs as.
#[test]
fn inside() {
    let Some(orders) = orders() else { return };
    let mut words = orders.split(' ');
    let (what, base) = (words.next().unwrap(), Path::new(words.next().unwrap()));
    let server = words.next().unwrap();
    let mechanism =
        if words.next() == Some("landlock") { JailMechanism::Landlock } else { JailMechanism::Namespaces };
    let attempts = match what {
        "files" => files(base, mechanism),
        "kernel" => kernel(),
        "pids" => pids(),
        #[cfg(target_arch = "x86_64")]
        "small-pids" => attempts::small_pids(),
        "processes" => processes(server, mechanism),
        "network" => network(base, words.next().unwrap(), mechanism),
        "identity" => identity(mechanism),
        "abstract" => vec![("connect to an abstract unix socket".to_owned(), connect_abstract(base))],
        "foreign" => foreign_call(),
        other => panic!("`{other}` is no attempt"),
    };
    for (name, outcome) in attempts {
        match outcome {
            Ok(()) => report(&format!("ESCAPED: {name}")),
            Err(error) => report(&format!("held: {name}: {error}")),
        }
    }
    report("survived");
}

/// A workspace, and what is around it.
struct Yard {
    directory: TempDir,
    /// Our ends of the named pipes.
    _pipes: Vec<File>,
}

impl Yard {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(directory.path()).unwrap();
        for name in ["w/.git", "w/sub", "out", "hidden"] {
            fs::create_dir_all(base.join(name)).unwrap();
        }
        for name in ["w/.git/config", "w/mine", "out/file", "hidden/secret"] {
            fs::write(base.join(name), "content").unwrap();
        }
        symlink(base.join("out/file"), base.join("w/to-file")).unwrap();
        symlink(base.join("out"), base.join("w/to-out")).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let pipe = |name: &&str| {
            let path = base.join(name);
            rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
            OpenOptions::new().read(true).write(true).open(path).unwrap()
        };
        let pipes = ["w/.git/fifo", "w/fifo", "out/fifo"].iter().map(pipe).collect();
        Self { directory, _pipes: pipes }
    }

    fn base(&self) -> PathBuf {
        fs::canonicalize(self.directory.path()).unwrap()
    }

    fn policy(&self) -> Policy {
        let preset = match mechanism() {
            JailMechanism::Namespaces => Preset::WorkspaceWrite,
            JailMechanism::Landlock => Preset::ReadOnly,
        };
        inmate::preset(preset, &self.base().join("w"))
    }

    fn jail(&self) -> Jail {
        Jail::new(Arc::new(self.policy()), Arc::new([self.base().join("hidden")]))
    }

    fn start(&self, what: &str, more: &str) -> Start {
        let mechanism = if mechanism() == JailMechanism::Landlock { "landlock" } else { "namespaces" };
        let orders = format!("{what} {} {} {mechanism} {more}", self.base().display(), std::process::id());
        confined(self.jail(), "inside", &orders)
    }
}

/// The variable that says which mechanism the tests are about.
const MECHANISM: &str = "REMEX_TEST_MECHANISM";

fn mechanism() -> JailMechanism {
    if std::env::var_os(MECHANISM).is_some() { JailMechanism::Landlock } else { JailMechanism::Namespaces }
}

/// Runs attempts in a jail, and fails if one of them succeeds.
async fn holds(start: Start, least: usize) {
    let (output, status) = harness::run(start).await;
    let reports = reports(&output);
    assert_eq!((status.code, reports.last().copied()), (0, Some("survived")), "{output}");
    let escaped: Vec<_> = reports.iter().filter(|report| report.starts_with("ESCAPED")).collect();
    assert!(escaped.is_empty(), "{escaped:#?}");
    assert!(reports.len() > least, "only {} attempts were made", reports.len());
}

#[tokio::test]
async fn nothing_outside_the_workspace_can_be_changed() {
    let yard = Yard::new();
    holds(yard.start("files", ""), 40).await;
    let content = |name: &str| fs::read_to_string(yard.base().join(name)).unwrap();
    for name in ["w/.git/config", "out/file", "hidden/secret"] {
        assert_eq!(content(name), "content", "{name}");
    }
    assert_eq!(fs::read_dir(yard.base().join("out")).unwrap().count(), 2);
    assert_eq!(fs::read_dir(yard.base().join("w/.git")).unwrap().count(), 2);
}

/// Returns a shell with a workspace to write in, in which a pattern is denied.
fn shell_without(pattern: &str, workspace: &Path, script: &str) -> Start {
    let pattern = EntryPath::GlobPattern { pattern: pattern.to_owned() };
    let mut entries = Preset::WorkspaceWrite.entries();
    entries.push(Entry { path: pattern, access: Access::Deny, missing_path_behavior: None });
    let context = context(entries, Some(vec![workspace.to_owned().into()]));
    let policy = resolve(&Request { context: &context, cwd: None, tmpdir: None }, &SystemHost).unwrap();
    let start = harness::start(harness::NULL, harness::TAGS.tag(1, 2), "/bin/sh", &["-c", script]);
    Start { jail: Some(inmate::jail(policy)), ..start }
}

#[tokio::test]
async fn a_tree_too_deep_to_search_hides_nothing_and_prevents_no_start() {
    if mechanism() == JailMechanism::Landlock {
        // Refused.
        return;
    }
    let yard = Yard::new();
    let w = yard.base().join("w");
    // Each half can be reached by its path; together they cannot.
    let half = format!("/{}", "n".repeat(200)).repeat(12);
    let dig = format!(
        "cd '{}' && mkdir -p a{half} b{half} && echo secret > b{half}/x.key && mv b a{half}/b",
        w.display()
    );
    let (output, status) = harness::run(shell_without("**/*.key", &w, &dig)).await;
    assert_eq!(status.code, 0, "{output}");
    let look = format!("find '{}' -name x.key -execdir cat '{{}}' ';' && echo looked", w.display());
    let unconfined = harness::start(harness::NULL, harness::TAGS.tag(1, 3), "/bin/sh", &["-c", &look]);
    let (output, _) = harness::run(unconfined).await;
    assert_eq!(output, "secret\nlooked\n");
    let (output, _) = harness::run(shell_without("**/*.key", &w, &format!("{look}; echo ran"))).await;
    assert_eq!(output, "ran\n", "find fails in a directory that is closed");
}

#[tokio::test]
async fn the_directory_of_a_denied_match_cannot_be_moved() {
    if mechanism() == JailMechanism::Landlock {
        // Refused.
        return;
    }
    let yard = Yard::new();
    let w = yard.base().join("w");
    fs::create_dir(w.join("a")).unwrap();
    fs::write(w.join("a/x.key"), "secret").unwrap();
    let script = format!("cd '{}' && touch a/new && ! cat a/x.key && ! mv a b && ! cat b/x.key", w.display());
    let (output, status) = harness::run(shell_without("a/*.key", &w, &script)).await;
    assert!(status.code == 0 && !output.contains("secret"), "{status:?}: {output}");
    assert!(w.join("a/x.key").exists() && w.join("a/new").exists());
}

#[tokio::test]
async fn kernel_secrets_are_hidden() {
    holds(Yard::new().start("kernel", ""), 50).await;
}

#[tokio::test]
async fn other_processes_are_out_of_reach() {
    let yard = Yard::new();
    holds(yard.start("processes", ""), 15).await;
    holds(Start { stdio: harness::PTY, ..yard.start("processes", "") }, 15).await;
}

#[tokio::test]
async fn with_only_a_pid_namespace_a_process_stays_below_the_first_one() {
    if mechanism() == JailMechanism::Landlock {
        // Refused.
        return;
    }
    let start = |what| Start { jail: Some(Jail::pids_only()), ..Yard::new().start(what, "") };
    holds(start("pids"), 3).await;
    #[cfg(target_arch = "x86_64")]
    {
        // Without 32-bit programs in the kernel, a call of theirs is fatal.
        let (output, _) = harness::run(Start { jail: None, ..start("foreign") }).await;
        if reports(&output).last() == Some(&"survived") {
            holds(start("small-pids"), 3).await;
        }
    }
}

#[tokio::test]
async fn only_its_own_network_is_reachable() {
    let yard = Yard::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let _socket = UnixListener::bind(yard.base().join("socket")).unwrap();
    let name = SocketAddr::from_abstract_name(yard.base().as_os_str().as_bytes()).unwrap();
    let _abstract = UnixListener::bind_addr(&name).unwrap();
    holds(yard.start("network", &port.local_addr().unwrap().port().to_string()), 200).await;
}

#[tokio::test]
async fn no_privileges_are_left_or_gained() {
    holds(Yard::new().start("identity", ""), 9).await;
}

/// With a network, its namespace is that of the host, and so are the abstract names.
#[tokio::test]
async fn with_a_network_abstract_sockets_of_others_are_out_of_reach() {
    if mechanism() == JailMechanism::Landlock || !inmate::has_landlock() {
        // Refused, or reachable.
        return;
    }
    let yard = Yard::new();
    let name = SocketAddr::from_abstract_name(yard.base().as_os_str().as_bytes()).unwrap();
    let _listening = UnixListener::bind_addr(&name).unwrap();
    let jail = inmate::jail(Policy::open(Network::Enabled));
    holds(Start { jail: Some(jail), ..yard.start("abstract", "") }, 1).await;
}

/// Namespaces are forbidden by a filter of system calls, as in most containers.
#[test]
fn the_same_holds_without_namespaces() {
    if mechanism() == JailMechanism::Landlock || orders().is_some() || !inmate::has_landlock() {
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(MECHANISM, "landlock");
    // SAFETY: only system calls, and nothing is allocated.
    unsafe { command.pre_exec(inmate::forbid_namespaces) };
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Runs a shell confined by Landlock alone, in a test program that cannot create namespaces.
#[tokio::test]
async fn without_namespaces_only_enforceable_policies_start() {
    if mechanism() == JailMechanism::Namespaces {
        return;
    }
    let yard = Yard::new();
    let w = yard.base().join("w");
    let refusal = async |jail: Jail| {
        let start = harness::shell(harness::NULL, harness::TAGS.tag(1, 3), "true");
        let error = harness::spawner().start(Start { jail: Some(jail), ..start }).await.unwrap_err();
        error.jail.unwrap().to_string()
    };
    let with = |entries| {
        let context = context(entries, Some(vec![w.clone().into()]));
        inmate::jail(resolve(&Request { context: &context, cwd: None, tmpdir: None }, &SystemHost).unwrap())
    };
    let entry = |path: EntryPath, access| Entry { path, access, missing_path_behavior: None };
    let path = |name: &str| EntryPath::Path { path: w.join(name).into() };
    let root = || entry(EntryPath::Path { path: PathBuf::from("/").into() }, Access::Read);
    let pattern = EntryPath::GlobPattern { pattern: "**/*.key".to_owned() };
    let base = w.display();
    for (jail, part) in [
        (with(vec![root(), entry(path(""), Access::Write)]), format!("enforce `write` to `{base}`")),
        (with(vec![root(), entry(path(".git"), Access::Deny)]), format!("enforce `deny` to `{base}/.git`")),
        (with(vec![root(), entry(pattern, Access::Deny)]), "`deny` to `/".to_owned()),
        (with(vec![entry(path(""), Access::Read)]), format!("enforce `read` to `{base}`")),
        (inmate::jail(Policy::open(Network::Restricted)), "enforce `write` to `/`".to_owned()),
        (inmate::jail(Policy::open(Network::Enabled)), "network `enabled`".to_owned()),
        (Jail::pids_only(), "cannot create namespaces".to_owned()),
    ] {
        let refusal = refusal(jail).await;
        assert!(refusal.starts_with("cannot create namespaces: Operation not permitted"), "{refusal}");
        assert!(refusal.contains(&part), "{refusal}");
    }
    let script = "echo a > /dev/null && ls / > /dev/stdout && cat /proc/meminfo && (exit 3)";
    let start = harness::shell(harness::NULL, harness::TAGS.tag(1, 4), script);
    let (output, status) = harness::run(Start { jail: Some(with(vec![root()])), ..start }).await;
    assert!(status.code == 3 && output.contains("MemTotal"), "{status:?} {output}");
}

#[test]
fn the_jail_mechanism_is_the_expected_one() {
    let support = JailSupport::probe();
    assert_eq!(support.mechanism, Some(mechanism()), "{support:?}");
    assert_eq!(support.obstacle.is_some(), mechanism() == JailMechanism::Landlock, "{support:?}");
}

/// Root is a user like any other in a jail, so both must be tried.
#[test]
fn the_same_holds_for_an_unprivileged_user() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() || mechanism() == JailMechanism::Landlock {
        // So it has been tried already.
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (program, own) = (directory.path().join("escape"), directory.path().join("own"));
    // Not by this program: a child that is just being created would hold the file open for writing.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap();
    assert!(copied.success());
    fs::create_dir(&own).unwrap();
    for (path, mode) in [(directory.path(), 0o755), (&program, 0o755), (&own, 0o777)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let mut command = Command::new(program);
    command.uid(NOBODY).gid(NOBODY).env("TMPDIR", own).current_dir("/");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn a_system_call_of_another_architecture_is_fatal() {
    let (output, status) = harness::run(Yard::new().start("foreign", "")).await;
    // A kernel without that architecture kills the process as well.
    assert!(status.signal.is_some(), "{output} {status:?}");
    assert_eq!(reports(&output), [] as [&str; 0]);
}

#[tokio::test]
async fn with_a_network_the_sockets_of_the_server_are_hidden() {
    if mechanism() == JailMechanism::Landlock {
        // Refused.
        return;
    }
    let yard = Yard::new();
    let socket = yard.base().join("hidden/socket");
    let _listening = UnixListener::bind(&socket).unwrap();
    let jail = Jail::new(Arc::new(Policy::open(Network::Enabled)), Arc::new([yard.base().join("hidden")]));
    let script =
        format!("cat {0}/secret; ls {0}; mv {0} {0}2; echo done", yard.base().join("hidden").display());
    let start = Start { jail: Some(jail), ..harness::shell(harness::NULL, harness::TAGS.tag(1, 2), &script) };
    let (output, _) = harness::run(start).await;
    assert_eq!(output, "done\n");
    assert!(socket.exists());
}
