//! A proxy that makes connections go wrong.
//!
//! Start at [`Proxy`].

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use remex_client::Target;
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    task::{JoinHandle, JoinSet},
    time::sleep,
};

use super::{
    chance::Chance,
    course::{Course, Cut, Fault, ServerEnd, Way},
};

/// How much is carried at once.
const CARRIED_BYTES: usize = 64 << 10;

/// Stands between a client and a server.
pub(crate) struct Proxy {
    target: Target,
    plan: Arc<Plan>,
    task: JoinHandle<()>,
    /// Where a unix socket lives.
    _directory: Option<TempDir>,
}

/// What the connections do, and where they lead.
struct Plan {
    state: Mutex<State>,
    tally: Arc<Tally>,
}

/// What has gone wrong, in all runs together.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) refused: AtomicU64,
    pub(crate) cut: AtomicU64,
    pub(crate) mute: AtomicU64,
}

struct State {
    server: Address,
    courses: std::collections::VecDeque<Course>,
    /// Draws more courses when there are none left; without it they are smooth.
    more: Option<Chance>,
    /// Whether a smooth one follows those that are drawn.
    pauses: bool,
    door: Door,
    /// What comes next this way is cut after so many bytes.
    snare: Option<(Way, usize)>,
}

/// Whether connections are let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    Open,
    /// They are refused.
    Shut,
}

#[derive(Debug, Clone)]
enum Address {
    Tcp(String),
    Unix(PathBuf),
}

impl Address {
    fn parse(address: &str) -> Self {
        match address.strip_prefix("unix://") {
            Some(path) => Address::Unix(path.into()),
            None => Address::Tcp(address.strip_prefix("ws://").expect("a WebSocket").to_owned()),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Stands before the server at this address; connections take these courses, and smooth ones after them.
    pub(crate) async fn before(server: &str, courses: Vec<Course>, tally: &Arc<Tally>) -> Self {
        Self::start(Address::parse(server), courses, None, tally).await
    }

    /// Stands before the server at this address, and every connection goes wrong.
    pub(crate) async fn before_faulty(server: &str, chance: Chance, tally: &Arc<Tally>) -> Self {
        Self::start(Address::parse(server), Vec::new(), Some(chance), tally).await
    }

    /// Stands before the server at this address; connections go wrong, but after some that do one is smooth, so that even
    /// what takes long comes to its end.
    pub(crate) async fn before_faulty_at_times(server: &str, chance: Chance, tally: &Arc<Tally>) -> Self {
        let proxy = Self::start(Address::parse(server), Vec::new(), Some(chance), tally).await;
        proxy.plan.lock().pauses = true;
        proxy
    }

    async fn start(server: Address, courses: Vec<Course>, more: Option<Chance>, tally: &Arc<Tally>) -> Self {
        let (server_address, courses) = (server.clone(), courses.into());
        let state =
            State { server: server_address, courses, more, pauses: false, door: Door::Open, snare: None };
        let plan = Arc::new(Plan { state: Mutex::new(state), tally: Arc::clone(tally) });
        match server {
            Address::Tcp(_) => {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let target = Target::parse(&format!("ws://{}", listener.local_addr().unwrap())).unwrap();
                let task = tokio::spawn(listen_tcp(listener, Arc::clone(&plan)));
                Self { target, plan, task, _directory: None }
            }
            Address::Unix(_) => {
                let directory = tempfile::tempdir().unwrap();
                let path = directory.path().join("proxy.sock");
                let listener = UnixListener::bind(&path).unwrap();
                let task = tokio::spawn(listen_unix(listener, Arc::clone(&plan)));
                Self { target: Target::unix(path), plan, task, _directory: Some(directory) }
            }
        }
    }

    pub(crate) fn target(&self) -> Target {
        self.target.clone()
    }

    /// Leads connections to another server from now on.
    pub(crate) fn lead_to(&self, server: &str) {
        self.plan.lock().server = Address::parse(server);
    }

    /// Lets connections go well from now on.
    pub(crate) fn mend(&self) {
        let mut state = self.plan.lock();
        state.courses.clear();
        state.more = None;
    }

    /// Lets connections through, or refuses them.
    pub(crate) fn set_door(&self, door: Door) {
        self.plan.lock().door = door;
    }

    /// Cuts what comes next this way after so many bytes.
    pub(crate) fn lay_snare(&self, way: Way, after: usize) {
        self.plan.lock().snare = Some((way, after));
    }
}

impl Plan {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how the next connection goes, and where.
    fn next(&self) -> (Course, Address) {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.courses.is_empty()
            && let Some(chance) = &mut state.more
        {
            state.courses.extend(Course::draw(chance));
            state.courses.extend(state.pauses.then(Course::smooth));
        }
        let mut course = match state.door {
            Door::Open => state.courses.pop_front().unwrap_or_else(Course::smooth),
            Door::Shut => Course::smooth(),
        };
        if state.door == Door::Shut {
            course.fault = Fault::Refused;
        }
        if course.fault == Fault::Refused {
            self.tally.refused.fetch_add(1, Ordering::Relaxed);
        }
        (course, state.server.clone())
    }

    /// Returns after how many bytes of what goes this way the connection is cut.
    fn snare(&self, way: Way) -> Option<usize> {
        self.lock().snare.take_if(|(snared, _)| *snared == way).map(|(_, after)| after)
    }
}

async fn listen_tcp(listener: TcpListener, plan: Arc<Plan>) {
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        client.set_nodelay(true).unwrap();
        let (course, address) = plan.next();
        let plan = Arc::clone(&plan);
        connections.spawn(async move {
            let Address::Tcp(address) = address else { panic!("a WebSocket stays one") };
            match TcpStream::connect(&*address).await {
                Ok(server) if course.fault != Fault::Refused => {
                    server.set_nodelay(true).unwrap();
                    connect(client, server, course, &plan).await;
                }
                _ => client.reset(),
            }
        });
    }
}

async fn listen_unix(listener: UnixListener, plan: Arc<Plan>) {
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let (course, address) = plan.next();
        let plan = Arc::clone(&plan);
        connections.spawn(async move {
            let Address::Unix(path) = address else { panic!("a unix socket stays one") };
            if course.fault != Fault::Refused
                && let Ok(server) = UnixStream::connect(path).await
            {
                connect(client, server, course, &plan).await;
            }
        });
    }
}

