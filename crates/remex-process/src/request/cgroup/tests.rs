#[path = "../../../tests/harness/skip.rs"]
mod skip;

use std::os::fd::AsFd as _;

use super::*;
use crate::{OwnCgroup, Rlimits, Spawner, Start, Stdin, Stdio, Tags};
use skip::{Need, skip};

const PATIENCE: Duration = Duration::from_secs(60);

/// A directory with the files of a cgroup that have no behaviour of their own.
fn fake(controllers: &str, enabled: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("cgroup.controllers"), controllers).unwrap();
    fs::write(directory.path().join("cgroup.subtree_control"), enabled).unwrap();
    directory
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn only_controllers_that_limit_memory_or_processes_count() {
    assert_eq!(Controllers::parse("cpuset cpu io memory pids\n"), Controllers { memory: true, pids: true });
    assert_eq!(Controllers::parse("hugetlb pids"), Controllers { memory: false, pids: true });
    assert_eq!(Controllers::parse(""), Controllers::default());
    let hybrid = fake("hugetlb\n", "");
    let error = Cgroups::open(hybrid.path().to_owned(), Path::new("")).unwrap_err();
    assert!(matches!(error, CgroupError::NoControllers(_)), "{error}");
}

#[test]
fn a_directory_that_is_not_a_cgroup_is_refused() {
    let plain = fake("memory pids\n", "");
    let error = Cgroups::at(plain.path()).unwrap_err();
    assert!(matches!(error, CgroupError::NotACgroup(_)), "{error}");
    let error = Cgroups::at(Path::new("/no/such/cgroup")).unwrap_err();
    assert!(matches!(error, CgroupError::Refused { .. }), "{error}");
}

#[test]
fn a_server_in_the_cgroup_moves_to_a_leaf_and_enables_what_is_missing() {
    let root = fake("cpu memory pids\n", "pids\n");
    let cgroups = Cgroups::open(root.path().to_owned(), root.path()).unwrap();
    assert_eq!(text(&root.path().join("remex-server/cgroup.procs")), "0");
    assert_eq!(text(&root.path().join("cgroup.subtree_control")), "+memory");
    assert!(cgroups.limits_memory() && cgroups.limits_processes());

    let elsewhere = fake("memory\n", "");
    let cgroups = Cgroups::open(elsewhere.path().to_owned(), root.path()).unwrap();
    assert!(!elsewhere.path().join("remex-server").exists());
    assert!(cgroups.limits_memory() && !cgroups.limits_processes());
}

#[test]
fn two_servers_never_share_a_cgroup() {
    let root = fake("memory pids\n", "");
    let first = Cgroups::open(root.path().to_owned(), Path::new("")).unwrap();
    let error = Cgroups::open(root.path().to_owned(), Path::new("")).unwrap_err();
    assert!(matches!(error, CgroupError::InUse(_)), "{error}");
    // As a child that was being created when the server ended.
    let held = fs::File::open(root.path()).unwrap();
    drop(first);
    rustix::fs::flock(&held, FlockOperation::LockExclusive).unwrap();
    let executing = thread::spawn(move || drop(held));
    Cgroups::open(root.path().to_owned(), Path::new("")).unwrap();
    executing.join().unwrap();
}

#[test]
fn limits_are_written_as_the_kernel_reads_them() {
    let root = fake("memory pids\n", "");
    let cgroups = Arc::new(Cgroups::open(root.path().to_owned(), Path::new("")).unwrap());
    let both = CgroupLimits { memory_bytes: Some(1 << 20), processes: Some(8) };
    let cgroup = cgroups.create(both).unwrap();
    assert_eq!(text(&cgroup.path.join("memory.max")), "1048576");
    assert_eq!(text(&cgroup.path.join("pids.max")), "8");
    let many = cgroups.create(CgroupLimits { memory_bytes: None, processes: Some(u64::MAX) }).unwrap();
    assert_eq!(text(&many.path.join("pids.max")), "max");
    assert!(!many.path.join("memory.max").exists());
}

