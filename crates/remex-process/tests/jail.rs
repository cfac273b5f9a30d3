//! Confined processes: what they see, and how they live and end.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod harness;
mod inmate;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use harness::{
    NULL, PIPED, PTY, TAGS, eventually, finish, own_children, pipes, run, shell, spawner, terminal, within,
};
use inmate::{jail, preset};
use remex_process::{
    Jail, JailError, JailMechanism, JailSupport, Leader, Pid, Scope, Size, Start, StartErrorKind, Step, Tag,
    resize, tree,
};
use remex_proto::sandbox::{Access, Entry, EntryPath};
use remex_sandbox::{Network, Policy, Preset, Request, SystemHost, resolve, testing::context};

/// A process that is hard to find and to end: no tag, no parent, its own session.
const FUGITIVE: &str =
    "(setsid prlimit --locks=5 sh -c 'trap \"\" TERM; echo ready; sleep 1000; sleep 1000' &)";

fn read_only() -> Jail {
    jail(preset(Preset::ReadOnly, Path::new("/")))
}

fn confined(start: Start) -> Start {
    Start { jail: Some(read_only()), ..start }
}

/// The processes in the pid namespace of a process.
struct Namespace {
    link: PathBuf,
}

impl Namespace {
    fn of(pid: Pid) -> Self {
        Self { link: fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap() }
    }

    fn has_processes(&self) -> bool {
        let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        entries
            .filter_map(|entry| fs::read_link(entry.path().join("ns/pid")).ok())
            .any(|link| link == self.link)
    }

    async fn is_empty(&self) {
        eventually("the namespace is empty", || !self.has_processes()).await;
    }
}

#[tokio::test]
async fn a_confined_process_runs_and_exits_like_any_other() {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    let script =
        format!("echo $$ $PPID; echo x > {0}/new && cat {0}/new; echo y > /etc/no; exit 7", root.display());
    let jail = jail(preset(Preset::WorkspaceWrite, &root));
    let (output, status) = run(Start { jail: Some(jail), ..shell(NULL, TAGS.tag(1, 1), &script) }).await;
    assert_eq!(output, "2 0\nx\n");
    assert_eq!((status.code, status.signal), (7, None));
    assert_eq!(fs::read_to_string(root.join("new")).unwrap(), "x\n");
}

#[tokio::test]
async fn a_confined_process_has_a_resizable_terminal() {
    let script = "stty size; trap 'stty size; exit 3' WINCH; echo ready; while :; do sleep 0.01; done";
    let mut child = spawner().start(confined(shell(PTY, TAGS.tag(2, 1), script))).await.unwrap();
    let (mut reader, master) = terminal(child.io);
    reader.until("31 97\r\nready").await;
    resize(std::os::fd::AsFd::as_fd(&master), Size { rows: 40, cols: 50 }).unwrap();
    reader.until("40 50").await;
    assert_eq!(within(child.exit.wait()).await.code, 3);
}

#[tokio::test]
async fn its_terminal_can_be_reopened_by_every_name() {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    let script =
        "echo one > /dev/tty; echo two > /dev/stderr; echo three > /proc/self/fd/0; stty size < /dev/tty";
    for preset_of in [Preset::ReadOnly, Preset::WorkspaceWrite] {
        let jail = jail(preset(preset_of, &root));
        let (output, _) = run(Start { jail: Some(jail), ..shell(PTY, TAGS.tag(2, 2), script) }).await;
        assert_eq!(output, "one\r\ntwo\r\nthree\r\n31 97\r\n");
    }
}

#[tokio::test]
async fn a_writable_directory_behaves_as_outside_a_jail() {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    let script = "set -e; mkdir a b; echo x > a/f; mv a/f b/g; ln b/g a/h; ln -s h a/l; mv a b/; mkfifo p; \
                  (cat p > q &); echo y > p; cat b/a/l; : > b/a/h; chmod 600 b/g; rm -r b; touch -d @0 q; \
                  printf '#!/bin/sh\necho run' > r; chmod +x r; ./r; echo z > /dev/shm/z; cat /dev/shm/z; cat /proc/self/comm";
    let jail = jail(preset(Preset::WorkspaceWrite, &root));
    let start = Start { jail: Some(jail), cwd: root, ..shell(NULL, TAGS.tag(2, 3), script) };
    let (output, status) = run(start).await;
    assert_eq!((&*output, status.code), ("x\nrun\nz\ncat\n", 0));
}

