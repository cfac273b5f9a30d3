//! The ways on which our own client gets to a server.
//!
//! Start at [`Way`].

use std::{future::Future, process};

use anyhow::{Context, Result};
use remex::Local;
use remex_client::{Client, Target, WebSocket, tls::TlsOptions};
use tokio::runtime::Runtime;

use crate::{measure::Figures, proc, server::Server};

/// How our own client gets to a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Way {
    /// The server is a part of the bench; values cross as they are.
    InProcess,
    Unix,
    WebSocket,
    /// A server of its own as a child, that speaks on its standard streams.
    Stdio,
}

impl Way {
    /// Lets a task work with a client of its own, and returns nothing where a peer has no such way.
    ///
    /// The session ends with the work.
    pub(crate) fn measure<F>(
        self,
        server: &Server,
        work: impl FnOnce(Client) -> F + Send + 'static,
    ) -> Result<Figures>
    where
        F: Future<Output = Result<Figures>> + Send + 'static,
    {
        Runtime::new()?.block_on(async {
            let Some(target) = self.target(server)? else { return Ok(Vec::new()) };
            let client = Client::connect(target).await?;
            // A task, because that is where programs do their work; the thread here would have to be woken each time.
            let figures = tokio::spawn(work(client.clone())).await.context("a measurement panicked")??;
            client.end().await?;
            Ok(figures)
        })
    }

    /// Returns CPU time so far of client and server together, in seconds.
    pub(crate) fn cpu_time(self, server: &[u32]) -> Result<f64> {
        let own = proc::cpu_time(&[process::id()])?;
        let of_server = if self == Self::InProcess { None } else { Some(proc::cpu_time(server)?) };
        Ok((own + of_server.unwrap_or_default()).as_secs_f64())
    }

    /// Returns the URL of a server, if it can be reached so without more than that.
    pub(crate) fn url(self, server: &Server) -> Option<String> {
        match self {
            Self::WebSocket => (!server.has_tls()).then(|| format!("ws://{}", server.address())),
            Self::Unix => server.ours().map(|ours| format!("unix://{}", ours.socket().display())),
            Self::Stdio | Self::InProcess => None,
        }
    }

    fn target(self, server: &Server) -> Result<Option<Target>> {
        Ok(match self {
            Self::WebSocket => Some(match server.ours().filter(|_| server.has_tls()) {
                None => Target::parse(&format!("ws://{}", server.address()))?,
                Some(ours) => WebSocket::new(format!("wss://{}", server.address()))
                    .tls(TlsOptions::new().ca(ours.certificate()))
                    .into(),
            }),
            Self::Unix => server.ours().map(|ours| Target::unix(ours.socket())),
            Self::Stdio => {
                server.ours().map(|ours| Target::program(ours.program(), ["serve", "--listen", "stdio"]))
            }
            Self::InProcess => {
                server.ours().map(|_| Local::here().map(|local| local.target())).transpose()?
            }
        })
    }
}