#[test]
fn oom_kills_are_counted_by_the_cgroup() {
    assert_eq!(oom_kills("low 0\nhigh 0\nmax 57\noom 3\noom_kill 2\noom_group_kill 1\n"), Some(2));
    assert_eq!(oom_kills("low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n"), Some(0));
    assert_eq!(oom_kills(""), None);
}

/// A real cgroup for this test, without controllers, which most hosts allow root to create.
struct RealCgroup(PathBuf);

impl RealCgroup {
    fn new(name: &str) -> Option<Self> {
        let path = delegation::own_cgroup()?.join(format!("remex-test-{name}-{}", std::process::id()));
        fs::create_dir(&path).ok().map(|()| Self(path))
    }

    fn cgroups(&self) -> Arc<Cgroups> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let lock = rustix::fs::open(&self.0, flags, Mode::empty()).unwrap();
        Arc::new(Cgroups::new(self.0.clone(), Controllers::default(), lock))
    }

    fn leaves(&self) -> usize {
        fs::read_dir(&self.0).unwrap().flatten().filter(|entry| entry.path().is_dir()).count()
    }
}

impl Drop for RealCgroup {
    fn drop(&mut self) {
        _ = fs::remove_dir(&self.0);
    }
}

fn sleep(cgroups: &Arc<Cgroups>) -> Start {
    Start {
        program: "sleep".into(),
        arg0: None,
        args: vec!["1000".into()],
        cwd: "/".into(),
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        stdio: Stdio::Pipes { stdin: Stdin::Null },
        tag: Tags::new().tag(0, 0),
        parent_death: None,
        rlimits: Rlimits::default(),
        cgroup: Some(OwnCgroup { cgroups: Arc::clone(cgroups), limits: CgroupLimits::default() }),
        jail: None,
        user: None,
    }
}

#[tokio::test]
async fn a_child_starts_in_its_own_cgroup_which_is_removed_after_its_end() {
    let Some(real) = RealCgroup::new("own") else {
        // Here no cgroup can be created, and a start that needs one says so.
        let cgroups = Arc::new(Cgroups::open(fake("memory\n", "").path().to_owned(), Path::new("")).unwrap());
        let error = Spawner::new(1).unwrap().start(sleep(&cgroups)).await.unwrap_err();
        assert_eq!(error.stage, crate::Stage::Cgroup, "{error}");
        return skip(Need::Cgroups, "this program may not write to its cgroup of version 2");
    };
    let cgroups = real.cgroups();
    let spawner = Spawner::new(1).unwrap();
    let mut child = spawner.start(sleep(&cgroups)).await.unwrap();
    let membership = text(Path::new(&format!("/proc/{}/cgroup", child.pid.as_raw())));
    assert!(membership.contains("/remex-child-"), "{membership}");
    assert_eq!(real.leaves(), 1);

    // Discarded while it runs, it stays.
    drop(child.cgroup.take());
    cgroups.remove_empty();
    assert_eq!(real.leaves(), 1);

    crate::base::sys::group_signal(child.pid, crate::Signal::KILL).unwrap();
    tokio::time::timeout(PATIENCE, child.exit.wait()).await.expect("the child ends");
    cgroups.remove_empty();
    assert_eq!(real.leaves(), 0);
}

#[tokio::test]
async fn cgroups_of_an_earlier_server_are_killed_and_removed() {
    let Some(real) = RealCgroup::new("old") else {
        assert!(Cgroups::delegated().is_err(), "a cgroup that cannot be divided is not delegated");
        return skip(Need::Cgroups, "this program may not write to its cgroup of version 2");
    };
    let spawner = Spawner::new(1).unwrap();
    let earlier = real.cgroups();
    let mut child = spawner.start(sleep(&earlier)).await.unwrap();
    // A server that is killed drops nothing.
    std::mem::forget(child.cgroup.take());
    std::mem::forget(earlier);
    assert_eq!(real.leaves(), 1);
    let later = real.cgroups();
    later.discard_old();
    let status = tokio::time::timeout(PATIENCE, child.exit.wait()).await.expect("the child is killed");
    assert_eq!(status.signal, Some(crate::Signal::KILL));
    later.remove_empty();
    assert_eq!(real.leaves(), 0);
}

