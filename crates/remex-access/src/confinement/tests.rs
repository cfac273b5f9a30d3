use remex_proto::sandbox::{Access, Entry, EntryPath, FileSystem, MissingPathBehavior, Special};
use remex_sandbox::{
    Access as Allowed,
    testing::{Tree, context},
};

use super::*;

fn special(access: Access, value: Special) -> Entry {
    Entry { path: EntryPath::Special { value }, access, missing_path_behavior: None }
}

/// Everything readable, `/w` writable except for `.git`, and no `.env` file.
fn workspace() -> Sandbox {
    let git = Special::ProjectRoots { subpath: Some(".git".to_owned()) };
    let entries = vec![
        special(Access::Read, Special::Root),
        special(Access::Write, Special::ProjectRoots { subpath: None }),
        Entry { missing_path_behavior: Some(MissingPathBehavior::Skip), ..special(Access::Read, git) },
        Entry {
            path: EntryPath::GlobPattern { pattern: "**/.env".to_owned() },
            access: Access::Deny,
            missing_path_behavior: None,
        },
    ];
    Sandbox::Confined(Box::new(context(entries, Some(vec![PathBuf::from("/w").into()]))))
}

fn unfloored() -> Confinement {
    Confinement::new(SandboxFloor::default(), Hidden::default())
}

fn policy(confinement: &Confinement, host: &Tree, sandbox: &Sandbox, floor: Floor) -> Arc<Policy> {
    confinement.resolve_on(host, &confinement.demand(sandbox, floor, None, None)).unwrap()
}

#[test]
fn a_floor_narrows_every_request_and_never_widens_one() {
    let host = Tree::new(["/w/.git/config", "/v/file", "/tmp/", "/etc/passwd"]);
    let access = |confinement: &Confinement, sandbox: &Sandbox, floor, path: &str| {
        policy(confinement, &host, sandbox, floor).access(Path::new(path))
    };
    let all = special(Access::Write, Special::Root);
    let greedy = Sandbox::Confined(Box::new(context(vec![all], Some(vec![PathBuf::from("/").into()]))));
    let server = |name: &str| {
        let workspace = vec![PathBuf::from("/w")];
        Confinement::new(
            SandboxFloor { permissions: SandboxFloor::preset(name), hosts: None, workspace },
            Hidden::default(),
        )
    };
    for sandbox in [&Sandbox::Disabled, &greedy] {
        let (none, writing, reading) = (server("none"), server("workspace-write"), server("read-only"));
        assert!(none.leaves_files_open(sandbox, Floor::Unconfined));
        assert!(!none.leaves_files_open(sandbox, Floor::WorkspaceWrite));
        assert!(!writing.leaves_files_open(sandbox, Floor::Unconfined));
        for (confinement, floor) in [(&none, Floor::WorkspaceWrite), (&writing, Floor::Unconfined)] {
            assert_eq!(access(confinement, sandbox, floor, "/w/file"), Allowed::Write);
            assert_eq!(access(confinement, sandbox, floor, "/w/.git/config"), Allowed::Read);
            assert_eq!(access(confinement, sandbox, floor, "/v/file"), Allowed::Read);
        }
        for (confinement, floor) in
            [(&none, Floor::ReadOnly), (&reading, Floor::WorkspaceWrite), (&writing, Floor::ReadOnly)]
        {
            assert_eq!(access(confinement, sandbox, floor, "/w/file"), Allowed::Read);
        }
    }
    let entries = vec![special(Access::Write, Special::SlashTmp)];
    let narrow = Sandbox::Confined(Box::new(context(entries, None)));
    let writing = server("workspace-write");
    assert_eq!(access(&writing, &narrow, Floor::Unconfined, "/w/file"), Allowed::Deny);
    assert_eq!(access(&writing, &narrow, Floor::Unconfined, "/tmp/x"), Allowed::Read);
    assert_eq!(policy(&writing, &host, &greedy, Floor::Unconfined).network(), Network::Restricted);
}

