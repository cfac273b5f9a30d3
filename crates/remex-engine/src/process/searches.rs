//! Searches for text in the output of one process.
//!
//! One task searches for all waits on a log: it reads each part once, and matches it on the threads for computing, a
//! little at a time. So waits cost the threads of the runtime nothing, however many there are. Start at
//! [`ServerProcess::find_output`].

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use remex_base::{lock, supervise::defect};
use remex_proto::{
    RpcError,
    state::{
        matcher,
        output_log::{Cursor, Next, Seq},
    },
};
use tokio::sync::oneshot;

use super::{
    ProcessState, ServerAudience, ServerProcess, Waiter,
    load::{Backoff, pause},
    log::{Block, ServerLog, Unread},
    unreadable,
};

/// How much output is searched at once, about.
const SLICE_BYTES: usize = 128 << 10;

/// How much one turn on a thread for computing matches, over all searches of the turn.
const TURN_BYTES: usize = 1 << 20;

/// A search does not time out before it has seen the output that was there when it began, or this much of it.
const FIRST_LOOK_BYTES: u64 = 1 << 20;

/// The searches that are in progress; output that they have not seen is held for some of them.
#[derive(Debug, Default)]
pub struct Searches {
    /// How far each has read, by its number. Bounded by the number of waits that are permitted.
    positions: BTreeMap<u64, SearchPosition>,
    /// Searches that the task has not taken yet.
    new: Vec<Search>,
    last: u64,
    /// Whether the task runs.
    is_running: bool,
}

#[derive(Debug)]
struct SearchPosition {
    seq: Seq,
    waiter: Waiter,
}

impl Searches {
    /// Returns the event up to which all searches that hold output have read.
    pub(super) fn oldest(&self) -> Option<Seq> {
        let holding = self.positions.values().filter(|position| position.waiter == Waiter::Keeping);
        holding.map(|position| position.seq).min()
    }
}

/// How a search ends.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Its text, and the event that completes it.
    Found(Seq, Vec<u8>),
    /// The process has closed, and the text is not in its output.
    Closed,
    TimedOut,
}

/// The parameters of a search.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) regex: String,
    pub(super) after: Seq,
    pub(super) waiter: Waiter,
    pub(super) deadline: Option<Instant>,
}

impl<A: ServerAudience> ServerProcess<A> {
    /// Searches the output for a text.
    ///
    /// # Errors
    ///
    /// If the expression is invalid, or if the log cannot be read until the deadline.
    pub(super) async fn find_output(&self, wanted: Wanted) -> Result<Outcome, RpcError> {
        let Wanted { regex, after, waiter, deadline } = wanted;
        let searching = Searching::begin(self, after, waiter);
        let text = self.host().compute().run(move || matcher::Search::new(&regex)).await?;
        let (mut answer, status) = self.begin_search(searching.number, text, after, deadline);
        let outcome = match deadline {
            None => answer.await,
            Some(at) => match tokio::time::timeout_at(at.into(), &mut answer).await {
                Ok(outcome) => outcome,
                Err(_) if status.has_looked.load(Ordering::Relaxed) => Ok(Outcome::TimedOut),
                Err(_) => answer.await,
            },
        };
        match (outcome, status.failure()) {
            (Err(_), _) => Err(defect()),
            (Ok(Outcome::TimedOut), Some(cause)) => Err(unreadable(&self.id, Some(&cause))),
            (Ok(outcome), _) => Ok(outcome),
        }
    }

    fn begin_search(
        &self,
        number: u64,
        text: matcher::Search,
        after: Seq,
        deadline: Option<Instant>,
    ) -> (oneshot::Receiver<Outcome>, Arc<Status>) {
        let (sender, answer) = oneshot::channel();
        let status = Arc::<Status>::default();
        let mut state = self.state();
        let (cursor, until) = (state.kind.log_mut().cursor_after(after), state.kind.log().next_seq() - 1);
        let searches = state.kind.searches();
        searches.new.push(Search {
            number,
            cursor,
            text,
            found: None,
            deadline,
            retry_at: None,
            first_look: FirstLook { until, bytes: 0 },
            status: Arc::clone(&status),
            answer: sender,
        });
        if !std::mem::replace(&mut searches.is_running, true) {
            self.host().spawn(self.clone().search());
        }
        drop(state);
        self.served().output.notify_waiters();
        (answer, status)
    }

