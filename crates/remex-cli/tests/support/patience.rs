//! Children of a test: they start with default signals, and every wait for them has a deadline.
//!
//! Start at [`InTime`]; [`default_signals`] is called by whatever makes a command.

use std::{
    fmt::Write as _,
    fs,
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{Arc, Mutex, Once, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal},
};
use tokio::signal::unix::{SignalKind, signal};

use super::{PATIENCE, Watched};

/// How long the output of a child may take to end after the child, whatever time is left.
const AFTERMATH: Duration = Duration::from_secs(1);

/// Makes children of this process start with the default action for every signal.
///
/// Under `nohup`, or as a background job of a script, the tests themselves start with signals ignored, and what is
/// ignored stays ignored across an exec; what is handled does not. So these signals get a handler that does nothing.
pub(crate) fn default_signals() {
    static ONCE: Once = Once::new();
    // In a thread of its own, because a test may be on a runtime already.
    ONCE.call_once(|| thread::spawn(handle_ignored).join().expect("a handler can be installed"));
}

fn handle_ignored() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.expect("a runtime can be built");
    let _entered = runtime.enter();
    for number in ignored() {
        // The handler outlives this, and the runtime.
        let handled = signal(SignalKind::from_raw(number));
        assert!(handled.is_ok(), "no handler for signal {number}: {handled:?}");
    }
}

/// Returns the signals that this process ignores, but for SIGPIPE, which Rust ignores itself and restores in children.
fn ignored() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").expect("Linux describes each process");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("it lists signals");
    numbers(mask).into_iter().filter(|number| *number != Signal::PIPE.as_raw()).collect()
}

/// Returns the signals of a mask as `/proc` shows it, but for those of the C library and the real-time ones.
fn numbers(mask: &str) -> Vec<i32> {
    let mask = u64::from_str_radix(mask.trim(), 16).expect("a mask is hexadecimal");
    (1..=31).filter(|number| mask >> (number - 1) & 1 == 1).collect()
}

/// Waits for a child that fail after [`PATIENCE`] with what was awaited, and end the child.
pub(crate) trait InTime {
    /// Waits for the end.
    fn ended(&mut self) -> ExitStatus;
    /// Waits for the end and collects what is printed on the streams that are piped.
    fn finished(self) -> Output;
}

impl InTime for Child {
    fn ended(&mut self) -> ExitStatus {
        ended_within(self, PATIENCE).unwrap_or_else(|waited| panic!("{waited}"))
    }

    fn finished(mut self) -> Output {
        finished_within(&mut self, PATIENCE).unwrap_or_else(|waited| panic!("{waited}"))
    }
}

impl InTime for &mut Command {
    fn ended(&mut self) -> ExitStatus {
        default_signals();
        self.spawn().unwrap_or_else(|error| panic!("cannot start {self:?}: {error}")).ended()
    }

    /// Collects stdout and stderr.
    fn finished(self) -> Output {
        default_signals();
        self.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.spawn().unwrap_or_else(|error| panic!("cannot start {self:?}: {error}")).finished()
    }
}

/// Waits for the end, or says what was awaited and ends the child.
fn ended_within(child: &mut Child, patience: Duration) -> Result<ExitStatus, String> {
    drop(child.stdin.take());
    let watched = Watched::new(Pid::from_child(child));
    let in_time = watched.ended_within(patience);
    let waited = if in_time { String::new() } else { format!("waited for the end of {}", described(child)) };
    if !in_time {
        watched.signal(Signal::KILL);
    }
    let status = child.wait().expect("a child can be waited for");
    if in_time { Ok(status) } else { Err(waited) }
}

/// Waits for the end and collects what is printed, or says what was awaited and ends the child.
pub(crate) fn finished_within(child: &mut Child, patience: Duration) -> Result<Output, String> {
    let deadline = Instant::now() + patience;
    let mut stdout = Collected::of(child.stdout.take());
    let mut stderr = Collected::of(child.stderr.take());
    let name = described(child);
    let ended = ended_within(child, patience);
    // What a child that was just killed has printed is there in a moment.
    let deadline = deadline.max(Instant::now() + AFTERMATH);
    let is_complete = stdout.finish(deadline) && stderr.finish(deadline);
    let (stdout, stderr) = (stdout.taken(), stderr.taken());
    let waited = match ended {
        Ok(status) if is_complete => return Ok(Output { status, stdout, stderr }),
        Ok(status) => format!("waited for the end of what {name} prints, which ended with {status}"),
        Err(waited) => waited,
    };
    let [stdout, stderr] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Err(format!("{waited}; it printed\n{stdout}\nand on stderr\n{stderr}"))
}