/// Starts something in a jail that leaves a fugitive behind.
async fn fugitive(tag: Tag, then: &str, jail: Jail) -> (remex_process::Exit, Namespace) {
    let script = format!("{FUGITIVE}; {then}");
    let start = Start { jail: Some(jail), ..shell(PIPED, tag, &script) };
    let child = spawner().start(start).await.unwrap();
    let namespace = Namespace::of(child.pid);
    let (stdin, mut reader) = pipes(child.io);
    reader.until("ready").await;
    // Ends the command if it reads.
    drop(stdin);
    (child.exit, namespace)
}

#[tokio::test]
async fn a_kill_leaves_nothing_of_a_hostile_tree() {
    for (number, jail) in [read_only(), Jail::pids_only()].into_iter().enumerate() {
        let tag = TAGS.tag(3, u32::try_from(number).unwrap());
        let (mut exit, namespace) = fugitive(tag, "sleep 1000", jail).await;
        let leader: Leader = exit.leader().clone();
        let killed = tree::kill_start(tag, &leader);
        assert_eq!(within(exit.wait()).await.code, 137);
        within(killed).await.unwrap();
        namespace.is_empty().await;
    }
}

#[tokio::test]
async fn dropping_a_confined_process_ends_its_tree() {
    let (exit, namespace) = fugitive(TAGS.tag(4, 1), "sleep 1000", read_only()).await;
    assert!(exit.is_confined());
    drop(exit);
    namespace.is_empty().await;
}

#[tokio::test]
async fn background_processes_outlive_the_command_until_they_are_killed() {
    let tag = TAGS.tag(5, 1);
    let (mut exit, namespace) = fugitive(tag, "read line", read_only()).await;
    assert_eq!(within(exit.wait()).await.signal, None);
    drop(exit);
    assert!(namespace.has_processes());
    // The fugitive has lost its tag; the first process of the jail has not.
    assert!(!within(tree::members(&Scope::Start(tag))).await.unwrap().is_empty());
    assert!(within(tree::tagged(tag)).await.unwrap().iter().all(|member| member.tag != Some(tag)));
    within(tree::kill(&Scope::Start(tag))).await.unwrap();
    namespace.is_empty().await;
}

#[tokio::test]
async fn the_jail_ends_with_the_last_process_in_it() {
    let script = "(sleep 0.3; echo last) & echo first; read line";
    let mut child = spawner().start(confined(shell(PIPED, TAGS.tag(6, 1), script))).await.unwrap();
    let namespace = Namespace::of(child.pid);
    let (stdin, mut reader) = pipes(child.io);
    reader.until("first").await;
    drop(stdin);
    assert_eq!(within(child.exit.wait()).await.signal, None);
    reader.until("last").await;
    namespace.is_empty().await;
    let is_gone = || own_children().iter().all(|pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok());
    eventually("its first process is reaped", is_gone).await;
}

#[tokio::test]
async fn a_start_that_fails_leaves_no_jail() {
    let spawner = spawner();
    let missing = Start { program: "/does/not/exist".into(), ..confined(shell(NULL, TAGS.tag(7, 1), "")) };
    let error = spawner.start(missing).await.unwrap_err();
    assert_eq!(error.kind(), StartErrorKind::ProgramNotFound, "{error}");
    let bad = Start { cwd: "/does/not/exist".into(), ..confined(shell(NULL, TAGS.tag(7, 2), "")) };
    let error = spawner.start(bad).await.unwrap_err();
    assert_eq!(error.kind(), StartErrorKind::BadCwd, "{error}");
    for number in [1, 2] {
        let scope = Scope::Start(TAGS.tag(7, number));
        eventually("the jail is gone", || tree::members(&scope).wait().unwrap().is_empty()).await;
    }
}

/// Returns the names in a directory.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Tries to create a protected name in every way, and says what worked.
const CREATE_GIT: &str = "mkdir real; echo x > file; \
    for name in .git .codex .agents; do \
    mkdir -p $name/hooks && echo made a directory; rmdir $name && echo removed it; \
    echo x > $name && echo made a file; ln -s real $name/link && echo made a link; ln file $name/hard && echo linked; \
    mv -T real $name && echo renamed; mv $name away && echo moved it away; mount --bind real $name && echo mounted; \
    chmod 777 $name && echo changed it; echo x > $name/config && echo wrote; done; rm -r real file; ls -A .git";