    /// Searches for all waits until there are none.
    async fn search(self) {
        let mut running = Running { process: &self, is_done: false };
        let (mut searches, mut backoff) = (VecDeque::new(), Backoff::default());
        loop {
            let output = self.served().output.notified();
            tokio::pin!(output);
            output.as_mut().enable();
            let step = {
                let mut state = self.state();
                searches.extend(state.kind.searches().new.drain(..));
                searches.retain(|search: &Search| !search.answer.is_closed());
                if searches.is_empty() {
                    state.kind.searches().is_running = false;
                    running.is_done = true;
                    return;
                }
                next_step(state.kind.log_mut(), &mut searches, SLICE_BYTES)
            };
            match step {
                Step::Wait(_) if searches.is_empty() => {}
                Step::Wait(None) => output.await,
                Step::Wait(Some(at)) => tokio::select! {
                    () = output => {}
                    paused = pause(self.host(), at.saturating_duration_since(Instant::now())) => {
                        if paused.is_none() {
                            return;
                        }
                    }
                },
                Step::Match(block) => self.match_all(&mut searches, block).await,
                Step::Load(cursor) => match self.load(cursor).await {
                    None => return,
                    Some(Ok(loaded)) => {
                        backoff = Backoff::default();
                        if let Some(view) = self.state().kind.log_mut().disk() {
                            view.learn(&loaded);
                        }
                        self.match_all(&mut searches, loaded.block).await;
                    }
                    Some(Err(error)) => fail_all(&mut searches, cursor, &error, backoff.next_delay()),
                },
                Step::Fail(cursor, error) => fail_all(&mut searches, cursor, &error, backoff.next_delay()),
            }
        }
    }

    /// Matches a block of output for every search that has reached it, a few at a time.
    async fn match_all(&self, searches: &mut VecDeque<Search>, block: Arc<Block>) {
        let mut due = take_due(searches, &block);
        let at_once = (TURN_BYTES / block.len().max(1)).max(1);
        while !due.is_empty() {
            let turn: Vec<_> = due.drain(..due.len().min(at_once)).collect();
            let block = Arc::clone(&block);
            let matched = self.host().compute().run_low_priority(move || {
                let mut turn = turn;
                turn.iter_mut().for_each(|search| search.look_at(&block));
                turn
            });
            let (matched, now) = (matched.await, Instant::now());
            self.note_looked_at(&matched);
            searches.extend(matched.into_iter().filter_map(|search| search.settle(now)));
        }
    }

    /// Records how far searches have read.
    fn note_looked_at(&self, searches: &[Search]) {
        let mut state = self.state();
        for search in searches {
            if let Some(position) = state.kind.searches().positions.get_mut(&search.number) {
                position.seq = search.cursor.seq;
            }
        }
        self.wake_if_full(&state);
    }
}

impl<A: ServerAudience> ServerProcess<A> {
    fn wake_if_full(&self, state: &ProcessState<A>) {
        if state.full {
            self.wake.notify_one();
        }
    }
}

/// The next step of the task of the searches.
enum Step {
    /// Matches this part.
    Match(Arc<Block>),
    /// Reads the files after this cursor.
    Load(Cursor),
    /// Tries again later to read on after this cursor.
    Fail(Cursor, io::Error),
    /// Waits for output, or for this time to read the files again.
    Wait(Option<Instant>),
}

/// Returns what to do for the search that has waited longest; those that have seen everything are answered, or wait.
fn next_step(log: &mut dyn ServerLog, searches: &mut VecDeque<Search>, slice_bytes: usize) -> Step {
    let now = Instant::now();
    let seen_all = |search: Search| {
        if log.has_next(&search.cursor) {
            return Some(search);
        }
        if log.is_closed() {
            let _ = search.answer.send(Outcome::Closed);
            return None;
        }
        search.may_time_out();
        search.settle(now)
    };
    *searches = std::mem::take(searches).into_iter().filter_map(seen_all).collect();
    let is_due =
        |search: &&Search| log.has_next(&search.cursor) && search.retry_at.is_none_or(|at| now >= at);
    match searches.iter().find(is_due).map(|search| search.cursor) {
        Some(cursor) => slice(log, cursor, slice_bytes),
        None => Step::Wait(searches.iter().filter_map(|search| search.retry_at).min()),
    }
}

/// Takes all searches out that have come to this part of the output.
fn take_due(searches: &mut VecDeque<Search>, block: &Block) -> VecDeque<Search> {
    let range = block.start().seq..block.end().seq;
    let (due, others) =
        std::mem::take(searches).into_iter().partition(|search| range.contains(&search.cursor.seq));
    *searches = others;
    due
}

/// Has the searches that have come to `cursor` try again after `delay`; those that may not wait so long get the error.
fn fail_all(searches: &mut VecDeque<Search>, cursor: Cursor, error: &io::Error, delay: Duration) {
    let (now, cause) = (Instant::now(), error.to_string());
    let failed = |search: Search| match search.cursor.seq == cursor.seq {
        true => search.fail(&cause, now + delay, now),
        false => Some(search),
    };
    *searches = std::mem::take(searches).into_iter().filter_map(failed).collect();
}

