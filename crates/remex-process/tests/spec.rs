//! Starts, and their errors and exit statuses, survive serialization.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

mod harness;
mod inmate;

use std::{
    ffi::OsString,
    fmt::Debug,
    fs,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
    time::Duration,
};

use harness::{NULL, TAGS, run, shell, spawner, start};
use inmate::{jail, preset};
use proptest::prelude::*;
use remex_process::{
    DenialReason, ExecDenial, ExitStatus, Jail, JailError, NoCgroups, Rlimit, Rlimits, Signal, Size, Stage,
    Start, StartError, StartErrorKind, StartSpec, Stdin, Stdio, Step, Tags, Usage, UserIds,
};
use remex_sandbox::{HostList, Network, Policy, PolicyError, Preset, Reason, testing::scenarios};
use serde::{Serialize, de::DeserializeOwned};

/// Returns a value after serializing and deserializing it, as another process receives it.
fn travelled<T: Serialize + DeserializeOwned>(value: &T) -> T {
    postcard::from_bytes(&postcard::to_stdvec(value).unwrap()).unwrap()
}

fn received(start: &Start) -> Start {
    travelled(&start.to_spec()).into_start(None).unwrap()
}

#[tokio::test]
async fn a_deserialized_start_runs_as_described() {
    let word = OsString::from_vec(b"\xff\xfe caf\xe9".to_vec());
    let directory = tempfile::tempdir().unwrap();
    let cwd = fs::canonicalize(directory.path()).unwrap().join(&word);
    fs::create_dir(&cwd).unwrap();
    let script =
        r#"printf %s "$0" > file; printf %s "$1" >> file; printf %s "$WORD" >> file; ulimit -n; exit 7"#;
    let start = Start {
        args: vec!["-c".into(), script.into(), "zero".into(), word.clone()],
        arg0: Some("another".into()),
        env: vec![("WORD".into(), word.clone())],
        cwd: cwd.clone(),
        rlimits: Rlimits::default().with(Rlimit::OpenFiles, 77),
        ..start(NULL, TAGS.tag(1, 1), "/bin/sh", &[])
    };
    let (output, status) = run(received(&start)).await;
    assert_eq!((&*output, status.code), ("77\n", 7));
    let expected = [b"zero", word.as_encoded_bytes(), word.as_encoded_bytes()].concat();
    assert_eq!(fs::read(cwd.join("file")).unwrap(), expected);
    assert_eq!(travelled(&status), status);
}

#[tokio::test]
async fn a_deserialized_start_is_confined_as_described() {
    let directory = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(directory.path()).unwrap();
    fs::create_dir(root.join("secret")).unwrap();
    fs::write(root.join("secret/key"), "x").unwrap();
    let jail = Jail::new(Arc::new(preset(Preset::WorkspaceWrite, &root)), Arc::new([root.join("secret")]));
    let script = format!(
        "cd {0}; echo x > new; cat new; cat secret/key 2>&1 >&- || echo hidden; touch /etc/no || echo refused",
        root.display()
    );
    let start = Start { jail: Some(jail), ..shell(NULL, TAGS.tag(2, 1), &script) };
    let (output, _) = run(received(&start)).await;
    assert!(output.starts_with("x\n") && output.ends_with("hidden\nrefused\n"), "{output}");
}

#[tokio::test]
async fn a_deserialized_start_error_has_the_same_message() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let unhideable = Jail::new(
        Arc::new(Policy::open(Network::Restricted).without([Path::new("/")])),
        Arc::new([file.join("below")]),
    );
    let plain = |program: &str| start(NULL, TAGS.tag(3, 1), program, &[]);
    let spawner = spawner();
    for (start, kind) in [
        (plain("/no/such/program"), StartErrorKind::ProgramNotFound),
        (plain(file.to_str().unwrap()), StartErrorKind::NotExecutable),
        (plain("a\0b"), StartErrorKind::InvalidInput),
        (Start { cwd: "/no/such/directory".into(), ..plain("true") }, StartErrorKind::BadCwd),
        (Start { jail: Some(unhideable), ..plain("true") }, StartErrorKind::CannotConfine),
    ] {
        let error = spawner.start(received(&start)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_same_error(&travelled(&error), &error);
    }
}

fn assert_same_error(received: &StartError, error: &StartError) {
    assert_eq!(received, error);
    assert_eq!(
        (received.kind(), received.message(), received.hint()),
        (error.kind(), error.message(), error.hint())
    );
    assert_eq!(travelled(&error.kind()), error.kind());
}

