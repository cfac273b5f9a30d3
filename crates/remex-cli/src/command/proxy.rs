//! `remex proxy`: standard input and output on one side, the user's own server on the other.

use clap::Args;
use tokio::{
    io::{self, AsyncWriteExt as _, BufReader},
    net::UnixStream,
};

use super::Outcome;
use crate::{
    failure::{Failure, Kind},
    own,
};

/// How much is passed on at once.
const PIECE: usize = 64 << 10;

/// Flags of `remex proxy`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {}

const EXAMPLES: &str = "\
Examples:
  As the program of an environment: what runs there survives a cut of the ssh connection, and nothing is lost:
    remex env add far -- ssh far.example remex proxy
  By hand, to see that your own server can be reached:
    remex proxy < /dev/null

Your own server is started if it is not there, and stays when this program ends.";

pub(crate) async fn run(_flags: &Flags) -> Outcome {
    let socket = own::ready().await?;
    let stream = UnixStream::connect(&socket.path)
        .await
        .map_err(|error| Failure::io(&format!("connect to `{}`", socket.path.display()), &error))?;
    let (input, mut output) = remex_rpc::stdio();
    let (from_server, mut to_server) = stream.into_split();
    // What the server still has to say after the end of the input is passed on, too.
    let forth = async {
        let copied = io::copy_buf(&mut BufReader::with_capacity(PIECE, input), &mut to_server).await;
        let _ = to_server.shutdown().await;
        copied.map(drop)
    };
    let back = async {
        io::copy_buf(&mut BufReader::with_capacity(PIECE, from_server), &mut output).await?;
        output.flush().await
    };
    tokio::pin!(forth, back);
    let passed = tokio::select! {
        passed = &mut back => {
            passed.map_err(|error| Failure::io("pass messages on", &error))?;
            return Err(Failure::of(Kind::Unreachable, "your own server has closed the connection", "connect again"));
        }
        passed = &mut forth => match passed {
            Ok(()) => back.await,
            Err(error) => Err(error),
        },
    };
    passed.map_err(|error| Failure::io("pass messages on", &error))?;
    Ok(0)
}
