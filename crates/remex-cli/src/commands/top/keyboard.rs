//! Reads keys in a dedicated thread, because reading from a terminal blocks.
//!
//! Start at [`Keyboard`].

use std::{
    io::{self, PipeReader, PipeWriter},
    thread::JoinHandle,
    time::Duration,
};

use crossterm::event::{self, Event};
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::mpsc;

use crate::render::failure::Failure;

/// The number of buffered key events.
const KEYS: usize = 64;

/// How long to look for events after input has arrived; without any time, crossterm does not look at all.
const LOOK: Duration = Duration::from_millis(1);

/// The keys of this terminal, until it is closed: then another program may read them.
pub(super) struct Keyboard {
    events: mpsc::Receiver<Event>,
    /// Ends the thread when it is dropped.
    stop: PipeWriter,
    thread: JoinHandle<()>,
}

impl Keyboard {
    pub(super) fn open() -> Result<Self, Failure> {
        let (send, events) = mpsc::channel(KEYS);
        let (stopped, stop) = io::pipe().map_err(|error| Failure::io("make a pipe", &error))?;
        let thread = std::thread::Builder::new()
            .name("remex-keys".to_owned())
            .spawn(move || read(&send, &stopped))
            .map_err(|error| Failure::no_thread("reads the keyboard", &error))?;
        Ok(Self { events, stop, thread })
    }

    /// Returns the next event; `None` after the terminal was closed.
    pub(super) async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Returns the next event if it has arrived.
    pub(super) fn pending(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Stops reading, so that another program gets the keys.
    pub(super) async fn close(self) {
        let Self { events, stop, thread } = self;
        drop((events, stop));
        let _ = tokio::task::spawn_blocking(move || thread.join()).await;
    }
}

/// Reads events until the terminal or the other end of `stopped` is closed.
fn read(send: &mpsc::Sender<Event>, stopped: &PipeReader) {
    let stdin = io::stdin();
    loop {
        let mut sources = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        match poll(&mut sources, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        }
        if !sources[1].revents().is_empty() || sources[0].revents().contains(PollFlags::HUP) {
            return;
        }
        while let Ok(true) = event::poll(LOOK) {
            let Ok(event) = event::read() else { return };
            if send.blocking_send(event).is_err() {
                return;
            }
        }
    }
}
