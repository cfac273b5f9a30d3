//! Where the stories of one run take place, and what is checked when they are over.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use remex_client::{
    Client,
    process::{Command, Retain},
};
use rustix::process::Pid;

use super::chance::Chance;
use crate::support::{PATIENCE, Place, Watched};

/// How much of its output a server retains, at least.
const RETAINED: usize = 1 << 20;

/// One client, and a directory for its processes.
#[derive(Clone)]
pub(crate) struct Scene {
    pub(crate) client: Client,
    pub(crate) chance: Chance,
    retain: Retain,
    stage: Arc<Stage>,
}

/// What all stories of one run share.
struct Stage {
    place: Place,
    /// The name of each process that was started.
    started: Mutex<Vec<String>>,
    /// How many files have a name.
    files: AtomicUsize,
    /// Whether a server has given up some output.
    lacks_output: AtomicBool,
}

impl Scene {
    /// Makes a directory of its own.
    pub(crate) fn new(client: Client, chance: Chance) -> Self {
        let stage = Arc::new(Stage {
            place: Place::new(),
            started: Mutex::new(Vec::new()),
            files: AtomicUsize::new(0),
            lacks_output: AtomicBool::new(false),
        });
        Self { client, chance, retain: Retain::default(), stage }
    }

    /// Makes a directory of its own; its processes are kept like this.
    pub(crate) fn retaining(client: Client, chance: Chance, retain: Retain) -> Self {
        Self { retain, ..Self::new(client, chance) }
    }

    /// Returns the same scene with other luck.
    pub(crate) fn branch(&mut self) -> Self {
        Self { chance: self.chance.branch(), ..self.clone() }
    }

    /// Begins a command line that notes its start.
    pub(crate) fn shell(&self, line: &str) -> Command {
        let mut started = self.stage.started.lock().unwrap_or_else(PoisonError::into_inner);
        let name = format!("process-{}", started.len());
        let line = format!("echo {name} >> started; {line}");
        started.push(name);
        Command::shell(line).cwd(self.path("")).retain(self.retain)
    }

    /// Returns a name for a file that no other story has: they share a directory, and many may be told at once.
    pub(crate) fn file(&self) -> String {
        format!("file-{}", self.stage.files.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a path in the directory that processes run in.
    pub(crate) fn path(&self, name: &str) -> String {
        self.stage.place.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) {
        self.stage.place.write(name, content);
    }

    /// Notes that the server has given up some output of a process that has said so much.
    pub(crate) fn lack(&self, said: usize) {
        assert!(said > RETAINED, "what is retained is not given up");
        self.stage.lacks_output.store(true, Ordering::Relaxed);
    }

    /// Checks that no output was given up.
    pub(crate) fn assert_whole(&self) {
        assert!(!self.stage.lacks_output.load(Ordering::Relaxed), "output was given up");
    }

    /// Checks that each process was started once.
    pub(crate) fn assert_each_started_once(&self) {
        let noted = fs::read_to_string(self.path("started")).unwrap_or_default();
        let mut times: BTreeMap<&str, u32> = BTreeMap::new();
        for name in noted.lines() {
            *times.entry(name).or_default() += 1;
        }
        let started = self.stage.started.lock().unwrap_or_else(PoisonError::into_inner);
        let expected: BTreeMap<&str, u32> = started.iter().map(|name| (&**name, 1)).collect();
        assert_eq!(times, expected, "each process is started once");
    }

    /// Checks that no process is left, or soon none.
    pub(crate) fn assert_nothing_is_left(&self) {
        for pid in self.running() {
            let Some(watched) = Watched::find(pid) else { continue };
            let runs = || fs::read_to_string(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
            assert!(watched.ended_within(PATIENCE), "`{}` is left behind", runs().unwrap_or_default());
        }
    }

    /// Returns the processes that run in the directory.
    fn running(&self) -> Vec<Pid> {
        let here = PathBuf::from(self.path("")).canonicalize().unwrap();
        let processes = fs::read_dir("/proc").expect("Linux has /proc").filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let cwd = fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
            (cwd == here).then(|| Pid::from_raw(pid))?
        });
        processes.collect()
    }
}