/// Names a child by its command line and what it waits for itself.
fn described(child: &Child) -> String {
    let about = |file: &str| fs::read(format!("/proc/{}/{file}", child.id())).unwrap_or_default();
    let words = about("cmdline");
    let words: Vec<_> = words.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let mut text = format!("`{}` (pid {})", words.join(" ").trim_end(), child.id());
    let ignored = about("status");
    let ignored = String::from_utf8_lossy(&ignored).into_owned();
    if let Some(mask) = ignored.lines().find_map(|line| line.strip_prefix("SigIgn:")) {
        let _ = write!(text, ", which ignores the signals {}", mask.trim());
    }
    text
}

/// What a stream has carried so far, read in a thread so that the writer never blocks.
struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
    /// Closed by the end of the reader.
    done: Option<std::sync::mpsc::Receiver<()>>,
}

impl Collected {
    fn of(stream: Option<impl Read + Send + 'static>) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let Some(mut stream) = stream else { return Self { bytes, reader: None, done: None } };
        let (end, done) = std::sync::mpsc::channel();
        let collected = Arc::clone(&bytes);
        let reader = thread::spawn(move || {
            let _end = end;
            let mut buffer = [0; 64 << 10];
            while let Ok(len @ 1..) = stream.read(&mut buffer) {
                collected.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..len]);
            }
        });
        Self { bytes, reader: Some(reader), done: Some(done) }
    }

    /// Waits for the end of the stream; false when the deadline came first.
    fn finish(&mut self, deadline: Instant) -> bool {
        let Some(done) = self.done.take() else { return true };
        let left = deadline.saturating_duration_since(Instant::now());
        let is_over = done.recv_timeout(left) == Err(std::sync::mpsc::RecvTimeoutError::Disconnected);
        if let Some(reader) = self.reader.take().filter(|_| is_over) {
            let _ = reader.join();
        }
        is_over
    }

    fn taken(&self) -> Vec<u8> {
        std::mem::take(&mut self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A stream of a child whose reads fail after [`PATIENCE`] with what was awaited.
pub(crate) struct Patient<S> {
    stream: S,
    patience: Duration,
}

impl<S: Read + AsFd> Patient<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, patience: PATIENCE }
    }
}

impl<S: Read + AsFd> Read for Patient<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let patience = Timespec::try_from(self.patience).expect("a minute is not too long");
        let mut ready = [PollFd::new(&self.stream, PollFlags::IN)];
        if poll(&mut ready, Some(&patience))? == 0 {
            let waited = format!("waited {:?} for more output of a child", self.patience);
            return Err(io::Error::new(io::ErrorKind::TimedOut, waited));
        }
        self.stream.read(buffer)
    }
}

impl<S: AsFd> AsFd for Patient<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    /// Set where the tests run again with signals ignored.
    const AGAIN: &str = "REMEX_TEST_AGAIN";

    #[test]
    fn children_of_tests_start_with_default_signals() {
        default_signals();
        for field in ["SigIgn:", "SigBlk:"] {
            let line = Command::new("grep").args([field, "/proc/self/status"]).finished().stdout;
            let line = String::from_utf8(line).unwrap();
            assert_eq!(numbers(line.strip_prefix(field).unwrap()), [0; 0], "{line}");
        }
        if std::env::var_os(AGAIN).is_some() {
            return;
        }
        // Once more, as `nohup` and the background jobs of a script would start it.
        let module = module_path!().split_once("::").unwrap().1;
        let test = format!("{module}::children_of_tests_start_with_default_signals");
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' HUP INT QUIT TERM; exec \"$0\" --exact \"$1\""]);
        command.arg(std::env::current_exe().unwrap()).arg(test).env(AGAIN, "1").stdin(Stdio::null());
        let again = command.finished();
        let said = String::from_utf8_lossy(&again.stdout);
        assert!(again.status.success() && said.contains("1 passed"), "{again:?}");
    }

    #[test]
    fn a_wait_for_a_child_fails_with_what_it_waited_for() {
        let mut command = Command::new("sh");
        let script = "echo so far; echo trouble >&2; exec sleep 1000";
        let mut child =
            command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = [0];
        Patient::new(child.stderr.as_mut().unwrap()).read_exact(&mut first).unwrap();
        let waited = finished_within(&mut child, SHORT).unwrap_err();
        for part in ["waited for the end of `", "sleep 1000`", "so far", "rouble"] {
            assert!(waited.contains(part), "{waited}");
        }
        let mut silent = Command::new("sleep").arg("1000").stdout(Stdio::piped()).spawn().unwrap();
        let mut stream = Patient { stream: silent.stdout.take().unwrap(), patience: SHORT };
        let error = stream.read_exact(&mut first).unwrap_err();
        assert_eq!(error.to_string(), "waited 20ms for more output of a child");
        let waited = ended_within(&mut silent, SHORT).unwrap_err();
        assert!(waited.contains("`sleep 1000`"), "{waited}");
    }
}
