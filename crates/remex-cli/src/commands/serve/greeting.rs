//! The start-up messages of a server: the address for programs, and instructions for users.
//!
//! Start at [`Greeting`].

use std::{
    io::{self, IsTerminal as _, Write as _},
    net::SocketAddr,
    path::PathBuf,
};

use remex_rpc::{
    ListenAddress,
    tls::{Pin, ServerTls},
};

use crate::render::text;

/// Selects the start-up messages.
pub(super) struct Greeting {
    /// Whether standard output carries the protocol.
    pub(super) has_stdio: bool,
    pub(super) token: Token,
    /// Further settings that clients of `wss://` addresses need.
    pub(super) tls: Option<Tls>,
    /// The state directory, with which processes outlive the server.
    pub(super) state: Option<PathBuf>,
}

/// How clients recognize a `wss://` server, and whether it asks for their certificates.
pub(super) struct Tls {
    pin: Option<Pin>,
    /// A name that the certificate has.
    name: Option<String>,
    clients: ClientCertificates,
}

/// Whether clients must present a certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientCertificates {
    Required,
    NotAsked,
}

impl Tls {
    pub(super) fn of(tls: &ServerTls, clients: ClientCertificates) -> Self {
        // A wildcard is no address.
        let name = tls.names().iter().find(|name| !name.starts_with('*')).cloned();
        Self { pin: tls.pin(), name, clients }
    }
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
        let fate = match self.state {
            Some(_) => "Ctrl-C stops it, and its durable processes run on",
            None => "Ctrl-C stops it and everything it started",
        };
        eprintln!("remex is listening on {address}; {fate}");
        for line in self.instructions(address) {
            eprintln!("  {line}");
        }
        Ok(())
    }

    /// Returns instructions for connecting and for stopping the server, line by line.
    fn instructions(&self, address: &ListenAddress) -> Vec<String> {
        let mut lines = self.connection_hint(address);
        if let Some(state) = &self.state {
            let state = text::line(&[state.display().to_string()]);
            lines.push("to stop it with its durable processes, also after Ctrl-C:".to_owned());
            lines.push(format!("  remex server stop --state {state} --all"));
        }
        lines
    }

    fn connection_hint(&self, address: &ListenAddress) -> Vec<String> {
        let url = self.url(address);
        let (mut needs, mut flags) = (Vec::new(), String::new());
        let is_tcp = matches!(address, ListenAddress::WebSocket(_) | ListenAddress::SecureWebSocket(_));
        match &self.token {
            Token::File(path) if is_tcp => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                needs.push("the token, in a private file");
                flags.push_str(&format!(" --token-file {}", text::line(&[path.display().to_string()])));
            }
            Token::Secret if is_tcp => {
                needs.push("the token, in a private file");
                flags.push_str(" --token-file FILE");
            }
            _ => {}
        }
        if let (ListenAddress::SecureWebSocket(_), Some(tls)) = (address, &self.tls) {
            if let Some(pin) = tls.pin {
                needs.push("the pin or the CA of the server");
                flags.push_str(&format!(" --pin {pin}"));
            }
            if tls.clients == ClientCertificates::Required {
                needs.push("a certificate (`remex cert new client`)");
                flags.push_str(" --client-cert CERT.pem --client-key CERT.key");
            }
        }
        if needs.is_empty() {
            return vec![
                "from another terminal:".to_owned(),
                format!("  remex run --on {url} -- uname -a"),
                format!("  remex env add NAME {url}"),
            ];
        }
        vec![
            format!("clients need {}; define an environment:", needs.join(", and ")),
            format!("  remex env add there {url}{flags}"),
            "  remex run --on there -- uname -a".to_owned(),
        ]
    }

    /// Returns the address for clients; `HOST` stands for any address of this machine that no certificate names.
    fn url(&self, address: &ListenAddress) -> String {
        match address {
            ListenAddress::WebSocket(socket) if socket.ip().is_unspecified() => {
                format!("ws://HOST:{}", socket.port())
            }
            ListenAddress::SecureWebSocket(socket) if socket.ip().is_unspecified() => {
                let name = self.tls.as_ref().and_then(|tls| tls.name.as_deref()).unwrap_or("HOST");
                format!("wss://{name}:{}", socket.port())
            }
            other => text::line(&[other.to_string()]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_hint_depends_on_the_authentication() {
        let way = |address: &str, token| {
            let greeting = Greeting { has_stdio: false, token, tls: None, state: None };
            greeting.instructions(&address.parse().unwrap()).join("\n")
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
        let pin = Pin([7; 32]);
        let tls = |name: Option<&str>, clients| {
            Some(Tls { pin: Some(pin), name: name.map(str::to_owned), clients })
        };
        let way = |address: &str, token, tls, state| {
            let greeting = Greeting { has_stdio: false, token, tls, state };
            greeting.instructions(&address.parse().unwrap()).join("\n")
        };
        let secure = way(
            "wss://0.0.0.0:7070",
            Token::File("/etc/remex/token".into()),
            tls(Some("build.example"), ClientCertificates::NotAsked),
            Some("/var/lib/a state".into()),
        );
        let command = format!(
            "  remex env add there wss://build.example:7070 --token-file /etc/remex/token --pin {pin}\n"
        );
        assert!(secure.contains(&command), "{secure}");
        assert!(secure.ends_with("\n  remex server stop --state '/var/lib/a state' --all"), "{secure}");
        let mutual = way("wss://0.0.0.0:7070", Token::Nothing, tls(None, ClientCertificates::Required), None);
        let command = format!(
            "  remex env add there wss://HOST:7070 --pin {pin} --client-cert CERT.pem --client-key CERT.key\n"
        );
        assert!(mutual.contains(&command), "{mutual}");
    }
}