#[tokio::test]
async fn a_missing_protected_name_cannot_be_created_and_no_placeholder_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    let policy = preset(Preset::WorkspaceWrite, &root);
    let start =
        Start { jail: Some(jail(policy)), cwd: root.clone(), ..shell(NULL, TAGS.tag(12, 1), CREATE_GIT) };
    let (output, status) = run(start).await;
    assert_eq!((&*output, status.code), ("", 0));
    eventually("nothing is left", || names(&root).is_empty()).await;
}

/// Everything can be read, and the workspace and some directories be written.
fn with_writable(workspace: &Path, directories: &[&Path]) -> Policy {
    let written = directories.iter().map(|path| Entry {
        path: EntryPath::Path { path: path.to_path_buf().into() },
        access: Access::Write,
        missing_path_behavior: None,
    });
    let entries = Preset::WorkspaceWrite.entries().into_iter().chain(written).collect();
    let context = context(entries, Some(vec![workspace.to_owned().into()]));
    resolve(&Request { context: &context, cwd: None, tmpdir: None }, &SystemHost).unwrap()
}

#[tokio::test]
async fn the_names_are_protected_in_every_writable_directory() {
    let directory = tempfile::tempdir().unwrap();
    let base = fs::canonicalize(directory.path()).unwrap();
    let at = |name: &str| base.join(name);
    for name in ["w", "missing", "existing/.git/hooks", "existing/.codex", "tree", "main/.git/worktrees/t"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    fs::write(at("tree/.git"), "gitdir: ../main/.git/worktrees/t\n").unwrap();
    fs::write(at("main/.git/worktrees/t/commondir"), "../..\n").unwrap();
    let run_in = async |policy: Policy, cwd: &str, script: &str| {
        let cwd = base.join(cwd);
        run(Start { jail: Some(jail(policy)), cwd, ..shell(NULL, TAGS.tag(17, 1), script) }).await
    };
    let all = ["missing", "existing", "tree"].map(at);
    let all = all.each_ref().map(PathBuf::as_path);
    let (output, status) = run_in(with_writable(&at("w"), &all), "missing", CREATE_GIT).await;
    assert_eq!((&*output, status.code), ("", 0));
    let script = "echo x > ../existing/.git/hooks/x && echo wrote a hook; mv ../existing/.git ../existing/git && echo moved; \
                  rm -r ../existing/.codex && echo removed; echo x > ../tree/.git && echo wrote a file; \
                  echo x > ../existing/y; cat ../existing/y";
    let (output, _) = run_in(with_writable(&at("w"), &all), "w", script).await;
    assert_eq!(output, "x\n");
    // The git directory is below what can be written, and only there to be protected.
    let git = at("main/.git");
    let both = with_writable(&at("w"), &[&at("tree"), &at("main")]);
    let script = "echo x > ../main/.git/worktrees/t/x && echo wrote; echo x > ../main/.git/x && echo wrote; echo x > ../main/y";
    assert_eq!(run_in(both, "w", script).await.0, "");
    assert!(at("main/y").exists());
    // It was granted by name.
    let granted = with_writable(&at("w"), &[&git]);
    let (output, _) = run_in(granted, "w", "echo x > ../main/.git/x && echo wrote").await;
    assert_eq!(output, "wrote\n");
    eventually("nothing is left", || names(&at("missing")).is_empty() && names(&at("w")).is_empty()).await;
    eventually("nothing is left", || names(&at("tree")) == [".git"]).await;
}

#[tokio::test]
async fn many_writable_directories_are_protected_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let base = fs::canonicalize(directory.path()).unwrap();
    let directories: Vec<_> = (0..60).map(|number| base.join(number.to_string())).collect();
    directories.iter().for_each(|path| fs::create_dir(path).unwrap());
    let paths: Vec<_> = directories.iter().map(PathBuf::as_path).collect();
    let policy = with_writable(&directories[0], &paths);
    let script = "for place in *; do mkdir $place/.git && echo made; echo x > $place/f || echo failed; done; echo done";
    let start = Start { jail: Some(jail(policy)), cwd: base.clone(), ..shell(NULL, TAGS.tag(18, 1), script) };
    let (output, status) = run(start).await;
    assert_eq!((&*output, status.code), ("done\n", 0));
    eventually("nothing is left", || directories.iter().all(|path| names(path) == ["f"])).await;
}