#[test]
fn every_jail_of_the_table_round_trips() {
    for scenario in scenarios(Path::new("/base")) {
        let Ok(policy) = scenario.resolve(&scenario.tree) else { continue };
        let jail = Jail::new(Arc::new(policy), Arc::new(["/run/remex".into()]));
        assert_eq!(travelled(&jail), jail, "{}", scenario.name);
    }
}

#[test]
fn a_jail_that_hides_a_relative_path_is_refused() {
    let jail = Jail::new(Arc::new(Policy::open(Network::Enabled)), Arc::new(["state".into()]));
    assert!(postcard::from_bytes::<Jail>(&postcard::to_stdvec(&jail).unwrap()).is_err());
}

#[test]
fn a_nested_jail_error_is_not_deserialized() {
    let step = JailError::Step { step: Step::Namespaces, path: None, errno: libc::EPERM };
    let within = |namespaces| JailError::Inexpressible {
        what: "what".to_owned(),
        why: "why".into(),
        namespaces: Box::new(namespaces),
    };
    assert_eq!(travelled(&within(step.clone())), within(step.clone()));
    assert!(postcard::to_stdvec(&within(within(step))).is_err());
}

/// Policies with rules, patterns, lists of hosts and links.
static JAILS: LazyLock<Vec<Jail>> = LazyLock::new(|| {
    let scenarios = scenarios(Path::new("/base"));
    let policies = scenarios.iter().filter_map(|scenario| scenario.resolve(&scenario.tree).ok());
    let hosts = HostList::parse(["*.example.org:443", "[::1]"], ["x.example.org"]).unwrap();
    let listed = Policy::open(Network::Enabled).with_hosts(hosts.into());
    policies.chain([listed]).map(jail).chain([Jail::pids_only()]).collect()
});

fn os_string() -> impl Strategy<Value = OsString> {
    prop::collection::vec(any::<u8>(), 0..12).prop_map(OsString::from_vec)
}

fn path() -> impl Strategy<Value = PathBuf> {
    os_string().prop_map(PathBuf::from)
}

fn stdio() -> impl Strategy<Value = Stdio> {
    prop_oneof![
        Just(Stdio::Pipes { stdin: Stdin::Null }),
        Just(Stdio::Pipes { stdin: Stdin::Piped }),
        any::<(u16, u16)>().prop_map(|(rows, cols)| Stdio::Pty { size: Size { rows, cols } }),
    ]
}

fn signal() -> impl Strategy<Value = Signal> {
    (1..=64).prop_map(|number| Signal::from_number(number).unwrap())
}

fn rlimits() -> impl Strategy<Value = Rlimits> {
    let limits =
        vec![Rlimit::CpuTime, Rlimit::AddressSpace, Rlimit::OpenFiles, Rlimit::Processes, Rlimit::FileSize];
    prop::collection::vec((prop::sample::select(limits), any::<u64>()), 0..5).prop_map(|limits| {
        limits.into_iter().fold(Rlimits::default(), |rlimits, (limit, value)| rlimits.with(limit, value))
    })
}

prop_compose! {
    fn any_start()(
        program in os_string(),
        arg0 in prop::option::of(os_string()),
        args in prop::collection::vec(os_string(), 0..4),
        cwd in path(),
        env in prop::collection::vec((os_string(), os_string()), 0..4),
        stdio in stdio(),
        (server, session, process) in (0_u64..1 << 20, any::<u32>(), any::<u32>()),
        parent_death in prop::option::of(signal()),
        rlimits in rlimits(),
        jail in prop::option::of(prop::sample::select(&JAILS[..])),
        user in prop::option::of((any::<u32>(), any::<u32>(), prop::collection::vec(any::<u32>(), 0..4))),
    ) -> Start {
        let tag = Tags::from_number(server).unwrap().tag(session, process);
        let user = user.and_then(|(uid, gid, groups)| UserIds::new(uid, gid, groups));
        Start { program, arg0, args, cwd, env, stdio, tag, parent_death, rlimits, cgroup: None, jail, user }
    }
}

fn failed_step() -> impl Strategy<Value = JailError> {
    (prop::option::of(path()), any::<i32>()).prop_map(|(path, errno)| JailError::Step {
        step: Step::Mount,
        path,
        errno,
    })
}