/// Copies a part of the log, unless it is only on disk.
fn slice(log: &mut dyn ServerLog, start: Cursor, slice_bytes: usize) -> Step {
    let (mut block, mut cursor) = (Block::new(start), start);
    while block.len() < slice_bytes {
        let read = match log.next(&mut cursor) {
            Ok(Some(next)) => {
                block.push(next, cursor).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory).into())
            }
            Ok(None) => break,
            Err(unread) => Err(unread),
        };
        match read {
            Ok(()) => {}
            // Output before the gap is matched first.
            Err(_) if !block.is_empty() => break,
            Err(Unread::OnDisk) => return Step::Load(start),
            Err(Unread::Failed(error)) => return Step::Fail(start, error),
            Err(Unread::NoMemory) => return Step::Fail(start, io::ErrorKind::OutOfMemory.into()),
        }
    }
    Step::Match(Arc::new(block))
}

/// A search that continues where it stopped.
#[derive(Debug)]
struct Search {
    number: u64,
    cursor: Cursor,
    text: matcher::Search,
    found: Option<(Seq, Vec<u8>)>,
    deadline: Option<Instant>,
    /// When to read the files again that could not be read.
    retry_at: Option<Instant>,
    first_look: FirstLook,
    status: Arc<Status>,
    answer: oneshot::Sender<Outcome>,
}

/// The output that a search must have seen before it may time out.
#[derive(Debug)]
struct FirstLook {
    until: Seq,
    bytes: u64,
}

/// The status of a search, shared with its wait.
#[derive(Debug, Default)]
struct Status {
    /// Whether it may time out.
    has_looked: AtomicBool,
    /// Why the log could not be read last, if it could not. Shared by the wait and the task that searches; held briefly.
    failure: Mutex<Option<String>>,
}

impl Status {
    fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    fn set_failure(&self, failure: Option<String>) {
        *lock(&self.failure) = failure;
    }
}

impl Search {
    /// Matches a part of the output, from where it stopped on.
    fn look_at(&mut self, block: &Block) {
        for next in block.after(self.cursor.seq) {
            match next {
                Next::Output { seq, stream, bytes, .. } => {
                    self.first_look.bytes += bytes.len() as u64;
                    if let Some(found) = self.text.look_at(stream, bytes) {
                        self.found = Some((seq, found.bytes().to_vec()));
                        break;
                    }
                }
                Next::Gap(_) => self.text.restart(),
                Next::Exited(_) | Next::Closed(_) => {}
            }
        }
        (self.cursor, self.retry_at) = (block.end(), None);
        self.status.set_failure(None);
        if self.cursor.seq >= self.first_look.until || self.first_look.bytes >= FIRST_LOOK_BYTES {
            self.may_time_out();
        }
    }

    fn may_time_out(&self) {
        self.status.has_looked.store(true, Ordering::Relaxed);
    }

    /// Answers it if it has ended, and returns it otherwise.
    fn settle(mut self, now: Instant) -> Option<Self> {
        let has_looked = self.status.has_looked.load(Ordering::Relaxed);
        let outcome = match self.found.take() {
            Some((seq, text)) => Outcome::Found(seq, text),
            None if has_looked && self.deadline.is_some_and(|at| now >= at) => Outcome::TimedOut,
            None => return Some(self),
        };
        let _ = self.answer.send(outcome);
        None
    }

    /// Records that the log cannot be read now: if it stays so until the deadline, that is the answer.
    fn fail(mut self, cause: &str, retry_at: Instant, now: Instant) -> Option<Self> {
        self.status.set_failure(Some(cause.to_owned()));
        self.retry_at = Some(retry_at);
        self.may_time_out();
        self.settle(now)
    }
}

/// The task that searches; if it ends early, so do its searches.
struct Running<'a, A: ServerAudience> {
    process: &'a ServerProcess<A>,
    is_done: bool,
}

impl<A: ServerAudience> Drop for Running<'_, A> {
    fn drop(&mut self) {
        if !self.is_done {
            let mut state = self.process.state();
            state.kind.searches().is_running = false;
            let new = std::mem::take(&mut state.kind.searches().new);
            drop(state);
            drop(new);
        }
    }
}

/// Holds output for one search until dropped.
#[derive(Debug)]
struct Searching<'a, A: ServerAudience> {
    process: &'a ServerProcess<A>,
    number: u64,
}

impl<'a, A: ServerAudience> Searching<'a, A> {
    fn begin(process: &'a ServerProcess<A>, after: Seq, waiter: Waiter) -> Self {
        let mut state = process.state();
        let searches = state.kind.searches();
        searches.last += 1;
        let number = searches.last;
        searches.positions.insert(number, SearchPosition { seq: after, waiter });
        Searching { process, number }
    }
}

