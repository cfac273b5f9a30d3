//! What a server says about itself when it begins: an address for programs, and the way to it for people.
//!
//! Start at [`Greeting`].

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
};

use remex_rpc::ListenAddress;

use crate::render::text;

/// Who gets which words.
pub(super) struct Greeting {
    /// Standard output belongs to the protocol.
    pub(super) has_stdio: bool,
    pub(super) token: Token,
}

/// What WebSocket clients have to present.
pub(super) enum Token {
    Nothing,
    /// What is in this file.
    File(PathBuf),
    /// What nobody here knows but by its digest.
    Secret,
}

impl Greeting {
    /// Tells where the server listens.
    #[allow(clippy::print_stderr)] // A person reads it.
    pub(super) fn say(&self, address: &ListenAddress) -> io::Result<()> {
        if self.has_stdio {
            eprintln!("{address}");
        } else {
            let mut stdout = io::stdout().lock();
            writeln!(stdout, "{address}")?;
            stdout.flush()?;
        }
        if !io::stderr().is_terminal() {
            eprintln!("remex listens on {address}");
            return Ok(());
        }
        eprintln!("remex listens on {address}; Ctrl-C ends it and everything it started");
        for line in self.way(address) {
            eprintln!("  {line}");
        }
        Ok(())
    }

    /// Returns how to get there, line by line.
    fn way(&self, address: &ListenAddress) -> Vec<String> {
        let url = url(address);
        let named = |token: &str| {
            vec![
                "clients need the token, from a file that is theirs alone; give the place a name:".to_owned(),
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

/// Returns the address as a client types it; where every address of the machine will do, `HOST` stands for one.
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
            Greeting { has_stdio: false, token }.way(&address.parse().unwrap()).join("\n")
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