#[test]
fn what_leaves_the_root_writable_counts_as_unconfined() {
    let host = Tree::new(["/w/f", "/s/f", "/tmp/"]);
    let at = |access, path: &str| Entry {
        path: EntryPath::Path { path: PathBuf::from(path).into() },
        access,
        missing_path_behavior: None,
    };
    let glob = |access, pattern: &str| Entry {
        path: EntryPath::GlobPattern { pattern: pattern.to_owned() },
        access,
        missing_path_behavior: None,
    };
    let all = || special(Access::Write, Special::Root);
    let of = |entries: Vec<Entry>| context(entries, Some(vec![PathBuf::from("/w").into()])).permissions;
    let network = Network::Restricted;
    let open = [
        Permissions::Disabled,
        Permissions::External { network },
        Permissions::Managed { file_system: FileSystem::Unrestricted, network },
        of(vec![all()]),
        of(vec![all(), at(Access::Deny, "/missing")]),
        of(vec![all(), at(Access::Deny, "/s"), at(Access::Read, "/w")]),
        of(vec![all(), glob(Access::Deny, "**/.env")]),
        of(vec![at(Access::Write, "/"), at(Access::Deny, "/s")]),
        of(vec![at(Access::Write, "/w/../."), at(Access::Deny, "/s")]),
        of(vec![glob(Access::Write, "/**"), at(Access::Deny, "/s")]),
        of(vec![special(Access::Read, Special::Root), all()]),
    ];
    let confined = [
        of(Vec::new()),
        of(vec![special(Access::Read, Special::Root)]),
        of(vec![special(Access::Read, Special::Root), at(Access::Write, "/s")]),
        of(vec![special(Access::Read, Special::Minimal), at(Access::Write, "/w")]),
        of(vec![all(), at(Access::Deny, "/")]),
        Preset::WorkspaceWrite.permissions(),
    ];
    let outcome = |permissions: &Permissions, floor, starts: StartPolicy| {
        let whole = context(Vec::new(), Some(vec![PathBuf::from("/w").into()]));
        let hosts = Some(remex_proto::sandbox::Hosts { allow: vec!["a.org".to_owned()], deny: Vec::new() });
        // A list of hosts confines the network, and no file.
        [None, hosts].map(|hosts| {
            let context = Context { permissions: permissions.clone(), hosts, ..whole.clone() };
            let sandbox = Sandbox::Confined(Box::new(context));
            starts.check_policy(&policy(&unfloored(), &host, &sandbox, floor)).map_err(|error| error.kind)
        })
    };
    let (refused, started) = ([Err(ErrorKind::PermissionDenied); 2], [Ok(()); 2]);
    for permissions in &open {
        assert_eq!(
            outcome(permissions, Floor::Unconfined, StartPolicy::Confined),
            refused,
            "{permissions:?}"
        );
        assert_eq!(outcome(permissions, Floor::ReadOnly, StartPolicy::Confined), started, "{permissions:?}");
        assert_eq!(outcome(permissions, Floor::Unconfined, StartPolicy::Any), started, "{permissions:?}");
        assert_eq!(outcome(permissions, Floor::ReadOnly, StartPolicy::None), refused, "{permissions:?}");
    }
    for permissions in &confined {
        assert_eq!(
            outcome(permissions, Floor::Unconfined, StartPolicy::Confined),
            started,
            "{permissions:?}"
        );
    }
}

#[test]
fn a_policy_is_reused_until_the_file_system_changes() {
    let (confinement, sandbox) = (unfloored(), workspace());
    let mut host = Tree::new(["/w/file", "/tmp/"]);
    let first = policy(&confinement, &host, &sandbox, Floor::Unconfined);
    assert!(Arc::ptr_eq(&first, &policy(&confinement, &host, &sandbox, Floor::Unconfined)));
    assert_eq!(first.access(Path::new("/w/.git/config")), Allowed::Read);
    assert_eq!(first.access(Path::new("/w/sub/.git/config")), Allowed::Read);

    host.insert(Path::new("/w/.git"), Node::Directory);
    let second = policy(&confinement, &host, &sandbox, Floor::Unconfined);
    assert_eq!(second.access(Path::new("/w/.git/config")), Allowed::Read);
    assert!(Arc::ptr_eq(&second, &policy(&confinement, &host, &sandbox, Floor::Unconfined)));

    host.remove(Path::new("/w"));
    host.insert(Path::new("/w"), Node::Link("/other".into()));
    host.insert(Path::new("/other"), Node::Directory);
    let third = policy(&confinement, &host, &sandbox, Floor::Unconfined);
    assert_eq!(third.access(Path::new("/w/file")), Allowed::Read);
    assert_eq!(third.access(Path::new("/other/file")), Allowed::Write);
    assert_eq!(third.access(Path::new("/other/.env")), Allowed::Deny);
    assert_eq!(confinement.kept().len(), 1, "what is outdated is replaced");
}

#[test]
fn a_floor_is_not_relative_to_what_the_client_chooses() {
    let host = Tree::new(["/w/", "/t/"]);
    let tmpdir = special(Access::Write, Special::Tmpdir);
    let context = context(vec![special(Access::Read, Special::Root), tmpdir], None);
    let floor =
        SandboxFloor { permissions: Some(context.permissions), hosts: None, workspace: vec!["/w".into()] };
    let confinement = Confinement::new(floor, Hidden::default());
    let (cwd, tmpdir) = (Some(Path::new("/t")), Some(OsStr::new("/t")));
    let demand = confinement.demand(&Sandbox::Disabled, Floor::WorkspaceWrite, cwd, tmpdir);
    let policy = confinement.resolve_on(&host, &demand).unwrap();
    assert_eq!(policy.access(Path::new("/t/file")), Allowed::Read);
}

