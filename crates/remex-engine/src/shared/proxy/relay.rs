//! Bytes in both directions, unaltered and complete.

use std::{io, pin::pin, sync::Mutex, time::Duration};

use remex_base::lock;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, Interest},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    time::Instant,
};

use super::{HALF_CLOSED_TIMEOUT, IDLE_TIMEOUT, stream::Incoming};

/// Memory of each direction.
pub(super) const BUFFER: usize = 16 << 10;

/// When bytes last passed.
#[derive(Debug)]
pub(super) struct Activity(Mutex<Instant>);

impl Activity {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    pub(super) fn touch(&self) {
        *lock(&self.0) = Instant::now();
    }

    /// Waits until nothing has passed for so long.
    pub(super) async fn is_idle(&self, time: Duration) {
        loop {
            let until = *lock(&self.0) + time;
            if Instant::now() >= until {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

/// Connects the two until both directions have ended, or one of them has failed.
pub(super) async fn tunnel(incoming: &mut Incoming, mut outgoing: TcpStream) -> io::Result<()> {
    let activity = Activity::new();
    let ahead = incoming.ahead.split();
    let (mut has_client_ended, mut has_host_ended) = (false, false);
    let relayed = {
        let (mut client_in, mut client_out) = incoming.stream.split();
        let (mut host_in, mut host_out) = outgoing.split();
        let mut up = pin!(async {
            // A host that reads no more may still have something to say.
            let written = write(&client_in, &mut host_out, &ahead, HALF_CLOSED_TIMEOUT).await?;
            drop(ahead);
            if written == Written::All {
                pump(&mut client_in, &mut host_out, &activity, HALF_CLOSED_TIMEOUT).await?;
            }
            Ok::<_, io::Error>(client_in)
        });
        let mut down = pin!(pump(&mut host_in, &mut client_out, &activity, IDLE_TIMEOUT));
        let both = async {
            tokio::select! {
                client = &mut up => {
                    let client = client?;
                    has_client_ended = true;
                    tokio::select! {
                        received = &mut down => received,
                        error = reset(&client) => Err(error),
                        () = activity.is_idle(HALF_CLOSED_TIMEOUT) => Err(io::ErrorKind::TimedOut.into()),
                    }
                }
                received = &mut down => {
                    received?;
                    has_host_ended = true;
                    tokio::select! {
                        client = &mut up => client.map(drop),
                        () = activity.is_idle(HALF_CLOSED_TIMEOUT) => Err(io::ErrorKind::TimedOut.into()),
                    }
                }
            }
        };
        tokio::select! {
            relayed = both => relayed,
            () = activity.is_idle(IDLE_TIMEOUT) => Err(io::ErrorKind::TimedOut.into()),
        }
    };
    if relayed.is_err() {
        // An end would say that everything has arrived. If it has, the kernel sends what still waits.
        if !has_client_ended {
            let _ = outgoing.set_zero_linger();
        }
        if !has_host_ended {
            let _ = incoming.stream.set_zero_linger();
        }
    }
    relayed
}

/// Copies until the end, and passes that on. A reader that reads no more is not an error, unless it takes nothing for
/// `patience` and the writer has left.
async fn pump(
    from: &mut ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
    activity: &Activity,
    patience: Duration,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let len = from.read(&mut buffer).await?;
        activity.touch();
        if len == 0 {
            let _ = to.shutdown().await;
            return Ok(());
        }
        if let Written::Broken = write(from, to, &buffer[..len], patience).await? {
            return Ok(());
        }
        activity.touch();
    }
}

/// How a write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    All,
    /// The reader reads no more.
    Broken,
}

/// Writes bytes that came from a peer. Fails if the reader takes nothing for so long and that peer has left.
///
/// Nothing reads from the peer meanwhile, so only this notices a disconnect.
pub(super) async fn write(
    from: &ReadHalf<'_>,
    to: &mut WriteHalf<'_>,
    bytes: &[u8],
    patience: Duration,
) -> io::Result<Written> {
    let mut writing = pin!(to.write_all(bytes));
    loop {
        tokio::select! {
            written = &mut writing => return Ok(if written.is_ok() { Written::All } else { Written::Broken }),
            () = tokio::time::sleep(patience) => {}
        }
        // Asks without waiting.
        let has_left = tokio::select! {
            biased;
            ready = from.ready(Interest::READABLE) => ready?.is_read_closed(),
            () = std::future::ready(()) => false,
        };
        if has_left {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

/// Waits until a client that has sent its end resets the connection: then it does not read any more either.
///
/// The kernel of a client that has closed its socket, and not only one direction, does so when it gets bytes or is asked
/// whether it still has the connection ([`Incoming::new`]).
pub(super) async fn reset(client: &ReadHalf<'_>) -> io::Error {
    match client.ready(Interest::ERROR).await {
        Ok(_) => io::ErrorKind::ConnectionReset.into(),
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (one, other) = tokio::join!(TcpStream::connect(address), listener.accept());
        (one.unwrap(), other.unwrap().0)
    }

    #[tokio::test]
    async fn a_disconnected_client_does_not_wait_for_a_host_that_does_not_read() {
        let (client, mut incoming) = pair().await;
        let (_host, mut outgoing) = pair().await;
        let (from, _) = incoming.split();
        let (_, mut to) = outgoing.split();
        // More than the buffers of any kernel hold.
        let bytes = vec![0; 256 << 20];
        tokio::time::pause();
        let writing = write(&from, &mut to, &bytes, HALF_CLOSED_TIMEOUT);
        assert!(tokio::time::timeout(HALF_CLOSED_TIMEOUT * 3, writing).await.is_err(), "the client is there");
        tokio::time::resume();
        drop(client);
        from.readable().await.unwrap();
        tokio::time::pause();
        let error = write(&from, &mut to, &bytes, HALF_CLOSED_TIMEOUT).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