#[tokio::test]
async fn the_names_stay_protected_until_the_last_jail_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    let start = |number: u32| Start {
        // Resolved while those of other jails may be there.
        jail: Some(jail(preset(Preset::WorkspaceWrite, &root))),
        cwd: root.clone(),
        ..shell(
            PIPED,
            TAGS.tag(13, number),
            "echo ready; read line; mkdir .git/hooks || mkdir -p .git/hooks || echo held",
        )
    };
    let spawner = spawner();
    let mut children = Vec::new();
    for number in 0..5 {
        let child = spawner.start(start(number)).await.unwrap();
        let (stdin, mut reader) = pipes(child.io);
        reader.until("ready").await;
        children.push((stdin, reader, child.exit));
    }
    assert_eq!(names(&root), [".agents", ".aws", ".codex", ".git"]);
    for (stdin, mut reader, mut exit) in children {
        drop(stdin);
        reader.until("held").await;
        within(exit.wait()).await;
    }
    eventually("nothing is left", || names(&root).is_empty()).await;
}

#[tokio::test]
async fn a_policy_that_was_resolved_while_another_jail_ran_protects_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    fs::create_dir(root.join(".git")).unwrap();
    let policy = preset(Preset::WorkspaceWrite, &root);
    fs::remove_dir(root.join(".git")).unwrap();
    let start =
        Start { jail: Some(jail(policy)), cwd: root.clone(), ..shell(NULL, TAGS.tag(14, 1), CREATE_GIT) };
    let (output, status) = run(start).await;
    assert_eq!((&*output, status.code), ("", 0));
    eventually("nothing is left", || names(&root).is_empty()).await;
}

#[tokio::test]
async fn a_start_that_fails_leaves_no_placeholder() {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    let start = |program: &str, policy| Start {
        program: program.into(),
        jail: Some(jail(policy)),
        ..shell(NULL, TAGS.tag(15, 1), "")
    };
    let policy = preset(Preset::WorkspaceWrite, &root);
    spawner().start(start("/does/not/exist", policy.clone())).await.unwrap_err();
    eventually("nothing is left", || names(&root).is_empty()).await;
    // One name of the profile has become a link.
    std::os::unix::fs::symlink("/etc", root.join(".git")).unwrap();
    let error = spawner().start(start("/bin/sh", policy)).await.unwrap_err();
    assert!(matches!(error.jail.as_deref(), Some(JailError::Policy(_))), "{error}");
    assert_eq!(names(&root), [".git"]);
}

#[tokio::test]
async fn repositories_below_the_workspace_and_what_their_files_name_are_protected() {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    for name in
        ["sub/.git/hooks", "a/b/.git/hooks", "modules/x/hooks", "main/.git/worktrees/w", "main/.git/hooks"]
    {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    fs::write(root.join(".git"), "gitdir: main/.git/worktrees/w\n").unwrap();
    fs::write(root.join("main/.git/worktrees/w/commondir"), "../..\n").unwrap();
    fs::write(root.join("a/.git"), "gitdir: ../modules/x\n").unwrap();
    let script = "for place in sub/.git/hooks a/b/.git/hooks main/.git/worktrees/w main/.git/hooks; do \
                  echo x > $place/x && echo wrote $place; done; echo x > a/.git && echo wrote a file; \
                  mv sub other && echo moved; mv a other && echo moved; echo x > sub/y; cat sub/y";
    let jail = jail(preset(Preset::WorkspaceWrite, &root));
    let (output, status) =
        run(Start { jail: Some(jail), cwd: root, ..shell(NULL, TAGS.tag(16, 1), script) }).await;
    assert_eq!((&*output, status.code), ("x\n", 0));
}

#[tokio::test]
async fn a_path_that_cannot_be_mounted_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap().join("w");
    fs::create_dir(&root).unwrap();
    let policy = preset(Preset::WorkspaceWrite, &root);
    // Between the decision and the start, another process replaces the workspace with a link.
    fs::remove_dir(&root).unwrap();
    std::os::unix::fs::symlink("/", &root).unwrap();
    let start = Start { jail: Some(jail(policy)), ..shell(NULL, TAGS.tag(8, 1), "echo no") };
    let error = spawner().start(start).await.unwrap_err();
    assert_eq!(error.kind(), StartErrorKind::CannotConfine);
    let expected = JailError::Step { step: Step::Mount, path: Some(root.clone()), errno: 40 };
    assert_eq!(error.jail.as_deref(), Some(&expected));
    assert_eq!(
        error.to_string(),
        format!(
            "cannot confine `/bin/sh`: cannot mount `{}` as the profile says: Too many levels of symbolic links \
             (os error 40); it has changed in the meantime; try again",
            root.display()
        )
    );
}