/// Clears its tag, leaves its session, and forks and exits all the time; it holds its output open.
const FUGITIVE: &str = "exec prlimit --locks=5 setsid sh -c 'flee() { echo fleeing; (flee) & exit; }; flee'";

#[tokio::test]
async fn killing_a_cgroup_ends_processes_that_keep_forking() {
    let Some(real) = RealCgroup::new("kill") else {
        assert!(Cgroups::delegated().is_err(), "a cgroup that cannot be divided is not delegated");
        return skip(Need::Cgroups, "this program may not write to its cgroup of version 2");
    };
    if !real.0.join("cgroup.kill").exists() {
        return skip(Need::Cgroups, "there is no `cgroup.kill`");
    }
    let cgroups = real.cgroups();
    let fugitive =
        Start { program: "sh".into(), args: vec!["-c".into(), FUGITIVE.into()], ..sleep(&cgroups) };
    let mut child = Spawner::new(1).unwrap().start(fugitive).await.unwrap();
    let cgroup = child.cgroup.take().unwrap();
    tokio::time::timeout(PATIENCE, child.exit.wait()).await.expect("only what it has forked is left");
    assert!(text(&cgroup.path.join("cgroup.events")).contains("populated 1"), "something flees");
    cgroup.kill().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while text(&cgroup.path.join("cgroup.events")).contains("populated 1") {
        assert!(Instant::now() < deadline, "something is left");
        tokio::task::yield_now().await;
    }
    drop(cgroup);
    cgroups.remove_empty();
    assert_eq!(real.leaves(), 0);
}

#[test]
fn the_entry_file_is_closed_on_exec() {
    let root = fake("memory\n", "");
    let cgroups = Arc::new(Cgroups::open(root.path().to_owned(), Path::new("")).unwrap());
    let cgroup = cgroups.create(CgroupLimits::default()).unwrap();
    fs::write(cgroup.path.join("cgroup.procs"), "").unwrap();
    let entry_file = cgroup.entry_file().unwrap();
    let flags = rustix::io::fcntl_getfd(entry_file.as_fd()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}

#[cfg(feature = "serde")]
#[test]
fn a_deserialized_start_gets_a_cgroup_of_its_receiver_or_is_refused() {
    let (here, there) = (fake("memory\n", ""), fake("memory pids\n", ""));
    let open = |directory: &tempfile::TempDir| {
        Arc::new(Cgroups::open(directory.path().to_owned(), Path::new("")).unwrap())
    };
    let (sender, receiver) = (open(&here), open(&there));
    for (memory_bytes, processes) in [(None, None), (Some(1 << 30), None), (Some(0), Some(u64::MAX))] {
        let limits = CgroupLimits { memory_bytes, processes };
        let cgroup = Some(OwnCgroup { cgroups: Arc::clone(&sender), limits });
        let sent = postcard::to_stdvec(&Start { cgroup, ..sleep(&sender) }.to_spec()).unwrap();
        let spec: crate::StartSpec = postcard::from_bytes(&sent).unwrap();
        let received = spec.clone().into_start(Some(&receiver)).unwrap().cgroup.unwrap();
        assert!(Arc::ptr_eq(&received.cgroups, &receiver));
        assert_eq!(received.limits, limits);
        assert_eq!(spec.into_start(None).unwrap_err(), crate::NoCgroups { limits });
    }
    let spec = Start { cgroup: None, ..sleep(&sender) }.to_spec();
    assert!(spec.into_start(Some(&receiver)).unwrap().cgroup.is_none());
}
