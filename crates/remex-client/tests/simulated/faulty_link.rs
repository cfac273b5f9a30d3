//! One connection in memory that goes wrong as planned: it splits, stalls, loses bytes, or breaks.
//!
//! Start at [`Cable`].

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use remex_client::Link;
use remex_proto::binary;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    time::Instant,
};

use crate::random::Random;

/// What the client may write before somebody carries it away.
const UNCARRIED: usize = 64 << 10;

/// One connection.
pub(crate) struct Cable {
    random: Random,
    pub(crate) to_server: Way,
    pub(crate) to_client: Way,
    /// Carried, and not read by the client yet.
    arrived: VecDeque<u8>,
    client_sees: Sight,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// The client has dropped its end.
    pub(crate) left: Option<Instant>,
    /// How long after a break the server learns of it.
    pub(crate) notice: Duration,
    /// When the server learns that nothing will come any more.
    pub(crate) noticed_at: Option<Instant>,
    /// The server hung up: once everything is carried, the client sees the end.
    pub(crate) hung_up: bool,
    /// Short reads and writes until so many bytes have passed.
    split_until: u64,
    /// It broke since somebody looked.
    pub(crate) just_broken: bool,
}

/// One direction.
#[derive(Default)]
pub(crate) struct Way {
    bytes: VecDeque<u8>,
    carried: u64,
    /// In order of `at`.
    faults: VecDeque<Fault>,
    stalled_until: Option<Instant>,
    vanishes: bool,
}

/// Something that goes wrong after so many bytes of one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) at: u64,
    pub(crate) kind: FaultKind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum FaultKind {
    /// The connection is gone; the client sees an end or an error.
    Cut(Sight),
    /// What follows in this direction gets lost, and nobody is told.
    Vanish,
    /// Nothing moves in this direction for a while.
    Stall(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    Open,
    End,
    Reset,
}

/// What is to go wrong on a connection.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) to_server: Vec<Fault>,
    pub(crate) to_client: Vec<Fault>,
    pub(crate) notice: Duration,
    pub(crate) split_until: u64,
}

impl Plan {
    pub(crate) fn healthy(random: &mut Random) -> Self {
        let split_until = if random.chance(30) { random.below(3000) as u64 } else { 0 };
        Plan { split_until, ..Plan::default() }
    }

    pub(crate) fn faulty(random: &mut Random) -> Self {
        let mut plan = Plan::healthy(random);
        plan.notice = match random.below(10) {
            0..6 => Duration::ZERO,
            6..9 => random.millis(1, 3_000),
            _ => random.millis(3_000, 20_000),
        };
        for _ in 0..random.between(1, 3) {
            let at = match random.below(10) {
                0..4 => random.below(700),
                4..8 => random.between(700, 8_000),
                _ => random.below(60_000),
            };
            let kind = match random.below(10) {
                0..4 => FaultKind::Cut(if random.chance(50) { Sight::End } else { Sight::Reset }),
                4..6 => FaultKind::Vanish,
                6..9 => FaultKind::Stall(random.millis(1, 4_000)),
                _ => FaultKind::Stall(random.millis(4_000, 60_000)),
            };
            let way = if random.chance(50) { &mut plan.to_server } else { &mut plan.to_client };
            way.push(Fault { at: at as u64, kind });
        }
        plan.to_server.sort_by_key(|fault| fault.at);
        plan.to_client.sort_by_key(|fault| fault.at);
        plan
    }
}

impl Cable {
    pub(crate) fn new(plan: Plan, random: Random) -> Self {
        let way = |faults: Vec<Fault>| Way { faults: faults.into(), ..Way::default() };
        Cable {
            random,
            to_server: way(plan.to_server),
            to_client: way(plan.to_client),
            arrived: VecDeque::new(),
            client_sees: Sight::Open,
            reader: None,
            writer: None,
            left: None,
            notice: plan.notice,
            noticed_at: None,
            hung_up: false,
            split_until: plan.split_until,
            just_broken: false,
        }
    }

    /// Returns the client's end.
    pub(crate) fn link(cable: &Arc<Mutex<Cable>>, shore: &Arc<Shore>) -> Link {
        let end = || End { cable: Arc::clone(cable), shore: Arc::clone(shore) };
        Link::lines(Box::new(end()), Box::new(end()))
    }

    /// Breaks the connection: what is on its way is lost.
    pub(crate) fn cut(&mut self, sight: Sight, now: Instant) {
        if self.client_sees != Sight::Open {
            return;
        }
        self.just_broken = true;
        self.client_sees = sight;
        self.to_server.bytes.clear();
        self.to_client.bytes.clear();
        self.noticed_at.get_or_insert(now + self.notice);
        self.wake();
    }

    /// Lets the server say something.
    pub(crate) fn say(&mut self, message: &[u8]) {
        if self.client_sees == Sight::Open && !self.hung_up {
            if binary::is_binary(message) {
                self.to_client.bytes.push_back(binary::LINE_MARK);
                self.to_client.bytes.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
                self.to_client.bytes.extend(message);
            } else {
                self.to_client.bytes.extend(message);
                self.to_client.bytes.push_back(b'\n');
            }
        }
    }