#[tokio::test]
async fn files_that_come_and_go_do_not_prevent_a_start() {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    let secret = root.join("credentials/of/a/server/token");
    let policy = Arc::new(preset(Preset::WorkspaceWrite, &root));
    let done = Arc::new(AtomicBool::new(false));
    let busy = {
        let (secret, top, done) = (secret.clone(), root.join("credentials"), Arc::clone(&done));
        std::thread::spawn(move || {
            while !done.load(Ordering::SeqCst) {
                fs::create_dir_all(secret.parent().unwrap()).unwrap();
                fs::write(&secret, "secret").unwrap();
                fs::remove_dir_all(&top).unwrap();
            }
        })
    };
    for number in 0..200 {
        let jail = Jail::new(Arc::clone(&policy), Arc::new([secret.clone()]));
        let start = Start { jail: Some(jail), ..shell(NULL, TAGS.tag(17, number), "echo started") };
        let (output, status) = run(start).await;
        assert_eq!((&*output, status.code), ("started\n", 0));
    }
    done.store(true, Ordering::SeqCst);
    busy.join().unwrap();
}

#[tokio::test]
async fn without_a_policy_a_jail_has_only_a_pid_namespace() {
    let directory = tempfile::tempdir().unwrap();
    let path = fs::canonicalize(directory.path()).unwrap().join("new");
    let script =
        format!("echo $$; echo x > {}; ls -d /proc/[0-9]*; test -e /dev/pts && echo devices", path.display());
    let start = Start { jail: Some(Jail::pids_only()), ..shell(NULL, TAGS.tag(9, 1), &script) };
    let (output, status) = run(start).await;
    assert_eq!(status.code, 0, "{output}");
    assert!(output.starts_with("2\n/proc/1\n/proc/2\n"), "{output}");
    assert!(output.ends_with("devices\n"), "{output}");
    assert_eq!(fs::read_to_string(path).unwrap(), "x\n");
}

#[tokio::test]
async fn an_aborted_start_leaves_no_jail() {
    let (spawner, tag) = (spawner(), TAGS.tag(10, 1));
    for _ in 0..20 {
        let start = confined(shell(NULL, tag, "sleep 1000"));
        let starting = spawner.start(start);
        // Dropped at an arbitrary moment.
        _ = tokio::time::timeout(std::time::Duration::from_micros(800), starting).await;
    }
    let scope = Scope::Start(tag);
    eventually("all jails are gone", || tree::members(&scope).wait().unwrap().is_empty()).await;
}

#[tokio::test]
async fn a_path_that_cannot_be_hidden_prevents_a_start() {
    let directory = tempfile::tempdir().unwrap();
    let (path, policy) = (directory.path().join("loop"), preset(Preset::ReadOnly, Path::new("/")));
    std::os::unix::fs::symlink("loop", &path).unwrap();
    let jail = Jail::new(Arc::new(policy), Arc::new([path.join("secret")]));
    let start = Start { jail: Some(jail), ..shell(NULL, TAGS.tag(10, 2), "true") };
    let error = spawner().start(start).await.unwrap_err();
    assert_eq!(error.kind(), StartErrorKind::CannotConfine, "{error}");
    assert!(matches!(error.jail.as_deref(), Some(JailError::Hidden { .. })), "{error}");
}

#[test]
fn this_host_can_confine_processes() {
    let support = JailSupport::probe();
    assert_eq!((support.mechanism, support.obstacle), (Some(JailMechanism::Namespaces), None));
}

#[tokio::test]
async fn a_jail_has_its_own_network_or_that_of_the_host() {
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    for (network, is_own) in [(Network::Restricted, true), (Network::Enabled, false)] {
        let jail = Jail::new(Arc::new(Policy::open(network)), Arc::new([]));
        let start = Start { jail: Some(jail), ..shell(NULL, TAGS.tag(11, 1), "readlink /proc/self/ns/net") };
        let (output, _) = finish(spawner().start(start).await.unwrap()).await;
        assert_eq!(output.trim_end() != own.to_str().unwrap(), is_own);
    }
}