impl<A: ServerAudience> Drop for Searching<'_, A> {
    fn drop(&mut self) {
        let mut state = self.process.state();
        state.kind.searches().positions.remove(&self.number);
        self.process.wake_if_full(&state);
        let is_last = state.kind.searches().positions.is_empty();
        drop(state);
        if is_last {
            // Ends the task.
            self.process.served().output.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use remex_proto::state::output_log::{Limits, OutputLog, Stream};

    use super::*;

    const CHUNK: usize = 64;

    /// Returns a log with chunks that begin with these texts.
    fn log(texts: &[&str]) -> OutputLog {
        let mut log = OutputLog::new(Limits { retain_bytes: 16 << 20, ..Limits::default() });
        for text in texts {
            log.newest();
            let Ok(len) = log.append(Stream::Stdout, 0, CHUNK, |room| {
                room.fill(b'.');
                room[..text.len()].copy_from_slice(text.as_bytes());
                Ok::<_, std::convert::Infallible>(room.len())
            });
            assert_eq!(len, CHUNK);
        }
        log
    }

    fn search(
        log: &mut dyn ServerLog,
        number: u64,
        regex: &str,
        after: Seq,
    ) -> (Search, oneshot::Receiver<Outcome>) {
        let (sender, answer) = oneshot::channel();
        let search = Search {
            number,
            cursor: log.cursor_after(after),
            text: matcher::Search::new(regex).unwrap(),
            found: None,
            deadline: None,
            retry_at: None,
            first_look: FirstLook { until: log.next_seq() - 1, bytes: 0 },
            status: Arc::default(),
            answer: sender,
        };
        (search, answer)
    }

    #[test]
    fn searches_at_one_position_share_a_copy_and_others_take_turns() {
        let mut log = log(&["a", "b", "c", "d", "e", "f", "g", "h"]);
        let (wanted, answers): (Vec<_>, Vec<_>) = [(1, 0), (2, 0), (3, 4), (4, 5)]
            .map(|(number, after)| search(&mut log, number, "h", after))
            .into_iter()
            .unzip();
        let mut searches = VecDeque::from(wanted);
        let mut turns = Vec::new();
        while !searches.is_empty() {
            let Step::Match(block) = next_step(&mut log, &mut searches, 2 * CHUNK) else {
                panic!("there is more")
            };
            let mut due = take_due(&mut searches, &block);
            turns.push((block.start().seq, due.iter().map(|search| search.number).collect::<Vec<_>>()));
            due.iter_mut().for_each(|search| search.look_at(&block));
            searches.extend(due.into_iter().filter_map(|search| search.settle(Instant::now())));
        }
        // Two chunks at once; the fourth search joins the third, which reaches the end before the first two.
        let expected = [(0, vec![1, 2]), (4, vec![3, 4]), (2, vec![1, 2]), (6, vec![3, 4]), (4, vec![1, 2])];
        assert_eq!(turns[..5], expected);
        for mut answer in answers {
            assert!(matches!(answer.try_recv(), Ok(Outcome::Found(8, text)) if text == b"h"));
        }
    }

    #[test]
    fn a_search_times_out_only_after_it_has_seen_existing_output() {
        let mut log = log(&["a", "b", "c"]);
        let (mut search, mut answer) = search(&mut log, 1, "nowhere", 0);
        search.deadline = Some(Instant::now());
        let mut searches = VecDeque::from([search]);
        for turns in 0..2 {
            assert!(answer.try_recv().is_err(), "{turns}");
            let Step::Match(block) = next_step(&mut log, &mut searches, 2 * CHUNK) else {
                panic!("there is more")
            };
            let mut due = take_due(&mut searches, &block);
            due[0].look_at(&block);
            searches.extend(due.into_iter().filter_map(|search| search.settle(Instant::now())));
        }
        assert!(matches!(answer.try_recv(), Ok(Outcome::TimedOut)));
    }

    #[test]
    fn a_search_that_cannot_read_waits_without_blocking_others() {
        let mut log = log(&["a", "b"]);
        let ((first, _first), (second, _second)) = (search(&mut log, 1, "x", 0), search(&mut log, 2, "x", 1));
        let now = Instant::now();
        let first =
            first.fail("as planned", now + Duration::from_secs(3600), now).expect("it has no deadline");
        assert_eq!(first.status.failure().as_deref(), Some("as planned"));
        let mut searches = VecDeque::from([first, second]);
        let Step::Match(block) = next_step(&mut log, &mut searches, 2 * CHUNK) else {
            panic!("there is more")
        };
        assert_eq!(block.start().seq, 1);
        let mut due = take_due(&mut searches, &block);
        due[0].look_at(&block);
        searches.extend(due);
        assert!(matches!(next_step(&mut log, &mut searches, 2 * CHUNK), Step::Wait(Some(at)) if at > now));
    }
}
