//! `remex cert new`, and environments with TLS: from nothing to a command on a server that knows its clients.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::{
    home::{Home, Said, said},
    screen::Screen,
    support::{Authority, InTime as _, Pki, Server},
};

/// Starts a server with a certificate that `remex cert new` made.
fn serve(home: &Home, name: &str, flags: &[&str]) -> Server {
    let (certificate, key) = (format!("certs/{name}.pem"), format!("certs/{name}.key"));
    let tls = ["serve", "--listen", "wss://127.0.0.1:0", "--tls-cert", &certificate, "--tls-key", &key];
    let mut command = home.remex(&[&tls, flags].concat());
    command.stdin(Stdio::null());
    Server::launch(command, 1)
}

/// Returns the pin that was printed.
fn pin(said: &Said) -> String {
    let line = said.out.lines().find_map(|line| line.strip_prefix("pin: "));
    line.unwrap_or_else(|| panic!("no pin: {said:?}")).to_owned()
}

#[test]
fn two_commands_make_a_server_and_a_client_that_trust_each_other() {
    let home = Home::new();
    let made = home.say(&["cert", "new", "server", "localhost", "127.0.0.1"]);
    assert_eq!((made.code, made.err.as_str()), (Some(0), ""), "{made:?}");
    assert!(made.out.starts_with("made the CA certs/ca.pem; keep its key to yourself\n"), "{made:?}");
    let client = home.say(&["cert", "new", "client", "ann"]);
    assert!(
        client.code == Some(0) && !client.out.contains("the CA certs/ca.pem;"),
        "the CA is kept: {client:?}"
    );
    assert!(client.out.contains("servers know it as `dns:ann`"), "{client:?}");
    for key in ["ca", "localhost", "ann"] {
        let mode = fs::metadata(home.path(&format!("certs/{key}.key"))).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{key}.key");
    }

    let server = serve(&home, "localhost", &["--tls-client-ca", "certs/ca.pem"]);
    let url = server.address().replace("127.0.0.1", "localhost");
    let added = home.say(&[
        "env",
        "add",
        "vault",
        &url,
        "--ca",
        "certs/ca.pem",
        "--client-cert",
        "certs/ann.pem",
        "--client-key",
        "certs/ann.key",
        "--pin",
        &pin(&made),
    ]);
    assert_eq!(added.out, format!("added `vault`: {url}\n"), "{added:?}");
    assert_eq!(home.say(&["run", "--on", "vault", "--", "echo", "hello"]).out, "hello\n");
    let tested = home.say(&["env", "test", "vault"]);
    assert_eq!(tested.code, Some(0), "{tested:?}");
    let doctor = home.say(&["doctor", "--on", "vault"]);
    assert!(doctor.out.contains("reachable"), "{doctor:?}");

    let listed: Value = serde_json::from_str(&home.say(&["env", "list", "--json"]).out).unwrap();
    let path = |file: &str| home.path(&format!("certs/{file}")).to_str().unwrap().to_owned();
    let tls = json!({
        "ca": path("ca.pem"), "pin": pin(&made), "clientCert": path("ann.pem"), "clientKey": path("ann.key"),
    });
    let entry = listed["environments"].as_array().unwrap().iter().find(|entry| entry["id"] == "vault");
    assert_eq!(entry.unwrap()["tls"], tls);
}

#[test]
fn existing_files_are_never_replaced() {
    let home = Home::new();
    assert_eq!(home.say(&["cert", "new", "server", "localhost"]).code, Some(0));
    let before = fs::read(home.path("certs/localhost.key")).unwrap();
    let again = home.say(&["cert", "new", "server", "localhost"]);
    assert_eq!(again.code, Some(2));
    assert_eq!(
        again.err,
        "remex: `certs/localhost.pem` already exists\n  hint: move it away first, or choose another name or `--dir`\n"
    );
    assert_eq!(fs::read(home.path("certs/localhost.key")).unwrap(), before);
    fs::remove_file(home.path("certs/ca.key")).unwrap();
    let lost = home.say(&["cert", "new", "client", "ann"]);
    assert!(
        lost.code == Some(1) && lost.err.contains("`certs/ca.pem` exists, but `certs/ca.key` does not"),
        "{lost:?}"
    );
    assert!(!home.path("certs/ann.pem").exists());
}

