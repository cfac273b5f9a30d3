//! The start-up messages of a server: the address for programs, and instructions for users.
//!
//! Start at [`Greeting`].

use std::{
    io::{self, IsTerminal as _, Write as _},
    net::SocketAddr,
    path::PathBuf,
};

use remex_rpc::ListenAddress;

use crate::render::text;

/// Selects the start-up messages.
pub(super) struct Greeting {
    /// Whether standard output carries the protocol.
    pub(super) has_stdio: bool,
    pub(super) token: Token,
}

/// The token that WebSocket clients must present.
pub(super) enum Token {
    Nothing,
    /// The content of this file.
    File(PathBuf),
    /// Only its digest is known.
    Secret,
}

impl Greeting {
    /// Prints the address of the port that serves only metrics.
    #[allow(clippy::print_stderr)] // For the user.
    pub(super) fn say_metrics(address: SocketAddr) {
        eprintln!("remex serves metrics on http://{address}/metrics");
    }

    /// Prints the listen address.
    #[allow(clippy::print_stderr)] // For the user.
    pub(super) fn say(&self, address: &ListenAddress) -> io::Result<()> {
        if self.has_stdio {
            eprintln!("{address}");
        } else {
            let mut stdout = io::stdout().lock();
            writeln!(stdout, "{address}")?;
            stdout.flush()?;
        }
        if !io::stderr().is_terminal() {
            eprintln!("remex is listening on {address}");
            return Ok(());
        }
        eprintln!("remex is listening on {address}; Ctrl-C stops it and everything it started");
        for line in self.instructions(address) {
            eprintln!("  {line}");
        }
        Ok(())
    }

    /// Returns instructions for connecting, line by line.
    fn instructions(&self, address: &ListenAddress) -> Vec<String> {
        let url = url(address);
        let named = |token: &str| {
            vec![
                "clients need the token, in a private file; define an environment:".to_owned(),
                format!("  remex env add there {url} --token-file {token}"),
                "  remex run --on there -- uname -a".to_owned(),
            ]
        };
        match (address, &self.token) {
            (ListenAddress::WebSocket(_), Token::File(path)) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                named(&text::line(&[path.display().to_string()]))
            }
            (ListenAddress::WebSocket(_), Token::Secret) => named("FILE"),
            _ => vec![
                "from another terminal:".to_owned(),
                format!("  remex run --on {url} -- uname -a"),
                format!("  remex env add NAME {url}"),
            ],
        }
    }
}

/// Returns the address for clients; `HOST` stands for any address of this machine.
fn url(address: &ListenAddress) -> String {
    match address {
        ListenAddress::WebSocket(socket) if socket.ip().is_unspecified() => {
            format!("ws://HOST:{}", socket.port())
        }
        other => text::line(&[other.to_string()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_a_server_depends_on_what_it_asks_for() {
        let way = |address: &str, token| {
            Greeting { has_stdio: false, token }.instructions(&address.parse().unwrap()).join("\n")
        };
        let open = way("ws://127.0.0.1:7070", Token::Nothing);
        assert!(open.contains("remex run --on ws://127.0.0.1:7070 -- uname -a"), "{open}");
        let unix = way("unix:///run/a socket", Token::Secret);
        assert!(unix.contains("remex run --on 'unix:///run/a socket' -- uname -a"), "{unix}");
        let guarded = way("ws://0.0.0.0:7070", Token::File("/etc/remex/token".into()));
        assert!(
            guarded.contains("remex env add there ws://HOST:7070 --token-file /etc/remex/token"),
            "{guarded}"
        );
    }
}