fn jail_error() -> impl Strategy<Value = JailError> {
    let policy_error = prop_oneof![
        path().prop_map(|path| Reason::Creatable { path }),
        path().prop_map(|path| Reason::ReplaceableLink { path }),
        path().prop_map(|link| Reason::WritableLink { link }),
        (path(), path()).prop_map(|(link, target)| Reason::UntrustedLink { link, target }),
        (path(), ".*").prop_map(|(path, error)| Reason::Unresolved { path, error }),
        Just(Reason::Pattern("a `[` has no `]`".into())),
        Just(Reason::NoHome),
        "[^a-z]{1,9}".prop_filter_map("a host", |text| HostList::parse([&*text], []).err().map(Reason::Host)),
        any::<usize>().prop_map(|limit| Reason::TooLarge { what: "entries and roots".into(), limit }),
    ];
    prop_oneof![
        failed_step(),
        (".*", policy_error).prop_map(|(what, why)| JailError::Policy(policy_error_of(what, why))),
        any::<usize>().prop_map(|limit| JailError::TooMany { what: "matching files".into(), limit }),
        (path(), any::<i32>()).prop_map(|(path, errno)| JailError::Search { path, errno }),
        (path(), any::<i32>()).prop_map(|(path, errno)| JailError::Hidden { path, errno }),
        (path(), any::<i32>()).prop_map(|(path, errno)| JailError::Unprotected { path, errno }),
        (".*", failed_step()).prop_map(|(what, step)| {
            let namespaces = Box::new(step);
            JailError::Inexpressible { what, why: "its files cannot be listed".into(), namespaces }
        }),
    ]
}

/// Returns an error with the hint that belongs to its reason.
fn policy_error_of(what: String, why: Reason) -> PolicyError {
    travelled(&PolicyError { what, why, hint: "" })
}

prop_compose! {
    fn start_error()(
        stage in prop::sample::select(vec![
            Stage::Input, Stage::Queue, Stage::Descriptors, Stage::Cgroup, Stage::Jail, Stage::Fork, Stage::Setup,
            Stage::Limits, Stage::User, Stage::Cwd, Stage::Exec,
        ]),
        errno in -1..140,
        program in os_string(),
        cwd in path(),
        denial in prop::option::of((path(), prop::sample::select(vec![
            DenialReason::Directory, DenialReason::Special, DenialReason::UnsearchableParent,
            DenialReason::NoexecMount, DenialReason::NoPermission, DenialReason::Interpreter,
        ]))),
        jail in prop::option::of(jail_error()),
        user in prop::option::of(any::<u32>()),
    ) -> StartError {
        let denial = denial.map(|(path, reason)| ExecDenial { path, reason });
        StartError { stage, errno, program, cwd, denial, jail: jail.map(Box::new), user }
    }
}

/// What a start consists of, to be compared.
fn parts(start: Start) -> impl Debug + PartialEq {
    let Start { program, arg0, args, cwd, env, stdio, tag, parent_death, rlimits, cgroup, jail, user } =
        start;
    assert!(cgroup.is_none());
    // Paths that differ in slashes are equal, but not the same.
    let cwd = cwd.into_os_string();
    ((program, arg0, args, cwd, env), (stdio, tag, parent_death, rlimits, jail, user))
}

proptest! {
    #[test]
    fn every_start_round_trips(start in any_start()) {
        prop_assert_eq!(parts(received(&start)), parts(start));
    }

    #[test]
    fn a_corrupted_start_is_an_error_or_another_start(
        start in any_start(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut sent = postcard::to_stdvec(&start.to_spec()).unwrap();
        for (at, byte) in changes {
            let at = at.index(sent.len());
            sent[at] = byte;
        }
        let Ok(spec) = postcard::from_bytes::<StartSpec>(&sent) else { return Ok(()) };
        let again: StartSpec = travelled(&spec);
        prop_assert_eq!(&again, &spec);
        if let Err(NoCgroups { .. }) = spec.into_start(None) {
            return Ok(());
        }
        prop_assert_eq!(again.clone().into_start(None).unwrap().to_spec(), again);
    }

    #[test]
    fn every_start_error_round_trips(error in start_error()) {
        assert_same_error(&travelled(&error), &error);
    }

    #[test]
    fn every_exit_status_round_trips(
        code: i32,
        signal in prop::option::of(signal()),
        times: (Duration, Duration),
        max_rss_bytes: Option<u64>,
    ) {
        let status =
            ExitStatus { code, signal, usage: Usage { user: times.0, system: times.1, max_rss_bytes } };
        prop_assert_eq!(travelled(&status), status);
    }
}