#[test]
fn names_that_are_invalid_in_certificates_are_refused() {
    let home = Home::new();
    for (args, why) in [
        (&["server", "a b"][..], "`a b` is neither a DNS name nor an IP address"),
        (&["server", "localhost:4000"], "`localhost:4000` is neither a DNS name nor an IP address"),
        (&["server", "good.example", "bad/name"], "`bad/name` is neither a DNS name nor an IP address"),
        (&["client", "../ann"], "`../ann` cannot be the name of a certificate"),
        (&["client", "ann smith"], "`ann smith` cannot be the name of a client"),
        (&["client", "ca"], "`ca` cannot be the name of a certificate"),
        (&["client", "ann", "bob"], "a client has one name"),
        (&["client", "ann", "--spiffe", "https://example.com"], "`https://example.com` is not a SPIFFE URI"),
        (&["client", "ann", "--days", "0"], "--days"),
    ] {
        let refused = home.say(&[&["cert", "new"], args].concat());
        assert!(refused.code == Some(2) && refused.err.contains(why), "{args:?}: {refused:?}");
    }
    assert!(!home.path("certs/ca.pem").exists(), "nothing is made for a name that is refused");
}

#[test]
fn a_client_certificate_cannot_serve() {
    let home = Home::new();
    home.say(&["cert", "new", "client", "localhost", "--spiffe", "spiffe://example.com/ci"]);
    let server = serve(&home, "localhost", &[]);
    home.say(&["env", "add", "fake", server.address(), "--ca", "certs/ca.pem"]);
    let refused = home.say(&["run", "--on", "fake", "--", "true"]);
    assert_ne!(refused.code, Some(0), "{refused:?}");
    assert!(refused.err.contains("the server certificate"), "{refused:?}");
}

#[test]
fn doctor_checks_the_files_of_environments() {
    let home = Home::new();
    for (name, days) in [("ann", "30"), ("bob", "3")] {
        assert_eq!(home.say(&["cert", "new", "client", name, "--days", days]).code, Some(0));
        let (certificate, key) = (format!("certs/{name}.pem"), format!("certs/{name}.key"));
        let files = ["--ca", "certs/ca.pem", "--client-cert", &certificate, "--client-key", &key];
        assert_eq!(
            home.say(&[&["env", "add", name, "wss://vault.example"], &files[..]].concat()).code,
            Some(0)
        );
    }
    let said = home.say(&["doctor"]);
    assert!(said.out.contains("the files of `ann` are valid"), "{said:?}");
    assert!(said.out.contains("bob.pem` expires in "), "{said:?}");
    fs::remove_file(home.path("certs/ann.key")).unwrap();
    let said = home.say(&["doctor"]);
    assert!(said.code == Some(1) && said.out.contains("certs/ann.key`: No such file"), "{said:?}");
}

#[test]
fn an_address_without_settings_trusts_the_system_roots() {
    let (pki, _): (Pki, Authority) = Pki::new();
    let server = pki.serve(&[]);
    let url = server.address().replace("127.0.0.1", "localhost");
    let home = Home::new();
    let run = |roots: &str| {
        let mut command = home.remex(&["run", "--on", &url, "--", "echo", "hello"]);
        said(&command.env("SSL_CERT_FILE", roots).env_remove("SSL_CERT_DIR").stdin(Stdio::null()).finished())
    };
    assert_eq!(run(&pki.arg("ca.pem")).out, "hello\n");
    pki.authority("other");
    let refused = run(&pki.arg("other.pem"));
    assert_eq!(
        refused.err,
        format!(
            "remex: cannot connect to {url}: the server certificate is not signed by a trusted CA\n  \
             hint: name its CA with `remex env add NAME {url} --ca PATH`, or its public key with `remex env add NAME {url} \
             --pin sha256:…`; `remex cert new` and the start of the server print both\n"
        )
    );
}