    /// Returns how much the server has said that is still on its way.
    pub(crate) fn backlog(&self) -> usize {
        self.to_client.bytes.len() + self.arrived.len()
    }

    /// Carries up to `max` bytes to the client; tells whether something moved.
    pub(crate) fn carry_to_client(&mut self, max: usize, now: Instant) -> bool {
        let Carried { bytes, moved, fault } = self.to_client.carry(max, now);
        self.arrived.extend(bytes);
        self.suffer(fault, now);
        if self.hung_up && self.to_client.bytes.is_empty() && self.client_sees == Sight::Open {
            self.client_sees = Sight::End;
        }
        self.wake();
        moved
    }

    /// Carries up to `max` bytes to the server.
    pub(crate) fn carry_to_server(&mut self, max: usize, now: Instant) -> Vec<u8> {
        let Carried { bytes, fault, .. } = self.to_server.carry(max, now);
        self.suffer(fault, now);
        if let Some(left) = self.left
            && self.to_server.bytes.is_empty()
        {
            // A farewell that gets lost is noticed as late as a break.
            let late = if self.to_server.vanishes { self.notice } else { Duration::ZERO };
            self.noticed_at.get_or_insert(left + late);
        }
        self.wake();
        bytes
    }

    fn suffer(&mut self, fault: Option<FaultKind>, now: Instant) {
        if let Some(FaultKind::Cut(sight)) = fault {
            self.cut(sight, now);
        }
    }

    fn wake(&mut self) {
        if !self.arrived.is_empty() || self.client_sees != Sight::Open {
            self.reader.take().inspect(Waker::wake_by_ref);
        }
        if self.to_server.bytes.len() < UNCARRIED || self.client_sees != Sight::Open {
            self.writer.take().inspect(Waker::wake_by_ref);
        }
    }

    /// Returns how much of `len` passes at once.
    fn piece(&mut self, len: usize, passed: u64) -> usize {
        if passed < self.split_until { len.min(self.random.between(1, 40)) } else { len }
    }
}

struct Carried {
    bytes: Vec<u8>,
    moved: bool,
    fault: Option<FaultKind>,
}

impl Way {
    fn carry(&mut self, max: usize, now: Instant) -> Carried {
        let nothing = Carried { bytes: Vec::new(), moved: false, fault: None };
        if self.stalled_until.is_some_and(|until| now < until) {
            return nothing;
        }
        self.stalled_until = None;
        let until_fault = self.faults.front().map_or(usize::MAX, |fault| (fault.at - self.carried) as usize);
        let len = self.bytes.len().min(max).min(until_fault);
        let mut bytes: Vec<u8> = self.bytes.drain(..len).collect();
        if self.vanishes {
            bytes.clear();
        }
        self.carried += len as u64;
        let is_due = self.faults.front().is_some_and(|fault| fault.at <= self.carried);
        let fault = if is_due { self.faults.pop_front().map(|fault| fault.kind) } else { None };
        match fault {
            Some(FaultKind::Vanish) => self.vanishes = true,
            Some(FaultKind::Stall(time)) => self.stalled_until = Some(now + time),
            Some(FaultKind::Cut(_)) | None => {}
        }
        let moved = len > 0 || fault.is_some();
        // Several faults may be due at one place, and none of them may lie behind.
        for fault in &mut self.faults {
            fault.at = fault.at.max(self.carried);
        }
        Carried { bytes, moved, fault }
    }
}

/// One of the client's two halves.
struct End {
    cable: Arc<Mutex<Cable>>,
    shore: Arc<Shore>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.cable.lock().unwrap().left.get_or_insert_with(Instant::now);
        self.shore.end(Instant::now());
        self.shore.bell.notify_one();
    }
}

/// What all ends share on the client's side.
#[derive(Default)]
pub(crate) struct Shore {
    /// Rung when a client writes or leaves.
    pub(crate) bell: Notify,
    /// When the last try to connect, or the last connection, was over for the client.
    last_end: Mutex<Option<Instant>>,
}

impl Shore {
    pub(crate) fn end(&self, now: Instant) {
        *self.last_end.lock().unwrap() = Some(now);
    }

    pub(crate) fn last_end(&self) -> Option<Instant> {
        *self.last_end.lock().unwrap()
    }
}

fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

impl AsyncRead for End {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut cable = self.cable.lock().unwrap();
        if cable.arrived.is_empty() {
            return match cable.client_sees {
                Sight::End => Poll::Ready(Ok(())),
                Sight::Reset => Poll::Ready(Err(reset())),
                Sight::Open => {
                    cable.reader = Some(context.waker().clone());
                    Poll::Pending
                }
            };
        }
        let len = cable.arrived.len().min(buffer.remaining());
        let passed = cable.to_client.carried;
        let len = cable.piece(len, passed);
        let bytes: Vec<u8> = cable.arrived.drain(..len).collect();
        buffer.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for End {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut cable = self.cable.lock().unwrap();
        if cable.client_sees != Sight::Open {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = UNCARRIED.saturating_sub(cable.to_server.bytes.len());
        if room == 0 {
            cable.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let passed = cable.to_server.carried;
        let len = cable.piece(bytes.len().min(room), passed);
        cable.to_server.bytes.extend(&bytes[..len]);
        self.shore.bell.notify_one();
        Poll::Ready(Ok(len))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