/// One side of a connection.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {
    /// Sees to it that the other side finds the connection reset, where there is such a thing.
    fn reset(&self);
}

impl Stream for TcpStream {
    fn reset(&self) {
        self.set_zero_linger().unwrap();
    }
}

impl Stream for UnixStream {
    fn reset(&self) {}
}

/// What both directions of one connection know.
struct Passage<'a> {
    course: Course,
    plan: &'a Plan,
    carried: AtomicU64,
    is_mute: AtomicBool,
}

/// Why a direction is over.
enum Over {
    /// Its source has closed it, or its destination has.
    Closed,
    /// Its fault has come.
    Cut(Cut),
    /// It has become mute, and the server is to notice.
    ServerGoes,
}

async fn connect<S: Stream>(mut client: S, mut server: S, course: Course, plan: &Plan) {
    let passage = Passage { course, plan, carried: AtomicU64::new(0), is_mute: AtomicBool::new(false) };
    let over = {
        let (from_client, to_client) = tokio::io::split(&mut client);
        let (from_server, to_server) = tokio::io::split(&mut server);
        tokio::select! {
            over = passage.carry(Way::Up, from_client, to_server) => over,
            over = passage.carry(Way::Down, from_server, to_client) => over,
        }
    };
    let nowhere = &mut tokio::io::sink();
    match over {
        Over::Cut(Cut::Reset) => {
            client.reset();
            server.reset();
        }
        Over::ServerGoes => {
            drop(server);
            let _ = tokio::io::copy(&mut client, nowhere).await;
        }
        Over::Closed if passage.leaves_the_server() => {
            drop(client);
            let _ = tokio::io::copy(&mut server, nowhere).await;
        }
        Over::Closed | Over::Cut(Cut::Finish) => {}
    }
}

impl Passage<'_> {
    async fn carry(
        &self,
        way: Way,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> Over {
        let mut chance = self.course.chance.clone();
        let mut buffer = vec![0; CARRIED_BYTES];
        loop {
            let in_pieces = self.carried.load(Ordering::Relaxed) < self.course.in_pieces;
            let room = if in_pieces { self.course.piece } else { buffer.len() };
            let Some(len) = read(&mut from, &mut buffer[..room]).await else { return Over::Closed };
            if chance.percent(self.course.stall_percent) {
                sleep(self.course.stall).await;
            }
            let (len, over) = self.judge(way, len);
            if to.write_all(&buffer[..len]).await.is_err() {
                return Over::Closed;
            }
            if let Some(over) = over {
                return over;
            }
        }
    }

    /// Returns how many of the bytes go on, and whether that is the end.
    fn judge(&self, way: Way, len: usize) -> (usize, Option<Over>) {
        let tally = &self.plan.tally;
        if let Some(after) = self.plan.snare(way) {
            tally.cut.fetch_add(1, Ordering::Relaxed);
            return (after.min(len), Some(Over::Cut(Cut::Reset)));
        }
        let before = self.carried.fetch_add(len as u64, Ordering::Relaxed);
        let up_to = |after: u64| usize::try_from(after.saturating_sub(before)).unwrap_or(len).min(len);
        match self.course.fault {
            Fault::Cut { after, how } if before + len as u64 >= after => {
                tally.cut.fetch_add(1, Ordering::Relaxed);
                (up_to(after), Some(Over::Cut(how)))
            }
            Fault::Mute { after, ways, server } if before + len as u64 >= after => {
                if !self.is_mute.swap(true, Ordering::Relaxed) {
                    tally.mute.fetch_add(1, Ordering::Relaxed);
                }
                let over = (server == ServerEnd::Closed).then_some(Over::ServerGoes);
                (if ways.has(way) { up_to(after) } else { len }, over)
            }
            _ => (len, None),
        }
    }

    /// Tells whether the server does not notice that the client has gone.
    fn leaves_the_server(&self) -> bool {
        self.is_mute.load(Ordering::Relaxed)
            && matches!(self.course.fault, Fault::Mute { server: ServerEnd::Left, .. })
    }
}

/// Reads something; nothing at the end.
async fn read(from: &mut (impl AsyncRead + Unpin), buffer: &mut [u8]) -> Option<usize> {
    let len: io::Result<usize> = from.read(buffer).await;
    len.ok().filter(|len| *len > 0)
}
