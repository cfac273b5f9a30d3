//! Bytes in both directions, unaltered and complete.

use std::{io, sync::Mutex, sync::PoisonError, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time::Instant,
};

use super::{IDLE_TIMEOUT, stream::Incoming};

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
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Waits until nothing has passed for so long.
    pub(super) async fn is_idle(&self, time: Duration) {
        loop {
            let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner) + time;
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
    let relayed = {
        let (client_in, mut client_out) = incoming.stream.split();
        let (host_in, mut host_out) = outgoing.split();
        let both = async {
            let up = async {
                // A host that reads no more may still have something to say.
                if host_out.write_all(&ahead).await.is_err() {
                    return Ok(());
                }
                drop(ahead);
                pump(client_in, &mut host_out, &activity).await
            };
            tokio::try_join!(up, pump(host_in, &mut client_out, &activity)).map(drop)
        };
        tokio::select! {
            relayed = both => relayed,
            () = activity.is_idle(IDLE_TIMEOUT) => Err(io::ErrorKind::TimedOut.into()),
        }
    };
    if relayed.is_err() {
        // An end would say that everything has arrived.
        let _ = (incoming.stream.set_zero_linger(), outgoing.set_zero_linger());
    }
    relayed
}

/// Copies until the end, and passes that on. A reader that reads no more is not an error.
pub(super) async fn pump(
    mut from: impl AsyncRead + Unpin,
    to: &mut (impl AsyncWrite + Unpin),
    activity: &Activity,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let len = from.read(&mut buffer).await?;
        activity.touch();
        if len == 0 {
            let _ = to.shutdown().await;
            return Ok(());
        }
        if to.write_all(&buffer[..len]).await.is_err() {
            return Ok(());
        }
        activity.touch();
    }
}
