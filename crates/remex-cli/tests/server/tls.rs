//! TLS ports as clients see them that we did not write, and that behave badly.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::OnceLock,
};

use rustix::process::Signal;
use rustls::ClientConfig;

use crate::support::{InTime as _, PATIENCE, Pki, Server, exchange, finish, install, request, tls_status};

/// Returns a `ClientHello` of TLS 1.`minor`, by hand: no client offers 1.1 any more.
pub(crate) fn hello(minor: u8) -> Vec<u8> {
    let mut body = vec![3, minor + 1];
    body.extend([7; 32]);
    // No session; ECDHE with ECDSA and AES-GCM; no compression.
    body.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]);
    // Signature algorithms, groups and point formats.
    let extensions = [0, 13, 0, 4, 0, 2, 4, 3, 0, 10, 0, 4, 0, 2, 0, 29, 0, 11, 0, 2, 1, 0];
    body.extend([0, extensions.len() as u8]);
    body.extend(extensions);
    let mut record = vec![0x16, 3, 1, 0, body.len() as u8 + 4, 1, 0, 0, body.len() as u8];
    record.extend(body);
    record
}

/// Sends bytes to a port, and returns what comes until it is closed.
pub(crate) fn send(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let address = server.address().split_once("://").expect("an address has a scheme").1;
    let mut stream = TcpStream::connect(address).expect("the listener accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a minute is a time-out");
    stream.write_all(bytes).expect("the server reads");
    stream.shutdown(Shutdown::Write).expect("the connection is open");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the server closes the connection in order");
    answer
}

#[test]
fn old_versions_of_tls_are_refused() {
    let (pki, _) = Pki::new();
    let server = pki.serve(&[]);
    let answer = send(&server, &hello(2));
    assert_eq!(answer[0], 0x16, "version 1.2 is answered with a handshake: {answer:?}");
    server.stderr_line("the client closed the connection");
    // A fatal alert: protocol version.
    let answer = send(&server, &hello(1));
    assert_eq!((answer[0], &answer[5..]), (0x15, &[2, 70][..]), "{answer:?}");
    let line = server.stderr_line("refused a client on a TLS port");
    assert!(line.contains("the TLS handshake failed"), "{line}");
}

#[test]
fn other_protocols_on_a_tls_port_are_closed_and_http_gets_a_response() {
    let (pki, _) = Pki::new();
    let server = pki.serve(&[]);
    let plain = server.address().replace("wss://", "ws://");
    let answer = exchange(&plain, request("GET", "/readyz", &[])).expect("HTTP is answered");
    assert_eq!(answer.status, 426);
    assert_eq!(answer.header("upgrade"), Some("TLS/1.2, HTTP/1.1"));
    assert_eq!(answer.body, "this port speaks TLS: use a `wss://` or `https://` URL\n");
    assert!(server.stderr_line("refused a client").contains("the client does not speak TLS"));
    assert_eq!(send(&server, b"\x00\x01\x02"), b"", "what is not even HTTP is closed");
    assert!(server.stderr_line("refused a client").contains("the client does not speak TLS"));
}

#[test]
fn tls_on_a_plain_port_is_closed_with_the_reason_in_the_log() {
    let server = Server::start();
    let answer = String::from_utf8_lossy(&send(&server, &hello(1))).into_owned();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.ends_with("this port speaks no TLS: use a `ws://` or `http://` URL\n"), "{answer}");
    let line = server.stderr_line("refused a client");
    assert!(line.contains("the client speaks TLS, which this port does not"), "{line}");
}

#[test]
fn mismatched_tls_files_are_refused_at_startup() {
    let (pki, authority) = Pki::new();
    authority.server("other", &["localhost"]);
    fs::write(pki.path("empty.pem"), "").expect("the directory is ours");
    let serve = |certificate: &str, key: &str| {
        let (certificate, key) = (pki.arg(certificate), pki.arg(key));
        finish(&["serve", "--listen", "wss://127.0.0.1:0", "--tls-cert", &certificate, "--tls-key", &key])
    };
    for (certificate, key, code, why) in [
        ("gone.pem", "server.key", 2, "gone.pem`: No such file or directory"),
        ("empty.pem", "server.key", 1, "empty.pem` contains no certificate in PEM format"),
        ("server.pem", "server.pem", 1, "server.pem` contains no private key in PEM format"),
        ("server.pem", "other.key", 1, "other.key`: "),
    ] {
        let finished = serve(certificate, key);
        assert_eq!(finished.code(), Some(code), "{finished:?}");
        assert!(finished.stderr.contains(why), "{why}: {finished:?}");
    }
}

#[test]
fn a_broken_key_keeps_no_removed_client_ca_valid() {
    let (pki, authority) = Pki::new();
    authority.client("ann", "ann", &["ann.example"]);
    pki.authority("other").client("bob", "bob", &["bob.example"]);
    fs::write(pki.path("server.toml"), "").expect("the directory is ours");
    let server = pki.serve_mutual(&["--config", &pki.arg("server.toml"), "--log", "info"]);
    let [ann, bob] = ["ann", "bob"].map(|name| pki.client_config(Some(name)));
    let ready = |client: &ClientConfig| {
        let request = "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
        tls_status(&server, client.clone(), "localhost", request).ok()
    };
    assert_eq!([&ann, &bob].map(ready), [Some("200".to_owned()), None]);

    fs::write(pki.path("server.key"), "nothing").expect("the directory is ours");
    fs::rename(pki.path("other.pem"), pki.path("ca.pem")).expect("the directory is ours");
    server.signal(Signal::HUP);
    assert!(server.stderr_line("cannot load the TLS certificates again").contains("server.key"));
    server.stderr_line("configuration reloaded");
    assert_eq!([&ann, &bob].map(ready), [None, Some("200".to_owned())]);
}

