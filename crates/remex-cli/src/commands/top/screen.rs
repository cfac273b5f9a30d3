//! The terminal and the signals of the live view.

use std::{io, mem::ManuallyDrop};

use crossterm::{
    execute,
    terminal::{EnterAlternateScreen, enable_raw_mode},
};
use ratatui::{DefaultTerminal, layout::Rect};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::render::failure::Failure;

/// The terminal in raw mode on the alternate screen; restored on drop, and before a panic message.
pub(super) struct Screen {
    /// Never dropped by itself: it would print errors about a closed terminal to that terminal.
    pub(super) terminal: ManuallyDrop<DefaultTerminal>,
}

impl Screen {
    pub(super) fn open() -> Result<Self, Failure> {
        let terminal = ratatui::try_init().map_err(|error| {
            let _ = ratatui::try_restore();
            Failure::io("use the terminal", &error)
        })?;
        Ok(Self { terminal: ManuallyDrop::new(terminal) })
    }

    /// Restores the terminal.
    pub(super) fn leave(&mut self) {
        let _ = self.terminal.show_cursor();
        let _ = ratatui::try_restore();
    }

    /// Sets up the terminal again, whatever other programs did to it meanwhile.
    pub(super) fn enter(&mut self) -> io::Result<()> {
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen)?;
        // Unlike `clear`, this does not query the cursor position, whose answer would arrive as key events.
        let size = self.terminal.size()?;
        self.terminal.resize(Rect::new(0, 0, size.width, size.height))
    }

    /// Suspends the program until the shell resumes it.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        self.leave();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP)?;
        self.enter()
    }

    /// Sets up the terminal again, which other programs may have changed while this one was stopped.
    pub(super) fn renew(&mut self) -> io::Result<()> {
        self.leave();
        self.enter()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The handled signals.
pub(super) struct Signals {
    terminate: Signal,
    hang_up: Signal,
    interrupt: Signal,
    quit: Signal,
    stop: Signal,
    go_on: Signal,
    window_change: Signal,
}

/// The reaction to a signal.
pub(super) enum SignalAction {
    /// End with this exit code.
    End(u8),
    Stop,
    GoOn,
    /// The window has another size.
    Redraw,
}

impl Signals {
    pub(super) fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::io("listen for signals", &error));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
            interrupt: listen(SignalKind::interrupt())?,
            quit: listen(SignalKind::quit())?,
            stop: listen(SignalKind::from_raw(rustix::process::Signal::TSTP.as_raw()))?,
            go_on: listen(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()))?,
            window_change: listen(SignalKind::window_change())?,
        })
    }

    /// Forgets signals of keys that were meant for another program.
    pub(super) fn forget_keys(&mut self) -> Result<(), Failure> {
        let Self { interrupt, quit, stop, .. } = Self::listen()?;
        (self.interrupt, self.quit, self.stop) = (interrupt, quit, stop);
        Ok(())
    }

    pub(super) async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.terminate.recv() => SignalAction::End(143),
            _ = self.hang_up.recv() => SignalAction::End(129),
            _ = self.interrupt.recv() => SignalAction::End(130),
            _ = self.quit.recv() => SignalAction::End(131),
            _ = self.stop.recv() => SignalAction::Stop,
            _ = self.go_on.recv() => SignalAction::GoOn,
            _ = self.window_change.recv() => SignalAction::Redraw,
        }
    }

    /// Waits for a terminating signal, and returns its exit code.
    pub(super) async fn end(&mut self) -> u8 {
        loop {
            if let SignalAction::End(code) = self.next().await {
                return code;
            }
        }
    }
}