#[test]
fn tls_settings_can_be_changed_and_are_removed_with_the_address() {
    let home = Home::new();
    let pin = format!("sha256:{}", "5a".repeat(32));
    assert_eq!(home.say(&["env", "add", "vault", "wss://vault.example", "--pin", &pin]).code, Some(0));
    assert_eq!(home.say(&["env", "set", "vault", "--ca", "ca.pem"]).code, Some(0));
    let text = fs::read_to_string(home.environments()).unwrap();
    assert!(text.contains(&format!("pin = \"{pin}\"")) && text.contains("/ca.pem\""), "{text}");
    let alone = home.say(&["env", "set", "vault", "--client-cert", "me.pem"]);
    assert!(
        alone.code == Some(2) && alone.err.contains("`client_cert` is set without `client_key`"),
        "{alone:?}"
    );
    let wrong = home.say(&["env", "set", "vault", "--pin", "abc"]);
    assert!(
        wrong.code == Some(2) && wrong.err.contains("not the SHA-256 digest of a public key"),
        "{wrong:?}"
    );
    let plain = home.say(&["env", "add", "dev", "ws://127.0.0.1:1", "--ca", "ca.pem"]);
    assert!(
        plain.code == Some(2) && plain.err.contains("is valid only with a `wss://` address"),
        "{plain:?}"
    );
    assert_eq!(home.say(&["env", "set", "vault", "ws://vault.example"]).code, Some(0));
    let text = fs::read_to_string(home.environments()).unwrap();
    assert!(!text.contains("pin") && !text.contains("ca.pem"), "a plain address has no TLS: {text}");
}

#[test]
fn the_commands_in_the_banner_of_an_encrypted_server_with_tokens_work_as_typed() {
    let home = Home::new();
    assert_eq!(home.say(&["cert", "new", "server", "localhost"]).code, Some(0));
    fs::write(home.path("token.txt"), "5kQ2nVx8LrZ0tHc7YwJb3M\n").unwrap();
    fs::set_permissions(home.path("token.txt"), fs::Permissions::from_mode(0o600)).unwrap();
    let tls = ["--tls-cert", "certs/localhost.pem", "--tls-key", "certs/localhost.key"];
    let token = ["--ws-auth", "capability-token", "--ws-token-file", "token.txt"];
    let screen =
        Screen::remex(&home, &[&["serve", "--listen", "wss://0.0.0.0:0"], &tls[..], &token].concat());
    screen.wait_for("remex run --on there -- uname -a");
    let raw = screen.raw();
    let commands: Vec<_> = raw
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("remex env ") || line.starts_with("remex run "))
        .collect();
    let [add, run] = commands[..] else { panic!("{raw}") };
    assert!(add.contains(" wss://localhost:") && add.contains(" --pin sha256:"), "{raw}");
    for (command, out) in [(add, "added `there`"), (run, "Linux")] {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]);
        home.dress(&mut shell);
        let said = said(&shell.finished());
        assert!(said.code == Some(0) && said.out.starts_with(out), "{command}: {said:?}");
    }

    // The key is another one: the very command is told, and that it may be another server.
    let other = format!("sha256:{}", "00".repeat(32));
    assert_eq!(home.say(&["env", "set", "there", "--pin", &other]).code, Some(0));
    let refused = home.say(&["run", "--on", "there", "--", "true"]);
    let pin = add.split("--pin ").nth(1).unwrap();
    let told = format!("`remex env set there --pin {pin}`; otherwise another server responds");
    assert!(refused.err.contains(&told), "{refused:?}");
}

#[test]
fn a_server_warns_at_startup_about_an_expired_certificate() {
    let (pki, authority) = Pki::new();
    authority.expired_server("old");
    let home = Home::new();
    let (certificate, key) = (pki.arg("old.pem"), pki.arg("old.key"));
    let flags = ["serve", "--listen", "wss://127.0.0.1:0", "--tls-cert", &certificate, "--tls-key", &key];
    let mut command = home.remex(&flags);
    command.stdin(Stdio::null());
    let server = Server::launch(command, 1);
    let line = server.stderr_line("has expired");
    assert!(line.contains(&format!("remex: `{certificate}` has expired")), "{line}");
    assert!(line.contains("renew it"), "{line}");
}

#[test]
fn a_token_that_was_never_valid_is_reported() {
    let home = Home::new();
    let dead = home.say(&["token", "new", "--expires", "0s"]);
    assert!(dead.code != Some(0) || dead.err.contains("has expired already"), "{dead:?}");
    let alive = home.say(&["token", "new", "--expires", "8h"]);
    assert!(alive.code == Some(0) && !alive.err.contains("expired"), "{alive:?}");
}