#[test]
fn openssl_agrees_on_a_secure_version_and_checks_the_certificate() {
    let Some(clients) = clients() else { return };
    let (pki, authority) = Pki::new();
    authority.client("ann", "ann", &["ann"]);
    let server = pki.serve_mutual(&[]);
    let (ca, certificate, key) = (pki.arg("ca.pem"), pki.arg("ann.pem"), pki.arg("ann.key"));
    let address = server.address().strip_prefix("wss://").expect("the port has TLS");
    let connect = |flags: &[&str]| {
        let trust = ["s_client", "-connect", address, "-CAfile", &ca, "-verify_return_error", "-ign_eof"];
        let own = ["-cert", &certificate, "-key", &key];
        run(
            &clients.join("openssl"),
            &[&trust[..], &own, flags].concat(),
            b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        )
    };
    for (flag, version) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let said = text(&connect(&[flag, "-verify_hostname", "localhost"]));
        assert!(said.contains(version), "{said}");
        assert!(said.contains("Verification: OK") || said.contains("Verify return code: 0"), "{said}");
        assert!(said.contains("HTTP/1.1 200 OK"), "{said}");
    }
    let said = text(&connect(&["-verify_hostname", "elsewhere.example"]));
    assert!(said.contains("ostname mismatch") && !said.contains("HTTP/1.1 200"), "{said}");
    for flag in ["-tls1_1", "-tls1"] {
        let said = text(&connect(&[flag, "-cipher", "DEFAULT@SECLEVEL=0"]));
        assert!(!said.contains("HTTP/1.1 200"), "{flag}: {said}");
    }
}

#[test]
fn curl_can_check_health_and_request_an_upgrade() {
    let Some(clients) = clients() else { return };
    let (pki, authority) = Pki::new();
    authority.client("ann", "ann", &["ann"]);
    let server = pki.serve_mutual(&[]);
    let (ca, certificate, key) = (pki.arg("ca.pem"), pki.arg("ann.pem"), pki.arg("ann.key"));
    let url = server.address().replace("wss://127.0.0.1", "https://localhost");
    let ours = ["--silent", "--show-error", "--noproxy", "*", "--max-time", "100", "--cacert", &ca];
    let own = ["--cert", &certificate, "--key", &key];
    let curl = |flags: &[&str]| run(&clients.join("curl"), &[&ours, flags].concat(), b"");

    let ready = curl(&[&own[..], &["--include", &format!("{url}/readyz")]].concat());
    assert!(ready.status.success() && text(&ready).starts_with("HTTP/1.1 200 OK"), "{ready:?}");
    let nobody = curl(&[&format!("{url}/readyz")]);
    assert!(!nobody.status.success(), "without a certificate nothing is answered: {nobody:?}");

    let headers = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"];
    let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    let headers: Vec<_> = headers.into_iter().chain([key]).flat_map(|header| ["--header", header]).collect();
    // It goes on until the time is over, for the connection is open.
    let upgraded = curl(&[&own[..], &["--include", "--max-time", "3"], &headers, &[&url]].concat());
    let said = text(&upgraded);
    assert!(said.starts_with("HTTP/1.1 101 Switching Protocols"), "{said}");
    assert!(said.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "the proof is there: {said}");
}

#[test]
fn python_runs_a_command_with_a_ca_and_a_client_certificate() {
    const SCRIPT: &str = r#"
import asyncio, base64, json, ssl, sys
import websockets

async def main(url, ca, certificate, key):
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(certificate, key)
    async with websockets.connect(url, ssl=context, proxy=None) as socket:
        async def call(number, method, params):
            await socket.send(json.dumps({"id": number, "method": method, "params": params}))
            while True:
                message = json.loads(await socket.recv())
                if message.get("id") == number:
                    return message["result"]
        await call(1, "initialize", {"clientName": "python"})
        await socket.send(json.dumps({"method": "initialized", "params": {}}))
        await call(2, "process/start", {
            "processId": "p", "argv": ["echo", "hello"], "cwd": "file:///",
            "env": {"PATH": "/usr/bin:/bin"}, "tty": False,
        })
        output, after = b"", None
        while b"\n" not in output:
            read = await call(3, "process/read", {"processId": "p", "afterSeq": after, "waitMs": 10000})
            for chunk in read["chunks"]:
                output += base64.b64decode(chunk["chunk"])
            after = read["nextSeq"] - 1
        print(output.decode().strip(), "over", socket.transport.get_extra_info("ssl_object").version())

asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), 100))
"#;
    let Some(clients) = clients() else { return };
    let (pki, authority) = Pki::new();
    authority.client("ann", "ann", &["ann"]);
    let server = pki.serve_mutual(&[]);
    let url = server.address().replace("127.0.0.1", "localhost");
    let (ca, certificate, key) = (pki.arg("ca.pem"), pki.arg("ann.pem"), pki.arg("ann.key"));
    let output = run(&clients.join("python3"), &["-c", SCRIPT, &url, &ca, &certificate, &key], b"");
    assert_eq!(text(&output), "hello over TLSv1.3\n", "{output:?}");
}

fn run(program: &Path, args: &[&str], input: &'static [u8]) -> Output {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run {program:?}: {error}"));
    let mut stdin = child.stdin.take().expect("stdin is piped");
    std::thread::spawn(move || stdin.write_all(input));
    child.finished()
}

/// Returns what a client printed, on both streams.
fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Returns the directory of the clients, which are installed if the machine has none.
fn clients() -> Option<&'static Path> {
    static CLIENTS: OnceLock<Option<PathBuf>> = OnceLock::new();
    CLIENTS.get_or_init(|| install("tls")).as_deref()
}
