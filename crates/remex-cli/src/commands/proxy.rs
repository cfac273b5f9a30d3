//! `remex proxy`: connects standard input and output to the user's local remex server.

use tokio::{
    io::{self, AsyncWriteExt as _, BufReader},
    net::UnixStream,
};

use super::Outcome;
use crate::{
    args::proxy::Flags,
    remote::{agent_link::AgentLink, user_server},
    render::failure::{Failure, Kind},
};

/// The size of the copy buffer.
const BUFFER_BYTES: usize = 64 << 10;

pub(crate) async fn run(flags: &Flags) -> Outcome {
    // Until this connection ends.
    let _link = match &flags.agent_link {
        Some(name) => AgentLink::make(name)?,
        None => None,
    };
    let socket = user_server::ensure_running().await?;
    let stream = UnixStream::connect(&socket.path)
        .await
        .map_err(|error| Failure::io(&format!("connect to `{}`", socket.path.display()), &error))?;
    let (input, mut output) = remex_rpc::stdio();
    let (from_server, mut to_server) = stream.into_split();
    // Output of the server after the end of the input is still forwarded.
    let forth = async {
        let copied = io::copy_buf(&mut BufReader::with_capacity(BUFFER_BYTES, input), &mut to_server).await;
        let _ = to_server.shutdown().await;
        copied.map(drop)
    };
    let back = async {
        io::copy_buf(&mut BufReader::with_capacity(BUFFER_BYTES, from_server), &mut output).await?;
        output.flush().await
    };
    tokio::pin!(forth, back);
    let passed = tokio::select! {
        passed = &mut back => {
            passed.map_err(|error| Failure::io("pass messages on", &error))?;
            return Err(Failure::of(Kind::Unreachable, "your local remex server closed the connection", "connect again"));
        }
        passed = &mut forth => match passed {
            Ok(()) => back.await,
            Err(error) => Err(error),
        },
    };
    passed.map_err(|error| Failure::io("pass messages on", &error))?;
    Ok(0)
}
