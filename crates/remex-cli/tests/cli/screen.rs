//! A real terminal with a program on it: keystrokes in, screen out.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    process::{Pid, PidfdFlags, pidfd_open},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Termios, Winsize, tcgetattr, tcsetwinsize},
};

use crate::{
    home::Home,
    support::{InTime as _, PATIENCE, Patient},
};

/// When a key that did nothing is typed once more.
const AGAIN: Duration = Duration::from_secs(1);

/// A terminal of 80 × 24 unless resized, and a program whose controlling terminal it is.
pub(crate) struct Screen {
    master: File,
    /// The other side, kept open so that the terminal outlives the program.
    slave: File,
    child: Child,
    shown: Arc<Shown>,
}

struct Shown {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    parser: vt100::Parser,
    /// Everything that was written.
    raw: Vec<u8>,
}

impl Screen {
    /// Puts `remex` on a terminal.
    pub(crate) fn remex(home: &Home, args: &[&str]) -> Self {
        Self::open(home, env!("CARGO_BIN_EXE_remex"), args)
    }

    /// Puts a program on a terminal.
    pub(crate) fn open(home: &Home, program: &str, args: &[&str]) -> Self {
        let (master, slave, child) = on_terminal(home, program, args);
        let state = State { parser: vt100::Parser::new(24, 80, 0), raw: Vec::new() };
        let shown = Arc::new(Shown { state: Mutex::new(state), changed: Condvar::new() });
        let (mut reader, watched) = (master.try_clone().unwrap(), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(len @ 1..) = reader.read(&mut buffer) {
                let mut state = watched.state.lock().unwrap();
                state.parser.process(&buffer[..len]);
                state.raw.extend_from_slice(&buffer[..len]);
                watched.changed.notify_all();
            }
        });
        Self { master, slave, child, shown }
    }

    /// Types.
    pub(crate) fn keys(&self, keys: &str) {
        (&self.master).write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the screen shows something, and returns the screen.
    pub(crate) fn wait_for(&self, text: &str) -> String {
        self.wait_until(&format!("`{text}` on the screen"), |screen| screen.contains(text))
    }

    /// Waits until the screen is as wanted, and returns it.
    pub(crate) fn wait_until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let state = self.shown.state.lock().unwrap();
        let (state, timeout) = self
            .shown
            .changed
            .wait_timeout_while(state, PATIENCE, |state| !wanted(&state.parser.screen().contents()))
            .unwrap();
        let screen = state.parser.screen().contents();
        assert!(!timeout.timed_out(), "waited for {what}; it shows\n{screen}");
        screen
    }

    /// Returns everything that was written to the terminal so far.
    pub(crate) fn raw(&self) -> String {
        String::from_utf8_lossy(&self.shown.state.lock().unwrap().raw).into_owned()
    }

    /// Changes the size of the window.
    pub(crate) fn resize(&self, rows: u16, cols: u16) {
        self.shown.state.lock().unwrap().parser.screen_mut().set_size(rows, cols);
        tcsetwinsize(&self.master, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 })
            .unwrap();
    }

    /// Returns the settings of the terminal: raw, cooked, echo.
    pub(crate) fn settings(&self) -> Termios {
        tcgetattr(&self.slave).unwrap()
    }

    /// Returns the id of the program.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Types until the program ends, and returns its exit code.
    ///
    /// ssh does not notice a signal between its question and its wait for the answer, so a person types it once more.
    pub(crate) fn end_by(&mut self, keys: &str) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.keys(keys);
            if self.ends_within(AGAIN) {
                return self.end();
            }
            assert!(Instant::now() < deadline, "{keys:?} does not end it; it has shown\n{}", self.raw());
        }
    }

    /// Types until the screen shows something, for the same reason.
    pub(crate) fn keys_until(&self, keys: &str, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.keys(keys);
            let state = self.shown.state.lock().unwrap();
            let lacks = |state: &mut State| !state.parser.screen().contents().contains(text);
            let (state, waited) = self.shown.changed.wait_timeout_while(state, AGAIN, lacks).unwrap();
            if !waited.timed_out() {
                return;
            }
            let screen = state.parser.screen().contents();
            assert!(Instant::now() < deadline, "{keys:?} does not lead to `{text}`; it shows\n{screen}");
        }
    }

    fn ends_within(&self, limit: Duration) -> bool {
        let exit = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()).unwrap();
        let limit = Timespec::try_from(limit).unwrap();
        let mut polled = [PollFd::new(&exit, PollFlags::IN)];
        retry_on_intr(|| poll(&mut polled, Some(&limit))).unwrap() == 1
    }

    /// Waits for the end of the program, and returns its exit code.
    pub(crate) fn end(&mut self) -> Option<i32> {
        let ended = self.ends_within(PATIENCE);
        assert!(ended, "waited for the end of the program; it has shown\n{}", self.raw());
        self.child.ended().code()
    }
}

/// Puts `remex` on a terminal, waits until that shows something, and takes the terminal away.
pub(crate) fn hang_up(home: &Home, args: &[&str], text: &str) -> Child {
    let (master, _, child) = on_terminal(home, env!("CARGO_BIN_EXE_remex"), args);
    let mut master = Patient::new(master);
    let (mut shown, mut buffer) = (String::new(), [0; 4096]);
    while !shown.contains(text) {
        let len = master.read(&mut buffer).unwrap();
        shown.push_str(&String::from_utf8_lossy(&buffer[..len]));
    }
    child
}

/// Starts a program whose controlling terminal is the second file.
fn on_terminal(home: &Home, program: &str, args: &[&str]) -> (File, File, Child) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let slave = File::options().read(true).write(true).open(name).unwrap();
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).unwrap();
    // `setsid -c` makes its standard input the controlling terminal, and then becomes the program.
    let mut command = Command::new("setsid");
    command.args(["-c", "--", program]).args(args);
    home.dress(&mut command);
    let side = || Stdio::from(slave.try_clone().unwrap());
    let child = command.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
    (File::from(master), slave, child)
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