#[test]
fn policies_of_different_requests_are_kept_apart_and_few_are_kept() {
    let (confinement, host) = (unfloored(), Tree::new(["/w/", "/t/", "/tmp/"]));
    let tmpdir = special(Access::Write, Special::Tmpdir);
    let roots = special(Access::Write, Special::ProjectRoots { subpath: None });
    let sandbox = Sandbox::Confined(Box::new(context(vec![tmpdir, roots], None)));
    let resolve = |cwd: &str, tmpdir: Option<&str>| {
        let (cwd, tmpdir) = (Some(Path::new(cwd)), tmpdir.map(OsStr::new));
        confinement.resolve_on(&host, &confinement.demand(&sandbox, Floor::Unconfined, cwd, tmpdir)).unwrap()
    };
    assert_eq!(resolve("/w", None).access(Path::new("/w")), Allowed::Write);
    assert_eq!(resolve("/t", None).access(Path::new("/w")), Allowed::Deny);
    assert_eq!(resolve("/w", Some("/t")).access(Path::new("/t")), Allowed::Write);
    assert_eq!(resolve("/w", None).access(Path::new("/t")), Allowed::Deny);
    for number in 0..2 * KEPT {
        resolve("/w", Some(&format!("/{number}")));
    }
    assert_eq!(confinement.kept().len(), KEPT);
}

#[test]
fn without_a_sandbox_everything_is_open() {
    assert!(unfloored().resolve_for_files(&Sandbox::Disabled, Floor::Unconfined).unwrap().is_open());
}

#[test]
fn a_profile_that_cannot_be_applied_says_why() {
    let refusal = |entry| {
        let sandbox = Sandbox::Confined(Box::new(context(vec![entry], None)));
        unfloored().resolve_for_files(&sandbox, Floor::Unconfined).unwrap_err()
    };
    let error = refusal(special(Access::Deny, Special::Unknown));
    assert_eq!((error.kind, &*error.message), (ErrorKind::SandboxUnavailable, UNENFORCEABLE));
    assert_eq!(
        error.hint.unwrap(),
        "cannot apply `deny` to a special path: its path is unknown, so nothing can protect it; \
         update the client, or remove the entry from its profile"
    );
    let error = refusal(special(Access::Write, Special::ProjectRoots { subpath: None }));
    assert_eq!(error.kind, ErrorKind::InvalidParams);
    assert_eq!(error.hint.unwrap(), "send `workspaceRoots` or `cwd` in the sandbox context");
}

#[test]
fn the_files_of_the_server_are_out_of_reach_whatever_a_profile_grants() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().canonicalize().unwrap();
    std::fs::write(place.join("tokens"), "secret").unwrap();
    std::os::unix::fs::symlink("tokens", place.join("link")).unwrap();
    let hidden = Hidden { files: vec![place.join("link"), place.join("missing")], ..Hidden::default() };
    let confinement = Confinement::new(SandboxFloor::default(), hidden);
    let open = confinement.resolve_for_files(&Sandbox::Disabled, Floor::Unconfined).unwrap();
    assert!(confinement.without_hidden(open).is_open(), "what is not confined is not confined");
    let entries = vec![special(Access::Read, Special::Root), special(Access::Write, Special::SlashTmp)];
    let sandbox = Sandbox::Confined(Box::new(context(entries, None)));
    let resolve =
        || confinement.without_hidden(confinement.resolve_for_files(&sandbox, Floor::Unconfined).unwrap());
    let policy = resolve();
    for name in ["link", "tokens", "missing"] {
        assert_eq!(policy.access(&place.join(name)), Allowed::Deny, "{name}");
    }
    assert!(policy.access(&place.join("other")) > Allowed::Deny);
    assert!(Arc::ptr_eq(&policy, &resolve()));
    // A link that leads elsewhere now, as when secrets are rotated.
    std::fs::rename(place.join("tokens"), place.join("other")).unwrap();
    std::fs::remove_file(place.join("link")).unwrap();
    std::os::unix::fs::symlink("other", place.join("link")).unwrap();
    assert_eq!(resolve().access(&place.join("other")), Allowed::Deny);
    confinement.hide(&place.join("socket"));
    assert_eq!(resolve().access(&place.join("socket")), Allowed::Deny);
}

#[test]
fn the_directories_of_all_servers_are_out_of_reach_before_they_exist() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().canonicalize().unwrap();
    let own = vec![place.join("state/remex")];
    let hidden = Hidden { own_directories: own.clone(), ..Hidden::default() };
    let confinement = Confinement::new(SandboxFloor::default(), hidden);
    let entries = vec![special(Access::Read, Special::Root)];
    let sandbox = Sandbox::Confined(Box::new(context(entries, None)));
    let whole = confinement.resolve_for_files(&sandbox, Floor::Unconfined).unwrap();
    let policy = confinement.without_hidden(whole);
    assert_eq!(policy.access(&place.join("state/remex/host/process.json")), Allowed::Deny);
    assert_eq!(policy.access(&place.join("state/other")), Allowed::Read);
    assert!(!own[0].exists(), "a file request creates nothing");
    assert_eq!(*confinement.hidden_from_process(&policy, &[Path::new("/")]), *own);
    assert!(own[0].is_dir(), "what does not exist could not be covered in a jail");
}
